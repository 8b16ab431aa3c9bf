//go:build unix

package vfs

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// None of these opens may block: the test hangs when one does.
func TestOpenSpecial(t *testing.T) {
	for _, tt := range []struct {
		name, kind string
		make       func(path string) error
	}{
		{"fifo", "a FIFO", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"socket", "a socket", func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}},
		{"null", "a character device", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := "/dev"
			if tt.make != nil {
				dir = t.TempDir()
				if err := tt.make(filepath.Join(dir, tt.name)); err != nil {
					t.Skipf("cannot make %s: %v", tt.kind, err)
				}
			}
			d := open(t, dir)
			if i, err := d.Lstat(tt.name); err == nil && i.Mode&fs.ModeSymlink != 0 {
				t.Skip("devices are symbolic links here")
			}
			for method, open := range map[string]func(string) (File, error){"Open": d.Open, "OpenRW": d.OpenRW, "OpenLock": d.OpenLock} {
				_, err := open(tt.name)
				if !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), tt.kind) {
					t.Errorf("%s: %v; want: %v, it is %s", method, err, ErrNotRegular, tt.kind)
				}
			}
			_, err := d.OpenDir(tt.name)
			refused(t, err, syscall.ENOTDIR, "open directory", filepath.Join(dir, tt.name))
			_, err = OS().OpenDir(filepath.Join(dir, tt.name))
			refused(t, err, syscall.ENOTDIR, "open directory", filepath.Join(dir, tt.name))
		})
	}
}

// noLeaks counts the descriptors of the process, where that can be done; what it
// returns counts again.
func noLeaks(t *testing.T) (check func()) {
	t.Helper()
	count := func() int {
		names, _ := os.ReadDir("/proc/self/fd")
		return len(names)
	}
	// A collection would close what was forgotten.
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	before := count()
	return func() {
		t.Helper()
		if after := count(); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	}
}

// keepExchanging exchanges two names all the time, until what it returns is
// called.
func keepExchanging(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	if err := exchange(a, b); err != nil {
		t.Skip("cannot exchange two names here:", err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := exchange(a, b); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// What is opened is what was looked at, also when something else takes the name
// in between; a name that is always a regular file is always opened.
func TestOpenSwapped(t *testing.T) {
	regular := func(path string) error { return os.WriteFile(path, []byte("good"), 0o600) }
	for _, tt := range []struct {
		name   string
		other  func(path string) error
		always bool
	}{
		{"symbolic link", func(path string) error { return os.Symlink("secret", path) }, false},
		{"FIFO", func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		{"regular file", regular, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tmp := t.TempDir()
			d := open(t, tmp)
			a, b := filepath.Join(tmp, "a"), filepath.Join(tmp, "b")
			write(t, filepath.Join(tmp, "secret"), "secret")
			if err := errors.Join(regular(a), tt.other(b)); err != nil {
				t.Fatal(err)
			}
			check := noLeaks(t)
			stop := keepExchanging(t, a, b)
			for i, opened := 0, 0; i < 10000 || opened < 100; i++ {
				// Of a FIFO, only the open for reading alone would block.
				open := d.Open
				if i%4 == 0 {
					open = d.OpenRW
				}
				f, err := open("a")
				if err != nil {
					if tt.always || !errors.Is(err, ErrNotRegular) && !errors.Is(err, errChanged) {
						t.Error(err)
						break
					}
					continue
				}
				opened++
				got := read(t, f)
				mustClose(t, f)
				if got != "good" {
					t.Errorf("read %q", got)
					break
				}
			}
			stop()
			check()
		})
	}
}

func TestOpenDirSwapped(t *testing.T) {
	directory := func(path string) error { return os.Mkdir(path, 0o700) }
	for name, other := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink("secret", path) },
		"FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory":     directory,
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			d := open(t, tmp)
			a, b := filepath.Join(tmp, "a"), filepath.Join(tmp, "b")
			if err := errors.Join(os.MkdirAll(filepath.Join(tmp, "secret", "secret"), 0o700), directory(a), other(b)); err != nil {
				t.Fatal(err)
			}
			check := noLeaks(t)
			stop := keepExchanging(t, a, b)
			for i, opened := 0, 0; i < 10000 || opened < 100; i++ {
				sub, err := d.OpenDir("a")
				if err != nil {
					continue
				}
				opened++
				_, err = sub.Lstat("secret")
				mustClose(t, sub)
				if err == nil {
					t.Error("followed a symbolic link")
					break
				}
			}
			stop()
			check()
		})
	}
}

