package pawl

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Store is an open store. All methods are safe for concurrent use; changes are made
// one after the other.
type Store struct {
	site
	openTime time.Duration

	storeLock, trustLock *lock

	// turn holds one token: whoever changes the store, or closes it, has it. What
	// follows belongs to that one.
	turn     chan struct{}
	joined   bool          // the locks are held; always, unless Options.Shared
	abreast  bool          // memory is what the disk was when the locks were last held
	sought   bool          // somebody else waited for the locks when they were given up
	updating atomic.Uint64 // the goroutine that runs Update's function, while it does
	untold   atomic.Bool   // doubt came up while no call was under way that could return it
	trust    *trustFile
	bundle   *vfs.Info // the bundle as last seen; nil when there is none
	log      journal
	shelf    map[string]*keptFile // what the bundle names, by name
	retired  map[string]*keptFile // what one before has named, and is still to be removed
	lasting  int64                // how many retired files Views kept, when that was looked at
	company  bool                 // the last batch was of more than one commit
	idle     vfs.Timer            // flushes a confirm that nothing followed
	lull     sync.Mutex           // held but while Update's function runs, when nobody uses the trust file

	queue queue
	state atomic.Pointer[state] // replaced whole, once it is durable

	mu       sync.RWMutex       // guards what follows, never across input or output
	root     Root               // of state
	ids      map[string]*record // of the commits that are not in segments
	doubt    *Error             // not nil: takes no commits until Recover
	underway *batch             // the commits that are being written; nil when none are
	closed   bool
	recovery Recovery
	newer    chan struct{} // closed with the next change; nil when nobody watches
	follower *Reader       // finds what others do to a shared store, while anybody watches
	watching int           // how many do
}

// View returns the newest state that was acknowledged, with Options.Shared the newest that
// this Store has seen: it is durable, and confirmed. After Close it is the last one.
func (s *Store) View() View { return View{s.state.Load()} }

// Recovery returns what Open, or the last Recover, found and settled; with Options.Shared
// also what was settled later, when the turn came after that of a process that was killed.
func (s *Store) Recovery() Recovery {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.recovery.clone()
}

// Commit makes one change: all of it or nothing.
//
// When it returns nil, the change is on stable storage and confirmed; the confirm
// itself may become durable a little later, see Options.SyncConfirm. Every error
// matches exactly one of ErrNotCommitted (nothing changed, and nothing will) and
// ErrInDoubt (call Recover, then Lookup). A change without id, entries, parts and
// deletions does nothing and returns the present version. An id of a commit that retention
// has dropped (Policy.ForgetBefore) is refused: ErrForgotten. So is one of which cannot be
// told whether it was used, because a segment cannot be read: ErrDamaged.
//
// Commits that several goroutines ask for at once go to disk together, in the order
// in which they came, each whole and with a result of its own.
//
// ctx is honoured until the commit is about to be written; from there it runs to its
// end, and its result is that of the commit, not of ctx. A call whose id another call
// has asked for too waits for the result of both.
func (s *Store) Commit(ctx context.Context, c Change) (Receipt, error) {
	p, err := s.prepare(c)
	if err != nil {
		return s.failed("commit", outcome(ErrNotCommitted, fail("", "", err)))
	}
	for {
		s.ask(p)
		if r, ok := s.replay(p, &p.record); ok {
			return r, nil
		}
		if err := s.ready(ctx); err != nil && !s.expected(p.record.id) {
			if !p.upToDate(s.state.Load()) {
				continue // what was expected may have come to be, and to be sealed
			}
			return s.failed("commit", s.refused(p.record.id, err))
		}
		r := s.enter(ctx, p)
		s.await(r)
		switch {
		case r.again:
			continue
		case r.err != nil:
			return s.failed("commit", r.err)
		}
		return r.receipt, nil
	}
}

// ask looks in the segments for the id of a change that is to be made.
func (s *Store) ask(p *prepared) {
	if p.record.id == "" {
		return
	}
	st := s.state.Load()
	p.asked = st.sealed
	p.past, p.unsure = st.seek(p.record.id)
}

// upToDate reports whether what a change knows of its id is about all segments of a state.
func (p *prepared) upToDate(st *state) bool {
	return p.record.id == "" || len(p.asked) == len(st.sealed) && (len(st.sealed) == 0 || &p.asked[0] == &st.sealed[0])
}

