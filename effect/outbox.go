package effect

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// Handler carries out the effects of one destination. Run and Settle answer as a Func does:
// a result, NotDone, Permanent, or an error that leaves it open. A panic leaves it open too.
type Handler struct {
	// Run carries one effect out. Its context ends with Timeout, and not with that of
	// Outbox.Run.
	Run func(context.Context, Call) ([]byte, error)

	Settle     func(context.Context, Call) ([]byte, error) // as in Options; may be nil
	Idempotent bool                                        // as in Options

	// Concurrency is how many effects of the destination are carried out at a time.
	// Default: 4.
	Concurrency int

	// Timeout is how long one attempt, or Settle, may take. Who has not returned by then is
	// waited for no longer: the outcome is not known, and what it still returns is written
	// down if it is news. In a shared store others take the attempt for dead a quarter of
	// it later. Default: a minute.
	Timeout time.Duration

	// Attempts is after how many attempts an effect is not tried again: it has failed for
	// good, or is parked where the last outcome is not known. 0: there is no end.
	Attempts int

	// Backoff is how long to wait after the attempt of that number, before the next one and
	// before Settle is asked again. Default: a second, doubled each time up to five
	// minutes, and half as much more or less by chance.
	Backoff func(attempt int) time.Duration
}

// OutboxOptions are options of an Outbox. A nil *OutboxOptions is the defaults.
type OutboxOptions struct {
	// Concurrency is how many effects are carried out at a time in all. Default: as many as
	// all handlers allow, so that none waits for another's.
	Concurrency int

	// Logger hears of effects that are parked, that have failed for good, whose record is
	// not understood, and of destinations without a handler. nil: nothing is logged.
	Logger *slog.Logger
}

// Outbox holds effects in a store until they are carried out. Any number of them may work on
// one store, in several processes where it is shared: the store decides who carries out what.
type Outbox struct {
	store *pawl.Store
	opts  OutboxOptions
}

// NewOutbox returns the outbox of a store.
func NewOutbox(s *pawl.Store, o *OutboxOptions) *Outbox {
	b := &Outbox{store: s}
	if o != nil {
		b.opts = *o
	}
	if b.opts.Logger == nil {
		b.opts.Logger = slog.New(slog.DiscardHandler)
	}
	return b
}

// Enqueue adds an effect to a change: when that is committed, and not before, the effect is
// queued and will not be lost. Call it in the function of Store.Update, with its View and
// the Change that it returns; one change may queue several.
//
// An effect with this key and the same request, queued, settled or anything between, is left
// as it is, and adds nothing. With another request the error is ErrKeyReused; ErrUnknown and
// pawl.ErrForgotten say that what is known of the key does not tell. After an error the
// change is as it was.
func (o *Outbox) Enqueue(ctx context.Context, v pawl.View, c *pawl.Change, key string, r Request) error {
	err := o.enqueue(ctx, v, c, key, r)
	if err == nil {
		return nil
	}
	e := &Error{Cause: err}
	if own, ok := err.(*Error); ok {
		cp := *own
		e = &cp
	}
	e.Op, e.Key, e.Destination = "enqueue", key, r.Destination
	return e
}

func (o *Outbox) enqueue(ctx context.Context, v pawl.View, c *pawl.Change, key string, r Request) error {
	if err := check(key, r); err != nil {
		return err
	}
	if o.store == nil || c == nil {
		return fmt.Errorf("%w: a store and a change are needed", pawl.ErrInvalid)
	}
	if slices.Contains(c.Delete, partOf(key)) {
		return fmt.Errorf("%w: the change deletes the part of the effect", pawl.ErrInvalid)
	}
	there, err := load(v, key)
	if b, ok := c.Put[partOf(key)]; ok {
		there, err = decodeRecord(partOf(key), b)
	}
	if err != nil {
		return err
	}
	if there != nil {
		return same(there.Scheme, there.Digest, key, r)
	}
	now := look{at: now(ctx), seq: v.LastSeq() + 1 + pawl.Seq(len(c.Entries))}
	fresh, err := begin(ctx, o.store, key, r, now)
	if err != nil {
		return err
	}
	if fresh == nil {
		end, err := settled(ctx, o.store, key)
		if err != nil {
			return err
		}
		return same(end.Scheme, end.Digest, key, r)
	}
	one, _, err := (&move{name: "enqueue", next: *fresh, by: "Enqueue"}).change(none, now.at)
	if err != nil {
		return err
	}
	c.Entries = append(slices.Clip(c.Entries), one.Entries...)
	if c.Put == nil {
		c.Put = map[string][]byte{}
	}
	c.Put[partOf(key)] = one.Put[partOf(key)]
	return nil
}

// complete fills in the defaults.
func (h Handler) complete(destination string) (Handler, error) {
	if h.Run == nil || h.Timeout < 0 || h.Attempts < 0 || h.Concurrency < 0 {
		return h, &Error{Op: "run", Destination: destination, Kind: pawl.ErrInvalid,
			Cause: fmt.Errorf("a handler needs Run, and no number of it may be negative")}
	}
	if h.Concurrency == 0 {
		h.Concurrency = 4
	}
	if h.Timeout == 0 {
		h.Timeout = defaultTimeout
	}
	h.Timeout = min(h.Timeout, mostTimeout)
	if h.Backoff == nil {
		h.Backoff = backoff
	}
	return h, nil
}

func (h *Handler) carrier(s *pawl.Store) *carrier {
	return &carrier{store: s, do: h.Run, settle: h.Settle, idempotent: h.Idempotent, timeout: h.Timeout, most: h.Attempts, delay: h.Backoff}
}

// leastConcurrency is how many may be carried out at a time beyond what handlers allow: one
// that was given up may still be under way.
const leastConcurrency = 16

// mostTimeout is as good as none, and can be added to.
const mostTimeout = 100 * 365 * 24 * time.Hour

// The bounds of the default back-off.
const (
	leastBackoff = time.Second
	mostBackoff  = 5 * time.Minute
)

func backoff(attempt int) time.Duration {
	d := min(leastBackoff<<min(max(attempt-1, 0), 16), mostBackoff)
	return d/2 + rand.N(d)
}
