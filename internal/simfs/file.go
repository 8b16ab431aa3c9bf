package simfs

import (
	"io/fs"
	"slices"
	"sync/atomic"
	"time"
)

// file is the content of a regular file: what programs see (live), what is
// forced (base), and between the two the atoms that are pending or lost.
//
// Invariants. F1: a file whose owner is not the machine's is shared and not
// changed. F2: bytes of live at or beyond size are zero. F3: lost versions are
// the oldest of their chain, and lost sizes the oldest sizes.
type file struct {
	own       *owner
	size      int64
	live      []*block
	liveOwned bool // live is not shared with base or another machine
	baseSize  int64
	base      []*block // may reach beyond baseSize: forced content of a size that is not
	chains    []chain  // by sector
	sizes     []sizeAtom
	meta      meta
	baseMeta  meta
	modTime   time.Time

	sum  atomic.Uint64              // hash of all of the above, 0 when not known
	outs atomic.Pointer[outcomeSet] // what a power cut can leave, nil when not known
}

type meta struct {
	mode fs.FileMode
	gid  int
}

// chain holds the versions of one sector that are newer than the forced one.
type chain struct {
	sector int
	vers   []version
}

type version struct {
	b    *block
	seq  uint64 // order of all atoms of the machine
	at   CallID
	lost bool
}

type sizeAtom struct {
	size   int64
	sector int    // the sector that this step exposes
	data   uint64 // the version written there by the same call, 0 when none was needed
	seq    uint64
	at     CallID
	lost   bool
}

func newFile(own *owner, mode fs.FileMode, gid int, now time.Time) *file {
	m := meta{mode: mode.Perm(), gid: gid}
	return &file{own: own, liveOwned: true, meta: m, baseMeta: m, modTime: now}
}

// clone is a copy that own may change. Inner slices stay shared: they are only
// ever replaced, or appended to at their capacity.
func (f *file) clone(own *owner) *file {
	return &file{
		own: own, size: f.size, live: f.live, baseSize: f.baseSize, base: f.base,
		chains: slices.Clone(f.chains), sizes: f.sizes[:len(f.sizes):len(f.sizes)],
		meta: f.meta, baseMeta: f.baseMeta, modTime: f.modTime,
	}
}

func (f *file) changed() {
	f.sum.Store(0)
	f.outs.Store(nil)
}

func sectors(size int64) int { return int((size + Sector - 1) / Sector) }

func blockAt(s []*block, i int) *block {
	if i < len(s) {
		return s[i]
	}
	return nil
}

func (f *file) readAt(p []byte, off int64) int {
	if off >= f.size {
		return 0
	}
	n := int(min(int64(len(p)), f.size-off))
	for done := 0; done < n; {
		pos := off + int64(done)
		i, lo := int(pos/Sector), int(pos%Sector)
		k := min(n-done, Sector-lo)
		if b := blockAt(f.live, i); b != nil {
			copy(p[done:done+k], b.b[lo:])
		} else {
			clear(p[done : done+k])
		}
		done += k
	}
	return n
}

// page is a part of a large block that may be spoilt by itself, in sectors.
const page = 4096 / Sector

// write makes the atoms of one WriteAt; pages says that each page of it may be
// spoilt by itself. Before each sector but the first that
// makes any it calls between, so that a kill can be placed there, and goes on
// with the file that this returns: a snapshot may have made f a shared one.
func (f *file) write(p []byte, off int64, pages bool, at CallID, seq *uint64, between func() *file) {
	made, same := false, -2
	for len(p) > 0 {
		i, lo := int(off/Sector), int(off%Sector)
		k := min(len(p), Sector-lo)
		next := blockAt(f.live, i).bytes()
		copy(next[lo:], p[:k])
		grows := off+int64(k) > f.size
		b := newBlock(&next)
		needs := f.needsVersion(i, b, pages)
		if f.unchanged(i, b) {
			// Of a run of sectors that the write would not change only the first that can
			// be spoilt is: that any of them is, is what matters.
			if goesOn := same == i-1; needs || goesOn {
				needs = needs && (!goesOn || pages && i%page == 0)
				same = i
			}
		}
		if made && (needs || grows) {
			f.changed()
			f = between()
		}
		var data uint64
		if needs {
			data = f.addVersion(i, b, at, seq)
		}
		if grows {
			*seq++
			f.size = off + int64(k)
			f.sizes = append(f.sizes, sizeAtom{size: f.size, sector: i, data: data, seq: *seq, at: at})
		}
		made = made || needs || grows
		p, off = p[k:], off+int64(k)
	}
	if made {
		f.changed()
	}
}

