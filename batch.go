package pawl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"runtime"
	"sync"
	"time"
)

// Commits that are asked for while another is being written go to disk together.
// Each caller puts its commit into the open batch, encoded and hashed on top of what
// came before, in order of arrival. Whoever then gets the turn takes the whole batch,
// writes it with one intent and one flush each, and tells every caller its own
// result. So the next batch is made ready by its callers while the present one
// flushes, and a caller who is alone waits for nobody.

// request is one commit on its way.
type request struct {
	ctx   context.Context
	p     *prepared
	batch *batch
	ended error // why its context is at an end, when the batch was taken

	// The result, once the batch is done.
	receipt Receipt
	err     *Error
	kind    requestKind
	again   bool // more has to be known of its id first
}

// requestKind says what a request has to do with the batch that it is in.
type requestKind int

const (
	addsRecord    requestKind = iota // it stands and falls with the batch
	followsRecord                    // it adds nothing, and was decided on what the batch adds
	standsAlone                      // it is decided without the batch
)

// batch is the commits that go to disk together.
type batch struct {
	requests []*request
	done     chan struct{} // closed when all of them have their result

	from   tip     // what it continues
	next   growing // the state that it makes
	root   Root    // of that state; its digest and length only when frames are made
	frames []byte  // nil when they cannot fit
	length int64   // of the frames
	ids    map[string]*record
	stale  bool // its requests have to be placed anew
}

// tip is the end of what was written, or of what is being written: where the next
// batch goes on.
type tip struct {
	state *state
	root  Root
	chain Digest // the disk digest that the next frame continues
	at    int64  // where in the journal it goes; 0: no frames can be made
}

// queue is where commits wait. Its lock is never held across input or output.
type queue struct {
	mu     sync.Mutex
	tip    tip
	open   *batch // nil when nobody waits
	flying *batch // the one that is being written; nil when none is
	hash   hash.Hash
	spare  []byte // what the frames of an earlier batch were in
}

// enter puts a commit into the open batch.
func (s *Store) enter(ctx context.Context, p *prepared) *request {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.openBatch()
	r := &request{ctx: ctx, p: p, batch: b}
	b.requests = append(b.requests, r)
	if !b.stale {
		s.place(b, r)
	}
	s.counts.waiting.Store(int64(len(b.requests)))
	return r
}

// first puts a commit before all that wait. Whoever calls it has the turn.
func (s *Store) first(ctx context.Context, p *prepared) *request {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.openBatch()
	r := &request{ctx: ctx, p: p, batch: b}
	b.requests = append([]*request{r}, b.requests...)
	b.stale = true
	return r
}

func (q *queue) openBatch() *batch {
	if q.open == nil {
		q.open = &batch{done: make(chan struct{})}
		q.open.start(q.tip, q.spare)
		q.spare = nil
	}
	return q.open
}

// start makes an empty batch that continues t.
func (b *batch) start(t tip, buffer []byte) {
	b.from, b.next, b.root, b.stale = t, t.state.grow(), t.root, false
	b.frames, b.length = buffer[:0], 0
	b.root.Digest = t.chain
	clear(b.ids)
}

// place decides what becomes of a request if the batch is written, and adds its
// record to the batch.
func (s *Store) place(b *batch, q *request) {
	p, now := q.p, b.next.version()
	q.receipt, q.err, q.kind, q.again = Receipt{}, nil, standsAlone, false
	if len(b.records()) > 0 {
		q.kind = followsRecord
	}
	r, durable := s.known(b, p.record.id)
	if r == nil {
		if !p.upToDate(b.from.state) {
			q.again, q.kind = true, standsAlone
			return
		}
		r, durable = p.past.record, true
	}
	if r != nil {
		if durable {
			q.kind = standsAlone
		} else {
			q.kind = followsRecord
		}
		if !r.sameContent(&p.record) {
			q.err = outcome(ErrNotCommitted, &Error{Kind: ErrIDReused, Hint: hintReused,
				Cause: fmt.Errorf("id %q is that of revision %d", r.id, r.revision)})
			return
		}
		q.receipt = r.receipt()
		q.receipt.Replayed = true
		return
	}
	if q.err = p.barred(); q.err != nil {
		q.kind = standsAlone
		return
	}
	if p.expect != nil && *p.expect != now {
		q.err = outcome(ErrNotCommitted, &Error{Kind: ErrStale, Hint: hintExpect,
			Cause: fmt.Errorf("expected %s, the state is %s", *p.expect, now)})
		return
	}
	if p.empty {
		q.receipt, q.kind = Receipt{Version: now}, followsRecord
		return
	}
	made := p.record // a batch may be placed again, on top of another state
	r = &made
	r.revision = now.Revision + 1
	r.firstSeq = b.next.nextSeq()
	r.time = s.at.fsys.Now().UnixNano()
	r.place(now.Digest)
	if size := b.next.most(r, &s.opts.Limits); size > s.opts.Limits.Bundle {
		q.kind, q.err = standsAlone, outcome(ErrNotCommitted, tooLarge("the bundle would have %d bytes, and Limits.Bundle is %d", size, s.opts.Limits.Bundle))
		return
	}
	b.next.add(r, p.data)
	if r.id != "" {
		if b.ids == nil {
			b.ids = map[string]*record{}
		}
		b.ids[r.id] = r
	}
	b.length = roundUp(b.length, frameAlign) + frameSize(r)
	if b.from.at > 0 && b.from.at+b.length <= s.opts.Limits.Journal {
		b.frames, b.root.Digest = appendFrame(b.frames, s.queue.hash, b.root.Digest, r, p.data)
	}
	q.receipt, q.kind = r.receipt(), addsRecord
}

