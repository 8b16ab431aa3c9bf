package simfs

import (
	"errors"
	"fmt"
	"path"
	"slices"
)

// Op names a call of package vfs.
type Op uint8

// The calls. Those from OpMkdir on can change something.
const (
	OpResolve Op = iota
	OpLstat
	OpStat
	OpSystem
	OpNames
	OpOpenDir
	OpOpen
	OpOpenRW
	OpReadAt
	OpTryLock
	OpClose
	OpMkdir
	OpCreate
	OpOpenLock
	OpRename
	OpLink
	OpRemove
	OpWriteAt
	OpChmod
	OpChgrp
	OpSync
	OpSyncData
	OpSyncDir
)

var opNames = [...]string{"resolve", "lstat", "stat", "system", "names", "opendir", "open", "openrw", "readat", "trylock",
	"close", "mkdir", "create", "openlock", "rename", "link", "remove", "writeat", "chmod", "chgrp", "sync", "syncdata", "syncdir"}

func (o Op) String() string { return opNames[o] }

// Mutates says whether the call can change what a crash leaves. A sync does:
// it takes disks away.
func (o Op) Mutates() bool { return o >= OpMkdir }

// IsSync says whether the call makes something durable.
func (o Op) IsSync() bool { return o >= OpSync }

// CallID names a call in the history of a machine.
type CallID struct {
	Process int32 // 1 for the first process that was started
	N       int32 // 1 for its first call
}

// Call is one call as a hook sees it, before it happens.
type Call struct {
	ID   CallID
	Turn int // its place among the calls of all processes of the machine, as Machine.Calls counts them
	Part int // >0: not a new call but a sector boundary inside a WriteAt; a fault returned here is ignored
	Op   Op
	Path string
	To   string // the new name of Rename and Link
	Off  int64
	Len  int
	Err  error // in a process's log: what the call returned

	m    *Machine
	ino  int32  // of a WriteAt: the file,
	data []byte // and what is written
}

// Snapshot returns what a kill at this instant leaves. Only a hook may call it.
func (c *Call) Snapshot() *Machine { return c.m.snapshot() }

// Changes returns a number that has grown if anything that a crash can show has
// changed. Only a hook may call it.
func (c *Call) Changes() int { return c.m.changes }

// Data returns the bytes that a WriteAt is to write. Only a hook or a policy may call
// it, and must not change them; so it is with Size, Held and Named.
func (c *Call) Data() []byte { return c.data }

// Size returns the size of the file that a WriteAt is about to change.
func (c *Call) Size() int64 { return c.m.nodes[c.ino].f.size }

// Held fills b with what programs see in that file from off on, with zeros beyond its
// end.
func (c *Call) Held(b []byte, off int64) { clear(b[c.m.nodes[c.ino].f.readAt(b, off):]) }

// Named says whether f holds for a name of the file that a WriteAt is about to change:
// one that it has now, or the one it was opened by.
func (c *Call) Named(f func(path string) bool) bool {
	if f(c.Path) {
		return true
	}
	var walk func(dir string, ino int32) bool
	walk = func(dir string, ino int32) bool {
		return slices.ContainsFunc(c.m.nodes[ino].d.live, func(e entry) bool {
			if c.m.nodes[e.ino].d != nil {
				return walk(path.Join(dir, e.name), e.ino)
			}
			return e.ino == c.ino && f(path.Join(dir, e.name))
		})
	}
	return slices.ContainsFunc(c.m.mounts, func(mt mount) bool { return walk("/"+mt.name, mt.root) })
}

func (c *Call) String() string {
	s := fmt.Sprintf("%d.%d %s %s", c.ID.Process, c.ID.N, c.Op, c.Path)
	switch c.Op {
	case OpWriteAt, OpReadAt:
		s += fmt.Sprintf(" [%d,%d)", c.Off, c.Off+int64(c.Len))
	case OpRename, OpLink:
		s += " -> " + c.To
	}
	if c.Err != nil {
		s += " = " + c.Err.Error()
	}
	return s
}

// Fault says how a call fails. The zero value is no fault.
type Fault struct {
	Err     error // returned by the call
	Applied bool  // the call has its effect all the same
	Short   int   // WriteAt and ReadAt, not applied: bytes done before the failure
	Revert  bool  // a failed sync drops what it covered from the page cache
}

// Hook is called before each call, with the machine locked: it must not call
// the machine but through the Call.
type Hook func(c *Call) Fault

// Policy says what a test does not allow, beyond what a disk refuses: a non-nil
// error is a violation and fails the call.
type Policy func(c *Call) error

var (
	// ErrKilled is returned by every call of a process that was killed.
	ErrKilled = errors.New("simfs: process was killed")

	// ErrViolation is matched by the error of a call that broke a rule of the
	// machine or of the test's policy.
	ErrViolation = errors.New("simfs: violation")
)
