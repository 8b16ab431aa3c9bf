package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The golden files of a store whose commits say a schema and a program, or one of the
// two, or neither:
//
//	schema.bundle   four commits, by programs of no schema, of schema 1, and of schema 2
//	schema.journal  two more beside it, each in a batch of its own; a block is left
//	schema.trust    confirms the last of them, closed
//	schema.audit    another program, and a migration

const (
	goldenProgram = "agent 2.0 (größe)"
	goldenNewer   = "agent \"2.1\""
)

// goldenSchemaChanges are the commits of schema.bundle, and then those of
// schema.journal, one second apart.
func goldenSchemaChanges() []Change {
	return []Change{
		{ID: "before any"},
		{Entries: [][]byte{[]byte("one")}, schema: 1, program: "agent 1.0"},
		{Put: map[string][]byte{"state.json": []byte(`{"cursor":1}`)}},
		{ID: "migrate", Put: map[string][]byte{"state.json": []byte(`{"at":1}`)}, schema: 2, program: goldenProgram},
		{Entries: [][]byte{[]byte("two")}, program: goldenNewer},
		{ID: "migrate again", schema: math.MaxInt32},
	}
}

const (
	inSchemaBundle    = 4 // commits
	schemaJournalName = "journal.000000000004"
	schemaJournalSize = 4 * blockSize
)

// goldenSchemaJournal makes schema.journal by hand: the state of schema.bundle and those
// after each batch, and the file.
func goldenSchemaJournal(t testing.TB) (states []*state, roots []Root, file []byte) {
	t.Helper()
	changes := goldenSchemaChanges()
	bundle := lastOf(goldenSteps(t, changes[:inSchemaBundle]))
	limits, err := new(Options).complete()
	if err != nil {
		t.Fatal(err)
	}
	states, roots = []*state{bundle.state}, []Root{bundle.root}
	header := journalHeader(goldenID, bundle.root, bundle.state.end(), schemaJournalSize)
	file = append(slices.Clone(header), make([]byte, blockSize-len(header))...)
	digest := extendDigest(sha256.New(), bundle.root.Digest, header)
	for i, c := range changes[inSchemaBundle:] {
		p, err := c.prepare(&limits.Limits)
		if err != nil {
			t.Fatal(err)
		}
		g := lastOf(states).grow()
		r := p.record
		r.revision, r.firstSeq, r.time = g.version().Revision+1, g.nextSeq(), goldenTime.UnixNano()+int64(inSchemaBundle+i)*1e9
		r.seal(g.version().Digest)
		g.add(&r, p.data)
		file, digest = appendFrame(file, sha256.New(), digest, &r, p.data)
		file = append(file, make([]byte, roundUp(len(file), blockSize)-len(file))...)
		st := g.state
		st.records = slices.Clip(st.records)
		states = append(states, &st)
		roots = append(roots, Root{Revision: r.revision, Epoch: inSchemaBundle, Journal: int64(len(file)), Digest: digest})
	}
	return states, roots, append(file, make([]byte, schemaJournalSize-len(file))...)
}

// goldenSchemaRecords are the trust records of the process that made both.
func goldenSchemaRecords(t testing.TB) []trustRecord {
	states, roots, _ := goldenSchemaJournal(t)
	records := goldenRecords(goldenSteps(t, goldenSchemaChanges()[:inSchemaBundle]))
	records = records[:len(records)-1] // not closed yet
	for i := range roots[1:] {
		intent := lastOf(records)
		intent.pending, intent.commits = roots[i+1], 1
		if r := lastOf(states[i+1].records); r.id != "" {
			intent.ids = []string{r.id}
		}
		records = append(records, intent, trustRecord{confirmed: roots[i+1], history: states[i+1].version().Digest})
	}
	last := lastOf(records)
	last.closed = true
	records = append(records, last)
	for i := range records {
		records[i].store, records[i].sequence, records[i].path = goldenID, uint64(i+1), goldenPath
	}
	return records
}

