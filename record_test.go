package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// The history digest by its definition, without the code that makes it: what a
// version carries is SHA-256(digest before ‖ head of the commit record), from a
// first digest that holds the store's id.
func TestHistoryDigestByHand(t *testing.T) {
	id := storeID{0xaa, 15: 0xbb}
	first := sha256.Sum256(append([]byte("pawl history 1\n"), id[:]...))
	if got := genesis(id); got != first {
		t.Errorf("the first history digest is %s, want %x", got, first)
	}

	part, entry := []byte("bytes of the part"), []byte("an entry")
	le := binary.LittleEndian
	partSum := sha256.Sum256(part)
	entrySum := sha256.Sum256(append(le.AppendUint64(nil, uint64(len(entry))), entry...))
	var head []byte
	head = le.AppendUint32(head, 0)                        // length of the head
	head = le.AppendUint64(head, 7)                        // revision
	head = le.AppendUint64(head, 1234567890)               // time
	head = le.AppendUint64(head, 40)                       // seq of the first entry
	head = le.AppendUint32(head, 1)                        // number of entries
	head = append(head, entrySum[:]...)                    // digest of the entries
	head = le.AppendUint32(head, 9)                        // schema
	head = append(head, "\x04\x00prog"...)                 // program
	head = append(head, "\x02\x00id"...)                   // id
	head = append(head, "\x01\x00\x00\x00\x04\x00part"...) // one part
	head = le.AppendUint64(head, uint64(len(part)))
	head = append(head, partSum[:]...)
	head = append(head, "\x01\x00\x00\x00\x03\x00old"...) // one part deleted
	le.PutUint32(head, uint32(len(head)))
	before := Digest{1, 2, 3}
	want := Digest(sha256.Sum256(append(before[:], head...)))

	r := record{revision: 7, time: 1234567890, firstSeq: 40, schema: 9, program: "prog", id: "id", put: []partRef{{"part", uint64(len(part)), partSum}},
		deleted: []string{"old"}, entries: [][]byte{entry}, entriesDigest: digestEntries([][]byte{entry})}
	r.seal(before)
	if r.history != want {
		t.Errorf("history digest %s, want %s", r.history, want)
	}
	if raw := append(head, "\x08\x00\x00\x00an entry"...); !bytes.Equal(r.raw, raw) {
		t.Errorf("record\n%x\nwant\n%x", r.raw, raw)
	}
	if r.nextSeq() != 41 {
		t.Errorf("next seq %d", r.nextSeq())
	}
}

// Where entries begin and end is part of what their digest says.
func TestEntriesDigestSeparates(t *testing.T) {
	seen := map[Digest][][]byte{}
	for _, entries := range [][][]byte{
		nil, {{}}, {{}, {}}, {[]byte("ab")}, {[]byte("a"), []byte("b")}, {[]byte("ab"), {}}, {{}, []byte("ab")},
		{[]byte("\x01\x00\x00\x00\x00\x00\x00\x00a")}, {[]byte("b"), []byte("a")},
	} {
		d := digestEntries(entries)
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q have the same digest", entries, other)
		}
		seen[d] = entries
	}
}

// Every field of a record is part of the history that it makes.
func TestHistoryDigestCoversEveryField(t *testing.T) {
	base := func() record {
		return record{revision: 3, time: 5, firstSeq: 9, id: "x", put: []partRef{{"p", 1, Digest{1}}}, deleted: []string{"q"},
			entriesDigest: digestEntries(nil)}
	}
	seal := func(r record, before Digest) Digest { r.seal(before); return r.history }
	seen := map[Digest]string{seal(base(), Digest{}): "the original"}
	for name, change := range map[string]func(*record){
		"revision":      func(r *record) { r.revision++ },
		"time":          func(r *record) { r.time++ },
		"seq":           func(r *record) { r.firstSeq++ },
		"schema":        func(r *record) { r.schema++ },
		"program":       func(r *record) { r.program = "p" },
		"id":            func(r *record) { r.id = "y" },
		"no id":         func(r *record) { r.id = "" },
		"part name":     func(r *record) { r.put[0].name = "pp" },
		"part size":     func(r *record) { r.put[0].size++ },
		"part digest":   func(r *record) { r.put[0].digest[31]++ },
		"no part":       func(r *record) { r.put = nil },
		"deleted":       func(r *record) { r.deleted[0] = "r" },
		"none deleted":  func(r *record) { r.deleted = nil },
		"entries":       func(r *record) { r.entries = [][]byte{{}}; r.entriesDigest = digestEntries(r.entries) },
		"digest of one": func(r *record) { r.entriesDigest[0]++ },
	} {
		r := base()
		change(&r)
		d := seal(r, Digest{})
		if other, ok := seen[d]; ok {
			t.Errorf("%s: the same history as %s", name, other)
		}
		seen[d] = name
	}
	if _, ok := seen[seal(base(), Digest{1})]; ok {
		t.Error("what was before is not part of the history")
	}
}

