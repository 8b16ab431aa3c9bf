//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
)

// asked is a change that somebody waits for.
type asked struct {
	id      string
	receipt Receipt
	err     error
	done    chan struct{}
}

// ask asks for a change in a goroutine of its own.
func (r *rig) ask(ctx context.Context, s *Store, c Change) *asked {
	a := &asked{id: c.ID, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.receipt, a.err = s.Commit(r.fs.Context(ctx), c)
	}()
	return a
}

// lineUp asks for changes, one after the other, while somebody else has the turn, so
// that they wait in this order.
func (r *rig) lineUp(s *Store, changes ...Change) (line []*asked) {
	r.t.Helper()
	for _, c := range changes {
		n := s.Stats().Waiting
		a := r.ask(context.Background(), s, c)
		line = append(line, a)
		for waits := true; waits && s.Stats().Waiting != n+1; {
			select {
			case <-a.done: // it need not wait
				waits = false
			case <-time.After(50 * time.Microsecond):
			}
		}
	}
	return line
}

// waiting returns when so many commits wait.
func (r *rig) waiting(s *Store, n int64) {
	r.t.Helper()
	for s.Stats().Waiting != n {
		time.Sleep(50 * time.Microsecond)
	}
}

var errOnlyHeld = errors.New("it only held the turn")

// holdTurn takes the turn, by the function of Update, until letGo is called.
func (r *rig) holdTurn(s *Store) (letGo func()) {
	has, done, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(end)
		_, err := s.Update(r.ctx(), "", func(View) (Change, error) {
			close(has)
			<-done
			return Change{}, errOnlyHeld
		})
		if !errors.Is(err, errOnlyHeld) {
			r.t.Error(err)
		}
	}()
	<-has
	return func() { close(done); <-end }
}

// at returns a hook that acts at one call, once: f runs before it, and with what it
// returns the call fails.
func at(call string, f func() error) faultfs.Hook {
	var once atomic.Bool
	return func(c faultfs.Call) faultfs.Action {
		if !strings.HasPrefix(c.String(), call) || !once.CompareAndSwap(false, true) {
			return faultfs.Action{}
		}
		return faultfs.Action{Err: f()}
	}
}

// entryOf is a change of one entry, which is its id.
func entryOf(id string) Change { return Change{ID: id, Entries: [][]byte{[]byte(id)}} }

func ids(prefix string, n int) (changes []Change) {
	for i := range n {
		changes = append(changes, entryOf(fmt.Sprint(prefix, i)))
	}
	return changes
}

// landed fails unless the changes were made one after the other, from a revision on,
// each with its own receipt.
func landed(t testing.TB, s *Store, line []*asked, first Revision) {
	t.Helper()
	for i, a := range line {
		<-a.done
		if a.err != nil || a.receipt.Revision != first+Revision(i) || a.receipt.Replayed {
			t.Errorf("%s: %+v, %v; want revision %d", a.id, a.receipt, a.err, first+Revision(i))
			continue
		}
		ownReceipt(t, s.View(), a)
		if got, outcome, err := s.Lookup(context.Background(), a.id); got != a.receipt || outcome != OutcomeCommitted || err != nil {
			t.Errorf("Lookup(%s): %+v, %v, %v", a.id, got, outcome, err)
		}
	}
}

// ownReceipt fails unless a receipt is that of the change that it was given for.
func ownReceipt(t testing.TB, v View, a *asked) {
	t.Helper()
	if ok, err := v.Contains(a.receipt); !ok || err != nil {
		t.Errorf("%s: the receipt %+v is not contained: %v", a.id, a.receipt, err)
	}
	for e := range v.Entries(a.receipt.FirstSeq - 1) {
		if e.Seq != a.receipt.FirstSeq || e.Revision != a.receipt.Revision || string(e.Data) != a.id {
			t.Errorf("%s: entry %d of revision %d is %q", a.id, e.Seq, e.Revision, e.Data)
		}
		break
	}
}

// history checks that revisions and seqs have no gap and ids are unique, and returns
// the ids.
func history(t testing.TB, v View) map[string]Revision {
	t.Helper()
	seen, n, seq := map[string]Revision{}, Revision(0), Seq(0)
	for c, err := range v.Commits(0) {
		if n++; err != nil || c.Version.Revision != n || c.FirstSeq != 0 && c.FirstSeq != seq+1 {
			t.Fatalf("commit %d is %+v, after seq %d; error %v", n, c, seq, err)
		}
		seq = max(seq, c.LastSeq)
		if c.ID != "" && seen[c.ID] != 0 {
			t.Errorf("revisions %d and %d have the id %s", seen[c.ID], n, c.ID)
		}
		seen[c.ID] = n
	}
	if v.Version().Revision != n {
		t.Errorf("%d commits, at revision %d", n, v.Version().Revision)
	}
	return seen
}

// reopened closes a store and checks that the next process sees what this one showed.
func (r *rig) reopened(s *Store) {
	r.t.Helper()
	r.fs.Set(nil)
	want := s.View()
	if err := errors.Join(s.Verify(r.ctx(), nil), s.Close()); err != nil {
		r.t.Error(err)
	}
	again := r.mustOpen()
	if again.View().Version() != want.Version() || again.Recovery().Settled != SettledNothing {
		r.t.Errorf("opened again: %v, %+v; want %v", again.View().Version(), again.Recovery(), want.Version())
	}
	if diff := cmp.Diff(history(r.t, want), history(r.t, again.View())); diff != "" {
		r.t.Errorf("the history (-before +after):\n%s", diff)
	}
	if err := again.Close(); err != nil {
		r.t.Error(err)
	}
}

