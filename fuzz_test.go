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

// atSchema is where a record says its schema.
const atSchema = atEntriesDigest + sha256.Size

// mendBundle puts right, in place, what can be computed from the rest: magic,
// length, digests, the history, the schema, and both checksums.
func mendBundle(b []byte) []byte {
	if len(b) < headerSize+4 {
		return b
	}
	copy(b, bundleMagic)
	binary.LittleEndian.PutUint64(b[28:], uint64(len(b)))
	files := binary.LittleEndian.Uint32(b[20:]) == flagFiles
	d := reader{b: b[:len(b)-4], at: headerSize}
	d.str()
	for range d.count(2 + 1 + 8 + sha256.Size) {
		d.str()
		kind := d.bytes(1)
		size := d.u64()
		sum := d.bytes(sha256.Size)
		if d.err == nil && files && kind[0] == partInFile {
			continue
		}
		if data := d.bytes(size); d.err == nil {
			digest := sha256.Sum256(data)
			copy(sum, digest[:])
		}
	}
	if files {
		var last []byte
		for range d.count(rowSize) {
			last = d.bytes(rowSize)
		}
		if at := d.at; last != nil && d.bytes(8+8+sha256.Size) != nil { // what the records go on from
			copy(b[at:d.at], last)
			d.at = at
		}
	}
	revision, seq, base := d.u64(), d.u64(), d.bytes(sha256.Size)
	if d.err == nil && revision == 0 && seq == 1 {
		first := genesis(storeID(b[36:52]))
		copy(base, first[:])
	}
	var history Digest
	copy(history[:], base)
	schema := binary.LittleEndian.Uint32(b[132:])
	if revision == 0 {
		schema = 0
	}
	for range d.count(4) {
		raw := d.bytes(uint64(d.u32()))
		if d.err != nil || len(raw) < 12 {
			break
		}
		history = chain(history, raw[:mendRecord(raw)])
		revision = binary.LittleEndian.Uint64(raw[4:])
		if len(raw) >= atSchema+4 && binary.LittleEndian.Uint32(raw[atSchema:]) != 0 {
			schema = binary.LittleEndian.Uint32(raw[atSchema:])
		}
	}
	binary.LittleEndian.PutUint32(b[132:], schema)
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
	for _, name := range []string{"full.bundle", "before.bundle", "plain.bundle", "schema.bundle", "sealed.bundle"} {
		f.Add(goldenFile(f, name, nil), false)
		f.Add(goldenFile(f, name, nil), true)
	}
	f.Add([]byte(bundleMagic), false)
	f.Add(patched(goldenFile(f, "full.bundle", nil), 20, flagFiles), true)
	sealed := goldenFile(f, "sealed.bundle", nil)
	cursor := []byte(`{"cursor":1}`) // the last part; the number of rows comes next
	rows, parts := bytes.Index(sealed, cursor)+len(cursor)+4, bytes.Index(sealed, []byte("large"))
	for at := range rowSize { // each number of a row, and what is around them
		if at%4 == 0 {
			f.Add(patched(sealed, rows+at, 0xff, 0xff, 0xff, 0xff), true)
			f.Add(patched(sealed, rows+at, 0, 0, 0, 0), true)
		}
	}
	f.Add(patched(sealed, parts+5, 2), true)
	f.Add(patched(sealed, parts+6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), true)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		b = bytes.Clone(b)
		if mend {
			b = mendBundle(b)
		}
		var s *state
		var h header
		var err error
		modest(t, len(b), func() { s, h, err = decodeBundle(b, emptyDirectory()) })
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
		if s.files() {
			useWithout(t, View{s})
		} else {
			useView(t, View{s})
		}
	})
}

