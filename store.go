package pawl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Store is an open store. All methods are safe for concurrent use; changes are made
// one after the other.
type Store struct {
	at       place
	opts     Options
	counts   *counts
	openTime time.Duration

	dir, trustDir        *directory
	storeLock, trustLock *lock

	// turn holds one token: whoever changes the store, or closes it, has it. What
	// follows belongs to that one.
	turn     chan struct{}
	updating atomic.Uint64 // the goroutine that runs Update's function, while it does
	trust    *trustFile
	bundle   *vfs.Info // the bundle as last seen; nil when there is none

	state atomic.Pointer[state] // replaced whole, once it is durable

	mu       sync.RWMutex // guards what follows, never across input or output
	root     Root         // of state
	ids      map[string]*record
	doubt    *Error // not nil: takes no commits until Recover
	underway string // the id of the commit that is being made
	closed   bool
	recovery Recovery
}

// View returns the newest state that is durable and confirmed. After Close it is
// the last one.
func (s *Store) View() View { return View{s.state.Load()} }

// Recovery returns what Open, or the last Recover, found and settled.
func (s *Store) Recovery() Recovery {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.recovery.clone()
}

// Commit makes one change: all of it or nothing.
//
// When it returns nil, the change is on stable storage and confirmed. Every error
// matches exactly one of ErrNotCommitted (nothing changed, and nothing will) and
// ErrInDoubt (call Recover, then Lookup). A change without id, entries, parts and
// deletions does nothing and returns the present version.
//
// ctx is honoured until the intent is written; from there the commit runs to its
// end, and its result is that of the commit, not of ctx.
func (s *Store) Commit(ctx context.Context, c Change) (Receipt, error) {
	p, err := c.prepare(&s.opts.Limits)
	if err != nil {
		return s.failed("commit", outcome(ErrNotCommitted, fail("", "", err)))
	}
	if err := s.take(ctx); err != nil {
		return s.failed("commit", s.refused(p.record.id, err))
	}
	defer s.give()
	r, e := s.commit(ctx, p)
	if e != nil {
		return s.failed("commit", e)
	}
	return r, nil
}

// Update runs fn on the present state and commits the change that it returns. No
// other change comes in between, so fn decides on what it sees.
//
// With an id, a commit that already has it is acknowledged again and fn does not
// run. An error of fn, or a panic in it, leaves the store as it was and usable; the
// error is returned, matches ErrNotCommitted and what fn returned. fn must not
// change the store by any other way: Commit, Update, Checkpoint, Verify, Recover and
// Close inside it fail rather than wait for themselves.
func (s *Store) Update(ctx context.Context, id string, fn func(View) (Change, error)) (Receipt, error) {
	r, e := s.update(ctx, id, fn)
	if e != nil {
		return s.failed("update", e)
	}
	return r, nil
}

func (s *Store) update(ctx context.Context, id string, fn func(View) (Change, error)) (Receipt, *Error) {
	if fn == nil {
		return Receipt{}, outcome(ErrNotCommitted, invalid("the function is nil"))
	}
	if id != "" {
		if err := checkID(id); err != nil {
			return Receipt{}, outcome(ErrNotCommitted, fail("", "", err))
		}
	}
	if err := s.take(ctx); err != nil {
		return Receipt{}, s.refused(id, err)
	}
	defer s.give()
	if e := s.usable(ctx); e != nil {
		return Receipt{}, e
	}
	if r, ok := s.recorded(id); ok {
		return s.replay(r), nil
	}
	c, err := s.ask(fn)
	if err != nil {
		return Receipt{}, outcome(ErrNotCommitted, &Error{Cause: contained{err}})
	}
	if c.ID == "" {
		c.ID = id
	}
	if id != "" && c.ID != id {
		return Receipt{}, outcome(ErrNotCommitted, invalid("the change has id %q, and Update was called with %q", clip(c.ID, 80), id))
	}
	p, err := c.prepare(&s.opts.Limits)
	if err != nil {
		return Receipt{}, outcome(ErrNotCommitted, fail("", "", err))
	}
	return s.commit(ctx, p)
}

// ask runs the caller's function; a panic in it passes through.
func (s *Store) ask(fn func(View) (Change, error)) (Change, error) {
	s.updating.Store(goroutineID())
	defer s.updating.Store(0)
	return fn(s.View())
}

// commit makes a prepared change, by whoever has the turn.
func (s *Store) commit(ctx context.Context, p *prepared) (Receipt, *Error) {
	start := time.Now()
	if e := s.usable(ctx); e != nil {
		return Receipt{}, e
	}
	if r, ok := s.recorded(p.record.id); ok {
		if !r.sameContent(&p.record) {
			return Receipt{}, outcome(ErrNotCommitted, &Error{Kind: ErrIDReused, Hint: hintReused,
				Cause: fmt.Errorf("id %q is that of revision %d", r.id, r.revision)})
		}
		return s.replay(r), nil
	}
	now := s.state.Load()
	if p.expect != nil && *p.expect != now.version() {
		return Receipt{}, outcome(ErrNotCommitted, &Error{Kind: ErrStale, Hint: hintExpect,
			Cause: fmt.Errorf("expected %s, the state is %s", *p.expect, now.version())})
	}
	if p.empty {
		return Receipt{Version: now.version()}, nil
	}
	r := p.record
	r.revision = now.version().Revision + 1
	r.firstSeq = now.nextSeq()
	r.time = s.at.fsys.Now().UnixNano()
	r.seal(now.version().Digest)
	defer s.begin(r.id)()
	if e := s.publish(now.after(&r, p.data, s.root.Digest), r.id); e != nil {
		return Receipt{}, e
	}
	s.counts.commits.Add(1)
	s.counts.commitTime.Add(int64(time.Since(start)))
	return r.receipt(), nil
}