// known finds the record of an id in the state, or among those on their way to it.
func (s *Store) known(b *batch, id string) (r *record, durable bool) {
	if id == "" {
		return nil, false
	}
	if r, ok := s.recorded(id); ok {
		return r, true
	}
	if f := s.queue.flying; f != nil && f.ids[id] != nil {
		return f.ids[id], false
	}
	return b.ids[id], false
}

// await waits until a request has its result, and becomes the one who writes when
// the turn is free.
func (s *Store) await(r *request) {
	ended := r.ctx.Done()
	for {
		select {
		case <-r.batch.done:
		case s.turn <- struct{}{}:
			s.leadFor(r)
		case <-ended:
			if !s.withdraw(r) {
				ended = nil // the result is near, and is that of the commit
				continue
			}
		}
		return
	}
}

// leadFor is lead, by whoever has got the turn while waiting for a request.
func (s *Store) leadFor(r *request) {
	defer s.give()
	if s.company {
		// Those whom the last batch has just answered may be about to ask again. Who
		// does so now need not wait for the batch after this one.
		runtime.Gosched()
	}
	select {
	case <-r.batch.done: // by the one who had the turn before
		return
	default:
	}
	err := s.join(r.ctx)
	if err != nil && r.ctx.Err() != nil {
		if s.withdraw(r) {
			return
		}
		err = s.join(context.WithoutCancel(r.ctx))
	}
	s.lead(err)
}

// withdraw takes a request whose context has ended out of the open batch. It reports
// false when the batch is being written already, or when somebody else has asked for
// the same id: then it cannot be certain that there will be no such commit.
func (s *Store) withdraw(r *request) bool {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open != r.batch || s.wanted(r.p.record.id, r) {
		return false
	}
	again := !r.p.upToDate(s.state.Load()) // its id may be in a segment that was not asked
	for i, other := range r.batch.requests {
		if other == r {
			r.batch.requests = append(r.batch.requests[:i:i], r.batch.requests[i+1:]...)
		}
	}
	r.batch.stale = r.batch.stale || r.kind == addsRecord
	s.counts.waiting.Store(int64(len(r.batch.requests)))
	if r.again = again; !again {
		r.err = s.refused(r.p.record.id, ctxError(r.ctx))
	}
	return true
}

// wanted reports whether a commit with that id was made, is being made, or waits to be
// made for another request.
func (s *Store) wanted(id string, but *request) bool {
	if id == "" {
		return false
	}
	if _, ok := s.recorded(id); ok {
		return true
	}
	q := &s.queue
	if q.flying != nil && q.flying.ids[id] != nil {
		return true
	}
	if q.open != nil {
		for _, r := range q.open.requests {
			if r != but && r.ended == nil && r.p.record.id == id {
				return true
			}
		}
	}
	return false
}

