package crashtest

import "github.com/seed-5cdcd42d/pawl/internal/simfs"

// Process is a process on the simulated machine: the one in which a Func runs, or one
// that it started beside that.
type Process struct {
	sim *simfs.Process
	run *run

	// fail makes calls fail that the Func itself arranged, in tests of this package.
	fail func(c *simfs.Call) error
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
		p.run.surface(err)
	}
	p.claim(func(l *ledger) (*ledger, error) { return l.end(label, err, err != nil && p.run.plan.certain(err)) })
}

// Observe says which state was found.
func (p *Process) Observe(label string) {
	r := p.run
	var now *simfs.Machine
	written := r.machine.Writes() - r.before
	if r.plan.idempotent {
		now = r.machine.Snapshot() // not under mu: a hook takes that while the machine is locked
	}
	p.claim(func(l *ledger) (*ledger, error) {
		next, err := l.observe(label)
		if !r.observed {
			r.observed, r.written, r.atFirst, r.firstClaims = true, written, now, next
		}
		return next, err
	})
}

// Report takes down an error that the program met and told of in a way that neither
// End nor the Func's own error shows.
func (p *Process) Report(err error) { p.run.surface(err) }

// claim takes down what the process says. One that was killed says nothing: whatever
// its code goes on to do, nobody hears of it.
func (p *Process) claim(f func(*ledger) (*ledger, error)) {
	if !p.sim.Killed() {
		p.run.claim(f)
	}
}
