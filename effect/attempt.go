package effect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// Call is what a function is given to carry an effect out with.
type Call struct {
	// Key is the idempotency key: 64 hexadecimal digits, made from key, destination and
	// body, the same in every attempt and after every restart.
	Key string

	Name        string // the key that the caller gave
	Destination string
	Body        []byte
	Attempt     int // from 1
}

// carrier carries effects out, and decides about those whose outcome is not known.
type carrier struct {
	store      *pawl.Store
	do, settle func(context.Context, Call) ([]byte, error)
	idempotent bool
	timeout    time.Duration // of an attempt; 0: none
	most       int           // attempts; 0: no end

	// delay is how long the next attempt waits after a failure. nil: not at all, and not
	// for what an earlier one was to wait either.
	delay func(attempt int) time.Duration
}

// leasePart is by which part of its time an attempt in a shared store is believed to go on
// for longer: for its end, and for its result to be written down.
const leasePart = 4

// step is what can be done with an effect now.
type step int

const (
	stepGone  step = iota // it is settled, or there never was one
	stepRun               // the attempt has begun: call the function
	stepAsk               // ask Settle
	stepWait              // until a time
	stepStuck             // parked
)

// next decides what can be done with an effect now, and makes the transition that goes with
// it. request, if not nil, begins it where there is none. asked says that Settle was asked
// and does not know. Whoever calls it holds the effect.
func (c *carrier) next(ctx context.Context, key string, request *Request, asked bool) (to step, until time.Time, r *record, err error) {
	r, err = transit(ctx, c.store, key, func(now look) (*move, error) {
		var m *move
		if now.record == nil {
			if to = stepGone; request == nil {
				return nil, nil
			}
			fresh, err := begin(ctx, c.store, key, *request, now)
			if err != nil || fresh == nil {
				return nil, err
			}
			to, m = stepRun, &move{name: "begin", next: *fresh}
		} else {
			if request != nil {
				if err := same(now.Scheme, now.Digest, key, *request); err != nil {
					return nil, err
				}
			}
			to, until, m = c.decide(now, asked)
		}
		if to == stepRun {
			r := &m.next
			r.Attempt++
			r.Runner, r.NotBefore, r.Error = token(ctx), time.Time{}, ""
			if c.store.Shared() {
				r.Lease = now.at.Add(c.timeout + c.timeout/leasePart + time.Millisecond).Truncate(time.Millisecond)
			}
			m.by = r.Runner
		}
		return m, nil
	})
	return to, until, r, err
}

// begin is the record of an effect that nobody has asked for yet; nil when it is settled
// already. An effect that has begun, and of which neither a record nor an end is there, is
// unknown: it is not begun again.
func begin(ctx context.Context, s *pawl.Store, key string, r Request, now look) (*record, error) {
	end, err := settled(ctx, s, key)
	if err != nil || end != nil {
		return nil, err
	}
	if err := unmade(ctx, s, key, commitID(key, "start/1")); err != nil {
		return nil, err
	}
	identity, _ := identify(scheme, key, r)
	fresh := &record{
		Type: recordType, Scheme: scheme, Digest: identity, Key: key, Destination: r.Destination, Body: append([]byte{}, r.Body...),
		Order: uint64(now.seq), Epoch: 1,
	}
	return fresh, fresh.roomIn(s.Limits())
}

// moveRoom is what a record, or the entry about it, needs to grow: all fields at their
// longest, but for the texts of errors, which a transition can do without, and of operators,
// who can be brief.
const moveRoom = 512

// roomIn refuses an effect that could be recorded, and then not be moved.
func (r *record) roomIn(l pawl.Limits) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	entry, err := json.Marshal(&Event{Type: eventType, Scheme: r.Scheme, Digest: r.Digest, Key: r.Key, Destination: r.Destination})
	if err != nil {
		return err
	}
	part, beside := int64(len(b)+moveRoom), int64(len(entry)+moveRoom)
	if part > l.Part || beside > l.Entry || part+beside+int64(len(partOf(r.Key))) > l.Commit {
		return fmt.Errorf("%w: its record takes up to %d bytes, and each entry about it %d; Limits.Part, Entry and Commit leave less", pawl.ErrTooLarge, part, beside)
	}
	return nil
}

