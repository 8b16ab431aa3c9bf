package pawl

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// A segment is a file of commits that are not in the bundle any more. It is written
// once, and the bundle names it with the digest of its footer. The footer holds the
// digests of all chunks of 16 KiB before it, so that any piece of a segment can be read
// on its own and be held against what trust names.
//
//	  0  8   magic "pawlsegm"
//	  8  44  as in the bundle: version, flags, 0 for the length, store id
//	 52  u64 0
//	 60  u64 revision before the first commit
//	 68  32  history digest before the first commit
//	100 ...  reserved, 0
//	252  u32 CRC-32C of bytes 0 to 251
//	256      commit records in order; each: u32 length, record, whose entries may have been
//	         dropped
//	         for each commit: u64 where its record's length is, u64 first seq, 32 history
//	         digest after it
//	         for each commit with an id: u64 the first 8 bytes of the SHA-256 of the id,
//	         u32 which commit; sorted
//	         a Bloom filter of these ids
//	footer   u64 where the records end, u64 number of commits, u64 number of ids
//	         32 SHA-256 of each chunk
//
// A segment whose commits were forgotten has only the ids.
const (
	segmentMagic = "pawlsegm"
	segmentStart = "seg-"

	chunkSize  = 16 << 10
	tableRow   = 8 + 8 + sha256.Size
	idRow      = 8 + 4
	footerHead = 8 + 8 + 8

	filterBits   = 16 // for each id
	filterProbes = 8  // of 16 bits for each id: one id in 1700 is taken for one that is there
)

// row is what a bundle says of a segment: 104 bytes.
//
//	u64 revision, u64 next seq, 32 history digest after its last commit
//	u64 size of the file, u32 of that the footer
//	u32 flags: 1 its commits were forgotten, 2 entries of some were dropped, 4 (with 1)
//	its revisions were given up: they are those of a history that this one has left
//	u64 number of entries in it
//	32  SHA-256 of the footer
type row struct {
	end     origin
	size    int64
	footer  uint32
	flags   uint32
	entries uint64
	digest  Digest
}

const (
	rowSize = 8 + 8 + sha256.Size + 8 + 4 + 4 + 8 + sha256.Size

	rowForgotten = 1 << 0
	rowDropped   = 1 << 1
	rowGivenUp   = 1 << 2
)

func (r *row) encode(w *writer) {
	w.u64(uint64(r.end.revision))
	w.u64(uint64(r.end.nextSeq))
	w.bytes(r.end.history[:])
	w.u64(uint64(r.size))
	w.u32(r.footer)
	w.u32(r.flags)
	w.u64(r.entries)
	w.bytes(r.digest[:])
}

// decodeRow reads the row of a segment that goes on from where another ends.
func decodeRow(d *reader, from origin) (r row) {
	r.end.revision, r.end.nextSeq = Revision(d.u64()), Seq(d.u64())
	d.digest(&r.end.history)
	r.size = int64(d.u64())
	r.footer, r.flags, r.entries = d.u32(), d.u32(), d.u64()
	d.digest(&r.digest)
	foot := int64(r.footer)
	switch {
	case d.err != nil:
	case r.end.revision <= from.revision || r.end.nextSeq < from.nextSeq || r.entries > uint64(r.end.nextSeq-from.nextSeq):
		d.fail(fmt.Errorf("a segment up to revision %d does not go on from revision %d", r.end.revision, from.revision))
	case r.flags&^(rowForgotten|rowDropped|rowGivenUp) != 0 || r.flags&rowForgotten != 0 && r.entries != 0 || r.flags&rowGivenUp != 0 && r.flags != rowGivenUp|rowForgotten:
		d.fail(fmt.Errorf("the segment up to revision %d has flags %#x", r.end.revision, r.flags))
	case r.size < headerSize+footerHead+sha256.Size || foot != footerSize(r.size-foot):
		d.fail(fmt.Errorf("a segment of %d bytes cannot have a footer of %d", r.size, foot))
	}
	return r
}

// footerSize is the size of the footer after that many bytes.
func footerSize(n int64) int64 { return footerHead + sha256.Size*((n+chunkSize-1)/chunkSize) }

func filterSize(ids uint64) int64 { return int64(ids * filterBits / 8) }

// layout is a segment's footer, as decoded.
type layout struct {
	records, table, ids, filter, end int64 // where these begin or, the records, end
	commits, named                   uint64
	chunks                           []byte
}

func decodeFooter(b []byte, r *row, from origin) (*layout, error) {
	d := reader{b: b}
	l := &layout{records: int64(d.u64()), commits: d.u64(), named: d.u64(), end: r.size - int64(len(b))}
	l.chunks = d.bytes(d.left())
	want := uint64(r.end.revision - from.revision)
	if r.flags&rowForgotten != 0 {
		want = 0
	}
	room := uint64(l.end)
	if d.err == nil && (l.commits != want || l.records < headerSize || uint64(l.records) > room ||
		l.commits > room/tableRow || l.named > room/idRow) {
		d.fail(errorString("its footer does not go with the bundle"))
	}
	if d.err != nil {
		return nil, d.err
	}
	l.table = l.records
	l.ids = l.table + int64(l.commits)*tableRow
	l.filter = l.ids + int64(l.named)*idRow
	if l.filter+filterSize(l.named) != l.end {
		return nil, errorString("its footer does not go with its size")
	}
	return l, nil
}

// idHash is by what a segment knows an id.
func idHash(id string) uint64 {
	h := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(h[:])
}

