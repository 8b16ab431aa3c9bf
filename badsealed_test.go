package pawl_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// ---- a store with segments and files of parts -------------------------------------

// sealing has each publish seal all history, and put parts of more than 100 bytes into
// files.
var sealing = &pawl.Options{Limits: pawl.Limits{Unsealed: 1, Inline: 100}}

// sealedStore is a closed store that has of everything: three segments, two parts in
// files, and a commit in the journal. Offsets in a segment follow from the format that
// segment.go documents.
type sealedStore struct {
	files    map[string][]byte // by path in the store directory
	trust    []byte
	segments []string // paths of the segments, oldest first
	parts    map[string]string
	partFile map[string]string // the path of a part's file
	ids      []string          // by revision; "": none
	receipts []pawl.Receipt    // by revision
	entries  [][]byte          // by seq
	of       []pawl.Revision   // the revision of an entry, by seq
	says     string
}

// What the three segments hold. The second has four chunks, the others one.
var sealedSpans = []struct {
	first, last       pawl.Revision
	firstSeq, lastSeq pawl.Seq
}{{1, 1, 1, 1}, {2, 8, 2, 15}, {9, 11, 16, 19}}

const sealedRevisions, sealedEntries = 12, 20

func newSealedStore(seed byte) (*sealedStore, error) {
	root, err := os.MkdirTemp("", "pawl")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	dir, trust := filepath.Join(root, "session"), filepath.Join(root, "trust")
	tap := &tap{random: rand.NewChaCha8([32]byte{seed})}
	tap.now = func() time.Time { return time.Unix(int64(1e9+int(seed)), 0) }
	s, err := pawl.Open(tap.context(), dir, trust, sealing)
	if err != nil {
		return nil, err
	}
	st := &sealedStore{files: map[string][]byte{}, ids: make([]string, 1), receipts: make([]pawl.Receipt, 1), entries: make([][]byte, 1), of: make([]pawl.Revision, 1),
		parts: map[string]string{"small": "s", "large-a": strings.Repeat("a", 300), "large-b": strings.Repeat("bcd", 10000)}, partFile: map[string]string{}}
	random := rand.NewChaCha8([32]byte{seed, 1})
	for rev := 1; rev <= sealedRevisions && err == nil; rev++ {
		c := pawl.Change{ID: fmt.Sprintf("commit-%d", rev)}
		sizes := []int{40}
		switch {
		case rev == 9:
			c.ID, sizes, c.Put = "", nil, map[string][]byte{}
			for name, text := range st.parts {
				c.Put[name] = []byte(text)
			}
		case rev == 10:
			sizes = []int{10, 0, 30}
		case rev > 1 && rev < 9:
			sizes = []int{3950, 3950}
		}
		for _, n := range sizes {
			e := make([]byte, n)
			random.Read(e)
			c.Entries = append(c.Entries, e)
			st.entries, st.of = append(st.entries, e), append(st.of, pawl.Revision(rev))
		}
		var r pawl.Receipt
		if r, err = s.Commit(context.Background(), c); err == nil && (rev == 8 || rev == 11) {
			err = s.Checkpoint(context.Background())
		}
		st.ids, st.receipts = append(st.ids, c.ID), append(st.receipts, r)
	}
	st.says = dump(s.View())
	if err = errors.Join(err, s.Close()); err != nil {
		return nil, err
	}
	if st.trust, err = os.ReadFile(filepath.Join(trust, "session.trust")); err != nil {
		return nil, err
	}
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path == "lock" {
			return err
		}
		st.files[path], err = os.ReadFile(filepath.Join(dir, path))
		if strings.HasPrefix(path, "segments/") {
			st.segments = append(st.segments, path)
		}
		return err
	})
	slices.Sort(st.segments)
	for name, text := range st.parts {
		if path := fmt.Sprintf("parts/%x", sha256.Sum256([]byte(text))); st.files[path] != nil {
			st.partFile[name] = path
		}
	}
	if len(st.segments) != 3 || len(st.partFile) != 2 || len(st.files[st.segments[1]]) < 3*16384 || len(st.files[st.segments[2]]) > 16384 || len(st.entries) != sealedEntries+1 {
		return nil, fmt.Errorf("the store is not what these tests need: %q %q", st.segments, st.partFile)
	}
	return st, err
}

var sealedLives = sync.OnceValues(func() ([2]*sealedStore, error) {
	one, err1 := newSealedStore(1)
	other, err2 := newSealedStore(2)
	return [2]*sealedStore{one, other}, errors.Join(err1, err2)
})

// sealedStores returns a store, and another one that did the same.
func sealedStores(t testing.TB) (one, other *sealedStore) {
	t.Helper()
	s, err := sealedLives()
	if err != nil {
		t.Fatal(err)
	}
	return s[0], s[1]
}

// laySealed makes the two directories hold a sealed store, and nothing else.
func (b *bench) laySealed(st *sealedStore) {
	b.t.Helper()
	collected(b.t, filepath.Dir(b.dir))
	for _, d := range []string{b.dir, b.trust} {
		if err := os.RemoveAll(d); err != nil {
			b.t.Fatal(err)
		}
	}
	mkdir(b.t, b.trust)
	for _, d := range []string{"segments", "parts"} {
		mkdir(b.t, filepath.Join(b.dir, d))
	}
	for path, content := range st.files {
		write(b.t, b.at(path), string(content))
	}
	write(b.t, b.slots, string(st.trust))
}

// at is the path of a file in the store directory.
func (b *bench) at(path string) string { return filepath.Join(b.dir, filepath.FromSlash(path)) }

// sealedOpen opens the store that was laid out. Whatever is wrong with a segment or a
// part, the store opens, and nothing is swept.
func (b *bench) sealedOpen() *pawl.Store {
	b.t.Helper()
	s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
	if err != nil {
		b.t.Fatal(err)
	}
	if r := s.Recovery(); r.Swept != nil || r.Settled != pawl.SettledNothing {
		b.t.Errorf("%+v", r)
	}
	return s
}

func (b *bench) close(s interface{ Close() error }) {
	b.t.Helper()
	if err := s.Close(); err != nil {
		b.t.Error(err)
	}
}