// Update runs fn on the present state and commits the change that it returns. No
// other change comes in between, so fn decides on what it sees.
//
// With an id, a commit that already has it is acknowledged again and fn does not
// run. An error of fn, or a panic in it, leaves the store as it was and usable; the
// error is returned, matches ErrNotCommitted and what fn returned. fn must not
// change the store by any other way: Commit, Update, Checkpoint, Verify, Recover and
// Close inside it fail rather than wait for themselves. Nor must it wait for another
// goroutine that does so: that one waits for fn to return; with Options.Shared, Lookup by
// another goroutine waits too, and so do the other processes.
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
	old := &prepared{record: record{id: id}}
	s.ask(old)
	if r, ok := s.replay(old, nil); ok {
		return r, nil
	}
	ended := s.take(ctx)
	if ended != nil {
		// As in withdraw: somebody else's commit of that id may be on its way, or have come
		// to be meanwhile.
		if ctx.Err() == nil || !s.expected(id) {
			s.ask(old)
			if r, ok := s.replay(old, nil); ok {
				return r, nil
			}
			return Receipt{}, s.refused(id, ended)
		}
		if err := s.take(context.WithoutCancel(ctx)); err != nil {
			return Receipt{}, s.refused(id, err)
		}
	}
	defer s.give()
	err := s.join(unless(ended, ctx))
	if err != nil && ctx.Err() != nil && s.expected(id) {
		ended = ctxError(ctx)
		err = s.join(unless(ended, ctx))
	}
	if err != nil {
		if s.expected(id) {
			s.lead(err) // or it would be committed after all, by somebody who asked for it too
		}
		return Receipt{}, s.refused(id, err)
	}
	s.lead(nil) // those who were here before
	s.ask(old)
	if r, ok := s.replay(old, nil); ok {
		return r, nil
	}
	if err := s.refusal(); err != nil {
		return Receipt{}, s.refused(id, err)
	}
	if ended != nil {
		return Receipt{}, s.refused(id, ended)
	}
	if e := old.barred(); e != nil {
		return Receipt{}, e
	}
	c, err := s.call(fn)
	if err != nil {
		return Receipt{}, outcome(ErrNotCommitted, &Error{Cause: contained{err}})
	}
	if c.ID == "" {
		c.ID = id
	}
	if id != "" && c.ID != id {
		return Receipt{}, outcome(ErrNotCommitted, invalid("the change has id %q, and Update was called with %q", clip(c.ID, 80), id))
	}
	p, err := s.prepare(c)
	if err != nil {
		return Receipt{}, outcome(ErrNotCommitted, fail("", "", err))
	}
	for {
		s.ask(p)
		r := s.first(ctx, p)
		if s.lead(nil); !r.again {
			return r.receipt, r.err
		}
	}
}

// barred is why a change with its id is not made, though no such commit is known: there
// was one, or that cannot be told.
func (p *prepared) barred() *Error {
	switch {
	case p.past.forgotten != 0:
		e := forgotten(p.past.forgotten)
		e.Hint = hintForgotten
		return outcome(ErrNotCommitted, e)
	case p.unsure != nil:
		e := *fail("", "", p.unsure)
		if e.Kind == ErrDamaged {
			e.Hint = hintUnknownID
		}
		return outcome(ErrNotCommitted, &e)
	}
	return nil
}

