package vfs

import (
	"os"

	"golang.org/x/sys/windows"
)

// lockRange is one byte far beyond the end of any lock file. Locks on Windows
// are mandatory: whoever reads a locked byte gets an error, and a person must be
// able to read who holds the lock.
func lockRange() *windows.Overlapped {
	return &windows.Overlapped{Offset: 0xfffffffe, OffsetHigh: 0x7fffffff}
}

func tryLock(f *os.File) (bool, error) {
	err := control(f, func(fd uintptr) error {
		const how = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
		return windows.LockFileEx(windows.Handle(fd), how, 0, 1, 0, lockRange())
	})
	if isOneOf(err, windows.ERROR_LOCK_VIOLATION, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}

func unlock(f *os.File) error {
	return control(f, func(fd uintptr) error {
		return windows.UnlockFileEx(windows.Handle(fd), 0, 1, 0, lockRange())
	})
}

func closeFile(f *os.File) error { return f.Close() }

func lockError(err error) error {
	if isOneOf(err, windows.ERROR_INVALID_FUNCTION, windows.ERROR_NOT_SUPPORTED) {
		return unsupported(err)
	}
	return err
}