// collected has the garbage collector close files whose names are gone, which a View of
// this test kept open, before it is looked what was left open.
func collected(t testing.TB, root string) {
	t.Cleanup(func() {
		for range 50 {
			runtime.GC()
			if !slices.ContainsFunc(openFiles(root), func(path string) bool { return strings.HasSuffix(path, " (deleted)") }) {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// openFiles lists the descriptors of files below root, where the system has a list.
func openFiles(root string) (open []string) {
	list, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range list {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, root+"/") {
			open = append(open, to)
		}
	}
	return open
}

// reading is what of a store can be read: which entries by seq, which commits by
// revision, and which parts. 0 stands for an id that nobody used.
type reading struct {
	entries, commits, contains, lookups []bool
	parts                               map[string]bool
	errs                                []*pawl.Error
}

// all is the reading of a store that is whole.
func (st *sealedStore) all() reading {
	yes := func(n int) []bool { return slices.Repeat([]bool{true}, n+1) }
	r := reading{entries: yes(sealedEntries), commits: yes(sealedRevisions), contains: yes(sealedRevisions), lookups: yes(sealedRevisions), parts: map[string]bool{}}
	for name := range st.parts {
		r.parts[name] = true
	}
	return r
}

// without is the reading of a store of which a segment cannot be read at all.
func (st *sealedStore) without(segment int) reading {
	r := st.all()
	span := sealedSpans[segment]
	for seq := span.firstSeq; seq <= span.lastSeq; seq++ {
		r.entries[seq] = false
	}
	for rev := span.first; rev <= span.last; rev++ {
		r.commits[rev], r.contains[rev], r.lookups[rev] = false, false, st.ids[rev] == ""
	}
	r.lookups[0] = false
	return r
}

// looker is what reads a store: a Store, or a Reader.
type looker interface {
	View() pawl.View
	Lookup(context.Context, string) (pawl.Receipt, pawl.Outcome, error)
}

// read reads all in every way that there is. What it gets is right, or ErrDamaged with
// the evidence; never less, and never anything else.
func (st *sealedStore) read(t testing.TB, s looker) reading {
	t.Helper()
	v := s.View()
	r := reading{entries: make([]bool, sealedEntries+1), commits: make([]bool, sealedRevisions+1), contains: make([]bool, sealedRevisions+1), lookups: make([]bool, sealedRevisions+1),
		parts: map[string]bool{}}
	r.entries[0], r.commits[0], r.contains[0] = true, true, true
	bad := func(what, op string, err error) {
		t.Helper()
		e := typed(t, err, op, pawl.ErrDamaged)
		if len(e.Damage) == 0 {
			t.Errorf("%s: no damage is told: %v", what, err)
		}
		for _, d := range e.Damage {
			if d.Path != e.Path || d.Problem == "" || d.Length <= 0 || d.Offset < 0 {
				t.Errorf("%s: %+v of %s", what, d, e.Path)
			}
		}
		r.errs = append(r.errs, e)
	}
	for after := range sealedEntries {
		seq := after
		for e, err := range v.Entries(pawl.Seq(after)) {
			if seq++; err != nil {
				if e.Data != nil || e.Seq != 0 {
					t.Errorf("entry %d with an error: %+v", seq, e)
				}
				bad(fmt.Sprint("entry ", seq), "entries", err)
				seq = sealedEntries
				break
			}
			if int(e.Seq) != seq || seq > sealedEntries || e.Revision != st.of[seq] || !bytes.Equal(e.Data, st.entries[seq]) {
				t.Fatalf("after %d: entry %d of revision %d is wrong", after, e.Seq, e.Revision)
			}
			r.entries[after+1] = true
		}
		if seq != sealedEntries {
			t.Errorf("after %d: ended at %d", after, seq)
		}
	}
	for after := range sealedRevisions {
		rev := after
		for c, err := range v.Commits(pawl.Revision(after)) {
			if rev++; err != nil {
				bad(fmt.Sprint("commit ", rev), "commits", err)
				rev = sealedRevisions
				break
			}
			if want := st.receipts[rev]; c.Version != want.Version || c.ID != st.ids[rev] || c.FirstSeq != want.FirstSeq || c.LastSeq != want.LastSeq {
				t.Fatalf("after %d: %+v, want %v", after, c, want)
			}
			r.commits[after+1] = true
		}
		if rev != sealedRevisions {
			t.Errorf("after %d: ended at %d", after, rev)
		}
	}
	for rev := 1; rev <= sealedRevisions; rev++ {
		ok, err := v.Contains(st.receipts[rev])
		if err != nil {
			bad(fmt.Sprint("receipt ", rev), "contains", err)
		} else if r.contains[rev] = ok; !ok {
			t.Errorf("revision %d is not contained", rev)
		}
		forged := st.receipts[rev]
		if forged.LastSeq++; true {
			if ok, err := v.Contains(forged); ok {
				t.Errorf("a forged receipt of revision %d: %v", rev, err)
			}
		}
		if forged = st.receipts[rev]; true {
			forged.Digest[7] ^= 1
			if ok, err := v.Contains(forged); ok {
				t.Errorf("another version of revision %d: %v", rev, err)
			}
		}
	}
	for rev := range sealedRevisions + 1 {
		id := st.ids[rev]
		if rev > 0 && id == "" {
			r.lookups[rev] = true
			continue
		}
		want, outcome := st.receipts[rev], pawl.OutcomeCommitted
		if rev == 0 {
			id, outcome = "nobody's", pawl.OutcomeNotCommitted
		}
		got, o, err := s.Lookup(context.Background(), id)
		switch {
		case err != nil:
			bad("id "+id, "lookup", err)
			if o != pawl.OutcomeUnknown {
				t.Errorf("Lookup of %q: %v with %v", id, o, err)
			}
		case o != outcome || got != want:
			t.Errorf("Lookup of %q: %v, %v", id, got, o)
		default:
			r.lookups[rev] = true
		}
	}
	if names := slices.Collect(v.Parts()); !slices.Equal(names, []string{"large-a", "large-b", "small"}) {
		t.Errorf("parts %q", names)
	}
	for name, want := range st.parts {
		b, ok, err := v.Get(name)
		switch {
		case err != nil:
			if b != nil || !ok {
				t.Errorf("part %q: %d bytes, %v, with an error", name, len(b), ok)
			}
			bad("part "+name, "get", err)
			r.parts[name] = false
		case !ok || string(b) != want:
			t.Errorf("part %q has other bytes", name)
		default:
			r.parts[name] = true
		}
	}
	return r
}

// compare wants a reading, and each error to be about a file.
func (r reading) compare(t testing.TB, want reading, path string) {
	t.Helper()
	for _, e := range r.errs {
		if e.Path != path {
			t.Errorf("%s is damaged, and the error says %v", path, e)
		}
	}
	r.errs, want.errs = nil, nil
	if diff := gocmp.Diff(want, r, gocmp.AllowUnexported(reading{})); diff != "" {
		t.Errorf("what can be read (-want +got):\n%s", diff)
	}
}

// whole is the damage of a segment of which nothing can be read.
func (st *sealedStore) whole(path string, segment int) pawl.Damage {
	span := sealedSpans[segment]
	return pawl.Damage{Path: path, Length: int64(len(st.files[st.segments[segment]])), First: span.first, Last: span.last, FirstSeq: span.firstSeq, LastSeq: span.lastSeq}
}

// damageIs wants exactly this damage.
func damageIs(t testing.TB, e *pawl.Error, want ...pawl.Damage) {
	t.Helper()
	got := slices.Clone(e.Damage)
	for i := range got {
		if got[i].Problem == "" {
			t.Errorf("no problem is told: %+v", got[i])
		}
		got[i].Problem = ""
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("damage (-want +got):\n%s", diff)
	}
}

// sealedDamage is something that may happen to a file. It leaves nothing of it that can
// be read.
type sealedDamage struct {
	name string
	do   func(t *testing.T, path string, was []byte)
	also error // what the error matches besides ErrDamaged
}

func sealedDamages(other []byte) []sealedDamage {
	content := func(change func(was []byte) []byte) func(*testing.T, string, []byte) {
		return func(t *testing.T, path string, was []byte) { overwrite(t, path, change(slices.Clone(was))) }
	}
	all := []sealedDamage{
		{"absent", func(t *testing.T, path string, _ []byte) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrMissing},
		{"empty", content(func([]byte) []byte { return nil }), nil},
		{"one byte", content(func(was []byte) []byte { return was[:1] }), nil},
		{"half", content(func(was []byte) []byte { return was[:len(was)/2] }), nil},
		{"a byte short", content(func(was []byte) []byte { return was[:len(was)-1] }), nil},
		{"a byte too many", content(func(was []byte) []byte { return append(was, 0) }), nil},
		{"twice", content(func(was []byte) []byte { return append(was, was...) }), nil},
		{"zeroed", content(func(was []byte) []byte { return make([]byte, len(was)) }), nil},
		{"all ones", content(func(was []byte) []byte { return bytes.Repeat([]byte{0xff}, len(was)) }), nil},
		{"the last bit", content(func(was []byte) []byte { return flip(was, 8*len(was)-1) }), nil},
		{"another store's", content(func([]byte) []byte { return other }), nil},
		{"a gigabyte of nothing", func(t *testing.T, path string, _ []byte) {
			if runtime.GOOS == "windows" {
				t.Skip("files with holes are made otherwise there")
			}
			if err := os.Truncate(path, 1<<30); err != nil {
				t.Fatal(err)
			}
		}, nil},
	}
	for _, i := range impostors {
		all = append(all, sealedDamage{i.name, func(t *testing.T, path string, was []byte) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			i.make(t, path, filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(path))), "elsewhere"), was)
		}, nil})
	}
	return all
}

