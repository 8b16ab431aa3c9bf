package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The golden files are format version 1. They are in the hands of users, so they
// never change: a version that reads or writes them in another way is wrong, or is
// another version.
//
//	full.bundle    five commits: entries, an empty entry, parts, an empty part, deletions
//	before.bundle  the same store one commit earlier
//	plain.bundle   one commit that holds nothing but an id
//	clean.trust    confirms full.bundle, closed
//	intent.trust   confirms before.bundle, pending full.bundle
//	plain.trust    confirms plain.bundle, not closed
//	fresh.trust    confirms the empty store
//	record         the commit record of revision 3
//	first.bundle   the first of the five commits
//	journal        the other four beside first.bundle: two in one batch, two alone; a block is left
//	journal.trust  confirms the last of them, closed
//	journal-intent.trust  confirms the last but one, pending the last
//	audit          an unclean end, an intent that landed and one that did not
//	schema.*       see goldenSchemaChanges

var update = flag.Bool("update", false, "write the golden files that are missing; one that is there is never changed")

const goldenDir = "testdata/golden/v1"

// goldenFile returns a golden file, and with -update makes a missing one of made.
func goldenFile(t testing.TB, name string, made []byte) []byte {
	t.Helper()
	path := filepath.Join(goldenDir, name)
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update && made != nil {
		if err := os.MkdirAll(goldenDir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, made, 0o666); err != nil {
			t.Fatal(err)
		}
		return made
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var (
	goldenID   = storeID{0x3f, 0x0c, 0x2a, 0x9d, 0x5e, 0x6b, 0x47, 0x18, 0x8a, 0x90, 0xc1, 0xd2, 0xe3, 0xf4, 0x05, 0x16}
	goldenTime = time.Date(2025, 11, 30, 6, 0, 0, 123456789, time.UTC)
	goldenPath = quotePath("/home/ada/agent/ses\u202esion")

	goldenLastID = `call "7" größe`
)

// goldenChanges are the commits of full.bundle, one second apart.
func goldenChanges() []Change {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return []Change{
		{
			ID:      "begin",
			Entries: [][]byte{[]byte("hello"), {}, all},
			Put:     map[string][]byte{"state.json": []byte(`{"cursor":0}`), "empty": {}, "logs/größe.txt": []byte("line\r\n\x00")},
		},
		{ID: "only-an-id"},
		{
			Entries: [][]byte{[]byte("a\nb\x00c")},
			Put:     map[string][]byte{"state.json": []byte(`{"cursor":1}`)},
			Delete:  []string{"logs/größe.txt", "never/was/there"},
		},
		{Put: map[string][]byte{"z": []byte("z"), "a/b": []byte("a")}},
		{
			ID:      goldenLastID,
			Entries: [][]byte{[]byte("last"), []byte("and least")},
			Put:     map[string][]byte{"state.json": []byte(`{"cursor":2}`)},
			Delete:  []string{"z"},
		},
	}
}

func plainChanges() []Change { return []Change{{ID: "nothing-else"}} }

// step is one published state of a golden store.
type step struct {
	state *state
	raw   []byte
	root  Root
}

// goldenSteps makes the states by hand, from the functions that commit uses.
func goldenSteps(t testing.TB, changes []Change) []step {
	t.Helper()
	limits, err := new(Options).complete()
	if err != nil {
		t.Fatal(err)
	}
	last := step{state: emptyState(goldenID, wide)}
	var steps []step
	for i, c := range changes {
		p, err := c.prepare(&limits.Limits)
		if err != nil {
			t.Fatal(err)
		}
		r := p.record
		r.revision = Revision(i + 1)
		r.firstSeq = last.state.nextSeq()
		r.time = goldenTime.Add(time.Duration(i) * time.Second).UnixNano()
		r.seal(last.state.version().Digest)
		next := step{state: after(last.state, &r, p.data, last.root.Digest)}
		next.raw = encodeBundle(next.state)
		next.root = Root{Revision: r.revision, Epoch: next.state.epoch, Digest: sha256.Sum256(next.raw)}
		steps, last = append(steps, next), next
	}
	return steps
}

// goldenRecords are all trust records that one process writes while it makes steps.
func goldenRecords(steps []step) []trustRecord {
	records := []trustRecord{{store: goldenID, sequence: 1, path: goldenPath, closed: true}}
	add := func(r trustRecord) {
		r.store, r.sequence, r.path = goldenID, uint64(len(records)+1), goldenPath
		records = append(records, r)
	}
	var old trustRecord
	for _, s := range steps {
		intent := old
		intent.pending, intent.commits = s.root, 1
		if r := s.state.records[len(s.state.records)-1]; r.id != "" {
			intent.ids = []string{r.id}
		}
		add(intent)
		old = trustRecord{confirmed: s.root, history: s.state.version().Digest}
		add(old)
	}
	old.closed = true
	add(old)
	return records
}

// goldenTicks are the seconds at which the commits of the file journal are made. Those
// of one batch are made at the same time.
var goldenTicks = []int{0, 1, 1, 3, 4}

// goldenBatches are how many commits the batches hold.
var goldenBatches = []int{2, 1, 1}

// goldenJournal makes the file journal by hand, from the functions that commit uses. It
// returns the states after each batch, the one in first.bundle before them, and the
// file up to the end of each.
func goldenJournal(t testing.TB) (states []*state, roots []Root, file []byte) {
	t.Helper()
	first := goldenSteps(t, goldenChanges())[0]
	states, roots = []*state{first.state}, []Root{first.root}
	limits, err := new(Options).complete()
	if err != nil {
		t.Fatal(err)
	}
	const size = 5 * blockSize
	header := journalHeader(goldenID, first.root, first.state.end(), size)
	file = append(slices.Clone(header), make([]byte, blockSize-len(header))...)
	digest := extendDigest(sha256.New(), first.root.Digest, header)
	revision := 1
	for _, n := range goldenBatches {
		next := lastOf(states).grow()
		for range n {
			p, err := goldenChanges()[revision].prepare(&limits.Limits)
			if err != nil {
				t.Fatal(err)
			}
			r := p.record
			r.revision = Revision(revision + 1)
			r.firstSeq = next.nextSeq()
			r.time = goldenTime.Add(time.Duration(goldenTicks[revision]) * time.Second).UnixNano()
			r.seal(next.version().Digest)
			next.add(&r, p.data)
			file, digest = appendFrame(file, sha256.New(), digest, &r, p.data)
			revision++
		}
		file = append(file, make([]byte, roundUp(len(file), blockSize)-len(file))...)
		st := next.state
		st.records = slices.Clip(st.records)
		states = append(states, &st)
		roots = append(roots, Root{Revision: Revision(revision), Epoch: 1, Journal: int64(len(file)), Digest: digest})
	}
	return states, roots, append(file, make([]byte, size-len(file))...)
}

// goldenJournalRecords are the trust records of the process that made it.
func goldenJournalRecords(t testing.TB) []trustRecord {
	states, roots, _ := goldenJournal(t)
	records := []trustRecord{{closed: true}}
	var old trustRecord
	for i, root := range roots {
		had := 0
		if i > 0 {
			had = len(states[i-1].records)
		}
		intent := old
		intent.pending = root
		for _, r := range states[i].records[had:] {
			intent.commits++
			if r.id != "" {
				intent.ids = append(intent.ids, r.id)
			}
		}
		old = trustRecord{confirmed: root, history: states[i].version().Digest}
		records = append(records, intent, old)
	}
	old.closed = true
	records = append(records, old)
	for i := range records {
		records[i].store, records[i].sequence, records[i].path = goldenID, uint64(i+1), goldenPath
	}
	return records
}

func lastOf[T any](s []T) T { return s[len(s)-1] }

// sameState compares two states in every field that is about what they hold.
func sameState(want, got *state) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(),
		cmp.AllowUnexported(state{}, record{}, part{}, partRef{}, origin{}),
		cmpopts.IgnoreFields(state{}, "unsealed", "inline", "size")) // these follow from the limits
}

