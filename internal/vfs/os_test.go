//go:build unix || windows

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// open opens path as a Dir for the length of the test.
func open(t *testing.T, path string) *osDir {
	t.Helper()
	d, err := OS().OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.(*osDir)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, f File) string {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, info.Size)
	if _, err := f.ReadAt(p, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(p)
}

// symlink makes a symbolic link, or skips the test where there are none.
func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Skip("no symbolic links:", err)
	}
	if fi, err := os.Lstat(path); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Skip("no symbolic links: os.Symlink succeeds and makes none, as under Wine")
	}
}

func mustClose(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// refused holds an error against the rules for all of them: it matches want,
// and names the operation and the whole path.
func refused(t *testing.T, err, want error, op, path string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s %s succeeded; want: %v", op, path, want)
	case !errors.Is(err, want):
		t.Errorf("%s %s: %v; want: %v", op, path, err, want)
	case !strings.HasPrefix(err.Error(), op+" ") || !strings.Contains(err.Error(), path):
		t.Errorf("%q does not name the operation %q and the path %q", err, op, path)
	}
}

func TestOpenDirPath(t *testing.T) {
	tmp := t.TempDir()
	file := filepath.Join(tmp, "file")
	write(t, file, "")
	for _, tt := range []struct {
		path      string
		want, not error
	}{
		{filepath.Join(tmp, "missing"), fs.ErrNotExist, syscall.ENOTDIR},
		{filepath.Join(tmp, "missing", "below"), fs.ErrNotExist, syscall.ENOTDIR},
		{file, syscall.ENOTDIR, fs.ErrNotExist},
		{"", fs.ErrInvalid, fs.ErrNotExist},
		{"relative", fs.ErrInvalid, fs.ErrNotExist},
	} {
		_, err := OS().OpenDir(tt.path)
		refused(t, err, tt.want, "open directory", tt.path)
		if errors.Is(err, tt.not) {
			t.Errorf("%q also matches %q", err, tt.not)
		}
	}
	if d := open(t, tmp); d.Path() != tmp {
		t.Errorf("Path() = %q, want %q", d.Path(), tmp)
	}
}

func TestDirOpenDir(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	if err := d.Mkdir("sub", 0o700); err != nil {
		t.Fatal(err)
	}
	refused(t, d.Mkdir("sub", 0o700), fs.ErrExist, "mkdir", filepath.Join(tmp, "sub"))
	write(t, filepath.Join(tmp, "file"), "")

	sub, err := d.OpenDir("sub")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, sub)
	if want := filepath.Join(tmp, "sub"); sub.Path() != want {
		t.Errorf("Path() = %q, want %q", sub.Path(), want)
	}
	held, err := sub.Stat()
	named, lerr := d.Lstat("sub")
	if err != nil || lerr != nil || !held.Same(named) || !held.Mode.IsDir() {
		t.Errorf("Stat: %v, %v; Lstat: %v, %v; want the same directory", held, err, named, lerr)
	}

	_, err = d.OpenDir("missing")
	refused(t, err, fs.ErrNotExist, "open directory", filepath.Join(tmp, "missing"))
	_, err = d.OpenDir("file")
	refused(t, err, syscall.ENOTDIR, "open directory", filepath.Join(tmp, "file"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q also matches %q", err, fs.ErrNotExist)
	}

	symlink(t, "sub", filepath.Join(tmp, "link"))
	_, err = d.OpenDir("link")
	refused(t, err, syscall.ENOTDIR, "open directory", filepath.Join(tmp, "link"))
	if err != nil && !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("%q does not say that it is a symbolic link", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	if err := d.Mkdir("directory", 0o700); err != nil {
		t.Fatal(err)
	}
	openers := map[string]func(string) (File, error){"Open": d.Open, "OpenRW": d.OpenRW, "OpenLock": d.OpenLock}
	for method, open := range openers {
		op := "open"
		if method == "OpenLock" {
			op = "open lock"
		} else {
			_, err := open("missing")
			refused(t, err, fs.ErrNotExist, op, filepath.Join(tmp, "missing"))
		}
		_, err := open("directory")
		refused(t, err, ErrNotRegular, op, filepath.Join(tmp, "directory"))
		if err != nil && !strings.Contains(err.Error(), "it is a directory") {
			t.Errorf("%s: %q does not say what is there", method, err)
		}
	}
	t.Run("symbolic link", func(t *testing.T) {
		write(t, filepath.Join(tmp, "target"), "")
		for name, target := range map[string]string{"link": "target", "dangling": "nothing"} {
			symlink(t, target, filepath.Join(tmp, name))
			for method, open := range openers {
				_, err := open(name)
				if !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), "it is a symbolic link") {
					t.Errorf("%s(%q): %v; want: %v", method, name, err, ErrNotRegular)
				}
			}
			_, err := d.Create(name, 0o600)
			refused(t, err, fs.ErrExist, "create", filepath.Join(tmp, name))
		}
		if _, err := d.Lstat("nothing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the target of a dangling link: %v; want: %v", err, fs.ErrNotExist)
		}
	})
}

