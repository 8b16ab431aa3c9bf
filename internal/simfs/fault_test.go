package simfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// failNext makes the next call of an op fail once.
func (s *script) failNext(op Op, fault Fault) {
	fault.Err = syscall.EIO
	done := false
	s.p.SetHook(func(c *Call) Fault {
		if c.Op != op || done || c.Part > 0 {
			return Fault{}
		}
		done = true
		return fault
	})
}

func (s *script) content(name string) string {
	s.t.Helper()
	f := must(s.a.Open(name))(s.t)
	defer f.Close()
	b := make([]byte, must(f.Stat())(s.t).Size)
	if len(b) > 0 {
		must(f.ReadAt(b, 0))(s.t)
	}
	return string(b)
}

func (s *script) wantDisks(what string, n int) {
	s.t.Helper()
	if got := disks(s.t, s.m, CutOptions{}); len(got) != n {
		s.t.Errorf("%s: %d disks, want %d\n%s", what, len(got), n, strings.Join(got, "\n"))
	}
}

// TestFailedSyncLosesAtoms: after a failed sync a later one says that all is
// well and forces nothing; only a rewrite does.
func TestFailedSyncLosesAtoms(t *testing.T) {
	for _, revert := range []bool{false, true} {
		s := newScript(t, PosixMinimal)
		f := must(s.a.OpenRW("data"))(t)
		s.write(f, "new", 0)
		s.failNext(OpSync, Fault{Revert: revert})
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
		want := "new"
		if revert {
			want = "old"
		}
		if got := s.content("data"); got != want {
			t.Errorf("revert=%v: the cache shows %q, want %q", revert, got, want)
		}
		s.ok(f.Sync())
		s.wantDisks("after a second sync", 3) // old, torn, new
		s.write(f, "new", 0)
		s.wantDisks("after a rewrite", 4) // and spoilt
		s.ok(f.Sync())
		s.wantDisks("after its sync", 1)
	}
}

func TestFailedSyncLosesSize(t *testing.T) {
	s := newScript(t, PosixMinimal)
	f := must(s.a.OpenRW("data"))(t)
	s.write(f, "longer", 0)
	s.failNext(OpSyncData, Fault{Revert: true})
	if err := f.SyncData(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v", err)
	}
	if got := s.content("data"); got != "old" {
		t.Errorf("the cache shows %q", got)
	}
	s.ok(f.SyncData())
	s.wantDisks("lost growth", 5) // of size 3: old, and the torn or whole new one; of size 6: all three
	s.write(f, "longer", 0)
	s.ok(f.SyncData())
	s.wantDisks("written again", 1)
}

func TestFailedDirSyncLosesNames(t *testing.T) {
	for _, revert := range []bool{false, true} {
		for _, p := range []Profile{PosixMinimal, Ext4Ordered} {
			s := newScript(t, p)
			f := s.create(s.a, "tmp", "new")
			s.ok(f.Sync())
			s.ok(s.a.Rename("tmp", "data"))
			s.failNext(OpSyncDir, Fault{Revert: revert})
			if err := s.a.Sync(); !errors.Is(err, syscall.EIO) {
				t.Fatalf("sync: %v", err)
			}
			want := map[bool]string{false: "new", true: "old"}[revert]
			if got := s.content("data"); got != want {
				t.Errorf("revert=%v: the cache shows %q", revert, got)
			}
			s.ok(s.a.Sync())
			s.wantDisks("after a second sync", 3) // old; old and tmp; new
			g := s.create(s.a, "tmp2", "newer")
			s.ok(g.Sync())
			s.ok(s.a.Rename("tmp2", "data"))
			s.ok(s.a.Sync())
			s.wantDisks("data made anew", 2) // tmp may still be there
			if _, err := s.a.Lstat("tmp"); err == nil {
				s.ok(s.a.Remove("tmp"))
			} else {
				s.ok(s.create(s.a, "tmp", "").Close())
				s.ok(s.a.Remove("tmp"))
			}
			s.ok(s.a.Sync())
			s.wantDisks("tmp made and removed again", 1)
		}
	}
}

