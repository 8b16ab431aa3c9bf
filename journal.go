package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
)

// The journal is the file beside the bundle that holds the commits made since the
// bundle was published. It is made whole, at its full size, and from then on only
// written in place: each batch of commits into blocks of 4 KiB that held zeros. Its
// length is the offset after the last block that belongs to the state; what lies
// before it never changes, and all after it is zero.
//
// The disk digest goes on from that of the bundle D, over the header and then frame
// by frame:
//
//	SHA-256(D ‖ header), SHA-256(that ‖ first frame), …
//
// so that one digest in the trust file pins the bundle and every byte of the journal
// that belongs to the state; padding is zero.
//
//	  0  8   magic "pawljrnl"
//	  8  44  as in the bundle: version, flags, length of the file, store id
//	 52  u64 epoch of the bundle that it goes with
//	 60  u64 revision of that bundle
//	 68  32  history digest of that bundle
//	100  32  disk digest of that bundle
//	132 ...  reserved, 0
//	252  u32 CRC-32C of bytes 0 to 251
//	256 ...  0
//	4096     batches, each from the beginning of a block: frames, then zeros up to the
//	         end of the block; a frame begins at a multiple of 8
//
//	frame    u32 length, this field included
//	         u32 CRC-32C of the frame from here on
//	         32  disk digest before the frame
//	         u32 length of the commit record
//	         commit record
//	         the bytes of the parts that it puts, in its order
const (
	journalMagic = "pawljrnl"
	blockSize    = 4096
	frameAlign   = 8
	frameHead    = 4 + 4 + sha256.Size + 4

	journalLeast = 64 << 10 // what a journal is made with, unless Limits.Journal is less
)

// journalName is the name of the journal that goes with a bundle.
func journalName(epoch uint64) string { return fmt.Sprintf("%s%012d", journalStart, epoch) }

// journalEpoch is the reverse of journalName.
func journalEpoch(name string) (epoch uint64, ok bool) {
	if _, err := fmt.Sscanf(name, journalStart+"%d", &epoch); err != nil {
		return 0, false
	}
	return epoch, journalName(epoch) == name
}

// journalHeader is the header of the journal of that size that goes with a bundle.
func journalHeader(id storeID, bundle Root, from origin, size int64) []byte {
	h := header{length: uint64(size), store: id, epoch: bundle.Epoch, revision: bundle.Revision,
		history: from.history, parent: bundle.Digest}
	return h.encode(journalMagic)
}

// extendDigest is the disk digest after more bytes; h is scratch.
func extendDigest(h hash.Hash, before Digest, more []byte) (after Digest) {
	h.Reset()
	h.Write(before[:])
	h.Write(more)
	h.Sum(after[:0])
	return after
}

// appendFrame appends the frame of a record that has its place to a batch, and returns
// the batch and the disk digest after it.
func appendFrame(b []byte, h hash.Hash, before Digest, r *record, data [][]byte) ([]byte, Digest) {
	b = append(b, make([]byte, roundUp(len(b), frameAlign)-len(b))...)
	start := len(b)
	w := writer{b}
	w.u32(uint32(frameSize(r)))
	w.u32(0)
	w.bytes(before[:])
	w.u32(uint32(len(r.raw)))
	w.bytes(r.raw)
	for _, p := range data {
		w.bytes(p)
	}
	frame := w.b[start:]
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(frame[8:], castagnoli))
	return w.b, extendDigest(h, before, frame)
}

// frameSize is the length of a record's frame.
func frameSize(r *record) int64 {
	n := int64(frameHead + len(r.raw))
	for _, p := range r.put {
		n += int64(p.size)
	}
	return n
}

func roundUp[T int | int64](n, to T) T { return (n + to - 1) / to * to }

// appended is one commit of a journal.
type appended struct {
	root   Root // what a trust record says of the state that ends with it
	record *record
	data   [][]byte
	at     int64 // where its frame begins
}

// walked is what a journal holds.
type walked struct {
	head  *header // nil when it is not whole
	steps []appended
	stop  int64 // where there were no more frames
	used  int64 // where the last byte that is not zero ends
	bad   error // what is wrong at stop; nil when it is zero from there on
	apart bool  // it goes with another bundle
}