// ways are the three in which a batch goes to disk, how many commits come before it,
// and its flushes.
var ways = []struct {
	name    string
	opts    func() *Options
	before  int
	flushes []string
	commits string // the flush that it comes down to
	writes  string // a write before that which can be taken back
}{
	{"extend", roomy, 2, []string{"trust/session.trust SyncData", firstJournal + " SyncData"}, firstJournal + " SyncData", firstJournal + " WriteAt"},
	{"make", roomy, 1, []string{"trust/session.trust SyncData", "session/tmp-* Sync", "session Sync"}, "session Sync", "session/tmp-* WriteAt"},
	{"publish", publishing, 1, []string{"trust/session.trust SyncData", "session/tmp-* Sync", "session Sync", "trust/session.trust SyncData"}, "session Sync", "session/tmp-* WriteAt"},
}

// eachWay runs a test with each of them.
func eachWay(t *testing.T, test func(t *testing.T, r *rig, s *Store, before Revision, commits, writes string)) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			r := newRig(t)
			r.opts = way.opts()
			s := r.mustOpen()
			defer s.Close()
			r.commits(s, way.before)
			test(t, r, s, Revision(way.before), way.commits, way.writes)
		})
	}
}

// Those who wait are written together: one intent, one flush of each kind, in the
// order in which they came.
func TestGroupCommit(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			r := newRig(t)
			r.opts = way.opts()
			s := r.mustOpen()
			r.commits(s, way.before)
			before := s.Stats()
			letGo := r.holdTurn(s)
			line := r.lineUp(s, ids("x", 10)...)
			r.fs.Set(nil)
			letGo()
			landed(t, s, line, Revision(way.before)+1)
			var flushes, slots []string
			for _, c := range r.fs.Calls() {
				switch {
				case strings.HasPrefix(c.Op, "Sync"):
					flushes = append(flushes, c.String())
				case c.Op == "WriteAt" && c.Path == "trust/session.trust":
					slots = append(slots, c.String())
				}
			}
			if diff := cmp.Diff(way.flushes, flushes); diff != "" || len(slots) != 2 {
				t.Errorf("records written: %v; flushes (-want +got):\n%s", slots, diff)
			}
			n := s.Stats()
			if n.Commits-before.Commits != 10 || n.Batches-before.Batches+n.Publishes-before.Publishes != 1 || n.Waiting != 0 || n.NotCommitted-before.NotCommitted != 1 {
				t.Errorf("%+v", n)
			}
			r.reopened(s)
		})
	}
}

// Update first leads those who were there before it; its own change is the first of a
// batch with those that came while its function ran, which sees what is before it.
func TestGroupCommitWithUpdate(t *testing.T) {
	r := newRig(t)
	s := r.mustOpen()
	r.commits(s, 3)
	letGo := r.holdTurn(s)
	early := r.lineUp(s, ids("early", 3)...)
	var late []*asked
	updated := &asked{id: "update", done: make(chan struct{})}
	go func() {
		defer close(updated.done)
		updated.receipt, updated.err = s.Update(r.ctx(), "update", func(v View) (Change, error) {
			if v.Version().Revision != 6 {
				t.Errorf("the function sees %v", v.Version())
			}
			r.fs.Set(nil)
			late = r.lineUp(s, ids("late", 3)...)
			return entryOf("update"), nil
		})
	}()
	letGo()
	landed(t, s, early, 4)
	landed(t, s, []*asked{updated}, 7)
	landed(t, s, late, 8)
	if got := len(slices.DeleteFunc(r.fs.Calls(), func(c faultfs.Call) bool { return c.String() != firstJournal+" SyncData" })); got != 1 {
		t.Errorf("%d flushes for the change of Update and those that came meanwhile", got)
	}
	r.reopened(s)
}

// A panic in the function of Update is its caller's; those who wait go on.
func TestGroupCommitAfterAPanic(t *testing.T) {
	r := newRig(t)
	s := r.mustOpen()
	r.commits(s, 3)
	var line []*asked
	func() {
		defer func() {
			if p := recover(); p != "panic" {
				t.Errorf("recovered %v", p)
			}
		}()
		s.Update(r.ctx(), "", func(View) (Change, error) {
			line = r.lineUp(s, ids("x", 3)...)
			panic("panic")
		})
	}()
	landed(t, s, line, 4)
	r.reopened(s)
}

