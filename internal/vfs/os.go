//go:build unix || windows

package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// OS returns the machine that the program runs on.
//
// Directories are os.Root handles: an operation acts on the directory that was
// opened, and a name in it that has become a symbolic link leads nowhere. What
// systems do differently is in the files named after them; what all of them
// have in common, and every promise, is described here and in vfs.go.
//
// An error names the operation and the full path, and keeps the operating
// system's error for errors.Is.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenDir(path string) (Dir, error) {
	// "" and relative paths are refused: openRoot appends to the path, and the
	// working directory may change.
	if !filepath.IsAbs(path) {
		return nil, &fs.PathError{Op: "open directory", Path: path, Err: fs.ErrInvalid}
	}
	root, err := openRoot(path)
	if err != nil {
		return nil, &fs.PathError{Op: "open directory", Path: path, Err: cause(err)}
	}
	return newDir(root, path)
}

func (osFS) Lstat(path string) (Info, error) {
	fi, err := lstat(path)
	if err != nil {
		return Info{}, &fs.PathError{Op: "lstat", Path: path, Err: cause(err)}
	}
	return info(fi), nil
}

type osDir struct {
	path string
	root *os.Root
	// self is the directory itself. It is opened with root, before any change of
	// a name that a later Sync is to make durable: a file system reports a failed
	// write-back only to handles that were open when it failed.
	self  *os.File
	flush dirFlush
}

// newDir takes over root: it is closed when newDir fails.
func newDir(root *os.Root, path string) (*osDir, error) {
	self, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, &fs.PathError{Op: "open directory", Path: path, Err: cause(err)}
	}
	return &osDir{path: path, root: root, self: self, flush: openDirFlush(self)}, nil
}

func (d *osDir) Path() string { return d.path }

func (d *osDir) Stat() (Info, error) {
	fi, err := d.self.Stat()
	if err != nil {
		return Info{}, d.fail("stat", ".", err)
	}
	return info(fi), nil
}

func (d *osDir) System() (FileSystem, error) {
	system, err := fileSystem(d.self)
	if err != nil {
		return FileSystem{}, d.fail("ask for the file system of", ".", err)
	}
	return system, nil
}

func (d *osDir) Identify(name string) (Info, error) {
	if err := d.check("statx", name); err != nil {
		return Info{}, err
	}
	return d.identify(name)
}

func (d *osDir) Lstat(name string) (Info, error) { return d.lstatInfo(name) }

func (d *osDir) lstatInfo(name string) (Info, error) {
	fi, err := d.lstat("lstat", name)
	if err != nil {
		return Info{}, err
	}
	return info(fi), nil
}

func (d *osDir) lstat(op, name string) (fi os.FileInfo, err error) {
	if err := d.check(op, name); err != nil {
		return nil, err
	}
	err = untilShared(func() error {
		fi, err = d.root.Lstat(name)
		return err
	})
	if err != nil {
		return nil, d.fail(op, name, err)
	}
	return fi, nil
}

func (d *osDir) Names() ([]string, error) {
	// A handle of its own, because a handle has one reading position.
	f, err := d.root.Open(".")
	if err != nil {
		return nil, d.fail("list", ".", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, d.fail("list", ".", err)
	}
	slices.Sort(names)
	return names, nil
}

func (d *osDir) Mkdir(name string, perm fs.FileMode) error {
	if err := d.check("mkdir", name); err != nil {
		return err
	}
	return d.fail("mkdir", name, d.root.Mkdir(name, perm))
}

func (d *osDir) OpenDir(name string) (Dir, error) {
	const op = "open directory"
	before, err := d.lstat(op, name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, d.fail(op, name, notDirError{kind(before.Mode())})
	}
	// The added "." keeps the open from blocking on a FIFO that has taken the
	// directory's place: it must be a directory to have a name in it.
	root, err := d.root.OpenRoot(name + string(filepath.Separator) + ".")
	if err != nil {
		return nil, d.fail(op, name, err)
	}
	dir, err := newDir(root, filepath.Join(d.path, name))
	if err != nil {
		return nil, err
	}
	after, err := dir.self.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = errChanged
	}
	if err != nil {
		dir.Close()
		return nil, d.fail(op, name, err)
	}
	return dir, nil
}

func (d *osDir) Open(name string) (File, error)   { return d.open("open", name, os.O_RDONLY) }
func (d *osDir) OpenRW(name string) (File, error) { return d.open("open", name, os.O_RDWR) }

// errChanged says that a name was another file each time it was looked at.
var errChanged = errors.New("replaced while it was being opened")

// openTries bounds how often open begins again. Once is seldom needed: when a
// writer renames a new file into place between the look and the open.
const openTries = 100

