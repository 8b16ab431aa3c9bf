package crashtest

import (
	"errors"
	"fmt"
)

// failure is a broken check.
type failure struct {
	item  *item
	err   error
	setup bool // in Setup: there is no history
}

// verdict is what one run broke by itself. Its Func may return an error only when it
// met a fault; what says which Func that was.
func (r *run) verdict(what string) error {
	if r.broken != nil {
		return r.broken
	}
	for _, p := range r.processes {
		if v := p.sim.Violations(); len(v) > 0 {
			return v[0]
		}
	}
	switch {
	case errors.Is(r.err, errPanic):
		return r.err
	case r.err != nil && r.fault == nil:
		return fmt.Errorf("%s: %w", what, r.err)
	}
	return nil
}

// check judges what ran on an item, and what it left.
func (x *explorer) check(it *item, r *run) error {
	what := "an ordinary crash blocks"
	if it.parent == nil {
		what = "the workload fails without a crash"
	}
	if err := r.verdict(what); err != nil {
		return err
	}
	if err := r.swallowed(x.plan); err != nil {
		return err
	}
	if it.parent == nil || r.err != nil {
		return nil
	}
	if !r.observed {
		return errors.New("the recovery returned nil and never called Observe")
	}
	if r.fault != nil { // it may have left for the next one what it could not do
		return nil
	}
	if err := x.checkAfter(r); err != nil || r.atFirst == nil {
		return err
	}
	return x.checkTwice(r)
}

// checkAfter runs the test's own checks on what a recovery left.
func (x *explorer) checkAfter(r *run) error {
	for _, f := range x.plan.checks {
		m := r.machine.Snapshot()
		before := m.Writes()
		c := x.plan.play(m, r.claims, f, start{})
		if err := c.verdict("check after the recovery"); err != nil {
			return err
		}
		if m.Writes() != before {
			return errors.New("a Check changed something")
		}
	}
	return nil
}

// checkTwice kills the recovery just when it has observed, and recovers again.
func (x *explorer) checkTwice(r *run) error {
	claims := r.firstClaims
	if !x.isNewTwice(key{r.atFirst.Sum(), claims.sum()}) {
		return nil
	}
	x.count(func(s *Stats) { s.Twice++ })
	m := r.atFirst
	again := x.plan.play(m, claims, x.plan.recover, start{})
	if err := again.verdict("a second recovery fails"); err != nil {
		return err
	}
	if again.written != 0 {
		return fmt.Errorf("K7: a second recovery wrote %d times before it observed", again.written)
	}
	return nil
}

// fail keeps the failure with the fewest crashes.
func (x *explorer) fail(it *item, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.found == nil || it.depth < x.found.item.depth {
		x.found = &failure{item: it, err: err}
	}
	x.stopped.Store(true)
}

// isNewTwice is isNew for second recoveries.
func (x *explorer) isNewTwice(k key) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.twice[k]
	x.twice[k] = true
	return !before
}