func TestGoldenSchema(t *testing.T) {
	states, roots, journal := goldenSchemaJournal(t)
	made := lastOf(goldenSteps(t, goldenSchemaChanges()[:inSchemaBundle]))
	b := goldenFile(t, "schema.bundle", made.raw)
	if !bytes.Equal(b, made.raw) {
		t.Errorf("the encoder makes another bundle:\n%x\nwant\n%x", made.raw, b)
	}
	got, h, err := decodeBundle(b, new(directory))
	if err != nil {
		t.Fatal(err)
	}
	if diff := sameState(made.state, got); diff != "" {
		t.Errorf("the decoder makes another state (-want +got):\n%s", diff)
	}
	if got.schema != 2 || got.program != goldenProgram || h.schema != 2 {
		t.Errorf("schema %d, in the header %d, program %q", got.schema, h.schema, got.program)
	}
	for i := range b {
		for bit := range 8 {
			if _, _, err := decodeBundle(flippedBit(b, i, bit), new(directory)); err == nil {
				t.Errorf("accepted with bit %d of byte %d flipped", bit, i)
			}
		}
		if _, _, err := decodeBundle(b[:i], new(directory)); err == nil {
			t.Errorf("accepted when cut to %d bytes", i)
		}
	}

	raw := goldenFile(t, "schema.journal", journal)
	if !bytes.Equal(raw, journal) {
		t.Errorf("the encoder makes another journal:\n%x\nwant\n%x", journal, raw)
	}
	w, err := walkJournal(raw, roots[0], got)
	if err != nil || w.bad != nil || len(w.steps) != 2 || w.stop != roots[2].Journal {
		t.Fatalf("%d commits up to %d: %v, %v", len(w.steps), w.stop, w.bad, err)
	}
	for i, want := range []struct {
		schema  uint32
		program string
	}{{2, goldenNewer}, {math.MaxInt32, goldenNewer}} {
		got.measure(wide)
		st := got.with(w.steps[:i+1])
		if diff := sameState(states[i+1], st); diff != "" || w.steps[i].root != roots[i+1] {
			t.Errorf("batch %d ends at %+v, want %+v; (-want +got):\n%s", i, w.steps[i].root, roots[i+1], diff)
		}
		if st.schema != want.schema || st.program != want.program {
			t.Errorf("after batch %d: schema %d, program %q", i, st.schema, st.program)
		}
		if raw := encodeBundle(st); int64(len(raw)) != counted(st) {
			t.Errorf("after batch %d: a bundle of %d bytes, counted %d", i, len(raw), counted(st))
		}
	}

	ring := makeRing(goldenSchemaRecords(t)...)
	trust := goldenFile(t, "schema.trust", ring)
	if !bytes.Equal(trust, ring) {
		t.Errorf("the encoder makes another trust file:\n%s\nwant\n%s", ring, trust)
	}
	newest, broken, err := decodeRing(trust)
	if err != nil || broken != nil || newest.confirmed != roots[2] || newest.history != states[2].version().Digest || !newest.closed {
		t.Errorf("%+v, broken %v, %v", newest, broken, err)
	}
}

func flippedBit(raw []byte, at, bit int) []byte {
	b := bytes.Clone(raw)
	b[at] ^= 1 << bit
	return b
}

// placeSchema puts the golden store of several programs in place.
func placeSchema(t *testing.T) (dir, trust string) {
	t.Helper()
	dir, trust = placeGolden(t, "schema.bundle", "schema.trust")
	putFile(t, filepath.Join(dir, schemaJournalName), goldenFile(t, "schema.journal", nil))
	return dir, trust
}

