package pawl

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strconv"
)

// take waits for the turn to change the store. A caller that already has it, from
// inside Update's function, is told so rather than left waiting for itself.
func (s *Store) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return ctxError(ctx)
	}
	select {
	case s.turn <- struct{}{}:
	default:
		if g := s.updating.Load(); g != 0 && g == goroutineID() {
			return invalid("a change from inside the function that Update runs")
		}
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return ctxError(ctx)
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		s.give()
		return &Error{Kind: ErrClosed}
	}
	return nil
}

func (s *Store) give() { <-s.turn }

// usable says whether a change may begin.
func (s *Store) usable(ctx context.Context) *Error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.doubt != nil {
		return s.doubt
	}
	if ctx.Err() != nil {
		return outcome(ErrNotCommitted, &Error{Cause: ctxError(ctx)})
	}
	return nil
}

// ctxError is why a context ended; errors.Is finds context.Canceled or
// DeadlineExceeded, and the cause that was given.
func ctxError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause != nil && !errors.Is(cause, err) {
		err = errors.Join(err, cause)
	}
	return contained{err}
}

// goroutineID is the number of the calling goroutine. The runtime shows it only at
// the head of a stack trace. It serves to turn a certain deadlock into an error and
// for nothing else.
func goroutineID() uint64 {
	var b [64]byte
	head := b[:runtime.Stack(b[:], false)]
	f := bytes.Fields(head)
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseUint(string(f[1]), 10, 64)
	return n
}