// decide is all that is decided about an effect that is not settled, from its record.
func (c *carrier) decide(now look, asked bool) (to step, until time.Time, m *move) {
	r := now.record
	m = &move{next: *r}
	waits := c.delay != nil && r.waits(now.at)
	switch r.State {
	case Queued, Failed, Released:
		if waits {
			return stepWait, r.NotBefore, nil
		}
		// A release is the permission for one attempt, and says nothing of those before. It is
		// used up by this.
		m.name, m.next.Doubt = "start", r.Doubt || r.State == Released
		return stepRun, until, m
	case Started:
		// Where one process has the store for itself there is no lease: who holds the effect
		// knows then that nobody is left to carry it out. Else that is known when the lease
		// has ended.
		if r.owned() && r.Lease.After(now.at) && !r.ahead(now.at) {
			return stepWait, r.Lease, nil
		}
		if waits {
			return stepWait, r.NotBefore, nil
		}
	}
	switch {
	case c.settle != nil && !asked:
		return stepAsk, until, nil
	case c.mayRepeat(r):
		m.name, m.next.Doubt = "again", true
		return stepRun, until, m
	case r.State == Started:
		m.name, m.by = "park", cmp.Or(r.Runner, "nobody")
		if m.next.free(); r.owned() {
			m.next.Error = "whoever carried it out is gone"
		}
		return stepStuck, until, m
	}
	return stepStuck, until, nil
}

// waits says that the next attempt is to be later. A record that was written under a clock
// that is no more does not say when.
func (r *record) waits(at time.Time) bool { return r.NotBefore.After(at) && !r.Since.After(at) }

// ahead says that a record was written under a clock that is no more: its lease says nothing.
func (r *record) ahead(at time.Time) bool {
	return r.Since.After(at.Add(r.Lease.Sub(r.Since) / leasePart))
}

// mayRepeat says that the next attempt may begin though the outcome of the last is not known.
func (c *carrier) mayRepeat(r *record) bool {
	return c.idempotent && (c.most == 0 || r.Attempt < c.most)
}

// free takes the runner out of a record.
func (r *record) free() { r.Runner, r.Lease, r.NotBefore = "", time.Time{}, time.Time{} }

// answer is what a function, or Settle, has said.
type answer struct {
	result  []byte
	err     error
	settles bool // Settle said it: it is about all attempts

	uncalled bool // the function was not called: the attempt does not count as one
}

// read calls what an error has of methods, which may panic, where that does no harm.
func (a answer) read() {
	if a.err != nil {
		_, _ = a.err.Error(), a.known()
	}
}

// known returns what an error is known to say; nil when the outcome is open.
func (a answer) known() *failure { return certain(a.err) }

// certain finds the mark of NotDone or Permanent. Of several errors in one each has to have
// one: what the others are about may have happened.
func certain(err error) *failure {
	switch e := err.(type) {
	case *failure:
		return e
	case interface{ Unwrap() error }:
		return certain(e.Unwrap())
	case interface{ Unwrap() []error }:
		all := &failure{err: err, permanent: true}
		some := false
		for _, one := range e.Unwrap() {
			if one == nil {
				continue
			}
			f := certain(one)
			if f == nil {
				return nil
			}
			some, all.permanent = true, all.permanent && f.permanent
		}
		if some {
			return all
		}
	}
	return nil
}

// conclude writes down how an attempt ended, and returns the effect as it is then: nil when
// it is settled. What is known by now that is more than an answer says stays as it is.
// Nobody need hold the effect: the record tells whether the answer is about it.
func (c *carrier) conclude(ctx context.Context, about *record, a answer) (*record, error) {
	// The answer is there, whatever has become of who asked for it.
	ctx = context.WithoutCancel(ctx)
	var wait time.Duration
	if c.delay != nil {
		wait = max(c.delay(about.Attempt), 0)
	}
	began := time.Now()
	for try := 1; ; try++ {
		r, err := transit(ctx, c.store, about.Key, func(now look) (*move, error) {
			r := now.record
			if r == nil || r.Digest != about.Digest {
				return nil, nil
			}
			// That it happened is news whichever attempt says so.
			other := r.Attempt != about.Attempt || r.owned() && r.Runner != about.Runner
			if other && (a.err != nil || r.Attempt < about.Attempt) {
				return nil, nil
			}
			m := c.judge(now, a, wait)
			if m != nil && m.by == "" {
				m.by = about.Runner
			}
			return m, nil
		})
		if err == nil || try >= passing(err) || time.Since(began) > lockTime {
			return r, err
		}
		time.Sleep(lockPause << try) // what is known now is not to be lost for that
	}
}