func TestBareNames(t *testing.T) {
	d := open(t, t.TempDir())
	bad := []string{"", ".", "..", "a/b/c", "/a", "a/", "../a", "./a", "a/..", "a\x00b"}
	good := []string{"a", "a.b", ".a", "a b", "...a"}
	if runtime.GOOS == "windows" {
		bad = append(bad, `a\b`, `C:`, `a:b`, `a:$DATA`, "a.", "a ", "...", "NUL", "com1", "a?", "a*")
	} else {
		good = append(good, `a\b`, "a.", "a:b", "...")
	}
	for _, name := range good {
		if !bareName(name) {
			t.Errorf("bareName(%q) = false", name)
		}
	}
	for _, name := range bad {
		_, lstat := d.Lstat(name)
		_, opendir := d.OpenDir(name)
		_, openr := d.Open(name)
		_, openrw := d.OpenRW(name)
		_, create := d.Create(name, 0o600)
		_, lock := d.OpenLock(name)
		for op, err := range map[string]error{
			"Lstat": lstat, "OpenDir": opendir, "Open": openr, "OpenRW": openrw, "Create": create, "OpenLock": lock,
			"Mkdir": d.Mkdir(name, 0o700), "Remove": d.Remove(name),
			"Rename from": d.Rename(name, "x"), "Rename to": d.Rename("x", name),
			"Link from": d.Link(name, "x"), "Link to": d.Link("x", name),
		} {
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s %q: %v; want: %v", op, name, err, fs.ErrInvalid)
			}
		}
	}
	_, create := d.Create("a/b", 0o600)
	for op, err := range map[string]error{
		"Create": create, "Mkdir": d.Mkdir("a/b", 0o700), "Remove": d.Remove("a/b"), "Rename from": d.Rename("a/b", "x"),
	} {
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s of a name below: %v; want: %v", op, err, fs.ErrInvalid)
		}
	}
	if names, err := d.Names(); err != nil || len(names) != 0 {
		t.Errorf("Names() = %q, %v; want none", names, err)
	}
}

// TestNamesBelow: Link and Rename reach one directory down, never through a link that
// leads out, and Link replaces nothing there either.
func TestNamesBelow(t *testing.T) {
	tmp, out := t.TempDir(), t.TempDir()
	d := open(t, tmp)
	for _, name := range []string{"a", "b"} {
		if err := d.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "a", "x"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(tmp, "y"), []byte("y"), 0o600), d.Link("a/x", "b/x"), d.Link("y", "b/y")); err != nil {
		t.Fatal(err)
	}
	if err := d.Link("y", "b/x"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a link over a name that is there: %v; want: %v", err, fs.ErrExist)
	}
	if err := d.Link("y", "c/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link into no directory: %v; want: %v", err, fs.ErrNotExist)
	}
	if err := d.Rename("y", "a/y"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a/x": "x", "b/x": "x", "b/y": "y", "a/y": "y"} {
		if b, err := os.ReadFile(filepath.Join(tmp, filepath.FromSlash(name))); string(b) != want || err != nil {
			t.Errorf("%s holds %q, %v; want %q", name, b, err, want)
		}
	}
	if err := os.Symlink(out, filepath.Join(tmp, "leads out")); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
	if errL, errR := d.Link("a/x", "leads out/x"), d.Rename("b", "leads out/b"); errL == nil || errR == nil {
		t.Errorf("through a link that leads out: link %v, rename %v", errL, errR)
	}
}

func TestCreateReadWrite(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	f, err := d.Create("file", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("hello"), 3); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.SyncData(), f.Sync(), f.Chgrp(os.Getgid())); err != nil {
		t.Error(err)
	}
	if got := read(t, f); got != "\x00\x00\x00hello" {
		t.Errorf("read %q", got)
	}
	if n, err := f.ReadAt(make([]byte, 4), 6); n != 2 || err != io.EOF {
		t.Errorf("ReadAt across the end = %d, %v; want 2, EOF", n, err)
	}
	mustClose(t, f)

	_, err = d.Create("file", 0o600)
	refused(t, err, fs.ErrExist, "create", filepath.Join(tmp, "file"))

	r, err := d.Open("file")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, r)
	if n, err := r.WriteAt([]byte("x"), 0); err == nil {
		t.Errorf("wrote %d bytes through a file opened for reading", n)
	}
	w, err := d.OpenRW("file")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, w)
	if _, err := w.WriteAt([]byte("HEY"), 0); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r); got != "HEYhello" {
		t.Errorf("read %q after a write in place", got)
	}
}

