package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// Func carries an effect out, or finds out what became of it. A result says that it
// happened. An error that NotDone or Permanent has marked says that it certainly did not,
// any other one that nobody knows.
type Func[T any] func(ctx context.Context, c Call) (T, error)

// Options say what Do does about an effect that was begun and has no recorded result. The
// zero value, and a nil *Options, never carry one out twice: it is parked.
type Options[T any] struct {
	// Settle asks the world outside what became of an effect. Its answer is about all
	// attempts: a result settles it, NotDone lets it be tried again, Permanent ends it, and
	// after any other error it is as unknown as before. NotDone must be certain of what is
	// still under way too: a request that a dead process has sent may arrive yet.
	Settle Func[T]

	// Idempotent says that the other side knows Call.Key, and that any number of calls with
	// it have the effect of one. Then an unsettled effect is carried out again.
	Idempotent bool

	// Timeout ends the context of an attempt, if not 0. In a shared store it is a minute by
	// default, and others take an attempt for dead a quarter of it later: whatever the
	// function has begun must be over by then.
	Timeout time.Duration
}

// Do carries out one effect, and returns its result: the recorded one, without calling fn,
// where there is one. A program that was killed at any instant calls it again in the same
// way.
//
// The request is on stable storage before fn is called, and fn's result, as JSON, before Do
// returns it. When Do returns nil, the effect happened and its result will be the same for
// ever, or until retention has dropped it: then the error matches pawl.ErrForgotten, and fn
// is not called.
//
// fn is called at most once by each call of Do. An error of fn is returned, with what it means:
// ErrNotDone (marked by NotDone; the next call of Do tries again), ErrFailed (marked by
// Permanent; recorded), ErrUnsettled (any other one, ctx ending included, and a result that
// does not encode). After a panic in fn the effect is unsettled too, and the panic goes on.
// When ctx has ended before fn is called, nothing happened.
//
// Of several calls with one key at a time, in a process or in several that share the
// store, one calls fn, and the others wait for it, as long as their ctx lets them; in
// another process no longer than Timeout and a quarter of it. fn may call Do with other keys,
// always in one order, lest two calls wait for each other, and must not with its own; Do must
// not be called in the function of Store.Update.
func Do[T any](ctx context.Context, s *pawl.Store, key string, r Request, fn Func[T], o *Options[T]) (T, error) {
	var zero, result T
	if o == nil {
		o = &Options[T]{}
	}
	if t := reflect.TypeFor[T](); t.Kind() == reflect.Interface && t.NumMethod() > 0 {
		return zero, &Error{Op: "do", Key: key, Destination: r.Destination, Kind: pawl.ErrInvalid,
			Cause: fmt.Errorf("a result cannot be read as %v, which does not say what it is", t)}
	}
	b, err := do(ctx, carrier{store: s, do: encoded(fn), settle: encoded(o.Settle), idempotent: o.Idempotent, timeout: o.Timeout}, key, r)
	if err != nil {
		e, ok := err.(*Error) // and not one in it: the cause of ctx may be the error of another Do
		if !ok {
			e = &Error{Cause: err}
		}
		c := *e
		c.Op, c.Key, c.Destination = "do", key, r.Destination
		return zero, &c
	}
	if len(b) == 0 {
		return zero, nil // a handler, or an operator, that had nothing to say
	}
	if err := json.Unmarshal(b, &result); err != nil {
		identity, _ := identify(scheme, key, r)
		return zero, &Error{Op: "do", Key: key, Destination: r.Destination, Digest: identity, State: Done, Kind: ErrResult,
			Cause: fmt.Errorf("it is no %v: %w", reflect.TypeFor[T](), err)}
	}
	return result, nil
}

// encoded is a function whose result is JSON. One that does not encode is lost: nobody can
// say later what it was.
func encoded[T any](f Func[T]) func(context.Context, Call) ([]byte, error) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, c Call) ([]byte, error) {
		t, err := f(ctx, c)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(t)
		if err != nil {
			return nil, fmt.Errorf("the result does not encode: %w", err)
		}
		return b, nil
	}
}

// defaultTimeout is that of an attempt where there has to be one.
const defaultTimeout = time.Minute

func do(ctx context.Context, c carrier, key string, r Request) ([]byte, error) {
	if err := check(key, r); err != nil {
		return nil, err
	}
	if c.store == nil || c.do == nil || c.timeout < 0 {
		return nil, fmt.Errorf("%w: a store, a function and a timeout that is not negative are needed", pawl.ErrInvalid)
	}
	c.timeout = min(c.timeout, mostTimeout)
	if c.timeout == 0 && c.store.Shared() {
		c.timeout = defaultTimeout
	}
	if ctx.Value(carrying{c.store, key}) != nil {
		return nil, fmt.Errorf("%w: the function calls Do with its own key", pawl.ErrInvalid)
	}
	release, err := hold(ctx, c.store, key)
	if err == errLeft {
		return c.standing(ctx, key, r, err)
	}
	if err != nil {
		return nil, c.doubt(key, r, err)
	}
	defer release()
	// What is settled needs no turn. A store that is in doubt is settled below, first.
	if end, err := settled(ctx, c.store, key); !errors.Is(err, pawl.ErrInDoubt) && (err != nil || end != nil) {
		return ended(end, c.doubt(key, r, err), key, r, nil)
	}
	var said error // by Settle
	for asked := false; ; {
		to, until, now, err := c.next(ctx, key, &r, asked)
		if err != nil {
			return nil, c.doubt(key, r, err)
		}
		switch to {
		case stepGone:
			end, err := settled(ctx, c.store, key)
			return ended(end, err, key, r, nil)
		case stepStuck:
			return nil, now.error(ErrUnsettled, said)
		case stepWait:
			if err := c.await(ctx, now, until); err != nil {
				return nil, err
			}
		case stepAsk:
			asked = true
			var after *record
			if after, said, err = c.ask(ctx, now); err != nil {
				return nil, now.error(ErrUnsettled, errors.Join(said, err))
			}
			if after == nil {
				end, err := settled(context.WithoutCancel(ctx), c.store, key)
				return ended(end, err, key, r, said)
			}
		case stepRun:
			return c.once(ctx, now, key, r)
		}
	}
}

