package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// meddled opens a store with one commit in it, on a file system whose calls the test
// can get in between. Every commit publishes.
func meddled(t *testing.T) (*faultfs.FS, context.Context, *pawl.Store, string, string) {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	f.NoFlush = true
	ctx := f.Context(t.Context())
	return f, ctx, meddledAt(t, ctx, dir, trust, &pawl.Options{CheckpointEvery: 1}), dir, trust
}

func meddledAt(t *testing.T, ctx context.Context, dir, trust string, opts *pawl.Options) *pawl.Store {
	t.Helper()
	s, err := pawl.Open(ctx, dir, trust, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.Commit(ctx, pawl.Change{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	return s
}

// eitherWay runs a test with a store whose commits publish, and with one whose commits
// extend its journal. fail makes the flush fail that a commit comes down to: it is in
// doubt.
func eitherWay(t *testing.T, test func(t *testing.T, f *faultfs.FS, ctx context.Context, s *pawl.Store, dir, trust string, fail faultfs.Hook)) {
	t.Run("publish", func(t *testing.T) {
		f, ctx, s, dir, trust := meddled(t)
		test(t, f, ctx, s, dir, trust, failStoreSync)
	})
	t.Run("extend", func(t *testing.T) {
		f, ctx, s, dir, trust := meddled(t)
		s.Close()
		s = meddledAt(t, ctx, dir, trust, nil)
		if _, err := s.Commit(ctx, pawl.Change{ID: "makes the journal"}); err != nil {
			t.Fatal(err)
		}
		test(t, f, ctx, s, dir, trust, func(c faultfs.Call) faultfs.Action {
			if c.Op == "SyncData" && strings.HasPrefix(c.Path, "session/journal.") {
				return faultfs.Action{Err: syscall.EIO}
			}
			return failStoreSync(c) // that is when the journal is full
		})
	})
}

// failStoreSync makes the flush of the store directory fail: the commit is in doubt.
func failStoreSync(c faultfs.Call) faultfs.Action {
	if c.Op == "Sync" && c.Path == "session" {
		return faultfs.Action{Err: syscall.EIO}
	}
	return faultfs.Action{}
}

func outcomeOf(t *testing.T, ctx context.Context, s *pawl.Store, id string) pawl.Outcome {
	t.Helper()
	_, o, err := s.Lookup(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestCertainCannotLand: a program that may write to the store directory keeps the
// temp of a commit that failed for certain, and puts it in place later. The intent
// must be gone by then (contract 7).
func TestCertainCannotLand(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("makes a hard link of a file and sets the time of another while pawl has them open")
	}
	f, ctx, s, dir, trust := meddled(t)
	keep := filepath.Join(dir, "keep")
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op != "Sync" || !strings.HasPrefix(c.Path, "session/tmp-") {
			return faultfs.Action{}
		}
		return faultfs.Action{After: func() {
			temps := testkit.Temps(t, dir)
			later := time.Now().Add(time.Hour)
			if err := errors.Join(os.Link(temps[0], keep), os.Chtimes(filepath.Join(dir, "bundle"), later, later)); err != nil {
				t.Error(err)
			}
		}}
	})
	if _, err := s.Commit(ctx, pawl.Change{ID: "b"}); !errors.Is(err, pawl.ErrNotCommitted) || !errors.Is(err, pawl.ErrStale) {
		t.Fatalf("a bundle that was changed meanwhile: %v", err)
	}
	f.Set(nil)
	s.Close() // stale, and says so
	if err := os.Rename(keep, filepath.Join(dir, "bundle")); err != nil {
		t.Fatal(err)
	}
	if s, err := pawl.Open(ctx, dir, trust, nil); err == nil {
		t.Errorf("b is %v, and was certain not to be", outcomeOf(t, ctx, s, "b"))
		s.Close()
	} else if !errors.Is(err, pawl.ErrTrustBehind) {
		t.Error(err)
	}
}

// TestPassingErrorBeforeRename: an error in the look before the rename takes the
// intent back, and the store goes on.
func TestPassingErrorBeforeRename(t *testing.T) {
	f, ctx, s, dir, trust := meddled(t)
	looks := 0
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "ReadAt" && c.Path == "trust/session.trust" {
			if looks++; looks == 2 {
				return faultfs.Action{Err: syscall.EIO}
			}
		}
		return faultfs.Action{}
	})
	if _, err := s.Commit(ctx, pawl.Change{ID: "b"}); !errors.Is(err, pawl.ErrNotCommitted) || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	f.Set(nil)
	r, err := pawl.Inspect(ctx, dir, trust, nil)
	if err != nil || r.Verdict != "clean" || r.Pending != (pawl.Root{}) {
		t.Errorf("after a certain failure: %+v, %v", r, err)
	}
	if _, err := s.Commit(ctx, pawl.Change{ID: "c"}); err != nil {
		t.Error(err)
	}
}

