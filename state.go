package pawl

import (
	"maps"
	"slices"
)

// storeID tells one store from all others; it is drawn once, at creation.
type storeID [16]byte

// state is one immutable state of a store, whole in memory. Views and the writer
// share it, and share what two states have in common.
type state struct {
	id       storeID
	base     origin // what the history was before records[0]
	records  []*record
	parts    map[string]part
	schema   uint32
	program  string
	epoch    uint64
	replaced Digest // the disk digest that this state's bundle replaced
}

// origin is where the kept history begins.
type origin struct {
	revision Revision
	nextSeq  Seq
	history  Digest
}

// part is a part's bytes and how history names them.
type part struct {
	data []byte
	ref  partRef
}

// emptyState is the state of a store that nothing was committed to.
func emptyState(id storeID) *state {
	return &state{id: id, base: origin{history: genesis(id), nextSeq: 1}, parts: map[string]part{}}
}

func (s *state) version() Version {
	if n := len(s.records); n > 0 {
		return s.records[n-1].version()
	}
	return Version{s.base.revision, s.base.history}
}

func (s *state) nextSeq() Seq {
	if n := len(s.records); n > 0 {
		return s.records[n-1].nextSeq()
	}
	return s.base.nextSeq
}

// historyAt returns the history digest as it was at a revision.
func (s *state) historyAt(r Revision) (Digest, bool) {
	if r == s.base.revision {
		return s.base.history, true
	}
	if i := s.index(r); i >= 0 {
		return s.records[i].history, true
	}
	return Digest{}, false
}

// index is where the record of a revision is, or -1.
func (s *state) index(r Revision) int {
	if r <= s.base.revision || r > s.version().Revision {
		return -1
	}
	return int(r - s.base.revision - 1)
}

// after returns the state that a sealed record makes of s, in a bundle that
// replaces the one with the given disk digest.
func (s *state) after(r *record, data map[string][]byte, replaced Digest) *state {
	next := *s
	next.epoch++
	next.replaced = replaced
	// The array behind records is shared with s, whose shorter length hides the new
	// one. Only the writer appends, and a state that it gave up is never looked at.
	next.records = append(s.records, r)
	if len(r.put)+len(r.deleted) > 0 {
		next.parts = maps.Clone(s.parts)
		for _, ref := range r.put {
			next.parts[ref.name] = part{data[ref.name], ref}
		}
		for _, name := range r.deleted {
			delete(next.parts, name)
		}
	}
	return &next
}

// partNames returns the names of all parts, sorted.
func (s *state) partNames() []string { return slices.Sorted(maps.Keys(s.parts)) }
