package pawl

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The golden files of a store that has files besides its bundle:
//
//	sealed.bundle      names three segments and a part in a file, and holds one commit
//	sealed.trust       confirms it, closed
//	segment.forgotten  revisions 1 and 2: only the ids are left
//	segment.dropped    revisions 3 and 4: the entries of the first were dropped
//	segment.whole      revisions 5 and 6, in two chunks
//	part               the part

// goldenSealedChanges are the commits of that history, one second apart.
func goldenSealedChanges() []Change {
	large := make([]byte, 300)
	for i := range large {
		large[i] = byte(i * 7)
	}
	two := make([]byte, 20_000) // more than a chunk
	for i := range two {
		two[i] = byte(i / 100)
	}
	return []Change{
		{ID: "begin", Entries: [][]byte{[]byte("hello"), {}}, Put: map[string][]byte{"large": large, "state.json": []byte(`{"cursor":0}`)}},
		{ID: "only-an-id"},
		{Entries: [][]byte{[]byte("a\nb\x00c")}, Put: map[string][]byte{"state.json": []byte(`{"cursor":1}`)}, Delete: []string{"never/was/there"}},
		{ID: "kept größe", Entries: [][]byte{[]byte("kept"), []byte("with it")}},
		{Entries: [][]byte{two}},
		{ID: "no-entries", Put: map[string][]byte{"empty": {}}},
		{ID: goldenLastID, Entries: [][]byte{[]byte("last")}},
	}
}

// ---- the format, by what docs/format.md says and by nothing of pawl's own code ----

// byHand is a file as it is written by hand.
type byHand struct{ b []byte }

func (h *byHand) n16(v int)       { h.b = binary.LittleEndian.AppendUint16(h.b, uint16(v)) }
func (h *byHand) n32(v uint32)    { h.b = binary.LittleEndian.AppendUint32(h.b, v) }
func (h *byHand) n64(v int)       { h.big(uint64(v)) }
func (h *byHand) big(v uint64)    { h.b = binary.LittleEndian.AppendUint64(h.b, v) }
func (h *byHand) put(b ...byte)   { h.b = append(h.b, b...) }
func (h *byHand) text(s string)   { h.n16(len(s)); h.b = append(h.b, s...) }
func (h *byHand) hash(b [32]byte) { h.b = append(h.b, b[:]...) }
func (h *byHand) crc()            { h.n32(crc32.Checksum(h.b, crc32.MakeTable(crc32.Castagnoli))) }

// handHeader is the header of a bundle or a segment.
func handHeader(magic string, incompatible uint32, length, epoch, revision int, history, parent [32]byte) byHand {
	h := byHand{[]byte(magic)}
	for _, v := range []uint32{1, 0, 0, incompatible, 0} {
		h.n32(v)
	}
	h.n64(length)
	h.put(goldenID[:]...)
	h.n64(epoch)
	h.n64(revision)
	h.hash(history)
	h.hash(parent)
	h.put(make([]byte, 252-132)...)
	h.crc()
	return h
}

// handCommit is a commit as a segment and a bundle hold it.
type handCommit struct {
	id            string
	head, entries []byte
	first, count  int
	before, after [32]byte // history digests
}

