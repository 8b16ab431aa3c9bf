package pawl

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"runtime"
	"sort"
	"sync"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// segment is a segment as a state names it, and what was read of it.
type segment struct {
	row
	store storeID
	from  origin
	file  keptFile

	mu     sync.Mutex
	lay    *layout // nil until it is needed
	filter []byte  // likewise
}

func newSegment(store storeID, from origin, r row, dir *directory) *segment {
	return &segment{row: r, store: store, from: from, file: keptFile{in: &dir.segments, name: r.name(from)}}
}

// forgotten says that only the ids of its commits are left.
func (g *segment) forgotten() bool { return g.flags&rowForgotten != 0 }

// givenUp says that its revisions are none of this history: it stands where another one
// went on, which an operator has given up.
func (g *segment) givenUp() bool { return g.flags&rowGivenUp != 0 }

// layout reads the footer, and holds it against the digest that the bundle names.
func (g *segment) layout() (*layout, *Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lay != nil {
		return g.lay, nil
	}
	foot, err := g.readFooter()
	if err == nil {
		g.lay, err = decodeFooter(foot, &g.row, g.from)
	}
	if err != nil {
		return nil, g.file.damaged(err, g.whole(0, g.size))
	}
	return g.lay, nil
}

func (g *segment) readFooter() ([]byte, error) {
	var foot []byte
	err := g.file.use(func(f vfs.File) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if info.Size != g.size {
			err = fmt.Errorf("it has %d bytes, and the bundle says %d", info.Size, g.size)
		} else {
			foot = make([]byte, g.footer)
			err = readAt(f, foot, g.size-int64(g.footer))
		}
		if err == nil && Digest(sha256.Sum256(foot)) != g.digest {
			err = errorString("its footer does not have the digest that the bundle names")
		}
		if err == nil || errors.As(err, new(*fs.PathError)) {
			return err
		}
		// The first bytes may tell more.
		first := make([]byte, headerSize)
		if readAt(f, first, 0) == nil {
			if why := checkSegmentHeader(first, g.store); why != nil {
				return why
			}
		}
		return err
	})
	return foot, err
}

// whole is damage to a piece of the file of which it is not known what was in it.
func (g *segment) whole(at, n int64) Damage {
	return Damage{Offset: at, Length: n, First: g.from.revision + 1, Last: g.end.revision,
		FirstSeq: g.from.nextSeq, LastSeq: g.end.nextSeq - 1}
}

// read returns bytes of the file, held against their digests. It uses room when that
// is large enough.
func (g *segment) read(at, n int64, room []byte) ([]byte, *Error) {
	l, e := g.layout()
	if e != nil {
		return nil, e
	}
	if at < 0 || n < 0 || at > l.end || n > l.end-at {
		return nil, g.file.damaged(fmt.Errorf("%d bytes at %d are not in it", n, at), g.whole(0, g.size))
	}
	from := at - at%chunkSize
	to := min(roundUp(at+n, chunkSize), l.end)
	b, bad, err := g.readChunks(l, from, to, room)
	if err != nil {
		return nil, g.file.damaged(err, g.whole(from, to-from))
	}
	if bad >= 0 {
		at := from + int64(bad)*chunkSize
		n := min(chunkSize, l.end-at)
		return nil, g.file.damaged(fmt.Errorf("bytes %d to %d do not have the digest that its footer names", at, at+n-1), g.whole(at, n))
	}
	return b[at-from : at-from+n : at-from+n], nil
}

// readChunks reads whole chunks and holds each against its digest. It tells the first
// that does not have it, or -1.
func (g *segment) readChunks(l *layout, from, to int64, room []byte) (b []byte, bad int, err error) {
	if n := to - from; int64(cap(room)) >= n {
		b = room[:n]
	} else {
		b = make([]byte, n)
	}
	err = g.file.use(func(f vfs.File) error { return readAt(f, b, from) })
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errorString("it was cut off while it was read")
		}
		return nil, -1, err
	}
	return b, firstBad(b, l.chunks[from/chunkSize*sha256.Size:]), nil
}

// firstBad finds the first chunk that does not have its digest. It is what reading
// history costs, so that large pieces go to several processors.
func firstBad(b, digests []byte) int {
	n := (len(b) + chunkSize - 1) / chunkSize
	check := func(from, to int) int {
		for i := from; i < to; i++ {
			chunk := b[i*chunkSize : min((i+1)*chunkSize, len(b))]
			if Digest(sha256.Sum256(chunk)) != Digest(digests[i*sha256.Size:(i+1)*sha256.Size]) {
				return i
			}
		}
		return -1
	}
	const least = 16 // chunks that are worth a goroutine
	workers := min(runtime.GOMAXPROCS(0), n/least)
	if workers < 2 {
		return check(0, n)
	}
	found := make([]int, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { found[w] = check(w*n/workers, (w+1)*n/workers) })
	}
	wg.Wait()
	for _, i := range found {
		if i >= 0 {
			return i
		}
	}
	return -1
}