// probe is one of the bits of a filter that stand for an id.
func probe(hash uint64, i int, filter int) (at int, bit byte) {
	mixed := uint64(uint32(hash)) + uint64(i)*(hash>>32|1)
	n, _ := bits.Mul64(mixed*0x9e3779b97f4a7c15, uint64(filter)*8)
	return int(n / 8), 1 << (n % 8)
}

func filterHas(filter []byte, hash uint64) bool {
	for i := range filterProbes {
		at, bit := probe(hash, i, len(filter))
		if len(filter) == 0 || filter[at]&bit == 0 {
			return false
		}
	}
	return true
}

// sealedID is an id in a segment.
type sealedID struct {
	hash   uint64
	commit uint32
}

// segmentWriter makes a segment of one record after the other. Besides what is not
// written yet it keeps 60 bytes for each of them.
type segmentWriter struct {
	store storeID
	from  origin
	row   row
	f     vfs.File // nil: it is only measured

	buffer []byte // what is not written yet
	at     int64  // where it goes
	chunks []byte
	table  writer
	ids    []sealedID
}

const writeStep = 16 * chunkSize

func newSegmentWriter(store storeID, from origin, f vfs.File) *segmentWriter {
	s := &segmentWriter{store: store, from: from, f: f, row: row{end: from}}
	h := header{store: store, revision: from.revision, history: from.history}
	s.buffer = h.encode(segmentMagic)
	return s
}

// size is how large the segment would be without what comes after the records.
func (s *segmentWriter) size() int64 { return s.at + int64(len(s.buffer)) }

// add adds the next commit of the history, with what is kept of it.
func (s *segmentWriter) add(r *record, k kept) error {
	n := uint32(r.revision - s.from.revision - 1)
	s.row.end = origin{r.revision, r.nextSeq(), r.history}
	if r.id != "" {
		s.ids = append(s.ids, sealedID{idHash(r.id), n})
	}
	if k == keptID {
		s.row.flags |= rowForgotten
		return nil
	}
	raw := r.raw
	switch {
	case r.dropped():
		s.row.flags |= rowDropped
	case k == keptHead && r.count > 0:
		s.row.flags |= rowDropped
		raw = r.head()
	default:
		s.row.entries += uint64(r.count)
	}
	s.table.u64(uint64(s.size()))
	s.table.u64(uint64(r.firstSeq))
	s.table.bytes(r.history[:])
	if err := s.write(binary.LittleEndian.AppendUint32(nil, uint32(len(raw)))); err != nil {
		return err
	}
	return s.write(raw)
}

func (s *segmentWriter) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeStep-len(s.buffer))
		s.buffer, b = append(s.buffer, b[:n]...), b[n:]
		if len(s.buffer) == writeStep {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *segmentWriter) flush() error {
	for chunk := range slices.Chunk(s.buffer, chunkSize) {
		digest := sha256.Sum256(chunk)
		s.chunks = append(s.chunks, digest[:]...)
	}
	err := s.put()
	return err
}

func (s *segmentWriter) put() error {
	if s.f != nil {
		if err := writeFull(s.f, s.buffer, s.at); err != nil {
			return err
		}
	}
	s.at += int64(len(s.buffer))
	s.buffer = s.buffer[:0]
	return nil
}

// finish writes what comes after the records.
func (s *segmentWriter) finish() (row, error) {
	foot := writer{}
	foot.u64(uint64(s.size()))
	foot.u64(uint64(len(s.table.b) / tableRow))
	foot.u64(uint64(len(s.ids)))
	if err := s.write(s.table.b); err != nil {
		return s.row, err
	}
	slices.SortFunc(s.ids, func(a, b sealedID) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.commit, b.commit))
	})
	filter := make([]byte, filterSize(uint64(len(s.ids))))
	var table writer
	for _, id := range s.ids {
		table.u64(id.hash)
		table.u32(id.commit)
		for i := range filterProbes {
			at, bit := probe(id.hash, i, len(filter))
			filter[at] |= bit
		}
	}
	for _, b := range [][]byte{table.b, filter} {
		if err := s.write(b); err != nil {
			return s.row, err
		}
	}
	if err := s.flush(); err != nil {
		return s.row, err
	}
	foot.bytes(s.chunks)
	s.buffer = append(s.buffer, foot.b...)
	if err := s.put(); err != nil {
		return s.row, err
	}
	s.row.size, s.row.footer, s.row.digest = s.at, uint32(len(foot.b)), sha256.Sum256(foot.b)
	return s.row, nil
}

// name is the file name of a segment: its first revision, and how its digest begins.
func (r *row) name(from origin) string {
	return fmt.Sprintf("%s%012d-%x", segmentStart, from.revision+1, r.digest[:8])
}

// isSegment reports whether name is one that name makes.
func isSegment(name string) bool {
	var revision uint64
	var digest []byte
	n, err := fmt.Sscanf(name, segmentStart+"%d-%x", &revision, &digest)
	return n == 2 && err == nil && len(digest) == 8 && name == fmt.Sprintf("%s%012d-%x", segmentStart, revision, digest)
}

// checkSegmentHeader says why a file that is not what the bundle names is not, if its
// first bytes tell.
func checkSegmentHeader(b []byte, store storeID) error {
	h, err := decodeHeader(b, segmentMagic, "segment")
	switch {
	case err != nil:
		return err
	case h.store != store:
		return errorString("it belongs to another store")
	}
	return nil
}
