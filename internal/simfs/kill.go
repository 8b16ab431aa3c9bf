package simfs

// Kill ends the process: its locks and timers go, and every further call fails. Other
// processes on the machine go on.
func (p *Process) Kill() { p.locked(p.kill) }

// KillAt kills the process just before its n-th mutating call from now: that call does
// not happen, and fails as every one after it. With n of 0 it is not to be killed.
func (p *Process) KillAt(n int) {
	p.locked(func() {
		if p.doomed = 0; n > 0 {
			p.doomed = p.muts + n
		}
	})
}

// Killed says whether the process was killed.
func (p *Process) Killed() (dead bool) {
	p.locked(func() { dead = p.dead })
	return dead
}

func (p *Process) kill() {
	if p.dead {
		return
	}
	p.dead = true
	p.m.handles -= p.open
	p.open = 0
	p.timers = nil
	for ino, h := range p.m.locks {
		if h.p == p {
			delete(p.m.locks, ino)
		}
	}
}
