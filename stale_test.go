//go:build unix || windows

package pawl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// aside moves a file or directory out of the way, as it is: whoever has it open
// keeps it. (Removing it, or renaming over it, Windows does not allow everywhere.)
func (r *rig) aside(path string) (to string) {
	r.t.Helper()
	for i := 0; ; i++ {
		to = filepath.Join(r.base, fmt.Sprintf("aside%d", i))
		if _, err := os.Lstat(to); os.IsNotExist(err) {
			break
		}
	}
	if err := os.Rename(path, to); err != nil {
		r.t.Fatal(err)
	}
	return to
}

// swap puts a copy in a file's or directory's place.
func (r *rig) swap(path string) {
	r.t.Helper()
	was := r.aside(path)
	info, err := os.Stat(was)
	if err != nil {
		r.t.Fatal(err)
	}
	if info.IsDir() {
		copyTree(r.t, was, path)
		return
	}
	b, err := os.ReadFile(was)
	if err == nil {
		err = os.WriteFile(path, b, info.Mode().Perm())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// elsewhere has another process open the store and commit, by the locks that the
// names lead to now.
func (r *rig) elsewhere(commits int) {
	r.t.Helper()
	said := startChild(r.t, childJob{Do: "work", Base: r.base, Seed: 9, Times: commits}).wait()
	if len(said) == 0 || said[len(said)-1] != "done" {
		r.t.Fatalf("the other writer: %v", said)
	}
}

func (r *rig) lockFiles() []string {
	return []string{filepath.Join(r.trust, "session.lock"), filepath.Join(r.dir, lockName)}
}

// meanwhiles are what can happen behind the back of a writer at revision 2, and at
// which revision the store opens then (-1: not at all).
var meanwhiles = []struct {
	name     string
	revision int
	unix     bool // Windows does not let it happen
	rename   bool // nor this, when the writer has the trust file open, under Wine
	happen   func(r *rig)
}{
	{"another writer, past the locks", 3, false, true, func(r *rig) {
		for _, l := range r.lockFiles() {
			r.aside(l)
		}
		r.elsewhere(1)
	}},
	{"another writer, twice, locks put back", 4, false, true, func(r *rig) {
		var were []string
		for _, l := range r.lockFiles() {
			were = append(were, r.aside(l))
		}
		r.elsewhere(2)
		for i, l := range r.lockFiles() {
			r.aside(l)
			if err := os.Rename(were[i], l); err != nil {
				r.t.Fatal(err)
			}
		}
	}},
	{"newer copies of both files", 4, false, false, func(r *rig) {
		newer := r.inside("newer")
		r.copyTo(newer)
		newer.elsewhere(2)
		for _, name := range []string{"session/bundle", "trust/session.trust"} {
			r.aside(filepath.Join(r.base, name))
			if err := os.Rename(filepath.Join(newer.base, name), filepath.Join(r.base, name)); err != nil {
				r.t.Fatal(err)
			}
		}
	}},
	{"trust lock replaced", 2, false, false, func(r *rig) { r.swap(r.lockFiles()[0]) }},
	{"store lock replaced", 2, false, false, func(r *rig) { r.swap(r.lockFiles()[1]) }},
	{"trust lock gone", 2, false, false, func(r *rig) { r.aside(r.lockFiles()[0]) }},
	{"store lock gone", 2, false, false, func(r *rig) { r.aside(r.lockFiles()[1]) }},
	{"trust file replaced by its copy", 2, false, false, func(r *rig) { r.swap(filepath.Join(r.trust, "session.trust")) }},
	{"trust file gone", -1, false, false, func(r *rig) { r.aside(filepath.Join(r.trust, "session.trust")) }},
	{"trust file written to", 2, false, false, func(r *rig) {
		path := filepath.Join(r.trust, "session.trust")
		ring, err := os.ReadFile(path)
		if err != nil {
			r.t.Fatal(err)
		}
		newest, _, err := decodeRing(ring)
		if err != nil {
			r.t.Fatal(err)
		}
		newest.sequence++
		newest.closed = !newest.closed
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt(newest.encode(), int64(newest.sequence%slotCount)*slotSize)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}},
	{"bundle replaced by its copy", 2, false, false, func(r *rig) { r.swap(filepath.Join(r.dir, "bundle")) }},
	{"bundle gone", -1, false, false, func(r *rig) { r.aside(filepath.Join(r.dir, "bundle")) }},
	{"store directory replaced by its copy", 2, true, false, func(r *rig) { r.swap(r.dir) }},
	{"trust directory replaced by its copy", 2, true, false, func(r *rig) { r.swap(r.trust) }},
	{"store directory gone", -1, true, false, func(r *rig) { r.aside(r.dir) }},
}

// TestStaleWriter: R2, a writer that is no longer the one is refused before it has
// written anything, by Commit, Update and Close; what the other has made stays, and
// so do locks that are no longer its own (24).
func TestStaleWriter(t *testing.T) {
	for _, m := range meanwhiles {
		for _, wrote := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", m.name, map[bool]string{false: "opened", true: "has written"}[wrote]), func(t *testing.T) {
				if m.unix && onWindows {
					t.Skip("Windows does not rename a directory with open files in it")
				}
				if m.rename && wrote && onWindows {
					t.Skip("Wine does not rename over a file that a process has open")
				}
				r := newRig(t)
				r.prepare(map[bool]string{false: "two", true: "one"}[wrote])
				s := r.mustOpen()
				if wrote { // then it has the trust file open
					if err := commitNth(r.ctx(), s, 2); err != nil {
						t.Fatal(err)
					}
				}
				m.happen(r)
				before := testkit.Snapshot(t, r.base)
				r.fs.Set(nil)
				refused := func(op string, err error, outcome error) {
					t.Helper()
					var e *Error
					if !errors.Is(err, ErrStale) || !errors.As(err, &e) || e.Hint == "" || e.Outcome != outcome || errors.Is(err, ErrInDoubt) {
						t.Errorf("%s by a stale writer: %v", op, err)
					}
					if calls := r.fs.Mutating(); len(calls) > 0 {
						t.Errorf("%s by a stale writer wrote: %v", op, calls)
					}
				}
				_, err := s.Commit(r.ctx(), nthChange(3))
				refused("Commit", err, ErrNotCommitted)
				_, err = s.Update(r.ctx(), "c3", func(View) (Change, error) { return nthChange(3), nil })
				refused("Update", err, ErrNotCommitted)
				if err := checkNth(s.View(), 2); err != nil {
					t.Errorf("what it shows: %v", err)
				}
				if err := s.Close(); wrote || err != nil {
					refused("Close", err, nil)
				}
				if diff := cmp.Diff(before, testkit.Snapshot(t, r.base)); diff != "" {
					t.Errorf("a stale writer changed something: %s", diff)
				}
				s, err = r.open()
				if m.revision < 0 {
					if err == nil {
						t.Error("opens, though something is gone")
						s.Close()
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(checkNth(s.View(), m.revision), commitNth(r.ctx(), s, m.revision+1), s.Close()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestStaleRecover has a writer in doubt while another one settles it and goes on.
// Its Recover and its Close leave that alone.
func TestStaleRecover(t *testing.T) {
	for _, at := range []string{"session Sync", "session/tmp-* Rename", "trust Sync"} {
		t.Run(at, func(t *testing.T) {
			if onWindows && at != "trust Sync" {
				t.Skip("Wine does not rename over a file that a process has open, and the writer in doubt has the trust file open")
			}
			r := newRig(t)
			r.prepare("one")
			s := r.mustOpen()
			p := &faultfs.Plan{N: 1, Action: faultfs.Action{Err: syscall.EIO, Done: true},
				Only: func(c faultfs.Call) bool { return strings.HasPrefix(c.String(), at) }}
			r.fs.Set(p.Hook)
			if _, err := s.Commit(r.ctx(), nthChange(2)); !errors.Is(err, ErrInDoubt) || len(p.Fired()) != 1 {
				t.Fatalf("not in doubt: %v", err)
			}
			for _, l := range r.lockFiles() {
				r.aside(l)
			}
			r.elsewhere(2)
			before := testkit.Snapshot(t, r.base)
			r.fs.Set(nil)
			if _, err := s.Recover(r.ctx()); !errors.Is(err, ErrStale) {
				t.Errorf("Recover beside another writer: %v", err)
			}
			if _, err := s.Commit(r.ctx(), nthChange(2)); !errors.Is(err, ErrInDoubt) {
				t.Errorf("still in doubt, a commit: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if calls := r.fs.Mutating(); len(calls) > 0 {
				t.Errorf("a stale writer wrote: %v", calls)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, r.base)); diff != "" {
				t.Errorf("a stale writer changed something: %s", diff)
			}
			s = r.mustOpen()
			revision := 3 // with what was in doubt not landed
			if at != "trust Sync" {
				revision = 4
			}
			if err := errors.Join(checkNth(s.View(), revision), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStaleOpen puts another writer between an Open and what it has read so far: an
// Open takes what is there once it has the locks, and nothing older.
func TestStaleOpen(t *testing.T) {
	for _, from := range []string{"nothing", "empty", "one", "landed", "not landed", "first landed", "first not landed"} {
		t.Run(from, func(t *testing.T) {
			probe := newRig(t)
			probe.prepare(from)
			probe.mustOpen().Close()
			calls := probe.fs.Calls()
			// From here on the other would be locked out.
			calls = calls[:1+slices.IndexFunc(calls, func(c faultfs.Call) bool { return c.Op == "TryLock" })]
			for at := range calls {
				if calls[at].Path == "above" || onWindows && testing.Short() && at%5 != 0 {
					continue // there are many above; a process takes long under Wine
				}
				r := newRig(t)
				r.prepare(from)
				r.fs.Set((&faultfs.Plan{N: at + 1, Action: faultfs.Action{Before: func() { r.elsewhere(1) }}}).Hook)
				s, err := r.open()
				if err != nil {
					t.Errorf("another writer came and went before call %d, %q: %v", at+1, calls[at], err)
					continue
				}
				n := int(s.View().Version().Revision)
				want := map[string]int{"nothing": 1, "empty": 1, "one": 2, "landed": 3, "not landed": 2, "first landed": 2, "first not landed": 1}[from]
				if err := errors.Join(checkNth(s.View(), want), commitNth(r.ctx(), s, n+1), s.Close()); err != nil {
					t.Errorf("another writer came and went before call %d, %q: %v", at+1, calls[at], err)
				}
			}
		})
	}
}