// mustRefuse decodes a record that is not one.
func mustRefuse(t *testing.T, raw []byte) {
	t.Helper()
	if r, err := decodeRecord(raw, Digest{}); err == nil {
		t.Errorf("accepted as %+v", r)
	} else if errors.Is(err, ErrInvalid) {
		t.Errorf("the file's fault is taken for the caller's: %v", err)
	}
}

// A record proves something only when all of it is there and fits together (R21).
func TestRecordRefuses(t *testing.T) {
	for name, change := range map[string]func(*record){
		"parts out of order":       func(r *record) { slices.Reverse(r.put) },
		"a part twice":             func(r *record) { r.put[1] = r.put[0] },
		"a part name with dots":    func(r *record) { r.put[0].name = "../a" },
		"an empty part name":       func(r *record) { r.put[0].name = "" },
		"a part name that is long": func(r *record) { r.put[1].name = strings.Repeat("x", maxName+1) },
		"an id with a line feed":   func(r *record) { r.id = "a\nb" },
		"an id that is not UTF-8":  func(r *record) { r.id = "\xff" },
		"an id that is long":       func(r *record) { r.id = strings.Repeat("x", maxName+1) },
		"a schema that is high":    func(r *record) { r.schema = 1 << 31 },
		"a program with a tab":     func(r *record) { r.program = "\t" },
		"a program not in UTF-8":   func(r *record) { r.program = "a\xffb" },
		"a program that is long":   func(r *record) { r.program = strings.Repeat("x", 300) },
		"deletions out of order":   func(r *record) { slices.Reverse(r.deleted) },
		"a deletion twice":         func(r *record) { r.deleted[1] = r.deleted[0] },
		"a bad deleted name":       func(r *record) { r.deleted[0] = "/" },
		"put and deleted":          func(r *record) { r.deleted[0] = r.put[0].name },
		"another entries digest":   func(r *record) { r.entriesDigest[0]++ },
		"an entry more":            func(r *record) { r.entries = append(r.entries, nil) },
		"an entry less":            func(r *record) { r.entries = r.entries[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			entries := [][]byte{[]byte("one"), []byte("two")}
			r := record{revision: 1, firstSeq: 1, id: "x", put: []partRef{{name: "a"}, {name: "b"}}, deleted: []string{"c", "d"},
				entries: entries, entriesDigest: digestEntries(entries)}
			r.seal(Digest{})
			if _, err := decodeRecord(r.raw, Digest{}); err != nil {
				t.Fatal(err)
			}
			change(&r)
			r.seal(Digest{})
			mustRefuse(t, r.raw)
		})
	}
	raw := goldenFile(t, "record", nil)
	for n := range raw {
		mustRefuse(t, raw[:n])
	}
	mustRefuse(t, append(bytes.Clone(raw), 0))
	for i := range raw {
		for bit := range 8 {
			b := bytes.Clone(raw)
			b[i] ^= 1 << bit
			// A flipped bit may make another record, but never the same history.
			if r, err := decodeRecord(b, Digest{}); err == nil {
				if same, _ := decodeRecord(raw, Digest{}); same.history == r.history {
					t.Errorf("bit %d of byte %d is not part of the history", bit, i)
				}
			}
		}
	}
}