// What is wrong with one change is its own caller's error, and leaves no gap.
func TestGroupCommitOfGoodAndBad(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			r := newRig(t)
			r.opts = way.opts()
			r.opts.Limits.Bundle, r.opts.Limits.Inline = 100_000, 100_000
			s := r.mustOpen()
			r.commits(s, way.before)
			base := Revision(way.before)
			now, zero := s.View().Version(), Version{}
			with := func(id string, change func(*Change)) Change {
				c := entryOf(id)
				change(&c)
				return c
			}
			cancelled, cancel := context.WithCancel(context.Background())
			why := errors.New("why")
			late, lateCancel := context.WithCancelCause(context.Background())
			var bad Change
			bad.SetJSON("bad.json", func() {})
			if _, err := s.Commit(r.ctx(), bad); !errors.Is(err, ErrInvalid) || !errors.Is(err, ErrNotCommitted) {
				t.Errorf("what does not encode: %v", err)
			}

			letGo := r.holdTurn(s)
			line := r.lineUp(s,
				with("a", func(c *Change) { c.Expect = &now }), // as it is: nobody is before it
				with("b", func(c *Change) { c.Expect = &now }), // not any more
				with("c", func(c *Change) { c.Expect = &zero }),
				entryOf("d"),
				with("c1", func(*Change) {}), // an id that is taken
				nthChange(1),                 // committed before
				with("e", func(c *Change) { c.Put = map[string][]byte{"p": make([]byte, 99_000)} }), // see the limits
				Change{},
				entryOf("f"),
				entryOf("d"), // again
				with("d", func(c *Change) { c.Entries = nil }),
				entryOf("f"),
			)
			n := s.Stats().Waiting
			gone := r.ask(cancelled, s, entryOf("g"))
			r.waiting(s, n+1)
			left := r.ask(late, s, entryOf("h"))
			r.waiting(s, n+2)
			last := r.lineUp(s, entryOf("i"))
			cancel()
			<-gone.done // who leaves the queue need not wait for the turn
			r.waiting(s, n+2)
			lateCancel(why)
			<-left.done
			letGo()

			landed(t, s, []*asked{line[0], line[3], line[8], last[0]}, base+1)
			refused := func(a *asked, class ...error) {
				t.Helper()
				<-a.done
				if !errors.Is(a.err, ErrNotCommitted) || errors.Is(a.err, ErrInDoubt) || a.receipt != (Receipt{}) {
					t.Errorf("%s: %+v, %v", a.id, a.receipt, a.err)
				}
				for _, c := range class {
					if !errors.Is(a.err, c) {
						t.Errorf("%s: %v, want %v", a.id, a.err, c)
					}
				}
			}
			refused(line[1], ErrStale)
			refused(line[2], ErrStale)
			refused(line[4], ErrIDReused)
			refused(line[6], ErrTooLarge)
			refused(line[10], ErrIDReused)
			refused(gone, context.Canceled)
			refused(left, context.Canceled, why)
			replayed := func(a *asked, of Receipt) {
				t.Helper()
				<-a.done
				of.Replayed = true
				if a.err != nil || a.receipt != of {
					t.Errorf("%s again: %+v, %v; want %+v", a.id, a.receipt, a.err, of)
				}
			}
			first, _, _ := s.Lookup(r.ctx(), "c1")
			replayed(line[5], first)
			replayed(line[9], line[3].receipt)
			replayed(line[11], line[8].receipt)
			if <-line[7].done; line[7].err != nil || line[7].receipt.Version != line[3].receipt.Version {
				t.Errorf("an empty change after %+v: %+v, %v", line[3].receipt, line[7].receipt, line[7].err)
			}
			want := map[string]Revision{"a": base + 1, "d": base + 2, "f": base + 3, "i": base + 4}
			for i := range way.before {
				want[fmt.Sprint("c", i+1)] = Revision(i + 1)
			}
			if diff := cmp.Diff(want, history(t, s.View())); diff != "" {
				t.Errorf("the history (-want +got):\n%s", diff)
			}
			if n := s.Stats(); n.Replays != 3 || n.Commits != int64(base)+4 {
				t.Errorf("%+v", n)
			}
			r.reopened(s)
		})
	}
}

// A context that ends when the batch is under way is too late: the result is that of
// the commit, for the one who writes and for those who wait.
func TestGroupCommitCancelledTooLate(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		ctx, cancel := context.WithCancel(context.Background())
		letGo := r.holdTurn(s)
		var line []*asked
		for i := range 3 {
			line = append(line, r.ask(ctx, s, entryOf(fmt.Sprint("x", i))))
			r.waiting(s, int64(i+1))
		}
		r.fs.Set(at(commits, func() error { cancel(); return nil }))
		letGo()
		landed(t, s, line, before+1)
		r.reopened(s)
	})
}

// The same id again, while the commit that has it is on its way to disk.
func TestSameIDWhileItIsWritten(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		var line []*asked
		other := entryOf("x")
		other.Entries = nil
		r.fs.Set(at(commits, func() error {
			line = r.lineUp(s, entryOf("x"), other, entryOf("y"))
			return nil
		}))
		x := r.ask(context.Background(), s, entryOf("x"))
		landed(t, s, []*asked{x}, before+1)
		again := x.receipt
		again.Replayed = true
		if <-line[0].done; line[0].err != nil || line[0].receipt != again {
			t.Errorf("the same: %+v, %v", line[0].receipt, line[0].err)
		}
		if <-line[1].done; !errors.Is(line[1].err, ErrIDReused) || !errors.Is(line[1].err, ErrNotCommitted) {
			t.Errorf("other content: %v", line[1].err)
		}
		landed(t, s, line[2:], before+2)
		r.reopened(s)
	})
}

// A batch that is taken back is so for all that are in it, with certainty. Those who
// came meanwhile were made ready to follow it, and follow what was before.
func TestGroupCommitTakenBack(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, _, writes string) {
		letGo := r.holdTurn(s)
		line := r.lineUp(s, ids("x", 3)...)
		var next []*asked
		r.fs.Set(at(writes, func() error {
			// The first of these has an id of the batch that fails: it is not a replay then.
			next = r.lineUp(s, entryOf("x1"), entryOf("y0"), entryOf("y1"))
			return syscall.ENOSPC
		}))
		letGo()
		for _, a := range line {
			if <-a.done; !errors.Is(a.err, ErrNotCommitted) || errors.Is(a.err, ErrInDoubt) || !errors.Is(a.err, syscall.ENOSPC) {
				t.Errorf("%s: %v", a.id, a.err)
			}
		}
		landed(t, s, next, before+1)
		for id, want := range map[string]Outcome{"x0": OutcomeNotCommitted, "x1": OutcomeCommitted, "x2": OutcomeNotCommitted} {
			if _, got, err := s.Lookup(r.ctx(), id); got != want || err != nil {
				t.Errorf("Lookup(%s): %v, %v", id, got, err)
			}
		}
		if n := s.Stats(); n.NotCommitted != 4 || n.InDoubt != 0 || n.Waiting != 0 {
			t.Errorf("%+v", n)
		}
		r.reopened(s)
	})
}