// putBack puts a file back, whatever is in its place: into the same file when that is
// one, else as a new one.
func putBack(t *testing.T, path string, was []byte) {
	t.Helper()
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	overwrite(t, path, was)
}

// ---- segments -----------------------------------------------------------------------

// TestBadSegment: whatever takes the place of a segment, the store opens, tells what
// cannot be read and with which commits, never reads a shorter or another history, and
// goes on; with the right file put back nothing was lost (contracts 1, 6, 8, 9, 11; R5,
// R14, R17, R21; 2, 10, 12, 13, 38).
func TestBadSegment(t *testing.T) {
	one, other := sealedStores(t)
	for i, name := range one.segments {
		for n, d := range sealedDamages(other.files[other.segments[i]]) {
			if testing.Short() && i != 1 && n%4 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d/%s", i, d.name), func(t *testing.T) {
				b := newBench(t)
				b.laySealed(one)
				path := b.at(name)
				d.do(t, path, one.files[name])
				left := testkit.Snapshot(t, path)
				var s *pawl.Store
				if used := allocated(func() { s = b.sealedOpen() }); used > 8<<20 {
					t.Errorf("%d bytes were allocated", used)
				}
				defer b.close(s)
				unread := func(s looker) {
					t.Helper()
					got := one.read(t, s)
					got.compare(t, one.without(i), path)
					for _, e := range got.errs {
						damageIs(t, e, one.whole(path, i))
						if d.also != nil && !errors.Is(e, d.also) {
							t.Errorf("%v; want also: %v", e, d.also)
						}
					}
				}
				unread(s)
				r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
				if err != nil {
					t.Fatal(err)
				}
				unread(r)
				if err := r.Close(); err != nil {
					t.Error(err)
				}
				damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged), one.whole(path, i))
				b.goesOnBeside(s, one, i)

				// What takes its place is nobody's to remove, and it is evidence.
				if diff := gocmp.Diff(left, testkit.Snapshot(t, path)); diff != "" {
					t.Errorf("the damaged file changed (-before +after):\n%s", diff)
				}
				// Put back, it can be read at once.
				putBack(t, path, one.files[name])
				b.mended(s, one)
			})
		}
	}
}

// goesOnBeside commits, seals and compacts beside a segment that cannot be read.
func (b *bench) goesOnBeside(s *pawl.Store, st *sealedStore, segment int) {
	b.t.Helper()
	t, ctx := b.t, context.Background()
	if _, err := s.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("more")}}); err != nil {
		t.Errorf("without an id: %v", err)
	}
	// An id that may have been used is refused, before anything is written (20, 33).
	before := testkit.Snapshot(t, b.dir, b.trust)
	_, err := s.Commit(ctx, pawl.Change{ID: "new", Entries: [][]byte{[]byte("more")}})
	exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged)
	ran := false
	_, err = s.Update(ctx, "new", func(pawl.View) (pawl.Change, error) {
		ran = true
		return pawl.Change{}, nil
	})
	if exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged); ran {
		t.Error("Update's function ran")
	}
	for rev, id := range st.ids {
		if id == "" {
			continue
		}
		inside := sealedSpans[segment].first <= pawl.Revision(rev) && pawl.Revision(rev) <= sealedSpans[segment].last
		r, err := s.Update(ctx, id, func(pawl.View) (pawl.Change, error) {
			t.Errorf("Update's function ran for %q", id)
			return pawl.Change{}, nil
		})
		if inside {
			exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged)
		} else if want := st.receipts[rev]; err != nil || !r.Replayed || r.Version != want.Version {
			t.Errorf("%q is not acknowledged again: %v, %v", id, r, err)
		}
	}
	if _, err := s.Compact(ctx, pawl.Policy{KeepLast: 1}); true {
		e := typed(t, err, "compact", pawl.ErrDamaged)
		if e.Path != b.at(st.segments[segment]) || len(e.Damage) == 0 {
			t.Errorf("Compact: %+v", e)
		}
	}
	if diff := gocmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	if err := s.Checkpoint(ctx); err != nil {
		t.Error(err)
	}
	if n := len(glob(t, b.at("segments/seg-*"))); n < len(st.segments) {
		t.Errorf("%d segments", n)
	}
	if e := lastEntry(t, s.View()); string(e.Data) != "more" || e.Seq != sealedEntries+1 {
		t.Errorf("entry %d %q", e.Seq, e.Data)
	}
}

