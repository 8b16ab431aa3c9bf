package crashtest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Process is one run of a Func: a process on the simulated machine.
type Process struct {
	sim     *simfs.Process
	machine *simfs.Machine
	plan    *plan
	before  int // the machine's count of writes at the start

	// fail makes calls fail that the Func itself arranged, in tests of this package.
	fail func(c *simfs.Call) error

	mu       sync.Mutex
	claims   *ledger
	surfaced []error
	broken   error // the first broken check

	// At the first Observe:
	observed    bool
	written     int            // how often the process had written
	atFirst     *simfs.Machine // the machine, where a second recovery is wanted
	firstClaims *ledger
}

// Number is the number of the process in the history of its machine: 1 for Setup,
// if there is one. Labels and contents made from it differ between a process and
// the one that runs after its crash.
func (p *Process) Number() int { return p.sim.ID() }

// FS reaches the disks of the machine by plain calls, for a program's own files.
func (p *Process) FS() *FS { return &FS{p.sim} }

// Idle says that the process does nothing for a while: what a program does when it is
// idle happens now, in this goroutine, and is crashed like all else. Nothing happens
// on its own: the machine's clock stands still.
func (p *Process) Idle() { p.sim.Idle() }

// Begin says that a change is about to be made that leads to the state with this
// label.
func (p *Process) Begin(label string) {
	p.claim(func(l *ledger) (*ledger, error) { return l.begin(label) })
}

// End says how the change ended. nil is an acknowledgement: from here on no crash
// may lose it.
func (p *Process) End(label string, err error) {
	if err != nil {
		p.surface(err)
	}
	p.claim(func(l *ledger) (*ledger, error) { return l.end(label, err, err != nil && p.plan.certain(err)) })
}

// Observe says which state was found.
func (p *Process) Observe(label string) {
	var now *simfs.Machine
	written := p.machine.Writes() - p.before
	if p.plan.idempotent {
		now = p.machine.Snapshot() // not under mu: a hook takes that while the machine is locked
	}
	p.claim(func(l *ledger) (*ledger, error) {
		next, err := l.observe(label)
		if !p.observed {
			p.observed, p.written, p.atFirst, p.firstClaims = true, written, now, next
		}
		return next, err
	})
}

// Report takes down an error that the program met and told of in a way that neither
// End nor the Func's own error shows.
func (p *Process) Report(err error) { p.surface(err) }

func (p *Process) surface(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.surfaced = append(p.surfaced, err)
}

func (p *Process) claim(f func(*ledger) (*ledger, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, err := f(p.claims)
	p.claims = next
	if err != nil && p.broken == nil {
		p.broken = err
	}
}

func (p *Process) ledger() *ledger {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claims
}

// point is one instant at which the machine may crash.
type point struct {
	call    simfs.CallID // the call before which it is
	part    int
	machine *simfs.Machine
	claims  *ledger
}

// run is what one process did.
type run struct {
	p      *Process
	err    error // of the Func
	points []point
	log    []simfs.Call
	calls  int
	ops    []simfs.Call // all calls, where they were asked for
	fault  *simfs.Call  // the call that failed by injection, if any
}

// start says how a process runs.
type start struct {
	record bool
	log    bool
	ops    bool
	fault  *fault
}

// play runs f on machine, which it uses up.
func (pl *plan) play(machine *simfs.Machine, claims *ledger, f Func, how start) *run {
	p := &Process{sim: machine.Start(), machine: machine, plan: pl, claims: claims, before: machine.Writes()}
	r := &run{p: p}
	if how.log {
		p.sim.KeepLog()
	}
	if policy := pl.policy(); policy != nil {
		p.sim.SetPolicy(policy)
	}
	changes, last := -1, (*ledger)(nil)
	p.sim.SetHook(func(c *simfs.Call) simfs.Fault {
		if how.record && c.Op.Mutates() {
			// Where neither the machine nor the claims moved, the crash is the same.
			if l := p.ledger(); c.Changes() != changes || l != last {
				changes, last = c.Changes(), l
				r.points = append(r.points, point{c.ID, c.Part, c.Snapshot(), l})
			}
		}
		if how.ops && c.Part == 0 {
			r.ops = append(r.ops, *c)
		}
		if c.Part == 0 && p.fail != nil {
			if err := p.fail(c); err != nil {
				return simfs.Fault{Err: err}
			}
		}
		if c.Part > 0 || how.fault == nil {
			return simfs.Fault{}
		}
		fault := how.fault.at(c)
		if fault.Err != nil && r.fault == nil {
			failed := *c
			r.fault = &failed
		}
		return fault
	})
	r.err = guard(func() error { return f(vfs.NewContext(context.Background(), p.sim), p) })
	r.calls = p.sim.Calls()
	if how.log {
		r.log = p.sim.Log()
	}
	if how.record {
		r.points = append(r.points, point{simfs.CallID{Process: int32(p.Number()), N: int32(r.calls + 1)}, 0, machine.Snapshot(), p.ledger()})
	}
	p.sim.Kill()
	return r
}

// errPanic is matched by the error of a Func that panicked.
var errPanic = errors.New("panic")

func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, v, debug.Stack())
		}
	}()
	return f()
}
