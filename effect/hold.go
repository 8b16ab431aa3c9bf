package effect

import (
	"context"
	"errors"
	"sync"

	"github.com/seed-5cdcd42d/pawl"
)

// In one process, and on one Store, one at a time deals with an effect. Between processes
// the commits of the store decide.

type holdKey struct {
	store *pawl.Store
	key   string
}

type holdState struct {
	turn chan struct{} // holds one token while somebody has it
	want int           // who has it or waits for it
}

var holds = struct {
	sync.Mutex
	m map[holdKey]*holdState
}{m: map[holdKey]*holdState{}}

// enter counts somebody in who wants to deal with an effect; one that somebody has already
// only where he waits.
func (k holdKey) enter(waits bool) *holdState {
	holds.Lock()
	defer holds.Unlock()
	h := holds.m[k]
	if h == nil {
		h = &holdState{turn: make(chan struct{}, 1)}
		holds.m[k] = h
	} else if !waits {
		return nil
	}
	h.want++
	return h
}

func (k holdKey) leave(h *holdState) {
	holds.Lock()
	defer holds.Unlock()
	if h.want--; h.want == 0 {
		delete(holds.m, k)
	}
}

// hold waits for its turn with an effect; release gives it up.
func hold(ctx context.Context, s *pawl.Store, key string) (release func(), err error) {
	k := holdKey{s, key}
	return k.wait(ctx, k.enter(true))
}

// tryHold is hold for somebody who does not wait.
func tryHold(s *pawl.Store, key string) (release func(), ok bool) {
	k := holdKey{s, key}
	h := k.enter(false)
	if h == nil {
		return nil, false
	}
	release, err := k.wait(context.Background(), h)
	return release, err == nil
}

// ctxError is why a context ended; its cause may be an error of this package, about another
// effect.
func ctxError(ctx context.Context) error {
	return &Error{Cause: errors.Join(ctx.Err(), context.Cause(ctx))}
}

func (k holdKey) wait(ctx context.Context, h *holdState) (release func(), err error) {
	select {
	case h.turn <- struct{}{}:
		return sync.OnceFunc(func() { <-h.turn; k.leave(h) }), nil
	case <-ctx.Done():
		k.leave(h)
		return nil, ctxError(ctx)
	}
}