func lastEntry(t testing.TB, v pawl.View) (last pawl.Entry) {
	t.Helper()
	for e, err := range v.Entries(sealedEntries - 1) {
		if err != nil {
			t.Error(err)
		}
		last = e
	}
	return last
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// mended wants all that there was, and what goesOnBeside added.
func (b *bench) mended(s *pawl.Store, st *sealedStore) {
	b.t.Helper()
	if err := s.Verify(context.Background(), nil); err != nil {
		b.t.Errorf("after it was put back: %v", err)
	}
	st.within(b.t, dump(s.View()))
	if _, err := s.Commit(context.Background(), pawl.Change{ID: "after", Entries: [][]byte{nil}}); err != nil {
		b.t.Error(err)
	}
	r, err := s.Compact(context.Background(), pawl.Policy{KeepLast: 1})
	if err != nil || r.Kept == 0 || r.Entries == 0 {
		b.t.Errorf("%+v, %v", r, err)
	}
}

// within wants all that the store had to be in what a View of a later state says.
func (st *sealedStore) within(t testing.TB, got string) {
	t.Helper()
	lost, first := 0, ""
	for _, line := range strings.SplitAfter(st.says, "\n") {
		if !strings.HasPrefix(line, "version ") && !strings.Contains(got, line) {
			if lost++; lost == 1 {
				first = line
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d things are not there, the first: %.120s", lost, first)
	}
}

// TestSegmentPutBack: a file that is put back can be read again at once, whether its bytes
// are written into the damaged one or it is renamed over it.
func TestSegmentPutBack(t *testing.T) {
	one, _ := sealedStores(t)
	for _, name := range []string{one.segments[1], one.partFile["large-b"]} {
		for _, way := range []string{"written", "renamed"} {
			t.Run(name[:strings.Index(name, "/")]+"/"+way, func(t *testing.T) {
				if way == "renamed" && runtime.GOOS == "windows" {
					t.Skip("Wine does not rename over a file that a process has open")
				}
				b := newBench(t)
				b.laySealed(one)
				path := b.at(name)
				overwrite(t, path, make([]byte, len(one.files[name])))
				s := b.sealedOpen()
				defer b.close(s)
				v := s.View()
				if got := one.read(t, s); len(got.errs) == 0 {
					t.Error("the damage was not noticed")
				}
				if way == "written" {
					overwrite(t, path, one.files[name])
				} else {
					write(t, path+"-back", string(one.files[name]))
					if err := os.Rename(path+"-back", path); err != nil {
						t.Fatal(err)
					}
				}
				one.read(t, s).compare(t, one.all(), path)
				if diff := gocmp.Diff(one.says, dump(v)); diff != "" {
					t.Errorf("of a View that was taken before (-want +got):\n%s", diff)
				}
				b.mended(s, one)
			})
		}
	}
}

// TestSegmentsSwapped: each is a segment of this store, whole, under the name of another.
func TestSegmentsSwapped(t *testing.T) {
	one, _ := sealedStores(t)
	b := newBench(t)
	b.laySealed(one)
	overwrite(t, b.at(one.segments[0]), one.files[one.segments[2]])
	overwrite(t, b.at(one.segments[2]), one.files[one.segments[0]])
	s := b.sealedOpen()
	defer b.close(s)
	got := one.read(t, s)
	for _, e := range got.errs {
		i := slices.Index(one.segments, filepath.ToSlash(strings.TrimPrefix(e.Path, b.dir+string(filepath.Separator))))
		if i != 0 && i != 2 {
			t.Fatalf("%v", e)
		}
		damageIs(t, e, one.whole(e.Path, i))
		e.Path = ""
	}
	got.compare(t, one.all().and(one.without(0)).and(one.without(2)), "")
	e := typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged)
	damageIs(t, e, one.whole(b.at(one.segments[0]), 0), one.whole(b.at(one.segments[2]), 2))
}

// and is what can be read under either.
func (r reading) and(o reading) reading {
	both := func(a, b []bool) []bool {
		a = slices.Clone(a)
		for i := range a {
			a[i] = a[i] && b[i]
		}
		return a
	}
	return reading{entries: both(r.entries, o.entries), commits: both(r.commits, o.commits), contains: both(r.contains, o.contains), lookups: both(r.lookups, o.lookups), parts: r.parts}
}

// sealedAt is where in a segment each of its records begins, and after the last of them
// where the tables begin.
func (st *sealedStore) sealedAt(segment int) (at []int) {
	b := st.files[st.segments[segment]]
	span := sealedSpans[segment]
	at = []int{256}
	for n := span.first; n <= span.last; n++ {
		last := at[len(at)-1]
		at = append(at, last+4+int(binary.LittleEndian.Uint32(b[last:])))
	}
	return at
}

// TestSegmentFlip: any byte of a small segment changed (LESSONS "bit rot"). Every way to
// read gets what was written or ErrDamaged, and Verify notices each.
func TestSegmentFlip(t *testing.T) {
	one, _ := sealedStores(t)
	const segment = 2
	b := newBench(t)
	b.laySealed(one)
	path, was := b.at(one.segments[segment]), one.files[one.segments[segment]]
	want, span := one.without(segment), sealedSpans[segment]
	for i := 0; i < len(was) && !t.Failed(); i += stride(5) {
		overwrite(t, path, flip(was, 8*i+i%8))
		s := b.sealedOpen()
		if i%11 == 0 {
			got := one.read(t, s)
			got.compare(t, want, path)
		} else { // a way of each kind
			damagedFirst(t, "entries", s.View().Entries(span.lastSeq-1))
			damagedFirst(t, "commits", s.View().Commits(span.first-1))
			_, err := s.View().Contains(one.receipts[span.last])
			typed(t, err, "contains", pawl.ErrDamaged)
			_, _, err = s.Lookup(context.Background(), one.ids[span.last])
			typed(t, err, "lookup", pawl.ErrDamaged)
		}
		e := typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged)
		footer := i >= len(was)-24-32 // it is not known then what else is wrong
		whole := one.whole(path, segment)
		if !footer {
			whole.Length -= 24 + 32
		}
		damageIs(t, e, whole)
		if b.close(s); t.Failed() {
			t.Errorf("byte %d of %d", i, len(was))
		}
	}
}

// damagedFirst wants an error, and nothing before it.
func damagedFirst[T any](t testing.TB, op string, all iter.Seq2[T, error]) {
	t.Helper()
	for v, err := range all {
		if typed(t, err, op, pawl.ErrDamaged); err == nil {
			t.Errorf("%v", v)
		}
		return
	}
	t.Error("it ended without an error")
}

// TestSegmentPieceFlipped: of a segment of several pieces, what is in the others can be
// read, and the error says which commits and entries cannot.
func TestSegmentPieceFlipped(t *testing.T) {
	one, _ := sealedStores(t)
	const segment, chunk = 1, 16384
	b := newBench(t)
	b.laySealed(one)
	path, was, at, span := b.at(one.segments[segment]), one.files[one.segments[segment]], one.sealedAt(segment), sealedSpans[segment]
	end := len(was) - 24 - 32*((len(was)+chunk-1)/chunk) // of what comes before the footer
	if records := at[len(at)-1]; records/chunk != (end-1)/chunk || records <= chunk {
		t.Fatalf("tables from %d to %d", records, end)
	}
	for from := 0; from < end; from += chunk {
		length := min(chunk, end-from)
		want, damage := one.all(), pawl.Damage{Path: path, Offset: int64(from), Length: int64(length), First: span.first, Last: span.last, FirstSeq: span.firstSeq, LastSeq: span.lastSeq}
		hit := []pawl.Revision{}
		for i := range len(at) - 1 {
			if at[i] < from+length && at[i+1] > from {
				hit = append(hit, span.first+pawl.Revision(i))
			}
		}
		lost := func(rev pawl.Revision) {
			want.commits[rev], want.contains[rev], want.lookups[rev] = false, false, one.ids[rev] == ""
			for seq, of := range one.of {
				if seq > 0 && of == rev {
					want.entries[seq] = false
				}
			}
		}
		tables := from+length == end
		if !tables {
			damage.First, damage.Last = hit[0], hit[len(hit)-1]
			damage.FirstSeq, damage.LastSeq = one.receipts[damage.First].FirstSeq, one.receipts[damage.Last].LastSeq
			for _, rev := range hit {
				lost(rev)
			}
		} else {
			want = one.without(segment)
			// The first record is where it begins.
			want.entries[span.firstSeq], want.commits[span.first] = true, true
		}
		for _, at := range []int{from, from + 1, from + length/2, from + length - 1} {
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				overwrite(t, path, flip(was, 8*at+at%8))
				s := b.sealedOpen()
				defer b.close(s)
				got := one.read(t, s)
				for _, e := range got.errs {
					damageIs(t, e, damage)
				}
				got.compare(t, want, path)
				damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged), damage)

				// Where the filter can be read, a new id is known to be new.
				_, err := s.Commit(context.Background(), pawl.Change{ID: "new", Entries: [][]byte{nil}})
				if tables {
					exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged)
				} else if err != nil {
					t.Error(err)
				}
				for rev := span.first; rev <= span.last; rev++ {
					r, err := s.Update(context.Background(), one.ids[rev], func(pawl.View) (pawl.Change, error) {
						t.Errorf("Update's function ran for revision %d", rev)
						return pawl.Change{}, nil
					})
					if want.lookups[rev] && (err != nil || r.Version != one.receipts[rev].Version) {
						t.Errorf("%v, %v", r, err)
					} else if !want.lookups[rev] {
						exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged)
					}
				}
			})
			b.laySealed(one)
		}
	}
}

