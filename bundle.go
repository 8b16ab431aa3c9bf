package pawl

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// The bundle is one whole state in one file, only ever replaced whole. Its SHA-256
// is its disk digest, the value that the trust file pins; the checksums inside only
// tell damage from a state that was never authorised.
//
// All numbers are little-endian. The first 28 bytes, and the checksum at 252, keep
// their meaning in every version; a reader that does not know a version, or an
// incompatible flag, stops there and changes nothing.
//
//	  0  8   magic "pawlbndl"
//	  8  u32 format version, 1
//	 12  u32 compatible flags: who does not know one may read and write
//	 16  u32 read-only-compatible flags: who does not know one may read
//	 20  u32 incompatible flags: who does not know one must stop. 1: there are files that
//	     the bundle names, segments or parts; 2: revisions were given up
//	 24  u32 reserved, 0
//	 28  u64 length of the file
//	 36  16  store id
//	 52  u64 epoch: how many times the bundle was published
//	 60  u64 revision
//	 68  32  history digest
//	100  32  parent: the disk digest that this bundle replaced; zeros in the first
//	132  u32 schema: the caller's, 0 when no commit said one
//	136 ...  reserved, 0
//	252  u32 CRC-32C of bytes 0 to 251
//	256      body:
//	         str program: the last that a commit named, "" when none did
//	         u32 number of parts; each: str name, u8 kind, u64 size, 32 SHA-256; sorted;
//	         kind 0: the bytes follow; 1: they are a file of their own, named by the digest
//	         with flag 1: u32 number of segments; each: 104 bytes, see segment.go
//	         u64 revision, u64 next seq, 32 history digest before the first record
//	         u32 number of commit records; each: u32 length, record
//	         u32 CRC-32C of everything before
const (
	bundleMagic   = "pawlbndl"
	formatVersion = 1
	headerSize    = 256

	flagFiles   = 1 << 0 // incompatible: the bundle names files
	flagGivenUp = 1 << 1 // incompatible: one of the segments stands for revisions that were given up

	partInline = 0
	partInFile = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is what the first bytes of a bundle or journal say of it.
type header struct {
	version                            uint32
	compatible, readonly, incompatible uint32
	length                             uint64
	store                              storeID
	epoch                              uint64
	revision                           Revision
	history                            Digest
	parent                             Digest
	schema                             uint32
}

// emptyBundle is the size of a bundle without parts, records and program;
// partOverhead is what a part takes in it besides its name and bytes.
const (
	emptyBundle  = headerSize + 2 + 4 + 8 + 8 + sha256.Size + 4 + 4
	partOverhead = 2 + 1 + 8 + sha256.Size
)

func partCost(ref partRef, inline int64) int64 {
	n := partOverhead + int64(len(ref.name))
	if int64(ref.size) <= inline {
		n += int64(ref.size)
	}
	return n
}

// tableSize is what the segments take in a bundle.
func (s *state) tableSize() int64 { return 4 + rowSize*int64(len(s.sealed)) }

// files reports whether the state needs files besides bundle and journal.
func (s *state) files() bool {
	if len(s.sealed) > 0 {
		return true
	}
	for _, p := range s.parts {
		if p.file != nil {
			return true
		}
	}
	return false
}

// encode returns the first bytes of a bundle or journal.
func (h *header) encode(magic string) []byte {
	w := writer{make([]byte, 0, headerSize)}
	w.bytes([]byte(magic))
	w.u32(formatVersion)
	w.u32(0)
	w.u32(0)
	w.u32(h.incompatible)
	w.u32(0)
	w.u64(h.length)
	w.bytes(h.store[:])
	w.u64(h.epoch)
	w.u64(uint64(h.revision))
	w.bytes(h.history[:])
	w.bytes(h.parent[:])
	w.u32(h.schema)
	w.b = append(w.b, make([]byte, headerSize-4-len(w.b))...)
	w.u32(crc32.Checksum(w.b, castagnoli))
	return w.b
}

// bundleSize is the size of the bundle that holds s, as it is.
func bundleSize(s *state) int64 {
	size := int64(emptyBundle + len(s.program))
	if s.files() {
		size += s.tableSize()
	}
	for _, p := range s.parts {
		size += partOverhead + int64(len(p.ref.name)+len(p.data))
	}
	for _, r := range s.records {
		size += 4 + int64(len(r.raw))
	}
	return size
}

// encodeBundle returns the bytes of the bundle that holds s.
func encodeBundle(s *state) []byte {
	v, size := s.version(), bundleSize(s)
	h := header{length: uint64(size), store: s.id, epoch: s.epoch, revision: v.Revision,
		history: v.Digest, parent: s.replaced, schema: s.schema}
	if s.files() {
		h.incompatible = flagFiles
	}
	if s.gaveUp() {
		h.incompatible |= flagGivenUp
	}
	w := writer{make([]byte, 0, size)}
	w.bytes(h.encode(bundleMagic))

	w.str(s.program)
	w.u32(uint32(len(s.parts)))
	for _, name := range s.partNames() {
		p := s.parts[name]
		w.str(name)
		if p.file == nil {
			w.b = append(w.b, partInline)
		} else {
			w.b = append(w.b, partInFile)
		}
		w.u64(p.ref.size)
		w.bytes(p.ref.digest[:])
		w.bytes(p.data)
	}
	if h.incompatible&flagFiles != 0 {
		w.u32(uint32(len(s.sealed)))
		for _, g := range s.sealed {
			g.encode(&w)
		}
	}
	w.u64(uint64(s.base.revision))
	w.u64(uint64(s.base.nextSeq))
	w.bytes(s.base.history[:])
	w.u32(uint32(len(s.records)))
	for _, r := range s.records {
		w.u32(uint32(len(r.raw)))
		w.bytes(r.raw)
	}
	w.u32(crc32.Checksum(w.b, castagnoli))
	return w.b
}

// decodeHeader reads the header of a bundle or journal. An error of kind ErrVersion comes with a
// header that is right as far as it goes.
func decodeHeader(b []byte, magic, what string) (header, error) {
	var h header
	if len(b) < headerSize {
		return h, fmt.Errorf("%d bytes are no %s: its header alone has %d", len(b), what, headerSize)
	}
	if string(b[:8]) != magic {
		return h, fmt.Errorf("it does not begin with the magic of a %s", what)
	}
	if crc32.Checksum(b[:headerSize-4], castagnoli) != binary.LittleEndian.Uint32(b[headerSize-4:]) {
		return h, errorString("the header's checksum does not match")
	}
	d := reader{b: b[:headerSize-4], at: 8}
	h.version = d.u32()
	h.compatible, h.readonly, h.incompatible = d.u32(), d.u32(), d.u32()
	known := uint32(0)
	if magic == bundleMagic {
		known = flagFiles | flagGivenUp
	}
	if h.version != formatVersion || h.readonly != 0 || h.incompatible&^known != 0 {
		return h, newerFormat(what, h.version, h.readonly, h.incompatible)
	}
	if d.u32() != 0 {
		return h, errorString("reserved bytes of the header are not zero")
	}
	h.length = d.u64()
	copy(h.store[:], d.bytes(uint64(len(h.store))))
	h.epoch = d.u64()
	h.revision = Revision(d.u64())
	d.digest(&h.history)
	d.digest(&h.parent)
	if magic == bundleMagic { // reserved in a journal
		h.schema = d.u32()
	}
	for d.left() > 0 {
		if d.bytes(1)[0] != 0 {
			return h, errorString("reserved bytes of the header are not zero")
		}
	}
	return h, nil
}

// newerFormat is the error for a file that this program must not touch.
func newerFormat(what string, version, readonly, incompatible uint32) error {
	return &Error{Kind: ErrVersion, Hint: hintVersion, Cause: fmt.Errorf(
		"%s format %d with flags %#x (writers) and %#x (everybody); this program knows format %d and not all of these flags",
		what, version, readonly, incompatible, formatVersion)}
}

// decodeBundle reads a whole bundle and checks all that can be checked of it: both
// checksums, the chain of every commit record, the digest of every entry and part,
// and that the parts are what the records made. It does not look at the files that the
// bundle names, which dir has, or at any but their names. The state keeps b.
func decodeBundle(b []byte, dir *directory) (*state, header, error) {
	h, err := decodeHeader(b, bundleMagic, "bundle")
	if err != nil {
		return nil, h, err
	}
	if h.length != uint64(len(b)) {
		return nil, h, fmt.Errorf("it has %d bytes, and its header says %d", len(b), h.length)
	}
	end := len(b) - 4
	if end < headerSize || crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, h, errorString("its checksum does not match")
	}
	d := reader{b: b[:end], at: headerSize}
	s := &state{id: h.store, epoch: h.epoch, replaced: h.parent, schema: h.schema, parts: map[string]part{}}
	s.program = d.str()
	if d.err == nil {
		d.fail(plain(checkSaid(s.schema, s.program)))
	}
	last := ""
	files := map[Digest]*keptFile{}
	for range d.count(2 + 1 + 8 + sha256.Size) {
		p := part{ref: partRef{name: d.str()}}
		kind := d.bytes(1)
		p.ref.size = d.u64()
		d.digest(&p.ref.digest)
		inFile := d.err == nil && kind[0] == partInFile && h.incompatible&flagFiles != 0
		if inFile {
			if p.ref.size > math.MaxInt64 {
				d.fail(fmt.Errorf("part %q has a size that no file has", p.ref.name))
			}
			if p.file = files[p.ref.digest]; p.file == nil {
				p.file = newPartFile(p.ref.digest, dir)
				files[p.ref.digest] = p.file
			}
		} else if p.data = d.bytes(p.ref.size); d.err == nil && Digest(sha256.Sum256(p.data)) != p.ref.digest {
			d.fail(fmt.Errorf("part %q is not whole", p.ref.name))
		}
		if d.err != nil {
			break
		}
		name := p.ref.name
		d.fail(plain(checkPart(name)))
		if !inFile && kind[0] != partInline || name <= last {
			d.fail(fmt.Errorf("part %q is not of a kind that is known, or not in order", name))
		}
		last = name
		s.parts[name] = p
	}
	from := beginning(s.id)
	if h.incompatible&flagFiles != 0 {
		for range d.count(rowSize) {
			r := decodeRow(&d, from)
			if d.err != nil {
				break
			}
			s.sealed = append(s.sealed, newSegment(s.id, from, r, dir))
			from = r.end
		}
		if d.err == nil && !s.files() {
			d.fail(errorString("it says that it names files, and names none"))
		}
	}
	if d.err == nil && s.gaveUp() != (h.incompatible&flagGivenUp != 0) {
		d.fail(errorString("its flags do not say whether revisions were given up"))
	}
	s.base.revision = Revision(d.u64())
	s.base.nextSeq = Seq(d.u64())
	d.digest(&s.base.history)
	if d.err == nil && s.base != from {
		d.fail(fmt.Errorf("its records begin after revision %d, and what is before them ends with revision %d", s.base.revision, from.revision))
	}
	ids := map[string]bool{}
	for range d.count(4) {
		raw := d.bytes(uint64(d.u32()))
		if d.err != nil {
			break
		}
		v := s.version()
		r, err := decodeRecord(raw, v.Digest)
		if err != nil {
			return nil, h, fmt.Errorf("the record after revision %d: %w", v.Revision, err)
		}
		if r.revision != v.Revision+1 || r.firstSeq != s.nextSeq() {
			return nil, h, fmt.Errorf("revision %d does not follow revision %d", r.revision, v.Revision)
		}
		if r.id != "" && ids[r.id] {
			return nil, h, fmt.Errorf("two commits have the id %q", r.id)
		}
		ids[r.id] = true
		s.records = append(s.records, r)
	}
	d.end()
	if d.err != nil {
		return nil, h, d.err
	}
	if v := s.version(); v.Revision != h.revision || v.Digest != h.history {
		return nil, h, fmt.Errorf("its records end at %s, and its header says %s", v, Version{h.revision, h.history})
	}
	if err := s.checkParts(); err != nil {
		return s, h, err
	}
	return s, h, s.checkSaid()
}

