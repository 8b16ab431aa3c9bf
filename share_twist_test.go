package pawl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// A commit that enters while its own process reads what others did is placed on top of
// that, in memory too.
func TestSharedEnterWhileCatchingUp(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	ctx := t.Context()
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	o := &Options{Shared: true}
	a, err := Open(f.Context(ctx), dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(ctx, dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // so that there is room behind the records in memory
		noted(t, a, fmt.Sprint("a", i))
	}
	rb, err := b.Commit(ctx, Change{ID: "b", Entries: [][]byte{{1}, {2}, {3}}})
	if err != nil {
		t.Fatal(err)
	}
	var ra Receipt
	done, entered := make(chan error, 1), false
	f.Set(func(c faultfs.Call) faultfs.Action { // after adoptSteps, before startOver
		if entered || c.Op != "Identify" || path.Base(c.Path) != journalName(1) {
			return faultfs.Action{}
		}
		entered = true
		return faultfs.Action{Before: func() {
			before := a.Stats().Waiting
			go func() {
				r, err := a.Commit(ctx, Change{ID: "late", Entries: [][]byte{{4}}})
				ra = r
				done <- err
			}()
			for a.Stats().Waiting == before {
				time.Sleep(time.Millisecond)
			}
		}}
	})
	if _, out, err := a.Lookup(ctx, "none"); err != nil || out != OutcomeNotCommitted || !entered {
		t.Fatal(out, err, entered)
	}
	if err := <-done; err != nil {
		t.Errorf("the commit that entered: %v", err)
	}
	f.Set(nil)
	for name, r := range map[string]Receipt{"the other's commit": rb, "the one that entered": ra} {
		if ok, err := a.View().Contains(r); !ok || err != nil {
			t.Errorf("the view does not contain %s: %v", name, err)
		}
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if ok, err := s.View().Contains(ra); !ok || err != nil {
		t.Errorf("the history does not contain what was acknowledged: %v", err)
	}
}

// Memory that is not what trust names is noticed before anything is written.
func TestMemoryIsNotTheTrustedState(t *testing.T) {
	s := sharers(t, 1, Options{})[0]
	noted(t, s, "one")
	noted(t, s, "two")
	good := s.state.Load()
	bad := *good
	bad.records = append([]*record(nil), good.records...)
	wrong := *bad.records[1]
	wrong.history[0] ^= 1
	bad.records[1] = &wrong
	s.state.Store(&bad)
	if _, err := note(s, "three"); !errors.Is(err, ErrDamaged) || !errors.Is(err, ErrNotCommitted) {
		t.Errorf("it commits: %v", err)
	}
	s.state.Store(good)
	noted(t, s, "four")
}

// What enters just when a shared store is being closed, by a process that has no reason to
// take the locks any more, is refused.
func TestSharedEnterWhileClosing(t *testing.T) {
	s := sharers(t, 1, Options{})[0]
	p, err := s.prepare(Change{ID: "late"})
	if err != nil {
		t.Fatal(err)
	}
	r := s.enter(t.Context(), p)
	s.counts.waiting.Store(0) // as Close saw it
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if r.err == nil || !errors.Is(r.err, ErrClosed) || !errors.Is(r.err, ErrNotCommitted) {
		t.Errorf("it ended with %+v, %v", r.receipt, r.err)
	}
	if _, err := os.Stat(filepath.Join(s.at.dir, bundleName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written without the locks: %v", err)
	}
}

// Without the locks nothing is written, whoever asks for it.
func TestNoLocksNoCommit(t *testing.T) {
	s := sharers(t, 1, Options{})[0]
	p, err := s.prepare(Change{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	s.turn <- struct{}{}
	r := s.enter(t.Context(), p)
	s.lead(nil)
	s.give()
	if r.err == nil || !errors.Is(r.err, ErrNotCommitted) {
		t.Errorf("%+v, %v", r.receipt, r.err)
	}
}

// A commit that is known is acknowledged again without the locks, also when the second
// call has come to wait before the first had ended.
func TestSharedReplayWithoutLocks(t *testing.T) {
	s := sharers(t, 1, Options{})[0]
	noted(t, s, "one")
	c := Change{ID: "one", Entries: [][]byte{[]byte("one")}, Put: map[string][]byte{"last": []byte("one")}}
	p, err := s.prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	s.turn <- struct{}{}
	r := s.enter(t.Context(), p)
	s.lead(&Error{Kind: ErrLocked})
	s.give()
	if r.err != nil || !r.receipt.Replayed {
		t.Errorf("%+v, %v", r.receipt, r.err)
	}
}

// Two calls of one process ask for the same id, and the context of one ends while both
// wait for the locks: it hears what became of the commit.
func TestSharedSameIDWhileWaiting(t *testing.T) {
	all := sharers(t, 2, Options{})
	a, b := all[0], all[1]
	in, out := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := b.Update(context.Background(), "", func(View) (Change, error) {
			close(in)
			<-out
			return Change{}, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-in
	ctx, cancel := context.WithCancel(t.Context())
	c := Change{ID: "x", Entries: [][]byte{{1}}}
	var updated, committed error
	wg.Go(func() {
		_, updated = a.Update(ctx, "x", func(View) (Change, error) { return c, nil })
	})
	for len(a.turn) == 0 { // it has the turn, and waits for the locks
		time.Sleep(time.Millisecond)
	}
	wg.Go(func() { _, committed = a.Commit(context.Background(), c) })
	for a.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	close(out)
	wg.Wait()
	if updated != nil || committed != nil {
		t.Errorf("Update: %v; Commit: %v", updated, committed)
	}
}

// A writer is stopped before each call of a commit, somebody deletes the lock files, and
// another writer commits: the first one is refused when it goes on, and nothing is lost.
// What cannot be seen is a stop after the last look, before a rename, or the write of
// frames (docs/protocol.md, "A stale writer").
func TestStoppedWriter(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not delete a lock file that a process has open")
	}
	for name, o := range map[string]Options{"shared": {Shared: true, LockWait: time.Minute}, "alone": {}} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				if at := stopWriter(t, o, n); at == "" {
					if n < 20 {
						t.Errorf("it makes only %d calls", n)
					}
					return
				}
			}
		})
	}
}

func stopWriter(t *testing.T, o Options, n int) (at string) {
	dir, trust := testkit.Dirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	first, err := Open(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	noted(t, first, "b1")
	noted(t, first, "b2")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := Open(f.Context(t.Context()), dir, trust, &o)
	if err != nil {
		t.Fatal(err)
	}
	var last faultfs.Call
	var other error
	k := 0
	f.Set(func(c faultfs.Call) faultfs.Action {
		if k++; k != n {
			return faultfs.Action{}
		}
		return faultfs.Action{Before: func() {
			at, last = c.String(), c
			_, _ = os.Remove(filepath.Join(dir, lockName)), os.Remove(filepath.Join(trust, "session"+lockSuffix))
			b, err := Open(context.Background(), dir, trust, &Options{Shared: true})
			if err == nil {
				_, other = note(b, "b3")
				err = b.Close()
			}
			if err != nil {
				t.Errorf("before %s: the other writer: %v", at, err)
			}
		}}
	})
	_, own := note(a, "a1")
	f.Set(nil)
	closed := a.Close()
	if at == "" {
		return ""
	}
	if last.Op == "Rename" || last.Op == "WriteAt" {
		return at
	}
	if closed != nil && !errors.Is(closed, ErrStale) {
		t.Errorf("before %s: Close: %v", at, closed)
	}
	s, err := Open(t.Context(), dir, trust, nil)
	if err != nil {
		t.Errorf("before %s: %v, %v; afterwards: %v", at, own, other, err)
		return at
	}
	defer s.Close()
	for id, err := range map[string]error{"a1": own, "b3": other} {
		_, out, _ := s.Lookup(t.Context(), id)
		if err == nil && out != OutcomeCommitted || errors.Is(err, ErrNotCommitted) && out == OutcomeCommitted {
			t.Errorf("stopped before %s: %s ended with %v, and it is %v", at, id, err, out)
		}
	}
	return at
}
