package simfs

import "slices"

// group is a set of directories whose name atoms are chosen together: one
// directory, or where names are ordered all those on a disk.
type group struct {
	dirs  []int32
	atoms []nameRef // oldest first
	outs  []groupOutcome
}

type nameRef struct {
	ino  int32
	i    int // index into the directory's atoms
	seq  uint64
	lost bool
}

// groupOutcome is one state that a power cut can leave a group in.
type groupOutcome struct {
	applied []bool // per atom of the group
	dirs    []*dir // settled, per directory of the group
}

// namespace is one tree of names that a power cut can leave.
type namespace struct {
	sum   uint64
	dirs  map[int32]*dir // that differ from the machine's
	files []int32        // those that it leads to
	outs  []int          // per group, the outcome that it was made from
}

// groups splits the directories that have pending or lost names.
func (m *Machine) groups() []*group {
	var gs []*group
	byDisk := map[int8]*group{}
	for i, n := range m.nodes {
		if n.d == nil || len(n.d.atoms) == 0 {
			continue
		}
		g := byDisk[n.disk]
		if g == nil || !m.profile.OrderedNames {
			g = &group{}
			byDisk[n.disk] = g
			gs = append(gs, g)
		}
		g.dirs = append(g.dirs, int32(i))
		for j, a := range n.d.atoms {
			g.atoms = append(g.atoms, nameRef{int32(i), j, a.seq, a.lost})
		}
	}
	for _, g := range gs {
		slices.SortFunc(g.atoms, func(a, b nameRef) int { return int(a.seq) - int(b.seq) })
	}
	return gs
}

// expand lists the distinct outcomes of a group; it reports false when there are
// more choices than limit.
func (m *Machine) expand(g *group, limit int) bool {
	free, ordered := g.split(&m.profile)
	if len(free) > 30 || (1<<len(free))*(len(ordered)+1) > limit {
		return false
	}
	seen := map[uint64]bool{}
	for prefix := 0; prefix <= len(ordered); prefix++ {
		for mask := 0; mask < 1<<len(free); mask++ {
			applied := make([]bool, len(g.atoms))
			for _, i := range ordered[:prefix] {
				applied[i] = true
			}
			for b, i := range free {
				applied[i] = mask>>b&1 == 1
			}
			dirs := m.settleNames(g, applied)
			if h := hashDirs(dirs); !seen[h] {
				seen[h] = true
				g.outs = append(g.outs, groupOutcome{applied, dirs})
			}
		}
	}
	return true
}

// split sorts the atoms of a group (by index) into those that may persist one by
// one, and those that persist in order.
func (g *group) split(p *Profile) (free, ordered []int) {
	for i, a := range g.atoms {
		if a.lost || !p.OrderedNames {
			free = append(free, i)
		} else {
			ordered = append(ordered, i)
		}
	}
	return free, ordered
}

// settleNames makes the directories of g as they are when just these atoms
// reached the disk.
func (m *Machine) settleNames(g *group, applied []bool) []*dir {
	dirs := make([]*dir, len(g.dirs))
	for i, ino := range g.dirs {
		d := m.nodes[ino].d
		es := slices.Clone(d.base)
		for k, a := range g.atoms {
			if a.ino == ino && applied[k] {
				for _, e := range d.atoms[a.i].names() {
					es = with(es, e)
				}
			}
		}
		dirs[i] = &dir{base: es, live: es, meta: d.meta}
	}
	return dirs
}

func hashDirs(dirs []*dir) uint64 {
	h := uint64(zeroSum)
	for _, d := range dirs {
		h = mix(h, uint64(len(d.base)))
		for _, e := range d.base {
			h = mix(mixString(h, e.name), uint64(e.ino))
		}
	}
	return h
}

// namespaces lists the distinct trees; it reports false when there are more
// choices than limit.
func (m *Machine) namespaces(gs []*group, limit int) ([]*namespace, bool) {
	total := 1
	for _, g := range gs {
		if total *= len(g.outs); total > limit {
			return nil, false
		}
	}
	var all []*namespace
	seen := map[uint64]bool{}
	pick := make([]int, len(gs))
	for {
		ns := m.namespace(gs, func(i int) []*dir { return gs[i].outs[pick[i]].dirs })
		key := ns.sum // of the shape; which files stand where matters too
		for _, ino := range ns.files {
			key = mix(key, uint64(ino))
		}
		if !seen[key] {
			seen[key] = true
			ns.outs = slices.Clone(pick)
			all = append(all, ns)
		}
		i := len(pick) - 1
		for ; i >= 0; i-- {
			if pick[i]++; pick[i] < len(gs[i].outs) {
				break
			}
			pick[i] = 0
		}
		if i < 0 {
			return all, true
		}
	}
}

func (m *Machine) namespace(gs []*group, dirs func(i int) []*dir) *namespace {
	ns := &namespace{dirs: map[int32]*dir{}}
	for i, g := range gs {
		for j, d := range dirs(i) {
			ns.dirs[g.dirs[j]] = d
		}
	}
	ns.sum, ns.files = m.shape(func(ino int32) *dir {
		if d := ns.dirs[ino]; d != nil {
			return d
		}
		return m.nodes[ino].d
	})
	return ns
}
