package effect

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

const recordType = "pawl.effect"

// record is an unsettled effect as its part holds it: JSON, exactly as encode makes it.
type record struct {
	Type        string      `json:"type"`
	Scheme      string      `json:"scheme"`
	Digest      pawl.Digest `json:"digest"` // the identity, under the scheme
	Key         string      `json:"key"`
	Destination string      `json:"destination"`
	Body        []byte      `json:"body"`
	Order       uint64      `json:"order"` // the seq of the entry that recorded it
	State       State       `json:"state"`
	Attempt     int         `json:"attempt"`             // the last one that was begun
	Epoch       uint64      `json:"epoch"`               // 1, and one more with each release
	Doubt       bool        `json:"doubt,omitempty"`     // an attempt before that one may have had the effect
	Since       time.Time   `json:"since"`               // when it came to this state
	Runner      string      `json:"runner,omitempty"`    // who carries the attempt out
	Lease       time.Time   `json:"lease,omitzero"`      // until when that one is believed to, in a shared store
	NotBefore   time.Time   `json:"not_before,omitzero"` // of the next attempt by an Outbox
	Error       string      `json:"error,omitempty"`     // what the last attempt said
	Sum         pawl.Digest `json:"sum"`                 // SHA-256 of all this, with zeros here
}

func (r *record) request() Request { return Request{r.Destination, r.Body} }

// owned says that somebody carries it out, as far as the record knows.
func (r *record) owned() bool { return r.State == Started && r.Runner != "" }

// encode returns the bytes of the part.
func (r *record) encode() ([]byte, error) {
	c := *r
	c.Sum = pawl.Digest{}
	b, err := json.Marshal(&c)
	if err != nil {
		return nil, err
	}
	c.Sum = sha256.Sum256(b)
	return json.Marshal(&c)
}

// decodeRecord accepts what encode made, of a record that can be, under its own name, and
// nothing else. Whatever else is in the part proves nothing.
func decodeRecord(part string, b []byte) (*record, error) {
	var r record
	if err := decode(b, &r); err != nil {
		return nil, err
	}
	if again, err := r.encode(); err != nil || !bytes.Equal(again, b) {
		return nil, errors.Join(errors.New("it is not as it was written"), err)
	}
	if err := r.check(part); err != nil {
		return nil, err
	}
	return &r, nil
}

// decode reads exactly one JSON value with no fields that are not known.
func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one value")
	}
	return nil
}

// check refuses what contradicts itself.
func (r *record) check(part string) error {
	if r.Type != recordType {
		return fmt.Errorf("the type is %.80q", r.Type)
	}
	if err := check(r.Key, r.request()); err != nil {
		return err
	}
	if r.Body == nil {
		return errors.New("it has no body")
	}
	if part != partOf(r.Key) {
		return errors.New("it is the record of another effect")
	}
	switch identity, ok := identify(r.Scheme, r.Key, r.request()); {
	case !ok:
		return fmt.Errorf("the scheme %.80q is not known here", r.Scheme)
	case identity != r.Digest:
		return errors.New("it has the digest of another request")
	}
	for _, t := range []time.Time{r.Since, r.Lease, r.NotBefore} {
		if !t.Equal(t.Truncate(time.Millisecond)) || t.Location() != time.UTC {
			return errors.New("a time is not as it is written")
		}
	}
	return r.fits()
}

// fits refuses fields that cannot be what they are in this state.
func (r *record) fits() error {
	begun := r.Attempt > 0
	fits := false
	switch r.State {
	case Queued:
		fits = !begun && r.Epoch == 1 && !r.Doubt && r.NotBefore.IsZero() && r.Error == ""
	case Started:
		// Only one that nobody carries out waits for its time.
		fits = begun && (r.NotBefore.IsZero() || r.Runner == "") && (r.Lease.IsZero() || r.Runner != "")
	case Failed:
		fits = begun && !r.Doubt
	case Parked:
		fits = begun && r.NotBefore.IsZero()
	case Released:
		fits = begun && r.Epoch > 1 && r.NotBefore.IsZero()
	}
	if r.State != Started {
		fits = fits && r.Runner == "" && r.Lease.IsZero()
	}
	if !fits || r.Attempt < 0 || r.Epoch < 1 || r.Epoch > uint64(r.Attempt)+1 || r.Doubt && r.Attempt < 2 || r.Since.IsZero() {
		return fmt.Errorf("its fields are not those of an effect that is %.80q", string(r.State))
	}
	return nil
}

// load finds the record of a key in a state: nil when there is none, and an error when
// what is there is no record.
func load(v pawl.View, key string) (*record, error) {
	part := partOf(key)
	b, ok, err := v.Get(part)
	if err != nil || !ok {
		return nil, err
	}
	r, err := decodeRecord(part, b)
	if err != nil {
		return nil, &Error{Key: key, Kind: ErrUnknown, Cause: fmt.Errorf("part %s: %w", part, err)}
	}
	return r, nil
}

// same holds a request against a recorded identity, under the scheme that it was recorded
// with: an identity is never made anew.
func same(scheme string, identity pawl.Digest, key string, r Request) error {
	switch now, ok := identify(scheme, key, r); {
	case !ok:
		return &Error{Key: key, Kind: ErrUnknown, Cause: fmt.Errorf("the scheme %.80q is not known here", scheme)}
	case now != identity:
		return &Error{Key: key, Destination: r.Destination, Digest: now, Kind: ErrKeyReused, Cause: fmt.Errorf("that is %s", identity)}
	}
	return nil
}