func TestAppliedFaults(t *testing.T) {
	for _, applied := range []bool{false, true} {
		s := newScript(t, PosixMinimal)
		check := func(op Op, call func() error, happened func() bool) {
			t.Helper()
			s.failNext(op, Fault{Applied: applied})
			if err := call(); !errors.Is(err, syscall.EIO) {
				t.Errorf("%v: %v", op, err)
			}
			if happened() != applied {
				t.Errorf("%v: applied %v, happened %v", op, applied, happened())
			}
		}
		has := func(name string) func() bool {
			return func() bool { _, err := s.a.Lstat(name); return err == nil }
		}
		check(OpCreate, func() error { _, err := s.a.Create("c", 0o600); return err }, has("c"))
		check(OpMkdir, func() error { return s.a.Mkdir("m", 0o700) }, has("m"))
		check(OpLink, func() error { return s.a.Link("data", "l") }, has("l"))
		check(OpRename, func() error { return s.a.Rename("data", "r") }, has("r"))
		if applied {
			s.ok(s.a.Rename("r", "data"))
		}
		check(OpRemove, func() error { return s.a.Remove("data") }, func() bool { return !has("data")() })
		f := s.create(s.a, "f", "12345")
		check(OpWriteAt, func() error { _, err := f.WriteAt([]byte("abc"), 0); return err },
			func() bool { return s.content("f") == "abc45" })
		pending := len(disks(t, s.m, CutOptions{}))
		check(OpSync, f.Sync, func() bool { return len(disks(t, s.m, CutOptions{})) < pending })
		if open := s.p.Open(); open != 3 {
			t.Errorf("applied %v: %d handles open, want both directories and f", applied, open)
		}
		check(OpClose, f.Close, func() bool { return applied == (s.p.Open() == 2) }) // a failed close has closed
	}
}

func TestShortTransfers(t *testing.T) {
	s := newScript(t, PosixMinimal)
	f := s.create(s.a, "f", "")
	s.failNext(OpWriteAt, Fault{Short: 700})
	n, err := f.WriteAt(make([]byte, 1500), 0)
	if n != 700 || !errors.Is(err, syscall.EIO) {
		t.Errorf("write: %d, %v", n, err)
	}
	if got := len(s.content("f")); got != 700 {
		t.Errorf("size %d after a short write of 700", got)
	}
	s.failNext(OpReadAt, Fault{Short: 5})
	n, err = f.ReadAt(make([]byte, 100), 0)
	if n != 5 || !errors.Is(err, syscall.EIO) {
		t.Errorf("read: %d, %v", n, err)
	}
}

// TestViolations: what a disk would let pass, and this one does not.
func TestViolations(t *testing.T) {
	m := New(PosixMinimal, "/a")
	m.Install(Image{"/a/data": {Data: "old"}, "/a/kept": {Data: "kept"}})
	for _, v := range []struct {
		name string
		run  func(p *Process, d vfs.Dir, f vfs.File) error
		want error
	}{
		{"read after close", func(_ *Process, _ vfs.Dir, f vfs.File) error { f.Close(); _, err := f.ReadAt(nil, 0); return err }, fs.ErrClosed},
		{"sync after close", func(_ *Process, d vfs.Dir, _ vfs.File) error { d.Close(); return d.Sync() }, fs.ErrClosed},
		{"name with a separator", func(_ *Process, d vfs.Dir, _ vfs.File) error { return d.Rename("data", "../data") }, fs.ErrInvalid},
		{"empty name", func(_ *Process, d vfs.Dir, _ vfs.File) error { return d.Rename("data", "") }, fs.ErrInvalid},
		{"parent", func(_ *Process, d vfs.Dir, _ vfs.File) error { _, err := d.Lstat(".."); return err }, fs.ErrInvalid},
		{"policy", func(_ *Process, d vfs.Dir, _ vfs.File) error { return d.Remove("kept") }, errKept},
	} {
		p := m.Snapshot().Start()
		p.SetPolicy(func(c *Call) error {
			if c.Op == OpRemove && c.Path == "/a/kept" {
				return errKept
			}
			return nil
		})
		d := must(p.OpenDir("/a"))(t)
		f := must(d.OpenRW("data"))(t)
		if err := d.Remove("data"); err != nil {
			t.Errorf("%s: allowed removal: %v", v.name, err)
		}
		if n := len(p.Violations()); n != 0 {
			t.Fatalf("%s: violations before: %v", v.name, p.Violations())
		}
		if err := v.run(p, d, f); !errors.Is(err, v.want) || !errors.Is(err, ErrViolation) {
			t.Errorf("%s: %v", v.name, err)
		}
		if n := len(p.Violations()); n != 1 {
			t.Errorf("%s: violations %v, want one", v.name, p.Violations())
		}
	}
}

var errKept = errors.New("kept must stay")

func TestDoubleCloseIsNoViolation(t *testing.T) {
	s := newScript(t, PosixMinimal)
	f := s.create(s.a, "f", "")
	s.ok(f.Close())
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
	if v := s.p.Violations(); len(v) != 0 {
		t.Errorf("violations: %v", v)
	}
}

func TestCallText(t *testing.T) {
	s := newScript(t, PosixMinimal)
	s.p.KeepLog()
	replace(s, true, true)
	s.a.Remove("none")
	var got []string
	for _, c := range s.p.Log() {
		got = append(got, c.String())
	}
	want := `1.3 create /a/tmp
1.4 writeat /a/tmp [0,3)
1.5 sync /a/tmp
1.7 rename /a/tmp -> data
1.8 syncdir /a
1.9 remove /a/none = remove /a/none: ` + fmt.Sprint(syscall.ENOENT)
	if strings.Join(got, "\n") != want {
		t.Errorf("log:\n%s\nwant:\n%s", strings.Join(got, "\n"), want)
	}
}