// TestMergeBesideDamage: small segments become one, and one that is damaged stays what
// and where it is.
func TestMergeBesideDamage(t *testing.T) {
	one, _ := sealedStores(t)
	b := newBench(t)
	b.laySealed(one)
	path := b.at(one.segments[2])
	overwrite(t, path, make([]byte, len(one.files[one.segments[2]])))
	s := b.sealedOpen()
	defer b.close(s)
	least, most := 100, 0
	for i := range 20 {
		if _, err := s.Commit(context.Background(), entry("", fmt.Sprint("after ", i))); err != nil {
			t.Fatal(err)
		}
		if err := s.Checkpoint(context.Background()); err != nil {
			t.Fatal(err)
		}
		n := s.Stats().Segments
		if most = max(most, n); n < most {
			least = min(least, n)
		}
		if !bytes.Equal(read(t, path), make([]byte, len(one.files[one.segments[2]]))) {
			t.Fatal("the damaged one changed")
		}
	}
	if most < 10 || least > 6 {
		t.Errorf("between %d and %d segments: nothing was merged", least, most)
	}
	n := 0
	for e, err := range s.View().Entries(sealedEntries) {
		if err != nil || string(e.Data) != fmt.Sprint("after ", n) {
			t.Fatalf("%d: %q, %v", n, e.Data, err)
		}
		n++
	}
	if n != 20 {
		t.Errorf("%d entries", n)
	}
	damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged), one.whole(path, 2))
	overwrite(t, path, one.files[one.segments[2]])
	b.mended(s, one)
}

// TestCompactElsewhere: Compact goes on beside a damaged segment that it need not read.
func TestCompactElsewhere(t *testing.T) {
	one, _ := sealedStores(t)
	b := newBench(t)
	b.laySealed(one)
	path := b.at(one.segments[2])
	overwrite(t, path, make([]byte, len(one.files[one.segments[2]])))
	// Nothing is sealed at the same time.
	s, err := pawl.Open(quick(), b.dir, b.trust, &pawl.Options{Limits: pawl.Limits{Unsealed: 1 << 20, Inline: 100}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.close(s)
	r, err := s.Compact(context.Background(), pawl.Policy{KeepLast: sealedEntries - 5})
	if err != nil || r.Entries != 5 || r.Kept != sealedEntries-5 {
		t.Errorf("%+v, %v", r, err)
	}
	damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged), one.whole(path, 2))
	overwrite(t, path, one.files[one.segments[2]])
	if err := s.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
	n := pawl.Seq(5)
	for e, err := range s.View().Entries(0) {
		if n++; err != nil || e.Seq != n || !bytes.Equal(e.Data, one.entries[n]) {
			t.Fatal(e.Seq, err)
		}
	}
	if n != sealedEntries {
		t.Errorf("up to %d", n)
	}
}

// ---- files of parts -----------------------------------------------------------------

// TestBadPartFile: whatever takes the place of a part's file, that part cannot be read,
// all else can, and the store goes on (contracts 1, 8, 11; R14; 2, 13).
func TestBadPartFile(t *testing.T) {
	one, other := sealedStores(t)
	// A part that is named by its digest is the same in every store: another part's bytes.
	for _, name := range []string{"large-a", "large-b"} {
		for n, d := range sealedDamages(other.files[other.partFile[map[string]string{"large-a": "large-b", "large-b": "large-a"}[name]]]) {
			if testing.Short() && name == "large-a" && n%4 != 0 {
				continue
			}
			t.Run(name+"/"+d.name, func(t *testing.T) {
				b := newBench(t)
				b.laySealed(one)
				path, was := b.at(one.partFile[name]), one.files[one.partFile[name]]
				d.do(t, path, was)
				left := testkit.Snapshot(t, path)
				s := b.sealedOpen()
				defer b.close(s)
				want := one.all()
				want.parts[name] = false
				damage := pawl.Damage{Path: path, Length: int64(len(was)), Part: name}
				unread := func(s looker) {
					t.Helper()
					var got reading
					if used := allocated(func() { got = one.read(t, s) }); used > 64<<20 {
						t.Errorf("%d bytes were allocated", used)
					}
					got.compare(t, want, path)
					if len(got.errs) != 1 {
						t.Errorf("%d errors", len(got.errs))
					}
					for _, e := range got.errs {
						damageIs(t, e, damage)
						if d.also != nil && !errors.Is(e, d.also) {
							t.Errorf("%v; want also: %v", e, d.also)
						}
					}
				}
				unread(s)
				if _, ok, err := pawl.GetJSON[int](s.View(), name); !ok || !errors.Is(err, pawl.ErrDamaged) {
					t.Errorf("%v, %v", ok, err)
				}
				r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
				if err != nil {
					t.Fatal(err)
				}
				unread(r)
				b.close(r)
				damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged), damage)
				for _, c := range []pawl.Change{entry("", "more"), entry("new", "more"), put("small", "s")} {
					if _, err := s.Commit(context.Background(), c); err != nil {
						t.Error(err)
					}
				}
				if err := s.Checkpoint(context.Background()); err != nil {
					t.Error(err)
				}
				damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged), damage)
				if diff := gocmp.Diff(left, testkit.Snapshot(t, path)); diff != "" {
					t.Errorf("the damaged file changed (-before +after):\n%s", diff)
				}
				putBack(t, path, was)
				b.mended(s, one)
			})
		}
	}
}

