package crashtest

import (
	"context"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// ErrKilled is matched by the error of every call on the simulated disks of a process
// that Kill or KillAt ended.
var ErrKilled = simfs.ErrKilled

// Beside starts another process on the same machine, while p runs; the context that it
// returns carries the machine as that process sees it. Locks of the one keep the other
// out. The machine crashes at the calls of both, in the order in which they happen, and
// either's calls can be made to fail. What the two claim is one history: an End of one
// holds for an Observe of the other. Both end when the Func returns.
//
// A Func must do the same thing each time: it lets its processes take turns, rather
// than leave their order to goroutines.
func (p *Process) Beside(ctx context.Context) (context.Context, *Process) {
	q := p.run.start()
	return vfs.NewContext(ctx, q.sim), q
}

// Kill ends the process now, and no other one: its locks are given up, each further
// call of it fails with ErrKilled, and what it claims from now on is not heard. What it
// wrote stays visible, and is no more durable than before.
func (p *Process) Kill() { p.sim.Kill() }

// KillAt kills the process just before its n-th mutating call from now, which then does
// not happen. Mutating calls are those that a crash can come before. An n of 0 takes
// that back.
func (p *Process) KillAt(n int) { p.sim.KillAt(n) }

// Mutations is the number of mutating calls that the process made so far.
func (p *Process) Mutations() int { return p.sim.Mutations() }
