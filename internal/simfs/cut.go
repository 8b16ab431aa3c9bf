package simfs

// Strategy says which of the legal disks a Cut lists.
type Strategy int

const (
	// AllSets lists every legal disk, or a sample where there are more than the
	// budget.
	AllSets Strategy = iota
	// DropUnsynced lists one disk: nothing that was not forced is on it.
	DropUnsynced
	// Alice lists none, all, prefixes and omit-one, untorn.
	Alice
)

// CutOptions bounds the enumeration.
type CutOptions struct {
	Strategy Strategy
	Budget   int // disks listed exhaustively, 0 for 50,000; beyond it a sample
	Random   int // random disks in a sample, 0 for 500
	Seed     uint64
}

// Cut is a power cut at one instant, on all disks of a machine: it lists the
// disks that it can leave. The machine must not change while a Cut is in use.
type Cut struct {
	m       *Machine
	opt     CutOptions
	sampled bool
	groups  []*group
	spaces  []*namespace
}

// Disk is one legal state of all disks of the machine.
type Disk struct {
	Index int    // in the order of listing, which is the same in every run
	Sum   uint64 // as Machine.Sum of the machine that starts with it

	cut   *Cut
	ns    *namespace
	files []*file    // per file of the namespace
	picks []filePick // the same
	set   *atomSet   // of a sample, instead of ns.outs and picks
}

// Cut prepares the enumeration. It is quick when there are few choices of names.
func (m *Machine) Cut(opt CutOptions) *Cut {
	m.mu.Lock()
	defer m.mu.Unlock()
	if opt.Budget == 0 {
		opt.Budget = 50_000
	}
	if opt.Random == 0 {
		opt.Random = 500
	}
	m.own = new(owner) // the disks share what the machine has
	c := &Cut{m: m, opt: opt, sampled: opt.Strategy != AllSets, groups: m.groups()}
	if c.sampled {
		return c
	}
	for _, g := range c.groups {
		if !m.expand(g, opt.Budget) {
			c.sampled = true
			return c
		}
	}
	spaces, ok := m.namespaces(c.groups, opt.Budget)
	total := 0
	for _, ns := range spaces {
		n := 1
		for _, ino := range ns.files {
			o := m.nodes[ino].f.outcomes(&m.profile, opt.Budget)
			if n *= max(len(o.list), 1); o.many || n > opt.Budget {
				ok = false
				break
			}
		}
		total += n
	}
	c.sampled = !ok || total > opt.Budget
	c.spaces = spaces
	return c
}

// Exhaustive says whether every legal disk is listed.
func (c *Cut) Exhaustive() bool { return !c.sampled }

// Disks lists the disks until yield returns false. A disk may be listed twice;
// its Sum tells. The Disk is good only until yield returns.
func (c *Cut) Disks(yield func(d *Disk) bool) {
	if c.sampled {
		c.sample(yield)
		return
	}
	d := &Disk{cut: c, Index: -1}
	for _, ns := range c.spaces {
		if !c.product(d, ns, yield) {
			return
		}
	}
}

// product lists every combination of file outcomes under one tree of names.
func (c *Cut) product(d *Disk, ns *namespace, yield func(d *Disk) bool) bool {
	n := len(ns.files)
	d.ns, d.files, d.picks = ns, make([]*file, n), make([]filePick, n)
	outs := make([][]outcome, n)
	for i, ino := range ns.files {
		outs[i] = c.m.nodes[ino].f.outcomes(&c.m.profile, c.opt.Budget).list
	}
	sums := make([]uint64, n+1) // sums[i] covers the names and the first i files
	sums[0] = ns.sum
	at := make([]int, n)
	for i := 0; ; {
		for ; i < n; i++ {
			o := &outs[i][at[i]]
			d.files[i], d.picks[i] = o.f, o.pick
			sums[i+1] = mix(sums[i], o.f.hash())
		}
		d.Index++
		d.Sum = sums[n]
		if !yield(d) {
			return false
		}
		for i = n - 1; i >= 0; i-- {
			if at[i]++; at[i] < len(outs[i]) {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			return true
		}
	}
}

// Machine returns the machine that starts after the power cut with this disk.
func (d *Disk) Machine() *Machine {
	m := d.cut.m
	n := &Machine{
		own: new(owner), profile: m.profile, seed: m.seed, mounts: m.mounts, nodes: make([]node, len(m.nodes), len(m.nodes)+8),
		seq: m.seq, boots: m.boots, moved: m.moved, locks: map[int32]*fileHandle{}, scratch: m.scratch, unread: m.unread,
	}
	n.nodes[rootIno] = m.nodes[rootIno]
	for i, ino := range d.ns.files {
		n.nodes[ino] = node{f: d.files[i], disk: m.nodes[ino].disk}
	}
	var walk func(ino int32)
	walk = func(ino int32) {
		dir := d.ns.dirs[ino]
		if dir == nil {
			dir = m.nodes[ino].d
		}
		n.nodes[ino] = node{d: dir, disk: m.nodes[ino].disk}
		for _, e := range dir.base {
			switch c := m.nodes[e.ino]; {
			case c.d != nil:
				walk(e.ino)
			case n.nodes[e.ino].f == nil: // an unread file, of no account
				n.nodes[e.ino] = node{f: newFile(nil, c.f.baseMeta.mode, c.f.baseMeta.gid, c.f.modTime), disk: c.disk}
			}
		}
	}
	for _, mt := range m.mounts {
		walk(mt.root)
	}
	return n
}

// Disk returns the disk with the given index, or nil.
func (c *Cut) Disk(index int) (found *Disk) {
	c.Disks(func(d *Disk) bool {
		if d.Index != index {
			return true
		}
		found = d
		return false
	})
	return found
}