func TestNames(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	for _, name := range []string{"c", "a", "b"} {
		write(t, filepath.Join(tmp, name), "")
	}
	for range 2 { // the second time from the start again
		if names, err := d.Names(); err != nil || !slices.Equal(names, []string{"a", "b", "c"}) {
			t.Errorf("Names() = %q, %v", names, err)
		}
	}
	if err := d.Remove("b"); err != nil {
		t.Fatal(err)
	}
	refused(t, d.Remove("b"), fs.ErrNotExist, "remove", filepath.Join(tmp, "b"))
	if names, err := d.Names(); err != nil || !slices.Equal(names, []string{"a", "c"}) {
		t.Errorf("Names() = %q, %v after Remove", names, err)
	}
}

// Identity goes with the file: under a new name it is the same, and what took
// its old name is another.
func TestIdentity(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	write(t, filepath.Join(tmp, "bundle"), "old")
	write(t, filepath.Join(tmp, "temp"), "new")
	stat := func(name string) Info {
		t.Helper()
		i, err := d.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	before, replacement := stat("bundle"), stat("temp")
	if before.Same(replacement) || !before.Same(stat("bundle")) {
		t.Fatal("identity is wrong before anything has happened")
	}
	if err := d.Rename("temp", "bundle"); err != nil {
		t.Fatal(err)
	}
	if now := stat("bundle"); !now.Same(replacement) || now.Same(before) {
		t.Error("after a rename over it, the name is not the file that was renamed")
	}
	if _, err := d.Lstat("temp"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name: %v; want: %v", err, fs.ErrNotExist)
	}
	if whole, err := OS().Lstat(filepath.Join(tmp, "bundle")); err != nil || !whole.Same(replacement) {
		t.Errorf("Lstat by path: %v, %v; want what the directory has", whole, err)
	}

	err := d.Rename("temp", "bundle")
	refused(t, err, fs.ErrNotExist, "rename", filepath.Join(tmp, "temp"))
	if err != nil && !strings.Contains(err.Error(), filepath.Join(tmp, "bundle")) {
		t.Errorf("%q does not name the new path", err)
	}
	if !stat("bundle").Same(replacement) {
		t.Error("a failed rename changed its target")
	}
}

// A reader does not keep a writer from replacing the file, and keeps what it has.
func TestRenameOverOpen(t *testing.T) {
	if isWine() {
		t.Skip("Wine has no POSIX-semantics rename: it replaces no open file")
	}
	tmp := t.TempDir()
	d := open(t, tmp)
	write(t, filepath.Join(tmp, "bundle"), "old")
	write(t, filepath.Join(tmp, "temp"), "new")
	old, err := d.Open("bundle")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, old)
	if err := d.Rename("temp", "bundle"); err != nil {
		t.Fatal(err)
	}
	held, err := old.Stat()
	named, lerr := d.Lstat("bundle")
	if err != nil || lerr != nil || held.Same(named) || read(t, old) != "old" {
		t.Errorf("held: %v, %v; named: %v, %v; want the old file and the new one", held, err, named, lerr)
	}
}

func TestRenameDirectory(t *testing.T) {
	d := open(t, t.TempDir())
	if err := errors.Join(d.Mkdir("a", 0o700), d.Rename("a", "b")); err != nil {
		t.Fatal(err)
	}
	if i, err := d.Lstat("b"); err != nil || !i.Mode.IsDir() {
		t.Errorf("Lstat: %v, %v; want a directory", i, err)
	}
}

func TestLink(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	write(t, filepath.Join(tmp, "a"), "a")
	write(t, filepath.Join(tmp, "b"), "b")
	err := d.Link("a", "c")
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no hard links here:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := d.Lstat("a")
	c, cerr := d.Lstat("c")
	if err != nil || cerr != nil || !a.Same(c) {
		t.Errorf("%v, %v and %v, %v; want the same file", a, err, c, cerr)
	}
	if a.Links != 0 && a.Links != 2 {
		t.Errorf("Links = %d, want 2", a.Links)
	}

	err = d.Link("a", "b")
	refused(t, err, fs.ErrExist, "link", filepath.Join(tmp, "a"))
	if errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%q matches %q", err, errors.ErrUnsupported)
	}
	b, err := d.Open("b")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, b)
	if got := read(t, b); got != "b" {
		t.Errorf("a failed Link replaced its target: %q", got)
	}
	refused(t, d.Link("missing", "d"), fs.ErrNotExist, "link", filepath.Join(tmp, "missing"))
}

