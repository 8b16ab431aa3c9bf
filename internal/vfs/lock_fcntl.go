//go:build aix || (solaris && !illumos) || (pawl_fcntl && unix)

package vfs

import (
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// fcntl(2) locks belong to a process, and are lost when it closes any descriptor
// of the file:
//
//	P.1 opens the file as a and locks it.
//	P.2 opens it as b, and locks it: the kernel agrees, P has the lock already.
//	P.2 closes b: the kernel takes the lock from P; a holds nothing.
//	Q   opens the file and locks it, beside P.1.
//
// So this table holds which open of a file has the lock, and puts off the close
// of every other one until the lock is given up. An open of the file by code
// other than this package is beyond it.
//
// The tag pawl_fcntl puts it in the place of flock(2), so that it can be tested
// on other systems.
var fcntlLocks = struct {
	sync.Mutex
	held map[inode]*fcntlLock
}{held: make(map[inode]*fcntlLock)}

type inode struct{ dev, ino uint64 }

type fcntlLock struct {
	owner *os.File
	later []io.Closer
}

func tryLock(f *os.File) (bool, error) {
	id, err := identify(f)
	if err != nil {
		return false, err
	}
	fcntlLocks.Lock()
	defer fcntlLocks.Unlock()
	if fcntlLocks.held[id] != nil {
		return false, nil
	}
	err = setLock(f, unix.F_WRLCK)
	if err == unix.EAGAIN || err == unix.EACCES {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	fcntlLocks.held[id] = &fcntlLock{owner: f}
	return true, nil
}

func unlock(f *os.File) error {
	fcntlLocks.Lock()
	defer fcntlLocks.Unlock()
	for id, lock := range fcntlLocks.held {
		if lock.owner == f {
			delete(fcntlLocks.held, id)
			for _, other := range lock.later {
				other.Close()
			}
		}
	}
	return setLock(f, unix.F_UNLCK)
}

func closeFile(f *os.File) error {
	id, err := identify(f)
	fcntlLocks.Lock()
	defer fcntlLocks.Unlock()
	if lock := fcntlLocks.held[id]; err == nil && lock != nil {
		lock.later = append(lock.later, f)
		return nil
	}
	return f.Close()
}

func setLock(f *os.File, how int16) error {
	return control(f, func(fd uintptr) error {
		return again(func() error {
			return unix.FcntlFlock(fd, unix.F_SETLK, &unix.Flock_t{Type: how, Whence: io.SeekStart})
		})
	})
}

func identify(f *os.File) (inode, error) {
	fi, err := f.Stat()
	if err != nil {
		return inode{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}, unix.ENOTSUP
	}
	return inode{uint64(st.Dev), uint64(st.Ino)}, nil
}
