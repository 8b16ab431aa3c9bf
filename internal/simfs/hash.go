package simfs

import "slices"

// Sum is a hash of everything about the machine that a program run on it, or a
// crash of it, could show: names, sizes, sectors, what is pending and what is
// lost. Inode numbers do not count, nor do clock, randomness and times, nor what
// SetUnread named.
func (m *Machine) Sum() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, files := m.shape(func(ino int32) *dir { return m.nodes[ino].d })
	for _, ino := range files {
		h = mix(h, m.nodes[ino].f.hash())
	}
	return h
}

// shape hashes the directories, each as get returns it, and lists the files that
// they lead to in the order in which a walk meets them, without those whose names
// are all unread.
func (m *Machine) shape(get func(ino int32) *dir) (h uint64, files []int32) {
	w := walker{m: m, get: get, num: make([]int32, len(m.nodes)), read: make([]bool, len(m.nodes)), h: zeroSum}
	for _, mt := range m.mounts {
		w.visit(mt.root)
	}
	return w.h, slices.DeleteFunc(w.files, func(ino int32) bool { return !w.read[ino] })
}

type walker struct {
	m     *Machine
	get   func(int32) *dir
	num   []int32 // 1 for the first inode met
	read  []bool  // it has a name that is not unread
	next  int32
	files []int32
	h     uint64
	ranks []uint64
}

func (w *walker) visit(ino int32) {
	if ino == 0 {
		w.h = mix(w.h, 0)
		return
	}
	if w.num[ino] != 0 {
		w.h = mix(w.h, uint64(w.num[ino]))
		return
	}
	w.next++
	w.num[ino] = w.next
	if w.m.nodes[ino].f != nil {
		w.h = mix(w.h, 3)
		w.files = append(w.files, ino)
		return
	}
	d := w.get(ino)
	w.h = mix(mix(w.h, 5), uint64(d.meta.mode)<<32|uint64(d.meta.gid))
	w.entries(d.base)
	if len(d.atoms) == 0 {
		return // then live is base
	}
	w.entries(d.live)
	for _, a := range d.atoms {
		w.h = mixBool(w.h, a.lost)
		if w.m.profile.OrderedNames {
			w.h = mix(w.h, w.rank(a.seq))
		}
		w.entries(a.names())
	}
}

func (w *walker) entries(es []entry) {
	w.h = mix(w.h, uint64(len(es))+7)
	for _, e := range es {
		w.h = mixString(w.h, e.name)
		w.read[e.ino] = w.read[e.ino] || w.m.unread == nil || !w.m.unread(e.name)
		w.visit(e.ino)
	}
}

// rank is the place of an atom among all name atoms, so that equal histories
// hash equally whatever else the machine did before.
func (w *walker) rank(seq uint64) uint64 {
	if w.ranks == nil {
		for _, n := range w.m.nodes {
			if n.d != nil {
				for _, a := range n.d.atoms {
					w.ranks = append(w.ranks, a.seq)
				}
			}
		}
		slices.Sort(w.ranks)
	}
	i, _ := slices.BinarySearch(w.ranks, seq)
	return uint64(i)
}

// hash covers what a program or a crash can see of a file; names are not part
// of it.
func (f *file) hash() uint64 {
	if s := f.sum.Load(); s != 0 {
		return s
	}
	h := mix(mix(zeroSum, uint64(f.baseSize)), uint64(f.baseMeta.mode)<<32|uint64(f.baseMeta.gid))
	h = mixBlocks(h, f.base)
	if !f.settled() {
		h = mix(mix(h, uint64(f.size)), uint64(f.meta.mode)<<32|uint64(f.meta.gid))
		h = mixBlocks(h, f.live)
		for _, c := range f.chains {
			h = mix(mix(h, uint64(c.sector)+11), uint64(len(c.vers)))
			for _, v := range c.vers {
				h = mixBool(mix(h, v.b.hash()), v.lost)
			}
		}
		for _, s := range f.sizes {
			h = mixBool(mix(h, uint64(s.size)+13), s.lost)
			h = mix(h, uint64(f.versionIndex(s.sector, s.data)))
		}
	}
	if h == 0 {
		h = 1
	}
	f.sum.Store(h)
	return h
}

// mixBlocks ignores zero sectors at the end: a hole and written zeros are alike.
func mixBlocks(h uint64, bs []*block) uint64 {
	for len(bs) > 0 && bs[len(bs)-1] == nil {
		bs = bs[:len(bs)-1]
	}
	h = mix(h, uint64(len(bs)))
	for _, b := range bs {
		h = mix(h, b.hash())
	}
	return h
}

// versionIndex is the place of a version in its sector's chain from 1, or 0 when
// it is none or was forced.
func (f *file) versionIndex(sector int, seq uint64) int {
	if i, ok := f.chain(sector); ok && seq != 0 {
		for j, v := range f.chains[i].vers {
			if v.seq == seq {
				return j + 1
			}
		}
	}
	return 0
}