// flipped is a copy of b with one bit flipped; at counts from the end when negative.
func flipped(raw []byte, at int) []byte {
	b := bytes.Clone(raw)
	b[(at+len(b))%len(b)] ^= 0x10
	return b
}

// patched is a copy of b with other bytes at an offset.
func patched(b []byte, at int, put ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], put)
	return b
}

func TestGoldenBundles(t *testing.T) {
	full, plain := goldenSteps(t, goldenChanges()), goldenSteps(t, plainChanges())
	for _, tt := range []struct {
		name string
		step step
	}{
		{"full.bundle", lastOf(full)},
		{"before.bundle", full[len(full)-2]},
		{"plain.bundle", lastOf(plain)},
		{"first.bundle", full[0]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := goldenFile(t, tt.name, tt.step.raw)
			if !bytes.Equal(b, tt.step.raw) {
				t.Errorf("the encoder makes other bytes:\n%x\nwant\n%x", tt.step.raw, b)
			}
			got, h, err := decodeBundle(b, new(directory))
			if err != nil {
				t.Fatal(err)
			}
			if diff := sameState(tt.step.state, got); diff != "" {
				t.Errorf("the decoder makes another state (-want +got):\n%s", diff)
			}
			want := header{version: 1, length: uint64(len(b)), store: goldenID, epoch: tt.step.root.Epoch,
				revision: tt.step.root.Revision, history: tt.step.state.version().Digest, parent: tt.step.state.replaced}
			if h != want {
				t.Errorf("header %+v, want %+v", h, want)
			}
			// Every shorter file is refused, and so is a longer one.
			for n := range b {
				if _, _, err := decodeBundle(b[:n], new(directory)); err == nil {
					t.Fatalf("accepted when cut to %d bytes", n)
				}
			}
			if _, _, err := decodeBundle(append(bytes.Clone(b), 0), new(directory)); err == nil {
				t.Error("accepted with a byte too many")
			}
		})
	}
}

