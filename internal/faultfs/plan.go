package faultfs

import "sync"

// Plan is a hook that acts on one call, or on all from one on, and remembers that
// it did. A loop that raises N until nothing has Fired has been at every call.
type Plan struct {
	N      int             // which call, from 1, of those that Only accepts
	Only   func(Call) bool // nil: all calls
	Sticky bool            // every one after the Nth as well, until Lift
	Action Action

	mu     sync.Mutex
	seen   int
	lifted bool
	fired  []Call
}

// Hook is the plan as a Hook.
func (p *Plan) Hook(c Call) Action {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Only != nil && !p.Only(c) {
		return Action{}
	}
	p.seen++
	if p.lifted || p.seen < p.N || p.seen > p.N && !p.Sticky {
		return Action{}
	}
	p.fired = append(p.fired, c)
	return p.Action
}

// Lift ends the fault.
func (p *Plan) Lift() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lifted = true
}

// Fired returns the calls that were acted on.
func (p *Plan) Fired() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Call(nil), p.fired...)
}
