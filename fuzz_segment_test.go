package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// memFile is a file in memory.
type memFile struct {
	vfs.File
	b []byte
}

func (f *memFile) Stat() (vfs.Info, error) { return vfs.Info{Size: int64(len(f.b))}, nil }
func (f *memFile) Close() error            { return nil }

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(f.b)) {
		return 0, io.EOF
	}
	n := copy(p, f.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if n := off + int64(len(p)); n > int64(len(f.b)) {
		f.b = append(f.b, make([]byte, n-int64(len(f.b)))...)
	}
	return copy(f.b[off:], p), nil
}

// nowhere is a store directory with nothing in it.
type nowhere struct{ vfs.Dir }

func (nowhere) Path() string { return "/nowhere" }

func (nowhere) OpenDir(name string) (vfs.Dir, error) {
	return nil, &fs.PathError{Op: "open", Path: "/nowhere/" + name, Err: fs.ErrNotExist}
}

func emptyDirectory() *directory {
	d := &directory{Dir: nowhere{}, fsys: vfs.OS(), counts: new(counts)}
	d.segments = folder{in: d, name: segmentsName, ours: isSegment}
	d.parts = folder{in: d, name: partsName, ours: isPartFile}
	return d
}

// segmentOver is a segment whose file has these bytes.
func segmentOver(b []byte, from origin, r row) *segment {
	g := newSegment(goldenID, from, r, emptyDirectory())
	g.file.f = &memFile{b: b}
	return g
}

