package simfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// class reduces an error to what callers may tell apart.
func class(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{{vfs.ErrNotRegular, "not regular"}, {fs.ErrNotExist, "not exist"}, {fs.ErrExist, "exist"}, {fs.ErrClosed, "closed"},
		{syscall.ENOTDIR, "not a directory"}, {io.EOF, "EOF"}} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	if err != nil {
		return "other"
	}
	return "ok"
}

// listing describes what programs see in a directory.
func listing(d vfs.Dir) (string, error) {
	names, err := d.Names()
	s := ""
	for _, name := range names {
		info, err := d.Lstat(name)
		if err != nil {
			return s, err
		}
		if info.Mode.IsDir() {
			s += name + "/\n"
			continue
		}
		f, err := d.Open(name)
		if err != nil {
			return s, err
		}
		b := make([]byte, info.Size+1)
		n, err := f.ReadAt(b, 0)
		f.Close()
		s += fmt.Sprintf("%s %v %d links %d %q %s\n", name, info.Mode, info.Size, info.Links, b[:n], class(err))
	}
	return s, err
}

// TestLiveViewEqualsOS runs the same calls on the simulated machine and on the
// real one: every answer, and what can be seen after each, is the same.
func TestLiveViewEqualsOS(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("compares with POSIX")
	}
	umaskFree := t.TempDir()
	for seed := range uint64(60) {
		real := filepath.Join(umaskFree, fmt.Sprint(seed))
		for _, d := range []string{"a", "b"} {
			if err := os.MkdirAll(filepath.Join(real, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		sys := vfs.OS()
		resolved, err := sys.Resolve(real)
		if err != nil {
			t.Fatal(err)
		}
		ra, rb := must(sys.OpenDir(filepath.Join(resolved, "a")))(t), must(sys.OpenDir(filepath.Join(resolved, "b")))(t)
		p := New(PosixMinimal, "/a", "/b").Start()
		sa, sb := must(p.OpenDir("/a"))(t), must(p.OpenDir("/b"))(t)
		randomCalls(seed, 60, func(c randomCall) {
			rs, rerr := c.run(ra, rb)
			ss, serr := c.run(sa, sb)
			if rs != ss || class(rerr) != class(serr) {
				t.Fatalf("seed %d, %v:\nos    %q, %v (%s)\nsimfs %q, %v (%s)", seed, c, rs, rerr, class(rerr), ss, serr, class(serr))
			}
			for _, pair := range [][2]vfs.Dir{{ra, sa}, {rb, sb}} {
				r, s := must(listing(pair[0]))(t), must(listing(pair[1]))(t)
				if r != s {
					t.Fatalf("seed %d, after %v:\nos\n%ssimfs\n%s", seed, c, r, s)
				}
			}
		})
		for _, d := range []vfs.Dir{ra, rb, sa, sb} {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if p.Open() != 0 {
			t.Errorf("seed %d: %d handles left open", seed, p.Open())
		}
	}
}

// TestLiveViewScript checks what random calls seldom meet.
func TestLiveViewScript(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("compares with POSIX")
	}
	real := must(vfs.OS().Resolve(t.TempDir()))(t)
	if err := os.Mkdir(filepath.Join(real, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(sys vfs.FS, a string) (said []string) {
		say := func(what string, err error) { said = append(said, what+": "+class(err)) }
		d := must(sys.OpenDir(a))(t)
		defer d.Close()
		_, err := sys.OpenDir(filepath.Join(a, "none"))
		say("open no directory", err)
		_, err = sys.Lstat(filepath.Join(a, "none"))
		say("lstat nothing", err)
		f := must(d.Create("f", 0o600))(t)
		_, err = d.Create("f", 0o600)
		say("create again", err)
		_, err = sys.OpenDir(filepath.Join(a, "f"))
		say("open a file as directory", err)
		_, err = d.OpenDir("f")
		say("open a member as directory", err)
		_, err = sys.Lstat(filepath.Join(a, "f", "g"))
		say("lstat below a file", err)
		say("mkdir over a file", d.Mkdir("f", 0o700))
		say("mkdir", d.Mkdir("sub", 0o700))
		_, err = d.Open("sub")
		say("open a directory", err)
		_, err = d.OpenRW("sub")
		say("open a directory for writing", err)
		_, err = d.OpenLock("sub")
		say("open a directory as lock", err)
		sub := must(d.OpenDir("sub"))(t)
		g := must(sub.Create("g", 0o600))(t)
		say("remove a full directory", d.Remove("sub"))
		say("rename a file over a directory", d.Rename("f", "sub"))
		say("rename a directory over a file", d.Rename("sub", "f"))
		say("link a directory", d.Link("sub", "sub2"))
		say("link over", d.Link("f", "sub"))
		say("rename over itself", d.Rename("f", "f"))
		say("remove g", sub.Remove("g"))
		_, err = g.WriteAt([]byte("still there"), 3)
		say("write without a name", err)
		b := make([]byte, 20)
		n, err := g.ReadAt(b, 0)
		say(fmt.Sprintf("read %q", b[:n]), err)
		n, err = g.ReadAt(b[:4], 2)
		say(fmt.Sprintf("read %q", b[:n]), err)
		_, err = g.ReadAt(b, 100)
		say("read beyond the end", err)
		say("remove sub", d.Remove("sub"))
		_, err = sub.Create("h", 0o600)
		say("create in a removed directory", err)
		say("chmod", f.Chmod(0o640))
		info, err := d.Lstat("f")
		say(fmt.Sprintf("mode %v size %d", info.Mode, info.Size), err)
		open := must(f.Stat())(t)
		say(fmt.Sprintf("same %v", open.Same(info)), nil)
		say("rename", d.Rename("f", "e"))
		f2 := must(d.Create("f", 0o600))(t)
		say(fmt.Sprintf("same as the new one %v", must(f2.Stat())(t).Same(must(f.Stat())(t))), nil)
		for _, c := range []io.Closer{f, f2, g, sub} {
			say("close", c.Close())
		}
		say("close again", f.Close())
		say("remove nothing", d.Remove("none"))
		say("rename nothing", d.Rename("none", "e"))
		say("link nothing", d.Link("none", "z"))
		one, two := must(d.OpenLock("lock"))(t), must(d.OpenLock("lock"))(t)
		for _, l := range []vfs.File{one, two, one} {
			got, err := l.TryLock()
			say(fmt.Sprintf("lock %v", got), err)
		}
		say("close the holder", one.Close())
		got, err := two.TryLock()
		say(fmt.Sprintf("lock %v", got), err)
		say("close", two.Close())
		say("sync", d.Sync())
		return said
	}
	want := run(vfs.OS(), filepath.Join(real, "a"))
	got := run(New(PosixMinimal, "/a").Start(), "/a")
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("simfs says %q, os says %q", got[i], want[i])
		}
	}
}

func TestContextCarriesMachine(t *testing.T) {
	p := New(PosixMinimal, "/a").Start()
	if vfs.FromContext(vfs.NewContext(context.Background(), p)) != vfs.FS(p) {
		t.Error("the context does not carry the process")
	}
}