// A whole bundle is proof of a state; one bit of difference, and it is proof of
// nothing (R21).
func TestGoldenBundleBitFlips(t *testing.T) {
	b := goldenFile(t, "full.bundle", nil)
	for i := range b {
		for bit := range 8 {
			if testing.Short() && bit != i%8 {
				continue
			}
			b[i] ^= 1 << bit
			if _, _, err := decodeBundle(b, new(directory)); err == nil {
				t.Errorf("accepted with bit %d of byte %d flipped", bit, i)
			}
			b[i] ^= 1 << bit
		}
	}
}

// walkGolden reads the file journal beside first.bundle.
func walkGolden(t testing.TB, raw []byte) walked {
	t.Helper()
	states, roots, _ := goldenJournal(t)
	w, err := walkJournal(raw, roots[0], states[0])
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestGoldenJournal(t *testing.T) {
	states, roots, made := goldenJournal(t)
	b := goldenFile(t, "journal", made)
	if !bytes.Equal(b, made) {
		t.Errorf("the encoder makes other bytes:\n%x\nwant\n%x", made, b)
	}
	w := walkGolden(t, b)
	if w.bad != nil || w.apart || w.stop != roots[3].Journal || w.used >= w.stop || w.used < w.stop-blockSize || len(w.steps) != 4 {
		t.Fatalf("%d commits, stops at %d of %d: %v", len(w.steps), w.stop, w.used, w.bad)
	}
	want := header{version: 1, length: uint64(len(b)), store: goldenID, epoch: 1, revision: 1,
		history: states[0].version().Digest, parent: roots[0].Digest}
	if *w.head != want {
		t.Errorf("header %+v, want %+v", *w.head, want)
	}
	g := states[0].grow()
	at := 0
	for i, s := range w.steps {
		g.add(s.record, s.data)
		for ; roots[at].Revision < s.root.Revision; at++ {
		}
		if s.root != roots[at] && i != 0 { // the first of two in a batch has a root of its own
			t.Errorf("commit %d ends at %+v, want %+v", i, s.root, roots[at])
		}
		if s.root == roots[at] {
			if diff := sameState(states[at], &g.state); diff != "" {
				t.Errorf("another state at %+v (-want +got):\n%s", s.root, diff)
			}
		}
	}
	// Written again, it is the same.
	again := append(journalHeader(goldenID, roots[0], states[0].end(), int64(len(b))), make([]byte, blockSize-headerSize)...)
	digest := extendDigest(sha256.New(), roots[0].Digest, again[:headerSize])
	for i, s := range w.steps {
		again, digest = appendFrame(again, sha256.New(), digest, s.record, s.data)
		if digest != s.root.Digest {
			t.Errorf("commit %d: digest %v, want %v", i, digest, s.root.Digest)
		}
		if i > 0 {
			again = append(again, make([]byte, roundUp(len(again), blockSize)-len(again))...)
		}
	}
	if again = append(again, make([]byte, len(b)-len(again))...); !bytes.Equal(again, b) {
		t.Error("it is not encoded the same again")
	}
}

// Whatever is cut off, or zero, or flipped, what is still found is what was written.
func TestGoldenJournalDamage(t *testing.T) {
	b := goldenFile(t, "journal", nil)
	whole := walkGolden(t, b).steps
	check := func(what string, n int, raw []byte) {
		t.Helper()
		w := walkGolden(t, raw)
		if len(w.steps) > len(whole) {
			t.Fatalf("%s at %d: %d commits", what, n, len(w.steps))
		}
		for i, s := range w.steps {
			if s.root != whole[i].root {
				t.Fatalf("%s at %d: commit %d ends at %+v", what, n, i, s.root)
			}
		}
		if w.used != usedBytes(raw) || w.stop > int64(len(raw)) || w.bad == nil && w.used > w.stop {
			t.Fatalf("%s at %d: stops at %d, %d are used: %v", what, n, w.stop, w.used, w.bad)
		}
		if w.bad == nil && bytes.Equal(raw, b) != (len(w.steps) == len(whole)) {
			t.Fatalf("%s at %d: %d commits, and nothing wrong", what, n, len(w.steps))
		}
	}
	for n := range b {
		if w := walkGolden(t, b[:n]); w.bad == nil || len(w.steps) > 0 {
			t.Fatalf("cut to %d bytes: %d commits, %v", n, len(w.steps), w.bad)
		}
		if n%7 == 0 || n%blockSize < 16 {
			check("zero", n, append(bytes.Clone(b[:n]), make([]byte, len(b)-n)...))
		}
		if flip := flipped(b, n); n%3 == 0 || n < headerSize {
			check("flipped", n, flip)
			if w := walkGolden(t, flip); w.bad == nil {
				t.Fatalf("nothing wrong with byte %d flipped", n)
			}
		}
	}
}

func TestGoldenRecord(t *testing.T) {
	steps := goldenSteps(t, goldenChanges())
	want := steps[2].state.records[2]
	b := goldenFile(t, "record", want.raw)
	if !bytes.Equal(b, want.raw) {
		t.Errorf("the encoder makes other bytes:\n%x\nwant\n%x", want.raw, b)
	}
	got, err := decodeRecord(b, steps[1].state.version().Digest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.AllowUnexported(record{}, partRef{})); diff != "" {
		t.Errorf("the decoder makes another record (-want +got):\n%s", diff)
	}
}

func TestGoldenTrust(t *testing.T) {
	full, plain := goldenRecords(goldenSteps(t, goldenChanges())), goldenRecords(goldenSteps(t, plainChanges()))
	inJournal := goldenJournalRecords(t)
	for _, tt := range []struct {
		name    string
		records []trustRecord
	}{
		{"clean.trust", full},
		{"intent.trust", full[:len(full)-2]},
		{"plain.trust", plain[:len(plain)-1]},
		{"fresh.trust", full[:1]},
		{"journal.trust", inJournal},
		{"journal-intent.trust", inJournal[:len(inJournal)-2]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// What a later record overwrites in the ring is gone.
			made := makeRing(tt.records...)
			b := goldenFile(t, tt.name, made)
			if !bytes.Equal(b, made) {
				t.Errorf("the encoder makes other bytes:\n%s\nwant\n%s", made, b)
			}
			got, broken, err := decodeRing(b)
			if err != nil || broken != nil {
				t.Fatalf("broken slots %v, error %v", broken, err)
			}
			want := lastOf(tt.records)
			if diff := slotDiff(want, got); diff != "" {
				t.Errorf("the decoder makes another record (-want +got):\n%s", diff)
			}
			for i := range slotCount {
				slot := b[i*slotSize : (i+1)*slotSize]
				if bytes.Equal(slot, blankSlot) {
					continue
				}
				r, err := decodeSlot(slot)
				if err != nil {
					t.Errorf("slot %d: %v", i, err)
				} else if !bytes.Equal(r.encode(), slot) {
					t.Errorf("slot %d is not encoded the same again", i)
				}
			}
		})
	}
}