// handCommits are the commits of a history.
func handCommits(changes []Change) (commits []handCommit) {
	history := sha256.Sum256(append([]byte("pawl history 1\n"), goldenID[:]...))
	seq := 1
	for i, c := range changes {
		m := handCommit{id: c.ID, first: seq, count: len(c.Entries), before: history}
		var entries, pinned, rest byHand
		for _, e := range c.Entries {
			entries.n32(uint32(len(e)))
			entries.put(e...)
			pinned.n64(len(e))
			pinned.put(e...)
		}
		rest.n64(i + 1)
		rest.big(uint64(goldenTime.Add(time.Duration(i) * time.Second).UnixNano()))
		rest.n64(seq)
		rest.n32(uint32(len(c.Entries)))
		rest.hash(sha256.Sum256(pinned.b))
		rest.n32(0)
		rest.text("")
		rest.text(c.ID)
		rest.n32(uint32(len(c.Put)))
		for _, name := range slices.Sorted(maps.Keys(c.Put)) {
			rest.text(name)
			rest.n64(len(c.Put[name]))
			rest.hash(sha256.Sum256(c.Put[name]))
		}
		rest.n32(uint32(len(c.Delete)))
		for _, name := range slices.Sorted(slices.Values(c.Delete)) {
			rest.text(name)
		}
		var head byHand
		head.n32(uint32(4 + len(rest.b)))
		head.put(rest.b...)
		m.head, m.entries = head.b, entries.b
		history = sha256.Sum256(append(history[:], m.head...))
		m.after = history
		seq += len(c.Entries)
		commits = append(commits, m)
	}
	return commits
}

// handSegment makes a segment of commits, whose entries are dropped where drop says so,
// or of which only the ids are left, and the row that names it.
func handSegment(first int, commits []handCommit, forgotten bool, drop ...int) (file, row []byte, name string) {
	h := handHeader("pawlsegm", 0, 0, 0, first-1, commits[0].before, [32]byte{})
	var table, footer byHand
	type named struct {
		hash uint64
		nth  int
	}
	var ids []named
	flags, entries, rows := uint32(0), 0, 0
	for i, c := range commits {
		if c.id != "" {
			sum := sha256.Sum256([]byte(c.id))
			ids = append(ids, named{binary.BigEndian.Uint64(sum[:8]), i})
		}
		if forgotten {
			flags = 1
			continue
		}
		record := append(slices.Clone(c.head), c.entries...)
		if slices.Contains(drop, i) {
			record, flags = c.head, 2
		} else {
			entries += c.count
		}
		table.n64(len(h.b))
		table.n64(c.first)
		table.hash(c.after)
		rows++
		h.n32(uint32(len(record)))
		h.put(record...)
	}
	footer.n64(len(h.b))
	footer.n64(rows)
	footer.n64(len(ids))
	h.put(table.b...)

	slices.SortFunc(ids, func(a, b named) int { return cmp.Compare(a.hash, b.hash) })
	filter := make([]byte, 2*len(ids))
	m := big.NewInt(int64(16 * len(ids)))
	two64 := new(big.Int).Lsh(big.NewInt(1), 64)
	for _, id := range ids {
		h.big(id.hash)
		h.n32(uint32(id.nth))
		for i := range int64(8) {
			low, high := int64(id.hash&0xffffffff), int64(id.hash>>32|1)
			n := new(big.Int).Add(big.NewInt(low), new(big.Int).Mul(big.NewInt(i), big.NewInt(high)))
			n.Mul(n, new(big.Int).SetUint64(0x9e3779b97f4a7c15)).Mod(n, two64)
			n.Mul(n, m).Div(n, two64)
			bit := n.Int64()
			filter[bit/8] |= 1 << (bit % 8)
		}
	}
	h.put(filter...)
	for rest := h.b; len(rest) > 0; {
		n := min(16384, len(rest))
		footer.hash(sha256.Sum256(rest[:n]))
		rest = rest[n:]
	}
	h.put(footer.b...)

	last := commits[len(commits)-1]
	sum := sha256.Sum256(footer.b)
	var r byHand
	r.n64(first - 1 + len(commits))
	r.n64(last.first + last.count)
	r.hash(last.after)
	r.n64(len(h.b))
	r.n32(uint32(len(footer.b)))
	r.n32(flags)
	r.n64(entries)
	r.hash(sum)
	return h.b, r.b, fmt.Sprintf("seg-%012d-%x", first, sum[:8])
}

