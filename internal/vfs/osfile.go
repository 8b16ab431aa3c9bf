//go:build unix || windows

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
)

type osFile struct {
	f    *os.File
	path string

	mu     sync.Mutex
	locked bool
}

func (f *osFile) Stat() (Info, error) {
	fi, err := f.f.Stat()
	if err != nil {
		return Info{}, f.fail("stat", err)
	}
	return info(fi), nil
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.f.ReadAt(p, off)
	if err == io.EOF {
		return n, err
	}
	return n, f.fail("read", err)
}

func (f *osFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.f.WriteAt(p, off)
	return n, f.fail("write", err)
}

func (f *osFile) Chmod(perm fs.FileMode) error { return f.fail("chmod", f.f.Chmod(perm)) }
func (f *osFile) Chgrp(gid int) error          { return f.fail("chgrp", chgrp(f.f, gid)) }

// Sync and SyncData are called once. After one of them has failed the system may
// have dropped what it could not write and report success the next time, so no
// error is tried again. EINTR is not such an error: like os.File.Sync, we take
// it to mean that the call was interrupted before it found anything out.
func (f *osFile) Sync() error     { return f.fail("sync", f.f.Sync()) }
func (f *osFile) SyncData() error { return f.fail("sync data", syncData(f.f)) }

func (f *osFile) TryLock() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locked {
		return true, nil
	}
	ok, err := tryLock(f.f)
	if err != nil {
		return false, f.fail("lock", lockError(cause(err)))
	}
	f.locked = ok
	return ok, nil
}

// Close unlocks before it closes. A child that was forked a moment ago, and has
// not yet run exec, holds a copy of the descriptor: closing ours would leave
// the lock with it. Windows, too, gives up the locks of a closed handle only
// when it gets round to it.
func (f *osFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.locked {
		f.locked = false
		err = unlock(f.f)
	}
	return f.fail("close", errors.Join(err, closeFile(f.f)))
}

func (f *osFile) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.path, Err: cause(err)}
}

// control runs call on the descriptor or handle of an open file.
func control(f *os.File, call func(fd uintptr) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = call(fd) }); err != nil {
		return os.ErrClosed // the only reason not to run it
	}
	return failed
}
