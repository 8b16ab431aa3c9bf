package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
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
//	audit          an unclean end, an intent that landed and one that did not

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
	last := step{state: emptyState(goldenID)}
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
		next := step{state: last.state.after(&r, p.data, last.root.Digest)}
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

func lastOf[T any](s []T) T { return s[len(s)-1] }

// sameState compares two states in every field.
func sameState(want, got *state) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(),
		cmp.AllowUnexported(state{}, record{}, part{}, partRef{}, origin{}))
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
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := goldenFile(t, tt.name, tt.step.raw)
			if !bytes.Equal(b, tt.step.raw) {
				t.Errorf("the encoder makes other bytes:\n%x\nwant\n%x", tt.step.raw, b)
			}
			got, h, err := decodeBundle(b)
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
				if _, _, err := decodeBundle(b[:n]); err == nil {
					t.Fatalf("accepted when cut to %d bytes", n)
				}
			}
			if _, _, err := decodeBundle(append(bytes.Clone(b), 0)); err == nil {
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
			if _, _, err := decodeBundle(b); err == nil {
				t.Errorf("accepted with bit %d of byte %d flipped", bit, i)
			}
			b[i] ^= 1 << bit
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
	for _, tt := range []struct {
		name    string
		records []trustRecord
	}{
		{"clean.trust", full},
		{"intent.trust", full[:len(full)-2]},
		{"plain.trust", plain[:len(plain)-1]},
		{"fresh.trust", full[:1]},
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
	s, err := Open(ctx, dir, trust, nil)
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
		{"fresh", "", "fresh.trust", emptyState(goldenID), Recovery{}},
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
	want := []string{"audit", "before.bundle", "clean.trust", "fresh.trust", "full.bundle", "intent.trust", "plain.bundle", "plain.trust", "record"}
	if !slices.Equal(names, want) {
		t.Errorf("golden files %q, want %q", names, want)
	}
}