// The digest that the trust file names is what sha256sum prints for the bundle.
func TestGoldenDigests(t *testing.T) {
	sum := func(name string) string { return Digest(sha256.Sum256(goldenFile(t, name, nil))).String() }
	for _, tt := range []struct{ trust, line, bundle string }{
		{"clean.trust", "confirmed 5 5 0 ", "full.bundle"},
		{"intent.trust", "confirmed 4 4 0 ", "before.bundle"},
		{"intent.trust", "pending 5 5 0 ", "full.bundle"},
		{"plain.trust", "confirmed 1 1 0 ", "plain.bundle"},
	} {
		if text := string(goldenFile(t, tt.trust, nil)); !strings.Contains(text, "\n"+tt.line+sum(tt.bundle)+"\n") {
			t.Errorf("%s has no line %q with the SHA-256 of %s:\n%s", tt.trust, tt.line, tt.bundle, text)
		}
	}
}

// fixedFS is a machine whose clock and randomness make the golden store.
type fixedFS struct {
	vfs.FS
	ticks *int
}

func (f fixedFS) Now() time.Time {
	return goldenTime.Add(time.Duration(*f.ticks) * time.Second)
}

func (f fixedFS) Random(p []byte) {
	if len(p) == len(goldenID) {
		copy(p, goldenID[:])
		return
	}
	f.FS.Random(p)
}