// passing says how often to try what the store has not taken: more often where others hold
// it, or the disk is full, which passes; once more where something else was the matter; and
// once where that is for good.
func passing(err error) int {
	switch {
	case errors.Is(err, pawl.ErrTooLarge), errors.Is(err, pawl.ErrClosed), errors.Is(err, pawl.ErrStale):
		return 1
	case errors.Is(err, pawl.ErrLocked), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return lockTries
	case errors.Is(err, pawl.ErrNotCommitted), errors.Is(err, pawl.ErrInDoubt):
		return 2
	}
	return 1
}

// judge is the transition that follows from an answer; nil when none does.
func (c *carrier) judge(now look, a answer, wait time.Duration) *move {
	r, failed := now.record, a.known()
	m := &move{next: *r}
	if a.settles {
		m.by = "Settle"
	}
	m.next.free()
	m.next.Error = recorded(a.err)
	later := time.Time{}
	if wait > 0 {
		later = now.at.Add(wait).Truncate(time.Millisecond)
	}
	last := c.most > 0 && r.Attempt >= c.most
	switch {
	case a.err == nil:
		m.name, m.result = "done", a.result
	case r.State == Released, r.State == Failed:
		return nil // the attempt that was allowed is still to come; or it is known already
	case failed != nil && (a.settles || !r.Doubt || failed.permanent && c.idempotent):
		// It did not happen, in this attempt nor in one before. What the other side answers to
		// a key that it knows is its answer to all of them.
		m.name, m.next.Doubt = "fail", false
		if failed.permanent || last && !a.uncalled {
			m.name = "give up"
		} else {
			m.next.NotBefore = later
		}
	case !r.owned() || a.settles:
		return nil // nothing is known that was not known before
	case c.mayRepeat(r):
		m.name, m.next.NotBefore = "unsure", later
	default:
		m.name = "park"
	}
	return m
}

// How often what an attempt came to is written down where the store does not take it, and between
// two times a pause that doubles: some seconds in all, besides what Options.LockWait adds.
const (
	lockTries = 8
	lockPause = 10 * time.Millisecond
	lockTime  = 10 * time.Second // after which no further try begins
)

// finish is conclude for a function that has returned.
func (c *carrier) finish(ctx context.Context, r *record, a answer) (*record, error) {
	after, err := c.conclude(ctx, r, a)
	if a.err == nil && errors.Is(err, pawl.ErrTooLarge) {
		// A result that the store does not take is lost.
		after, err = c.conclude(ctx, r, answer{err: fmt.Errorf("the result is not recorded: %w", err)})
	}
	return after, err
}

// ask asks Settle about an effect, and writes its answer down. The first error is Settle's.
func (c *carrier) ask(ctx context.Context, r *record) (after *record, said, err error) {
	result, said := c.settle(context.WithValue(ctx, carrying{c.store, r.Key}, true), r.call())
	after, err = c.conclude(ctx, r, answer{result: result, err: said, settles: true})
	return after, said, err
}

// call is what the function is given.
func (r *record) call() Call {
	return Call{Key: idempotencyKey(r.Digest), Name: r.Key, Destination: r.Destination, Body: append([]byte{}, r.Body...), Attempt: r.Attempt}
}

// carrying marks the context of a function, so that Do does not wait for itself there.
type carrying holdKey

// left is how much of its time an attempt has. Where it has a lease, that began when the
// attempt was decided on: the commit that says so has taken some, and so may whatever
// stopped this process since. Less than the times in records tell apart is none.
func (c *carrier) left(ctx context.Context, r *record) time.Duration {
	left := c.timeout
	if !r.Lease.IsZero() {
		left -= max(now(ctx).Sub(r.Since), 0)
	}
	if left < time.Millisecond {
		return 0
	}
	return left
}

// within is the context of a function that has so much time, if there is a timeout.
func (c *carrier) within(ctx context.Context, r *record, left time.Duration) (context.Context, context.CancelFunc) {
	ctx = context.WithValue(ctx, carrying{c.store, r.Key}, true)
	if c.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, left, fmt.Errorf("it has had its %v: %w", c.timeout, context.DeadlineExceeded))
}