// A commit that is durable stays acknowledged to those who ask for it again, whatever
// becomes of the batch that they wait in.
func TestReplayInABatchTakenBack(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		var line []*asked
		first := at(commits, func() error {
			line = r.lineUp(s, entryOf("x"), entryOf("y"))
			return nil
		})
		full := false // from then on there is no room for anything
		r.fs.Set(func(c faultfs.Call) faultfs.Action {
			if full && c.Op == "WriteAt" && strings.HasPrefix(c.Path, "session/") && c.Path != "session/lock" && len(line) > 0 {
				full = false
				return faultfs.Action{Err: syscall.ENOSPC}
			}
			a := first(c)
			full = full || len(line) > 0 && strings.HasPrefix(c.String(), commits)
			return a
		})
		x := r.ask(context.Background(), s, entryOf("x"))
		landed(t, s, []*asked{x}, before+1)
		again := x.receipt
		again.Replayed = true
		if <-line[0].done; line[0].err != nil || line[0].receipt != again {
			t.Errorf("x, which is committed as %+v: %+v, %v", x.receipt, line[0].receipt, line[0].err)
		}
		if <-line[1].done; !errors.Is(line[1].err, ErrNotCommitted) || !errors.Is(line[1].err, syscall.ENOSPC) {
			t.Errorf("y: %+v, %v", line[1].receipt, line[1].err)
		}
		r.reopened(s)
	})
}

// A batch whose flush fails is in doubt for all that are in it, and for those who
// came meanwhile. Once the store has settled, each can look up what became of it.
func TestGroupCommitInDoubt(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		letGo := r.holdTurn(s)
		line := r.lineUp(s, ids("x", 3)...)
		var next []*asked
		r.fs.Set(at(commits, func() error {
			next = r.lineUp(s, ids("y", 3)...)
			return syscall.EIO
		}))
		letGo()
		doubtful := func(a *asked) {
			t.Helper()
			if <-a.done; !errors.Is(a.err, ErrInDoubt) || errors.Is(a.err, ErrNotCommitted) || !errors.Is(a.err, syscall.EIO) {
				t.Errorf("%s: %v", a.id, a.err)
			}
			if _, got, err := s.Lookup(r.ctx(), a.id); got != OutcomeUnknown || err != nil {
				t.Errorf("Lookup(%s): %v, %v", a.id, got, err)
			}
		}
		for _, a := range line {
			doubtful(a)
		}
		for _, a := range next { // there since the flush was asked for
			doubtful(a)
		}
		if v := s.View().Version(); v.Revision != before {
			t.Errorf("shows %v", v)
		}
		rec, err := s.Recover(r.ctx())
		if err != nil || rec.Settled != SettledLanded || rec.Count != 3 || !slices.Equal(rec.Commits, []string{"x0", "x1", "x2"}) {
			t.Errorf("%+v, %v", rec, err)
		}
		for i, a := range line {
			receipt, outcome, err := s.Lookup(r.ctx(), a.id)
			if outcome != OutcomeCommitted || err != nil || receipt.Revision != before+1+Revision(i) {
				t.Errorf("Lookup(%s): %+v, %v, %v", a.id, receipt, outcome, err)
			}
			a.receipt = receipt
			ownReceipt(t, s.View(), a)
		}
		for _, a := range next {
			if _, outcome, err := s.Lookup(r.ctx(), a.id); outcome != OutcomeNotCommitted || err != nil {
				t.Errorf("Lookup(%s): %v, %v", a.id, outcome, err)
			}
		}
		landed(t, s, []*asked{r.ask(context.Background(), s, entryOf("y0"))}, before+4)
		r.reopened(s)
	})
}

// Who waits when Close comes is committed or told that the store is closed, and that
// is the truth.
func TestCloseWithAQueue(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		var line []*asked
		closed := make(chan error, 1)
		r.fs.Set(at(commits, func() error {
			line = r.lineUp(s, ids("y", 5)...)
			go func() { closed <- s.Close() }()
			return nil
		}))
		first := r.ask(context.Background(), s, entryOf("x"))
		<-first.done
		if err := <-closed; err != nil {
			t.Error(err)
		}
		want := map[string]bool{"x": true}
		for _, a := range line {
			switch <-a.done; {
			case a.err == nil:
				want[a.id] = true
			case !errors.Is(a.err, ErrClosed) || !errors.Is(a.err, ErrNotCommitted):
				t.Errorf("%s: %v", a.id, a.err)
			}
		}
		r.fs.Set(nil)
		again := r.mustOpen()
		got := map[string]bool{}
		for id := range history(t, again.View()) {
			if !strings.HasPrefix(id, "c") {
				got[id] = true
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || again.Recovery().Unclean {
			t.Errorf("%+v; committed (-want +got):\n%s", again.Recovery(), diff)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Reading waits for nobody: not for a flush that hangs, and not for a queue.
func TestReadersDoNotWait(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		for _, call := range []string{"trust/session.trust SyncData", commits} {
			shown := s.View().Version()
			id := "flying " + call
			var waiting []*asked
			r.fs.Set(at(call, func() error {
				waiting = r.lineUp(s, entryOf("waits for "+call))
				for want, ids := range map[Outcome][]string{OutcomeUnknown: {id}, OutcomeCommitted: {"c1"}, OutcomeNotCommitted: {"never", waiting[0].id}} {
					for _, id := range ids {
						if _, got, err := s.Lookup(r.ctx(), id); got != want || err != nil {
							t.Errorf("Lookup(%s): %v, %v", id, got, err)
						}
					}
				}
				if got := s.View().Version(); got != shown {
					t.Errorf("shows %v before it is durable", got)
				}
				if n := s.Stats(); n.Waiting != 1 {
					t.Errorf("%+v", n)
				}
				s.Recovery()
				return nil
			}))
			a := r.ask(context.Background(), s, entryOf(id))
			landed(t, s, []*asked{a}, shown.Revision+1)
			landed(t, s, waiting, shown.Revision+2)
			if way := strings.TrimPrefix(t.Name(), "TestReadersDoNotWait/"); way == "make" {
				break // the journal is made
			}
		}
		r.reopened(s)
	})
}

// TestCrowd has many callers at once, with the store idle in between, journals that
// fill up, and in the end faults.
func TestCrowd(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   *Options
		faults bool
	}{
		{"extend", small(16), false},
		{"sometimes publish", &Options{CheckpointEvery: 7}, false},
		{"publish", publishing(), false},
		{"faults", small(16), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			r := newRig(t)
			r.opts = tt.opts
			s := r.mustOpen()
			if tt.faults {
				r.fs.Set(faultyCalls(seed))
			}
			c := crowd{r: r, s: s, faults: tt.faults, acked: map[string]Receipt{}, refused: map[string]bool{}}
			var wg, idle sync.WaitGroup
			stop := make(chan struct{})
			idle.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(300 * time.Microsecond):
						r.machine.idle()
					}
				}
			})
			for i := range 16 {
				wg.Go(func() { c.member(i, rand.New(rand.NewPCG(seed, uint64(i)))) })
			}
			wg.Wait()
			close(stop)
			idle.Wait()
			r.fs.Set(nil)
			if _, err := s.Recover(r.ctx()); err != nil {
				t.Fatal(err)
			}
			c.check(t)
			n := s.Stats()
			t.Logf("%d commits in %d batches and %d publishes; %d refused, %d in doubt", n.Commits, n.Batches, n.Publishes, n.NotCommitted, n.InDoubt)
			r.reopened(s)
		})
	}
}

