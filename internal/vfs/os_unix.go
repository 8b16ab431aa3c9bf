//go:build unix

package vfs

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	notInNames = "/\x00"
	notAtEnd   = ""

	// openFlags for files that exist. os.Root adds O_NOFOLLOW and O_CLOEXEC.
	openFlags = unix.O_NONBLOCK
)

// openRoot opens a directory. The added "." makes the kernel answer ENOTDIR for
// anything else; without it the open would block on a FIFO.
func openRoot(path string) (*os.Root, error) { return os.OpenRoot(path + "/.") }

func lstat(path string) (os.FileInfo, error) { return os.Lstat(path) }

// opened takes O_NONBLOCK off again: it was for the open alone.
func opened(f *os.File) error {
	return control(f, func(fd uintptr) error { return unix.SetNonblock(int(fd), false) })
}

// untilShared has nothing to wait for where opening a file cannot deny it to
// others.
func untilShared(open func() error) error { return open() }

func rename(d *osDir, oldname, newname string) error { return d.root.Rename(oldname, newname) }
func remove(d *osDir, name string) error             { return d.root.Remove(name) }
func chgrp(f *os.File, gid int) error                { return f.Chown(-1, gid) }

// linkError sorts the answers of link(2) that mean "not on this file system, or
// not for this file".
func linkError(err error) error {
	if isOneOf(err, unix.EPERM, unix.EMLINK, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP) {
		return unsupported(err)
	}
	return err
}

// lockError sorts the answers that mean "no locks on this file system".
func lockError(err error) error {
	if isOneOf(err, unix.ENOLCK, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP) {
		return unsupported(err)
	}
	return err
}

func fillInfo(i *Info, fi os.FileInfo) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		i.Links, i.UID, i.GID = uint64(st.Nlink), int(st.Uid), int(st.Gid)
	}
}

// again repeats a call that a signal interrupted. It is for calls to which EINTR
// means that nothing has happened.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
