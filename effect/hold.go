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
	left chan struct{} // closed: the function of who has it was given up, and has not returned
}

// errLeft is the error for an effect of which a call is under way that nobody waits for.
var errLeft = errors.New("an attempt that was given up has not returned yet, in this process")

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
		h = &holdState{turn: make(chan struct{}, 1), left: make(chan struct{})}
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

// abandon says of an effect that whoever has it does not know when that will end. Nobody
// waits for it then.
func abandon(s *pawl.Store, key string) {
	holds.Lock()
	defer holds.Unlock()
	close(holds.m[holdKey{s, key}].left)
}

// back takes back what abandon has said: the function has returned.
func (h *holdState) back() {
	holds.Lock()
	defer holds.Unlock()
	select {
	case <-h.left:
		h.left = make(chan struct{})
	default:
	}
}

// hold waits for its turn with an effect; release gives it up. errLeft: nobody knows when
// that would be.
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
	holds.Lock()
	left := h.left
	holds.Unlock()
	select {
	case h.turn <- struct{}{}:
		return sync.OnceFunc(func() { h.back(); <-h.turn; k.leave(h) }), nil
	case <-left:
		k.leave(h)
		return nil, errLeft
	case <-ctx.Done():
		k.leave(h)
		return nil, ctxError(ctx)
	}
}