// faultyCalls fails some of the calls that write.
func faultyCalls(seed uint64) faultfs.Hook {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 99))
	return func(c faultfs.Call) faultfs.Action {
		mu.Lock()
		defer mu.Unlock()
		if !c.Mutates() || random.IntN(60) > 0 {
			return faultfs.Action{}
		}
		return faultfs.Action{Err: syscall.EIO, Done: random.IntN(2) == 0, Half: random.IntN(3) == 0}
	}
}

// crowd is what its members have been told.
type crowd struct {
	r      *rig
	s      *Store
	faults bool

	mu      sync.Mutex
	acked   map[string]Receipt
	refused map[string]bool
}

// member asks for changes, under ids of its own and now and then under one that
// another member may use, and tells what it hears.
func (c *crowd) member(me int, random *rand.Rand) {
	for i := range 50 {
		id := fmt.Sprintf("%d-%d", me, i)
		shared := random.IntN(8) == 0
		if shared {
			id = fmt.Sprintf("shared-%d", random.IntN(30))
		}
		change := entryOf(id)
		if random.IntN(4) == 0 {
			change.Put = map[string][]byte{"last": []byte("x")}
		}
		if shared {
			change.Put = nil
		}
		expect := random.IntN(5) == 0
		if expect && !shared {
			v := c.s.View().Version()
			change.Expect = &v
		}
		do := func() (Receipt, error) { return c.s.Commit(c.r.ctx(), change) }
		if random.IntN(5) == 0 {
			do = func() (Receipt, error) {
				return c.s.Update(c.r.ctx(), id, func(v View) (Change, error) { return change, nil })
			}
		}
		receipt, err := do()
		for errors.Is(err, ErrInDoubt) {
			if !c.faults {
				c.r.t.Errorf("%s: %v", id, err)
				return
			}
			// Somebody settles it; then it is made, or was.
			c.s.Recover(c.r.ctx())
			receipt, err = do()
		}
		switch certain := errors.Is(err, ErrNotCommitted); {
		case err == nil:
			if change.Expect != nil && receipt.Revision != change.Expect.Revision+1 {
				c.r.t.Errorf("%s: revision %d, and it expected %d", id, receipt.Revision, change.Expect.Revision)
			}
			if receipt.Replayed && !shared && !c.faults {
				c.r.t.Errorf("%s is replayed, and nobody else has asked for it", id)
			}
			receipt.Replayed = false
			c.tell(id, receipt)
		case !certain, !c.faults && !errors.Is(err, ErrStale):
			c.r.t.Errorf("%s: %v", id, err)
		case !shared:
			c.mu.Lock()
			c.refused[id] = true
			c.mu.Unlock()
		}
	}
}

func (c *crowd) tell(id string, r Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, ok := c.acked[id]; ok && before != r {
		c.r.t.Errorf("%s has two receipts: %+v and %+v", id, before, r)
	}
	c.acked[id] = r
}

// check holds the history against what was told.
func (c *crowd) check(t *testing.T) {
	t.Helper()
	seen := history(t, c.s.View())
	for id, r := range c.acked {
		if seen[id] != r.Revision {
			t.Errorf("%s was acknowledged as revision %d, and is %d", id, r.Revision, seen[id])
		}
		ownReceipt(t, c.s.View(), &asked{id: id, receipt: r})
	}
	for id := range c.refused {
		if seen[id] != 0 {
			t.Errorf("%s was refused, and is revision %d", id, seen[id])
		}
	}
	if !c.faults {
		for id := range maps.Keys(seen) {
			if _, ok := c.acked[id]; !ok {
				t.Errorf("%s was never acknowledged, and is there", id)
			}
		}
	}
}

// dared is a change that somebody waits for who recovers from a panic in the call.
type dared struct {
	*asked
	panicked any
}

// dare is ask with a context of the caller's own making, and a panic in the call is
// recovered from.
func dare(s *Store, ctx func() context.Context, c Change) *dared {
	a := &dared{asked: &asked{id: c.ID, done: make(chan struct{})}}
	go func() {
		defer close(a.done)
		defer func() { a.panicked = recover() }()
		a.receipt, a.err = s.Commit(ctx(), c)
	}()
	return a
}

// answered reports whether a call has its result, and gives one that should not have
// it a chance to be wrong: nothing that is right depends on how long that is.
func (a *asked) answered() bool {
	select {
	case <-a.done:
		return true
	case <-time.After(5 * time.Millisecond):
		return false
	}
}

