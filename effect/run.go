package effect

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// Run carries out what is in the outbox, and what comes to it, until ctx ends; then it takes
// nothing new, waits for the attempts that are under way, as long as Timeout says, and returns
// nil. It returns an error only when the store takes no more changes: then nothing is lost, and
// what was under way is unsettled.
//
// Effects of one destination are taken in the order in which they were enqueued (with a
// Handler.Concurrency of 1 they begin in it); one that waits, or fails, does not hold up the
// next. Definite failures are tried again, with back-off; what is unknown goes by Settle and
// Idempotent, and is else parked. Effects of a destination without a handler stay queued. A
// record that is not understood is reported once, and left. No effect stops another, unless it
// keeps to its slot (Handler.Concurrency) for its Timeout.
//
// It takes all unsettled effects of its destinations, those that Do began too.
func (o *Outbox) Run(ctx context.Context, handlers map[string]Handler) error {
	r := &runner{
		o: o, carriers: map[string]*carrier{}, lanes: map[string]*lane{}, items: map[string]*item{},
		ended: make(chan ending), told: map[string]bool{}, again: map[string]time.Time{},
	}
	if o.store == nil {
		return &Error{Op: "run", Kind: pawl.ErrInvalid, Cause: errors.New("the outbox has no store")}
	}
	for name, h := range handlers {
		h, err := h.complete(name)
		if err != nil {
			return err
		}
		r.carriers[name] = h.carrier(o.store)
		r.lanes[name] = &lane{slots: h.Concurrency}
		r.names = append(r.names, name)
	}
	slices.Sort(r.names)
	if r.most = o.opts.Concurrency; r.most <= 0 {
		r.most = leastConcurrency
		for _, l := range r.lanes {
			r.most += l.slots
		}
	}
	watching, stop := context.WithCancel(ctx)
	views, closed := r.watch(watching)
	err := r.loop(ctx, views, closed)
	stop()
	for r.running > 0 {
		r.finish(ctx, <-r.ended, nil)
	}
	<-closed
	return err
}

// runner is one call of Run. Its fields belong to the goroutine of that call.
type runner struct {
	o        *Outbox
	carriers map[string]*carrier
	names    []string // of the destinations with a handler, sorted
	first    int      // which of them has the first choice

	items   map[string]*item // by part
	lanes   map[string]*lane // by destination
	seen    pawl.Revision    // items are those of this revision
	whole   bool             // all parts were read once
	running int
	most    int                  // of those that are running
	at      time.Time            // when it last looked what is due
	again   map[string]time.Time // parts that could not be read, and when they are read again
	ended   chan ending
	told    map[string]bool // what was logged, and is not to be logged again
}

// ending is how an item left its goroutine.
type ending struct {
	item *item
	was  record // when it began
	busy bool   // somebody else in this process deals with it
	said error
	err  error // of the store
}

// watch hands over the newest view. The second channel is closed when there are no more, and
// then has the reason, if there is one.
func (r *runner) watch(ctx context.Context) (<-chan pawl.View, <-chan error) {
	views, closed := make(chan pawl.View), make(chan error, 1)
	go func() {
		defer close(closed)
		for v, err := range r.o.store.Watch(ctx, 0) {
			if errors.Is(err, pawl.ErrClosed) {
				closed <- err
				return
			}
			if err != nil {
				// Each attempt looks for itself, and meets what is wrong.
				r.o.opts.Logger.Warn("effect: the store cannot be watched", "error", oneLine(err.Error()))
				continue
			}
			select {
			case views <- v:
			case <-ctx.Done():
				return
			}
		}
	}()
	return views, closed
}

// farOff is when nothing is due.
const farOff = 24 * time.Hour