// narrow makes the error about a piece of the records say which commits it is about, as
// far as the table of commits can still be read.
func (g *segment) narrow(e *Error) *Error {
	l, err := g.layout()
	if err != nil || len(e.Damage) != 1 || e.Damage[0].Offset >= l.records {
		return e
	}
	d := &e.Damage[0]
	i, err := g.search(l.table, byOffset, l.commits, uint64(d.Offset)+1)
	if err != nil {
		return e
	}
	j, err := g.search(l.table, byOffset, l.commits, uint64(d.Offset+d.Length))
	if err != nil || j == 0 {
		return e
	}
	if i > 0 {
		i-- // it begins before
	}
	_, first, _, err := g.commit(i)
	if err != nil {
		return e
	}
	next := uint64(g.end.nextSeq)
	if j < l.commits {
		if _, next, _, err = g.commit(j); err != nil {
			return e
		}
	}
	d.First, d.Last = g.from.revision+1+Revision(i), g.from.revision+Revision(j)
	d.FirstSeq, d.LastSeq = Seq(first), Seq(next)-1
	return e
}

// commit is a row of the table of commits: where its record is, its first seq, and the
// history digest after it.
func (g *segment) commit(i uint64) (at int64, firstSeq uint64, history Digest, e *Error) {
	l, e := g.layout()
	if e != nil {
		return 0, 0, history, e
	}
	b, e := g.read(l.table+int64(i)*tableRow, tableRow, nil)
	if e != nil {
		return 0, 0, history, e
	}
	d := reader{b: b}
	at, firstSeq = int64(d.u64()), d.u64()
	if d.digest(&history); at < headerSize || at > l.records {
		return 0, 0, history, g.file.damaged(fmt.Errorf("its table says that a record is at %d", at), g.whole(l.table+int64(i)*tableRow, tableRow))
	}
	return at, firstSeq, history, nil
}

// The fields of a row by which a table is sorted.
const (
	byOffset = 0
	bySeq    = 8
	byHash   = 0
)

// search tells how many rows of a sorted table have at field a number less than key. Numbers in a table are spread evenly, as good as, so a guess is near:
// two or three pieces are read however long it is.
func (g *segment) search(table int64, field int, rows, key uint64) (uint64, *Error) {
	l, e := g.layout()
	if e != nil {
		return 0, e
	}
	size, low, high := int64(tableRow), uint64(0), uint64(math.MaxUint64) // low and high: between what the numbers of lo and hi are
	switch {
	case table == l.ids:
		size = idRow
	case field == byOffset:
		low, high = headerSize, uint64(l.records)
	case field == bySeq:
		low, high = uint64(g.from.nextSeq), uint64(g.end.nextSeq)
	}
	page := uint64(chunkSize / 2 / size)
	lo, hi := uint64(0), rows
	for try := 0; lo < hi; try++ {
		mid := lo + (hi-lo)/2
		if try < 3 && key >= low && key <= high && high > low {
			mid = lo + min(hi-lo-1, uint64(float64(hi-lo)*(float64(key-low)/float64(high-low))))
		}
		first := max(lo, mid-min(mid, page/2))
		last := min(hi, first+page)
		b, e := g.read(table+int64(first)*size, int64(last-first)*size, nil)
		if e != nil {
			return 0, e
		}
		number := func(i uint64) uint64 {
			return binary.LittleEndian.Uint64(b[int64(i-first)*size+int64(field):])
		}
		switch {
		case number(first) >= key && first > lo:
			hi, high = first, number(first)
		case number(last-1) < key && last < hi:
			lo, low = last, number(last-1)
		default:
			n := sort.Search(int(last-first), func(i int) bool { return number(first+uint64(i)) >= key })
			return first + uint64(n), nil
		}
	}
	return lo, nil
}