// open opens a regular file that exists. It looks at the name, opens it in a
// way that cannot block, and looks at what was opened:
//
//	lstat   is it a regular file? No: refused, and nothing was opened.
//	openat  O_NONBLOCK: a FIFO put there since does not hang us.
//	fstat   is it the file of lstat? No: it was replaced, or a symbolic link was
//	        put there and followed. Closed, unread, and begun again.
//
// An open that fails is final only if the name still is what it was.
func (d *osDir) open(op, name string, flag int) (File, error) {
	for range openTries {
		before, err := d.lstat(op, name)
		if err != nil {
			return nil, err
		}
		if !before.Mode().IsRegular() {
			return nil, d.fail(op, name, fmt.Errorf("%w: it is %s", ErrNotRegular, kind(before.Mode())))
		}
		f, err := d.openFile(name, flag|openFlags, 0)
		if err != nil {
			// ELOOP is a symbolic link that was there for a moment.
			now, lerr := d.root.Lstat(name)
			if isOneOf(err, syscall.ELOOP) || lerr == nil && !os.SameFile(before, now) {
				continue
			}
			return nil, d.fail(op, name, err)
		}
		after, err := f.Stat()
		if err == nil && os.SameFile(before, after) {
			if err = opened(f); err == nil {
				return &osFile{f: f, path: filepath.Join(d.path, name)}, nil
			}
		}
		closeFile(f)
		if err != nil {
			return nil, d.fail(op, name, err)
		}
	}
	return nil, d.fail(op, name, errChanged)
}

func (d *osDir) openFile(name string, flag int, perm fs.FileMode) (f *os.File, err error) {
	err = untilShared(func() error {
		f, err = d.root.OpenFile(name, flag|largeFile, perm)
		return err
	})
	return f, err
}

func (d *osDir) Create(name string, perm fs.FileMode) (File, error) {
	if err := d.check("create", name); err != nil {
		return nil, err
	}
	f, err := d.openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, d.fail("create", name, err)
	}
	return &osFile{f: f, path: filepath.Join(d.path, name)}, nil
}

func (d *osDir) OpenLock(name string) (File, error) {
	// Open and Create each refuse what open and O_EXCL refuse; the loop is for a
	// file that another process makes, or removes, between the two.
	for range openTries {
		f, err := d.open("open lock", name, os.O_RDWR)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		f, err = d.Create(name, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
	return nil, d.fail("open lock", name, errChanged)
}

func (d *osDir) Rename(oldname, newname string) error {
	if err := errors.Join(d.check("rename", oldname), d.checkBelow("rename", newname)); err != nil {
		return err
	}
	return d.failTwo("rename", oldname, newname, rename(d, oldname, newname))
}

func (d *osDir) Link(oldname, newname string) error {
	if err := errors.Join(d.checkBelow("link", oldname), d.checkBelow("link", newname)); err != nil {
		return err
	}
	return d.failTwo("link", oldname, newname, linkError(cause(d.root.Link(oldname, newname))))
}

func (d *osDir) Remove(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	return d.fail("remove", name, remove(d, name))
}

func (d *osDir) Sync() error {
	return d.fail("sync directory", ".", syncError(cause(d.flush.sync())))
}

func (d *osDir) Close() error {
	return d.fail("close", ".", errors.Join(d.flush.close(), d.self.Close(), d.root.Close()))
}

// check refuses every name that is not one bare element.
func (d *osDir) check(op, name string) error {
	if bareName(name) {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
}

// checkBelow refuses every name that is not one bare element, or two.
func (d *osDir) checkBelow(op, name string) error {
	sub, rest, two := strings.Cut(name, "/")
	if err := d.check(op, sub); err != nil || !two {
		return err
	}
	return d.check(op, rest)
}

func bareName(name string) bool {
	return name != "" && name != "." && name != ".." &&
		!strings.ContainsAny(name, notInNames) && strings.TrimRight(name, notAtEnd) == name && filepath.IsLocal(name)
}

func (d *osDir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: cause(err)}
}

func (d *osDir) failTwo(op, oldname, newname string, err error) error {
	if err == nil {
		return nil
	}
	return &os.LinkError{Op: op, Old: filepath.Join(d.path, oldname), New: filepath.Join(d.path, newname), Err: cause(err)}
}

// cause takes the operation and path that package os put before an error away,
// so that ours stand there alone.
func cause(err error) error {
	switch e := err.(type) {
	case *fs.PathError:
		return cause(e.Err)
	case *os.LinkError:
		return cause(e.Err)
	case *os.SyscallError:
		return cause(e.Err)
	}
	return err
}

// unsupported makes an error match errors.ErrUnsupported as well as itself.
func unsupported(err error) error {
	return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
}

// isOneOf reports whether err is one of the system's error numbers.
func isOneOf(err error, numbers ...syscall.Errno) bool {
	var number syscall.Errno
	return errors.As(err, &number) && slices.Contains(numbers, number)
}

// notDirError matches syscall.ENOTDIR and nothing else: on Windows that number
// also means that a path does not exist, and what is there must not be taken
// for nothing.
type notDirError struct{ kind string }

func (e notDirError) Error() string        { return "not a directory: it is " + e.kind }
func (e notDirError) Is(target error) bool { return target == syscall.ENOTDIR }

// kind says in words what a mode's file is.
func kind(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a FIFO"
	case fs.ModeSocket:
		return "a socket"
	case fs.ModeDevice:
		return "a block device"
	case fs.ModeDevice | fs.ModeCharDevice:
		return "a character device"
	}
	return "of mode " + mode.String()
}

func info(fi os.FileInfo) Info {
	i := Info{Size: fi.Size(), Mode: fi.Mode(), UID: -1, GID: -1, ModTime: fi.ModTime(), OS: fi}
	fillInfo(&i, fi)
	number(&i, fi)
	return i
}
