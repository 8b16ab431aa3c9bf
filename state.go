package pawl

import (
	"maps"
	"slices"
)

// storeID tells one store from all others; it is drawn once, at creation.
type storeID [16]byte

// state is one immutable state of a store. In memory are the newest commits and small
// parts; what is older or larger is in files that it names. Views and the writer share
// it, and share what two states have in common.
type state struct {
	id       storeID
	sealed   []*segment // the history before base, in order and without a gap
	base     origin     // what the history was before records[0]
	records  []*record
	parts    map[string]part
	schema   uint32 // what the newest commit that says one says; 0: none does
	program  string // likewise
	epoch    uint64
	replaced Digest // the disk digest that this state's bundle replaced
	unsealed int64  // what records take in a bundle
	inline   int64  // parts up to this size are in the bundle
	size     int64  // of a bundle without records, and with larger parts in files
}

// origin is where a history goes on from.
type origin struct {
	revision Revision
	nextSeq  Seq
	history  Digest
}

// part is a part's bytes, or the file that holds them, and how history names them.
type part struct {
	data []byte
	file *keptFile // nil: data has them
	ref  partRef
}

// emptyState is the state of a store that nothing was committed to.
func emptyState(id storeID, l *Limits) *state {
	s := &state{id: id, base: beginning(id), parts: map[string]part{}}
	s.measure(l)
	return s
}

// beginning is what the history of a store goes on from.
func beginning(id storeID) origin { return origin{history: genesis(id), nextSeq: 1} }

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
	g.unsealed += 4 + int64(len(r.raw))
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
		g.parts[ref.name] = part{data: data[i], ref: ref}
	}
	for _, name := range r.deleted {
		delete(g.parts, name)
	}
}

// cost is by how much a record makes the bundle larger, besides what it takes itself.
func (s *state) cost(r *record) (n int64) {
	if r.program != "" {
		n += int64(len(r.program) - len(s.program))
	}
	for _, ref := range r.put {
		n += partCost(ref, s.inline) - s.partCost(ref.name)
	}
	for _, name := range r.deleted {
		n -= s.partCost(name)
	}
	return n
}

func (s *state) partCost(name string) int64 {
	p, ok := s.parts[name]
	switch {
	case !ok:
		return 0
	case p.file != nil: // where it stays
		return partCost(p.ref, -1)
	}
	return partCost(p.ref, s.inline)
}

// measure finds out what the state takes in a bundle.
func (s *state) measure(l *Limits) {
	s.inline, s.unsealed = l.Inline, 0
	s.size = int64(emptyBundle+len(s.program)) + s.tableSize()
	for name := range s.parts {
		s.size += s.partCost(name)
	}
	for _, r := range s.records {
		s.unsealed += 4 + int64(len(r.raw))
	}
}

// most is how large a bundle with this state, and one more record, can become.
func (s *state) most(r *record, l *Limits) int64 {
	unsealed := s.unsealed + 4 + int64(len(r.raw))
	if unsealed > l.Unsealed {
		unsealed = l.Unsealed + rowSize*(1+unsealed/(mostSegment*l.unit()))
	}
	return s.size + s.cost(r) + unsealed
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
