package pawl

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// A commit record is what history is made of. Its head says everything about a
// commit and pins entries and parts by digest; the history digest of a state is
//
//	SHA-256(history digest before ‖ head)
//
// Entries follow the head wherever they are kept. Part bytes are not repeated
// here: only the newest are needed, and the bundle holds them. So bytes may be
// dropped one day, and the chain still be checked.
//
// All numbers are little-endian. What does not decode to the letter is refused.
//
//	head    u32 length of the head, itself included
//	        u64 revision
//	        i64 time, nanoseconds since 1970 UTC
//	        u64 seq of the first entry, or of the next one when there is none
//	        u32 number of entries
//	        32  SHA-256 over each entry's u64 length ‖ bytes
//	        u32 schema     the caller's, 0 when not said
//	        str program    that made the commit, "" when not said
//	        str id         ("" when there is none)
//	        u32 number of parts put; each: str name, u64 size, 32 SHA-256; sorted
//	        u32 number of parts deleted; each: str name; sorted
//	entries each: u32 length, bytes; in a segment all of a record's may be missing
//
// where str is u16 length and bytes.
type record struct {
	revision Revision
	time     int64
	firstSeq Seq
	schema   uint32
	program  string
	id       string
	put      []partRef
	deleted  []string
	count    uint32   // of entries
	entries  [][]byte // none when retention has dropped them

	entriesDigest Digest
	history       Digest // after this commit
	raw           []byte // head and entries as encoded; entries point into it
}

// partRef is a part as a record names it.
type partRef struct {
	name   string
	size   uint64
	digest Digest
}

func (r *record) nextSeq() Seq { return r.firstSeq + Seq(r.count) }

// head is the part of raw that the history digest is about.
func (r *record) head() []byte { return r.raw[:binary.LittleEndian.Uint32(r.raw)] }

// dropped says that there were entries, and retention has dropped them.
func (r *record) dropped() bool { return r.count > 0 && len(r.entries) == 0 }

// seqs are the first and last seq as users see them: none is 0, 0.
func (r *record) seqs() (first, last Seq) {
	if r.count == 0 {
		return 0, 0
	}
	return r.firstSeq, r.nextSeq() - 1
}

func (r *record) version() Version { return Version{r.revision, r.history} }

func (r *record) receipt() Receipt {
	first, last := r.seqs()
	return Receipt{Version: r.version(), FirstSeq: first, LastSeq: last}
}

// sameContent reports whether another commit asks for the same change: entries,
// parts and deletions, whenever and on top of whatever it was made.
func (r *record) sameContent(o *record) bool {
	return r.entriesDigest == o.entriesDigest && r.count == o.count &&
		slices.Equal(r.put, o.put) && slices.Equal(r.deleted, o.deleted)
}

// genesis is the history digest of the empty store. It holds the store's id, so
// that no two stores share a history.
func genesis(id storeID) Digest {
	return sha256.Sum256(append([]byte("pawl history 1\n"), id[:]...))
}

// chain extends a history digest by the head of a commit record.
func chain(before Digest, head []byte) Digest {
	h := sha256.New()
	h.Write(before[:])
	h.Write(head)
	return Digest(h.Sum(nil))
}

// digestEntries is the digest by which a head pins its entries.
func digestEntries(entries [][]byte) Digest {
	h := sha256.New()
	for _, e := range entries {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(e)))
		h.Write(n[:])
		h.Write(e)
	}
	return Digest(h.Sum(nil))
}

// Offsets in the head.
const (
	atRevision      = 4
	atTime          = 12
	atFirstSeq      = 20
	atCount         = 28
	atEntriesDigest = 32
)

// encode encodes the record. Its entries are copies from then on.
func (r *record) encode() {
	size := 4 + 8 + 8 + 8 + 4 + sha256.Size + 4 + 2 + len(r.program) + 2 + len(r.id) + 4 + 4
	for _, p := range r.put {
		size += 2 + len(p.name) + 8 + sha256.Size
	}
	for _, name := range r.deleted {
		size += 2 + len(name)
	}
	head := size
	for _, e := range r.entries {
		size += 4 + len(e)
	}
	w := writer{make([]byte, 0, size)}
	w.u32(uint32(head))
	w.u64(uint64(r.revision))
	w.u64(uint64(r.time))
	w.u64(uint64(r.firstSeq))
	w.u32(uint32(len(r.entries)))
	w.bytes(r.entriesDigest[:])
	w.u32(r.schema)
	w.str(r.program)
	w.str(r.id)
	w.u32(uint32(len(r.put)))
	for _, p := range r.put {
		w.str(p.name)
		w.u64(p.size)
		w.bytes(p.digest[:])
	}
	w.u32(uint32(len(r.deleted)))
	for _, name := range r.deleted {
		w.str(name)
	}
	entries := make([][]byte, 0, len(r.entries))
	for _, e := range r.entries {
		w.u32(uint32(len(e)))
		w.bytes(e)
		entries = append(entries, w.b[len(w.b)-len(e):len(w.b):len(w.b)])
	}
	r.raw, r.entries, r.count = w.b, entries, uint32(len(entries))
}

