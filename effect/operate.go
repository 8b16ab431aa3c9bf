package effect

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// Effect is an effect that is not settled, as it is recorded. Of one whose record is not
// understood, Part and Problem are all there is.
type Effect struct {
	Part        string      `json:"part"`
	Problem     string      `json:"problem,omitempty"` // why the record is not understood
	Digest      pawl.Digest `json:"digest,omitzero"`   // the identity
	Scheme      string      `json:"scheme,omitempty"`
	Key         string      `json:"key,omitempty"`
	Destination string      `json:"destination,omitempty"`
	Body        []byte      `json:"-"`
	State       State       `json:"state,omitempty"`
	Attempt     int         `json:"attempt"`
	Epoch       uint64      `json:"epoch"`
	Doubt       bool        `json:"doubt,omitempty"` // an attempt before the last may have had the effect
	Since       time.Time   `json:"since,omitzero"`
	Runner      string      `json:"runner,omitempty"`
	Lease       time.Time   `json:"lease,omitzero"`
	NotBefore   time.Time   `json:"not_before,omitzero"`
	Error       string      `json:"error,omitempty"`
}

// IdempotencyKey is what the other side was given as Call.Key, and can be asked for.
func (e Effect) IdempotencyKey() string { return idempotencyKey(e.Digest) }

func (r *record) effect() Effect {
	return Effect{partOf(r.Key), "", r.Digest, r.Scheme, r.Key, r.Destination, r.Body, r.State, r.Attempt, r.Epoch, r.Doubt, r.Since, r.Runner, r.Lease, r.NotBefore, r.Error}
}

// Unsettled yields all effects of a state that are not settled, in the order of their parts.
// One whose record is not understood, or cannot be read, is among them.
func Unsettled(v pawl.View) iter.Seq[Effect] {
	return func(yield func(Effect) bool) {
		for part := range v.Parts() {
			if !strings.HasPrefix(part, partPrefix) {
				continue
			}
			var r *record
			b, _, err := v.Get(part)
			if err == nil {
				r, err = decodeRecord(part, b)
			}
			e := Effect{Part: part}
			if err != nil {
				e.Problem = oneLine(err.Error())
			} else {
				e = r.effect()
			}
			if !yield(e) {
				return
			}
		}
	}
}

// Find returns the effect with this digest, if it is not settled.
func Find(v pawl.View, digest pawl.Digest) (Effect, bool) {
	for e := range Unsettled(v) {
		if e.Problem == "" && e.Digest == digest {
			return e, true
		}
	}
	return Effect{}, false
}

// ParseDigest reads the digest of an effect, with "sha256:" before it or without.
func ParseDigest(s string) (d pawl.Digest, err error) {
	b, err := hex.DecodeString(strings.TrimPrefix(s, "sha256:"))
	if err != nil || copy(d[:], b) != len(d) || len(b) != len(d) || strings.ToLower(s) != s {
		return pawl.Digest{}, &Error{Op: "parse digest", Kind: pawl.ErrInvalid, Cause: fmt.Errorf("%.80q is not the digest of an effect: 64 lower-case hexadecimal digits", s)}
	}
	return d, nil
}

// Decision is what somebody decides about exactly one effect.
type Decision struct {
	Digest pawl.Digest // which

	// Epoch is the one at which it was looked at. With another one by now the decision is
	// refused. Resolve and Cancel take 0 for any.
	Epoch uint64

	By, Reason string // who, and why: for the history
}

// missing is the error for a digest that no unsettled effect has.
func missing(v pawl.View, digest pawl.Digest) error {
	var last *Event
	for e, err := range Events(v, digest) {
		if err != nil {
			return err
		}
		last = &e
	}
	if last == nil || last.Settled {
		return &Error{Kind: ErrNotFound}
	}
	return &Error{Key: last.Key, Destination: last.Destination, Kind: ErrUnknown, Cause: fmt.Errorf("part %s is not what the history says", last.Part())}
}