// writeSegment makes a segment of records.
func writeSegment(t testing.TB, from origin, records []*record, keep func(*record) kept) ([]byte, row) {
	t.Helper()
	f := &memFile{}
	w := newSegmentWriter(goldenID, from, f)
	for _, r := range records {
		if err := w.add(r, keep(r)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	return f.b, r
}

func (r *row) bytes() []byte {
	var w writer
	r.encode(&w)
	return w.b
}

// mendSegment puts right what can be computed from the rest. The more is put right, the
// deeper the fuzzer gets:
//
//	1  the digests of the footer, and what the row says of the file
//	2  the header too, the numbers and digests of each record, and what the row says of them
//	3  the tables too: the segment is written anew
func mendSegment(b []byte, r row, how uint8) ([]byte, row) {
	from := beginning(goldenID)
	foot := 0
	for k := 1; k <= len(b)/chunkSize+1; k++ {
		if n := footerHead + k*sha256.Size; n < len(b) && footerSize(int64(len(b)-n)) == int64(n) {
			foot = n
		}
	}
	end := len(b) - foot
	if how == 0 || foot == 0 || end < headerSize {
		return b, r
	}
	if how >= 2 {
		h := header{store: goldenID, revision: from.revision, history: from.history}
		copy(b, h.encode(segmentMagic))
		var records []*record
		records, r = mendRecords(b[:end], r, min(binary.LittleEndian.Uint64(b[end:]), uint64(end)))
		if how >= 3 && records != nil {
			f := &memFile{}
			w := newSegmentWriter(goldenID, from, f)
			for _, rec := range records {
				k := keptWhole
				if r.flags&rowForgotten != 0 {
					k = keptID
				}
				_ = w.add(rec, k)
			}
			again, _ := w.finish()
			return f.b, again
		}
	}
	for i, at := 0, 0; at < end; i, at = i+1, at+chunkSize {
		digest := sha256.Sum256(b[at:min(at+chunkSize, end)])
		copy(b[end+footerHead+i*sha256.Size:], digest[:])
	}
	r.size, r.footer, r.digest = int64(len(b)), uint32(foot), sha256.Sum256(b[end:])
	return b, r
}

// mendRecords puts the records up to an offset right, in place, as far as they can be
// read; nil when none can. Of forgotten commits there are none to put right.
func mendRecords(b []byte, r row, end uint64) (records []*record, _ row) {
	at := beginning(goldenID)
	entries, flags := uint64(0), uint32(0)
	d := reader{b: b[:end], at: headerSize}
	if end < headerSize {
		return nil, r
	}
	for d.left() > 0 {
		raw := d.bytes(uint64(d.u32()))
		if len(raw) < atEntriesDigest {
			break
		}
		binary.LittleEndian.PutUint64(raw[atRevision:], uint64(at.revision+1))
		binary.LittleEndian.PutUint64(raw[atFirstSeq:], uint64(at.nextSeq))
		head := mendHead(raw)
		if head == 0 {
			break
		}
		rec, err := parseRecord(raw)
		if err != nil {
			break
		}
		rec.history = chain(at.history, rec.head())
		if at = (origin{rec.revision, rec.nextSeq(), rec.history}); rec.dropped() {
			flags |= rowDropped
		} else {
			entries += uint64(rec.count)
		}
		records = append(records, rec)
	}
	if records != nil && r.flags&rowForgotten == 0 {
		r.end, r.entries, r.flags = at, entries, flags
	}
	return records, r
}

// mendHead is mendRecord for a record whose entries may be missing.
func mendHead(raw []byte) int {
	d := reader{b: raw, at: atCount}
	count := d.u32()
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
	if d.err != nil {
		return 0
	}
	head := d.at
	binary.LittleEndian.PutUint32(raw, uint32(head))
	if d.left() == 0 && count > 0 {
		return head
	}
	var entries [][]byte
	for ; count > 0 && d.err == nil; count-- {
		entries = append(entries, d.bytes(uint64(d.u32())))
	}
	if d.err == nil {
		digest := digestEntries(entries)
		copy(sum, digest[:])
	}
	return head
}

// segmentSeeds are whole segments, from the beginning of a history.
func segmentSeeds(t testing.TB) (files [][]byte, rows []row) {
	t.Helper()
	records := lastOf(goldenSteps(t, goldenChanges())).state.records
	var many []Change
	for i := range 500 {
		c := Change{ID: fmt.Sprint("commit ", i)}
		if i%7 != 0 {
			c.Entries = [][]byte{bytes.Repeat([]byte{byte(i)}, i%90)}
		}
		many = append(many, c)
	}
	long := sealMany(t, many)
	for _, s := range []struct {
		records []*record
		keep    func(*record) kept
	}{
		{records, func(*record) kept { return keptWhole }},
		{records, func(r *record) kept { return kept(r.revision % 2) }},
		{records, func(*record) kept { return keptHead }},
		{records, func(*record) kept { return keptID }},
		{records[:1], func(*record) kept { return keptWhole }},
		{records[2:3:3], func(*record) kept { return keptID }},
		{long, func(*record) kept { return keptWhole }},
		{long, func(r *record) kept { return kept(r.revision % 3 / 2) }},
	} {
		if s.records[0].revision != 1 {
			continue
		}
		b, r := writeSegment(t, beginning(goldenID), s.records, s.keep)
		files, rows = append(files, b), append(rows, r)
	}
	return files, rows
}

// sealMany makes the records of many commits.
func sealMany(t testing.TB, changes []Change) (records []*record) {
	t.Helper()
	limits, err := new(Options).complete()
	if err != nil {
		t.Fatal(err)
	}
	at := beginning(goldenID)
	for i, c := range changes {
		p, err := c.prepare(&limits.Limits)
		if err != nil {
			t.Fatal(err)
		}
		r := p.record
		r.revision, r.firstSeq = at.revision+1, at.nextSeq
		r.time = goldenTime.UnixNano() + int64(i)
		r.seal(at.history)
		records, at = append(records, &r), origin{r.revision, r.nextSeq(), r.history}
	}
	return records
}

// FuzzDecodeSegment reads a segment of any bytes, under a row of any bytes. The more of it
// is put right, the deeper it is read.
func FuzzDecodeSegment(f *testing.F) {
	files, rows := segmentSeeds(f)
	for i, b := range files {
		r := rows[i]
		for how := range uint8(4) {
			f.Add(b, r.bytes(), how)
		}
		l, err := decodeFooter(b[r.size-int64(r.footer):], &r, beginning(goldenID))
		if err != nil {
			f.Fatal(err)
		}
		// Numbers that lead elsewhere.
		for at, put := range map[int64][]byte{
			headerSize:         {0xff, 0xff, 0xff, 0xff}, // the length of a record
			headerSize + 1:     {1},
			l.table:            {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // where a record is
			l.table + 1:        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			l.table + 8:        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, // its first seq
			l.table + tableRow: {0, 0, 0, 0, 0, 0, 0, 0x80},
			l.ids:              {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, // an id
			l.ids + 8:          {0xff, 0xff, 0xff, 0xff},                         // which commit has it
			l.filter:           {0, 0, 0, 0},
			l.end:              {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // where the records end
			l.end + 8:          {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f}, // how many commits
			l.end + 16:         {0x56, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x15}, // how many ids
		} {
			f.Add(patched(b, int(at), put...), r.bytes(), uint8(1))
			f.Add(patched(b, int(at), put...), r.bytes(), uint8(2))
		}
		for n := range min(r.size, 3) {
			f.Add(b[:r.size-n*r.size/3-1], r.bytes(), uint8(2))
		}
		// Sizes that the file does not have.
		large := r
		large.size = 1<<61 + 5
		large.footer = uint32(footerSize(1 << 40))
		f.Add(b, large.bytes(), uint8(0))
		large.footer = footerHead + 100_000_000*sha256.Size
		large.size = 100_000_000*chunkSize + int64(large.footer)
		f.Add(b, large.bytes(), uint8(0))
	}
	f.Fuzz(func(t *testing.T, b, rowBytes []byte, how uint8) {
		from := beginning(goldenID)
		d := reader{b: slices.Clone(rowBytes)}
		r := decodeRow(&d, from)
		if d.err != nil && how%4 == 0 {
			return
		}
		if d.end(); d.err == nil && !bytes.Equal(r.bytes(), rowBytes) {
			t.Errorf("a row is accepted, and not encoded the same again:\n%x", rowBytes)
		}
		b, r = mendSegment(slices.Clone(b), r, how%4)
		d = reader{b: r.bytes()}
		if decodeRow(&d, from); d.err != nil {
			return
		}
		useSegment(t, b, from, r)
	})
}

// damageIn fails the test unless an error is nil, or about bytes of the file that are not
// as they were written.
func damageIn(t *testing.T, g *segment, what string, err error) {
	t.Helper()
	var e *Error
	switch {
	case err == nil:
	case g.forgotten() && errors.Is(err, ErrForgotten):
	case !errors.As(err, &e) || e.Kind != ErrDamaged || len(e.Damage) == 0:
		t.Errorf("%s: an error of no class: %v", what, err)
	default:
		for _, d := range e.Damage {
			if d.Offset < 0 || d.Length < 0 || d.Offset+d.Length < 0 || d.Offset+d.Length > g.size || d.Problem == "" || d.Path == "" {
				t.Errorf("%s: damage %+v in a file of %d bytes", what, d, g.size)
			}
		}
	}
}

// useSegment reads a segment in all ways that there are.
func useSegment(t *testing.T, b []byte, from origin, r row) {
	g := segmentOver(b, from, r)
	var err error
	modest(t, len(b), func() {
		if _, e := g.layout(); e != nil {
			err = e
		}
	})
	if damageIn(t, g, "layout", err); err != nil {
		return
	}
	modest(t, len(b), func() { err = g.check(t.Context(), nil) })
	damageIn(t, g, "check", err)
	whole := err == nil

	st := &state{id: goldenID, sealed: []*segment{g}, base: g.end, parts: map[string]part{}}
	v := View{st}
	look := func(what string, err error) {
		t.Helper()
		// What a record says beyond its bytes is not about a piece of a file.
		if e := (*Error)(nil); !whole && errors.As(err, &e) && e.Kind == ErrDamaged && e.Damage == nil {
			return
		}
		damageIn(t, g, what, err)
		if whole && err != nil && !errors.Is(err, ErrForgotten) {
			t.Errorf("%s: a whole segment, and %v", what, err)
		}
	}
	var entries []Entry
	for e, err := range v.Entries(0) {
		if look("entries", err); err != nil {
			break
		}
		if entries = append(entries, e); len(entries) > len(b)/4 {
			t.Fatalf("%d entries in %d bytes", len(entries), len(b))
		}
	}
	var commits []CommitInfo
	for c, err := range v.Commits(0) {
		if look("commits", err); err != nil {
			break
		}
		if commits = append(commits, c); len(commits) > len(b)/4 {
			t.Fatalf("%d commits in %d bytes", len(commits), len(b))
		}
	}
	middle := from.revision + (g.end.revision-from.revision)/2
	for _, rev := range []Revision{1, 2, middle, middle + 1, g.end.revision - 1, g.end.revision} {
		if rev < 1 || rev > g.end.revision {
			continue
		}
		_, err := st.recordOf(rev)
		look("record", err)
		_, _, err = st.historyAt(rev)
		look("history", err)
		for _, err := range v.Commits(rev - 1) {
			look("commits after", err)
			break
		}
	}
	for _, q := range []Seq{0, 1, 2, g.end.nextSeq / 2, g.end.nextSeq - 2, g.end.nextSeq - 1, g.end.nextSeq} {
		for e, err := range v.Entries(q) {
			if look("entries after", err); err == nil && e.Seq <= q {
				t.Errorf("entry %d after %d", e.Seq, q)
			}
			break
		}
	}
	for _, id := range []string{"begin", goldenLastID, "commit 0", "commit 499", "none"} {
		_, err := st.seek(id)
		look("seek", err)
	}
	if !whole {
		return
	}

	// What is accepted is what would be written again, and is found by all tables.
	if uint64(len(entries)) != g.entries || !g.forgotten() && len(commits) != int(g.end.revision-from.revision) || g.forgotten() && len(commits) > 0 {
		t.Errorf("%d entries of %d, %d commits up to revision %d", len(entries), g.entries, len(commits), g.end.revision)
	}
	again := &memFile{}
	w := newSegmentWriter(goldenID, from, again)
	for _, c := range commits {
		rec, e := g.record(c.Version.Revision)
		if e != nil {
			t.Fatal(e)
		}
		if err := w.add(rec, keptWhole); err != nil {
			t.Fatal(err)
		}
		ok, err := v.Contains(Receipt{Version: c.Version, FirstSeq: c.FirstSeq, LastSeq: c.LastSeq})
		if !ok || err != nil {
			t.Errorf("revision %d is not contained: %v", c.Version.Revision, err)
		}
		if c.ID == "" {
			continue
		}
		if p, err := st.seek(c.ID); p.record == nil || err != nil || p.record.id != c.ID {
			t.Errorf("id %q is not found: %+v, %v", c.ID, p, err)
		}
	}
	if g.forgotten() {
		l, _ := g.layout()
		_ = g.remakeIDs(l, w)
	}
	if made, err := w.finish(); err != nil || made != r || !bytes.Equal(again.b, b) {
		t.Errorf("accepted, and not encoded the same again: %v\n%x\n%x", err, b, again.b)
	}
	for i, e := range entries {
		for after, err := range v.Entries(e.Seq - 1) {
			if err != nil || after.Seq != e.Seq || !bytes.Equal(after.Data, e.Data) {
				t.Errorf("entry %d by its seq: %+v, %v", i, after, err)
			}
			break
		}
		if i > 50 {
			break
		}
	}
	if name := g.name(from); !isSegment(name) {
		t.Errorf("%q is not the name of a segment", name)
	}
}