func (r *runner) loop(ctx context.Context, views <-chan pawl.View, closed <-chan error) error {
	r.look(ctx)
	r.refresh(r.o.store.View())
	for {
		due := time.NewTimer(farOff)
		if next := r.dispatch(ctx); !next.IsZero() {
			due.Reset(min(max(next.Sub(now(ctx)), 0), farOff) + time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return nil
		case v := <-views:
			r.look(ctx)
			r.refresh(v)
		case err := <-closed:
			if err != nil {
				return &Error{Op: "run", Cause: err}
			}
			return nil // ctx has ended
		case e := <-r.ended:
			if err := r.finish(ctx, e, r.o.store); err != nil {
				return &Error{Op: "run", Cause: err}
			}
		case <-due.C:
		}
		due.Stop()
	}
}

// look takes the time. Where it has gone back, what is due is asked anew.
func (r *runner) look(ctx context.Context) {
	at := now(ctx)
	if at.Before(r.at) {
		for _, it := range r.items {
			it.due = it.when(at)
		}
	}
	r.at = at
}

// dispatch starts what can be started, and returns when the next item is due that could not;
// the zero time: none is.
func (r *runner) dispatch(ctx context.Context) (next time.Time) {
	r.look(ctx)
	at := r.at
	for part, due := range r.again {
		if due.After(at) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		r.reload(part, r.o.store.View())
	}
	from := r.first
	for i := range r.names {
		which := (from + i) % len(r.names)
		l := r.lanes[r.names[which]]
		for _, it := range l.items {
			if l.slots == 0 || r.running == r.most || ctx.Err() != nil {
				break // the next that ends comes here again
			}
			if it.running {
				continue
			}
			if it.due.After(at) {
				if next.IsZero() || it.due.Before(next) {
					next = it.due
				}
				continue
			}
			it.running = true
			l.slots--
			r.running++
			r.first = which + 1 // the next destination has the first choice then
			go r.work(ctx, it, *it.record)
		}
	}
	return next
}

// busyPause is how long an effect is left alone that somebody else in this process deals with.
const busyPause = time.Second

// leastPause is how long an effect is left alone at least of which nothing has come.
const leastPause = 10 * time.Millisecond

// finish takes an item back. s is nil when Run is at its end.
func (r *runner) finish(ctx context.Context, e ending, s *pawl.Store) error {
	it := e.item
	it.running = false
	r.running--
	r.lanes[it.Destination].slots++
	if s == nil {
		if rec, err := load(r.o.store.View(), e.was.Key); err == nil && rec != nil {
			r.report(ctx, e, &item{record: rec}, e.was)
		}
		return nil
	}
	c := r.carriers[it.Destination]
	before := e.was
	r.remove(it)
	r.look(ctx)
	r.lanes[it.Destination].turn++ // those that wait now come before it
	r.reload(it.part, s.View())
	again := r.items[it.part]
	same := again != nil && (again.State == before.State || again.State == Parked) && again.Attempt == before.Attempt && again.NotBefore.Equal(before.NotBefore)
	switch {
	case again != nil && e.busy:
		again.asks, again.due = it.asks, now(ctx).Add(busyPause)
	case same, again != nil && e.err != nil:
		// Nothing has come of it: not at once again.
		again.asks = it.asks + 1
		if wait := now(ctx).Add(max(c.delay(again.asks), leastPause)); again.due.Before(wait) {
			again.due = wait
		}
	}
	r.report(ctx, e, again, before)
	if errors.Is(e.err, ErrUnknown) {
		// The record contradicts the history: left alone until it changes.
		r.tell("unknown "+it.part, "effect: a record is not understood, and is left as it is", "part", oneLine(it.part), "error", oneLine(e.err.Error()))
		r.remove(again)
		return nil
	}
	if e.err != nil {
		r.o.opts.Logger.Warn("effect: the store did not take a transition", "destination", oneLine(before.Destination), "key", oneLine(before.Key), "error", oneLine(e.err.Error()))
	}
	if fatal(e.err) {
		return e.err
	}
	return nil
}

// fatal says that the store takes no more changes.
func fatal(err error) bool {
	return errors.Is(err, pawl.ErrClosed) || errors.Is(err, pawl.ErrStale) || errors.Is(err, pawl.ErrInDoubt)
}

// report logs what somebody may have to look after.
func (r *runner) report(ctx context.Context, e ending, now *item, before record) {
	args := []any{"destination", oneLine(before.Destination), "key", oneLine(before.Key), "digest", before.Digest.String()}
	if e.said != nil {
		args = append(args, "error", oneLine(e.said.Error()))
	}
	var p *panicked
	if errors.As(e.said, &p) {
		args = append(args, "stack", string(p.stack))
	}
	switch {
	case now != nil && now.State == Parked && before.State != Parked:
		r.o.opts.Logger.Warn("effect: parked, for whether it happened is not known", append(args, "attempt", now.Attempt, "epoch", now.Epoch)...)
	case now == nil && e.said != nil:
		if end, err := settled(ctx, r.o.store, before.Key); err == nil && end != nil && end.To == Failed {
			r.o.opts.Logger.Warn("effect: failed for good", args...)
		}
	}
}

// tell logs something once.
func (r *runner) tell(once, text string, args ...any) {
	if !r.told[once] {
		r.told[once] = true
		r.o.opts.Logger.Warn(text, args...)
	}
}

// work brings one effect as far as it comes now, in a goroutine of its own.
func (r *runner) work(ctx context.Context, it *item, rec record) {
	e := ending{item: it, was: rec}
	defer func() { r.ended <- e }()
	release, ok := tryHold(r.o.store, rec.Key)
	if !ok {
		e.busy = true
		return
	}
	hung := false
	defer func() {
		if !hung {
			release()
		}
	}()
	// What has begun is brought to its end, though Run is asked to come to its own.
	quiet := context.WithoutCancel(ctx)
	c := r.carriers[rec.Destination]
	for asked := false; ; {
		to, _, now, err := c.next(ctx, rec.Key, nil, asked)
		if err != nil {
			if ctx.Err() == nil {
				e.err = err
			}
			return
		}
		switch to {
		case stepAsk:
			asked = true
			var after *record
			if after, e.said, hung, e.err = c.bounded(quiet, now, c.settle, true, release); e.err != nil || after == nil || hung {
				return
			}
		case stepRun:
			_, e.said, hung, e.err = c.bounded(quiet, now, c.do, false, release)
			return
		default:
			return
		}
	}
}

// bounded calls a function, of which a panic is an error, and waits for it as long as an
// attempt may take. What it returns later is written down, if it is news. When it has hung,
// it releases the effect only then, so that no second call comes beside it in this process.
func (c *carrier) bounded(ctx context.Context, r *record, f func(context.Context, Call) ([]byte, error), settles bool, release func()) (after *record, said error, hung bool, err error) {
	left := c.timeout
	if !settles {
		left = c.left(ctx, r)
	}
	within, cancel := c.within(ctx, r, left)
	answers := make(chan answer, 1)
	go func() {
		defer cancel()
		a := answer{err: errors.New("the function did not return"), settles: settles}
		defer func() {
			if p := recover(); p != nil {
				a.err = &panicked{p, debug.Stack()}
			}
			answers <- a
		}()
		if !settles && within.Err() != nil {
			a.err, a.uncalled = NotDone(context.Cause(within)), true // and that is certain
			return
		}
		a.result, a.err = f(within, r.call())
		a.read()
	}()
	// Half of what the lease is longer is for those who return when their context ends.
	patience := time.NewTimer(left + c.timeout/(2*leasePart))
	defer patience.Stop()
	select {
	case a := <-answers:
		after, err = c.finish(ctx, r, a)
		return after, a.err, false, err
	case <-patience.C:
	}
	said = fmt.Errorf("it did not return within %v", c.timeout)
	after, err = c.finish(ctx, r, answer{err: said, settles: settles})
	abandon(c.store, r.Key)
	go func() {
		defer release()
		if a := <-answers; a.err == nil || a.known() != nil {
			_, _ = c.finish(ctx, r, a)
		}
	}()
	return after, said, true, err
}

// panicked is a panic of a function.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }
