package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"strings"
	"testing"
)

// The decoders read what others may have written. Whatever the bytes are: no panic,
// no hang, no allocation out of proportion, and what is accepted is what would be
// written again, to the byte. With mend the checksums are put right first, so that
// the fuzzer gets past them to the fields behind.

// modest fails the test when f allocates out of proportion to n bytes of input. An
// item in memory takes some times what it takes in a file, and growing a slice of
// them some times more.
func modest(t *testing.T, n int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(64*n+256<<10); got > most {
		t.Errorf("%d bytes allocated for an input of %d", got, n)
	}
}

// mendSlot puts the sum of a slot right, and its padding.
func mendSlot(b []byte) []byte {
	text, _, ok := strings.Cut(string(b), "\nsum ")
	if !ok {
		text = strings.TrimRight(text, " \n")
	}
	text += "\n"
	text += "sum " + Digest(sha256.Sum256([]byte(text))).String() + "\n"
	if len(text) < slotSize {
		text += strings.Repeat(" ", slotSize-1-len(text)) + "\n"
	}
	return []byte(text)
}

// mendRecord puts the head length and the entries digest of a record right, in
// place, as far as it can be read. It returns the length of the head.
func mendRecord(raw []byte) int {
	d := reader{b: raw}
	d.bytes(4 + 8 + 8 + 8)
	count := d.count(4)
	sum := d.bytes(sha256.Size)
	d.u32()
	d.str()
	d.str()
	for range d.count(2 + 8 + sha256.Size) {
		d.str()
		d.bytes(8 + sha256.Size)
	}
	for range d.count(2) {
		d.str()
	}
	head := d.at
	if d.err != nil {
		return 0
	}
	binary.LittleEndian.PutUint32(raw, uint32(head))
	var entries [][]byte
	for i := 0; i < count && d.err == nil; i++ {
		entries = append(entries, d.bytes(uint64(d.u32())))
	}
	if d.err == nil {
		digest := digestEntries(entries)
		copy(sum, digest[:])
	}
	return head
}

// mendBundle puts right, in place, what can be computed from the rest: magic,
// length, digests, the history, and both checksums.
func mendBundle(b []byte) []byte {
	if len(b) < headerSize+4 {
		return b
	}
	copy(b, bundleMagic)
	binary.LittleEndian.PutUint64(b[28:], uint64(len(b)))
	d := reader{b: b[:len(b)-4], at: headerSize}
	d.str()
	for range d.count(2 + 1 + 8 + sha256.Size) {
		d.str()
		d.bytes(1)
		size := d.u64()
		sum := d.bytes(sha256.Size)
		if data := d.bytes(size); d.err == nil {
			digest := sha256.Sum256(data)
			copy(sum, digest[:])
		}
	}
	revision, seq, base := d.u64(), d.u64(), d.bytes(sha256.Size)
	if d.err == nil && revision == 0 && seq == 1 {
		first := genesis(storeID(b[36:52]))
		copy(base, first[:])
	}
	var history Digest
	copy(history[:], base)
	for range d.count(4) {
		raw := d.bytes(uint64(d.u32()))
		if d.err != nil || len(raw) < 12 {
			break
		}
		history = chain(history, raw[:mendRecord(raw)])
		revision = binary.LittleEndian.Uint64(raw[4:])
	}
	binary.LittleEndian.PutUint64(b[60:], revision)
	copy(b[68:], history[:])
	return mendChecksums(b)
}

// mendChecksums puts the two checksums of a bundle right, in place.
func mendChecksums(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli))
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
	return b
}

func FuzzDecodeBundle(f *testing.F) {
	for _, name := range []string{"full.bundle", "before.bundle", "plain.bundle"} {
		f.Add(goldenFile(f, name, nil), false)
		f.Add(goldenFile(f, name, nil), true)
	}
	f.Add([]byte(bundleMagic), false)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		b = bytes.Clone(b)
		if mend {
			b = mendBundle(b)
		}
		var s *state
		var h header
		var err error
		modest(t, len(b), func() { s, h, err = decodeBundle(b) })
		if err != nil {
			return
		}
		// A compatible flag may be dropped by who does not know it; all else stays.
		again := bytes.Clone(b)
		copy(again[12:16], []byte{0, 0, 0, 0})
		if !bytes.Equal(encodeBundle(s), mendChecksums(again)) {
			t.Errorf("accepted, and not encoded the same again:\n%x", b)
		}
		if h.store != s.id || h.epoch != s.epoch || s.version() != (Version{h.revision, h.history}) {
			t.Errorf("header %+v of a state at %v", h, s.version())
		}
		useView(t, View{s})
	})
}

// useView does with a view what its users do.
func useView(t *testing.T, v View) {
	t.Helper()
	for e, err := range v.Entries(0) {
		if err != nil || e.Revision > v.Version().Revision && v.s.base.revision == 0 {
			t.Errorf("entry %d: revision %d, %v", e.Seq, e.Revision, err)
		}
	}
	for c, err := range v.Commits(0) {
		if err != nil {
			t.Error(err)
		}
		if v.s.base.revision != 0 {
			continue
		}
		if ok, err := v.Contains(Receipt{Version: c.Version, FirstSeq: c.FirstSeq, LastSeq: c.LastSeq}); !ok || err != nil {
			t.Errorf("revision %d is not contained: %v", c.Version.Revision, err)
		}
	}
	for name := range v.Parts() {
		if _, ok, err := v.Get(name); !ok || err != nil {
			t.Errorf("part %q: %v, %v", name, ok, err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(goldenFile(f, "record", nil), false)
	for _, s := range goldenSteps(f, goldenChanges()) {
		f.Add(lastOf(s.state.records).raw, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, mend bool) {
		raw = bytes.Clone(raw)
		if mend {
			mendRecord(raw)
		}
		before := genesis(goldenID)
		var r *record
		var err error
		modest(t, len(raw), func() { r, err = decodeRecord(raw, before) })
		if err != nil {
			return
		}
		again := *r
		again.seal(before)
		if !bytes.Equal(again.raw, raw) || again.history != r.history {
			t.Errorf("accepted, and not encoded the same again:\n%x\n%x", raw, again.raw)
		}
	})
}

func FuzzDecodeSlot(f *testing.F) {
	for _, name := range []string{"clean.trust", "intent.trust", "plain.trust", "fresh.trust"} {
		ring := goldenFile(f, name, nil)
		for i := range slotCount {
			slot := ring[i*slotSize : (i+1)*slotSize]
			f.Add(slot, false)
			f.Add(slot, true)
		}
	}
	for _, first := range []string{"pawl-trust 2 0 0 0", "pawl-trust 1 0 0 1", "pawl-trust 1 0 1 0", "pawl-trust 1 1 0 0"} {
		slot := strings.Replace(string(makeRing(goldenSlot())[slotSize:2*slotSize]), "pawl-trust 1 0 0 0", first, 1)
		f.Add([]byte(slot), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		if mend {
			b = mendSlot(b)
		}
		var r trustRecord
		var err error
		modest(t, len(b), func() { r, err = decodeSlot(b) })
		if err != nil {
			return
		}
		strictSlot(t, b, r)
	})
}

// strictSlot fails the test when an accepted slot is not what would be written
// again, a compatible flag in its first line (and so the sum) aside.
func strictSlot(t *testing.T, b []byte, r trustRecord) {
	t.Helper()
	norm := func(b []byte) string {
		first, rest, _ := strings.Cut(string(b), "\n")
		var compatible uint32
		if n, err := fmt.Sscanf(first, "pawl-trust 1 %d 0 0", &compatible); n != 1 || err != nil || first != fmt.Sprintf("pawl-trust 1 %d 0 0", compatible) {
			t.Errorf("first line %q", first)
		}
		return string(mendSlot([]byte("pawl-trust 1 0 0 0\n" + rest)))
	}
	again := r.encode()
	if norm(again) != norm(b) || len(again) != len(b) {
		t.Errorf("accepted, and not encoded the same again:\n%s\n%s", b, again)
	}
}

func FuzzDecodeRing(f *testing.F) {
	for _, name := range []string{"clean.trust", "intent.trust", "plain.trust", "fresh.trust"} {
		f.Add(goldenFile(f, name, nil), false)
		f.Add(goldenFile(f, name, nil), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		// A file of another size is refused before it is read.
		ring := makeRing()
		copy(ring, b)
		for i := range slotCount {
			if slot := ring[i*slotSize : (i+1)*slotSize]; mend && !bytes.Equal(slot, blankSlot) {
				copy(slot, mendSlot(slot))
			}
		}
		var newest trustRecord
		var broken []int
		var err error
		modest(t, len(ring), func() { newest, broken, err = decodeRing(ring) })
		if err != nil {
			if !errors.Is(err, ErrTrustDamaged) && !errors.Is(err, ErrVersion) {
				t.Errorf("an error of no class: %v", err)
			}
			return
		}
		at := newest.sequence % slotCount * slotSize
		strictSlot(t, ring[at:at+slotSize], newest)
		seen := map[int]bool{}
		for _, i := range broken {
			seen[i] = true
		}
		for i := range slotCount {
			r, err := decodeSlot(ring[i*slotSize : (i+1)*slotSize])
			if err == nil && !seen[i] && r.sequence > newest.sequence {
				t.Errorf("slot %d holds sequence %d, and %d was taken for the newest", i, r.sequence, newest.sequence)
			}
		}
	})
}

func FuzzReceiptText(f *testing.F) {
	for _, s := range goldenSteps(f, goldenChanges()) {
		f.Add(lastOf(s.state.records).receipt().String())
	}
	f.Add("pawl1.0.0.0.")
	f.Add("pawl1.18446744073709551615.1.1." + strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, text string) {
		var r Receipt
		if err := r.UnmarshalText([]byte(text)); err != nil {
			if r != (Receipt{}) || !errors.Is(err, ErrInvalid) {
				t.Errorf("refused with %v, and set to %+v", err, r)
			}
			return
		}
		if again, err := r.MarshalText(); err != nil || string(again) != text {
			t.Errorf("%q becomes %q, %v", text, again, err)
		}
	})
}

func FuzzDigestText(f *testing.F) {
	f.Add(genesis(goldenID).String())
	f.Add("sha256:" + strings.Repeat("AB", 32))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		var d Digest
		if err := d.UnmarshalText([]byte(text)); err != nil {
			if d != (Digest{}) || !errors.Is(err, ErrInvalid) {
				t.Errorf("refused with %v, and set to %v", err, d)
			}
			return
		}
		if again, err := d.MarshalText(); err != nil || string(again) != text {
			t.Errorf("%q becomes %q, %v", text, again, err)
		}
	})
}
