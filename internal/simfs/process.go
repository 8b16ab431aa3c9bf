package simfs

import (
	"fmt"
	"io/fs"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Process is a running program on a machine: the vfs.FS that it sees.
type Process struct {
	m      *Machine
	id     int32
	calls  int32
	muts   int // calls that mutate
	doomed int // the one of them that it does not come to make; 0: none
	random uint64
	hook   Hook
	policy Policy
	log    []Call
	keep   bool
	open   int
	dead   bool
	made   map[string]bool // unread files that it made
	timers []*timer        // those that are armed
	timed  int             // timers made so far
	broken []error
}

var _ vfs.FS = (*Process)(nil)

// Start starts a process. The first one on a machine that was killed or cut
// also frees what no name leads to.
func (m *Machine) Start() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handles == 0 {
		m.collect()
	}
	m.boots++
	return &Process{m: m, id: int32(m.boots)}
}

// SetHook sets the function that is called before each call.
func (p *Process) SetHook(h Hook) { p.locked(func() { p.hook = h }) }

// SetPolicy sets the rules that the process's calls must keep.
func (p *Process) SetPolicy(f Policy) { p.locked(func() { p.policy = f }) }

// KeepLog makes the process remember its mutating calls, and those that were made
// to fail.
func (p *Process) KeepLog() { p.locked(func() { p.keep = true }) }

// Log returns the calls that KeepLog keeps, in order.
func (p *Process) Log() (log []Call) {
	p.locked(func() { log = p.log[:len(p.log):len(p.log)] })
	return log
}

// Calls returns the number of calls so far.
func (p *Process) Calls() (n int) {
	p.locked(func() { n = int(p.calls) })
	return n
}

// ID returns the process's number in the history of its machine, from 1.
func (p *Process) ID() int { return int(p.id) }

// Open returns the number of handles that are open.
func (p *Process) Open() (n int) {
	p.locked(func() { n = p.open })
	return n
}

// Violations returns the rules that were broken.
func (p *Process) Violations() (errs []error) {
	p.locked(func() { errs = p.broken[:len(p.broken):len(p.broken)] })
	return errs
}

// Mutations returns the number of mutating calls so far.
func (p *Process) Mutations() (n int) {
	p.locked(func() { n = p.muts })
	return n
}

func (p *Process) locked(f func()) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	f()
}

// do runs one call: it numbers it, asks the hook, and applies f unless the fault
// says otherwise. f runs with the machine locked.
func (p *Process) do(c Call, h *handle, f func(c *Call) error) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	fault, err := p.enter(&c, h)
	switch {
	case err != nil:
	case fault.Err == nil:
		err = f(&c)
	case fault.Applied && c.Op.Mutates(), c.Op == OpClose: // a failed close has closed
		if err = f(&c); err == nil {
			err = pathError(&c, fault.Err)
		}
	default:
		err = pathError(&c, fault.Err)
	}
	p.leave(&c, fault, err)
	return err
}

// enter is the part of a call before its effect.
func (p *Process) enter(c *Call, h *handle) (Fault, error) {
	if p.dead {
		return Fault{}, pathError(c, ErrKilled)
	}
	p.calls++
	p.m.calls++
	c.ID, c.Turn, c.m = CallID{p.id, p.calls}, p.m.calls, p.m
	if c.Op.Mutates() {
		if p.doomed == p.muts+1 {
			p.kill()
			return Fault{}, pathError(c, ErrKilled)
		}
		p.muts++
	}
	if h != nil && h.closed {
		if c.Op == OpClose { // a second Close is a habit of careful code, not a fault of the protocol
			return Fault{}, pathError(c, fs.ErrClosed)
		}
		return Fault{}, p.violate(c, "use after close: %w", fs.ErrClosed)
	}
	if p.policy != nil {
		if err := p.policy(c); err != nil {
			return Fault{}, p.violate(c, "%w", err)
		}
	}
	if p.hook != nil {
		return p.hook(c), nil
	}
	return Fault{}, nil
}

func (p *Process) leave(c *Call, fault Fault, err error) {
	if p.keep && (c.Op.Mutates() || fault.Err != nil) && c.ID.N > 0 { // 0: the process was dead already
		c.Err, c.m, c.data = err, nil, nil
		p.log = append(p.log, *c)
	}
}

func (p *Process) violate(c *Call, format string, args ...any) error {
	err := fmt.Errorf("%w: %s: "+format, append([]any{ErrViolation, c}, args...)...)
	p.broken = append(p.broken, err)
	return pathError(c, err)
}

func pathError(c *Call, err error) error {
	return &fs.PathError{Op: c.Op.String(), Path: c.Path, Err: err}
}