// useWithout is useView where no file of the state is there.
func useWithout(t *testing.T, v View) {
	t.Helper()
	missing := func(what string, err error, need bool) {
		t.Helper()
		if need && err == nil || err != nil && (!errors.Is(err, ErrDamaged) || !errors.Is(err, ErrMissing)) {
			t.Errorf("%s: %v, and a file is missing: %v", what, err, need)
		}
	}
	need := false // a file of commits that are not forgotten
	for _, g := range v.s.sealed {
		need = need || !g.forgotten()
	}
	var last error
	for _, err := range v.Entries(0) {
		last = err
	}
	missing("entries", last, need)
	last = nil
	for _, err := range v.Commits(0) {
		last = err
	}
	missing("commits", last, need)
	for name := range v.Parts() {
		_, ok, err := v.Get(name)
		if missing("part "+name, err, v.s.parts[name].file != nil); !ok {
			t.Errorf("part %q is not there", name)
		}
	}
	_, err := v.s.commit("there is none")
	missing("an id", err, len(v.s.sealed) > 0)
	for _, rev := range []Revision{v.s.base.revision, v.Version().Revision} {
		if at, ok, err := v.s.historyAt(rev); !ok || err != nil || rev == v.Version().Revision && at != v.Version().Digest {
			t.Errorf("revision %d: %v, %v", rev, ok, err)
		}
	}
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

// mendJournal puts right, in place, what can be computed from the rest, so that the
// journal goes with a bundle: the header, and of each frame the checksum, the digests,
// the numbers and the chain.
func mendJournal(b []byte, bundle Root, before *state) []byte {
	if len(b) < headerSize {
		return b
	}
	var flags [4]byte
	copy(flags[:], b[12:])
	header := journalHeader(before.id, bundle, before.end(), int64(len(b)))
	copy(header[12:], flags[:])
	binary.LittleEndian.PutUint32(header[headerSize-4:], crc32.Checksum(header[:headerSize-4], castagnoli))
	copy(b, header)
	h := sha256.New()
	digest, from := extendDigest(h, bundle.Digest, header), before.end()
	for at := blockSize; at+frameHead <= len(b); {
		n := int(binary.LittleEndian.Uint32(b[at:]))
		if n == 0 && at%blockSize != 0 {
			at = roundUp(at, blockSize)
			continue
		}
		if n < frameHead || n > len(b)-at {
			break
		}
		frame := b[at : at+n]
		copy(frame[8:], digest[:])
		d := reader{b: frame, at: frameHead - 4}
		raw := d.bytes(uint64(d.u32()))
		if len(raw) >= atEntriesDigest {
			binary.LittleEndian.PutUint64(raw[atRevision:], uint64(from.revision+1))
			binary.LittleEndian.PutUint64(raw[atFirstSeq:], uint64(from.nextSeq))
			mendPuts(raw, &d)
			if head := mendRecord(raw); head > 0 {
				from = origin{from.revision + 1, from.nextSeq + Seq(binary.LittleEndian.Uint32(raw[28:])), chain(from.history, raw[:head])}
			}
		}
		binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(frame[8:], castagnoli))
		digest = extendDigest(h, digest, frame)
		at = roundUp(at+n, frameAlign)
	}
	return b
}

// mendPuts puts the digests of the parts that a record puts right, in place; their
// bytes come next in data.
func mendPuts(raw []byte, data *reader) {
	d := reader{b: raw}
	d.bytes(atEntriesDigest + sha256.Size + 4)
	d.str()
	d.str()
	for range d.count(2 + 8 + sha256.Size) {
		d.str()
		size := d.u64()
		sum := d.bytes(sha256.Size)
		if b := data.bytes(size); d.err == nil && data.err == nil {
			digest := sha256.Sum256(b)
			copy(sum, digest[:])
		}
	}
}