// place writes revision, time and first seq into an encoded record, and extends the
// history by it. Until somebody has seen the record, it may be placed anew.
func (r *record) place(before Digest) {
	binary.LittleEndian.PutUint64(r.raw[atRevision:], uint64(r.revision))
	binary.LittleEndian.PutUint64(r.raw[atTime:], uint64(r.time))
	binary.LittleEndian.PutUint64(r.raw[atFirstSeq:], uint64(r.firstSeq))
	r.history = chain(before, r.head())
}

// decodeRecord reads one record that fills raw, with its entries, checks it whole and
// extends the history by it. The record keeps raw.
func decodeRecord(raw []byte, before Digest) (*record, error) {
	r, err := parseRecord(raw)
	if err != nil {
		return nil, err
	}
	if r.dropped() {
		return nil, fmt.Errorf("the entries of revision %d are not there", r.revision)
	}
	if err := r.check(before); err != nil {
		return nil, err
	}
	return r, nil
}

// check holds what is there of a record against its digests, and extends the history
// by it.
func (r *record) check(before Digest) error {
	if !r.dropped() && digestEntries(r.entries) != r.entriesDigest {
		return fmt.Errorf("entries of revision %d do not have their digest", r.revision)
	}
	r.history = chain(before, r.head())
	return nil
}

// parseRecord reads one record that fills raw, and checks nothing but its form. It may
// have all of its entries or, in a segment, none.
func parseRecord(raw []byte) (*record, error) {
	d := reader{b: raw}
	headLen := d.u32()
	r := &record{raw: raw}
	r.revision = Revision(d.u64())
	r.time = int64(d.u64())
	r.firstSeq = Seq(d.u64())
	r.count = d.u32()
	d.digest(&r.entriesDigest)
	r.schema = d.u32()
	r.program = d.str()
	if d.err == nil {
		d.fail(plain(checkSaid(r.schema, r.program)))
	}
	r.id = d.str()
	if r.id != "" && d.err == nil {
		d.fail(plain(checkID(r.id)))
	}
	for range d.count(2 + 8 + sha256.Size) {
		p := partRef{name: d.str(), size: d.u64()}
		d.digest(&p.digest)
		if d.err == nil {
			d.fail(plain(checkPart(p.name)))
			if n := len(r.put); n > 0 && r.put[n-1].name >= p.name {
				d.fail(fmt.Errorf("parts are not in order"))
			}
		}
		r.put = append(r.put, p)
	}
	for range d.count(2) {
		name := d.str()
		if d.err == nil {
			d.fail(plain(checkPart(name)))
			if n := len(r.deleted); n > 0 && r.deleted[n-1] >= name {
				d.fail(fmt.Errorf("deleted parts are not in order"))
			}
			if _, both := slices.BinarySearchFunc(r.put, name, func(p partRef, name string) int { return strings.Compare(p.name, name) }); both {
				d.fail(fmt.Errorf("part %q is both put and deleted", name))
			}
		}
		r.deleted = append(r.deleted, name)
	}
	if d.err == nil && uint64(headLen) != uint64(d.at) {
		d.fail(fmt.Errorf("head length is %d, not %d", headLen, d.at))
	}
	if d.err != nil {
		return nil, d.err
	}
	if d.left() == 0 && r.count > 0 {
		return r, nil
	}
	if uint64(r.count)*4 > d.left() {
		return nil, fmt.Errorf("%d entries do not fit in %d bytes", r.count, d.left())
	}
	r.entries = make([][]byte, 0, r.count)
	for i := uint32(0); i < r.count && d.err == nil; i++ {
		r.entries = append(r.entries, d.bytes(uint64(d.u32())))
	}
	if d.end(); d.err != nil {
		return nil, d.err
	}
	return r, nil
}
