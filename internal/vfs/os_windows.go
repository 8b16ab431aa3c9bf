package vfs

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

const (
	// A colon would name a stream of a file; the rest no file can be named.
	notInNames = "/\\:*?\"<>|\x00"
	notAtEnd   = ". " // Windows drops them, so that two names are one

	openFlags = 0
)

func openRoot(path string) (*os.Root, error) {
	root, err := os.OpenRoot(path)
	if err == nil {
		return root, nil
	}
	if fi, serr := os.Stat(path); serr == nil && !fi.IsDir() {
		return nil, notDirError{kind(fi.Mode())}
	}
	// ERROR_PATH_NOT_FOUND, for a parent that is not there, is also ENOTDIR.
	if isOneOf(err, windows.ERROR_PATH_NOT_FOUND) {
		err = windows.ERROR_FILE_NOT_FOUND
	}
	return nil, err
}

// lstat asks a handle. What os.Lstat returns may take a file's identity from the
// path, later, when os.SameFile wants it.
func lstat(path string) (os.FileInfo, error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	if dir == path {
		name = "."
	}
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Lstat(name)
}

func opened(*os.File) error       { return nil }
func chgrp(*os.File, int) error   { return nil }
func fillInfo(*Info, os.FileInfo) {}

// rename flushes the file after it has its new name, through a handle that was
// opened before, so that nothing between the two can get lost. It is the nearest
// to MOVEFILE_WRITE_THROUGH that an os.Root can do, whose rename has POSIX
// semantics where the file system knows them. Documented is that
// FlushFileBuffers writes a file's data and metadata. Not documented is that its
// name is part of that; on NTFS a rename is a transaction in the log that the
// flush writes out. The flush of the directory, which follows, is documented no
// better. A failed flush is a failed rename, though the name has changed.
func rename(d *osDir, oldname, newname string) error {
	before, err := d.lstat("rename", oldname)
	if err != nil {
		return err
	}
	var file File
	if before.Mode().IsRegular() {
		if file, err = d.open("rename", oldname, os.O_RDWR); err != nil {
			return err
		}
		defer file.Close()
	}
	happened := func() bool {
		_, err := d.root.Lstat(oldname)
		after, aerr := d.root.Lstat(newname)
		return errors.Is(err, fs.ErrNotExist) && aerr == nil && os.SameFile(before, after)
	}
	err = patiently(func() error { return d.root.Rename(oldname, newname) }, happened,
		windows.ERROR_ACCESS_DENIED, windows.ERROR_SHARING_VIOLATION)
	if err != nil || file == nil {
		return err
	}
	return file.Sync()
}

func remove(d *osDir, name string) error {
	happened := func() bool {
		_, err := d.root.Lstat(name)
		return errors.Is(err, fs.ErrNotExist)
	}
	return patiently(func() error { return d.root.Remove(name) }, happened,
		windows.ERROR_ACCESS_DENIED, windows.ERROR_SHARING_VIOLATION)
}

// untilShared waits for a scanner or a backup that has a file open without
// sharing it. All handles of os.Root share reading, writing and deleting.
func untilShared(open func() error) error {
	return patiently(open, func() bool { return false }, windows.ERROR_SHARING_VIOLATION)
}

// patience is for how long a call is repeated that others are in the way of: the
// go command has found two seconds to be enough.
const patience = 2 * time.Second

// patiently repeats a call that fails with one of the errors in passing. Before
// it does, it looks whether the call has happened although it failed.
func patiently(call func() error, happened func() bool, passing ...syscall.Errno) error {
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		err := call()
		if err == nil || !isOneOf(err, passing...) {
			return err
		}
		if happened() {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		// The jitter parts callers that would meet again.
		time.Sleep(pause/2 + rand.N(pause))
	}
}

func linkError(err error) error {
	if isOneOf(err, windows.ERROR_INVALID_FUNCTION, windows.ERROR_NOT_SUPPORTED, windows.ERROR_TOO_MANY_LINKS) {
		return unsupported(err)
	}
	return err
}