// A Dir is the directory that was opened, wherever its name leads by now.
func TestDirSwapped(t *testing.T) {
	tmp := t.TempDir()
	held, moved, other := filepath.Join(tmp, "held"), filepath.Join(tmp, "moved"), filepath.Join(tmp, "other")
	if err := errors.Join(os.Mkdir(held, 0o700), os.Mkdir(other, 0o700)); err != nil {
		t.Fatal(err)
	}
	d := open(t, held)
	before, err := d.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(held, moved), os.Symlink("other", held)); err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("file", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, f)
	if err := d.Sync(); err != nil && !errors.Is(err, ErrNoDirSync) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(moved, "file")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(other, "file")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in the directory that took the name: %v; want: %v", err, fs.ErrNotExist)
	}
	after, err := d.Stat()
	now, lerr := OS().Lstat(moved)
	if err != nil || lerr != nil || !after.Same(before) || !after.Same(now) {
		t.Errorf("Stat: %v, %v; Lstat: %v, %v; want the directory that was opened", after, err, now, lerr)
	}
}

func TestModes(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	f, err := d.OpenLock("lock")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, f)
	i, err := f.Stat()
	if err != nil || i.Mode != 0o600 || i.UID != os.Getuid() || i.Links != 1 {
		t.Errorf("a new lock file: %+v, %v", i, err)
	}
	if err := f.Chmod(0o640); err != nil {
		t.Fatal(err)
	}
	if i, err := f.Stat(); err != nil || i.Mode != 0o640 {
		t.Errorf("after Chmod: %+v, %v", i, err)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give a file to a group that it is not in")
	}
	if err := f.Chgrp(4242); err != nil {
		t.Fatal(err)
	}
	if i, err := f.Stat(); err != nil || i.GID != 4242 || i.UID != 0 {
		t.Errorf("after Chgrp: %+v, %v", i, err)
	}
}

func TestOpenedBlocks(t *testing.T) {
	tmp := t.TempDir()
	write(t, filepath.Join(tmp, "file"), "")
	f, err := open(t, tmp).Open("file")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, f)
	err = control(f.(*osFile).f, func(fd uintptr) error {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err == nil && flags&unix.O_NONBLOCK != 0 {
			err = errors.New("O_NONBLOCK is still set")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The errors that this machine will not produce.
func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		name     string
		classify func(error) error
		class    error
		yes, no  []error
	}{
		{"Dir.Sync", syncError, ErrNoDirSync,
			[]error{unix.EINVAL, unix.EBADF, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP},
			[]error{unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EINTR, unix.ESTALE, os.ErrClosed}},
		{"Link", linkError, errors.ErrUnsupported,
			[]error{unix.EPERM, unix.EMLINK, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP},
			[]error{unix.EEXIST, unix.ENOENT, unix.EACCES, unix.EIO, unix.ENOSPC, unix.EXDEV, unix.EROFS}},
		{"TryLock", lockError, errors.ErrUnsupported,
			[]error{unix.ENOLCK, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP},
			[]error{unix.EIO, unix.EBADF, unix.EINVAL, unix.EACCES, os.ErrClosed}},
	} {
		if err := tt.classify(nil); err != nil {
			t.Errorf("%s: nil becomes %v", tt.name, err)
		}
		for _, in := range tt.yes {
			if out := tt.classify(in); !errors.Is(out, tt.class) || !errors.Is(out, in) {
				t.Errorf("%s: %v becomes %v; want both", tt.name, in, out)
			}
		}
		for _, in := range tt.no {
			if out := tt.classify(in); out != in {
				t.Errorf("%s: %v becomes %v", tt.name, in, out)
			}
		}
	}
}

func TestAgain(t *testing.T) {
	for _, last := range []error{nil, unix.EIO} {
		calls := 0
		err := again(func() error {
			calls++
			if calls < 3 {
				return unix.EINTR
			}
			return last
		})
		if err != last || calls != 3 {
			t.Errorf("again: %v after %d calls; want: %v after 3", err, calls, last)
		}
	}
}

func isWine() bool { return false }

// A child between fork and exec has a copy of the descriptor.
func TestLockNotLeftWithCopies(t *testing.T) {
	d := open(t, t.TempDir())
	a, b := openLock(t, d), openLock(t, d)
	defer mustClose(t, b)
	wantLock(t, a, true, "first")
	var inherited int
	err := control(a.(*osFile).f, func(fd uintptr) (err error) {
		inherited, err = unix.Dup(int(fd))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	mustClose(t, a)
	wantLock(t, b, true, "after Close, with a copy of the descriptor open")
}