// walkJournal reads a journal and checks all that can be checked of it: that it goes
// with the bundle and the state before it, every checksum, and the chain of disk
// digests and of commit records. The steps keep raw. An error is a format that this
// program does not know.
func walkJournal(raw []byte, bundle Root, before *state) (w walked, err error) {
	w.used = usedBytes(raw)
	h, err := decodeHeader(raw[:min(len(raw), headerSize)], journalMagic, "journal")
	if e, ok := err.(*Error); ok && e.Kind == ErrVersion {
		return w, e
	}
	if err != nil {
		w.bad = err
		return w, nil
	}
	w.head = &h
	from := before.end()
	switch {
	case h.store != before.id:
		w.apart, w.bad = true, errorString("it belongs to another store")
	case h.epoch != bundle.Epoch || h.revision != from.revision || h.history != from.history || h.parent != bundle.Digest:
		w.apart, w.bad = true, errorString("it does not go with the bundle beside it")
	case h.length != uint64(len(raw)) || len(raw)%blockSize != 0 || len(raw) < 2*blockSize:
		w.bad = fmt.Errorf("it has %d bytes, and its header says %d", len(raw), h.length)
	case usedBytes(raw[headerSize:blockSize]) != 0:
		w.bad = errorString("bytes after its header are not zero")
	}
	if w.bad != nil {
		return w, nil
	}
	ids := map[string]bool{}
	for _, r := range before.records {
		ids[r.id] = true
	}
	root := bundle
	root.Digest = extendDigest(sha256.New(), root.Digest, raw[:headerSize])
	w.walkFrames(raw[blockSize:], blockSize, root, from, ids)
	return w, nil
}

// walkFrames goes through the frames in raw, the bytes of a journal from base on, which
// follow a root and its history. ids are those of the commits before, and get those of
// the frames.
func (w *walked) walkFrames(raw []byte, base int64, root Root, from origin, ids map[string]bool) {
	hasher := sha256.New()
	used, at := usedBytes(raw), int64(0)
	for w.stop = base; at < int64(len(raw)); w.stop = base + at {
		s, end, err := walkFrame(raw, at, hasher, root, from)
		if err == nil && s == nil { // the batch, or the journal, ends here
			end = roundUp(at, blockSize)
			if usedBytes(raw[at:end]) != 0 {
				err = errorString("the rest of the block is not zero")
			} else if end != at {
				at = end
				continue
			} else if used > end {
				err = errorString("bytes that belong to no frame")
			}
		}
		if err == nil && s != nil && s.record.id != "" && ids[s.record.id] {
			err = fmt.Errorf("two commits have the id %q", s.record.id)
		}
		if w.bad = err; err != nil || s == nil {
			return
		}
		s.at += base
		s.root.Journal += base
		ids[s.record.id] = true
		w.steps = append(w.steps, *s)
		root, from = s.root, origin{s.record.revision, s.record.nextSeq(), s.record.history}
		at, end = end, min(roundUp(end, frameAlign), int64(len(raw)))
		if usedBytes(raw[at:end]) != 0 {
			w.stop, w.bad = base+at, errorString("bytes after a frame are not zero")
			return
		}
		at = end
	}
}

// walkFrame reads the frame at an offset; nil when there is none.
func walkFrame(raw []byte, at int64, h hash.Hash, before Root, from origin) (*appended, int64, error) {
	d := reader{b: raw[at:]}
	n := int64(d.u32())
	if n == 0 {
		return nil, at, d.err
	}
	if n < frameHead || n > int64(len(raw))-at {
		return nil, at, fmt.Errorf("a frame of %d bytes cannot be", n)
	}
	frame := raw[at : at+n : at+n]
	d = reader{b: frame, at: 4}
	if d.u32() != crc32.Checksum(frame[8:], castagnoli) {
		return nil, at, errorString("the checksum of a frame does not match")
	}
	var chained Digest
	if d.digest(&chained); chained != before.Digest {
		return nil, at, errorString("a frame does not go on from what is before it")
	}
	r, err := decodeRecord(d.bytes(uint64(d.u32())), from.history)
	if err != nil {
		return nil, at, err
	}
	if r.revision != from.revision+1 || r.firstSeq != from.nextSeq {
		return nil, at, fmt.Errorf("revision %d does not follow revision %d", r.revision, from.revision)
	}
	s := &appended{record: r, at: at}
	for _, p := range r.put {
		b := d.bytes(p.size)
		if d.err == nil && Digest(sha256.Sum256(b)) != p.digest {
			return nil, at, fmt.Errorf("part %q is not the one that its commit record names", p.name)
		}
		s.data = append(s.data, b)
	}
	if d.end(); d.err != nil {
		return nil, at, d.err
	}
	s.root = Root{Revision: r.revision, Epoch: before.Epoch, Journal: roundUp(at+n, blockSize),
		Digest: extendDigest(h, before.Digest, frame)}
	return s, at + n, nil
}

// usedBytes is how much of b is left when the zeros at its end are cut off.
func usedBytes(b []byte) int64 {
	for len(b) >= len(zeros) && bytes.Equal(b[len(b)-len(zeros):], zeros) {
		b = b[:len(b)-len(zeros)]
	}
	return int64(len(bytes.TrimRight(b, "\x00")))
}

// zeros is a block of them.
var zeros = make([]byte, blockSize)