// checkSaid holds schema and program against what the records say of them.
func (s *state) checkSaid() error {
	want := state{schema: s.schema, program: s.program}
	if s.base.revision == 0 {
		want.schema, want.program = 0, ""
	}
	for _, r := range s.records {
		if r.schema != 0 {
			want.schema = r.schema
		}
		if r.program != "" {
			want.program = r.program
		}
	}
	if s.schema != want.schema || s.program != want.program {
		return fmt.Errorf("schema %d and program %q are not what its records say: %d and %q", s.schema, s.program, want.schema, want.program)
	}
	return nil
}

// checkParts holds the parts against what the records did to them, as far back as
// the records go.
func (s *state) checkParts() error {
	want := map[string]partRef{}
	gone := map[string]bool{}
	for _, r := range s.records {
		for _, p := range r.put {
			want[p.name] = p
			delete(gone, p.name)
		}
		for _, name := range r.deleted {
			delete(want, name)
			gone[name] = true
		}
	}
	for name, ref := range want {
		if s.parts[name].ref != ref {
			return fmt.Errorf("part %q is not the one that its commit record names", name)
		}
	}
	for name := range s.parts {
		if _, ok := want[name]; gone[name] || !ok && s.base.revision == 0 {
			return fmt.Errorf("part %q is there, and no commit record names it", name)
		}
	}
	return nil
}
