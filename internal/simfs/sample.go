package simfs

import (
	"math/rand/v2"
	"slices"
)

type atomKind uint8

const (
	nameAtoms atomKind = iota
	dataAtoms
	sizeAtoms
)

// atomRef is one pending or lost atom, of whatever kind.
type atomRef struct {
	seq  uint64
	at   CallID
	kind atomKind
	ino  int32
	i, j int // name: index; data: chain and version; size: index
	lost bool
}

// atomSet is a set of atoms that reached the disk; torn ones are in the set.
type atomSet struct{ in, torn []bool }

// atoms lists all atoms of the machine, oldest first.
func (m *Machine) atoms() (all []atomRef) {
	for ino, n := range m.nodes {
		if n.d != nil {
			for i, a := range n.d.atoms {
				all = append(all, atomRef{a.seq, a.at, nameAtoms, int32(ino), i, 0, a.lost})
			}
		}
		if n.f == nil {
			continue
		}
		for i, c := range n.f.chains {
			for j, v := range c.vers {
				all = append(all, atomRef{v.seq, v.at, dataAtoms, int32(ino), i, j, v.lost})
			}
		}
		for i, s := range n.f.sizes {
			all = append(all, atomRef{s.seq, s.at, sizeAtoms, int32(ino), i, 0, s.lost})
		}
	}
	slices.SortFunc(all, func(a, b atomRef) int { return int(a.seq) - int(b.seq) })
	return all
}

// edges lists, for each atom, what must be on the disk when it is: sets of which
// one atom must be there. They are the profile's; longer chains follow.
func (m *Machine) edges(all []atomRef) [][][]int {
	edges := make([][][]int, len(all))
	lastName, lastSize := map[int8]int{}, map[int32]int{}
	for a, r := range all {
		switch {
		case r.lost:
		case r.kind == nameAtoms && m.profile.OrderedNames:
			disk := m.nodes[r.ino].disk
			if b, ok := lastName[disk]; ok {
				edges[a] = append(edges[a], []int{b})
			}
			lastName[disk] = a
		case r.kind == sizeAtoms && m.profile.OrderedSize:
			if b, ok := lastSize[r.ino]; ok {
				edges[a] = append(edges[a], []int{b})
			}
			lastSize[r.ino] = a
			if anyOf := m.exposed(all, r); len(anyOf) > 0 {
				edges[a] = append(edges[a], anyOf)
			}
		}
	}
	return edges
}

// exposed lists the versions of which one must be there when a size is.
func (m *Machine) exposed(all []atomRef, size atomRef) (anyOf []int) {
	s := m.nodes[size.ino].f.sizes[size.i]
	for b, r := range all {
		if s.data != 0 && r.kind == dataAtoms && r.ino == size.ino && r.seq >= s.data &&
			m.nodes[r.ino].f.chains[r.i].sector == s.sector {
			anyOf = append(anyOf, b)
		}
	}
	return anyOf
}

// downClose makes in down-closed: it adds what is missing, or takes out what
// lacks something.
func downClose(edges [][][]int, in []bool, add bool) {
	for again := true; again; {
		again = false
		for a := range edges {
			for _, anyOf := range edges[a] {
				if !in[a] || slices.ContainsFunc(anyOf, func(b int) bool { return in[b] }) {
					continue
				}
				again = true
				if add {
					in[anyOf[0]] = true
				} else {
					in[a] = false
				}
			}
		}
	}
}

// sample lists none, all, prefixes, omit-one and keep-one, and then random sets;
// or what the strategy asks for.
func (c *Cut) sample(yield func(d *Disk) bool) {
	all := c.m.atoms()
	edges := c.m.edges(all)
	n := len(all)
	d := &Disk{cut: c, Index: -1}
	stopped := false
	emit := func(in []bool, torn []bool, add bool) bool {
		if stopped {
			return false
		}
		downClose(edges, in, add)
		c.fill(d, all, &atomSet{in, torn})
		d.Index++
		stopped = !yield(d)
		return !stopped
	}
	prefix := func(k int) []bool {
		in := make([]bool, n)
		for i := range k {
			in[i] = true
		}
		return in
	}
	none := make([]bool, n)
	emit(prefix(0), none, true)
	if c.opt.Strategy == DropUnsynced {
		return
	}
	for k := n; k > 0; k-- {
		emit(prefix(k), none, true)
	}
	for k := range n {
		in := prefix(n)
		in[k] = false
		emit(in, none, false)
	}
	if c.opt.Strategy == Alice {
		return
	}
	for k := range n {
		in := make([]bool, n)
		in[k] = true
		emit(in, none, true)
		if c.m.profile.Torn && all[k].kind == dataAtoms {
			torn := make([]bool, n)
			torn[k] = true
			emit(prefix(k+1), torn, true)
		}
	}
	rng := rand.New(rand.NewPCG(c.opt.Seed, 0x9a771))
	for range c.opt.Random {
		in, torn := make([]bool, n), make([]bool, n)
		density := rng.Float64()
		for i := range n {
			in[i] = rng.Float64() < density
			torn[i] = c.m.profile.Torn && all[i].kind == dataAtoms && rng.IntN(8) == 0
		}
		if !emit(in, torn, rng.IntN(2) == 0) {
			return
		}
	}
}

// fill makes d the disk that a set of atoms leaves.
func (c *Cut) fill(d *Disk, all []atomRef, set *atomSet) {
	m := c.m
	in := make(map[uint64]int8, len(all))
	for i, a := range all {
		switch {
		case set.in[i] && set.torn[i]:
			in[a.seq] = 2
		case set.in[i]:
			in[a.seq] = 1
		}
	}
	d.set = set
	d.ns = m.namespace(c.groups, func(i int) []*dir {
		applied := make([]bool, len(c.groups[i].atoms))
		for k, a := range c.groups[i].atoms {
			applied[k] = in[a.seq] > 0
		}
		return m.settleNames(c.groups[i], applied)
	})
	d.files, d.picks, d.Sum = nil, nil, d.ns.sum
	for _, ino := range d.ns.files {
		f := m.nodes[ino].f
		k := filePick{vers: make([]uint16, len(f.chains))}
		for i, s := range f.sizes {
			if in[s.seq] > 0 {
				k.size = i + 1
			}
		}
		for i, ch := range f.chains {
			for j, v := range ch.vers {
				if s := in[v.seq]; s > 0 {
					k.vers[i] = uint16(2*j) + uint16(s)
				}
			}
		}
		g := f
		if !f.settled() {
			g = f.freeze(k)
		}
		d.files, d.picks = append(d.files, g), append(d.picks, k)
		d.Sum = mix(d.Sum, g.hash())
	}
}
