package simfs

import "slices"

// outcome is one content that a power cut can leave of a file.
type outcome struct {
	f    *file // settled
	pick filePick
}

// filePick says which atoms made an outcome.
type filePick struct {
	size int      // 0: the forced size; i: sizes[i-1]
	vers []uint16 // per chain: 0 the forced version; 2j-1 vers[j-1] whole, 2j the same torn
}

// outcomeSet lists the distinct outcomes of a file, unless their number passes
// the limit that was asked for.
type outcomeSet struct {
	list  []outcome
	limit int
	many  bool
}

// outcomes returns what a power cut can leave of f. The answer is kept: the
// crash points around a call share most files.
func (f *file) outcomes(p *Profile, limit int) *outcomeSet {
	if o := f.outs.Load(); o != nil && o.limit == limit {
		return o
	}
	o := &outcomeSet{limit: limit}
	switch {
	case f.settled():
		o.list = []outcome{{f: f}}
	case f.countOutcomes(p, limit) > limit:
		o.many = true
	default:
		seen := map[uint64]bool{}
		f.eachPick(p, func(k filePick) {
			g := f.freeze(k)
			if h := g.hash(); !seen[h] {
				seen[h] = true
				k.vers = slices.Clone(k.vers)
				o.list = append(o.list, outcome{g, k})
			}
		})
	}
	f.outs.Store(o)
	return o
}

// span is the choice that a size leaves for each chain that it shows: from first
// to last, in the numbering of filePick.
func (f *file) span(p *Profile, size int, c chain) (first, last int) {
	if int64(c.sector)*Sector >= f.sizeOf(size) {
		return 0, 0 // beyond the end: nobody can tell
	}
	last = 2 * len(c.vers)
	if !p.OrderedSize || size == 0 || f.sizes[size-1].lost {
		return 0, last
	}
	for _, s := range f.sizes[:size] {
		if s.sector == c.sector && !s.lost {
			if i := f.versionIndex(s.sector, s.data); i > 0 {
				first = max(first, 2*i-1)
			}
		}
	}
	return first, last
}

func (f *file) sizeOf(size int) int64 {
	if size == 0 {
		return f.baseSize
	}
	return f.sizes[size-1].size
}

// countOutcomes counts picks, and stops soon after limit.
func (f *file) countOutcomes(p *Profile, limit int) int {
	total := 0
	for size := 0; size <= len(f.sizes) && total <= limit; size++ {
		n := 1
		for _, c := range f.chains {
			first, last := f.span(p, size, c)
			k := last - first + 1
			if !p.Torn {
				k = (last+1)/2 - (first+1)/2 + 1
			}
			if n *= k; n > limit {
				break
			}
		}
		total += n
	}
	return total
}

// eachPick calls f with every legal pick, the one that drops all first.
func (f *file) eachPick(p *Profile, yield func(filePick)) {
	k := filePick{vers: make([]uint16, len(f.chains))}
	for k.size = 0; k.size <= len(f.sizes); k.size++ {
		var choose func(i int)
		choose = func(i int) {
			if i == len(f.chains) {
				yield(k)
				return
			}
			first, last := f.span(p, k.size, f.chains[i])
			for v := first; v <= last; v++ {
				if torn := v > 0 && v%2 == 0; torn && !p.Torn {
					continue
				}
				k.vers[i] = uint16(v)
				choose(i + 1)
			}
		}
		choose(0)
	}
}

// freeze makes the file that a pick leaves.
func (f *file) freeze(k filePick) *file {
	size := f.sizeOf(k.size)
	blocks := make([]*block, sectors(size))
	copy(blocks, f.base)
	for i, c := range f.chains {
		if v := int(k.vers[i]); v > 0 && c.sector < len(blocks) {
			blocks[c.sector] = f.version(c, v)
		}
	}
	if n := len(blocks); n > 0 && size%Sector != 0 {
		blocks[n-1] = cutBlock(blocks[n-1], int(size%Sector))
	}
	return &file{size: size, live: blocks, baseSize: size, base: blocks, meta: f.baseMeta, baseMeta: f.baseMeta, modTime: f.modTime}
}

// version is the content that choice v of a chain leaves.
func (f *file) version(c chain, v int) *block {
	j := (v+1)/2 - 1
	cur := c.vers[j].b
	if v%2 == 1 {
		return cur
	}
	prev := blockAt(f.base, c.sector)
	if j > 0 {
		prev = c.vers[j-1].b
	}
	return tear(prev, cur)
}