// handSealed makes the golden store by hand: its bundle, the files that it names by their
// paths, and the names that the files have among the golden ones.
func handSealed() (bundle []byte, files map[string][]byte, golden map[string]string) {
	changes := goldenSealedChanges()
	commits := handCommits(changes)
	files, golden = map[string][]byte{}, map[string]string{}
	var rows []byte
	for _, s := range []struct {
		golden      string
		first, next int
		forgotten   bool
		drop        []int
	}{
		{"segment.forgotten", 1, 3, true, nil},
		{"segment.dropped", 3, 5, false, []int{0}},
		{"segment.whole", 5, 7, false, nil},
	} {
		b, row, name := handSegment(s.first, commits[s.first-1:s.next-1], s.forgotten, s.drop...)
		files["segments/"+name], golden[s.golden] = b, "segments/"+name
		rows = append(rows, row...)
	}
	large := changes[0].Put["large"]
	path := fmt.Sprintf("parts/%x", sha256.Sum256(large))
	files[path], golden["part"] = large, path

	var body byHand
	body.text("")
	body.n32(3)
	for _, p := range []struct {
		name string
		kind byte
		data []byte
	}{{"empty", 0, nil}, {"large", 1, large}, {"state.json", 0, []byte(`{"cursor":1}`)}} {
		body.text(p.name)
		body.put(p.kind)
		body.n64(len(p.data))
		body.hash(sha256.Sum256(p.data))
		if p.kind == 0 {
			body.put(p.data...)
		}
	}
	body.n32(3)
	body.put(rows...)
	last := commits[6]
	body.n64(6)
	body.n64(last.first)
	body.hash(last.before)
	body.n32(1)
	body.n32(uint32(len(last.head) + len(last.entries)))
	body.put(last.head...)
	body.put(last.entries...)

	h := handHeader("pawlbndl", 1, 256+len(body.b)+4, 5, 7, last.after, goldenSealedParent)
	h.put(body.b...)
	h.crc()
	return h.b, files, golden
}

// goldenSealedParent is the disk digest that sealed.bundle replaced. It is not about what
// the bundle holds.
var goldenSealedParent = sha256.Sum256([]byte("the bundle before"))

// goldenSealedRecord is the one record of sealed.trust.
func goldenSealedRecord(bundle []byte) trustRecord {
	last := handCommits(goldenSealedChanges())[6]
	return trustRecord{store: goldenID, sequence: 14, path: goldenPath, closed: true, history: last.after,
		confirmed: Root{Revision: 7, Epoch: 5, Digest: sha256.Sum256(bundle)}}
}

// ---- what pawl makes of it ------------------------------------------------------

