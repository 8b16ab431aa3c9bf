package pawl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Reader reads a store beside whoever writes to it. It takes no lock and writes
// nothing, so it works on a read-only medium too, and nobody waits for it. (Where a file
// that is open cannot be replaced, which is so on Windows with some file systems, a
// writer waits for the moment that it takes to read one.) All methods are safe for
// concurrent use.
//
// Every state that it returns was confirmed by a writer and is held against the digest
// that the trust file names; none is older than one that it returned before.
type Reader struct {
	site
	turn   chan struct{} // who has it reads, and uses what follows
	seen   *trustFile    // as last read
	used   *trustFile    // as it was when what is returned was read
	known  known         // the newest state that was read
	bundle *vfs.Info     // the bundle that it was read from
	least  Version       // the newest that was returned and was settled

	shown atomic.Pointer[shown]
	once  sync.Once
	ended chan struct{} // closed by Close
}

// shown is what a Reader returns.
type shown struct {
	state     *state
	unsettled bool
	by        *trustRecord // the newest when it was read
}

// readerWait is how long a Reader waits for a commit that is being written, by default.
const readerWait = time.Second

// OpenReader opens the store in dir, whose trust file is in trustDir, for reading. nil
// options are safe defaults; those about writing are of no account. There must be a
// store: ErrNotExist otherwise.
//
// When it returns nil, View returns a state that was the newest at some moment of the
// call. While a commit is being written, it waits for that to be confirmed; ErrUnsettled
// says that for as long as Options.LockWait nobody went on with it: its writer is dead, or
// hangs, or is slower than that. The errors are those of Open otherwise, but for ErrLocked.
//
// A Reader holds two directories open, with two handles each on most systems, and the
// state in memory.
func OpenReader(ctx context.Context, dir, trustDir string, opts *Options) (*Reader, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, fail("open", dir, err)
	}
	if opts == nil || opts.LockWait == 0 {
		o.LockWait = readerWait
	}
	at, err := locate(vfs.FromContext(ctx), dir, trustDir, &o)
	if err != nil {
		return nil, fail("open", dir, err)
	}
	r := newReader(site{at: at, opts: o, counts: new(counts)})
	if err := r.refresh(ctx); err != nil {
		e := fail("open", at.dir, err)
		if r.known.state != nil {
			r.known.state.rest()
		}
		if err := r.closeDirs(); err != nil {
			e.Cause = errors.Join(e.Cause, err)
		}
		return nil, e
	}
	return r, nil
}

func newReader(s site) *Reader {
	s.opts.MustExist = true
	return &Reader{site: s, turn: make(chan struct{}, 1), ended: make(chan struct{})}
}

// View returns the state that was read last. It stays as it is, also when the Reader is
// closed; of a View that is used then, old history and large parts are read from the files
// of the store once more.
func (r *Reader) View() View { return View{r.shown.Load().state} }

// Unsettled reports whether View returns a state that may not last, which only
// Options.Allow with Unsettled lets it do.
func (r *Reader) Unsettled() bool { return r.shown.Load().unsettled }

// Refresh brings View up to date: when it returns nil, View returns a state that was
// the newest at some moment of the call. After an error it returns what it did before.
// The errors are those of OpenReader, and ErrClosed.
func (r *Reader) Refresh(ctx context.Context) error {
	if err := r.refresh(ctx); err != nil {
		return fail("refresh", r.at.dir, err)
	}
	return nil
}

// Lookup tells what became of the commit with an id, as Store.Lookup does, after a
// Refresh unless the answer is known. The outcome of a commit that is being written is
// unknown. "Not committed" is about the moment of the call: a writer may begin one the
// moment after.
func (r *Reader) Lookup(ctx context.Context, id string) (Receipt, Outcome, error) {
	if err := checkID(id); err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", r.at.dir, err)
	}
	now := r.shown.Load()
	if c, err := now.state.commit(id); err == nil && c.record != nil && !now.unsettled && ctx.Err() == nil && !r.closed() {
		return c.record.receipt(), OutcomeCommitted, nil
	}
	if err := r.refresh(ctx); err != nil {
		return Receipt{}, OutcomeUnknown, fail("lookup", r.at.dir, err)
	}
	now = r.shown.Load()
	switch c, err := now.state.commit(id); {
	case now.unsettled:
		return Receipt{}, OutcomeUnknown, nil
	case c.record != nil || c.forgotten != 0:
		r, o := c.outcome()
		return r, o, nil
	case now.pending(id):
		return Receipt{}, OutcomeUnknown, nil
	case err != nil:
		return Receipt{}, OutcomeUnknown, fail("lookup", r.at.dir, err)
	}
	return Receipt{}, OutcomeNotCommitted, nil
}

// pending reports whether the newest trust record held the intent of a commit that may
// have this id. There may be no room for all ids in it.
func (s *shown) pending(id string) bool {
	return s.by.intent() && (s.by.commits > len(s.by.ids) || slices.Contains(s.by.ids, id))
}