// The way through the front door ends at the same bytes.
func TestGoldenByCommit(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	ticks := 0
	ctx := vfs.NewContext(t.Context(), fixedFS{vfs.OS(), &ticks})
	s, err := Open(ctx, dir, trust, &Options{CheckpointEvery: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	changes := goldenChanges()
	for i, c := range changes {
		ticks = i
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
		if i < len(changes)-2 {
			continue
		}
		got, err := os.ReadFile(filepath.Join(dir, bundleName))
		if err != nil {
			t.Fatal(err)
		}
		name := []string{"before.bundle", "full.bundle"}[i-len(changes)+2]
		if want := goldenFile(t, name, nil); !bytes.Equal(got, want) {
			t.Errorf("Commit made another %s:\n%x\nwant\n%x", name, got, want)
		}
	}
}

// The way through the front door ends at the same journal.
func TestGoldenJournalByCommit(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	ticks := 0
	ctx := vfs.NewContext(t.Context(), fixedFS{vfs.OS(), &ticks})
	s, err := Open(ctx, dir, trust, &Options{Limits: Limits{Journal: 5 * blockSize}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	changes := goldenChanges()
	if _, err := s.Commit(ctx, changes[0]); err != nil {
		t.Fatal(err)
	}
	// The next two go together: the second waits for the turn that the first has.
	ticks = 1
	second := make(chan error, 1)
	_, err = s.Update(ctx, "", func(View) (Change, error) {
		go func() { _, err := s.Commit(ctx, changes[2]); second <- err }()
		for s.Stats().Waiting == 0 {
			time.Sleep(time.Millisecond)
		}
		return changes[1], nil
	})
	if err := errors.Join(err, <-second); err != nil {
		t.Fatal(err)
	}
	for i := 3; i < len(changes); i++ {
		ticks = goldenTicks[i]
		if _, err := s.Commit(ctx, changes[i]); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{"first.bundle": bundleName, "journal": "journal.000000000001"} {
		got, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if want := goldenFile(t, name, nil); !bytes.Equal(got, want) {
			t.Errorf("Commit made another %s:\n%x\nwant\n%x", name, got, want)
		}
	}
}

// placeGolden puts golden files where a store is: a bundle ("" for none) and a
// trust file.
func placeGolden(t *testing.T, bundle, trustFile string) (dir, trust string) {
	t.Helper()
	dir, trust = testkit.Dirs(t)
	for _, d := range []string{dir, trust} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if bundle != "" {
		putFile(t, filepath.Join(dir, bundleName), goldenFile(t, bundle, nil))
	}
	putFile(t, filepath.Join(trust, "session"+trustSuffix), goldenFile(t, trustFile, nil))
	return dir, trust
}

func putFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// What version 1 wrote opens, and reads back whole.
func TestGoldenOpens(t *testing.T) {
	full, plain := goldenSteps(t, goldenChanges()), goldenSteps(t, plainChanges())
	before, last := full[len(full)-2], lastOf(full)
	settled := func(how Settlement, to Root) Recovery {
		return Recovery{Settled: how, Unclean: true, Confirmed: to, Pending: last.root, Count: 1, Commits: []string{goldenLastID}}
	}
	for _, tt := range []struct {
		name, bundle, trust string
		want                *state
		recovery            Recovery
	}{
		{"clean", "full.bundle", "clean.trust", last.state, Recovery{Confirmed: last.root}},
		{"unclean", "plain.bundle", "plain.trust", lastOf(plain).state, Recovery{Unclean: true, Confirmed: lastOf(plain).root}},
		{"landed", "full.bundle", "intent.trust", last.state, settled(SettledLanded, last.root)},
		{"not landed", "before.bundle", "intent.trust", before.state, settled(SettledNotLanded, before.root)},
		{"fresh", "", "fresh.trust", emptyState(goldenID, wide), Recovery{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, trust := placeGolden(t, tt.bundle, tt.trust)
			s, err := Open(t.Context(), dir, trust, &Options{MustExist: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if diff := sameState(tt.want, s.state.Load()); diff != "" {
				t.Errorf("another state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.recovery, s.Recovery()); diff != "" {
				t.Errorf("another recovery (-want +got):\n%s", diff)
			}
			// The bytes of the state are left as they are, whatever was settled.
			if tt.bundle != "" {
				got, err := os.ReadFile(filepath.Join(dir, bundleName))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, goldenFile(t, tt.bundle, nil)) {
					t.Error("opening changed the bundle's bytes")
				}
			}
			if err := s.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
			// The history goes on from there.
			r, err := s.Commit(t.Context(), Change{ID: "more", Entries: [][]byte{[]byte("more")}})
			if err != nil {
				t.Fatal(err)
			}
			if r.Revision != tt.want.version().Revision+1 || r.FirstSeq != tt.want.nextSeq() {
				t.Errorf("the next commit is revision %d, seq %d", r.Revision, r.FirstSeq)
			}
		})
	}
}

// A journal that version 1 wrote opens, and the history goes on in it.
func TestGoldenJournalOpens(t *testing.T) {
	states, roots, _ := goldenJournal(t)
	last, before := len(roots)-1, len(roots)-2
	old := goldenFile(t, "journal", nil)
	old = append(bytes.Clone(old[:roots[before].Journal]), make([]byte, int64(len(old))-roots[before].Journal)...)
	settled := func(how Settlement, to Root) Recovery {
		return Recovery{Settled: how, Unclean: true, Confirmed: to, Pending: roots[last], Count: 1, Commits: []string{goldenLastID}}
	}
	for _, tt := range []struct {
		name, trust string
		journal     []byte
		want        *state
		recovery    Recovery
		after       []byte
	}{
		{"clean", "journal.trust", goldenFile(t, "journal", nil), states[last], Recovery{Confirmed: roots[last]}, goldenFile(t, "journal", nil)},
		{"landed", "journal-intent.trust", goldenFile(t, "journal", nil), states[last], settled(SettledLanded, roots[last]), goldenFile(t, "journal", nil)},
		{"not landed", "journal-intent.trust", old, states[before], settled(SettledNotLanded, roots[before]), old},
		{"torn", "journal-intent.trust", patched(goldenFile(t, "journal", nil), int(roots[before].Journal)+100, 0, 0, 0, 0, 0, 0),
			states[before], settled(SettledNotLanded, roots[before]), old},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, trust := placeGolden(t, "first.bundle", tt.trust)
			path := filepath.Join(dir, "journal.000000000001")
			putFile(t, path, tt.journal)
			s, err := Open(t.Context(), dir, trust, &Options{MustExist: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if diff := sameState(tt.want, s.state.Load()); diff != "" {
				t.Errorf("another state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.recovery, s.Recovery()); diff != "" {
				t.Errorf("another recovery (-want +got):\n%s", diff)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, tt.after) {
				t.Errorf("another journal: %v", err)
			}
			if err := s.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
			for i := range 3 { // in the journal, and then in another one
				r, err := s.Commit(t.Context(), Change{Entries: [][]byte{[]byte("more")}})
				if err != nil || r.Revision != tt.want.version().Revision+1+Revision(i) || r.FirstSeq != tt.want.nextSeq()+Seq(i) {
					t.Fatalf("the next commit is %v, %v", r, err)
				}
			}
			if err := s.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// goldenAudit are the lines of the file audit.
func goldenAudit(t testing.TB) []auditLine {
	full := goldenSteps(t, goldenChanges())
	before, last := full[len(full)-2].root, lastOf(full).root
	line := func(event, outcome string, confirmed Root, pending *Root, ids ...string) auditLine {
		return auditLine{Time: goldenTime, Event: event, Store: goldenID.String(), Process: "pid 7 on \"ada\"",
			Outcome: outcome, Confirmed: confirmed, Pending: pending, Commits: ids}
	}
	return []auditLine{
		line("unclean", "", last, nil),
		line("settle", SettledLanded.String(), last, &last, goldenLastID),
		line("settle", SettledNotLanded.String(), before, &last, goldenLastID, "\x1b[2J<b>"),
	}
}

// Audit lines are read by other programs: fields and order are pinned (R12), and
// what an id says cannot act on a terminal (R22).
func TestGoldenAudit(t *testing.T) {
	dir := t.TempDir()
	d, err := vfs.OS().OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, line := range goldenAudit(t) {
		if err := appendAudit(&directory{Dir: d, fsys: vfs.OS(), counts: new(counts)}, "audit", line); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "audit"))
	if err != nil {
		t.Fatal(err)
	}
	want := goldenFile(t, "audit", got)
	if !bytes.Equal(got, want) {
		t.Errorf("audit lines\n%s\nwant\n%s", got, want)
	}
	if i := bytes.IndexFunc(want, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
		t.Errorf("a control character at %d: %q", i, want)
	}
	var lines []auditLine
	for dec := json.NewDecoder(bytes.NewReader(want)); dec.More(); {
		var line auditLine
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if diff := cmp.Diff(goldenAudit(t), lines); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// No golden file is there that no test looks at.
func TestGoldenFilesAreAllUsed(t *testing.T) {
	var names []string
	err := filepath.WalkDir(goldenDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"audit", "before.bundle", "clean.trust", "first.bundle", "fresh.trust", "full.bundle", "given-up.backup", "intent.trust",
		"journal", "journal-intent.trust", "journal.trust", "part", "plain.backup", "plain.bundle", "plain.trust", "record", "removing.trust",
		"schema.audit", "schema.bundle", "schema.journal", "schema.trust",
		"sealed.bundle", "sealed.trust", "segment.dropped", "segment.forgotten", "segment.whole"}
	if !slices.Equal(names, want) {
		t.Errorf("golden files %q, want %q", names, want)
	}
}
