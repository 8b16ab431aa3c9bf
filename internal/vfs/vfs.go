// Package vfs is everything that pawl knows about an operating system: a few
// calls on directories that are held open, on the files in them, and on locks.
//
// The interfaces are small on purpose. Each method that changes something is
// one step of the protocol, so that a simulated disk can stop between any two
// of them, and each says what it does not promise: no method but Sync, SyncData
// and Dir.Sync makes anything durable, and none of those is ever retried.
package vfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"time"
)

var (
	// ErrNotRegular is returned by Open, OpenRW and OpenLock for a name that is a
	// symbolic link, a directory, a device, a FIFO or a socket. Nothing was read.
	ErrNotRegular = errors.New("not a regular file")

	// ErrNoDirSync is returned by Dir.Sync where the platform or the file system
	// has no way to flush a directory. It is never returned for a flush that was
	// tried and failed: that is the operating system's own error.
	ErrNoDirSync = errors.New("directory cannot be flushed")
)

// ReplacesOpen says that a rename takes the name of a file that somebody has open. On
// Windows that is up to the file system, and Wine refuses it: there one waits, and keeps
// no file open that others have to replace.
const ReplacesOpen = runtime.GOOS != "windows"

// FS is one machine: its file systems, its clock and its source of randomness.
type FS interface {
	// Resolve returns path as an absolute path, with the symbolic links of its
	// longest existing prefix resolved and the rest appended as it is.
	Resolve(path string) (string, error)

	// OpenDir opens the directory at an absolute path and holds it. The error
	// matches fs.ErrNotExist when nothing is there, syscall.ENOTDIR when
	// something else is.
	OpenDir(path string) (Dir, error)

	// Lstat describes what the path names now, without following a final link.
	Lstat(path string) (Info, error)

	// OthersCanWrite says why somebody other than the caller and the groups that
	// the caller is in may change a directory, or "" when nobody may. Where modes
	// say nothing (Windows) it returns "".
	OthersCanWrite(dir Info) string

	Now() time.Time
	// AfterFunc calls f in a goroutine of its own when d has passed, as
	// time.AfterFunc does. A simulated machine does so when its test says.
	AfterFunc(d time.Duration, f func()) Timer
	Random(p []byte)
	// Owner is a line that tells a person which process holds a lock.
	Owner() string
}

// Timer is a call that is yet to come; a *time.Timer is one. Reset puts it off, or
// arms it again, and Stop calls it off; both report whether it was armed.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Dir is a directory that is held open. Names are bare: one element, no
// separator. Operations act on the directory that was opened, whatever its path
// names by now.
type Dir interface {
	Path() string                // the path it was opened by, for messages
	Stat() (Info, error)         // of the held directory itself
	System() (FileSystem, error) // asked before any lock call: a lock may hang on a network file system

	Lstat(name string) (Info, error)
	// Identify is Lstat for a file that is being written to: it tells which file that
	// is, its size, and whether it is a regular one, and may leave the rest out. On
	// some systems Lstat makes the next flush of the file dearer.
	Identify(name string) (Info, error)
	Names() ([]string, error) // sorted

	Mkdir(name string, perm fs.FileMode) error
	OpenDir(name string) (Dir, error) // a symbolic link is refused

	// Open opens a regular file for reading; it never follows a link and never
	// blocks. OpenRW does so for reading and writing in place.
	Open(name string) (File, error)
	OpenRW(name string) (File, error)
	// Create makes a new file for reading and writing; it fails with fs.ErrExist
	// rather than open what is there.
	Create(name string, perm fs.FileMode) (File, error)
	// OpenLock opens a lock file, making it (0600) where there is none.
	OpenLock(name string) (File, error)

	// Rename replaces newname. The new name, and both names of Link, may be in a directory
	// below: "sub/name". Then each of the two directories has a name to be made durable.
	Rename(oldname, newname string) error
	// Link gives a file a second name and fails with fs.ErrExist rather than
	// replace one. The error matches errors.ErrUnsupported where the file system
	// has no hard links.
	Link(oldname, newname string) error
	Remove(name string) error

	// Sync makes the names in the directory durable: those made, replaced and
	// removed before the call.
	Sync() error
	Close() error
}

// File is an open regular file.
type File interface {
	Stat() (Info, error)
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Chmod(perm fs.FileMode) error
	Chgrp(gid int) error // a no-op where there are no groups
	Sync() error         // data and metadata
	SyncData() error     // data, and the metadata needed to read it back

	// TryLock takes the exclusive lock on a file opened by OpenLock, and reports
	// false when another open of the file holds it, in this process or another.
	// Close, or the end of the process, gives it up.
	TryLock() (bool, error)
	Close() error
}

// Info describes a file or directory at one moment.
type Info struct {
	Size    int64
	Mode    fs.FileMode
	Links   uint64 // 0 when not known
	UID     int    // -1 where there are none
	GID     int
	ModTime time.Time

	Dev, Ino uint64      // identity, where there are such numbers
	OS       os.FileInfo // identity, from an open handle or os.Root; else nil
}

// Same reports whether both describe the same file, by identity and not by name.
func (i Info) Same(j Info) bool {
	if i.OS != nil && j.OS != nil {
		return os.SameFile(i.OS, j.OS)
	}
	return i.Ino != 0 && i.Dev == j.Dev && i.Ino == j.Ino
}

// Class sorts file systems by what is known about their flushes and locks.
type Class int

const (
	Probed  Class = iota // not known: what Open probes is what it can do
	Local                // known to flush and lock as pawl needs
	Network              // flushes or locks may do nothing, or hang
)

// FileSystem names the file system that a directory is on.
type FileSystem struct {
	Type  string // "ext4", "nfs", …; "unknown" when the platform does not say
	Class Class
}

type contextKey struct{}

// NewContext returns a context that carries fsys; FromContext finds it there.
func NewContext(ctx context.Context, fsys FS) context.Context {
	return context.WithValue(ctx, contextKey{}, fsys)
}

// FromContext returns the machine that ctx carries, or the real one.
func FromContext(ctx context.Context) FS {
	if fsys, ok := ctx.Value(contextKey{}).(FS); ok {
		return fsys
	}
	return OS()
}
