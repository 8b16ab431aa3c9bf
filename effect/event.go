package effect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

const eventType = "pawl.effect.event"

// Event is one transition of an effect, as an entry of the history: what was done, when,
// by whom and why. For an effect that is settled it is all that there is.
type Event struct {
	Type        string      `json:"type"`
	Scheme      string      `json:"scheme"`
	Digest      pawl.Digest `json:"digest"`
	Key         string      `json:"key"`
	Destination string      `json:"destination"`
	Transition  string      `json:"transition"` // a row of the table in docs/effects.md
	From        State       `json:"from,omitempty"`
	To          State       `json:"to"`
	Settled     bool        `json:"settled,omitempty"` // it ends here
	Attempt     int         `json:"attempt"`
	Epoch       uint64      `json:"epoch"`
	Time        time.Time   `json:"time"`
	By          string      `json:"by"` // a runner, or an operator
	Reason      string      `json:"reason,omitempty"`
	Error       string      `json:"error,omitempty"`
	Result      []byte      `json:"result,omitempty"`
}

// Part is the name of the part in which the effect is until it is settled.
func (e Event) Part() string { return partOf(e.Key) }

// decodeEvent accepts the entry of a transition that the table has, and nothing else.
func decodeEvent(b []byte) (*Event, error) {
	var e Event
	if err := decode(b, &e); err != nil {
		return nil, err
	}
	if again, err := json.Marshal(&e); err != nil || !bytes.Equal(again, b) {
		return nil, errors.Join(errors.New("it is not as it was written"), err)
	}
	t, ok := row(e.Transition, e.From)
	if e.Type != eventType || !ok || t.to != e.To || t.ends != e.Settled || e.Epoch < 1 || e.Attempt < 0 || e.Result != nil && e.To != Done {
		return nil, errors.New("it is no transition of an effect")
	}
	return &e, check(e.Key, Request{Destination: e.Destination})
}

// eventStart is how the entry of every event begins: most entries are others.
var eventStart = []byte(`{"type":"` + eventType + `"`)

// Events yields what a history holds of the effect with this digest, oldest first. What
// retention has dropped is not there. It reads all of the history that is left.
func Events(v pawl.View, digest pawl.Digest) iter.Seq2[Event, error] {
	return events(v, func(e *Event) bool { return e.Digest == digest })
}

// Settled yields the events that settled an effect, oldest first, as Events does.
func Settled(v pawl.View) iter.Seq2[Event, error] {
	return events(v, func(e *Event) bool { return e.Settled })
}

func events(v pawl.View, want func(*Event) bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for entry, err := range v.Entries(0) {
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !bytes.HasPrefix(entry.Data, eventStart) {
				continue
			}
			e, err := decodeEvent(entry.Data)
			if err != nil || !want(e) {
				continue
			}
			ok, err := e.moved(v, entry.Revision)
			if err != nil {
				yield(Event{}, err)
				return
			}
			if ok && !yield(*e, nil) {
				return
			}
		}
	}
}

// moved reports whether the commit of an entry is that of the transition: an entry that only
// reads like one, of a program that records what others say, is none.
func (e *Event) moved(v pawl.View, at pawl.Revision) (bool, error) {
	t, _ := row(e.Transition, e.From)
	for c, err := range v.Commits(at - 1) {
		if err != nil || c.Version.Revision != at {
			return false, err
		}
		part := partOf(e.Key)
		id := moveID(t, e.Key, e.Attempt, e.Epoch)
		return (slices.Contains(c.Put, part) || slices.Contains(c.Deleted, part)) && (id == "" || id == c.ID), nil
	}
	return false, nil
}

// settled finds the event that ended the effect with a key: nil when there is none. An
// error that matches pawl.ErrForgotten says that it ended, and that retention has dropped
// how.
func settled(ctx context.Context, s *pawl.Store, key string) (*Event, error) {
	r, outcome, err := s.Lookup(ctx, endID(key))
	switch {
	case err != nil:
		return nil, err
	case outcome == pawl.OutcomeNotCommitted:
		return nil, nil
	case outcome == pawl.OutcomeForgotten:
		return nil, &Error{Key: key, Kind: pawl.ErrForgotten, Cause: errors.New("it is settled, and how is not kept any more")}
	case outcome != pawl.OutcomeCommitted:
		return nil, &Error{Key: key, Kind: pawl.ErrInDoubt, Cause: errors.New("the store has not settled")}
	}
	for entry, err := range s.View().Entries(r.FirstSeq - 1) {
		switch {
		case err != nil:
			return nil, err
		case entry.Revision != r.Revision:
			return nil, &Error{Key: key, Kind: pawl.ErrForgotten, Cause: errors.New("it is settled, and its result is not kept any more")}
		}
		e, err := decodeEvent(entry.Data)
		if err == nil && (e.Key != key || !e.Settled) {
			err = errors.New("it is of another effect")
		}
		if err != nil {
			return nil, &Error{Key: key, Kind: ErrUnknown, Cause: fmt.Errorf("entry %d, which ended it: %w", entry.Seq, err)}
		}
		return e, nil
	}
	return nil, &Error{Key: key, Kind: pawl.ErrForgotten, Cause: errors.New("it is settled, and its result is not kept any more")}
}