// A bundle proves something only when its parts, its records and its header say
// the same (R21). Each case has whole checksums: only what it says is wrong.
func TestBundleRefuses(t *testing.T) {
	steps := goldenSteps(t, goldenChanges())
	edit := func(change func(*state)) []byte {
		s := *lastOf(steps).state
		s.records, s.parts = slices.Clone(s.records), map[string]part{}
		for name, p := range lastOf(steps).state.parts {
			s.parts[name] = p
		}
		change(&s)
		return encodeBundle(&s)
	}
	// resealed replaces a record and makes the history anew from there, as a forger
	// would.
	resealed := func(s *state, i int, change func(*record)) {
		before := s.base.history
		for j, r := range s.records {
			c := *r
			if j == i {
				change(&c)
			}
			c.seal(before)
			s.records[j], before = &c, c.history
		}
	}
	raw := lastOf(steps).raw
	// later is a history whose beginning is not there any more.
	later := func(change func(*state)) []byte {
		s := &state{id: goldenID, base: origin{revision: 7, nextSeq: 20, history: Digest{5}}, parts: map[string]part{
			"kept": {ref: partRef{"kept", 0, sha256.Sum256(nil)}},
		}}
		s.sealed = []*segment{newSegment(s.id, beginning(s.id), row{end: s.base, size: 1000, footer: uint32(footerSize(944))}, new(directory))}
		r := record{revision: 8, firstSeq: 20, deleted: []string{"gone"}, entriesDigest: digestEntries(nil)}
		r.seal(s.base.history)
		s = after(s, &r, nil, Digest{})
		change(s)
		return encodeBundle(s)
	}
	nothing := sha256.Sum256(nil)
	twin := edit(func(s *state) {
		s.parts["a/c"] = part{data: []byte("a"), ref: partRef{"a/c", 1, s.parts["a/b"].ref.digest}}
	})
	twin = mendChecksums(bytes.Replace(twin, []byte("\x03\x00a/c"), []byte("\x03\x00a/b"), 1))
	patch := func(at int, b ...byte) []byte {
		p := bytes.Clone(raw)
		copy(p[at:], b)
		return mendChecksums(p)
	}
	for _, b := range [][]byte{edit(func(*state) {}), later(func(*state) {})} {
		if _, _, err := decodeBundle(b, new(directory)); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range map[string][]byte{
		"another magic":            patch(0, 'x'),
		"a reserved word":          patch(24, 1),
		"a reserved byte":          patch(251, 1),
		"another length":           patch(28, 1),
		"another store":            patch(36, 1),
		"a revision too high":      patch(60, 6),
		"another history":          patch(68, 1),
		"a program in the way":     patch(256, 1),
		"a huge number of parts":   patch(258, 0xff, 0xff, 0xff, 0xff),
		"a part name out of range": patch(262, 0xff, 0xff),
		"a part too many":          edit(func(s *state) { s.parts["x"] = part{ref: partRef{"x", 0, nothing}} }),
		"a part too few":           edit(func(s *state) { delete(s.parts, "empty") }),
		"a part twice":             twin,
		"a part of another kind":   patch(262+2+len("a/b"), 1),
		"a part that is gone":      later(func(s *state) { s.parts["gone"] = part{ref: partRef{"gone", 0, nothing}} }),
		"a part that was deleted": edit(func(s *state) {
			s.parts["z"] = part{data: []byte("z"), ref: partRef{"z", 1, sha256.Sum256([]byte("z"))}}
		}),
		"other bytes in a part": edit(func(s *state) { s.parts["a/b"] = part{data: []byte("b"), ref: s.parts["a/b"].ref} }),
		"another part's bytes": edit(func(s *state) {
			s.parts["a/b"] = part{data: []byte("b"), ref: partRef{"a/b", 1, sha256.Sum256([]byte("b"))}}
		}),
		"a bad part name": edit(func(s *state) {
			s.parts[".."] = part{ref: partRef{"..", 0, sha256.Sum256(nil)}}
		}),
		"a record too few":       edit(func(s *state) { s.records = s.records[1:] }),
		"a record in the middle": edit(func(s *state) { s.records = slices.Delete(s.records, 2, 3) }),
		"a record twice":         edit(func(s *state) { s.records = slices.Insert(s.records, 2, s.records[2]) }),
		"records swapped":        edit(func(s *state) { s.records[1], s.records[2] = s.records[2], s.records[1] }),
		"a revision left out":    edit(func(s *state) { resealed(s, 3, func(r *record) { r.revision++ }) }),
		"a revision used again":  edit(func(s *state) { resealed(s, 3, func(r *record) { r.revision-- }) }),
		"a seq left out":         edit(func(s *state) { resealed(s, 2, func(r *record) { r.firstSeq++ }) }),
		"a seq used again":       edit(func(s *state) { resealed(s, 2, func(r *record) { r.firstSeq-- }) }),
		"an id used again":       edit(func(s *state) { resealed(s, 1, func(r *record) { r.id = "begin" }) }),
		"history of another id":  edit(func(s *state) { s.base.history = genesis(storeID{9}); resealed(s, -1, nil) }),
		"a history from seq 2": edit(func(s *state) {
			s.base.nextSeq = 2
			for i, r := range s.records {
				c := *r
				c.firstSeq++
				s.records[i] = &c
			}
			resealed(s, -1, nil)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			s, _, err := decodeBundle(b, new(directory))
			if err == nil {
				t.Errorf("accepted at %s", s.version())
			} else if errors.Is(err, ErrVersion) || errors.Is(err, ErrInvalid) {
				t.Errorf("of the wrong class: %v", err)
			}
		})
	}
}

// A newer version's bundle is told apart from damage; flags that need not be known
// to read and write are no obstacle.
func TestBundleOfANewerVersion(t *testing.T) {
	for _, tt := range []struct {
		name  string
		at    int
		b     byte
		newer bool
	}{
		{"version 2", 8, 2, true},
		{"version 0", 8, 0, true},
		{"a compatible flag", 12, 4, false},
		{"a read-only-compatible flag", 16, 1, true},
		{"an incompatible flag", 23, 0x80, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bytes.Clone(goldenFile(t, "full.bundle", nil))
			b[tt.at] = tt.b
			if tt.newer {
				clear(b[28 : headerSize-4]) // whatever comes after is not read
			}
			_, _, err := decodeBundle(mendChecksums(b), new(directory))
			if errors.Is(err, ErrVersion) != tt.newer || err != nil != tt.newer {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A length that a file claims is held against what is there before anything is
// allocated for it (contract 11).
func TestDecodersAllocateWithinTheInput(t *testing.T) {
	raw := goldenFile(t, "full.bundle", nil)
	record := goldenFile(t, "record", nil)
	huge := []byte{0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f}
	for at := range raw {
		b := bytes.Clone(raw)
		copy(b[at:], huge)
		modest(t, len(b), func() { decodeBundle(mendChecksums(b), new(directory)) })
	}
	for at := range record {
		b := bytes.Clone(record)
		copy(b[at:], huge)
		modest(t, len(b), func() { decodeRecord(b, Digest{}) })
	}
	// The most that can be asked for: items of no bytes.
	entries := make([][]byte, 100_000)
	r := recordOf(entries)
	modest(t, len(r.raw), func() {
		if got, err := decodeRecord(r.raw, Digest{}); err != nil || len(got.entries) != len(entries) {
			t.Errorf("%d entries, %v", len(got.entries), err)
		}
	})
}

func recordOf(entries [][]byte) *record {
	r := &record{revision: 1, firstSeq: 1, entries: entries, entriesDigest: digestEntries(entries)}
	r.seal(Digest{})
	return r
}

// The records behind a view are never written to again, though the next state
// shares their array: a state that was given up leaves no trace in the one that is
// made after it.
func TestStatesShareWithoutInterfering(t *testing.T) {
	steps := goldenSteps(t, goldenChanges())
	base := steps[1].state
	grow := func(id string) *state {
		r := record{revision: base.version().Revision + 1, firstSeq: base.nextSeq(), id: id,
			put: []partRef{{id, 1, sha256.Sum256([]byte("x"))}}, deleted: []string{"empty"}, entriesDigest: digestEntries(nil)}
		r.seal(base.version().Digest)
		return after(base, &r, [][]byte{[]byte("x")}, Digest{7})
	}
	before := encodeBundle(base)
	grow("given-up")
	kept := grow("kept")
	got, _, err := decodeBundle(encodeBundle(kept), new(directory))
	if err != nil {
		t.Fatal(err)
	}
	if got.records[2].id != "kept" || !slices.Equal(got.partNames(), []string{"kept", "logs/größe.txt", "state.json"}) {
		t.Errorf("last id %q, parts %q", got.records[2].id, got.partNames())
	}
	if !bytes.Equal(before, encodeBundle(base)) {
		t.Error("the state before was changed")
	}
	if kept.epoch != base.epoch+1 || kept.replaced != (Digest{7}) {
		t.Errorf("epoch %d after %d, replaced %s", kept.epoch, base.epoch, kept.replaced)
	}
	for r := range Revision(5) {
		at, ok, _ := base.historyAt(r)
		if ok != (r <= 2) || ok && r > 0 && at != base.records[r-1].history || r == 0 && at != genesis(base.id) {
			t.Errorf("history at %d: %s, %v", r, at, ok)
		}
	}
}