// unless is a context that has ended only if nobody has to wait for its end.
func unless(ended error, ctx context.Context) context.Context {
	if ended != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// prepare checks and encodes a change that this Store is to make.
func (s *Store) prepare(c Change) (*prepared, error) {
	c.schema, c.program = uint32(s.opts.Schema), s.opts.Program
	return c.prepare(&s.opts.Limits)
}

// replay acknowledges a commit that was made under an id once more, whatever became
// of the context meanwhile; but not when the store is in doubt, or closed. content, if
// not nil, must be the same.
func (s *Store) replay(p *prepared, content *record) (Receipt, bool) {
	r, ok := s.recorded(p.record.id)
	if !ok && p.past.record != nil {
		r, ok = p.past.record, true
	}
	if !ok || content != nil && !r.sameContent(content) {
		return Receipt{}, false
	}
	if s.refusal() != nil {
		return Receipt{}, false
	}
	s.counts.replays.Add(1)
	receipt := r.receipt()
	receipt.Replayed = true
	return receipt, true
}

// expected reports whether a commit with that id is being made, or waits to be made.
func (s *Store) expected(id string) bool {
	if s.inside() {
		return false // it cannot wait for that
	}
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.wanted(id, nil)
}

// call runs the caller's function; a panic in it passes through.
func (s *Store) call(fn func(View) (Change, error)) (Change, error) {
	s.updating.Store(goroutineID())
	s.lull.Unlock()
	defer s.lull.Lock()
	defer s.updating.Store(0)
	if s.trust.behind.Load() { // wound up afterwards, as in give
		s.idle.Reset(confirmDelay)
	}
	return fn(s.View())
}

// begin lets Lookup know that the fate of a batch is open; end, that it is decided.
func (s *Store) begin(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underway = b
}

func (s *Store) end() { s.begin(nil) }

// refused is the error of a change that was not begun, for the given reason. While
// the store is in doubt, that is the reason; and then nothing can be certain of an id.
func (s *Store) refused(id string, err error) *Error {
	s.mu.RLock()
	doubt := s.doubt
	s.mu.RUnlock()
	if doubt != nil && err == error(doubt) {
		return doubt
	}
	if doubt != nil && id != "" {
		return outcome(ErrInDoubt, &Error{Cause: errors.Join(fail("", "", err), doubt.Cause)})
	}
	var e *Error
	if !errors.As(err, &e) {
		e = fail("", "", err)
	}
	c := *e
	return outcome(ErrNotCommitted, &c)
}

// failed counts and completes the error of a change.
func (s *Store) failed(op string, e *Error) (Receipt, error) {
	if e.Outcome == ErrInDoubt {
		s.counts.inDoubt.Add(1)
		s.untold.Store(false)
	} else {
		s.counts.notCommitted.Add(1)
	}
	c := *e // an error that sticks keeps the operation that it came from
	return Receipt{}, fail(op, s.at.dir, &c)
}

// Lookup tells what became of the commit with an id. It waits for no commit: for a commit
// that is being made at this moment the outcome is unknown. Of the commits of another
// writer that went ahead (ErrStale) this Store knows nothing: open it again. One that
// is still waiting for its turn, or for the function of Update, has not begun: it is
// not committed.
//
// With Options.Shared it takes the locks, unless the answer is known, and sees what
// others did; it waits for that as a change does, and ErrLocked is possible.
func (s *Store) Lookup(ctx context.Context, id string) (Receipt, Outcome, error) {
	if err := ctx.Err(); err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, ctxError(ctx))
	}
	if err := checkID(id); err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, err)
	}
	if s.opts.Shared {
		if err := s.meet(ctx, id); err != nil {
			return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, err)
		}
	}
	s.mu.RLock()
	st, r, closed := s.state.Load(), s.ids[id], s.closed
	open := s.doubt != nil || s.underway != nil && s.underway.ids[id] != nil
	s.mu.RUnlock()
	switch {
	case closed:
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, &Error{Kind: ErrClosed})
	case r != nil:
		return r.receipt(), OutcomeCommitted, nil
	}
	p, err := st.seek(id)
	if open && p.record == nil && p.forgotten == 0 {
		return Receipt{}, OutcomeUnknown, nil
	}
	if err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", s.at.dir, err)
	}
	receipt, o := p.outcome()
	return receipt, o, nil
}

