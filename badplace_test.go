package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// newRoot returns a directory for a test to make its places in, and makes it the
// working directory.
func newRoot(t *testing.T) string {
	t.Helper()
	inMemory(t)
	dir, _ := testkit.Dirs(t)
	root := filepath.Dir(dir)
	t.Chdir(root)
	return root
}

// unplaced wants Open and Inspect to fail with the given class, with nothing made and
// nothing changed below root.
func unplaced(t *testing.T, root, dir, trust string, opts *pawl.Options, want ...error) {
	t.Helper()
	before := testkit.Snapshot(t, root)
	for range 2 {
		s, err := pawl.Open(quick(), dir, trust, opts)
		if err == nil {
			s.Close()
			t.Fatalf("a store is opened in %q with its trust in %q", dir, trust)
		}
		misplaced(t, err, "open", want...)
	}
	// Inspect describes what there is to describe.
	switch r, err := pawl.Inspect(quick(), dir, trust, opts); {
	case err != nil:
		misplaced(t, err, "inspect", want...)
	case r.Verdict != "refuse":
		t.Errorf("Inspect says %q", r.Verdict)
	default:
		misplaced(t, r.Err, "open", want...)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// misplaced wants a typed error. Errors of the operating system have a hint where
// there is one to give.
func misplaced(t *testing.T, err error, op string, want ...error) {
	t.Helper()
	var e *pawl.Error
	if !errors.As(err, &e) || e.Op != op || e.Path == "" || e.Outcome != nil {
		t.Errorf("%#v; want a complete *pawl.Error", err)
		return
	}
	for _, w := range want {
		if w != nil && !errors.Is(err, w) {
			t.Errorf("%v; want: %v", err, w)
		}
	}
	if e.Kind == pawl.ErrInsecure && e.Hint == "" {
		t.Errorf("no hint: %v", err)
	}
}

// TestTrustApart: the trust directory is neither the store directory, nor inside nor
// above it, by whatever names.
func TestTrustApart(t *testing.T) {
	for _, tt := range []struct{ name, dir, trust string }{
		{"the same", "session", "session"},
		{"the same, with a slash", "session", "session/"},
		{"the same, the long way", "session", "./other/../session/."},
		{"inside", "session", "session/trust"},
		{"deep inside", "session", "session/a/b/c"},
		{"above", "trust/session", "trust"},
		{"high above", "trust/a/b/session", "trust"},
		{"the working directory, inside", ".", "trust"},
		{"the working directory, above", "session", "."},
		{"the root, above", "session", rootOf()},
		{"the same by a link", "session", "link-to-session"},
		{"inside by a link", "session", "link-to-session/trust"},
		{"above by a link", "trust/session", "link-to-trust"},
		{"above, the store by a link", "link-to-trust/session", "trust"},
		{"the same by a link to a link", "link-to-link", "session"},
	} {
		for _, there := range []bool{false, true} {
			t.Run(tt.name+map[bool]string{false: "", true: ", both there"}[there], func(t *testing.T) {
				root := newRoot(t)
				if strings.Contains(tt.name, "link") {
					mkdir(t, "session")
					mkdir(t, "trust")
					symlink(t, "session", "link-to-session")
					symlink(t, "link-to-session", "link-to-link")
					symlink(t, filepath.Join(root, "trust"), "link-to-trust")
				}
				if there {
					mkdir(t, filepath.FromSlash(tt.dir))
					mkdir(t, filepath.FromSlash(tt.trust))
				}
				unplaced(t, root, filepath.FromSlash(tt.dir), filepath.FromSlash(tt.trust), &pawl.Options{Name: "x"}, pawl.ErrInsecure)
			})
		}
	}
	t.Run("beside, with a name that begins alike", func(t *testing.T) {
		newRoot(t)
		for _, p := range [][2]string{{"session", "session-trust"}, {"a/session", "a/sess"}} {
			s, err := pawl.Open(quick(), filepath.FromSlash(p[0]), filepath.FromSlash(p[1]), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func rootOf() string {
	if runtime.GOOS == "windows" {
		return filepath.VolumeName(os.TempDir()) + `\`
	}
	return "/"
}

// TestArgumentsSwapped: the two directories of a store that was committed to, given
// the wrong way round.
func TestArgumentsSwapped(t *testing.T) {
	one, _, _ := histories(t)
	for _, m := range []moment{one.clean[3], one.old[4], one.new[4]} {
		for _, opts := range []*pawl.Options{nil, {Name: "session"}, {MustExist: true}} {
			b := newBench(t)
			b.lay(m)
			before := testkit.Snapshot(t, b.dir, b.trust)
			_, err := pawl.Open(quick(), b.trust, b.dir, opts)
			if e := typed(t, err, "open", pawl.ErrInsecure); !strings.Contains(e.Hint, "Swap") {
				t.Errorf("hint %q", e.Hint)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
		}
	}
}

// TestNotADirectory: a file where a directory should be, or on the way to one.
func TestNotADirectory(t *testing.T) {
	for _, tt := range []struct{ name, dir, trust string }{
		{"store", "file", "trust"},
		{"trust", "session", "file"},
		{"both", "file", "file2"},
		{"above the store", "file/session", "trust"},
		{"high above the trust", "session", "file/a/b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := newRoot(t)
			write(t, "file", "a file")
			write(t, "file2", "another")
			unplaced(t, root, filepath.FromSlash(tt.dir), filepath.FromSlash(tt.trust), nil, syscall.ENOTDIR)
		})
	}
	for _, tt := range []struct {
		name, to string
		want     error
	}{
		{"a link to nowhere", "nowhere", fs.ErrNotExist},
		{"a link to itself", "link", nil},
		{"a link to a file", "file", syscall.ENOTDIR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := newRoot(t)
			write(t, "file", "a file")
			symlink(t, tt.to, "link")
			unplaced(t, root, "link", "trust", nil, tt.want)
			unplaced(t, root, "session", "link", nil, tt.want)
			if tt.to != "file" {
				unplaced(t, root, filepath.Join("link", "session"), "trust", nil, tt.want)
			}
			// The class that says "make one" is not for a path that leads nowhere.
			if _, err := pawl.Open(quick(), "link", "trust", &pawl.Options{MustExist: true}); errors.Is(err, pawl.ErrNotExist) {
				t.Error(err)
			}
		})
	}
}

// TestParentsMade: what is missing on the way is made, for its owner alone. (That it
// is made durably is seen in the order of the calls, which another test pins.)
func TestParentsMade(t *testing.T) {
	root := newRoot(t)
	s, err := pawl.Open(quick(), filepath.Join("a", "b", "session"), filepath.Join("c", "d", "trust"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, path := range []string{"a", "a/b", "a/b/session", "c", "c/d", "c/d/trust"} {
		info, err := os.Stat(filepath.Join(root, filepath.FromSlash(path)))
		if err != nil {
			t.Error(err)
		} else if runtime.GOOS != "windows" && info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("%s: mode %v", path, info.Mode())
		}
	}
}

// TestParentsNotMade: where a store must exist, nothing is made on the way to it; and
// a store whose directory is gone is not made again.
func TestParentsNotMade(t *testing.T) {
	root := newRoot(t)
	before := testkit.Snapshot(t, root)
	_, err := pawl.Open(quick(), filepath.Join("a", "session"), filepath.Join("b", "trust"), &pawl.Options{MustExist: true})
	typed(t, err, "open", pawl.ErrNotExist, fs.ErrNotExist)
	if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	one, _, _ := histories(t)
	for _, m := range []moment{one.clean[3], one.old[4]} {
		b := newBench(t)
		b.lay(m)
		if err := os.RemoveAll(b.dir); err != nil {
			t.Fatal(err)
		}
		b.refused(nil, nil, pawl.ErrMissing)
	}
	t.Run("the trust directory is gone", func(t *testing.T) {
		b := newBench(t)
		b.lay(one.clean[3])
		if err := os.RemoveAll(b.trust); err != nil {
			t.Fatal(err)
		}
		b.refused(nil, nil, pawl.ErrUntrusted)
	})
}

// TestMovedStore: a store may be moved; the path in the trust file is for messages.
func TestMovedStore(t *testing.T) {
	one, _, _ := histories(t)
	b := newBench(t)
	b.lay(one.old[4])
	moved := filepath.Join(filepath.Dir(b.dir), "a place of its own")
	mkdir(t, moved)
	for _, p := range []*string{&b.dir, &b.trust} {
		to := filepath.Join(moved, filepath.Base(*p))
		if err := os.Rename(*p, to); err != nil {
			t.Fatal(err)
		}
		*p = to
	}
	b.opens(one.says[3])
}

// TestDirectorySwappedWhileOpen: a directory is held by its handle. When its path
// leads elsewhere, nothing is written here or there; when it is put back, the store
// goes on (R14).
func TestDirectorySwappedWhileOpen(t *testing.T) {
	for _, which := range []string{"store", "trust"} {
		for _, tt := range []struct {
			name string
			put  func(t *testing.T, path, aside, elsewhere string)
		}{
			{"gone", func(*testing.T, string, string, string) {}},
			{"a link to a copy", func(t *testing.T, path, aside, elsewhere string) {
				copyTree(t, aside, elsewhere)
				symlink(t, elsewhere, path)
			}},
			{"a link to itself, moved", func(t *testing.T, path, aside, elsewhere string) { symlink(t, aside, path) }},
			{"a link to nowhere", func(t *testing.T, path, aside, elsewhere string) { symlink(t, elsewhere, path) }},
			{"a copy", func(t *testing.T, path, aside, elsewhere string) { copyTree(t, aside, path) }},
			{"an empty directory", func(t *testing.T, path, aside, elsewhere string) { mkdir(t, path) }},
			{"a file", func(t *testing.T, path, aside, elsewhere string) { write(t, path, "a file") }},
		} {
			t.Run(which+" directory: "+tt.name, func(t *testing.T) {
				b, s := openBench(t, new(tap))
				path := b.dir
				if which == "trust" {
					path = b.trust
				}
				root := filepath.Dir(b.dir)
				aside, elsewhere := filepath.Join(root, "aside"), filepath.Join(root, "elsewhere")
				if err := os.Rename(path, aside); err != nil {
					t.Skipf("an open directory cannot be moved here: %v", err)
				}
				tt.put(t, path, aside, elsewhere)
				before := testkit.Snapshot(t, root)
				b.stale(s)
				if _, err := s.Recover(context.Background()); err != nil {
					t.Errorf("Recover of a store that is not in doubt: %v", err)
				}
				if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
					t.Errorf("files changed (-before +after):\n%s", diff)
				}
				if err := errors.Join(os.RemoveAll(path), os.Rename(aside, path)); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Commit(context.Background(), pawl.Change{ID: "again"}); err != nil {
					t.Errorf("with the directory back in place: %v", err)
				}
				want := dump(s.View())
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				b.opens(want)
			})
		}
	}
}

// TestDirectorySwappedWhileOpening: nor is a link followed that takes the place of a
// directory after its path was resolved.
func TestDirectorySwappedWhileOpening(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs symbolic links, which Wine only pretends to make")
	}
	one, _, _ := histories(t)
	for _, which := range []string{"store", "trust"} {
		t.Run(which, func(t *testing.T) {
			b := newBench(t)
			b.lay(one.old[4])
			path := b.dir
			if which == "trust" {
				path = b.trust
			}
			root := filepath.Dir(b.dir)
			elsewhere := filepath.Join(root, "elsewhere")
			copyTree(t, path, elsewhere)
			var before testkit.Tree
			tap := &tap{before: func(op, p string) error {
				if op == "opendir" && p == path && before == nil {
					if err := os.Rename(path, path+"-aside"); err != nil {
						t.Fatal(err)
					}
					symlink(t, elsewhere, path)
					before = testkit.Snapshot(t, elsewhere)
				}
				return nil
			}}
			s, err := pawl.Open(tap.context(), b.dir, b.trust, nil)
			if err == nil {
				s.Close()
				t.Error("opens through the link")
			} else if e := (*pawl.Error)(nil); !errors.As(err, &e) {
				t.Errorf("%T: %v", err, err)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, elsewhere)); diff != "" {
				t.Errorf("files changed at the end of the link (-before +after):\n%s", diff)
			}
		})
	}
}

// copyTree copies the files of a flat directory.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	mkdir(t, to)
	list, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		write(t, filepath.Join(to, e.Name()), string(read(t, filepath.Join(from, e.Name()))))
	}
}

// TestDirectoryNames: the base name of the store directory is the store's name unless
// Options has one, and then any name will do that the system takes.
func TestDirectoryNames(t *testing.T) {
	long := strings.Repeat("x", 255)
	windows := runtime.GOOS == "windows"
	for _, tt := range []struct {
		name, dir string
		plain     bool // it is a store name too
		posix     bool // Windows has no such name
	}{
		{"spaces", " a  store ", true, true},
		{"unicode", "会議 — été 🐢", true, false},
		{"not normalised", "e\u0301te\u0301", true, false},
		{"a leading dash", "-rf", true, false},
		{"a leading dot", ".session", true, false},
		{"three dots", "...", true, true},
		{"shell", "$(reboot);`x`'", true, false},
		{"quote and star", `"*?|<>`, true, true},
		{"percent", "%s%n%2e", true, false},
		{"suffix of a lock", "a.lock", true, false},
		{"suffix of a trust file", "a.trust", true, false},
		{"right to left", "\u202etxt.exe", true, false},
		{"as long as a name can be", long[:234], true, false},
		{"too long for the suffixes", long[:235], false, false},
		{"too long for the suffixes, as long as it gets", long, false, false},
		{"a newline", "a\nb", false, true},
		{"an escape", "\x1b[31mred", false, true},
		{"delete", "a\x7f", false, true},
		{"a control character above ASCII", "a\u0085b", false, false},
		{"not UTF-8", "a\xffb", false, true},
		{"a backslash", `a\b`, false, true},
	} {
		if windows && tt.posix {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			root := newRoot(t)
			if err := os.Mkdir(tt.dir, 0o700); err != nil {
				t.Skipf("there can be no such directory here: %v", err)
			}
			if err := os.Remove(tt.dir); err != nil {
				t.Fatal(err)
			}
			opts := []*pawl.Options{nil, {Name: "plain"}}
			if !tt.plain {
				unplaced(t, root, tt.dir, "trust", nil, pawl.ErrInvalid, fs.ErrInvalid)
				opts = opts[1:]
			}
			for i, o := range opts {
				dir := filepath.Join(root, strings.Repeat("p", i+1), tt.dir)
				s, err := pawl.Open(quick(), dir, "trust", o)
				if err != nil {
					t.Fatal(err)
				}
				receipt, err := s.Commit(context.Background(), change(1))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if s, err = pawl.Open(quick(), dir, "trust", o); err != nil {
					t.Fatal(err)
				}
				if ok, err := s.View().Contains(receipt); !ok || err != nil {
					t.Errorf("the commit is gone: %v", err)
				}
				// R22: the name reaches a terminal quoted.
				if _, err := pawl.Open(quick(), dir, "trust", o); !errors.Is(err, pawl.ErrLocked) || strings.ContainsAny(err.Error(), "\n\x1b\x7f\u0085\u202e") || !utf8.ValidString(err.Error()) {
					t.Errorf("%q", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				name := tt.dir
				if o != nil {
					name = o.Name
				}
				if _, err := os.Stat(filepath.Join(root, "trust", name+".trust")); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestDeepPath: the path that the trust file keeps, for messages, is cut to what there
// is room for, and each record still reads back.
func TestDeepPath(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no paths of that length")
	}
	for _, element := range []string{strings.Repeat("x", 250), strings.Repeat("é", 120), strings.Repeat("\U0001f422", 60), strings.Repeat("\u202e", 80)} {
		root := newRoot(t)
		dir := root
		for range 6 {
			dir = filepath.Join(dir, element)
		}
		for revision := 1; revision <= 2; revision++ {
			s, err := pawl.Open(quick(), dir, "trust", &pawl.Options{Name: "deep"})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := s.Commit(context.Background(), pawl.Change{ID: fmt.Sprint(revision, strings.Repeat("\ufeff", 80))}); err != nil || r.Revision != pawl.Revision(revision) {
				t.Errorf("%v, %v", r, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		r, err := pawl.Inspect(quick(), dir, "trust", &pawl.Options{Name: "deep"})
		if err != nil || r.Verdict != "clean" || r.CreatedAt == "" || r.Broken != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// TestNamesInOneTrustDirectory: under names of their own, even ones that look like
// each other's files, and none touches what is another's (contract 8; 13).
func TestNamesInOneTrustDirectory(t *testing.T) {
	newRoot(t)
	names := []string{"a", "a.lock", "a.trust", "a.audit", "a.tmp-0123456789abcdef", "A-", "b"}
	open := func(dir, name string) (*pawl.Store, error) {
		return pawl.Open(quick(), dir, "trust", &pawl.Options{Name: name})
	}
	for i, name := range names {
		s, err := open(fmt.Sprint("dir-", i), name)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Commit(context.Background(), pawl.Change{Put: map[string][]byte{"name": []byte(name)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range names {
		if _, err := open(fmt.Sprint("dir-", i), name); !errors.Is(err, pawl.ErrLocked) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Two store directories under one name: the second does not get the first one's.
	if _, err := open("elsewhere", "a"); !errors.Is(err, pawl.ErrLocked) {
		t.Errorf("while it is open: %v", err)
	}
}

// TestTwoDirectoriesOneName: the name in the trust directory is taken by another
// store, and neither loses anything.
func TestTwoDirectoriesOneName(t *testing.T) {
	root := newRoot(t)
	for _, p := range []string{"one", "two"} {
		dir := filepath.Join(p, "session")
		s, err := pawl.Open(quick(), dir, "trust-"+p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(context.Background(), change(1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	before := testkit.Snapshot(t, root)
	_, err := pawl.Open(quick(), filepath.Join("two", "session"), "trust-one", nil)
	typed(t, err, "open", pawl.ErrForeign)
	_, err = pawl.Open(quick(), filepath.Join("three", "session"), "trust-one", nil)
	typed(t, err, "open", pawl.ErrMissing)
	_, err = pawl.Open(quick(), filepath.Join("one", "session"), "trust-two", &pawl.Options{Name: "other"})
	typed(t, err, "open", pawl.ErrUntrusted)
	if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// TestOneDirectoryTwoNames: two trust files for one store directory, while neither
// has committed: the store's own lock keeps them apart, and the first commit decides.
func TestOneDirectoryTwoNames(t *testing.T) {
	newRoot(t)
	open := func(name string) (*pawl.Store, error) {
		return pawl.Open(quick(), "session", "trust", &pawl.Options{Name: name})
	}
	a, err := open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	_, err = open("b")
	typed(t, err, "open", pawl.ErrLocked)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := open("b")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Commit(context.Background(), change(1)); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = open("a")
	typed(t, err, "open", pawl.ErrForeign)
	_, err = open("c")
	typed(t, err, "open", pawl.ErrUntrusted)
}

// TestAllowanceIsReported: what is allowed is logged when it is used, and only then.
func TestAllowanceIsReported(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say nothing about who may write on Windows")
	}
	newRoot(t)
	mkdir(t, "trust")
	for _, mode := range []fs.FileMode{0o700, 0o777} {
		if err := os.Chmod("trust", mode); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		s, err := pawl.Open(quick(), "session", "trust", &pawl.Options{Allow: pawl.SharedTrust, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if got, want := strings.Contains(log.String(), "WARN"), mode == 0o777; got != want {
			t.Errorf("mode %v: logged %q", mode, &log)
		}
	}
}

// TestFamiliarPaths: a path is taken as the system takes it.
func TestFamiliarPaths(t *testing.T) {
	root := newRoot(t)
	s, err := pawl.Open(quick(), "session", "trust", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	paths := []string{"session", "./session", "session/", "session/.", "trust/../session", filepath.Join(root, "session")}
	if err := os.Symlink("session", "link"); err == nil {
		if _, err := os.Lstat("link"); err == nil {
			paths = append(paths, "link")
		}
	}
	for _, path := range paths {
		if _, err := pawl.Open(quick(), filepath.FromSlash(path), "trust", nil); !errors.Is(err, pawl.ErrLocked) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// The working directory is of no account once the store is open.
	mkdir(t, "other")
	t.Chdir("other")
	if _, err := s.Commit(context.Background(), change(1)); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir("."); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if !slices.Equal(slices.Collect(s.View().Parts()), []string{"state"}) {
		t.Error("the commit is not there")
	}
}
