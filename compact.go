package pawl

import (
	"bytes"
	"context"
	"errors"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Policy says what Compact keeps. An entry stays when any of KeepLast, KeepSince and Keep
// keeps it, and with it the other entries of its commit: one digest is about all of them.
// A policy without any of the three is refused.
//
// Of a commit whose entries go, all else stays: revision, id, digests, time, and what it
// did to parts. So Contains goes on to answer for its receipt, the same id asked for again
// is acknowledged again, and the chain of history can be checked from its beginning.
// ForgetBefore drops that too.
type Policy struct {
	KeepLast  uint64           // the last so many entries
	KeepSince Revision         // those of this commit, and of all after it
	Keep      func(Entry) bool // those for which it returns true; asked in order, under the locks

	// ForgetBefore drops all commits before this revision, up to the first that has an
	// entry that stays. Nothing is left of them but that their ids were used: Lookup says
	// OutcomeForgotten, and a commit with such an id is refused. 0: none is dropped.
	ForgetBefore Revision

	// DryRun makes Compact tell what would go, and change nothing.
	DryRun bool

	// Progress, if not nil, is told how many of how many commits were looked at.
	Progress func(done, total uint64)
}

// CompactReport says what Compact dropped or, as a dry run, would drop.
type CompactReport struct {
	DryRun bool `json:"dry_run"`

	Entries     uint64   `json:"entries"` // dropped; those that were dropped before are not counted
	EntryBytes  int64    `json:"entry_bytes"`
	FirstSeq    Seq      `json:"first_seq"` // the first and the last of them; 0, 0: none
	LastSeq     Seq      `json:"last_seq"`
	Commits     uint64   `json:"commits"`      // that had them
	Kept        uint64   `json:"kept"`         // entries that are left
	Forgotten   uint64   `json:"forgotten"`    // commits dropped altogether
	ForgottenTo Revision `json:"forgotten_to"` // the last of these

	FilesMade    int   `json:"files_made"` // segments
	FilesRemoved int   `json:"files_removed"`
	BytesBefore  int64 `json:"bytes_before"` // of bundle, journal, segments and files of parts
	BytesAfter   int64 `json:"bytes_after"`
}

// Compact drops old history, as the policy says, and gives its space back. Revisions and
// seqs go on to rise from where they are, the history digest does not change, and neither
// do parts. It publishes the bundle, like Checkpoint; when it returns nil, the bundle that
// names what is kept is on stable storage. After an error other than ErrInDoubt nothing was
// dropped. A View that was taken before keeps what it had.
//
// It needs space for what it writes anew before it can give any back. Commits wait until
// it is done. ctx is honoured until the bundle is about to be written. Keep and Progress
// must not change the store: Commit, Update, Checkpoint, Verify, Recover, Compact and Close
// inside them fail rather than wait for themselves. On Windows files go with Close.
func (s *Store) Compact(ctx context.Context, p Policy) (CompactReport, error) {
	r, err := s.compact(ctx, p)
	if err != nil {
		return CompactReport{}, fail("compact", s.at.dir, withoutOutcome(err))
	}
	return r, nil
}

func (s *Store) compact(ctx context.Context, p Policy) (CompactReport, error) {
	if p.KeepLast == 0 && p.KeepSince == 0 && p.Keep == nil {
		e := invalid("the policy does not say which entries to keep")
		e.Hint = hintPolicy
		return CompactReport{}, e
	}
	if err := s.take(ctx); err != nil {
		return CompactReport{}, err
	}
	defer s.give()
	if err := s.join(ctx); err != nil {
		return CompactReport{}, err
	}
	s.lead(nil) // those who were here before
	if err := s.refusal(); err != nil {
		return CompactReport{}, err
	}
	if e := s.recheck(); e != nil {
		return CompactReport{}, e
	}
	if err := s.readBack(); err != nil {
		return CompactReport{}, fail("", s.journalPath(), err)
	}
	if e := s.flushConfirm(); e != nil { // it may take long until the next record
		return CompactReport{}, e
	}
	s.vouch()
	c := compaction{s: s, ctx: ctx, policy: p, old: s.state.Load()}
	if err := c.plan(); err != nil {
		return CompactReport{}, err
	}
	next, err := c.make()
	if err == nil && !p.DryRun && c.dirty() {
		if err = s.spill(next, s.bundle); err == nil {
			if e := s.publishPacked(next, nil); e != nil {
				err = e
			}
			s.startOver()
		}
	}
	if err != nil {
		if e, ok := err.(*Error); !p.DryRun && !(ok && e.Outcome == ErrInDoubt) {
			s.unpack(next)
		}
		return CompactReport{}, err
	}
	if r := &c.report; !p.DryRun && c.dirty() {
		s.opts.Logger.Info("pawl: old history was dropped", "store", s.at.dir, "entries", r.Entries, "first", r.FirstSeq, "last", r.LastSeq,
			"forgotten commits", r.Forgotten, "bytes before", r.BytesBefore, "bytes after", r.BytesAfter)
	}
	return c.report, nil
}

// compaction is one run of Compact.
type compaction struct {
	s      *Store
	ctx    context.Context
	policy Policy
	old    *state
	report CompactReport

	all        Seq               // entries from this one on stay, whatever Keep says
	whole      map[Revision]bool // the commits before it that Keep keeps
	forgetting bool              // while it is planned: no entry that stays has come yet
	changed    []bool            // which segments are made anew, and at the end the records in memory
}

func (c *compaction) dirty() bool { return c.report.Commits > 0 || c.report.Forgotten > 0 }

// plan decides about every commit, and reads no more than it takes.
func (c *compaction) plan() (err error) {
	c.s.updating.Store(goroutineID()) // Keep and Progress are not to wait for the turn either
	defer c.s.updating.Store(0)
	c.report.DryRun, c.whole, c.forgetting = c.policy.DryRun, map[Revision]bool{}, c.policy.ForgetBefore > 0
	if c.all, err = c.boundary(); err != nil {
		return err
	}
	for i := range len(c.old.sealed) + 1 {
		part := c.piece(i, i+1)
		if !c.mayChange(i) {
			c.changed = append(c.changed, false)
			continue
		}
		before := c.report
		for t := (trail{s: part}); ; {
			if c.ctx.Err() != nil {
				return ctxError(c.ctx)
			}
			raw, e := t.next()
			if e != nil {
				return e
			}
			if raw == nil {
				break
			}
			c.decide(raw)
			if c.policy.Progress != nil {
				c.policy.Progress(uint64(coded(raw).revision()), uint64(c.old.version().Revision))
			}
		}
		c.changed = append(c.changed, c.report.Commits > before.Commits || c.report.Forgotten > before.Forgotten)
	}
	if c.dirty() && c.old.unsealed > c.s.opts.Limits.Unsealed {
		c.changed[len(c.old.sealed)] = true // more than a bundle holds, as in pack
	}
	return nil
}

// piece is the history of some of the segments; the records in memory come last.
func (c *compaction) piece(from, to int) *state {
	p := *c.old
	n := len(p.sealed)
	p.sealed = p.sealed[from:min(to, n)]
	if to <= n {
		p.records = nil
	}
	return &p
}

// mayChange reports whether a segment has to be looked at.
func (c *compaction) mayChange(i int) bool {
	if i == len(c.old.sealed) {
		return true
	}
	g := c.old.sealed[i]
	if g.forgotten() {
		return false
	}
	if g.entries > 0 && g.from.nextSeq < c.all || c.forgetting && g.from.revision+1 < c.policy.ForgetBefore {
		return true
	}
	c.forgetting = c.forgetting && g.entries == 0
	return false
}

// boundary is the seq from which on KeepLast and KeepSince keep everything.
func (c *compaction) boundary() (Seq, error) {
	all := c.old.nextSeq()
	if r := c.policy.KeepSince; r > 0 && r <= c.old.version().Revision {
		t, e := c.old.since(r - 1)
		if e != nil {
			return 0, e
		}
		raw, e := t.next()
		if e != nil {
			return 0, e
		}
		if raw != nil {
			all = coded(raw).firstSeq()
		}
	}
	if c.policy.KeepLast == 0 {
		return all, nil
	}
	left := c.policy.KeepLast
	for i := len(c.old.sealed); i >= 0; i-- {
		part := c.piece(i, i+1)
		n := uint64(0)
		for _, r := range part.records {
			n += uint64(r.count)
		}
		for _, g := range part.sealed {
			n += g.entries
		}
		if n < left {
			left -= n
			continue
		}
		skip := n - left
		if skip == 0 && len(part.sealed) > 0 {
			return min(all, part.sealed[0].from.nextSeq), nil
		}
		t := trail{s: part}
		for {
			raw, e := t.next()
			if e != nil {
				return 0, e
			}
			if raw == nil {
				break
			}
			_, count := coded(raw).entries()
			if skip < uint64(count) {
				return min(all, coded(raw).firstSeq()+Seq(skip)), nil
			}
			skip -= uint64(count)
		}
	}
	return 1, nil // there are not so many
}

// decide makes up its mind about one commit.
func (c *compaction) decide(raw coded) {
	b, count := raw.entries()
	first, rev := raw.firstSeq(), raw.revision()
	stays := count > 0 && first+Seq(count) > c.all
	if count > 0 && !stays && c.policy.Keep != nil {
		d := reader{b: b}
		for i := range count {
			if stays = c.policy.Keep(Entry{first + Seq(i), rev, bytes.Clone(d.bytes(uint64(d.u32())))}); stays {
				c.whole[rev] = true
				break
			}
		}
	}
	r := &c.report
	if stays {
		c.forgetting = false
		return
	}
	if c.forgetting && rev < c.policy.ForgetBefore {
		r.Forgotten++
		r.ForgottenTo = rev
	}
	if count == 0 {
		return
	}
	if r.FirstSeq == 0 {
		r.FirstSeq = first
	}
	r.LastSeq = first + Seq(count) - 1
	r.Commits++
	r.Entries += uint64(count)
	r.EntryBytes += int64(len(b)) - 4*int64(count)
}

// keep is what decide has decided.
func (c *compaction) keep(r *record) kept {
	switch {
	case r.revision <= c.report.ForgottenTo:
		return keptID
	case r.nextSeq() > c.all || c.whole[r.revision] || r.count == 0:
		return keptWhole
	}
	return keptHead
}

// make makes the segments of the state that is left. In a dry run it only measures them.
func (c *compaction) make() (*state, error) {
	s, l := c.s, &c.s.opts.Limits
	next := *c.old
	r := &c.report
	r.BytesBefore = c.filesBefore()
	var sealed []*segment
	base, records := next.base, next.records
	n := len(c.old.sealed)
	for i := 0; i <= n; {
		j := i
		for j <= n && c.changed[j] {
			j++
		}
		if j == i {
			if i < n {
				sealed = append(sealed, c.old.sealed[i])
			}
			i++
			continue
		}
		made, err := []*segment(nil), error(unread{})
		// If what an earlier run has left before it is small, it is made anew with it; but not
		// if it cannot be read.
		if k := len(sealed) - 1; k >= 0 && sealed[k] == c.old.sealed[i-1] && !sealed[k].forgotten() && sealed[k].size < smallSegment*l.unit() {
			if made, err = c.sealPiece(i-1, j); !errors.As(err, new(unread)) {
				sealed, i = sealed[:k], i-1
			} else if !c.policy.DryRun {
				s.drop(made)
			}
		}
		if errors.As(err, new(unread)) {
			made, err = c.sealPiece(i, j)
		}
		sealed = append(sealed, made...)
		if j > n {
			base, records = next.end(), nil
		}
		if err != nil {
			next.replaceHistory(sealed, base, records, l)
			return &next, err
		}
		r.FilesMade += len(made)
		r.FilesRemoved += min(j, n) - i
		i = j
	}
	next.replaceHistory(sealed, base, records, l)
	for _, g := range next.sealed {
		r.Kept += g.entries
	}
	for _, rec := range next.records {
		r.Kept += uint64(rec.count)
	}
	if r.BytesAfter = r.BytesBefore; c.dirty() {
		r.BytesAfter = c.filesAfter(&next)
	}
	return &next, nil
}

// sealPiece makes segments of what is kept of some of the segments.
func (c *compaction) sealPiece(from, to int) ([]*segment, error) {
	l := &c.s.opts.Limits
	b := sealer{ctx: c.ctx, dir: c.s.dir, write: !c.policy.DryRun, like: c.s.bundle, most: mostSegment * l.unit(),
		store: c.old.id, keep: c.keep, trail: &trail{s: c.piece(from, to)}, from: c.old.base}
	if from < len(c.old.sealed) {
		b.from = c.old.sealed[from].from
	}
	err := b.run()
	return b.made, err
}

// filesBefore is what the store takes on disk. What the bundle names is there, also when
// a commit since has put another part in its place.
func (c *compaction) filesBefore() (n int64) {
	for _, g := range c.old.sealed {
		n += g.size
	}
	if c.s.bundle != nil {
		n += c.s.bundle.Size
	}
	if c.s.log.file != nil {
		n += c.s.log.size
	}
	for _, f := range c.s.shelf {
		if f.in == &c.s.dir.parts {
			_ = f.use(func(h vfs.File) error {
				info, err := h.Stat()
				n += info.Size
				return err
			})
		}
	}
	return n
}

// filesAfter is what it takes once a state is published. Parts of the same bytes share a
// file.
func (c *compaction) filesAfter(next *state) int64 {
	n := bundleSize(next)
	for _, g := range next.sealed {
		n += g.size
	}
	files := map[Digest]bool{}
	for _, p := range next.parts {
		size := int64(p.ref.size)
		spilled := p.file == nil && size > c.s.opts.Limits.Inline
		if spilled {
			n -= size
		}
		if (spilled || p.file != nil) && !files[p.ref.digest] {
			files[p.ref.digest] = true
			n += size
		}
	}
	return n
}