// find tells which commits of the segment may have an id: those whose ids have its hash.
func (g *segment) find(hash uint64) (commits []uint32, e *Error) {
	l, e := g.layout()
	if e != nil || l.named == 0 {
		return nil, e
	}
	filter, e := g.loadFilter(l)
	if e != nil || !filterHas(filter, hash) {
		return nil, e
	}
	i, e := g.search(l.ids, byHash, l.named, hash)
	for e == nil && i < l.named {
		const several = 8 // more have the same hash only by design
		var b []byte
		if b, e = g.read(l.ids+int64(i)*idRow, int64(min(several, l.named-i))*idRow, nil); e != nil {
			break
		}
		for ; len(b) > 0; b, i = b[idRow:], i+1 {
			if binary.LittleEndian.Uint64(b) != hash {
				return commits, nil
			}
			commits = append(commits, binary.LittleEndian.Uint32(b[8:]))
		}
	}
	return commits, e
}

// loadFilter reads the filter, which is kept in memory from then on.
func (g *segment) loadFilter(l *layout) ([]byte, *Error) {
	g.mu.Lock()
	filter := g.filter
	g.mu.Unlock()
	if filter != nil {
		return filter, nil
	}
	filter, e := g.read(l.filter, l.end-l.filter, nil)
	if e == nil {
		g.mu.Lock()
		g.filter = filter
		g.mu.Unlock()
	}
	return filter, e
}

// record reads the commit of a revision that is in the segment.
func (g *segment) record(rev Revision) (*record, *Error) {
	i := uint64(rev - g.from.revision - 1)
	at, _, history, e := g.commit(i)
	if e != nil {
		return nil, e
	}
	c := g.cursor(at, rev-1)
	raw, e := c.next()
	if e != nil {
		return nil, e
	}
	r, err := parseRecord(raw)
	if err == nil && r.revision != rev {
		err = fmt.Errorf("revision %d is where revision %d should be", r.revision, rev)
	}
	if err != nil {
		return nil, g.file.damaged(err, g.whole(at, int64(len(raw))))
	}
	r.history = history
	return r, nil
}

// cursor goes through the records of a segment.
type cursor struct {
	g    *segment
	at   int64    // of the next record
	done Revision // of the one before it

	span int64  // how much is read at once
	have []byte // the piece that was read last, in room
	base int64  // where it is
	room []byte
}

const (
	firstSpan = 4 * chunkSize
	largeSpan = 64 * chunkSize
)

// cursor begins at an offset, where the record after a revision is.
func (g *segment) cursor(at int64, after Revision) *cursor {
	return &cursor{g: g, at: at, done: after, span: chunkSize}
}

// next returns the next record, whose bytes are valid until the one after it is asked
// for; nil after the last.
func (c *cursor) next() ([]byte, *Error) {
	if c.done >= c.g.end.revision {
		return nil, nil
	}
	n, e := c.bytes(c.at, 4)
	if e != nil {
		return nil, e
	}
	raw, e := c.bytes(c.at+4, int64(binary.LittleEndian.Uint32(n)))
	if e != nil {
		return nil, e
	}
	c.at += 4 + int64(len(raw))
	c.done++
	return raw, nil
}

// bytes returns bytes of the file from the piece that was read. What was read and is
// still needed is not read again.
func (c *cursor) bytes(at, n int64) ([]byte, *Error) {
	end := c.base + int64(len(c.have))
	if at >= c.base && at+n <= end {
		return c.have[at-c.base : at-c.base+n], nil
	}
	l, e := c.g.layout()
	if e != nil {
		return nil, e
	}
	if n > l.records-at {
		return nil, c.g.file.damaged(fmt.Errorf("a record at %d goes beyond the last", at), c.g.whole(at, l.records-at))
	}
	from := at - at%chunkSize
	if from < c.base || from > end {
		end = from
	}
	kept := c.have[:0]
	if end > from {
		kept = c.have[from-c.base:]
	}
	need := min(roundUp(at+n, chunkSize), l.end)
	to := min(max(end+c.span, need), roundUp(l.records, chunkSize), l.end)
	// One record alone costs its chunk; who goes on reads larger and larger pieces.
	c.span = min(max(2*c.span, firstSpan), largeSpan)
	size := to - from
	if int64(cap(c.room)) < size {
		c.room = make([]byte, size)
	}
	// What is kept moves to the front of the room, where it may be already.
	copy(c.room[:size], kept)
	more := c.room[end-from : size]
	b, e := c.g.read(end, to-end, more)
	if e != nil && to > need {
		to = need // what comes later may be damaged, and this not
		b, e = c.g.read(end, to-end, more)
	}
	if e != nil {
		c.have = nil
		return nil, c.g.narrow(e)
	}
	copy(more, b)
	c.base, c.have = from, c.room[:to-from]
	return c.have[at-from : at-from+n], nil
}
