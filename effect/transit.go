package effect

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Every transition goes through here. What is decided is decided under the locks of the
// store, on the state that nothing can change meanwhile, and is one commit: the new part,
// or none any more, and the entry. Its id is that of the transition, so a store that has
// made it once does not make it again, even where somebody has put an older record back.

// look is an effect as it is while a transition is decided.
type look struct {
	*record // nil: there is none
	at      time.Time
	seq     pawl.Seq // of the entry of a transition that is made now
}

// move is a transition that was decided on.
type move struct {
	name   string
	next   record // what it becomes; State and Since are filled in
	by     string
	reason string
	result []byte
}

// now is the time by the clock of the machine that ctx is on.
func now(ctx context.Context) time.Time {
	return vfs.FromContext(ctx).Now().UTC().Truncate(time.Millisecond)
}

// token is a name that nobody else has.
func token(ctx context.Context) string {
	var b [8]byte
	vfs.FromContext(ctx).Random(b[:])
	return hex.EncodeToString(b[:])
}

// change is the commit of a transition.
func (m *move) change(from State, at time.Time) (pawl.Change, *record, error) {
	t, ok := row(m.name, from)
	if !ok {
		return pawl.Change{}, nil, fmt.Errorf("the table has no %s from %q", m.name, string(from))
	}
	r := m.next
	r.State, r.Since = t.to, at
	e := Event{eventType, r.Scheme, r.Digest, r.Key, r.Destination, t.name, from, t.to, t.ends, r.Attempt, r.Epoch, at, m.by, m.reason, "", m.result}
	if t.said {
		e.Error = r.Error
	}
	entry, err := json.Marshal(&e)
	if err != nil {
		return pawl.Change{}, nil, err
	}
	c := pawl.Change{ID: moveID(t, r.Key, r.Attempt, r.Epoch), Entries: [][]byte{entry}}
	if t.ends {
		c.Delete = []string{partOf(r.Key)}
		return c, &r, nil
	}
	b, err := r.encode()
	if err == nil {
		// Nothing is written that would not be read.
		_, err = decodeRecord(partOf(r.Key), b)
	}
	c.Put = map[string][]byte{partOf(r.Key): b}
	return c, &r, err
}

// moveID is the id of the commit of a transition; "" of one that is in the caller's commit.
// Attempts and epochs are never used twice, so neither is an id; and of all that would end an
// effect, one can.
func moveID(t transition, key string, attempt int, epoch uint64) string {
	switch {
	case t.ends:
		return endID(key)
	case t.name == "enqueue":
		return ""
	case t.to == Started && t.name != "unsure": // whatever it starts from
		return commitID(key, fmt.Sprint("start/", attempt))
	case t.name == "release":
		return commitID(key, fmt.Sprint("release/", epoch-1))
	}
	return commitID(key, fmt.Sprint(t.name, "/", attempt))
}

// settleTries is how often a commit is tried that the store was in doubt about.
const settleTries = 3

// transit makes the transition that decide returns, if any, and returns the effect as it is
// then: nil when there is no such part. An error of decide comes back as it is.
func transit(ctx context.Context, s *pawl.Store, key string, decide func(look) (*move, error)) (*record, error) {
	bare := false
	for try := 1; ; try++ {
		var after *record
		var change pawl.Change
		var own error
		_, err := s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
			after, change = nil, pawl.Change{}
			now := look{at: now(ctx), seq: v.LastSeq() + 1}
			if now.record, own = load(v, key); own != nil {
				return change, own
			}
			var m *move
			if m, own = decide(now); own != nil || m == nil {
				after = now.record
				return change, own
			}
			if bare {
				m.next.Error = ""
			}
			from := none
			if now.record != nil {
				from = now.State
			}
			if change, after, own = m.change(from, now.at); own == nil {
				own = unmade(ctx, s, key, change.ID)
			}
			if own == nil {
				own = unmade(ctx, s, key, endID(key)) // nothing moves what is settled
			}
			if change.Delete != nil {
				after = nil
			}
			return change, own
		})
		switch {
		case own != nil:
			return nil, own
		case err == nil:
			return after, nil
		case errors.Is(err, pawl.ErrTooLarge) && !bare:
			bare = true // without the text of an error, then: the transition counts for more
			continue
		case !errors.Is(err, pawl.ErrInDoubt) || try == settleTries:
			return nil, err
		}
		if _, e := s.Recover(ctx); e != nil {
			return nil, errors.Join(err, e)
		}
		if landed(ctx, s, change) {
			return after, nil
		}
		// It did not happen, or somebody else was quicker: decided anew.
	}
}

// unmade refuses a transition that the history has and the record does not show: somebody
// has put an older record back, or taken it away.
func unmade(ctx context.Context, s *pawl.Store, key, id string) error {
	_, outcome, err := s.Lookup(ctx, id)
	if err != nil || outcome == pawl.OutcomeNotCommitted {
		return err
	}
	return &Error{Key: key, Kind: ErrUnknown, Cause: fmt.Errorf("the history has the commit %s, and the record does not show it", id)}
}

// landed reports whether a commit of which the store was in doubt was made, and not another
// one of the same id.
func landed(ctx context.Context, s *pawl.Store, c pawl.Change) bool {
	r, outcome, err := s.Lookup(ctx, c.ID)
	if c.ID == "" || err != nil || outcome != pawl.OutcomeCommitted {
		return false
	}
	for entry, err := range s.View().Entries(r.FirstSeq - 1) {
		return err == nil && entry.Revision == r.Revision && string(entry.Data) == string(c.Entries[0])
	}
	return false
}
