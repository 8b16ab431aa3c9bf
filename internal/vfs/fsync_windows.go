package vfs

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// dirFlush holds a second handle to a directory, with the write access that
// FlushFileBuffers asks for, or the reason why there is none. That a flush of it
// makes the names in the directory durable is not documented by Microsoft.
type dirFlush struct {
	dir *os.File
	err error
}

// openDirFlush opens the directory that is held, not what its path names by now:
// NtCreateFile with no name opens the root directory itself. This is CreateFile
// with FILE_FLAG_BACKUP_SEMANTICS, shared in every way.
func openDirFlush(dir *os.File) dirFlush {
	var h windows.Handle
	open := func(fd uintptr) error {
		name, err := windows.NewNTUnicodeString("")
		if err != nil {
			return err
		}
		attributes := &windows.OBJECT_ATTRIBUTES{RootDirectory: windows.Handle(fd), ObjectName: name}
		attributes.Length = uint32(unsafe.Sizeof(*attributes))
		err = windows.NtCreateFile(&h, windows.FILE_GENERIC_WRITE, attributes, &windows.IO_STATUS_BLOCK{}, nil, 0,
			windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, windows.FILE_OPEN,
			windows.FILE_DIRECTORY_FILE|windows.FILE_OPEN_FOR_BACKUP_INTENT|windows.FILE_SYNCHRONOUS_IO_NONALERT, 0, 0)
		if status, ok := err.(windows.NTStatus); ok {
			return status.Errno()
		}
		return err
	}
	if err := untilShared(func() error { return control(dir, open) }); err != nil {
		return dirFlush{err: err}
	}
	return dirFlush{dir: os.NewFile(uintptr(h), dir.Name())}
}

func (d dirFlush) sync() error {
	if d.err != nil {
		return d.err
	}
	return control(d.dir, func(fd uintptr) error { return windows.FlushFileBuffers(windows.Handle(fd)) })
}

func (d dirFlush) close() error {
	if d.err != nil {
		return nil
	}
	return d.dir.Close()
}

// syncError sorts the answers, of the open or of the flush, that mean "no flush
// for directories here, or not for this caller".
func syncError(err error) error {
	if isOneOf(err, windows.ERROR_ACCESS_DENIED, windows.ERROR_INVALID_FUNCTION, windows.ERROR_INVALID_HANDLE, windows.ERROR_NOT_SUPPORTED) {
		return fmt.Errorf("%w: %w", ErrNoDirSync, err)
	}
	return err
}
