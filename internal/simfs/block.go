package simfs

import (
	"encoding/binary"
	"math/bits"
)

// Sector is the unit that reaches the disk whole, or torn where the profile
// tears.
const Sector = 512

// block is the content of one sector. It is never changed once made, so that
// machines share it; nil stands for zeros.
type block struct {
	sum uint64
	b   [Sector]byte
}

const zeroSum = 0x9ae16a3b2f90404f

func (b *block) hash() uint64 {
	if b == nil {
		return zeroSum
	}
	return b.sum
}

// newBlock makes the block that holds b, or nil when all of b is zero.
func newBlock(b *[Sector]byte) *block {
	h, any := uint64(zeroSum), uint64(0)
	for i := 0; i < Sector; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		any |= w
		h = mix(h, w)
	}
	if any == 0 {
		return nil
	}
	return &block{sum: h, b: *b}
}

func sameBlock(a, b *block) bool {
	return a == b || a.hash() == b.hash() && a.bytes() == b.bytes()
}

func (b *block) bytes() [Sector]byte {
	if b == nil {
		return [Sector]byte{}
	}
	return b.b
}

// cutBlock is b with everything from n on zeroed.
func cutBlock(b *block, n int) *block {
	if b == nil || n >= Sector {
		return b
	}
	c := b.b
	clear(c[n:])
	if c == b.b {
		return b
	}
	return newBlock(&c)
}

// tear is what a sector holds when cur was being written over prev: new up to
// the middle of what differs, old from there on. It differs from both, so that
// it is always a disk of its own; a mixture, unlike noise, is what a decoder
// without a checksum would believe. Where nothing differs it is noise: the sector
// was spoilt. (No version is made, and so none torn, of zeros over zeros.)
func tear(prev, cur *block) *block {
	p, c := prev.bytes(), cur.bytes()
	first, last := -1, -1
	for i := range c {
		if p[i] != c[i] {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	switch {
	case first < 0:
		for i := range c {
			c[i] ^= 0xa5
		}
		return newBlock(&c)
	case first == last: // one byte: no middle, so make one that is neither
		t := c
		t[first] ^= 0x55
		if t[first] == p[first] {
			t[first] ^= 0xff
		}
		return newBlock(&t)
	}
	mid := first + (last-first+1)/2
	t := p
	copy(t[:mid], c[:mid])
	return newBlock(&t)
}

// mix folds v into h. It is a multiply-and-fold hash: quick, and the same in
// every run, so that counts in tests are exact.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0xa0761d6478bd642f, v^0xe7037ed1a0b428db)
	return hi ^ lo ^ bits.RotateLeft64(h, 23)
}

func mixString(h uint64, s string) uint64 {
	h = mix(h, uint64(len(s)))
	for len(s) >= 8 {
		h = mix(h, uint64(s[0])|uint64(s[1])<<8|uint64(s[2])<<16|uint64(s[3])<<24|
			uint64(s[4])<<32|uint64(s[5])<<40|uint64(s[6])<<48|uint64(s[7])<<56)
		s = s[8:]
	}
	var w uint64
	for i := 0; i < len(s); i++ {
		w |= uint64(s[i]) << (8 * i)
	}
	return mix(h, w)
}

func mixBool(h uint64, b bool) uint64 {
	if b {
		return mix(h, 1)
	}
	return mix(h, 2)
}