// TestDamagedPartReplaced: a part whose file is damaged takes new bytes, and is whole then.
func TestDamagedPartReplaced(t *testing.T) {
	one, _ := sealedStores(t)
	for _, tt := range []struct {
		name    string
		changes []pawl.Change
	}{
		{"other bytes", []pawl.Change{put("large-a", strings.Repeat("n", 500))}},
		{"small bytes", []pawl.Change{put("large-a", "n")}},
		{"deleted", []pawl.Change{{Delete: []string{"large-a"}}}},
		{"deleted, and the same bytes", []pawl.Change{{Delete: []string{"large-a"}}, put("large-a", one.parts["large-a"])}},
		{"the same bytes", []pawl.Change{put("large-a", one.parts["large-a"])}},
	} {
		for _, absent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/absent %v", tt.name, absent), func(t *testing.T) {
				b := newBench(t)
				b.laySealed(one)
				path := b.at(one.partFile["large-a"])
				overwrite(t, path, nil)
				if absent {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
				s := b.sealedOpen()
				defer func() { b.close(s) }()
				if _, _, err := s.View().Get("large-a"); !errors.Is(err, pawl.ErrDamaged) {
					t.Error(err)
				}
				want, exists := "", true
				for _, c := range tt.changes {
					commit(t, s, c)
					want, exists = string(c.Put["large-a"]), c.Put != nil
				}
				check := func(when string) {
					t.Helper()
					if got, ok, err := s.View().Get("large-a"); string(got) != want || ok != exists || err != nil {
						t.Errorf("%s: %d bytes, %v, %v", when, len(got), ok, err)
					}
					if err := s.Verify(context.Background(), nil); err != nil {
						t.Errorf("%s: %v", when, err)
					}
				}
				check("at once")
				if err := s.Checkpoint(context.Background()); err != nil {
					t.Fatal(err)
				}
				check("published")
				b.close(s)
				s = b.sealedOpen()
				check("opened again")
			})
		}
	}
}

// TestRetiredNameOfSomebody: a file that the state does not need any more is removed, but
// not what somebody put in its place that is not a file (contract 8).
func TestRetiredNameOfSomebody(t *testing.T) {
	one, _ := sealedStores(t)
	for _, opened := range []bool{false, true} {
		for _, i := range impostors {
			t.Run(fmt.Sprintf("%s/opened %v", i.name, opened), func(t *testing.T) {
				if opened && runtime.GOOS == "windows" {
					t.Skip("an open file keeps its name there")
				}
				b := newBench(t)
				b.laySealed(one)
				path := b.at(one.partFile["large-a"])
				s := b.sealedOpen()
				defer b.close(s)
				if opened {
					partsOf(t, s.View())
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				i.make(t, path, filepath.Join(filepath.Dir(b.dir), "elsewhere"), one.files[one.partFile["large-a"]])
				before := testkit.Snapshot(t, path)
				commit(t, s, put("large-a", "small"))
				if err := s.Checkpoint(context.Background()); err != nil {
					t.Fatal(err)
				}
				if diff := gocmp.Diff(before, testkit.Snapshot(t, path)); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
			})
		}
	}
}

// ---- the directories ----------------------------------------------------------------

// TestBadFolder: whatever takes the place of the directory of segments, or of that of
// parts, is not followed, not waited for and not removed. The store opens; what needs the
// directory fails, with nothing changed; and with the right one put back all is there.
func TestBadFolder(t *testing.T) {
	one, _ := sealedStores(t)
	for _, name := range []string{"segments", "parts"} {
		shapes := []sealedDamage{
			{"absent", func(*testing.T, string, []byte) {}, nil},
			{"a file", func(t *testing.T, path string, _ []byte) { write(t, path, "x") }, nil},
			{"an empty file", func(t *testing.T, path string, _ []byte) { write(t, path, "") }, nil},
			{"a symlink to the real one", func(t *testing.T, path string, _ []byte) { symlink(t, path+"-real", path) }, nil},
		}
		for _, i := range impostors {
			if strings.Contains(i.name, "real file") || strings.HasPrefix(i.name, "a directory") {
				continue
			}
			shapes = append(shapes, sealedDamage{i.name, func(t *testing.T, path string, _ []byte) {
				i.make(t, path, filepath.Join(filepath.Dir(filepath.Dir(path)), "elsewhere"), nil)
			}, nil})
		}
		for _, shape := range shapes {
			t.Run(name+"/"+shape.name, func(t *testing.T) {
				if shape.name == "absent" && runtime.GOOS == "windows" {
					t.Skip("a directory that is held open keeps its name there")
				}
				b := newBench(t)
				b.laySealed(one)
				path := b.at(name)
				if err := os.Rename(path, path+"-real"); err != nil {
					t.Fatal(err)
				}
				shape.do(t, path, nil)
				s := b.sealedOpen()
				defer func() { b.close(s) }()
				got := one.read(t, s)
				for _, e := range got.errs {
					if filepath.Dir(e.Path) != path || !errors.Is(e, pawl.ErrMissing) {
						t.Errorf("%v", e)
					}
					e.Path = path
				}
				want := one.all()
				if name == "parts" {
					want.parts["large-a"], want.parts["large-b"] = false, false
				} else {
					want = want.and(one.without(0)).and(one.without(1)).and(one.without(2))
				}
				got.compare(t, want, path)
				if e := typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged); len(e.Damage) != len(glob(t, path+"-real/*")) {
					t.Errorf("%+v", e.Damage)
				}
				if _, err := s.Commit(context.Background(), entry("", "more")); err != nil {
					t.Error(err)
				}
				_, err := s.Commit(context.Background(), entry("new", "more"))
				if name == "segments" {
					exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged, pawl.ErrMissing)
				} else if err != nil {
					t.Error(err)
				}
				if name == "parts" {
					if _, err := s.Commit(context.Background(), put("new", strings.Repeat("x", 200))); err != nil {
						t.Error(err)
					}
				}
				before, says := testkit.Snapshot(t, b.dir), dump(s.View())
				err = s.Checkpoint(context.Background())
				if shape.name == "absent" {
					if err != nil {
						t.Error(err)
					}
					if name == "parts" {
						if b, _, err := s.View().Get("new"); len(b) != 200 || err != nil {
							t.Error(len(b), err)
						}
					}
					for _, p := range glob(t, path+"/*") {
						if err := os.Rename(p, filepath.Join(path+"-real", filepath.Base(p))); err != nil {
							t.Fatal(err)
						}
					}
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else {
					checkpointFails(t, err, path)
					if diff := gocmp.Diff(before, testkit.Snapshot(t, b.dir)); diff != "" || dump(s.View()) != says {
						t.Errorf("something changed:\n%s", diff)
					}
					if err := os.RemoveAll(path); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Rename(path+"-real", path); err != nil {
					t.Fatal(err)
				}
				b.close(s)
				s = b.sealedOpen()
				b.mended(s, one)
			})
		}
	}
}

// checkpointFails wants an error of the operating system about a directory.
func checkpointFails(t testing.TB, err error, path string) {
	t.Helper()
	var e *pawl.Error
	if !errors.As(err, &e) || e.Op != "checkpoint" || e.Kind != nil && e.Kind != pawl.ErrUnauthorized || e.Path != path && filepath.Dir(e.Path) != path || e.Cause == nil {
		t.Errorf("%v", err)
	}
}

// TestFolderGoesAway: the directory of segments is taken away under an open store. What
// it has open is read on; what it writes goes where the name leads; and with the files put
// back all is there.
func TestFolderGoesAway(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open directory keeps its name there")
	}
	one, _ := sealedStores(t)
	for _, other := range []bool{false, true} {
		b := newBench(t)
		b.laySealed(one)
		s := b.sealedOpen()
		one.read(t, s).compare(t, one.all(), "")
		path := b.at("segments")
		if err := os.Rename(path, path+"-real"); err != nil {
			t.Fatal(err)
		}
		if other {
			mkdir(t, path)
			write(t, filepath.Join(path, "notes"), "x")
		}
		commit(t, s, entry("new", "more"))
		if err := s.Checkpoint(context.Background()); err != nil {
			t.Fatal(err)
		}
		one.within(t, dump(s.View()))
		damageIs(t, typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged),
			one.whole(b.at(one.segments[0]), 0), one.whole(b.at(one.segments[1]), 1), one.whole(b.at(one.segments[2]), 2))
		for _, name := range one.segments {
			if err := os.Rename(filepath.Join(path+"-real", filepath.Base(name)), b.at(name)); err != nil {
				t.Fatal(err)
			}
		}
		b.mended(s, one)
		b.close(s)
	}
}

