package simfs

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// timer is armed while its process lists it.
type timer struct {
	p   *Process
	n   int // its place among the timers of its process, by their making
	due time.Time
	f   func()
}

var _ vfs.Timer = (*timer)(nil)

// AfterFunc arms a timer. It fires when the test calls Idle, however short or long
// d is, zero and less included: d only says which of several is first.
func (p *Process) AfterFunc(d time.Duration, f func()) vfs.Timer {
	t := &timer{p: p, f: f}
	p.locked(func() {
		p.timed++
		t.n = p.timed
		t.arm(d)
	})
	return t
}

// Idle lets the process do nothing for long enough that each of its timers fires,
// once: their functions run here, one after the other, the one that is due first
// before the others, and of two that are due at once the one that was made first. A
// timer that one of them stops does not fire, one that they put off does in its turn,
// and one that they make, or that has fired and is armed again, waits for the next
// Idle. A process that was killed is not idle but gone: none of its functions runs.
func (p *Process) Idle() {
	var armed []*timer
	p.locked(func() {
		armed = slices.Clone(p.timers)
		slices.SortFunc(armed, func(a, b *timer) int {
			return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.n, b.n))
		})
	})
	for _, t := range armed {
		if t.Stop() { // not locked while f runs: it makes calls
			t.f()
		}
	}
}

// Reset arms the timer again, from now on.
func (t *timer) Reset(d time.Duration) (was bool) {
	t.p.locked(func() {
		was = t.disarm()
		t.arm(d)
	})
	return was
}

// Stop disarms the timer.
func (t *timer) Stop() (was bool) {
	t.p.locked(func() { was = t.disarm() })
	return was
}

func (t *timer) arm(d time.Duration) {
	if t.p.dead {
		return
	}
	t.due = t.p.now().Add(d)
	t.p.timers = append(t.p.timers, t)
}

func (t *timer) disarm() bool {
	i := slices.Index(t.p.timers, t)
	if i >= 0 {
		t.p.timers = slices.Delete(t.p.timers, i, i+1)
	}
	return i >= 0
}
