//go:build unix || windows

package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Many stores have their trust files in one directory: each has names of its own there,
// takes the same little space, and is opened and changed without a look at the others.

const (
	trustSize = 16 << 10
	lockSize  = 256 + 1 // with the mark of somebody who waits
)

// many makes stores with one commit each in one trust directory, and returns that.
func many(t testing.TB, root string, n int) (trust string) {
	t.Helper()
	trust = filepath.Join(root, "trust")
	for i := range n {
		s, err := openOneOf(root, i, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(context.Background(), put("who", strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return trust
}

func nameOf(i int) string { return fmt.Sprintf("store-%04d", i) }

// openOneOf opens one of many stores.
func openOneOf(root string, i int, o *pawl.Options) (*pawl.Store, error) {
	return pawl.Open(quick(), filepath.Join(root, nameOf(i)), filepath.Join(root, "trust"), o)
}

func TestManyStores(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 10
	}
	root := newRoot(t)
	trust := many(t, root, n)
	var want []string
	for i := range n {
		s, err := openOneOf(root, i, &pawl.Options{MustExist: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := partsOf(t, s.View()); got["who"] != strconv.Itoa(i) || len(got) != 1 || s.View().Version().Revision != 1 {
			t.Errorf("store %d has the state %q", i, got)
		}
		if rec := s.Recovery(); rec.Unclean || rec.Settled != pawl.SettledNothing || rec.Swept != nil {
			t.Errorf("store %d: %+v", i, rec)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		want = append(want, nameOf(i)+".lock", nameOf(i)+".trust")
	}
	list, err := os.ReadDir(trust)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name(), ".trust") && info.Size() != trustSize || strings.HasSuffix(e.Name(), ".lock") && info.Size() > lockSize {
			t.Errorf("%s has %d bytes", e.Name(), info.Size())
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the trust directory has %d names, of %d stores: %q", len(got), n, got)
	}
	// Only where something happened that is worth a line is there a third name.
	for range 2 {
		s, err := openOneOf(root, 0, &pawl.Options{Schema: 1, Program: "a program", Migrate: doubling})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list, err = os.ReadDir(trust)
	if err != nil || len(list) != 2*n+1 || !slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == nameOf(0)+".audit" }) {
		t.Errorf("%d names, %v", len(list), err)
	}
}

// callsOf are the calls that a store makes in its life, by their names: opened, changed
// in each way, looked at, settled after a kill.
func callsOf(t *testing.T, others int) map[string][]string {
	t.Helper()
	root := newRoot(t)
	many(t, root, others)
	dir, trust := filepath.Join(root, "session"), filepath.Join(root, "trust")
	// Never idle, and with times that all have the same length in an audit line.
	f := faultfs.New(&tap{FS: vfs.OS(), now: func() time.Time { return time.Date(2025, 11, 30, 6, 0, 0, 123456789, time.UTC) }}, root)
	f.NoFlush = true
	ctx := f.Context(context.Background())
	calls := map[string][]string{}
	tell := func(what string, do func() error) {
		t.Helper()
		f.Set(nil)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, c := range f.Calls() {
			calls[what] = append(calls[what], c.String())
		}
	}
	var s *pawl.Store
	open := func(o *pawl.Options) func() error {
		return func() (err error) {
			s, err = pawl.Open(ctx, dir, trust, o)
			return err
		}
	}
	n := 0
	commits := func() error {
		n++
		_, err := s.Commit(ctx, entry(fmt.Sprint("id-", n), "x"))
		return err
	}
	closes := func() error { return s.Close() }
	extending := &pawl.Options{Limits: pawl.Limits{Journal: 64 << 10}}

	tell("create", open(extending))
	tell("first commit", commits)
	tell("make the journal", commits)
	tell("extend", commits)
	tell("close", closes)
	tell("open", open(extending))
	tell("extend after open", commits)
	tell("checkpoint", func() error { return s.Checkpoint(ctx) })
	tell("lookup", func() error { _, _, err := s.Lookup(ctx, "id-1"); return err })
	tell("verify", func() error { return s.Verify(ctx, nil) })
	tell("close after checkpoint", closes)
	tell("open to migrate", open(&pawl.Options{Schema: 1, Program: "p", Migrate: func(context.Context, int, pawl.View) (pawl.Change, error) { return pawl.Change{}, nil }}))
	tell("close when migrated", closes)
	tell("inspect", func() error { _, err := pawl.Inspect(ctx, dir, trust, nil); return err })
	tell("read", func() error {
		r, err := pawl.OpenReader(ctx, dir, trust, nil)
		if err != nil {
			return err
		}
		return errors.Join(r.Refresh(ctx), r.Close())
	})
	shared := &pawl.Options{Shared: true}
	tell("open to share", open(shared))
	tell("share", commits)
	tell("close when shared", closes)
	tell("open to publish", open(&pawl.Options{CheckpointEvery: 1}))
	tell("publish", commits)
	// Killed in the next commit: its calls fail from some point on.
	plan := &faultfs.Plan{N: 1, Sticky: true, Only: func(c faultfs.Call) bool { return c.Op == "Rename" && c.Path == "session/tmp-*" },
		Action: faultfs.Action{Err: errors.New("killed")}}
	all := func(c faultfs.Call) faultfs.Action {
		if len(plan.Fired()) > 0 && c.Mutates() {
			return faultfs.Action{Err: errors.New("killed")}
		}
		return plan.Hook(c)
	}
	f.Set(all)
	if err := commits(); !errors.Is(err, pawl.ErrInDoubt) {
		t.Fatalf("killed: %v", err)
	}
	_ = s.Close()
	tell("settle", open(&pawl.Options{CheckpointEvery: 1}))
	if rec := s.Recovery(); rec.Settled != pawl.SettledNotLanded {
		t.Errorf("%+v", rec)
	}
	tell("close when settled", closes)
	return calls
}

// However many stores there are, the calls are the same, and none of them lists the
// trust directory, but where a store is created; and, where the file system folds case,
// where one is opened.
func TestManyStoresAreNotLookedAt(t *testing.T) {
	want := callsOf(t, 0)
	folding := folds(t, ".") // the last that a test was in
	for what, calls := range want {
		lists := slices.Contains(calls, "trust Names")
		if what == "create" {
			if !lists {
				t.Errorf("%s: no look at other names", what)
			}
			continue
		}
		opens := slices.Contains(calls, "trust/SESSION.TRUST Lstat")
		if lists && !(opens && folding) {
			t.Errorf("%s lists the trust directory", what)
		}
		if i := slices.IndexFunc(calls, func(c string) bool { return strings.Contains(c, "store-") }); i >= 0 {
			t.Errorf("%s: %s", what, calls[i])
		}
	}
	others := 40
	if testing.Short() {
		others = 4
	}
	got := callsOf(t, others)
	// There was no trust directory when the first was made.
	delete(got, "create")
	delete(want, "create")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("among others, the calls are others (-alone +among):\n%s", diff)
	}
}

// BenchmarkOpenAmong opens and closes one store, whose trust file is among those of
// others.
func BenchmarkOpenAmong(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			root := b.TempDir()
			many(b, root, n)
			for b.Loop() {
				s, err := pawl.Open(b.Context(), filepath.Join(root, nameOf(n/2)), filepath.Join(root, "trust"), nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// ---- two stores under one name --------------------------------------------------

// TestSameName: two store directories under one name in one trust directory. Whoever
// comes second is told where the first one is, and neither loses anything.
func TestSameName(t *testing.T) {
	for _, order := range [][2]string{{"one", "two"}, {"two", "one"}} {
		for _, how := range []struct {
			name              string
			committed, closed bool
			files             bool // the second has the files of another store
			want              error
		}{
			{"empty, open", false, false, false, pawl.ErrLocked},
			{"committed, open", true, false, false, pawl.ErrLocked},
			{"committed, open, and the second has files", true, false, true, pawl.ErrLocked},
			{"committed, closed", true, true, false, pawl.ErrMissing},
			{"committed, closed, and the second has files", true, true, true, pawl.ErrForeign},
		} {
			t.Run(order[0]+" first, "+how.name, func(t *testing.T) {
				root := newRoot(t)
				first, second := filepath.Join(root, order[0], "session"), filepath.Join(root, order[1], "session")
				if how.files {
					s, err := pawl.Open(quick(), second, "trust-of-its-own", nil)
					if err != nil {
						t.Fatal(err)
					}
					commit(t, s, change(1))
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				s, err := pawl.Open(quick(), first, "trust", nil)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if how.committed {
					commit(t, s, change(1))
				}
				if how.closed {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				before := testkit.Snapshot(t, root)
				for range 2 {
					_, err := pawl.Open(quick(), second, "trust", nil)
					typed(t, err, "open", how.want)
					madeFor(t, err, first)
				}
				if how.closed {
					_, err := pawl.OpenReader(quick(), second, "trust", nil)
					typed(t, err, "open", how.want)
					madeFor(t, err, first)
					r, err := pawl.Inspect(quick(), second, "trust", nil)
					if err != nil || r.Verdict != "refuse" || !errors.Is(r.Err, how.want) {
						t.Errorf("Inspect: %+v, %v", r, err)
					} else {
						madeFor(t, r.Err, first)
					}
				}
				if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
					t.Errorf("files changed (-before +after):\n%s", diff)
				}
				// The first goes on; to itself nobody says that it is another.
				again, err := pawl.Open(quick(), first, "trust", nil)
				if err == nil {
					err = again.Close()
				}
				if how.closed && err != nil || !how.closed && (!errors.Is(err, pawl.ErrLocked) || strings.Contains(err.Error(), "another store")) {
					t.Errorf("the first, a second time: %v", err)
				}
			})
		}
	}
}

// madeFor wants a message to name the store that a trust file was made for.
func madeFor(t *testing.T, err error, dir string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "the trust file was made for the store at "+strconv.QuoteToASCII(dir)+"; another store beside it needs another Options.Name") {
		t.Errorf("the message does not name the store at %s, and what to do: %v", dir, err)
	}
}

// TestSameNameFirstCommit: a store that was only created is that of whoever commits
// first, and from then on the messages name that one.
func TestSameNameFirstCommit(t *testing.T) {
	for _, w := range schemaWays {
		for _, commits := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, committed by %d", w.name, commits), func(t *testing.T) {
				root := newRoot(t)
				dirs := []string{filepath.Join(root, "one", "session"), filepath.Join(root, "two", "session")}
				for _, dir := range append(dirs, dirs...) { // created by the first, and then as empty for each
					s, err := pawl.Open(quick(), dir, "trust", &w.opts)
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					if r, err := pawl.Inspect(quick(), dir, "trust", nil); err != nil || r.CreatedAt != dirs[0] {
						t.Errorf("an empty store: %+v, %v", r, err)
					}
				}
				s, err := pawl.Open(quick(), dirs[commits], "trust", &w.opts)
				if err != nil {
					t.Fatal(err)
				}
				for i := range w.first {
					commit(t, s, change(i+1))
				}
				other := dirs[1-commits]
				if commits == 1 {
					_, err = pawl.Open(quick(), other, "trust", nil)
					typed(t, err, "open", pawl.ErrLocked)
					madeFor(t, err, dirs[commits])
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				_, err = pawl.Open(quick(), other, "trust", nil)
				typed(t, err, "open", pawl.ErrMissing)
				madeFor(t, err, dirs[commits])
				s, err = pawl.Open(quick(), dirs[commits], "trust", nil)
				if err != nil {
					t.Fatal(err)
				}
				if got := s.View().Version().Revision; got != pawl.Revision(w.first) {
					t.Errorf("at revision %d", got)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// ---- names that differ in case --------------------------------------------------

// alike are pairs of names that differ in nothing but case.
var alike = [][2]string{
	{"session", "Session"}, {"session", "SESSION"}, {"Session", "session"}, {"ä", "Ä"}, {"Ä", "ä"}, {"größe", "GRößE"},
	{"k", "\u212a"}, {"σ", "ς"}, {"ǆ", "ǅ"}, {"a.trust", "A.trust"}, {"x-\u03b1.b", "X-\u0391.B"},
}

// pairs are those that are alike, or some of them.
func pairs() [][2]string {
	if testing.Short() {
		return alike[2:6]
	}
	return alike
}

// unlikeNames are pairs that are none, however near they are.
var unlikeNames = [][2]string{{"session", "session-"}, {"a", "á"}, {"ss", "ß"}, {"i", "ı"}, {"a", "aa"}, {"a", "a.trust"}, {"o", "0"}}

// cased wants a second store to be refused because of the name of the first, with
// nothing made and nothing changed.
func cased(t *testing.T, root, dir string, o *pawl.Options, first, name string) {
	t.Helper()
	want := fmt.Sprintf("is that of the store %q but for case, which was made for %s", name, strconv.QuoteToASCII(first))
	says := func(err error) {
		t.Helper()
		if e := typed(t, err, "open", pawl.ErrInvalid); e.Hint == "" || e.Path != filepath.Join(root, "trust") || !strings.Contains(err.Error(), want) {
			t.Errorf("path %s, hint %q; want it to say %q: %v", e.Path, e.Hint, want, err)
		}
	}
	before := testkit.Snapshot(t, root)
	for _, must := range []bool{false, true} {
		o := *o
		o.MustExist = must
		unplaced(t, root, dir, "trust", &o, pawl.ErrInvalid, fs.ErrInvalid)
		_, err := pawl.Open(quick(), dir, "trust", &o)
		says(err)
		_, err = pawl.OpenReader(quick(), dir, "trust", &o)
		says(err)
		r, err := pawl.Inspect(quick(), dir, "trust", &o)
		if err != nil || r.Verdict != "refuse" {
			t.Errorf("Inspect: %+v, %v", r, err)
			continue
		}
		says(r.Err)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// TestCaseOfNames: a store is not created under a name that differs from another one's
// in nothing but case.
func TestCaseOfNames(t *testing.T) {
	for i, pair := range pairs() {
		for _, state := range []string{"created", "committed", "open"} {
			t.Run(fmt.Sprintf("%d, %q and %q, %s", i, pair[0], pair[1], state), func(t *testing.T) {
				root := newRoot(t)
				first := filepath.Join(root, "first")
				s, err := pawl.Open(quick(), first, "trust", &pawl.Options{Name: pair[0]})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if state == "committed" {
					commit(t, s, change(1))
				}
				if state != "open" {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				} else if folds(t, root) {
					t.Skip("here it is one lock")
				}
				cased(t, root, filepath.Join(root, "second"), &pawl.Options{Name: pair[1]}, first, pair[0])
				cased(t, root, filepath.Join(root, "deep", "down", pair[1]), &pawl.Options{}, first, pair[0])
				// The first is none the worse for it, nor is a third one.
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				for dir, name := range map[string]string{first: pair[0], filepath.Join(root, "third"): "third"} {
					s, err := pawl.Open(quick(), dir, "trust", &pawl.Options{Name: name})
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	for _, pair := range unlikeNames {
		root := newRoot(t)
		for _, name := range pair {
			s, err := pawl.Open(quick(), filepath.Join(root, "dir-of-"+name), "trust", &pawl.Options{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestCaseOfDamaged: the trust file with a name like ours need not be whole, nor one.
func TestCaseOfDamaged(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "of another size": "x", "damaged": strings.Repeat("x", trustSize)} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			if folds(t, root) {
				t.Skip("here it is ours")
			}
			mkdir(t, "trust")
			write(t, filepath.Join("trust", "SESSION.trust"), content)
			unplaced(t, root, "session", "trust", nil)
			if _, err := pawl.Open(quick(), "session", "trust", nil); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "made for somewhere") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestCaseOfCopies: two that were made elsewhere, and are in one directory now, are
// opened where each has a file of its own.
func TestCaseOfCopies(t *testing.T) {
	root := newRoot(t)
	if folds(t, root) {
		t.Skip("they would be one file here")
	}
	for _, name := range []string{"session", "Session"} {
		s, err := pawl.Open(quick(), "dir-"+name, "trust-"+name, &pawl.Options{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		commit(t, s, put("who", name))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join("trust-Session", "Session.trust"), filepath.Join("trust-session", "Session.trust")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"session", "Session", "session"} {
		s, err := pawl.Open(quick(), "dir-"+name, "trust-session", &pawl.Options{Name: name, MustExist: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := partsOf(t, s.View())["who"]; got != name {
			t.Errorf("%s has the state of %s", name, got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	// A third spelling is like both.
	unplaced(t, root, "third", "trust-session", &pawl.Options{Name: "SESSION"}, pawl.ErrInvalid)
}

// folds reports whether names that differ in case are the same below a directory.
func folds(t testing.TB, dir string) bool {
	t.Helper()
	f, err := os.CreateTemp(dir, "case-")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	defer os.Remove(f.Name())
	_, err = os.Lstat(filepath.Join(dir, strings.ToUpper(filepath.Base(f.Name()))))
	return err == nil
}

// foldFS is a machine whose directories find a name under another spelling, and keep the
// one that it was made with.
type foldFS struct {
	vfs.FS
	t     testing.TB
	lists *[]string // of directories
}

func (f foldFS) OpenDir(path string) (vfs.Dir, error) {
	d, err := f.FS.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return foldDir{d, f}, nil
}

type foldDir struct {
	vfs.Dir
	fs foldFS
}

// is the name that is there.
func (d foldDir) is(name string) string {
	names, err := d.Dir.Names()
	if err != nil {
		d.fs.t.Error(err)
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, name) }); i >= 0 {
		return names[i]
	}
	return name
}

func (d foldDir) Names() ([]string, error) {
	*d.fs.lists = append(*d.fs.lists, d.Path())
	return d.Dir.Names()
}
func (d foldDir) Lstat(name string) (vfs.Info, error)              { return d.Dir.Lstat(d.is(name)) }
func (d foldDir) Identify(name string) (vfs.Info, error)           { return d.Dir.Identify(d.is(name)) }
func (d foldDir) Mkdir(name string, m fs.FileMode) error           { return d.Dir.Mkdir(d.is(name), m) }
func (d foldDir) Open(name string) (vfs.File, error)               { return d.Dir.Open(d.is(name)) }
func (d foldDir) OpenRW(name string) (vfs.File, error)             { return d.Dir.OpenRW(d.is(name)) }
func (d foldDir) OpenLock(name string) (vfs.File, error)           { return d.Dir.OpenLock(d.is(name)) }
func (d foldDir) Create(n string, m fs.FileMode) (vfs.File, error) { return d.Dir.Create(d.is(n), m) }
func (d foldDir) Rename(from, to string) error                     { return d.Dir.Rename(d.is(from), d.is(to)) }
func (d foldDir) Link(from, to string) error                       { return d.Dir.Link(d.is(from), d.is(to)) }
func (d foldDir) Remove(name string) error                         { return d.Dir.Remove(d.is(name)) }

// TestCaseFolded: where case is folded, the trust file of a store is found under another
// spelling of its name, and not used for it: it would be for whoever else has that name
// where case counts.
func TestCaseFolded(t *testing.T) {
	for i, pair := range pairs() {
		t.Run(fmt.Sprintf("%d, %q and %q", i, pair[0], pair[1]), func(t *testing.T) {
			root := newRoot(t)
			var tap tap
			var lists []string
			tap.FS = foldFS{vfs.OS(), t, &lists}
			ctx := tap.context()
			open := func(name string) (*pawl.Store, error) {
				return pawl.Open(ctx, "dir", "trust", &pawl.Options{Name: name})
			}
			for range 2 {
				s, err := open(pair[0])
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Commit(ctx, change(int(s.View().Version().Revision)+1)); err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			before := testkit.Snapshot(t, root)
			for _, dir := range []string{"dir", "other"} {
				want := fmt.Sprintf("is that of the store %q but for case, which was made for %s", pair[0], strconv.QuoteToASCII(filepath.Join(root, "dir")))
				_, err := pawl.Open(ctx, dir, "trust", &pawl.Options{Name: pair[1]})
				if e := typed(t, err, "open", pawl.ErrInvalid); e.Hint == "" || !strings.Contains(err.Error(), want) {
					t.Errorf("want it to say %q: %v", want, err)
				}
				_, err = pawl.OpenReader(ctx, dir, "trust", &pawl.Options{Name: pair[1]})
				if e := typed(t, err, "open", pawl.ErrInvalid); e.Hint == "" || !strings.Contains(err.Error(), want) {
					t.Errorf("a Reader; want it to say %q: %v", want, err)
				}
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
			s, err := open(pair[0])
			if err != nil {
				t.Fatal(err)
			}
			if s.View().Version().Revision != 2 {
				t.Errorf("revision %d", s.View().Version().Revision)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCaseFoldedInspect: Inspect says what Open would do.
func TestCaseFoldedInspect(t *testing.T) {
	newRoot(t)
	var tap tap
	tap.FS = foldFS{vfs.OS(), t, new([]string)}
	s, err := pawl.Open(tap.context(), "dir", "trust", &pawl.Options{Name: "session"})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, change(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o := &pawl.Options{Name: "Session"}
	_, err = pawl.Open(tap.context(), "dir", "trust", o)
	typed(t, err, "open", pawl.ErrInvalid)
	r, err := pawl.Inspect(tap.context(), "dir", "trust", o)
	if err != nil || r.Verdict != "refuse" || !errors.Is(r.Err, pawl.ErrInvalid) {
		t.Errorf("Inspect says %q, %v, %v", r.Verdict, r.Err, err)
	}
}

// TestCaseFoldedHere is TestCaseFolded on a file system that does so itself, where that
// of temporary files is one.
func TestCaseFoldedHere(t *testing.T) {
	root := newRoot(t)
	if !folds(t, root) {
		t.Skip("the file system of temporary files tells names by case")
	}
	caseFolded(t, root)
}

// caseFolded wants a store to be used under its own spelling and no other, below a
// directory that finds it under each.
func caseFolded(t *testing.T, root string) {
	t.Helper()
	for i, pair := range pairs() {
		at := filepath.Join(root, strconv.Itoa(i))
		mkdir(t, at)
		dir, trust := filepath.Join(at, "dir"), filepath.Join(at, "trust")
		for revision := 1; revision <= 2; revision++ {
			s, err := pawl.Open(quick(), dir, trust, &pawl.Options{Name: pair[0]})
			if err != nil {
				t.Fatal(err)
			}
			commit(t, s, change(revision))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		before := testkit.Snapshot(t, at)
		// Found as the same file or not: it is not used, and no other is made.
		o := &pawl.Options{Name: pair[1]}
		_, opened := pawl.Open(quick(), dir, trust, o)
		_, read := pawl.OpenReader(quick(), dir, trust, o)
		r, err := pawl.Inspect(quick(), dir, trust, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{opened, read, r.Err} {
			if e := typed(t, err, "open", pawl.ErrInvalid); e.Hint == "" || !strings.Contains(err.Error(), fmt.Sprintf("%q but for case", pair[0])) {
				t.Errorf("%v", err)
			}
		}
		if diff := cmp.Diff(before, testkit.Snapshot(t, at)); diff != "" {
			t.Errorf("files changed (-before +after):\n%s", diff)
		}
	}
}

// ---- the one temp of the trust directory ----------------------------------------

const leftTemp = "session.tmp-0000000000000000"

// TestTrustTempLeft: what a killed process left of a trust file is swept by the next
// open, or used up by the next record, and no other name is touched.
func TestTrustTempLeft(t *testing.T) {
	for _, w := range schemaWays {
		t.Run(w.name, func(t *testing.T) {
			b := newBench(t)
			b.counts(t, &w.opts, w.first)
			temp := filepath.Join(b.trust, leftTemp)
			var stay []string
			for _, name := range []string{"session.tmp-0123456789abcdef", "other.tmp-0000000000000000", "session.tmp-00000000000000000", "session.tmp-000000000000000",
				"xsession.tmp-0000000000000000", "tmp-0000000000000000", "session.tmp-000000000000000g"} {
				stay = append(stay, filepath.Join(b.trust, name))
				write(t, lastItem(stay), "not ours")
			}
			t.Cleanup(func() {
				for _, path := range stay {
					os.Remove(path)
				}
			})
			before := testkit.Snapshot(t, stay...)
			gone := func(when string) {
				t.Helper()
				if _, err := os.Lstat(temp); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", when, err)
				}
				if diff := cmp.Diff(before, testkit.Snapshot(t, stay...)); diff != "" {
					t.Errorf("%s: files changed (-before +after):\n%s", when, diff)
				}
			}
			write(t, temp, "left by a killed process")
			if r, err := pawl.Inspect(quick(), b.dir, b.trust, nil); err != nil || r.Verdict != "clean" {
				t.Errorf("%+v, %v", r, err)
			}
			s := b.opened(t, &w.opts)
			if got := s.Recovery().Swept; !slices.Equal(got, []string{leftTemp}) {
				t.Errorf("swept %q", got)
			}
			gone("opened")
			write(t, temp, strings.Repeat("x", 2*trustSize))
			commit(t, s, counted(w.first+1))
			gone("committed")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			write(t, temp, "")
			s = b.opened(t, &w.opts)
			if rec := s.Recovery(); !slices.Equal(rec.Swept, []string{leftTemp}) || s.View().Version().Revision != pawl.Revision(w.first+1) {
				t.Errorf("%+v", rec)
			}
			gone("opened again")
		})
	}
}

// TestTrustTempOfKilled: the temps of processes that were killed while they made a trust
// file, a new store's and one with an intent.
func TestTrustTempOfKilled(t *testing.T) {
	for _, w := range schemaWays {
		for _, n := range []int{0, 1} { // commits before
			t.Run(fmt.Sprintf("%s, %d", w.name, n), func(t *testing.T) {
				from := newBench(t)
				to := &bench{t, filepath.Join(filepath.Dir(from.dir), "left", "session"), filepath.Join(filepath.Dir(from.dir), "left", "trust"), "", ""}
				mkdir(t, filepath.Dir(to.dir))
				from.counts(t, &w.opts, n)
				copies := 0
				tap := &tap{before: func(op, path string) error {
					if op == "rename" && path == from.slots && copies == 0 {
						copyStore(t, from.dir, from.trust, to.dir, to.trust)
						copies++
					}
					return nil
				}}
				s, err := pawl.Open(tap.context(), from.dir, from.trust, &w.opts)
				if err != nil {
					t.Fatal(err)
				}
				commit(t, s, counted(n+1))
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if copies != 1 {
					t.Fatalf("%d copies", copies)
				}
				if got := testkit.Temps(t, to.trust); !slices.Equal(got, []string{filepath.Join(to.trust, leftTemp)}) {
					t.Fatalf("left %q", got)
				}
				s = to.opened(t, &w.opts)
				if rec := s.Recovery(); !slices.Equal(rec.Swept, []string{leftTemp}) || rec.Settled != pawl.SettledNothing || s.View().Version().Revision != pawl.Revision(n) {
					t.Errorf("revision %d: %+v", s.View().Version().Revision, rec)
				}
				commit(t, s, counted(n+1))
			})
		}
	}
	// A store whose trust file was being made has none: it is made now.
	root := newRoot(t)
	mkdir(t, "trust")
	write(t, filepath.Join("trust", leftTemp), strings.Repeat("x", trustSize))
	s, err := pawl.Open(quick(), "session", "trust", nil)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, change(1))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := testkit.Temps(t, root); got != nil {
		t.Errorf("left %q", got)
	}
}

// TestTrustTempNotOurs: what has the name of a temp and is no regular file was not made
// by pawl. It is never removed, neither swept nor used up (G8).
func TestTrustTempNotOurs(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, path string){
		"an empty directory":       func(t *testing.T, path string) { mkdir(t, path) },
		"a directory with a file":  func(t *testing.T, path string) { mkdir(t, path); write(t, filepath.Join(path, "file"), "not ours") },
		"a symlink":                func(t *testing.T, path string) { write(t, path+"-to", "not ours"); symlink(t, path+"-to", path) },
		"a symlink to nowhere":     func(t *testing.T, path string) { symlink(t, path+"-to", path) },
		"a symlink to a directory": func(t *testing.T, path string) { mkdir(t, path+"-to"); symlink(t, path+"-to", path) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.counts(t, nil, 1)
			temp := filepath.Join(b.trust, leftTemp)
			make(t, temp)
			t.Cleanup(func() { os.RemoveAll(temp) })
			before := testkit.Snapshot(t, temp, temp+"-to")
			s := b.opened(t, nil)
			if got := s.Recovery().Swept; got != nil {
				t.Errorf("swept %q", got)
			}
			// Whether the commit finds a way around it or not, it does not take it away.
			if _, err := s.Commit(t.Context(), counted(2)); err != nil {
				exactly(t, err, pawl.ErrNotCommitted)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, temp, temp+"-to")); diff != "" {
				t.Errorf("it was changed or removed (-before +after):\n%s", diff)
			}
		})
	}
}