// TestSweepKeptFiles: what a killed process left in the two directories is swept by the
// next Open, and told. Nothing else is, and nobody but Open sweeps (contract 8; 23).
func TestSweepKeptFiles(t *testing.T) {
	one, _ := sealedStores(t)
	b := newBench(t)
	b.laySealed(one)
	digest := strings.Repeat("0123456789abcdef", 4)
	swept := []string{"segments/seg-000000000099-0123456789abcdef", "segments/seg-000000000001-0123456789abcdef", "segments/seg-1000000000000-0123456789abcdef",
		"segments/tmp-0123456789abcdef", "parts/tmp-fedcba9876543210", "parts/" + digest}
	stays := []string{"segments/notes", "segments/seg-1-0123456789abcdef", "segments/seg-000000000099-0123456789ABCDEF", "segments/seg-000000000099-0123456789abcde",
		"segments/seg-000000000099-0123456789abcdef0", "segments/seg-000000000099-0123456789abcdef.bak", "segments/seg-", "segments/tmp-0123", "segments/bundle", "segments/" + digest,
		"parts/notes", "parts/" + strings.ToUpper(digest), "parts/" + digest[1:], "parts/" + digest + "0", "parts/seg-000000000099-0123456789abcdef", "parts/tmp-0123456789ABCDEF"}
	for _, name := range append(slices.Clone(swept), stays...) {
		if _, err := os.Lstat(b.at(name)); err == nil && runtime.GOOS != "linux" {
			continue // names fold
		}
		write(t, b.at(name), name)
	}
	for _, name := range []string{"segments/seg-000000000077-0123456789abcdef", "parts/" + strings.Repeat("77", 32), "parts/tmp-7777777777777777"} {
		mkdir(t, b.at(name))
		write(t, b.at(name+"/x"), "x")
		mkdir(t, b.at(name[:len(name)-1]+"8"))
	}
	outside := filepath.Join(filepath.Dir(b.dir), "outside")
	write(t, outside, "x")
	if runtime.GOOS != "windows" {
		symlink(t, outside, b.at("segments/seg-000000000055-0123456789abcdef"))
		symlink(t, outside, b.at("parts/"+strings.Repeat("55", 32)))
		symlink(t, outside, b.at("parts/tmp-5555555555555555"))
	}
	before := testkit.Snapshot(t, b.dir, outside)
	for range 2 {
		r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
		if err != nil {
			t.Fatal(err)
		}
		one.read(t, r).compare(t, one.all(), "")
		b.close(r)
		if _, err := pawl.Inspect(quick(), b.dir, b.trust, sealing); err != nil {
			t.Error(err)
		}
	}
	if diff := gocmp.Diff(before, testkit.Snapshot(t, b.dir, outside)); diff != "" {
		t.Errorf("a Reader or Inspect changed something (-before +after):\n%s", diff)
	}
	s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Clone(s.Recovery().Swept)
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(swept))) {
		t.Errorf("swept %q, want %q", got, swept)
	}
	one.read(t, s).compare(t, one.all(), "")
	b.close(s)
	after := testkit.Snapshot(t, b.dir, outside)
	for _, name := range swept {
		delete(before, b.at(name))
	}
	delete(after, b.at("lock"))
	if diff := gocmp.Diff(before, after); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	b.sealedOpenAgain(one)
	for _, name := range []string{"parts/tmp-7777777777777777", "parts/tmp-7777777777777778", "parts/tmp-5555555555555555"} {
		if err := os.RemoveAll(b.at(name)); err != nil { // or they are taken for temps that were left behind
			t.Fatal(err)
		}
	}
}

// sealedOpenAgain opens the store once more, finds nothing to sweep, and all there.
func (b *bench) sealedOpenAgain(st *sealedStore) {
	b.t.Helper()
	s := b.sealedOpen()
	defer b.close(s)
	st.read(b.t, s).compare(b.t, st.all(), "")
}

// TestKeptFilesWithoutTrust: segments or parts without a trust file are somebody's store,
// and never adopted. Beside a trust file that says that nothing was committed, they are
// what a first commit left that was cut off (contracts 4 and 5).
func TestKeptFilesWithoutTrust(t *testing.T) {
	one, _ := sealedStores(t)
	for _, name := range []string{one.segments[1], one.partFile["large-a"]} {
		b := newBench(t)
		mkdir(t, filepath.Dir(b.at(name)))
		write(t, b.at(name), string(one.files[name]))
		b.refused(sealing, nil, pawl.ErrUntrusted)
		if err := os.Remove(b.at(name)); err != nil {
			t.Fatal(err)
		}
		s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
		if err != nil {
			t.Fatal(err)
		}
		b.close(s)
		write(t, b.at(name), string(one.files[name]))
		if s, err = pawl.Open(quick(), b.dir, b.trust, sealing); err != nil {
			t.Fatal(err)
		}
		if got := s.Recovery().Swept; !slices.Equal(got, []string{name}) || s.View().Version().Revision != 0 {
			t.Errorf("swept %q", got)
		}
		b.close(s)
	}
}

