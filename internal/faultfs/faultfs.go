// Package faultfs stands between pawl and a file system: it numbers and names
// every call, writes it down, and asks a hook what becomes of it. Tests use it to
// fail a call, to do half of one, to end the process before one, and to say which
// calls there were and in what order.
//
// The file system below it is a real one, so what a test finds on disk afterwards
// is what a killed or unlucky process leaves. What a power cut leaves is the
// business of package simfs.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Call is one call of package vfs, before it happens.
type Call struct {
	N      int    // its number, from 1
	Op     string // "WriteAt"
	Path   string // "trust/session.trust": below the base, with slashes
	Detail string // "4096@8192" (bytes at offset), the new name of a Rename or Link
}

// String is the name of a call. It is the same each time that the same thing is
// done: the digits of a temp's name are left out, as is where the base is.
func (c Call) String() string {
	return strings.TrimSpace(c.Path + " " + c.Op + " " + c.Detail)
}

var mutating = []string{"Mkdir", "Create", "OpenLock", "Rename", "Link", "Remove", "WriteAt", "Chmod", "Chgrp", "Sync", "SyncData"}

// Mutates reports whether the call can change what a crash leaves. OpenLock can:
// it makes the file where there is none.
func (c Call) Mutates() bool { return slices.Contains(mutating, c.Op) }

// Action says what becomes of a call. The zero value lets it happen.
type Action struct {
	Before func() // run first
	After  func() // run when the call has happened, before its result is returned

	Err  error // returned by the call; it matches ErrInjected too
	Done bool  // with Err: the call has its effect all the same
	Half bool  // ReadAt and WriteAt: only half of the bytes; with Err or without
}

// Hook decides on each call. It runs in the goroutine that calls, with nothing
// locked.
type Hook func(Call) Action

// ErrInjected is matched by every error that a hook made a call return.
var ErrInjected = errors.New("injected")

// FS is a machine whose calls go through a hook.
type FS struct {
	vfs.FS
	base string

	// NoFlush makes flushes succeed without being done. They are numbered, named and
	// failed like others. For tests in which no power is cut, to be quick.
	NoFlush bool

	mu    sync.Mutex
	hook  Hook
	calls []Call
}

// New returns fsys with nothing injected yet. base is a resolved path: files below
// it are named relative to it, and every directory above it is called "above".
func New(fsys vfs.FS, base string) *FS { return &FS{FS: fsys, base: base} }

// Context returns a context in which pawl.Open finds f.
func (f *FS) Context(ctx context.Context) context.Context { return vfs.NewContext(ctx, f) }

// Set makes hook the one that is asked from now on; nil: every call happens. Calls
// are numbered from 1 again, and those so far are forgotten.
func (f *FS) Set(hook Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook, f.calls = hook, nil
}

// Calls returns all calls since New or Set.
func (f *FS) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Mutating returns the calls since New or Set that can change something.
func (f *FS) Mutating() []Call {
	return slices.DeleteFunc(f.Calls(), func(c Call) bool { return !c.Mutates() })
}

// ask writes a call down and asks what becomes of it.
func (f *FS) ask(op, path, detail string) (Call, Action) {
	f.mu.Lock()
	c := Call{N: len(f.calls) + 1, Op: op, Path: f.show(path), Detail: detail}
	f.calls = append(f.calls, c)
	hook := f.hook
	f.mu.Unlock()
	var a Action
	if hook != nil {
		a = hook(c)
	}
	if a.Err != nil {
		a.Err = &fs.PathError{Op: op, Path: path, Err: fmt.Errorf("%w: %w", ErrInjected, a.Err)}
	}
	if a.Before != nil {
		a.Before()
	}
	return c, a
}

// do is a call whose only result is an error.
func (f *FS) do(op, path, detail string, call func() error) error {
	_, a := f.ask(op, path, detail)
	var err error
	if a.Err == nil || a.Done {
		err = call()
	}
	if a.After != nil {
		a.After()
	}
	if a.Err != nil {
		return a.Err
	}
	return err
}

// flush is a call that makes something durable.
func (f *FS) flush(op, path string, call func() error) error {
	return f.do(op, path, "", func() error {
		if f.NoFlush {
			return nil
		}
		return call()
	})
}

var tempDigits = regexp.MustCompile(`tmp-[0-9a-f]{16}`)

func (f *FS) show(path string) string {
	rel, err := filepath.Rel(f.base, path)
	switch {
	case err != nil:
		return path
	case rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)):
		return "above"
	}
	return tempDigits.ReplaceAllString(filepath.ToSlash(rel), "tmp-*")
}

func (f *FS) Resolve(path string) (to string, err error) {
	err = f.do("Resolve", path, "", func() (err error) { to, err = f.FS.Resolve(path); return })
	return to, err
}

func (f *FS) Lstat(path string) (i vfs.Info, err error) {
	err = f.do("Lstat", path, "", func() (err error) { i, err = f.FS.Lstat(path); return })
	return i, err
}

func (f *FS) OpenDir(path string) (vfs.Dir, error) {
	return f.openDir(path, func() (vfs.Dir, error) { return f.FS.OpenDir(path) })
}

func (f *FS) openDir(path string, open func() (vfs.Dir, error)) (vfs.Dir, error) {
	var d vfs.Dir
	err := f.do("OpenDir", path, "", func() (err error) { d, err = open(); return })
	if err != nil {
		if d != nil {
			_ = d.Close() // opened although an error was injected: nobody holds it
		}
		return nil, err
	}
	return &dir{d, f}, nil
}