// TestGoldenSealed: what is written by the documentation is the golden file, and what pawl
// reads and writes again is too.
func TestGoldenSealed(t *testing.T) {
	bundle, files, golden := handSealed()
	if b := goldenFile(t, "sealed.bundle", bundle); !bytes.Equal(b, bundle) {
		t.Errorf("the bundle by its documentation is\n%x\nand the golden one\n%x", bundle, b)
	}
	for name, path := range golden {
		if b := goldenFile(t, name, files[path]); !bytes.Equal(b, files[path]) {
			t.Errorf("%s by its documentation is\n%x\nand the golden one\n%x", name, files[path], b)
		}
	}
	ring := makeRing(goldenSealedRecord(bundle))
	if b := goldenFile(t, "sealed.trust", ring); !bytes.Equal(b, ring) {
		t.Errorf("the encoder makes another trust file:\n%s\nwant\n%s", ring, b)
	}

	s, h, err := decodeBundle(bundle, emptyDirectory())
	if err != nil {
		t.Fatal(err)
	}
	if again := encodeBundle(s); !bytes.Equal(again, bundle) || bundleSize(s) != int64(len(bundle)) {
		t.Errorf("the encoder makes other bytes, and counts %d:\n%x\nwant\n%x", bundleSize(s), again, bundle)
	}
	if h.incompatible != flagFiles || h.epoch != 5 || h.revision != 7 || len(s.sealed) != 3 || len(s.records) != 1 {
		t.Errorf("header %+v, %d segments, %d records", h, len(s.sealed), len(s.records))
	}
	for i, name := range []string{"segment.forgotten", "segment.dropped", "segment.whole"} {
		g := s.sealed[i]
		b := goldenFile(t, name, nil)
		if "segments/"+g.file.name != golden[name] {
			t.Errorf("%s is named %s, want %s", name, g.file.name, golden[name])
		}
		g.file.f = &memFile{b: b}
		if err := g.check(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// Written again of its records, it is the same.
		f := &memFile{}
		w := newSegmentWriter(goldenID, g.from, f)
		for rev := g.from.revision + 1; rev <= g.end.revision; rev++ {
			var r *record
			k := keptID
			if g.forgotten() {
				c := handCommits(goldenSealedChanges())[rev-1]
				r, err = parseRecord(append(slices.Clone(c.head), c.entries...))
				r.history = c.after
			} else {
				var e *Error
				if r, e = g.record(rev); e != nil {
					t.Fatal(e)
				}
				k = keptWhole
			}
			if err = errors.Join(err, w.add(r, k)); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := w.finish(); err != nil || r != g.row || !bytes.Equal(f.b, b) {
			t.Errorf("%s: the writer makes other bytes: %v\n%x\nwant\n%x", name, err, f.b, b)
		}
	}
	for i := range bundle {
		if _, _, err := decodeBundle(bundle[:i], emptyDirectory()); err == nil {
			t.Errorf("accepted when cut to %d bytes", i)
		}
		for bit := range 8 {
			if testing.Short() && bit != i%8 {
				continue
			}
			if _, _, err := decodeBundle(flippedBit(bundle, i, bit), emptyDirectory()); err == nil {
				t.Errorf("accepted with bit %d of byte %d flipped", bit, i)
			}
		}
	}
}

// A bit of a segment that is not as it was written is found by who reads all of it, and by
// who reads that piece; what is returned is what was written.
func TestGoldenSegmentBitFlips(t *testing.T) {
	bundle, files, golden := handSealed()
	s, _, err := decodeBundle(bundle, emptyDirectory())
	if err != nil {
		t.Fatal(err)
	}
	inSegment := map[string]string{"begin": "segment.forgotten", "kept größe": "segment.dropped", "no-entries": "segment.whole"}
	for i, name := range []string{"segment.forgotten", "segment.dropped", "segment.whole"} {
		whole, g := files[golden[name]], s.sealed[i]
		want := map[Revision][]byte{}
		for rev := g.from.revision + 1; rev <= g.end.revision && !g.forgotten(); rev++ {
			r, e := segmentOver(whole, g.from, g.row).record(rev)
			if e != nil {
				t.Fatal(e)
			}
			want[rev] = bytes.Clone(r.raw)
		}
		step := 1
		if len(whole) > 4<<10 {
			step = 41 // each costs the digests of two chunks
		}
		for at := 0; at < len(whole); at += step {
			for what, b := range map[string][]byte{"flipped": flippedBit(whole, at, at%8), "cut": whole[:at]} {
				c := segmentOver(b, g.from, g.row)
				var e *Error
				if err := c.check(t.Context(), nil); !errors.As(err, &e) || e.Kind != ErrDamaged || len(e.Damage) == 0 {
					t.Fatalf("%s %s at %d: %v", name, what, at, err)
				}
				if d := e.Damage[0]; what == "flipped" && (d.Offset > int64(at) || d.Offset+d.Length <= int64(at)) {
					t.Fatalf("%s %s at %d: the damage is said to be at %d to %d", name, what, at, d.Offset, d.Offset+d.Length)
				}
				for rev, raw := range want {
					if r, e := c.record(rev); e == nil && !bytes.Equal(r.raw, raw) || e != nil && e.Kind != ErrDamaged {
						t.Fatalf("%s %s at %d: revision %d is %x, %v", name, what, at, rev, r.raw, e)
					}
				}
				for _, id := range []string{"begin", "kept größe", "no-entries", "none"} {
					there := inSegment[id] == name
					commits, e := c.find(idHash(id))
					if e == nil && there != (len(commits) > 0) {
						t.Fatalf("%s %s at %d: id %q is in commits %v", name, what, at, id, commits)
					}
				}
			}
		}
	}
}

// placeSealed puts the golden store with files in place.
func placeSealed(t *testing.T) (dir, trust string) {
	t.Helper()
	dir, trust = placeGolden(t, "sealed.bundle", "sealed.trust")
	_, _, golden := handSealed()
	for name, path := range golden {
		to := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		putFile(t, to, goldenFile(t, name, nil))
	}
	return dir, trust
}

// What version 1 wrote opens, and reads back whole.
func TestGoldenSealedOpens(t *testing.T) {
	dir, trust := placeSealed(t)
	before := testkit.Snapshot(t, filepath.Join(dir, "segments"), filepath.Join(dir, "parts"), filepath.Join(dir, bundleName))
	s, err := Open(t.Context(), dir, trust, &Options{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if diff := gocmp.Diff(Recovery{Confirmed: goldenSealedRecord(goldenFile(t, "sealed.bundle", nil)).confirmed}, s.Recovery()); diff != "" {
		t.Errorf("another recovery (-want +got):\n%s", diff)
	}
	changes, commits := goldenSealedChanges(), handCommits(goldenSealedChanges())
	look := func(last int) {
		t.Helper()
		v := s.View()
		var entries, infos []string
		for e, err := range v.Entries(0) {
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, fmt.Sprintf("%d/%d:%.30q %d", e.Seq, e.Revision, e.Data, len(e.Data)))
		}
		for c, err := range v.Commits(0) {
			if err != nil {
				t.Fatal(err)
			}
			infos = append(infos, fmt.Sprintf("%d %x %q %s %q %q %v", c.Version.Revision, c.Version.Digest[:], c.ID, c.Time, c.Put, c.Deleted, c.Dropped))
		}
		var wantEntries, wantInfos []string
		for i := 2; i < 7; i++ {
			c, m := changes[i], commits[i]
			for j, e := range c.Entries {
				if i > 2 {
					wantEntries = append(wantEntries, fmt.Sprintf("%d/%d:%.30q %d", m.first+j, i+1, e, len(e)))
				}
			}
			wantInfos = append(wantInfos, fmt.Sprintf("%d %x %q %s %q %q %v", i+1, m.after, c.ID, goldenTime.Add(time.Duration(i)*time.Second),
				slices.Sorted(maps.Keys(c.Put)), c.Delete, i == 2))
		}
		if diff := gocmp.Diff(wantEntries, entries[:len(entries)-last]); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff(wantInfos, infos[:len(infos)-last]); diff != "" {
			t.Errorf("commits (-want +got):\n%s", diff)
		}
		for name, want := range map[string]string{"large": string(changes[0].Put["large"]), "state.json": `{"cursor":1}`, "empty": ""} {
			if b, ok, err := v.Get(name); string(b) != want || !ok || err != nil {
				t.Errorf("part %q: %q, %v, %v", name, b, ok, err)
			}
		}
		for i, c := range changes {
			m := commits[i]
			want := Receipt{Version: Version{Revision(i + 1), m.after}}
			if m.count > 0 {
				want.FirstSeq, want.LastSeq = Seq(m.first), Seq(m.first+m.count-1)
			}
			if ok, err := v.Contains(want); i == 0 && !errors.Is(err, ErrForgotten) || i > 0 && (!ok || err != nil) {
				t.Errorf("revision %d is contained: %v, %v", i+1, ok, err)
			}
			if c.ID == "" {
				continue
			}
			outcome := OutcomeCommitted
			if i < 2 {
				want, outcome = Receipt{}, OutcomeForgotten
			}
			if r, o, err := s.Lookup(t.Context(), c.ID); r != want || o != outcome || err != nil {
				t.Errorf("lookup %q: %v, %v, %v, want %v", c.ID, r, o, err, want)
			}
		}
		if err := s.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	look(0)
	if diff := gocmp.Diff(before, testkit.Snapshot(t, filepath.Join(dir, "segments"), filepath.Join(dir, "parts"), filepath.Join(dir, bundleName))); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	// The history goes on from there, and stays what it was.
	r, err := s.Commit(t.Context(), Change{ID: "more", Entries: [][]byte{[]byte("more")}})
	if err != nil || r.Revision != 8 || r.FirstSeq != Seq(commits[6].first+1) {
		t.Errorf("the next commit: %+v, %v", r, err)
	}
	look(1)
	if err := s.Checkpoint(t.Context()); err != nil {
		t.Error(err)
	}
	look(1)
}

// The way through the front door, with Compact, ends at the same files; and at the same
// bundle but for the digest of the one that it replaced.
func TestGoldenSealedByCommit(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files that are not needed any more are there until Close")
	}
	dir, trust := testkit.AgedDirs(t)
	ticks := 0
	ctx := vfs.NewContext(t.Context(), fixedFS{vfs.OS(), &ticks})
	open := func(l Limits) *Store {
		t.Helper()
		s, err := Open(ctx, dir, trust, &Options{Limits: l})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	changes := goldenSealedChanges()
	commit := func(s *Store, from, to int) {
		t.Helper()
		for ticks = from - 1; ticks < to; ticks++ {
			if _, err := s.Commit(ctx, changes[ticks]); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s := open(Limits{Unsealed: 1, Inline: 200})
	commit(s, 1, 4)
	if _, err := s.Compact(ctx, Policy{KeepSince: 4, ForgetBefore: 3}); err != nil {
		t.Fatal(err)
	}
	commit(s, 5, 6)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(Limits{Inline: 200})
	commit(s, 7, 7)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, files, _ := handSealed()
	names := map[string]bool{}
	for _, folder := range []string{"segments", "parts"} {
		list, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names[folder+"/"+e.Name()] = true
			got, err := os.ReadFile(filepath.Join(dir, folder, e.Name()))
			if err != nil || !bytes.Equal(got, files[folder+"/"+e.Name()]) {
				t.Errorf("%s/%s is another file, %v", folder, e.Name(), err)
			}
		}
	}
	if len(names) != len(files) {
		t.Errorf("files %q, want %q", slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(files)))
	}
	got, err := os.ReadFile(filepath.Join(dir, bundleName))
	if err != nil {
		t.Fatal(err)
	}
	copy(got[100:132], goldenSealedParent[:])
	if want := goldenFile(t, "sealed.bundle", nil); !bytes.Equal(mendChecksums(got), want) {
		t.Errorf("commits made another bundle:\n%x\nwant\n%x", got, want)
	}
}

// A bundle without files is what it was before there were any: no flag, no table.
func TestGoldenWithoutFilesHasNoFlag(t *testing.T) {
	for _, name := range []string{"full.bundle", "before.bundle", "plain.bundle", "first.bundle", "schema.bundle"} {
		b := goldenFile(t, name, nil)
		s, h, err := decodeBundle(b, emptyDirectory())
		if err != nil {
			t.Fatal(err)
		}
		if h.incompatible != 0 || s.files() || !bytes.Equal(encodeBundle(s), b) {
			t.Errorf("%s: flags %#x, files %v", name, h.incompatible, s.files())
		}
		// With the flag, and an empty table, it says the same in other bytes: that is refused.
		// The table comes before what the records go on from.
		at := len(b) - 4
		for _, r := range s.records {
			at -= 4 + len(r.raw)
		}
		at -= 4 + 8 + 8 + sha256.Size
		other := slices.Concat(b[:at], []byte{0, 0, 0, 0}, b[at:])
		other[20] = flagFiles
		binary.LittleEndian.PutUint64(other[28:], uint64(len(other)))
		if got, _, err := decodeBundle(mendChecksums(other), emptyDirectory()); err == nil {
			t.Errorf("%s: accepted with a flag that it does not need, at %s", name, got.version())
		}
	}
}