// entered returns when so many commits wait, or when the call that should be the last
// of them has its result.
func (r *rig) entered(s *Store, a *asked, n int64) {
	r.t.Helper()
	for s.Stats().Waiting != n {
		select {
		case <-a.done:
			r.t.Errorf("%s did not wait: %+v, %v", a.id, a.receipt, a.err)
			return
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// doubtful fails unless a call heard that nobody knows what became of its change.
func doubtful(t testing.TB, a *asked) {
	t.Helper()
	if <-a.done; !errors.Is(a.err, ErrInDoubt) || errors.Is(a.err, ErrNotCommitted) || a.receipt != (Receipt{}) {
		t.Errorf("%s: %+v, %v; want it in doubt", a.id, a.receipt, a.err)
	}
}

// cancelled fails unless a call heard that its change was certainly not made because
// its context ended.
func cancelled(t testing.TB, a *asked) {
	t.Helper()
	if <-a.done; !errors.Is(a.err, context.Canceled) || !errors.Is(a.err, ErrNotCommitted) || errors.Is(a.err, ErrInDoubt) || a.receipt != (Receipt{}) {
		t.Errorf("%s: %+v, %v; want it cancelled", a.id, a.receipt, a.err)
	}
}

// isReplayOf fails unless a call was told once more of a commit that was made.
func isReplayOf(t testing.TB, of Receipt, a *asked) {
	t.Helper()
	of.Replayed = true
	if <-a.done; a.err != nil || a.receipt != of {
		t.Errorf("%s again: %+v, %v; want %+v", a.id, a.receipt, a.err, of)
	}
}

// looksUp fails unless Lookup says of an id what it should.
func (r *rig) looksUp(s *Store, id string, want Outcome) {
	r.t.Helper()
	if _, got, err := s.Lookup(r.ctx(), id); got != want || err != nil {
		r.t.Errorf("Lookup(%s): %v, %v; want %v", id, got, err, want)
	}
}

// panicky is a log that panics when the store is in doubt.
type panicky struct{ slog.Handler }

func (p panicky) Enabled(context.Context, slog.Level) bool { return true }
func (p panicky) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p panicky) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "in doubt") {
		panic("the log panics")
	}
	return nil
}

// A log that panics while a batch is written takes the one along who writes. The
// others of the batch, and those who wait for the next, hear that nobody knows; and so
// it is, until the store has settled.
func TestGroupCommitWithAPanickyLogger(t *testing.T) {
	for _, way := range ways {
		for _, lands := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/landed=%v", way.name, lands), func(t *testing.T) {
				r := newRig(t)
				r.opts = way.opts()
				r.opts.Logger = slog.New(panicky{slog.DiscardHandler})
				s := r.mustOpen()
				r.commits(s, way.before)
				before := Revision(way.before)
				letGo := r.holdTurn(s)
				var line []*dared
				for i, c := range ids("x", 3) {
					line = append(line, dare(s, r.ctx, c))
					r.waiting(s, int64(i+1))
				}
				var next []*asked
				come := at(way.commits, func() error { next = r.lineUp(s, ids("y", 2)...); return syscall.EIO })
				full := false
				r.fs.Set(func(c faultfs.Call) faultfs.Action {
					switch {
					case lands:
						return come(c)
					case !full && strings.HasPrefix(c.String(), way.writes):
						full, next = true, r.lineUp(s, ids("y", 2)...)
						return faultfs.Action{Err: syscall.ENOSPC}
					case full && c.Op == "WriteAt": // so that it cannot be taken back either
						return faultfs.Action{Err: syscall.EIO}
					}
					return faultfs.Action{}
				})
				letGo()
				panics := 0
				for _, a := range line {
					if <-a.done; a.panicked != nil {
						panics++
					} else {
						doubtful(t, a.asked)
					}
				}
				if panics != 1 {
					t.Errorf("%d of the callers heard of the panic", panics)
				}
				for _, a := range next {
					doubtful(t, a)
				}
				r.fs.Set(nil)
				for _, id := range []string{"x0", "x1", "x2", "y0", "new"} {
					r.looksUp(s, id, OutcomeUnknown)
					doubtful(t, r.ask(context.Background(), s, entryOf(id)))
				}
				if v := s.View().Version(); v.Revision != before {
					t.Errorf("shows %v", v)
				}
				if calls := r.fs.Mutating(); len(calls) > 0 {
					t.Errorf("in doubt, and wrote %v", calls)
				}

				rec, err := s.Recover(r.ctx())
				want, outcome := SettledNotLanded, OutcomeNotCommitted
				if lands {
					want, outcome = SettledLanded, OutcomeCommitted
				}
				// A publish that was not put in place may leave no intent, or one.
				if err != nil || rec.Settled != want && (lands || rec.Settled != SettledNothing) {
					t.Errorf("settled: %+v, %v", rec, err)
				}
				for i, a := range line {
					r.looksUp(s, a.id, outcome)
					again := r.ask(context.Background(), s, entryOf(a.id))
					if lands {
						receipt, _, _ := s.Lookup(r.ctx(), a.id)
						isReplayOf(t, receipt, again)
					} else {
						landed(t, s, []*asked{again}, before+1+Revision(i)) // a commit like any other
					}
				}
				if v := s.View().Version(); v.Revision != before+3 {
					t.Errorf("shows %v", v)
				}
				for _, a := range next {
					r.looksUp(s, a.id, OutcomeNotCommitted)
				}
				landed(t, s, []*asked{r.ask(context.Background(), s, entryOf("y0"))}, before+4)
				r.reopened(s)
			})
		}
	}
}

// ownContext is one that only the goroutine that it was made for may ask.
type ownContext struct {
	context.Context
	of uint64
}

