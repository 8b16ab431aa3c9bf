package crashtest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// FaultMode says in which processes calls are made to fail.
type FaultMode uint8

const (
	// FaultsInDo makes calls of the workload fail.
	FaultsInDo FaultMode = 1 << iota
	// FaultsInRecover makes calls fail in the first recovery after each crash of
	// the workload.
	FaultsInRecover
	// RevertNames adds a way for a directory's sync to fail: programs then see the
	// names as they were before, while the disk may hold the new ones. That is what
	// a reverted page cache does to files; no file system is known that does it to
	// names and goes on.
	RevertNames
)

// Call is one call of a process on the simulated machine.
type Call struct {
	Op   string // as in package vfs, in lower case: "writeat", "sync", "rename", …
	Path string
	To   string // the new name of "rename" and "link"
}

// InjectedError is what a call that was made to fail returns; it wraps an error of
// the operating system.
type InjectedError struct{ Err error }

func (e *InjectedError) Error() string { return "injected: " + e.Err.Error() }

// Unwrap returns the operating system's error.
func (e *InjectedError) Unwrap() error { return e.Err }

// fault is one way in which the call of turn n fails.
type fault struct {
	n    int
	kind faultKind
}

// faultKind is a way of failing.
type faultKind string

const (
	faultEIO     faultKind = "eio"     // the call has no effect
	faultApplied faultKind = "applied" // the call has its effect, and says that it failed
	faultIntr    faultKind = "eintr"   // the call has no effect: it was interrupted
	faultNoSpace faultKind = "enospc"  // no space, for this call only
	faultShort   faultKind = "short"   // half of the bytes
	faultRevert  faultKind = "revert"  // a sync, and programs see what was there before
	faultSticky  faultKind = "sticky"  // no space: this and every later call that needs some fails
	faultDead    faultKind = "dead"    // the disk is gone: this and every later call fails
)

// ways lists how a call can fail.
func (m FaultMode) ways(op simfs.Op) []faultKind {
	switch {
	case op == simfs.OpSyncDir && m&RevertNames == 0:
		return []faultKind{faultEIO, faultIntr, faultNoSpace, faultDead}
	case op == simfs.OpReadAt:
		return []faultKind{faultEIO, faultIntr, faultShort, faultDead}
	case op == simfs.OpClose:
		return []faultKind{faultApplied}
	case op == simfs.OpWriteAt:
		return []faultKind{faultEIO, faultIntr, faultNoSpace, faultApplied, faultShort, faultSticky, faultDead}
	case op.IsSync():
		return []faultKind{faultEIO, faultIntr, faultNoSpace, faultApplied, faultRevert, faultDead}
	case needsSpace(op):
		return []faultKind{faultEIO, faultIntr, faultNoSpace, faultApplied, faultSticky, faultDead}
	case op.Mutates():
		return []faultKind{faultEIO, faultIntr, faultApplied, faultDead}
	}
	return []faultKind{faultEIO, faultIntr, faultDead}
}

// ways lists how a call is made to fail in an exploration.
func (pl *plan) ways(c *simfs.Call) (kinds []faultKind) {
	for _, k := range pl.faults.ways(c.Op) {
		if pl.faulty == nil || pl.faulty(c, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// at is the fault that a call meets.
func (f *fault) at(c *simfs.Call) simfs.Fault {
	n := c.Turn
	switch {
	case f.kind == faultSticky && n >= f.n && needsSpace(c.Op):
		return simfs.Fault{Err: &InjectedError{syscall.ENOSPC}}
	case f.kind == faultDead && n >= f.n:
		return simfs.Fault{Err: &InjectedError{syscall.EIO}}
	case n != f.n:
		return simfs.Fault{}
	}
	out := simfs.Fault{Err: &InjectedError{syscall.EIO}}
	switch f.kind {
	case faultIntr:
		out.Err = &InjectedError{syscall.EINTR}
	case faultNoSpace:
		out.Err = &InjectedError{syscall.ENOSPC}
	case faultApplied:
		out.Applied = true
	case faultShort:
		out.Short = c.Len / 2
	case faultRevert:
		out.Revert = true
	}
	return out
}

func needsSpace(op simfs.Op) bool {
	switch op {
	case simfs.OpMkdir, simfs.OpCreate, simfs.OpOpenLock, simfs.OpLink, simfs.OpRename, simfs.OpWriteAt:
		return true
	}
	return false
}

func (f *fault) String() string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("!%d.%s", f.n, f.kind)
}

func parseFault(s string) (*fault, error) {
	n, kind, ok := strings.Cut(strings.TrimPrefix(s, "!"), ".")
	i, err := strconv.Atoi(n)
	if !ok || err != nil || i < 1 {
		return nil, fmt.Errorf("%q is no fault", s)
	}
	return &fault{i, faultKind(kind)}, nil
}

// swallowed says that a fault was met and nobody was told.
func (r *run) swallowed(pl *plan) error {
	if r.fault == nil {
		return nil
	}
	for _, err := range append(r.surfaced, r.err) {
		if e := (*InjectedError)(nil); errors.As(err, &e) {
			return nil
		}
	}
	if c := r.fault; pl.swallow != nil && pl.swallow(Call{Op: c.Op.String(), Path: c.Path, To: c.To}) {
		return nil
	}
	return fmt.Errorf("K10: the error of %s was swallowed", r.fault)
}
