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
	schema   uint32 // what the newest commit that says one says; 0: none does
	program  string // likewise
	epoch    uint64
	replaced Digest // the disk digest that this state's bundle replaced
	size     int64  // of a bundle that holds this state
}

// origin is where a history goes on from.
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
	return &state{id: id, base: origin{history: genesis(id), nextSeq: 1}, parts: map[string]part{}, size: emptyBundle}
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

// end is where the next commit goes on from.
func (s *state) end() origin {
	v := s.version()
	return origin{v.Revision, s.nextSeq(), v.Digest}
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

// growing is a state that is being made of another by one record after the other.
// Nobody else sees it until it is done.
type growing struct {
	state
	shared bool // parts is still that of the state it grows from
}

func (s *state) grow() growing { return growing{*s, true} }

// add makes a record that has its place, and the bytes of the parts that it puts, the
// newest of the state.
func (g *growing) add(r *record, data [][]byte) {
	g.size += g.cost(r)
	// The array behind records is shared with the state that this one grows from,
	// whose shorter length hides what is new. Only the writer appends, and a state
	// that it gave up is never looked at.
	g.records = append(g.records, r)
	if r.schema != 0 {
		g.schema = r.schema
	}
	if r.program != "" {
		g.program = r.program
	}
	if len(r.put)+len(r.deleted) == 0 {
		return
	}
	if g.shared {
		g.parts, g.shared = maps.Clone(g.parts), false
	}
	for i, ref := range r.put {
		g.parts[ref.name] = part{data[i], ref}
	}
	for _, name := range r.deleted {
		delete(g.parts, name)
	}
}

// cost is by how much a record makes the bundle larger.
func (s *state) cost(r *record) int64 {
	n := int64(4 + len(r.raw))
	if r.program != "" {
		n += int64(len(r.program) - len(s.program))
	}
	for _, ref := range r.put {
		n += partCost(ref) - s.partCost(ref.name)
	}
	for _, name := range r.deleted {
		n -= s.partCost(name)
	}
	return n
}

func (s *state) partCost(name string) int64 {
	if p, ok := s.parts[name]; ok {
		return partCost(p.ref)
	}
	return 0
}

// published is the same state in a bundle that replaces the one with the given disk
// digest.
func (s *state) published(replaced Digest) *state {
	next := *s
	next.epoch++
	next.replaced = replaced
	return &next
}

// partNames returns the names of all parts, sorted.
func (s *state) partNames() []string { return slices.Sorted(maps.Keys(s.parts)) }