// begin lets Lookup know that the fate of an id is open; the function that it
// returns ends that.
func (s *Store) begin(id string) (end func()) {
	set := func(id string) {
		s.mu.Lock()
		s.underway = id
		s.mu.Unlock()
	}
	set(id)
	return func() { set("") }
}

func (s *Store) replay(r *record) Receipt {
	s.counts.replays.Add(1)
	receipt := r.receipt()
	receipt.Replayed = true
	return receipt
}

// refused is the error of a change that did not get its turn. It cannot be certain
// of one that is in doubt already.
func (s *Store) refused(id string, err error) *Error {
	s.mu.RLock()
	doubt := s.doubt
	s.mu.RUnlock()
	if doubt != nil && id != "" {
		return outcome(ErrInDoubt, &Error{Cause: errors.Join(fail("", "", err), doubt.Cause)})
	}
	return outcome(ErrNotCommitted, fail("", "", err))
}

// failed counts and completes the error of a change.
func (s *Store) failed(op string, e *Error) (Receipt, error) {
	if e.Outcome == ErrInDoubt {
		s.counts.inDoubt.Add(1)
	} else {
		s.counts.notCommitted.Add(1)
	}
	c := *e // an error that sticks keeps the operation that it came from
	return Receipt{}, fail(op, s.at.dir, &c)
}

// Lookup tells what became of the commit with an id. It never waits: for a commit
// that is being made at this moment the outcome is unknown. Of the commits of another
// writer that went ahead (ErrStale) this Store knows nothing: open it again. One that
// is still waiting for its turn, or for the function of Update, has not begun: it is
// not committed.
func (s *Store) Lookup(ctx context.Context, id string) (Receipt, Outcome, error) {
	if err := ctx.Err(); err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, ctxError(ctx))
	}
	if err := checkID(id); err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch r := s.ids[id]; {
	case s.closed:
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, &Error{Kind: ErrClosed})
	case r != nil:
		return r.receipt(), OutcomeCommitted, nil
	case s.doubt != nil || s.underway == id:
		return Receipt{}, OutcomeUnknown, nil
	}
	return Receipt{}, OutcomeNotCommitted, nil
}

func (s *Store) recorded(id string) (*record, bool) {
	if id == "" {
		return nil, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.ids[id]
	return r, ok
}

// Checkpoint makes the bundle hold the whole state. When it returns nil, the
// SHA-256 of the file "bundle" is the digest that the trust file names. In this
// version every commit does so, and there is nothing left to write.
func (s *Store) Checkpoint(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return fail("checkpoint", s.at.dir, err)
	}
	defer s.give()
	if e := s.usable(ctx); e != nil {
		c := *e
		c.Outcome = nil
		if e.Outcome == ErrInDoubt {
			c.Kind = ErrInDoubt
		}
		return fail("checkpoint", s.at.dir, &c)
	}
	if e := s.recheck(); e != nil {
		return fail("checkpoint", s.at.dir, e)
	}
	return nil
}

// Close marks a clean end, gives up the locks and releases everything. The state is
// safe without it: a process that is killed loses nothing. A second Close does
// nothing. Close waits for a change that is under way.
func (s *Store) Close() error {
	if err := s.take(context.Background()); err != nil {
		if errors.Is(err, ErrClosed) {
			return nil
		}
		return fail("close", s.at.dir, err)
	}
	defer s.give()
	s.mu.Lock()
	s.closed = true
	doubt := s.doubt
	s.mu.Unlock()
	var e *Error
	if doubt == nil && !s.trust.newest.closed {
		// A stale store has nothing to say any more about the state.
		if e = s.recheck(); e == nil {
			end := s.trustRecord()
			end.closed = true
			if err := s.trust.write(end); err != nil {
				e = fail("", s.trust.path(), err)
			}
		}
	}
	if err := s.release(); err != nil && e != nil {
		e.Cause = errors.Join(e.Cause, err)
	} else if err != nil {
		e = fail("", s.at.dir, err)
	}
	if e != nil {
		return fail("close", s.at.dir, e)
	}
	return nil
}

// release gives up all that Open took, in the reverse order.
func (s *Store) release() error {
	var errs []error
	if s.trust != nil {
		s.trust.disown()
	}
	errs = append(errs, s.storeLock.release(), s.trustLock.release())
	for _, d := range []*directory{s.dir, s.trustDir} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}