// KeepUnsettled is for pawl.Policy.Keep: it keeps the entries of all effects that are not
// settled, and so who has decided what about them. Those of settled ones may go. It looks at
// the store when it is first asked, and is for one call of Compact.
func KeepUnsettled(s *pawl.Store) func(pawl.Entry) bool {
	var parts map[string]bool
	return func(entry pawl.Entry) bool {
		if parts == nil {
			parts = map[string]bool{}
			for part := range s.View().Parts() {
				parts[part] = strings.HasPrefix(part, partPrefix)
			}
		}
		if !bytes.HasPrefix(entry.Data, eventStart) {
			return false
		}
		e, err := decodeEvent(entry.Data)
		return err == nil && parts[e.Part()]
	}
}

// Release allows exactly one more attempt of a parked effect, whoever makes it, Do or an
// Outbox. When it returns nil, that is on stable storage, with an entry that says who and
// why, and the epoch is one more: a second release at the same epoch is refused. One that is
// begun is used up, also when its context ends before the function is called.
//
// ErrRefused says that it is not parked, or at another epoch; ErrNotFound that there is no
// unsettled effect of this digest. Nothing has changed then. One that was begun by a process
// that is gone is parked first.
func Release(ctx context.Context, s *pawl.Store, d Decision) error {
	return decided(ctx, s, "release", d, nil)
}

// Resolve records the result of a parked effect: it is done. To a Do the result is the JSON
// of its type. Otherwise as Release.
func Resolve(ctx context.Context, s *pawl.Store, d Decision, result []byte) error {
	return decided(ctx, s, "resolve", d, result)
}

// Cancel ends an effect that is not under way: it will not be carried out any more. One that
// is parked may have happened. Otherwise as Release.
func Cancel(ctx context.Context, s *pawl.Store, d Decision) error {
	return decided(ctx, s, "cancel", d, nil)
}

func decided(ctx context.Context, s *pawl.Store, op string, d Decision, result []byte) error {
	err := operate(ctx, s, op, d, result)
	if err == nil {
		return nil
	}
	e := &Error{Cause: err}
	if own, ok := err.(*Error); ok {
		c := *own
		e = &c
	}
	e.Op, e.Digest = op, d.Digest
	return e
}

func operate(ctx context.Context, s *pawl.Store, op string, d Decision, result []byte) error {
	if d.By == "" || d.Reason == "" || len(d.By)+len(d.Reason) > mostError || op == "release" && d.Epoch == 0 {
		return fmt.Errorf("%w: who and why are needed, in %d bytes, and for a release the epoch", pawl.ErrInvalid, mostError)
	}
	if s == nil {
		return fmt.Errorf("%w: a store is needed", pawl.ErrInvalid)
	}
	// Which key it is, from the newest state: in a shared store, View may be behind.
	var key string
	_, err := s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
		e, _ := Find(v, d.Digest)
		key = e.Key
		return pawl.Change{}, nil
	})
	if err != nil {
		return err
	}
	if key == "" {
		return missing(s.View(), d.Digest)
	}
	if ctx.Value(carrying{s, key}) != nil {
		return &Error{Key: key, Kind: ErrRefused, Cause: errors.New("it is being carried out by the caller")}
	}
	release, err := hold(ctx, s, key) // nobody in this process carries it out
	if err == errLeft {
		return &Error{Key: key, Kind: ErrRefused, Cause: err}
	}
	if err != nil {
		return err
	}
	defer release()
	// Of an effect whose process is gone that is written down first: a transition of its own.
	c := carrier{store: s}
	for {
		parked := false
		_, err := transit(ctx, s, key, func(now look) (*move, error) {
			r := now.record
			if r == nil || r.Digest != d.Digest {
				return nil, &Error{Kind: ErrNotFound}
			}
			if d.Epoch != 0 && d.Epoch != r.Epoch {
				return nil, r.error(ErrRefused, fmt.Errorf("it is at epoch %d, not %d", r.Epoch, d.Epoch))
			}
			if r.State == Started {
				to, until, m := c.decide(now, true)
				if to == stepWait {
					return nil, r.error(ErrRefused, fmt.Errorf("it is being carried out, until %s at most", until.Format(time.RFC3339)))
				}
				parked = true
				return m, nil
			}
			if _, ok := row(op, r.State); !ok {
				return nil, r.error(ErrRefused, fmt.Errorf("it is %s", r.State))
			}
			m := &move{name: op, next: *r, by: oneLine(d.By), reason: oneLine(d.Reason), result: result}
			m.next.free()
			if op == "release" {
				m.next.Epoch++
			}
			return m, nil
		})
		if err != nil || !parked {
			return err
		}
	}
}