// What version 1 wrote opens, for whom it is, and reads back whole.
func TestGoldenSchemaOpens(t *testing.T) {
	states, roots, _ := goldenSchemaJournal(t)
	for _, tt := range []struct {
		name string
		o    Options
		from string
		err  error
	}{
		{"by nobody in particular", Options{}, "", nil},
		{"by the same", Options{Schema: math.MaxInt32, Program: goldenNewer}, "", nil},
		{"by another program", Options{Program: goldenProgram}, goldenNewer, nil},
		{"by an older one", Options{Schema: 2, Program: goldenProgram}, "", ErrSchema},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, trust := placeSchema(t)
			before := testkit.Snapshot(t, dir, trust)
			s, err := Open(t.Context(), dir, trust, &tt.o)
			if tt.err != nil {
				after := testkit.Snapshot(t, dir, trust)
				for _, lock := range []string{filepath.Join(dir, lockName), filepath.Join(trust, "session"+lockSuffix)} {
					delete(after, lock) // there was none
				}
				if diff := cmp.Diff(before, after); !errors.Is(err, tt.err) || diff != "" {
					t.Errorf("%v; files changed (-before +after):\n%s", err, diff)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if diff := sameState(states[2], s.state.Load()); diff != "" {
				t.Errorf("another state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(Recovery{Confirmed: roots[2], ProgramFrom: tt.from}, s.Recovery()); diff != "" {
				t.Errorf("another recovery (-want +got):\n%s", diff)
			}
			if err := s.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if r, err := s.Commit(t.Context(), Change{ID: "more"}); err != nil || r.Revision != 7 {
				t.Errorf("the next commit: %+v, %v", r, err)
			}
			if err := s.Checkpoint(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The way through the front door, by one program after the other, ends at the same
// bytes.
func TestGoldenSchemaByCommit(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	ticks := 0
	ctx := vfs.NewContext(t.Context(), fixedFS{vfs.OS(), &ticks})
	for i, c := range goldenSchemaChanges() {
		ticks = i
		o := &Options{Schema: int(c.schema), Program: c.program, CheckpointEvery: 1}
		if i >= inSchemaBundle {
			o.CheckpointEvery, o.Limits.Journal = 0, schemaJournalSize
		}
		asked := 0
		o.Migrate = func(context.Context, int, View) (Change, error) { asked++; return c, nil }
		s, err := Open(ctx, dir, trust, o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if migrates := c.schema != 0; migrates != (asked == 1) {
			t.Errorf("commit %d: Migrate is asked %d times", i+1, asked)
		} else if !migrates {
			if _, err := s.Commit(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		if i < inSchemaBundle {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		// What a process leaves that does not get to close it: Close would publish.
		to := filepath.Join(filepath.Dir(dir), o.Program+"-left")
		for _, from := range []*string{&dir, &trust} {
			d := filepath.Join(strings.ReplaceAll(to, `"`, ""), filepath.Base(*from))
			if err := os.CopyFS(d, os.DirFS(*from)); err != nil {
				t.Fatal(err)
			}
			*from = d
		}
	}
	for name, file := range map[string]string{"schema.bundle": bundleName, "schema.journal": schemaJournalName} {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if want := goldenFile(t, name, nil); !bytes.Equal(got, want) {
			t.Errorf("commits made another %s:\n%x\nwant\n%x", name, got, want)
		}
	}
}

// goldenSchemaAudit are the lines of the file schema.audit.
func goldenSchemaAudit(t testing.TB) []auditLine {
	_, roots, _ := goldenSchemaJournal(t)
	line := func(event string, confirmed Root, from, to string) auditLine {
		return auditLine{Time: goldenTime, Event: event, Store: goldenID.String(), Process: "pid 7 on \"ada\"", Confirmed: confirmed, From: from, To: to}
	}
	return []auditLine{
		line("program", roots[0], goldenProgram, goldenNewer),
		line("migrate", roots[2], "2", "2147483647"),
		line("migrate", roots[0], "0", "1"),
	}
}

func TestGoldenSchemaAudit(t *testing.T) {
	dir := t.TempDir()
	d, err := vfs.OS().OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, line := range goldenSchemaAudit(t) {
		if err := appendAudit(&directory{Dir: d, fsys: vfs.OS(), counts: new(counts)}, "audit", line); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "audit"))
	if err != nil {
		t.Fatal(err)
	}
	if want := goldenFile(t, "schema.audit", got); !bytes.Equal(got, want) {
		t.Errorf("audit lines\n%s\nwant\n%s", got, want)
	}
	var lines []auditLine
	for dec := json.NewDecoder(bytes.NewReader(got)); dec.More(); {
		var line auditLine
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if diff := cmp.Diff(goldenSchemaAudit(t), lines); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// What a state says of its schema and program is what its records say, and no more than
// a program may say. Each case has whole checksums, and a history of its own.
func TestSchemaDecodersRefuse(t *testing.T) {
	steps := goldenSteps(t, goldenSchemaChanges()[:inSchemaBundle])
	whole := lastOf(steps).state
	edit := func(change func(*state)) []byte {
		s := *whole
		s.records = slices.Clone(s.records)
		change(&s)
		return encodeBundle(&s)
	}
	// forged replaces a record, and makes the history anew from there.
	forged := func(i int, change func(*record)) []byte {
		return edit(func(s *state) {
			before := s.base.history
			for j, r := range s.records {
				c := *r
				if j == i {
					change(&c)
				}
				c.seal(before)
				s.records[j], before = &c, c.history
			}
			s.schema, s.program = 0, ""
			for _, r := range s.records {
				if r.schema != 0 {
					s.schema = r.schema
				}
				if r.program != "" {
					s.program = r.program
				}
			}
		})
	}
	// later is a history whose beginning is not there any more: what its records do not
	// say was said before.
	later := func(schema uint32, program string, r record) []byte {
		s := &state{id: goldenID, base: origin{revision: 7, nextSeq: 20, history: Digest{5}}, schema: schema, program: program}
		s.sealed = []*segment{newSegment(s.id, beginning(s.id), row{end: s.base, size: 1000, footer: uint32(footerSize(944))}, new(directory))}
		r.revision, r.firstSeq, r.entriesDigest = 8, 20, digestEntries(nil)
		r.seal(s.base.history)
		s.records, s.epoch = []*record{&r}, 1
		return encodeBundle(s)
	}
	header := func(at int, put ...byte) []byte { return mendChecksums(patched(lastOf(steps).raw, at, put...)) }
	long := strings.Repeat("p", 300)

	for name, b := range map[string][]byte{
		"as it is":                        lastOf(steps).raw,
		"the highest schema":              forged(3, func(r *record) { r.schema = math.MaxInt32 }),
		"a lower one later":               forged(3, func(r *record) { r.schema = 1 }),
		"the longest program":             forged(3, func(r *record) { r.program = strings.Repeat("p", maxName) }),
		"nothing said at all":             encodeBundle(steps[0].state),
		"said before":                     later(3, "p", record{}),
		"one of the two said before":      later(3, "q", record{program: "q"}),
		"the other of the two said again": later(4, "p", record{schema: 4}),
	} {
		s, h, err := decodeBundle(b, new(directory))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if h.schema != s.schema || bundleSize(s) != int64(len(b)) || !bytes.Equal(encodeBundle(s), b) {
			t.Errorf("%s: schema %d, in the header %d, size %d of %d", name, s.schema, h.schema, bundleSize(s), len(b))
		}
	}
	for name, b := range map[string][]byte{
		"another schema in the header":      header(132, 1),
		"none in the header":                header(132, 0),
		"a schema that is too high":         header(132, 2, 0, 0, 0x80),
		"the rest of the header":            header(136, 1),
		"another program":                   edit(func(s *state) { s.program = "agent 1.0" }),
		"no program":                        edit(func(s *state) { s.program = "" }),
		"a program longer by one":           edit(func(s *state) { s.program += "x" }),
		"what the first records say":        edit(func(s *state) { s.schema, s.program = 1, "agent 1.0" }),
		"a schema that is too high in all":  forged(3, func(r *record) { r.schema = math.MaxInt32 + 1 }),
		"the highest number there is":       forged(3, func(r *record) { r.schema = math.MaxUint32 }),
		"one too high, and another later":   forged(1, func(r *record) { r.schema = 1 << 31 }),
		"a program of 256 bytes":            forged(3, func(r *record) { r.program = strings.Repeat("p", maxName+1) }),
		"a program of 300 bytes":            forged(3, func(r *record) { r.program = long }),
		"a long one, and another later":     forged(1, func(r *record) { r.program = long }),
		"a program with a line feed":        forged(3, func(r *record) { r.program = "a\nb" }),
		"a program that is not UTF-8":       forged(3, func(r *record) { r.program = "\xff" }),
		"a long one that nobody says":       edit(func(s *state) { s.program = long }),
		"one with a NUL that nobody says":   edit(func(s *state) { s.program = "a\x00" }),
		"said otherwise by the last":        later(3, "p", record{schema: 4}),
		"another program said by the last":  later(3, "p", record{program: "q"}),
		"too high, and said before":         later(1<<31, "p", record{}),
		"too long, and said before":         later(3, long, record{}),
		"said by no record of a whole one":  edit(func(s *state) { s.records = s.records[:1]; s.parts = nil }),
		"a program that reaches to the end": header(256, 0xff, 0xff),
	} {
		if s, _, err := decodeBundle(b, new(directory)); err == nil {
			t.Errorf("%s: accepted at %s", name, s.version())
		} else if errors.Is(err, ErrVersion) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: of the wrong class: %v", name, err)
		}
	}

	// Frames are held to the same.
	states, roots, journal := goldenSchemaJournal(t)
	at := roots[1].Journal + frameHead // the record of the last batch
	for name, put := range map[string][]byte{"a schema that is too high": {0, 0, 0, 0x80}, "the highest number there is": {0xff, 0xff, 0xff, 0xff}} {
		b := mendJournal(patched(journal, int(at)+64, put...), roots[0], states[0])
		if w, err := walkJournal(b, roots[0], states[0]); err != nil || w.bad == nil || len(w.steps) != 1 {
			t.Errorf("%s: %d commits, %v, %v", name, len(w.steps), w.bad, err)
		}
	}
	if w, err := walkJournal(mendJournal(bytes.Clone(journal), roots[0], states[0]), roots[0], states[0]); err != nil || w.bad != nil || len(w.steps) != 2 {
		t.Errorf("mended, it is not the same: %v, %v", w.bad, err)
	}
}

// The header of a journal says no schema: it goes with a bundle, which does.
func TestJournalHeaderSaysNoSchema(t *testing.T) {
	states, roots, journal := goldenSchemaJournal(t)
	for at := 132; at < headerSize-4; at += 4 {
		b := patched(journal, at, 2)
		copy(b, mendChecksums(bytes.Clone(b[:headerSize+4]))[:headerSize])
		if w, err := walkJournal(b, roots[0], states[0]); err != nil || w.bad == nil || len(w.steps) > 0 || w.head != nil {
			t.Errorf("accepted with something else than zero at %d: %d commits, %v", at, len(w.steps), err)
		}
	}
}