// needsVersion says whether writing b makes an atom. Repeating what is pending changes
// no disk. Over a lost version it makes one, because only a rewrite replaces that; and
// over a forced one, because a write that is cut off can spoil a sector that it was
// not going to change.
//
// Not so zeros over forced zeros, or where the disk never held anything. A tear mixes
// old and new, and of zeros there is one mixture. That data written anew is spoilt all
// the same is stricter than that, on purpose: a sector that holds something may be the
// only place where it stands. One of zeros has nothing to lose, and is beside sectors
// of the same write that a reader must expect to find torn. It does not matter whether
// the zeros were written or are a hole: Sum does not tell these apart. Only where
// blocks are large, and a write spoils what is beside it, are zeros as good as data.
func (f *file) needsVersion(sector int, b *block, pages bool) bool {
	if i, ok := f.chain(sector); ok {
		last := f.chains[i].vers[len(f.chains[i].vers)-1]
		return last.lost || !sameBlock(last.b, b)
	}
	return b != nil || blockAt(f.base, sector) != nil || pages && int64(sector)*Sector < f.baseSize
}

// unchanged says whether the forced content of a sector is the only one that can be
// on the disk, and is b already.
func (f *file) unchanged(sector int, b *block) bool {
	_, pending := f.chain(sector)
	return !pending && sameBlock(blockAt(f.base, sector), b)
}

func (f *file) chain(sector int) (int, bool) {
	return slices.BinarySearchFunc(f.chains, sector, func(c chain, s int) int { return c.sector - s })
}

func (f *file) addVersion(sector int, b *block, at CallID, seq *uint64) uint64 {
	*seq++
	v := version{b: b, seq: *seq, at: at}
	i, ok := f.chain(sector)
	if !ok {
		f.chains = slices.Insert(f.chains, i, chain{sector: sector})
	}
	c := &f.chains[i]
	c.vers = append(c.vers[:len(c.vers):len(c.vers)], v)
	f.setLive(sector, b)
	return *seq
}

func (f *file) setLive(sector int, b *block) {
	if !f.liveOwned {
		f.live, f.liveOwned = slices.Clone(f.live), true
	}
	for len(f.live) <= sector {
		f.live = append(f.live, nil)
	}
	f.live[sector] = b
}

// sync forces what is pending. Lost atoms stay, unless something newer in their
// place is forced.
func (f *file) sync() {
	f.baseMeta = f.meta
	if n := len(f.sizes); n > 0 && !f.sizes[n-1].lost {
		f.baseSize, f.sizes = f.size, nil
	}
	if len(f.chains) > 0 {
		base := slices.Clone(f.base)
		var left []chain
		for _, c := range f.chains {
			last := c.vers[len(c.vers)-1]
			if last.lost {
				left = append(left, c)
				continue
			}
			for len(base) <= c.sector {
				base = append(base, nil)
			}
			base[c.sector] = last.b
		}
		f.base, f.chains = base, left
	}
	f.changed()
}

// failSync makes what is pending lost; with revert the page cache drops it too.
func (f *file) failSync(revert bool) {
	f.sizes = slices.Clone(f.sizes)
	for i := range f.sizes {
		f.sizes[i].lost = true
	}
	for i := range f.chains {
		c := &f.chains[i]
		c.vers = slices.Clone(c.vers)
		for j := range c.vers {
			c.vers[j].lost = true
		}
	}
	if revert {
		f.meta = f.baseMeta
		f.size, f.live, f.liveOwned = f.baseSize, cutBlocks(f.base, f.baseSize), true
	}
	f.changed()
}

// cutBlocks is a copy of s as a file of the given size shows it.
func cutBlocks(s []*block, size int64) []*block {
	n := sectors(size)
	out := make([]*block, n)
	copy(out, s)
	if n > 0 && size%Sector != 0 {
		out[n-1] = cutBlock(out[n-1], int(size%Sector))
	}
	return out
}

// flush makes everything that programs see durable, and forgets lost atoms: the
// machine was shut down in good order.
func (f *file) flush() {
	f.base, f.baseSize, f.baseMeta = f.live, f.size, f.meta
	f.liveOwned, f.chains, f.sizes = false, nil, nil
	f.changed()
}

func (f *file) settled() bool { return len(f.chains) == 0 && len(f.sizes) == 0 && f.meta == f.baseMeta }