// meet sees what others did to a shared store, unless the id is known already, or the
// caller is the function of Update and has the locks.
func (s *Store) meet(ctx context.Context, id string) error {
	if _, ok := s.recorded(id); ok || s.inside() {
		return nil
	}
	if p, err := s.state.Load().seek(id); err == nil && p.record != nil {
		return nil
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	return s.join(ctx)
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

// Checkpoint publishes the bundle: when it returns nil, the bundle holds the whole
// state, there is no journal, and the SHA-256 of the file "bundle" is the digest that
// the trust file names. After an error other than ErrInDoubt nothing has changed, and
// the store goes on; the state is the same either way.
func (s *Store) Checkpoint(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return fail("checkpoint", s.at.dir, err)
	}
	defer s.give()
	if err := s.join(ctx); err != nil {
		return fail("checkpoint", s.at.dir, err)
	}
	s.lead(nil) // those who were here before
	if err := s.checkpoint(); err != nil {
		return fail("checkpoint", s.at.dir, err)
	}
	return nil
}

// checkpoint is Checkpoint, by whoever has the turn.
func (s *Store) checkpoint() error {
	err := s.refusal()
	if err == nil && s.root.Journal == 0 {
		if e := s.recheck(); e != nil {
			return e
		}
		return nil
	}
	if err == nil {
		if e := s.publish(s.state.Load(), nil); e != nil {
			err = e
		}
		s.startOver()
	}
	return withoutOutcome(err)
}

// withoutOutcome is the error of a call that is no commit: in doubt is its Kind.
func withoutOutcome(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Outcome = nil
	if e.Outcome == ErrInDoubt {
		c.Kind = ErrInDoubt
	}
	return &c
}

// Close marks a clean end, gives up the locks and releases everything. A journal that
// has become large is published first, and history of more than a sixteenth of
// Limits.Unsealed is sealed, so that the next open is quick. The state is
// safe without Close: a process that is killed loses nothing. A second Close does
// nothing. Close waits for a change that is under way. Of those who share a store
// (Options.Shared) the one that wrote last marks the end.
func (s *Store) Close() error {
	if err := s.take(context.Background()); err != nil {
		if errors.Is(err, ErrClosed) {
			return nil
		}
		return fail("close", s.at.dir, err)
	}
	defer s.give()
	var unable error
	if s.trust.mine || s.counts.waiting.Load() > 0 || !s.opts.Shared {
		unable = s.join(context.Background())
	}
	ended := unable
	if ended == nil && !s.joined {
		ended = &Error{Kind: ErrClosed} // somebody entered at this moment
	}
	s.lead(ended) // those who were here before
	s.idle.Stop()
	var errs []error
	if unable != nil && !errors.Is(unable, ErrLocked) && !errors.Is(unable, ErrSchema) {
		errs = append(errs, unable)
	}
	if s.untold.Load() {
		errs = append(errs, withoutOutcome(s.refusal()))
	}
	// Of a shared store, whoever wrote last marks the end.
	if s.joined && s.refusal() == nil && (s.trust.mine || !s.opts.Shared) {
		if err := s.lighten(); err != nil {
			errs = append(errs, err)
		}
		if s.refusal() == nil && !s.trust.newest.closed {
			errs = append(errs, s.markClosed())
		}
		if s.refusal() == nil {
			s.removeRetired()
		}
	}
	s.mu.Lock()
	s.closed = true
	s.tell()
	s.mu.Unlock()
	if err := errors.Join(append(errs, s.release())...); err != nil {
		return fail("close", s.at.dir, unjoined(err))
	}
	return nil
}

// lighten publishes the bundle before the end, if the next open would have much to read.
func (s *Store) lighten() error {
	l := &s.opts.Limits
	most := max(l.Unsealed/sealAtClose, leastSealed)
	if s.root.Journal <= l.Journal/closeAt && s.state.Load().unsealed <= most {
		return nil
	}
	e := s.publishSealing(s.state.Load(), nil, most)
	s.startOver()
	if e != nil {
		return withoutOutcome(e)
	}
	return nil
}

// closeAt: Close publishes a journal that holds more than this part of its limit.
const closeAt = 4

// markClosed writes the record of a clean end, durably.
func (s *Store) markClosed() error {
	// A stale store has nothing to say any more about the state.
	if e := s.recheck(); e != nil {
		return e
	}
	last := s.trustRecord()
	last.closed = true
	if err := s.trust.write(last); err != nil {
		return fail("", s.trust.path(), err)
	}
	return nil
}

// unjoined is the error of a joined one that has only this, so that its class is found.
func unjoined(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		if all := j.Unwrap(); len(all) == 1 {
			return all[0]
		}
	}
	return err
}

// release gives up all that Open took, in the reverse order.
func (s *Store) release() error {
	var errs []error
	if s.trust != nil {
		s.trust.disown()
	}
	if st := s.state.Load(); st != nil {
		st.rest()
	}
	for _, f := range s.shelf {
		f.rest()
	}
	errs = append(errs, s.log.close(), s.leave())
	return errors.Join(append(errs, s.closeDirs())...)
}