// ---- the bundle's table -------------------------------------------------------------

// sealedRow is where in a bundle the row of a segment is: it ends with the digest of the
// segment's footer (see segment.go).
func (st *sealedStore) sealedRow(t testing.TB, segment int) int {
	t.Helper()
	b := st.files[st.segments[segment]]
	footer := sha256.Sum256(b[len(b)-24-32*((len(b)+16383)/16384):])
	at := bytes.Index(st.files["bundle"], footer[:])
	if at < 0 || bytes.Count(st.files["bundle"], footer[:]) != 1 {
		t.Fatal("the bundle does not name the segment")
	}
	return at + 32 - 104
}

// TestBadRows: a bundle whose table of segments is not one that pawl makes is refused,
// with checksums that are right and with a trust file that names it (contracts 1, 11; R21).
func TestBadRows(t *testing.T) {
	one, _ := sealedStores(t)
	// The store as its last bundle has it, so that the trust file is easily made to fit.
	published := newBench(t)
	published.laySealed(one)
	s := published.sealedOpen()
	commit(t, s, put("large-a", strings.Repeat("z", 300)))
	if err := s.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	published.close(s)
	st := &sealedStore{files: map[string][]byte{}, segments: one.segments, trust: read(t, published.slots)}
	st.files["bundle"] = read(t, published.bundle)
	for _, path := range append(glob(t, published.at("segments/*")), glob(t, published.at("parts/*"))...) {
		rel, err := filepath.Rel(published.dir, path)
		if err != nil {
			t.Fatal(err)
		}
		st.files[filepath.ToSlash(rel)] = read(t, path)
	}
	bundle, row, last := st.files["bundle"], st.sealedRow(t, 1), st.sealedRow(t, 2)
	table := st.sealedRow(t, 0) - 4
	rows := int(binary.LittleEndian.Uint32(bundle[table:]))
	if rows != 4 || last != row+104 || table+4+104 != row {
		t.Fatalf("%d rows, at %d, %d, %d", rows, table, row, last)
	}
	u64 := func(at int, v uint64) []byte {
		return withBytes(bundle, at, binary.LittleEndian.AppendUint64(nil, v)...)
	}
	u32 := func(at int, v uint32) []byte {
		return withBytes(bundle, at, binary.LittleEndian.AppendUint32(nil, v)...)
	}
	get := func(at int) uint64 { return binary.LittleEndian.Uint64(bundle[at:]) }
	cut := func(from, to int) []byte { return slices.Delete(slices.Clone(bundle), from, to) }
	sized := func(b []byte) []byte {
		return withBytes(b, 28, binary.LittleEndian.AppendUint64(nil, uint64(len(b)))...)
	}
	// The row after another goes on from where that ends, so the ends of the last must be
	// those of the table.
	for _, tt := range []struct {
		name   string
		bundle []byte
		opens  bool // and the segment is damaged, or its table wrong
	}{
		{"no revision", u64(row, 0), false},
		{"the revision before it", u64(row, 1), false},
		{"a later revision", u64(row, get(row)+50), false},
		{"a huge revision", u64(row, 1<<63), false},
		{"one more commit", u64(row, get(row)+1), true},
		{"one commit less", u64(row, get(row)-1), true},
		{"seqs that fall", u64(row+8, 0), false},
		{"seqs beyond the next", u64(row+8, 1<<40), false},
		{"one seq more", u64(row+8, get(row+8)+1), false},
		{"another history", withBytes(bundle, row+16, 1, 2, 3), true},
		{"another history at the end", withBytes(bundle, last+104+16, 1, 2, 3), false},
		{"no size", u64(row+48, 0), false},
		{"a negative size", u64(row+48, 1<<63), false},
		{"a huge size", u64(row+48, 1<<62), false},
		{"a size for another footer", u64(row+48, get(row+48)+1<<20), false},
		{"a byte more", u64(row+48, get(row+48)+1), true},
		{"no footer", u32(row+56, 0), false},
		{"a huge footer", u32(row+56, 1<<32-1), false},
		{"a longer footer", u32(row+56, binary.LittleEndian.Uint32(bundle[row+56:])+32), false},
		{"an unknown flag", u32(row+60, 4), false},
		{"forgotten, with entries", u32(row+60, 1), false},
		{"forgotten", withBytes(u32(row+60, 1), row+64, make([]byte, 8)...), true},
		{"entries dropped", u32(row+60, 2), true},
		{"more entries than seqs", u64(row+64, 1000), false},
		{"a huge number of entries", u64(row+64, 1<<64-1), false},
		{"an entry less", u64(row+64, get(row+64)-1), true},
		{"another digest", withBytes(bundle, row+72, 1, 2, 3), true},
		{"a row twice", sized(slices.Insert(u32(table, uint32(rows+1)), row, bundle[row:row+104]...)), false},
		{"a row less", sized(withBytes(cut(row, row+104), table, byte(rows-1))), true},
		{"the first row less", sized(withBytes(cut(table+4, row), table, byte(rows-1))), true},
		{"the last row less", sized(withBytes(cut(last+104, last+208), table, byte(rows-1))), false},
		{"rows in another order", slices.Concat(bundle[:table+4], bundle[row:row+104], bundle[table+4:row], bundle[last:]), false},
		{"no rows", sized(withBytes(cut(table+4, last+208), table, 0)), false},
		{"a number that lies", u32(table, uint32(rows+1)), false},
		{"a huge number", u32(table, 1<<32-1), false},
		{"without the flag", withBytes(bundle, 20, 0), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			now := *st
			now.files = map[string][]byte{}
			for path, content := range st.files {
				now.files[path] = content
			}
			now.files["bundle"] = withSum(tt.bundle)
			old, new := fmt.Sprintf("%x", sha256.Sum256(bundle)), fmt.Sprintf("%x", sha256.Sum256(now.files["bundle"]))
			if now.trust = editSlots(st.trust, replace(old, new), same); bytes.Equal(now.trust, st.trust) {
				t.Fatal("the trust file does not name the bundle")
			}
			b.laySealed(&now)
			write(t, filepath.Join(b.dir, "lock"), "")
			write(t, filepath.Join(b.trust, "session.lock"), "")
			if !tt.opens {
				b.refused(sealing, nil, pawl.ErrDamaged)
				return
			}
			s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
			if err != nil {
				t.Fatal(err)
			}
			typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged)
			b.close(s)
			// The same bundle, with the right table.
			b.laySealed(st)
			s = b.sealedOpen()
			if err := s.Verify(context.Background(), nil); err != nil {
				t.Error(err)
			}
			b.close(s)
		})
	}
}