// lead writes the commits that wait, and gives each its result. Whoever calls it has
// the turn, and has joined; unable is why that could not be.
func (s *Store) lead(unable error) {
	b := s.seize()
	if b == nil {
		return
	}
	start := time.Now()
	written := false
	defer func() {
		if !written {
			// A logger panics. Those who wait must hear that nobody knows.
			s.land(b, s.setDoubt(errorString("a panic while the batch was written")), 0)
			close(b.done)
		}
	}()
	var e *Error
	if refusal := cmp.Or(s.refusal(), unable); refusal != nil {
		for _, r := range b.requests {
			_, ok := s.recorded(r.p.record.id)
			if (ok || r.p.past.record != nil) && r.receipt.Replayed && s.refusal() == nil {
				continue // that it is committed is known without the locks
			}
			r.kind, r.err, r.again = standsAlone, s.refused(r.p.record.id, refusal), false
		}
	} else if len(b.records()) > 0 {
		if s.extends(b) {
			e = s.extend(b)
		} else {
			s.log.wanted = b.root.Journal
			e = s.publish(&b.next.state, b.records())
		}
	}
	written = true
	s.land(b, e, time.Since(start))
	close(b.done)
}

// seize takes the open batch. What its requests were placed on may not have come to
// be; then they are placed anew, in the same order.
func (s *Store) seize() *batch {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.open
	if b == nil {
		return nil
	}
	for _, r := range b.requests {
		if r.ctx.Err() != nil {
			r.ended, b.stale = ctxError(r.ctx), true
		}
	}
	for _, r := range b.requests {
		if r.ended != nil && s.wanted(r.p.record.id, r) {
			r.ended = nil
		}
	}
	q.open = nil
	if now := s.tip(); b.stale || b.from.state != now.state || b.from.root != now.root {
		b.start(now, b.frames)
		for _, r := range b.requests {
			if r.ended != nil && !r.p.upToDate(now.state) {
				r.receipt, r.err, r.kind, r.again = Receipt{}, nil, standsAlone, true
				continue
			}
			if r.ended != nil {
				r.err, r.kind, r.again = outcome(ErrNotCommitted, &Error{Cause: r.ended}), standsAlone, false
				continue
			}
			s.place(b, r)
		}
	}
	b.frames = append(b.frames, make([]byte, roundUp(len(b.frames), blockSize)-len(b.frames))...)
	b.root.Revision = b.next.version().Revision
	b.root.Journal = b.from.at + roundUp(b.length, blockSize)
	q.flying = b
	q.tip = tip{state: &b.next.state, root: b.root}
	if s.extends(b) {
		q.tip.chain, q.tip.at = b.root.Digest, b.root.Journal
	}
	s.company = len(b.requests) > 1
	s.counts.waiting.Store(0)
	s.begin(b)
	return b
}

// land gives the requests of a batch their results.
func (s *Store) land(b *batch, e *Error, took time.Duration) {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying, q.tip = nil, s.tip()
	if q.open != nil && (e != nil || q.open.from.state != q.tip.state) {
		q.open.stale = true
	}
	if cap(b.frames) <= 1<<20 {
		q.spare = b.frames
	}
	b.frames = nil
	s.end()
	for _, r := range b.requests {
		switch {
		case e != nil && r.kind != standsAlone && !s.spared(r, e):
			r.err = e
		case r.err != nil:
		case r.receipt.Replayed:
			s.counts.replays.Add(1)
		case r.kind == addsRecord:
			s.counts.commits.Add(1)
			s.counts.commitTime.Add(int64(took))
		}
	}
	// The state that the batch made lives on; it must not keep all that came before.
	b.from, b.requests, b.ids = tip{}, nil, nil
}

// spared reports whether a request that adds nothing has a result of its own, though
// the batch that it was in failed: what it asked for may have been in the batch
// before.
func (s *Store) spared(r *request, e *Error) bool {
	if r.kind != followsRecord {
		return false
	}
	if r.p.empty && r.err == nil {
		r.receipt = Receipt{Version: s.state.Load().version()}
		return e.Outcome == ErrNotCommitted
	}
	_, ok := s.recorded(r.p.record.id)
	return ok
}

// records are those that the batch adds.
func (b *batch) records() []*record { return b.next.records[len(b.from.state.records):] }

// tip is where the next batch goes on, when none is being written.
func (s *Store) tip() tip {
	t := tip{state: s.state.Load(), root: s.root}
	switch {
	case s.root == Root{} || s.opts.CheckpointEvery == 1:
	case s.log.file != nil:
		t.chain, t.at = s.root.Digest, s.root.Journal
	default:
		t.chain, t.at = extendDigest(sha256.New(), s.root.Digest, s.log.header), blockSize
	}
	return t
}

// extends reports whether a batch is appended to the journal, rather than published.
func (s *Store) extends(b *batch) bool {
	n := s.opts.CheckpointEvery
	since := uint64(b.root.Revision - s.log.bundle.Revision)
	return b.from.at > 0 && b.root.Journal <= s.log.size && (n == 0 || since < uint64(n))
}
