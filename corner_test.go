//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
)

// Inside the function of Update a Commit never waits for itself, whatever its id and
// its context: not one that is taken, nor one that somebody waits with.
func TestCommitInsideAFunctionNeverWaits(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	r.commits(s, 3)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	other := nthChange(1)
	other.Entries = nil
	var waits []*asked
	_, err := s.Update(r.ctx(), "", func(View) (Change, error) {
		waits = r.lineUp(s, entryOf("x"))
		for _, ctx := range []context.Context{context.Background(), ended} {
			for _, c := range []Change{other, entryOf("x"), entryOf("new")} {
				if _, err := s.Commit(ctx, c); !errors.Is(err, ErrNotCommitted) || !errors.Is(err, ErrInvalid) && !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", c.ID, err)
				}
			}
		}
		return Change{}, errOnlyHeld
	})
	if !errors.Is(err, errOnlyHeld) {
		t.Error(err)
	}
	landed(t, s, waits, 4)
}

// The same as for Commit: an Update whose context has ended waits for the commit that
// has its id.
func TestEndedContextOfAnUpdate(t *testing.T) {
	for _, fate := range []string{"lands", "in doubt", "taken back"} {
		t.Run(fate, func(t *testing.T) {
			eachWay(t, func(t *testing.T, r *rig, s *Store, before Revision, commits, writes string) {
				flush, fails := commits, map[string]error{"in doubt": syscall.EIO, "taken back": syscall.ENOSPC}[fate]
				if fate == "taken back" {
					flush = writes
				}
				update := func(ctx context.Context) *asked {
					a := &asked{id: "x", done: make(chan struct{})}
					go func() {
						defer close(a.done)
						a.receipt, a.err = s.Update(ctx, "x", func(View) (Change, error) { t.Error("ran"); return Change{}, nil })
					}()
					return a
				}
				var during, late *asked
				ctx, cancel := context.WithCancel(context.Background())
				r.fs.Set(at(flush, func() error {
					waits := make(chan struct{})
					during = update(noticing{ctx, sync.OnceFunc(func() { close(waits) })})
					<-waits
					cancel()
					late = update(ctx)
					for _, a := range []*asked{during, late} {
						if a.answered() {
							t.Errorf("%s was answered before it was decided: %+v, %v", a.id, a.receipt, a.err)
						}
					}
					return fails
				}))
				x := r.ask(context.Background(), s, entryOf("x"))
				<-x.done
				r.fs.Set(nil)
				for _, a := range []*asked{during, late} {
					switch fate {
					case "lands":
						isReplayOf(t, x.receipt, a)
					case "in doubt":
						doubtful(t, a)
					case "taken back":
						cancelled(t, a)
					}
				}
				if fate == "in doubt" {
					if _, err := s.Recover(r.ctx()); err != nil {
						t.Error(err)
					}
				}
				r.reopened(s)
			})
		})
	}
	t.Run("the commit waits", func(t *testing.T) {
		r := newRig(t)
		s := r.opened(nil)
		r.commits(s, 3)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		letGo := r.holdTurn(s)
		x := r.lineUp(s, entryOf("x"))
		late := &asked{id: "x", done: make(chan struct{})}
		go func() {
			defer close(late.done)
			late.receipt, late.err = s.Update(ctx, "x", func(View) (Change, error) { t.Error("ran"); return Change{}, nil })
		}()
		late.answered()
		letGo()
		landed(t, s, x, 4)
		isReplayOf(t, x[0].receipt, late)
	})
}

// The flush of a confirm is not lost when a timer fires as a function begins to run.
func TestIdleFlushAsAFunctionBegins(t *testing.T) {
	r := newRig(t)
	s, m := r.openAtOnce(true)
	r.commits(s, 3)
	m.byHand = false
	if !s.Stats().ConfirmPending {
		t.Fatal("there is no confirm to flush")
	}
	if _, err := s.Update(r.ctx(), "", func(View) (Change, error) {
		if n := s.Stats(); n.ConfirmPending {
			t.Errorf("the confirm is left unflushed while the function runs: %+v", n)
		}
		return Change{}, errOnlyHeld
	}); !errors.Is(err, errOnlyHeld) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// panickyAt is a log that panics at one message.
type panickyAt struct {
	slog.Handler
	message string
}

func (p panickyAt) Enabled(context.Context, slog.Level) bool { return true }
func (p panickyAt) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p panickyAt) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, p.message) {
		panic("the log panics")
	}
	return nil
}

// A log that panics over an old journal does so when the store is ready for the next.
func TestPanicOverAnOldJournal(t *testing.T) {
	for _, done := range []bool{true, false} {
		r := newRig(t)
		r.opts = roomy()
		r.opts.Logger = slog.New(panickyAt{slog.DiscardHandler, "an old journal"})
		s := r.mustOpen()
		r.commits(s, 3)
		r.fs.Set(func(c faultfs.Call) faultfs.Action {
			if c.String() == firstJournal+" Remove" {
				return faultfs.Action{Err: syscall.EIO, Done: done}
			}
			return faultfs.Action{}
		})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			s.Checkpoint(r.ctx())
		}()
		r.fs.Set(nil)
		r.commits(s, 6)
		if err := errors.Join(s.Verify(r.ctx(), nil), s.Close()); err != nil {
			t.Errorf("%v: %v", done, err)
		}
		again, err := r.open()
		if err != nil {
			t.Errorf("done %v: what was acknowledged does not open: %v", done, err)
			continue
		}
		if err := errors.Join(checkNth(again.View(), 6), again.Close()); err != nil {
			t.Error(err)
		}
	}
}
