//go:build (darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd) && !pawl_fcntl

package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// flock(2) locks belong to an open of a file, so that two opens in one process
// exclude each other.

func tryLock(f *os.File) (bool, error) {
	err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return false, nil
	}
	return err == nil, err
}

func unlock(f *os.File) error { return flock(f, unix.LOCK_UN) }

func flock(f *os.File, how int) error {
	return control(f, func(fd uintptr) error {
		return again(func() error { return unix.Flock(int(fd), how) })
	})
}

func closeFile(f *os.File) error { return f.Close() }