// TestTempSwapped: what is put in place is what was written. Somebody swaps the temp
// when it is complete, or the bundle when it has just been put in place.
func TestTempSwapped(t *testing.T) {
	for _, tt := range []struct {
		when    string
		is      func(faultfs.Call) bool
		outcome error
	}{
		{"the temp, after its close", func(c faultfs.Call) bool { return c.Op == "Close" && strings.HasPrefix(c.Path, "session/tmp-") }, pawl.ErrNotCommitted},
		{"the bundle, after the flush", func(c faultfs.Call) bool { return c.Op == "Sync" && c.Path == "session" }, pawl.ErrInDoubt},
	} {
		t.Run(tt.when, func(t *testing.T) {
			f, ctx, s, dir, trust := meddled(t)
			bundle := filepath.Join(dir, "bundle")
			old, err := os.ReadFile(bundle)
			if err != nil {
				t.Fatal(err)
			}
			f.Set(func(c faultfs.Call) faultfs.Action {
				if !tt.is(c) {
					return faultfs.Action{}
				}
				return faultfs.Action{After: func() {
					target := bundle
					if temps := testkit.Temps(t, dir); len(temps) > 0 {
						target = temps[0]
					}
					other := filepath.Join(dir, "other")
					if err := errors.Join(os.WriteFile(other, old, 0o600), os.Rename(other, target)); err != nil {
						t.Error(err)
					}
				}}
			})
			if _, err := s.Commit(ctx, pawl.Change{ID: "b"}); !errors.Is(err, tt.outcome) {
				t.Errorf("%v, want %v", err, tt.outcome)
			}
			f.Set(nil)
			s.Close()
			again, err := pawl.Open(ctx, dir, trust, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if got := outcomeOf(t, ctx, again, "b"); got != pawl.OutcomeNotCommitted {
				t.Errorf("b is %v, and was never acknowledged", got)
			}
		})
	}
}

// TestNotCertainWhileInDoubt: a second attempt that does not get its turn, or comes
// after Close, is not certain of what the first left in doubt (contract 7).
func TestNotCertainWhileInDoubt(t *testing.T) { eitherWay(t, notCertainWhileInDoubt) }

func notCertainWhileInDoubt(t *testing.T, f *faultfs.FS, ctx context.Context, s *pawl.Store, dir, trust string, fail faultfs.Hook) {
	f.Set(fail)
	change := pawl.Change{ID: "b"}
	if _, err := s.Commit(ctx, change); !errors.Is(err, pawl.ErrInDoubt) {
		t.Fatal(err)
	}
	f.Set(nil)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	update := func(ctx context.Context) error {
		_, err := s.Update(ctx, "b", func(pawl.View) (pawl.Change, error) { return pawl.Change{}, nil })
		return err
	}
	commit := func(ctx context.Context) error { _, err := s.Commit(ctx, change); return err }
	for _, do := range []func(context.Context) error{commit, update} {
		if err := do(cancelled); !errors.Is(err, pawl.ErrInDoubt) || errors.Is(err, pawl.ErrNotCommitted) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
	s.Close()
	for _, do := range []func(context.Context) error{commit, update} {
		if err := do(ctx); !errors.Is(err, pawl.ErrInDoubt) || errors.Is(err, pawl.ErrNotCommitted) || !errors.Is(err, pawl.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
	again, err := pawl.Open(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := outcomeOf(t, ctx, again, "b"); got != pawl.OutcomeCommitted {
		t.Errorf("b is %v: it was there to be seen", got)
	}
}

// TestLookupBesideRecover: what is known to be committed stays so while the store
// settles, to everybody who asks.
func TestLookupBesideRecover(t *testing.T) { eitherWay(t, lookupBesideRecover) }

func lookupBesideRecover(t *testing.T, f *faultfs.FS, ctx context.Context, s *pawl.Store, _, _ string, fail faultfs.Hook) {
	stop := make(chan struct{})
	var askers sync.WaitGroup
	for range 2 {
		askers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, o, err := s.Lookup(ctx, "a"); err != nil || o != pawl.OutcomeCommitted {
					t.Errorf("%v, %v", o, err)
					return
				}
				s.Stats()
				s.Recovery()
			}
		})
	}
	for i := range 20 {
		f.Set(fail)
		if _, err := s.Commit(ctx, pawl.Change{ID: fmt.Sprint(i)}); !errors.Is(err, pawl.ErrInDoubt) {
			t.Error(err)
		}
		f.Set(nil)
		if _, err := s.Recover(ctx); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	askers.Wait()
}

// TestTwoStoresOfOneName: the second is told whose trust file it found, not to put a
// copy back that never was.
func TestTwoStoresOfOneName(t *testing.T) {
	_, ctx, s, dir, trust := meddled(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(filepath.Dir(dir), "elsewhere", filepath.Base(dir))
	_, err := pawl.Open(ctx, other, trust, nil)
	if !errors.Is(err, pawl.ErrMissing) || !strings.Contains(err.Error(), "Options.Name") || !strings.Contains(err.Error(), filepath.Base(dir)) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
}

// TestSharedTrustFile: a trust file that others may write to is as bad as a directory.
func TestSharedTrustFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say nothing on Windows")
	}
	_, ctx, s, dir, trust := meddled(t)
	if err := errors.Join(s.Close(), os.Chmod(filepath.Join(trust, "session.trust"), 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, err := pawl.Open(ctx, dir, trust, nil); !errors.Is(err, pawl.ErrInsecure) {
		t.Error(err)
	}
	again, err := pawl.Open(ctx, dir, trust, &pawl.Options{Allow: pawl.SharedTrust})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// TestRecoverDoesNotRelapse: older copies of both directories, put back while the
// store is in doubt, are no way to undo what was acknowledged (contract 3).
func TestRecoverDoesNotRelapse(t *testing.T) { eitherWay(t, recoverDoesNotRelapse) }

func recoverDoesNotRelapse(t *testing.T, f *faultfs.FS, ctx context.Context, s *pawl.Store, dir, trust string, fail faultfs.Hook) {
	older := map[string][]byte{}
	for _, path := range []string{filepath.Join(dir, "bundle"), filepath.Join(dir, "journal.000000000001"), filepath.Join(trust, "session.trust")} {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		older[path] = b
	}
	if _, err := s.Commit(ctx, pawl.Change{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	f.Set(fail)
	if _, err := s.Commit(ctx, pawl.Change{ID: "c"}); !errors.Is(err, pawl.ErrInDoubt) {
		t.Fatal(err)
	}
	f.Set(nil)
	for path, b := range older {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := testkit.Snapshot(t, dir, trust)
	if _, err := s.Recover(ctx); !errors.Is(err, pawl.ErrRolledBack) {
		t.Errorf("%v, want ErrRolledBack", err)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, dir, trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	if got := outcomeOf(t, ctx, s, "b"); got != pawl.OutcomeCommitted {
		t.Errorf("b is %v", got)
	}
}
