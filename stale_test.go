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

// glob lists files of the rig by a slash pattern.
func (r *rig) glob(pattern string) []string {
	r.t.Helper()
	paths, err := filepath.Glob(filepath.Join(r.base, filepath.FromSlash(pattern)))
	if err != nil {
		r.t.Fatal(err)
	}
	return paths
}

// journal is the one that there is, or "".
func (r *rig) journal() string {
	r.t.Helper()
	paths := r.glob("session/journal.*")
	if len(paths) > 1 {
		r.t.Fatalf("journals: %v", paths)
	}
	return strings.Join(paths, "")
}

// scribble writes a byte to a file.
func (r *rig) scribble(path string, at int64) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{'!'}, at)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
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
		for _, files := range []string{"session/bundle", "session/journal.*", "trust/session.trust"} {
			for _, path := range r.glob(files) {
				r.aside(path)
			}
			for _, path := range newer.glob(files) {
				rel, err := filepath.Rel(newer.base, path)
				if err == nil {
					err = os.Rename(path, filepath.Join(r.base, rel))
				}
				if err != nil {
					r.t.Fatal(err)
				}
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
	{"journal replaced by its copy", 2, false, false, func(r *rig) { r.swap(r.journal()) }},
	{"journal gone", -1, false, false, func(r *rig) { r.aside(r.journal()) }},
	{"journal made longer", -1, false, false, func(r *rig) { r.scribble(r.journal(), 16*blockSize) }},
	{"store directory replaced by its copy", 2, true, false, func(r *rig) { r.swap(r.dir) }},
	{"trust directory replaced by its copy", 2, true, false, func(r *rig) { r.swap(r.trust) }},
	{"store directory gone", -1, true, false, func(r *rig) { r.aside(r.dir) }},
}

// TestStaleWriter: R2, a writer that is no longer the one is refused before it has
// written anything, by Commit, Update and Close; what the other has made stays, and
// so do locks that are no longer its own (24).
func TestStaleWriter(t *testing.T) {
	for _, m := range meanwhiles {
		for _, how := range []struct {
			name, from string
			opts       *Options
			wrote      bool
		}{
			{"publish, opened", "two", publishing(), false},
			{"publish, has written", "one", publishing(), true},
			{"extend, opened", "journal", nil, false},
			{"extend, has written", "one", nil, true},
		} {
			wrote, ofJournal := how.wrote, strings.HasPrefix(m.name, "journal ")
			if ofJournal && how.opts != nil {
				continue // there is none
			}
			t.Run(m.name+"/"+how.name, func(t *testing.T) {
				if m.unix && onWindows {
					t.Skip("Windows does not rename a directory with open files in it")
				}
				if m.rename && wrote && onWindows {
					t.Skip("Wine does not rename over a file that a process has open")
				}
				r := newRig(t)
				r.prepare(how.from)
				r.opts = how.opts
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
	for _, tt := range []struct {
		at, from string
		opts     *Options
		revision int // once the other has settled it
	}{
		{"session Sync", "one", publishing(), 2},
		{"session/tmp-* Rename", "one", publishing(), 2},
		{"trust Sync", "one", publishing(), 1},
		{"session Sync", "one", nil, 2},
		{"trust Sync", "one", nil, 1},
		{firstJournal + " SyncData", "journal", nil, 3},
		{"trust Sync", "journal", nil, 2},
	} {
		t.Run(tt.from+", "+strings.ReplaceAll(tt.at, "/", " "), func(t *testing.T) {
			if onWindows && (tt.at != "trust Sync" || tt.from == "journal") {
				t.Skip("Wine does not rename over a file that a process has open, and the writer in doubt has the trust file or the journal open")
			}
			r := newRig(t)
			r.prepare(tt.from)
			r.opts = tt.opts
			s := r.mustOpen()
			next := int(s.View().Version().Revision) + 1
			p := &faultfs.Plan{N: 1, Action: faultfs.Action{Err: syscall.EIO, Done: true},
				Only: func(c faultfs.Call) bool { return strings.HasPrefix(c.String(), tt.at) }}
			r.fs.Set(p.Hook)
			if _, err := s.Commit(r.ctx(), nthChange(next)); !errors.Is(err, ErrInDoubt) || len(p.Fired()) != 1 {
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
			if _, err := s.Commit(r.ctx(), nthChange(next)); !errors.Is(err, ErrInDoubt) {
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
			if err := errors.Join(checkNth(s.View(), tt.revision+2), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStaleOpen puts another writer between an Open and what it has read so far: an
// Open takes what is there once it has the locks, and nothing older.
func TestStaleOpen(t *testing.T) {
	for from, revision := range map[string]int{"nothing": 0, "empty": 0, "one": 1, "landed": 2, "not landed": 1, "first landed": 1, "first not landed": 0,
		"journal": 2, "making landed": 2, "making not landed": 1, "extend landed": 3, "extend torn": 2, "checkpoint landed": 2} {
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
				if err := errors.Join(checkNth(s.View(), revision+1), commitNth(r.ctx(), s, n+1), s.Close()); err != nil {
					t.Errorf("another writer came and went before call %d, %q: %v", at+1, calls[at], err)
				}
			}
		})
	}
}
