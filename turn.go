package pawl

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strconv"
)

// ready says whether a change may begin to wait. A caller that has the turn already,
// inside the function of Update or of a Policy, is told so rather than left waiting for itself.
func (s *Store) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	if s.inside() {
		return invalid("a change from inside a function that Update or Compact calls")
	}
	return nil
}

// inside reports whether the caller is a function that Update or Compact has called.
func (s *Store) inside() bool {
	g := s.updating.Load()
	return g != 0 && g == goroutineID()
}

// take waits for the turn to change the store.
func (s *Store) take(ctx context.Context) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctxError(ctx)
	}
	s.mu.RLock()
	closed := s.closed
	s.mu.RUnlock()
	if closed {
		s.give()
		return &Error{Kind: ErrClosed}
	}
	return nil
}

// give gives the turn up. A confirm that is not flushed is left to whoever comes
// next, or to the timer: wound up afterwards, so that it cannot find the turn taken by
// the one who winds it.
func (s *Store) give() {
	if s.opts.Shared {
		if err := s.leave(); err != nil {
			s.opts.Logger.Warn("pawl: a lock was not given up as it should be", "store", s.at.dir, "error", err)
		}
	}
	<-s.turn
	if s.trust.behind.Load() {
		s.idle.Reset(confirmDelay)
	}
}

// refusal is why the store takes no changes; nil when it does.
func (s *Store) refusal() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.closed:
		return &Error{Kind: ErrClosed}
	case s.doubt != nil:
		return s.doubt
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