// Close releases the directories. Views stay as they are. A second Close does nothing.
func (r *Reader) Close() error {
	var err error
	r.once.Do(func() {
		close(r.ended)
		r.turn <- struct{}{}
		defer r.give()
		if r.known.state != nil {
			r.known.state.rest()
		}
		err = r.closeDirs()
	})
	if err != nil {
		return fail("close", r.at.dir, err)
	}
	return nil
}

func (r *Reader) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctxError(ctx)
	}
	if r.closed() {
		r.give()
		return &Error{Kind: ErrClosed}
	}
	return nil
}

func (r *Reader) closed() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

func (r *Reader) give() { <-r.turn }

// refresh looks until it has a state to show.
func (r *Reader) refresh(ctx context.Context) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.give()
	return r.look(ctx, look{r: r, deadline: time.Now().Add(r.opts.LockWait)})
}

// look is refresh, by whoever has the turn.
func (r *Reader) look(ctx context.Context, l look) (err error) {
	defer func() {
		if err != nil && r.known.state == nil && l.tried != nil {
			l.tried.rest() // nobody has seen it
		}
	}()
	for between := sharedPause / 4; ; between = min(2*between, 16*time.Millisecond) {
		done, err := l.once()
		if done || err != nil {
			return err
		}
		if !sleep(ctx, r, nil, between) {
			if ctx.Err() != nil {
				return ctxError(ctx)
			}
			return &Error{Kind: ErrClosed}
		}
	}
}

// Verify reads the store from disk, from the beginning, and checks everything, as
// Store.Verify does, without a lock and beside whoever writes. When it returns nil, what
// is on disk is the newest state at some moment of the call, which View then returns. The
// errors are those of Refresh, and ErrDamaged with all damage in Error.Damage.
func (r *Reader) Verify(ctx context.Context, progress func(done, total int64)) error {
	if err := r.verify(ctx, progress); err != nil {
		return fail("verify", r.at.dir, err)
	}
	return nil
}

func (r *Reader) verify(ctx context.Context, progress func(done, total int64)) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	ev, read, err := r.evidence(ctx)
	r.give()
	defer ev.close()
	if err != nil {
		return err
	}
	total := read + ev.filesSize()
	if read > 0 {
		report(progress, read, total)
	}
	return ev.verifyFiles(ctx, read, total, progress)
}

// evidence reads bundle and journal, and opens the files that they name, all of one
// moment. It tells how much it has read.
func (r *Reader) evidence(ctx context.Context) (ev evidence, read int64, err error) {
	l := look{r: r, deadline: time.Now().Add(r.opts.LockWait), afresh: true}
	for {
		if err := r.look(ctx, l); err != nil {
			return ev, 0, err
		}
		ev = evidence{root: r.known.root, state: r.known.state}
		if r.dir == nil || ev.state == nil { // nothing was committed yet
			return ev, 0, nil
		}
		err := ev.openFiles(r.dir)
		if exhausted(err) {
			return ev, 0, fail("", r.at.dir, err)
		}
		if err == nil || !l.changed() || !time.Now().Before(l.deadline) {
			if r.bundle != nil {
				read = r.bundle.Size
			}
			return ev, read + ev.root.Journal, nil
		}
		ev.close() // a writer went by, and removed what it does not need any more
	}
}

// show makes a state the one that is returned.
func (r *Reader) show(st *state, unsettled bool) error {
	if e := r.relapse(st); e != nil {
		return e
	}
	if e := schemaFits(&r.opts, st, false); e != nil {
		return e
	}
	if r.used = r.seen; !unsettled {
		r.least = st.version()
	}
	r.shown.Store(&shown{st, unsettled, &r.seen.newest})
	return nil
}

// relapse refuses a state that does not hold what was returned before.
func (r *Reader) relapse(st *state) *Error {
	if r.least == (Version{}) {
		return nil
	}
	if ok, err := st.holds(r.least); ok || r.beyond(st, r.least, err) {
		return nil
	} else if err != nil {
		return fail("", r.at.dir, err)
	}
	t := &r.seen.newest
	return &Error{Path: r.at.dir, Kind: ErrRolledBack, Trusted: t.confirmed, Pending: t.pending,
		Cause: fmt.Errorf("this reader has returned %s", r.least), Hint: st.relapseHint(r.least)}
}

// stirred reports whether the trust file is another than the one by which what is
// returned was read; in trouble, than the one that led to it.
func (r *Reader) stirred(ctx context.Context, trouble bool) bool {
	if r.take(ctx) != nil {
		return true
	}
	defer r.give()
	t := r.used
	if trouble {
		t = r.seen
	}
	if t == nil || r.trustDir == nil || t.dir != r.trustDir {
		return !trouble
	}
	ring, info, err := t.bytes()
	return err != nil && !trouble || r.trustDir.moved() != nil || !info.Same(t.info) || !bytes.Equal(ring, t.ring)
}
