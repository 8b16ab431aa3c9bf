//go:build unix || windows

package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// TestWatchBesideRefresh: Watch yields the newest state also when somebody else has had
// the same Reader read it first, with Refresh, Lookup, or a Watch of his own.
func TestWatchBesideRefresh(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := pawl.Open(ctx, dir, trust, &pawl.Options{SyncConfirm: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Commit(ctx, pawl.Change{ID: "1"}); err != nil {
		t.Fatal(err)
	}
	r, err := pawl.OpenReader(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var seen pawl.Revision
	for v, err := range r.Watch(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = v.Version().Revision; seen == 2 {
			break
		}
		if _, err := s.Commit(ctx, pawl.Change{ID: "2"}); err != nil {
			t.Fatal(err)
		}
		if err := r.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if seen != 2 {
		t.Errorf("Watch has yielded revision %d, and never the newest, which View returns (%d)", seen, r.View().Version().Revision)
	}
}

// TestWatchBreakWhenClosed: a loop over Watch may end at any of its states, also when
// the Store is closed.
func TestWatchBreakWhenClosed(t *testing.T) {
	for _, shared := range []bool{false, true} {
		dir, trust := testkit.Dirs(t)
		ctx := t.Context()
		s, err := pawl.Open(ctx, dir, trust, &pawl.Options{Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(ctx, pawl.Change{ID: "1"}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("shared %v: a break panics: %v", shared, p)
				}
			}()
			for _, err := range s.Watch(ctx, 0) {
				if err != nil {
					t.Errorf("shared %v: %v", shared, err)
				}
				break
			}
		}()
		var last error
		for _, err := range s.Watch(ctx, 0) {
			last = err
		}
		if !errors.Is(last, pawl.ErrClosed) {
			t.Errorf("shared %v: it ends with %v", shared, last)
		}
	}
}

// TestShareByTurns: what one of those who share a store replaces, others have seen, and
// may have open. One of them is also in doubt about a commit that another settles.
func TestShareByTurns(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	ctx := t.Context()
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	var stores []*pawl.Store
	for range 3 {
		s, err := pawl.Open(f.Context(ctx), dir, trust, &pawl.Options{Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
		defer s.Close()
	}
	n := 0
	commit := func(i int) {
		t.Helper()
		n++
		r, err := stores[i].Commit(ctx, pawl.Change{ID: fmt.Sprint(n)})
		if err != nil || r.Revision != pawl.Revision(n) {
			t.Fatalf("commit %d, by store %d: %v, %v", n, i, r, err)
		}
	}
	for _, i := range []int{0, 1, 0, 0, 2, 1, 2} {
		commit(i)
	}
	plan := &faultfs.Plan{N: 1, Action: faultfs.Action{Half: true, Err: syscall.EIO}, Only: func(c faultfs.Call) bool {
		return c.Op == "WriteAt" && strings.HasPrefix(path.Base(c.Path), "journal.")
	}}
	f.Set(plan.Hook)
	_, err := stores[0].Commit(ctx, pawl.Change{ID: "half", Entries: [][]byte{make([]byte, 100)}})
	if !errors.Is(err, pawl.ErrNotCommitted) && !errors.Is(err, pawl.ErrInDoubt) || plan.Fired() == nil {
		t.Fatalf("half of a write: %v (%v)", err, plan.Fired())
	}
	doubt := errors.Is(err, pawl.ErrInDoubt)
	f.Set(nil)
	for _, i := range []int{1, 2, 1} {
		commit(i)
	}
	if doubt {
		if _, err := stores[0].Recover(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, outcome, err := stores[0].Lookup(ctx, "half"); err != nil || outcome != pawl.OutcomeNotCommitted {
		t.Errorf("half of a write: %v, %v", outcome, err)
	}
	commit(0)
	for _, i := range []int{2, 1} {
		if err := stores[i].Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
		commit(i)
	}
	commit(0)
}
