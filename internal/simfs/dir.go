package simfs

import (
	"slices"
	"strings"
)

// dir is the names in a directory: what programs see (live), what is forced
// (base), and the name atoms between the two, oldest first.
//
// Invariants. D1: entries are sorted by name. D2: no lost atom sets a name that
// a newer forced atom set: forcing takes such names away from it.
type dir struct {
	own   *owner
	base  []entry
	live  []entry
	atoms []nameAtom
	meta  meta
	gone  bool // removed; only a handle can still reach it
}

type entry struct {
	name string
	ino  int32
}

// nameAtom sets one name, or two for a rename; an inode of 0 removes the name.
type nameAtom struct {
	sets [2]entry
	n    int
	seq  uint64
	at   CallID
	lost bool
}

func (a *nameAtom) names() []entry { return a.sets[:a.n] }

func newDir(own *owner, m meta) *dir { return &dir{own: own, meta: m} }

func (d *dir) clone(own *owner) *dir {
	// Entries are cloned because set changes them in place; base never does.
	return &dir{own: own, base: d.base, live: slices.Clone(d.live), atoms: slices.Clone(d.atoms), meta: d.meta, gone: d.gone}
}

func (d *dir) lookup(name string) int32 {
	if i, ok := search(d.live, name); ok {
		return d.live[i].ino
	}
	return 0
}

func search(es []entry, name string) (int, bool) {
	return slices.BinarySearchFunc(es, name, func(e entry, n string) int { return strings.Compare(e.name, n) })
}

// with returns es with e set; it may change es.
func with(es []entry, e entry) []entry {
	i, ok := search(es, e.name)
	switch {
	case ok && e.ino == 0:
		return slices.Delete(es, i, i+1)
	case ok:
		es[i] = e
		return es
	case e.ino == 0:
		return es
	}
	return slices.Insert(es, i, e)
}

// add makes a as an atom and shows it to programs.
func (d *dir) add(a nameAtom) {
	for _, e := range a.names() {
		d.live = with(d.live, e)
	}
	d.atoms = append(d.atoms, a)
}

// force makes durable what is pending and not newer than seq.
func (d *dir) force(seq uint64) {
	base := slices.Clone(d.base)
	var left []nameAtom
	for _, a := range d.atoms {
		if a.lost || a.seq > seq {
			left = append(left, a)
			continue
		}
		for _, e := range a.names() {
			base = with(base, e)
			left = hide(left, e.name)
		}
	}
	d.base, d.atoms = base, left
}

// hide takes a name away from lost atoms that are older than a forced one (D2).
func hide(atoms []nameAtom, name string) []nameAtom {
	out := atoms[:0]
	for _, a := range atoms {
		b := nameAtom{seq: a.seq, at: a.at, lost: a.lost}
		for _, e := range a.names() {
			if !a.lost || e.name != name {
				b.sets[b.n] = e
				b.n++
			}
		}
		if b.n > 0 {
			out = append(out, b)
		}
	}
	return out
}

// lose makes lost what is pending and not newer than seq; with revert programs
// no longer see it.
func (d *dir) lose(seq uint64, revert bool) {
	for i := range d.atoms {
		if d.atoms[i].seq <= seq {
			d.atoms[i].lost = true
		}
	}
	if revert {
		d.live = slices.Clone(d.base)
		for _, a := range d.atoms {
			if a.lost {
				continue
			}
			for _, e := range a.names() {
				d.live = with(d.live, e)
			}
		}
	}
}

// newestPending is the order of the newest atom that a sync would force, 0 when
// there is none.
func (d *dir) newestPending() uint64 {
	for i := len(d.atoms) - 1; i >= 0; i-- {
		if !d.atoms[i].lost {
			return d.atoms[i].seq
		}
	}
	return 0
}

func (d *dir) flush() {
	d.base, d.atoms = slices.Clone(d.live), nil
}
