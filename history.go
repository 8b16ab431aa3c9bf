package pawl

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
)

// History is in segments, oldest first, and then in the records of the bundle and the
// journal. What follows reads it as one.

// segmentOf is the segment that a revision is in, or would be.
func (s *state) segmentOf(r Revision) *segment {
	i := sort.Search(len(s.sealed), func(i int) bool { return s.sealed[i].end.revision >= r })
	return s.sealed[i]
}

// historyAt returns the history digest as it was at a revision, and whether there was
// such a revision. Where retention has dropped it, the error is ErrForgotten.
func (s *state) historyAt(r Revision) (Digest, bool, error) {
	switch {
	case r > s.version().Revision:
		return Digest{}, false, nil
	case r > s.base.revision:
		return s.records[r-s.base.revision-1].history, true, nil
	case r == s.base.revision:
		return s.base.history, true, nil
	case r == 0:
		return genesis(s.id), true, nil
	}
	g := s.segmentOf(r)
	if r == g.end.revision {
		return g.end.history, true, nil
	}
	if g.givenUp() {
		return Digest{}, false, nil
	}
	if g.forgotten() {
		return Digest{}, false, forgotten(r)
	}
	_, _, history, e := g.commit(uint64(r - g.from.revision - 1))
	if e != nil {
		return history, false, e
	}
	return history, true, nil
}

// gaveUp reports whether the history has left another one.
func (s *state) gaveUp() bool { return slices.ContainsFunc(s.sealed, (*segment).givenUp) }

// relapseHint is what to do about a version that was shown and is not part of the history.
func (s *state) relapseHint(v Version) string {
	if s.gaveUp() && v.Revision <= s.version().Revision {
		return hintGivenUp
	}
	return hintRolledBack
}

// holds reports whether a version is part of the history.
func (s *state) holds(v Version) (bool, error) {
	at, ok, err := s.historyAt(v.Revision)
	return ok && at == v.Digest, err
}

// forgotten is the error about a commit that retention has dropped.
func forgotten(r Revision) *Error {
	return &Error{Kind: ErrForgotten, Cause: fmt.Errorf("retention has dropped the commit of revision %d", r)}
}

// recordOf returns the commit of a revision that there is.
func (s *state) recordOf(r Revision) (*record, error) {
	if r > s.base.revision {
		return s.records[r-s.base.revision-1], nil
	}
	g := s.segmentOf(r)
	if g.forgotten() {
		return nil, forgotten(r)
	}
	c, e := g.record(r)
	if e != nil {
		return nil, e
	}
	return c, nil
}

// past is what the segments know of a commit id.
type past struct {
	record    *record  // nil: there is no such commit in them
	forgotten Revision // there was one, of this revision, and retention has dropped it
}

// seek looks for a commit id in the segments. A segment that cannot be read leaves it
// open, unless another has it.
func (s *state) seek(id string) (past, error) {
	var unknown error
	hash := idHash(id)
	for _, g := range slices.Backward(s.sealed) {
		commits, e := g.find(hash)
		if e != nil {
			unknown = e
		}
		for _, i := range commits {
			rev := g.from.revision + 1 + Revision(i)
			if g.forgotten() {
				return past{forgotten: rev}, nil
			}
			r, e := g.record(rev)
			if e != nil {
				unknown = e
			} else if r.id == id {
				return past{record: r}, nil
			}
		}
	}
	return past{}, unknown
}

// outcome is what Lookup says of an id.
func (p past) outcome() (Receipt, Outcome) {
	switch {
	case p.record != nil:
		return p.record.receipt(), OutcomeCommitted
	case p.forgotten != 0:
		return Receipt{}, OutcomeForgotten
	}
	return Receipt{}, OutcomeNotCommitted
}

// commit finds the record of an id. An error leaves it open whether there is one.
func (s *state) commit(id string) (past, error) {
	for _, r := range slices.Backward(s.records) {
		if r.id == id {
			return past{record: r}, nil
		}
	}
	return s.seek(id)
}

// trail goes through the commits of a history, in order.
type trail struct {
	s       *state
	segment int     // which one is read
	cursor  *cursor // in it; nil before its first
	record  int     // the next of those that are not sealed
}

// since is the trail of commits after a revision.
func (s *state) since(after Revision) (*trail, *Error) {
	t := &trail{s: s}
	if after >= s.base.revision {
		t.segment = len(s.sealed)
		t.record = int(min(after-s.base.revision, Revision(len(s.records))))
		return t, nil
	}
	g := s.segmentOf(after + 1)
	t.segment = slices.Index(s.sealed, g)
	if g.forgotten() || after == g.from.revision {
		return t, nil
	}
	at, _, _, e := g.commit(uint64(after - g.from.revision))
	t.cursor = g.cursor(at, after)
	return t, e
}

// sinceSeq is the trail of commits from the one that appended an entry on.
func (s *state) sinceSeq(q Seq) (*trail, *Error) {
	if q >= s.base.nextSeq {
		n := sort.Search(len(s.records), func(i int) bool { return s.records[i].nextSeq() > q })
		return s.since(s.base.revision + Revision(n))
	}
	i := sort.Search(len(s.sealed), func(i int) bool { return s.sealed[i].end.nextSeq > q })
	g := s.sealed[i]
	if g.forgotten() || q <= g.from.nextSeq {
		return s.since(g.from.revision)
	}
	l, e := g.layout()
	if e != nil {
		return nil, e
	}
	// The last commit whose first seq is not more than q has it: one without entries
	// has the same first seq as the next.
	n, e := g.search(l.table, bySeq, l.commits, uint64(q)+1)
	if e != nil {
		return nil, e
	}
	return s.since(g.from.revision + Revision(max(n, 1)-1))
}

// next returns the next commit as it is encoded, valid until the one after it is asked
// for; nil after the last. Commits that were forgotten are passed over.
func (t *trail) next() ([]byte, *Error) {
	for ; t.segment < len(t.s.sealed); t.segment, t.cursor = t.segment+1, nil {
		g := t.s.sealed[t.segment]
		if g.forgotten() {
			continue
		}
		if t.cursor == nil {
			t.cursor = g.cursor(headerSize, g.from.revision)
			t.cursor.span = firstSpan
		}
		at := t.cursor.at
		raw, e := t.cursor.next()
		if raw != nil && (!coded(raw).whole() || coded(raw).revision() != t.cursor.done) {
			e = g.file.damaged(errorString("a record is not where it should be"), g.whole(at, int64(len(raw))))
		}
		if raw != nil || e != nil {
			return raw, e
		}
	}
	if t.record == len(t.s.records) {
		return nil, nil
	}
	t.record++
	return t.s.records[t.record-1].raw, nil
}

// coded is an encoded commit of which only what is asked for is read. It was checked
// when it was written, and its bytes have been held against a digest since.
type coded []byte

func (c coded) revision() Revision { return Revision(binary.LittleEndian.Uint64(c[atRevision:])) }
func (c coded) firstSeq() Seq      { return Seq(binary.LittleEndian.Uint64(c[atFirstSeq:])) }

// entries is what follows the head, unless that was dropped.
func (c coded) entries() (b []byte, count uint32) {
	if b = c[binary.LittleEndian.Uint32(c):]; len(b) == 0 {
		return nil, 0
	}
	return b, binary.LittleEndian.Uint32(c[atCount:])
}

// whole reports whether the bytes are long enough to be a commit.
func (c coded) whole() bool {
	if len(c) < atEntriesDigest {
		return false
	}
	head := binary.LittleEndian.Uint32(c)
	return head >= atEntriesDigest && uint64(head) <= uint64(len(c))
}