// standing is what Do returns without its turn.
func (c *carrier) standing(ctx context.Context, key string, r Request, cause error) ([]byte, error) {
	if end, err := settled(ctx, c.store, key); err != nil || end != nil {
		return ended(end, c.doubt(key, r, err), key, r, nil)
	}
	rec, err := load(c.store.View(), key)
	switch {
	case err != nil:
		return nil, err
	case rec == nil:
		return nil, &Error{Kind: ErrUnsettled, Cause: cause}
	}
	if err := same(rec.Scheme, rec.Digest, key, r); err != nil {
		return nil, err
	}
	return nil, rec.error(ErrUnsettled, cause)
}

// doubt adds to an error of the store that the effect had begun before.
func (c *carrier) doubt(key string, request Request, err error) error {
	if err == nil {
		return nil
	}
	cause := err
	if own, ok := err.(*Error); ok {
		if cause = own.Cause; own.Kind != nil {
			return err
		}
	}
	r, e := load(c.store.View(), key)
	if e != nil || r == nil || r.State != Started && r.State != Parked {
		return err
	}
	if e := same(r.Scheme, r.Digest, key, request); e != nil {
		return e
	}
	return r.error(ErrUnsettled, cause)
}

// once makes the attempt that has begun, and returns what Do returns.
func (c *carrier) once(ctx context.Context, now *record, key string, r Request) ([]byte, error) {
	after, said, err := c.attempt(ctx, now)
	if err == nil && after != nil && after.Attempt == now.Attempt && after.State != Failed && c.settle != nil {
		var also error
		after, also, err = c.ask(ctx, after)
		said = errors.Join(said, also)
	}
	switch {
	case err != nil:
		return nil, now.error(ErrUnsettled, errors.Join(said, err))
	case after == nil:
		// The result is there, whether or not ctx is.
		end, err := settled(context.WithoutCancel(ctx), c.store, key)
		return ended(end, err, key, r, said)
	case after.State == Failed && after.Attempt == now.Attempt:
		return nil, after.error(ErrNotDone, said)
	}
	return nil, after.error(ErrUnsettled, said)
}

// ended is what Do returns for an effect that is settled. cause is what has just ended it.
func ended(end *Event, err error, key string, r Request, cause error) ([]byte, error) {
	switch {
	case err != nil:
		return nil, err
	case end == nil:
		return nil, &Error{Key: key, Kind: ErrUnknown, Cause: errors.New("it is neither settled nor unsettled")}
	}
	if err := same(end.Scheme, end.Digest, key, r); err != nil {
		return nil, err
	}
	e := &Error{Digest: end.Digest, State: end.To, Attempt: end.Attempt, Epoch: end.Epoch, Cause: cause}
	switch end.To {
	case Done:
		return end.Result, nil
	case Failed:
		e.Kind = ErrFailed
		if cause == nil {
			e.Cause = errors.New(end.Error)
		}
	default:
		e.Kind = ErrCancelled
		if cause == nil {
			e.Cause = errors.New(end.Reason)
		}
	}
	return nil, e
}

// error is an error about an effect that is not settled.
func (r *record) error(kind, cause error) error {
	if cause == nil && r.Error != "" {
		cause = errors.New(r.Error)
	}
	return &Error{Key: r.Key, Destination: r.Destination, Digest: r.Digest, State: r.State, Attempt: r.Attempt, Epoch: r.Epoch, Kind: kind, Cause: cause}
}

// attempt calls the function, in this goroutine, and writes down how that ended.
func (c *carrier) attempt(ctx context.Context, r *record) (after *record, said, err error) {
	within, cancel := c.within(ctx, r, c.left(ctx, r))
	defer cancel()
	if within.Err() != nil {
		// The function was not called, and that is certain.
		said = NotDone(context.Cause(within))
		after, err = c.finish(ctx, r, answer{err: said, uncalled: true})
		return after, said, err
	}
	returned := false
	defer func() {
		if !returned { // a panic, or the goroutine ends: nobody knows how far it came
			_, _ = c.finish(ctx, r, answer{err: errors.New("the function did not return")})
		}
	}()
	result, said := c.do(within, r.call())
	answer{err: said}.read()
	returned = true
	after, err = c.finish(ctx, r, answer{result: result, err: said})
	return after, said, err
}

// await waits until a time, or until the effect of a record has changed.
func (c *carrier) await(ctx context.Context, r *record, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, max(until.Sub(now(ctx)), 0)+time.Millisecond)
	defer cancel()
	for v, err := range c.store.Watch(ctx, 0) {
		if errors.Is(err, pawl.ErrClosed) {
			return err
		}
		if err != nil {
			continue // Update says what is wrong
		}
		if now, err := load(v, r.Key); err != nil || now == nil || now.Attempt != r.Attempt || now.State != r.State || now.Runner != r.Runner {
			return nil
		}
	}
	if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return ctxError(ctx)
	}
	return nil
}