func TestPathLstat(t *testing.T) {
	tmp := t.TempDir()
	write(t, filepath.Join(tmp, "file"), "four")
	if i, err := OS().Lstat(filepath.Join(tmp, "file")); err != nil || i.Size != 4 || !i.Mode.IsRegular() {
		t.Errorf("Lstat of a file: %+v, %v", i, err)
	}
	top := filepath.VolumeName(tmp) + string(filepath.Separator)
	if i, err := OS().Lstat(top); err != nil || !i.Mode.IsDir() {
		t.Errorf("Lstat of %s: %+v, %v", top, i, err)
	}
	for _, path := range []string{filepath.Join(tmp, "missing"), filepath.Join(tmp, "missing", "below")} {
		_, err := OS().Lstat(path)
		refused(t, err, fs.ErrNotExist, "lstat", path)
	}
	symlink(t, "file", filepath.Join(tmp, "link"))
	if i, err := OS().Lstat(filepath.Join(tmp, "link")); err != nil || i.Mode&fs.ModeSymlink == 0 {
		t.Errorf("Lstat of a link: %+v, %v", i, err)
	}
}

func TestDirSync(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	write(t, filepath.Join(tmp, "file"), "")
	for range 2 {
		err := d.Sync()
		if errors.Is(err, ErrNoDirSync) {
			t.Skip("this platform or file system cannot:", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestClosed(t *testing.T) {
	tmp := t.TempDir()
	write(t, filepath.Join(tmp, "file"), "")
	d := open(t, tmp)
	f, err := d.OpenLock("file")
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, f)
	_, err = f.TryLock()
	refused(t, err, os.ErrClosed, "lock", filepath.Join(tmp, "file"))
	refused(t, f.Sync(), os.ErrClosed, "sync", filepath.Join(tmp, "file"))
	refused(t, f.SyncData(), os.ErrClosed, "sync data", filepath.Join(tmp, "file"))

	mustClose(t, d)
	err = d.Sync()
	refused(t, err, os.ErrClosed, "sync directory", tmp)
	if errors.Is(err, ErrNoDirSync) {
		t.Errorf("%q also matches %q", err, ErrNoDirSync)
	}
	_, err = d.Open("file")
	refused(t, err, os.ErrClosed, "open", filepath.Join(tmp, "file"))
	_, err = d.Names()
	refused(t, err, os.ErrClosed, "list", tmp)
}

// Many openers of a lock file that is not there yet get one file.
func TestOpenLockTogether(t *testing.T) {
	d := open(t, t.TempDir())
	files := make([]File, 20)
	var all sync.WaitGroup
	for i := range files {
		all.Go(func() {
			f, err := d.OpenLock("lock")
			if err != nil {
				t.Error(err)
				return
			}
			files[i] = f
		})
	}
	all.Wait()
	want, err := d.Lstat("lock")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f == nil {
			continue
		}
		if got, err := f.Stat(); err != nil || !got.Same(want) {
			t.Errorf("opened %v, %v; want the file that has the name", got, err)
		}
		mustClose(t, f)
	}
}

func TestSystem(t *testing.T) {
	system, err := open(t, t.TempDir()).System()
	if err != nil {
		t.Fatal(err)
	}
	if system.Type == "" || system.Class < Probed || system.Class > Network {
		t.Errorf("System() = %+v", system)
	}
	t.Logf("%+v", system)
}

// Identify tells the same file as Lstat, whichever of the two a caller has.
func TestIdentify(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := OS().OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.Open("file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	opened, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	listed, err := d.Lstat("file")
	if err != nil {
		t.Fatal(err)
	}
	is, err := d.Identify("file")
	if err != nil {
		t.Fatal(err)
	}
	if !is.Same(opened) || !opened.Same(is) || !is.Same(listed) || !is.Same(is) || is.Size != 5 || !is.Mode.IsRegular() {
		t.Errorf("Identify says %+v, Stat %+v, Lstat %+v", is, opened, listed)
	}
	if simulated := (Info{Dev: 1 << 63, Ino: is.Ino}); simulated.Same(is) || is.Same(simulated) {
		t.Error("a simulated file is a real one")
	}
	other, err := d.Identify("other")
	if err != nil || other.Same(is) || other.Same(opened) {
		t.Errorf("another file: %+v, %v", other, err)
	}
	if dir, err := d.Identify("dir"); err != nil || dir.Mode.IsRegular() {
		t.Errorf("a directory: %+v, %v", dir, err)
	}
	if _, err := d.Identify("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := d.Identify("../x"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a path: %v", err)
	}
}