func newOwnContext() context.Context { return ownContext{context.Background(), goroutineID()} }

func (c ownContext) Err() error {
	if goroutineID() != c.of {
		panic("somebody else's context")
	}
	return nil
}

// A context that panics takes the one along who asks it, before anything is written.
// Nobody is told of a commit that is not there, and those who wait go on.
func TestGroupCommitWithAPanickyContext(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, _, _ string) {
		var b *dared
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the one who wrote never asked the other's context")
				}
			}()
			s.Update(r.ctx(), "updated", func(View) (Change, error) {
				b = dare(s, newOwnContext, entryOf("b"))
				r.waiting(s, 1)
				return entryOf("updated"), nil
			})
		}()
		told := func(a *asked) {
			t.Helper()
			<-a.done
			ownReceipt(t, s.View(), a)
			receipt, outcome, err := s.Lookup(r.ctx(), a.id)
			if a.err != nil || outcome != OutcomeCommitted || err != nil || receipt != a.receipt {
				t.Errorf("%s was told %+v, %v; Lookup says %+v, %v, %v", a.id, a.receipt, a.err, receipt, outcome, err)
			}
		}
		told(b.asked) // it asks its own context
		if b.panicked != nil {
			t.Errorf("b: %v", b.panicked)
		}
		told(r.ask(context.Background(), s, entryOf("later")))
		seen := history(t, s.View())
		if _, outcome, err := s.Lookup(r.ctx(), "updated"); err != nil || (outcome == OutcomeCommitted) != (seen["updated"] > 0) || outcome == OutcomeUnknown {
			t.Errorf("updated: %v, %v; revision %d", outcome, err, seen["updated"])
		}
		if n := s.Stats(); n.Waiting != 0 {
			t.Errorf("%+v", n)
		}
		r.reopened(s)
	})
}

// A call whose context ends while the commit that has its id is being written cannot
// be certain that there will be none: it waits for that, and hears what became of it.
func TestEndedContextWhileItsIDIsWritten(t *testing.T) {
	for _, fate := range []string{"lands", "in doubt", "taken back"} {
		t.Run(fate, func(t *testing.T) {
			eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, writes string) {
				ctx, cancel := context.WithCancel(context.Background())
				other := entryOf("x")
				other.Entries = nil
				var during, differs, late *asked
				flush, fails := commits, map[string]error{"in doubt": syscall.EIO, "taken back": syscall.ENOSPC}[fate]
				if fate == "taken back" {
					flush = writes
				}
				r.fs.Set(at(flush, func() error {
					during = r.ask(ctx, s, entryOf("x"))
					r.waiting(s, 1)
					differs = r.ask(ctx, s, other)
					r.waiting(s, 2)
					cancel()
					late = r.ask(ctx, s, entryOf("x"))
					r.entered(s, late, 3)
					for _, a := range []*asked{during, differs, late} {
						if a.answered() {
							t.Errorf("%s was answered before it was decided: %+v, %v", a.id, a.receipt, a.err)
						}
					}
					return fails
				}))
				x := r.ask(context.Background(), s, entryOf("x"))
				<-x.done
				r.fs.Set(nil)
				switch fate {
				case "lands":
					landed(t, s, []*asked{x}, before+1)
					isReplayOf(t, x.receipt, during)
					isReplayOf(t, x.receipt, late)
					if <-differs.done; !errors.Is(differs.err, ErrIDReused) || !errors.Is(differs.err, ErrNotCommitted) {
						t.Errorf("other content: %+v, %v", differs.receipt, differs.err)
					}
				case "in doubt":
					for _, a := range []*asked{x, during, differs, late} {
						doubtful(t, a)
					}
					if rec, err := s.Recover(r.ctx()); err != nil || rec.Settled != SettledLanded {
						t.Errorf("%+v, %v", rec, err)
					}
					r.looksUp(s, "x", OutcomeCommitted)
				case "taken back":
					if !errors.Is(x.err, ErrNotCommitted) || !errors.Is(x.err, syscall.ENOSPC) {
						t.Errorf("x: %+v, %v", x.receipt, x.err)
					}
					for _, a := range []*asked{during, differs, late} {
						cancelled(t, a)
					}
					r.looksUp(s, "x", OutcomeNotCommitted)
					landed(t, s, []*asked{r.ask(context.Background(), s, entryOf("x"))}, before+1)
				}
				r.reopened(s)
			})
		})
	}
}

// The same with a call that waits as well: as long as one of those who asked for an id
// can still have it committed, the others wait for that. When none is left, there will
// be no such commit.
func TestEndedContextInABatchWithItsID(t *testing.T) {
	for order, ends := range map[string][]bool{
		"the first ends":   {true, false},
		"the second ends":  {false, true},
		"all but the last": {true, true, false},
		"all but one":      {true, false, true},
		"both end":         {true, true},
		"all end":          {true, true, true},
	} {
		t.Run(order, func(t *testing.T) {
			eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, _, _ string) {
				ctx, cancel := context.WithCancel(context.Background())
				letGo := r.holdTurn(s)
				first := r.lineUp(s, entryOf("first"))
				var line []*asked
				stays := false
				for i, end := range ends {
					of := context.Background()
					if end {
						of = ctx
					}
					stays = stays || !end
					line = append(line, r.ask(of, s, entryOf("x")))
					r.waiting(s, int64(i+2))
				}
				last := r.lineUp(s, entryOf("last"))
				cancel()
				late := r.ask(ctx, s, entryOf("x"))
				if stays {
					r.entered(s, late, int64(len(ends)+3))
				}
				for i, a := range line {
					if stays && a.answered() {
						t.Errorf("call %d was answered before it was decided: %+v, %v", i, a.receipt, a.err)
					}
				}
				letGo()
				landed(t, s, first, before+1)
				if !stays {
					for _, a := range append(line, late) {
						cancelled(t, a)
					}
					landed(t, s, last, before+2)
					r.looksUp(s, "x", OutcomeNotCommitted)
					landed(t, s, []*asked{r.ask(context.Background(), s, entryOf("x"))}, before+3)
				} else {
					landed(t, s, line[:1], before+2)
					for _, a := range append(line[1:], late) {
						isReplayOf(t, line[0].receipt, a)
					}
					landed(t, s, last, before+3)
				}
				r.reopened(s)
			})
		})
	}
}