func FuzzWalkJournal(f *testing.F) {
	first := goldenSteps(f, goldenChanges())[0]
	golden := goldenFile(f, "journal", nil)
	for _, mend := range []bool{false, true} {
		f.Add(golden, mend)
		f.Add(golden[:2*blockSize], mend)
		f.Add(golden[:3*blockSize+100], mend)
		f.Add(golden[:headerSize], mend)
		f.Add(make([]byte, 2*blockSize), mend)
	}
	_, _, whole := goldenJournal(f)
	for _, at := range []int{blockSize, 2 * blockSize, 3 * blockSize} {
		for in, put := range map[int][]byte{
			0:                       {0xff, 0xff, 0xff, 0xff}, // the length of a frame
			1:                       {0x10},                   // to the next block
			frameHead - 4:           {0xff, 0xff, 0xff, 0x7f}, // the length of the record
			frameHead + 28:          {0xff, 0xff, 0xff, 0xff}, // the number of entries
			frameHead + 4:           {9},                      // the revision
			frameHead + atTime:      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			frameHead + 32 + 32:     {7, 0, 0, 0, 3, 0, 'a', 'b', 'c'}, // schema and program
			frameHead + 32 + 32 + 6: {5, 0, 'b', 'e', 'g', 'i', 'n'},   // an id that the bundle has
		} {
			f.Add(patched(whole, at+in, put...), true)
		}
	}
	for _, compatible := range []byte{1, 0x80} {
		f.Add(patched(whole, 12, compatible), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		b = bytes.Clone(b)
		if mend {
			b = mendJournal(b, first.root, first.state)
		}
		var w walked
		var err error
		modest(t, len(b), func() { w, err = walkJournal(b, first.root, first.state) })
		if err != nil {
			if !errors.Is(err, ErrVersion) || len(w.steps) > 0 {
				t.Errorf("%d commits, and an error of no class: %v", len(w.steps), err)
			}
			return
		}
		if w.used != usedBytes(b) || w.stop < 0 || w.stop > int64(len(b)) {
			t.Fatalf("stops at %d, %d are used of %d", w.stop, w.used, len(b))
		}
		if w.head == nil && w.bad == nil || w.apart && w.bad == nil || w.bad != nil && w.stop == 0 && len(w.steps) > 0 {
			t.Fatalf("%d commits, %v", len(w.steps), w.bad)
		}
		if w.bad == nil && (w.stop%blockSize != 0 || w.used > w.stop) {
			t.Fatalf("nothing wrong, %d are used, and it stops at %d", w.used, w.stop)
		}
		if w.stop == 0 {
			return
		}
		// What is accepted is what would be written again. Whether a commit begins a batch
		// is where it stands.
		again := append(w.head.encode(journalMagic), make([]byte, blockSize-headerSize)...)
		binary.LittleEndian.PutUint32(again[12:], w.head.compatible)
		binary.LittleEndian.PutUint32(again[headerSize-4:], crc32.Checksum(again[:headerSize-4], castagnoli))
		h := sha256.New()
		root := first.root
		root.Digest = extendDigest(h, root.Digest, again[:headerSize])
		g := first.state.grow()
		for i, s := range w.steps {
			if at := roundUp(len(again), frameAlign); bytes.Equal(b[at:at+4], zeros[:4]) {
				again = append(again, make([]byte, roundUp(at, blockSize)-len(again))...)
			}
			r := *s.record
			r.seal(g.version().Digest)
			again, root.Digest = appendFrame(again, h, root.Digest, &r, s.data)
			root.Revision++
			root.Journal = roundUp(int64(len(again)), blockSize)
			if s.root != root {
				t.Fatalf("commit %d ends at %+v, want %+v", i, s.root, root)
			}
			g.add(s.record, s.data)
		}
		if !bytes.Equal(b[:len(again)], again) {
			t.Fatalf("accepted, and not encoded the same again:\n%x\n%x", b[:len(again)], again)
		}
		if w.bad == nil && (usedBytes(b[len(again):]) != 0 || w.stop != max(root.Journal, blockSize)) {
			t.Fatalf("nothing wrong, and bytes after %d, stop %d", len(again), w.stop)
		}
		// The state can be published, and is then the same.
		st := g.state.published(root.Digest)
		st.measure(wide)
		raw := encodeBundle(st)
		if int64(len(raw)) != counted(st) {
			t.Errorf("a bundle of %d bytes, counted %d", len(raw), counted(st))
		}
		got, _, err := decodeBundle(raw, new(directory))
		if err != nil || got.version() != g.version() {
			t.Fatalf("published, it is %v", err)
		}
		useView(t, View{got})
	})
}
