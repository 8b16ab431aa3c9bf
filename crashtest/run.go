package crashtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// point is one instant at which the machine may crash.
type point struct {
	turn    int // the call before which it is
	part    int
	machine *simfs.Machine
	claims  *ledger
}

// run is what one Func did: in its own process, and in those that it started beside
// it. Calls are numbered by their turn, across all of these.
type run struct {
	plan    *plan
	machine *simfs.Machine
	how     start
	before  int  // the machine's count of writes at the start
	muted   bool // no crash points are taken for now: in tests of this package, those that another run has

	err    error // of the Func
	points []point
	log    []simfs.Call
	calls  int
	ops    []simfs.Call // all calls, where they were asked for
	fault  *simfs.Call  // the call that failed by injection, if any

	// What the last point was made of.
	changes int
	last    *ledger

	mu        sync.Mutex // may be taken while the machine is locked, and not the other way round
	processes []*Process // the Func's own is the first
	claims    *ledger
	surfaced  []error
	broken    error // the first broken check

	// At the first Observe:
	observed    bool
	written     int            // how often the processes had written
	atFirst     *simfs.Machine // the machine, where a second recovery is wanted
	firstClaims *ledger
}

// start says how a run goes.
type start struct {
	record bool
	log    bool
	ops    bool
	fault  *fault
}

// play runs f on machine, which it uses up.
func (pl *plan) play(machine *simfs.Machine, claims *ledger, f Func, how start) *run {
	r := newRun(pl, machine, claims, how)
	p := r.start()
	r.err = guard(func() error { return f(vfs.NewContext(context.Background(), p.sim), p) })
	r.end()
	return r
}

func newRun(pl *plan, machine *simfs.Machine, claims *ledger, how start) *run {
	return &run{plan: pl, machine: machine, claims: claims, how: how, before: machine.Writes(), changes: -1}
}

// start starts a process.
func (r *run) start() *Process {
	p := &Process{sim: r.machine.Start(), run: r}
	if r.how.log {
		p.sim.KeepLog()
	}
	if policy := r.plan.policy(); policy != nil {
		p.sim.SetPolicy(policy)
	}
	p.sim.SetHook(func(c *simfs.Call) simfs.Fault { return r.hook(p, c) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
	return p
}

// hook sees each call of each process: the machine is locked.
func (r *run) hook(p *Process, c *simfs.Call) simfs.Fault {
	if r.how.record && !r.muted && c.Op.Mutates() {
		// Where neither the machine nor the claims moved, the crash is the same.
		if l := r.ledger(); c.Changes() != r.changes || l != r.last {
			r.changes, r.last = c.Changes(), l
			r.points = append(r.points, point{c.Turn, c.Part, c.Snapshot(), l})
		}
	}
	if r.how.ops && c.Part == 0 {
		r.ops = append(r.ops, *c)
	}
	if c.Part == 0 && p.fail != nil {
		if err := p.fail(c); err != nil {
			return simfs.Fault{Err: err}
		}
	}
	if c.Part > 0 || r.how.fault == nil {
		return simfs.Fault{}
	}
	fault := r.how.fault.at(c)
	if fault.Err != nil && r.fault == nil {
		failed := *c
		r.fault = &failed
	}
	return fault
}

// end ends all processes, and gathers what is known of them.
func (r *run) end() {
	r.calls = r.machine.Calls()
	if r.how.record {
		r.points = append(r.points, point{r.calls + 1, 0, r.machine.Snapshot(), r.ledger()})
	}
	for _, p := range r.processes {
		r.log = append(r.log, p.sim.Log()...)
		p.sim.Kill()
	}
	slices.SortStableFunc(r.log, func(a, b simfs.Call) int { return cmp.Compare(a.Turn, b.Turn) })
}

func (r *run) surface(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.surfaced = append(r.surfaced, err)
}

func (r *run) claim(f func(*ledger) (*ledger, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, err := f(r.claims)
	r.claims = next
	if err != nil && r.broken == nil {
		r.broken = err
	}
}

func (r *run) ledger() *ledger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claims
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