// A commit that was made is acknowledged once more to whoever asks for it with the
// same content, at once, whatever became of the context; but not in doubt, when nothing
// is answered, nor by a store that is closed.
func TestRecordedIDIsAnswered(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, _ string) {
		made, outcome, err := s.Lookup(r.ctx(), "c1")
		if outcome != OutcomeCommitted || err != nil {
			t.Fatal(outcome, err)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		other := nthChange(1)
		other.Entries = nil
		update := func(ctx context.Context) *asked {
			a := &asked{id: "c1", done: make(chan struct{})}
			go func() {
				defer close(a.done)
				a.receipt, a.err = s.Update(r.fs.Context(ctx), "c1", func(View) (Change, error) { t.Error("ran"); return Change{}, nil })
			}()
			return a
		}
		replays := s.Stats().Replays
		answers := func(when string, class error) {
			t.Helper()
			for _, ctx := range []context.Context{context.Background(), ended} {
				for _, a := range []*asked{r.ask(ctx, s, nthChange(1)), update(ctx)} {
					if class == nil {
						isReplayOf(t, made, a)
						replays++
						continue
					}
					if <-a.done; !errors.Is(a.err, class) || a.receipt != (Receipt{}) {
						t.Errorf("%s: %+v, %v; want %v", when, a.receipt, a.err, class)
					}
				}
			}
			if n := s.Stats(); n.Replays != replays || n.Waiting != 0 {
				t.Errorf("%s: %+v; want %d replays", when, n, replays)
			}
		}
		differs := func(when string, class error) {
			t.Helper()
			for _, ctx := range []context.Context{context.Background(), ended} {
				a := r.ask(ctx, s, other)
				if <-a.done; !errors.Is(a.err, class) || !errors.Is(a.err, ErrNotCommitted) || a.receipt != (Receipt{}) {
					t.Errorf("%s, other content: %+v, %v; want %v", when, a.receipt, a.err, class)
				}
			}
		}
		answers("open", nil)
		differs("open", ErrIDReused)

		letGo := r.holdTurn(s)
		a := r.ask(context.Background(), s, nthChange(1))
		for s.Stats().Waiting == 0 && !a.answered() {
		}
		if s.Stats().Waiting != 0 {
			t.Error("waits for the turn, and there is nothing to do")
		}
		letGo()
		isReplayOf(t, made, a)
		replays++

		r.fs.Set(at(commits, func() error { return syscall.EIO }))
		doubtful(t, r.ask(context.Background(), s, entryOf("x")))
		r.fs.Set(nil)
		answers("in doubt", ErrInDoubt)
		if _, err := s.Recover(r.ctx()); err != nil {
			t.Fatal(err)
		}
		answers("settled", nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		answers("closed", ErrNotCommitted)
		differs("closed", ErrClosed)
	})
}

// What was decided on a commit that comes to nothing says nothing: those who were
// refused for the sake of one that fails with their batch hear why it failed.
func TestVerdictOnAFailedMate(t *testing.T) {
	for _, fate := range []string{"taken back", "in doubt"} {
		t.Run(fate, func(t *testing.T) {
			eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, writes string) {
				with := func(id string, change func(*Change)) Change {
					c := entryOf(id)
					change(&c)
					return c
				}
				now := s.View().Version()
				letGo := r.holdTurn(s)
				line := r.lineUp(s,
					entryOf("x"),
					with("x", func(c *Change) { c.Entries = nil }),     // ErrIDReused, if x lands
					with("stale", func(c *Change) { c.Expect = &now }), // ErrStale, if x lands
					entryOf("x"), // replayed, if x lands
				)
				alone := r.lineUp(s, with("c1", func(*Change) {}))
				class := ErrNotCommitted
				cause := syscall.ENOSPC
				if fate == "in doubt" {
					class, cause, writes = ErrInDoubt, syscall.EIO, commits
				}
				r.fs.Set(at(writes, func() error { return cause }))
				letGo()
				for i, a := range line {
					if <-a.done; !errors.Is(a.err, class) || !errors.Is(a.err, cause) || errors.Is(a.err, ErrIDReused) || errors.Is(a.err, ErrStale) || a.receipt != (Receipt{}) {
						t.Errorf("call %d, %s: %+v, %v", i, a.id, a.receipt, a.err)
					}
				}
				// The id of a commit that is durable is taken, whatever becomes of others.
				if <-alone[0].done; !errors.Is(alone[0].err, ErrIDReused) || !errors.Is(alone[0].err, ErrNotCommitted) || errors.Is(alone[0].err, cause) {
					t.Errorf("c1 with other content: %v", alone[0].err)
				}
				if s.View().Version() != now {
					t.Errorf("shows %v, and it was %v", s.View().Version(), now)
				}
				if fate == "in doubt" {
					if _, err := s.Recover(r.ctx()); err != nil {
						t.Fatal(err)
					}
					r.looksUp(s, "x", OutcomeCommitted)
					r.looksUp(s, "stale", OutcomeNotCommitted)
				} else {
					r.looksUp(s, "x", OutcomeNotCommitted)
					again := r.ask(context.Background(), s, with("stale", func(c *Change) { c.Expect = &now }))
					landed(t, s, []*asked{again}, before+1)
				}
				r.reopened(s)
			})
		})
	}
}
