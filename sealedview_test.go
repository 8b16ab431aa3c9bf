package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// saysOf is everything that a View of a sealed store says, of receipts too.
func (st *sealedStore) saysOf(v pawl.View) string {
	b := strings.Builder{}
	b.WriteString(dump(v))
	for _, r := range st.receipts[1:] {
		ok, err := v.Contains(r)
		fmt.Fprintln(&b, "contains", r, ok, err)
	}
	return b.String()
}

// later are the ways in which files of a state come to be needed no more. Each is done
// by the Store whose View is looked at or, where it is shared, by another.
var later = []struct {
	name string
	do   func(t *testing.T, s *pawl.Store)
}{
	{"sealed", func(t *testing.T, s *pawl.Store) { checkpointed(t, s, entry("a", "more")) }},
	{"merged", func(t *testing.T, s *pawl.Store) {
		for i := range 40 {
			checkpointed(t, s, entry("", fmt.Sprint("merged ", i)))
		}
	}},
	{"compacted", func(t *testing.T, s *pawl.Store) { compacted(t, s, pawl.Policy{KeepLast: 1}) }},
	{"compacted twice", func(t *testing.T, s *pawl.Store) {
		compacted(t, s, pawl.Policy{KeepLast: 10})
		checkpointed(t, s, entry("", "between"))
		compacted(t, s, pawl.Policy{KeepLast: 1})
	}},
	{"forgotten", func(t *testing.T, s *pawl.Store) {
		compacted(t, s, pawl.Policy{KeepLast: 1, ForgetBefore: sealedRevisions})
	}},
	{"a part replaced", func(t *testing.T, s *pawl.Store) { checkpointed(t, s, put("large-a", strings.Repeat("n", 300))) }},
	{"a part replaced by a small one", func(t *testing.T, s *pawl.Store) { checkpointed(t, s, put("large-b", "n")) }},
	{"a part replaced in the journal, and back", func(t *testing.T, s *pawl.Store) {
		commit(t, s, put("large-b", "n"))
		checkpointed(t, s, put("large-b", strings.Repeat("bcd", 10000)))
		checkpointed(t, s, put("large-b", "n"))
	}},
	{"a part put again, and replaced", func(t *testing.T, s *pawl.Store) {
		checkpointed(t, s, put("large-a", strings.Repeat("a", 300)))
		checkpointed(t, s, put("large-a", "n"))
	}},
	{"a part deleted, put again, and replaced", func(t *testing.T, s *pawl.Store) {
		commit(t, s, pawl.Change{Delete: []string{"large-a"}})
		checkpointed(t, s, put("large-a", strings.Repeat("a", 300)))
		checkpointed(t, s, put("large-a", "n"))
	}},
	{"the bytes in another part, and replaced", func(t *testing.T, s *pawl.Store) {
		checkpointed(t, s, put("another", strings.Repeat("a", 300)))
		checkpointed(t, s, put("large-a", "n"))
		checkpointed(t, s, put("another", "n"))
	}},
	{"parts deleted", func(t *testing.T, s *pawl.Store) {
		checkpointed(t, s, pawl.Change{Delete: []string{"large-a", "large-b"}})
	}},
	{"everything", func(t *testing.T, s *pawl.Store) {
		checkpointed(t, s, pawl.Change{Delete: []string{"large-a", "large-b"}, Entries: [][]byte{nil}})
		compacted(t, s, pawl.Policy{KeepLast: 1, ForgetBefore: sealedRevisions})
		for range 40 {
			checkpointed(t, s, entry("", "more"))
		}
		compacted(t, s, pawl.Policy{KeepLast: 1})
	}},
}

func checkpointed(t *testing.T, s *pawl.Store, c pawl.Change) {
	t.Helper()
	commit(t, s, c)
	if err := s.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func compacted(t *testing.T, s *pawl.Store, p pawl.Policy) {
	t.Helper()
	if _, err := s.Compact(context.Background(), p); err != nil {
		t.Fatal(err)
	}
}

// TestViewStays: what a View says stays as it was whatever becomes of the files, whoever
// does it, and though it was never read before; of a Reader's View too (contract 9; 29).
func TestViewStays(t *testing.T) {
	one, _ := sealedStores(t)
	want := one.saysOf(laidView(t, one))
	for _, tt := range later {
		for _, shared := range []bool{false, true} {
			if shared && runtime.GOOS == "windows" {
				continue // an open file keeps its name there, and whoever closes it last removes it
			}
			t.Run(fmt.Sprintf("%s/by another %v", tt.name, shared), func(t *testing.T) {
				b := newBench(t)
				b.laySealed(one)
				o := *sealing
				o.Shared = shared
				s, err := pawl.Open(quick(), b.dir, b.trust, &o)
				if err != nil {
					t.Fatal(err)
				}
				writer := s
				if shared {
					if writer, err = pawl.Open(quick(), b.dir, b.trust, &o); err != nil {
						t.Fatal(err)
					}
				}
				r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
				if err != nil {
					t.Fatal(err)
				}
				views := map[string]pawl.View{"never read": s.View(), "of a Reader, never read": r.View()}
				tt.do(t, writer)
				if v := writer.View(); v.Version() == views["never read"].Version() && !strings.Contains(tt.name, "compacted") && tt.name != "forgotten" {
					t.Fatal("nothing was committed")
				}
				if err := r.Refresh(context.Background()); err != nil {
					t.Fatal(err)
				}
				for name, v := range views {
					if diff := cmp.Diff(want, one.saysOf(v)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", name, diff)
					}
				}
				// What is new is right as well, for everybody.
				if err := writer.Verify(context.Background(), nil); err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(dump(writer.View()), dump(r.View())); diff != "" {
					t.Errorf("a Reader sees something else:\n%s", diff)
				}
				if _, _, err := s.Lookup(context.Background(), "nobody's"); err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(dump(writer.View()), dump(s.View())); diff != "" {
					t.Errorf("the other Store sees something else:\n%s", diff)
				}
				b.close(r)
				b.close(s)
				if shared {
					b.close(writer)
				}
			})
		}
	}
}

// laidView is the View of a sealed store in directories of its own, all of it read.
func laidView(t *testing.T, st *sealedStore) pawl.View {
	t.Helper()
	b := newBench(t)
	b.laySealed(st)
	r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
	if err != nil {
		t.Fatal(err)
	}
	b.close(r)
	return r.View()
}

// TestPartsOfTheSameBytes: two parts of the same bytes share a file. A View has both, when
// neither is in the state any more, when one is, and whoever put them.
func TestPartsOfTheSameBytes(t *testing.T) {
	large := strings.Repeat("x", 300)
	for _, reopened := range []bool{false, true} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("opened again %v/replaced together %v", reopened, together), func(t *testing.T) {
				b := newBench(t)
				collected(t, filepath.Dir(b.dir))
				open := func() *pawl.Store {
					s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				s := open()
				all := map[string][]byte{}
				for i := range 6 { // which of them is taken for all is not decided by order
					all[fmt.Sprint("p", i)] = []byte(large)
				}
				checkpointed(t, s, pawl.Change{Put: all})
				if n := len(glob(t, b.at("parts/*"))); n != 1 {
					t.Errorf("%d files", n)
				}
				if reopened {
					b.close(s)
					s = open()
				}
				v := s.View()
				if together {
					checkpointed(t, s, pawl.Change{Delete: []string{"p0", "p1", "p2", "p3", "p4", "p5"}})
				} else {
					for i := range 6 {
						checkpointed(t, s, put(fmt.Sprint("p", i), fmt.Sprint("n", i)))
						if n := len(glob(t, b.at("parts/*"))); runtime.GOOS != "windows" && (n == 0) != (i == 5) {
							t.Errorf("%d files after %d were replaced", n, i+1)
						}
					}
				}
				for name, got := range partsOfOr(v) {
					if got != large {
						t.Errorf("part %q: %.200s", name, got)
					}
				}
				b.close(s)
				if open := openFiles(b.dir); slices.ContainsFunc(open, func(path string) bool { return !strings.HasSuffix(path, " (deleted)") }) {
					t.Errorf("left open: %q", open)
				}
			})
		}
	}
}

// partsOfOr is all parts of a view; instead of one that cannot be read, why.
func partsOfOr(v pawl.View) map[string]string {
	parts := map[string]string{}
	for name := range v.Parts() {
		b, _, err := v.Get(name)
		if parts[name] = string(b); err != nil {
			parts[name] = err.Error()
		}
	}
	return parts
}

// TestViewAfterClose: a View is read after its Store or Reader is closed, as long as the
// files have their names. When they have not, that is said, and nothing is left out. And
// nothing is left open, ever.
func TestViewAfterClose(t *testing.T) {
	one, _ := sealedStores(t)
	want := one.saysOf(laidView(t, one))
	for _, readBefore := range []bool{false, true} {
		b := newBench(t)
		b.laySealed(one)
		s := b.sealedOpen()
		r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
		if err != nil {
			t.Fatal(err)
		}
		if readBefore {
			one.saysOf(s.View())
			one.saysOf(r.View())
			if runtime.GOOS == "linux" && len(openFiles(b.dir)) < 10 {
				t.Errorf("open while it is used: %q", openFiles(b.dir))
			}
		}
		b.close(s)
		b.close(r)
		if open := openFiles(b.dir); open != nil {
			t.Errorf("left open: %q", open)
		}
		for range 2 {
			for _, v := range []pawl.View{s.View(), r.View()} {
				if diff := cmp.Diff(want, one.saysOf(v)); diff != "" {
					t.Errorf("after Close (-want +got):\n%s", diff)
				}
			}
			if open := openFiles(b.dir); open != nil {
				t.Errorf("left open after it was read: %q", open)
			}
		}
		if _, _, err := s.Lookup(context.Background(), "commit-3"); !errors.Is(err, pawl.ErrClosed) {
			t.Error(err)
		}

		// Another opens the store and drops what the View needs.
		now := b.sealedOpen()
		later[len(later)-1].do(t, now)
		b.close(now)
		if runtime.GOOS == "windows" { // they go with the next Open
			b.sealedSwept()
		}
		for _, v := range []pawl.View{s.View(), r.View()} {
			for _, err := range v.Entries(0) {
				typed(t, err, "entries", pawl.ErrDamaged, pawl.ErrMissing)
				break
			}
			_, ok, err := v.Get("large-a")
			if typed(t, err, "get", pawl.ErrDamaged, pawl.ErrMissing); !ok {
				t.Error("there is no such part")
			}
			if b, _, err := v.Get("small"); string(b) != "s" || err != nil {
				t.Errorf("%q, %v", b, err)
			}
		}
		// And when nothing is there at all.
		if err := os.RemoveAll(b.dir); err != nil {
			t.Fatal(err)
		}
		for _, err := range s.View().Commits(0) {
			typed(t, err, "commits", pawl.ErrDamaged, pawl.ErrMissing)
			break
		}
	}
}

// sealedSwept has an Open sweep what another left.
func (b *bench) sealedSwept() {
	b.t.Helper()
	s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
	if err != nil {
		b.t.Fatal(err)
	}
	b.close(s)
}

// TestFilesOfOldViews: files that are not needed any more stay open for the Views that
// have them, after Close too, and are closed when those are gone.
func TestFilesOfOldViews(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are listed on Linux only")
	}
	one, _ := sealedStores(t)
	want := one.saysOf(laidView(t, one))
	b := newBench(t)
	b.laySealed(one)
	s := b.sealedOpen()
	v := s.View()
	later[len(later)-1].do(t, s)
	b.close(s)
	if got := one.saysOf(v); got != want {
		t.Errorf("after Close:\n%s", cmp.Diff(want, got))
	}
	open := openFiles(b.dir)
	if len(open) < 5 || slices.ContainsFunc(open, func(path string) bool { return !strings.HasSuffix(path, " (deleted)") }) {
		t.Errorf("open: %q", open)
	}
	v = pawl.View{}
	// collected, and then that nothing is left, is what the end of the test looks at.
}

// viewModel is what the writers of TestViewsBesideWriters commit: entries and parts
// follow from revision and seq, so that any View can be held against it.
type viewModel struct{}

func (viewModel) entry(seq pawl.Seq) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "<%d>", seq), int(1+seq*7%40))
}

func (viewModel) part(rev pawl.Revision, name string) []byte {
	// Every third is the same as another time, and both parts are the same then.
	if rev%3 == 0 {
		return bytes.Repeat([]byte(fmt.Sprint("same ", rev%2)), 60)
	}
	return bytes.Repeat(fmt.Appendf(nil, "%s %d;", name, rev), int(1+rev%30))
}

func (m viewModel) change(v pawl.View, n int) pawl.Change {
	rev, seq := v.Version().Revision+1, pawl.Seq(1)
	if b, _, err := v.Get("next"); err != nil {
		panic(err)
	} else if len(b) > 0 {
		fmt.Sscan(string(b), &seq)
	}
	c := pawl.Change{ID: fmt.Sprint("id-", rev), Put: map[string][]byte{}}
	for range n {
		c.Entries = append(c.Entries, m.entry(seq))
		seq++
	}
	c.Put["next"] = fmt.Append(nil, seq)
	for _, name := range []string{"one", "two"} {
		c.Put[name] = m.part(rev, name)
	}
	return c
}

// picture is what a View says. It is held against the model while it is taken.
func (m viewModel) picture(v pawl.View) (string, error) {
	var b strings.Builder
	rev := v.Version().Revision
	seq := pawl.Seq(0)
	for e, err := range v.Entries(0) {
		if err != nil {
			return "", err
		}
		if seq != 0 && e.Seq != seq+1 || !bytes.Equal(e.Data, m.entry(e.Seq)) || e.Revision > rev {
			return "", fmt.Errorf("at revision %d entry %d after %d: %.40q", rev, e.Seq, seq, e.Data)
		}
		if seq == 0 {
			fmt.Fprintln(&b, "from", e.Seq)
		}
		seq = e.Seq
	}
	fmt.Fprintln(&b, "to", seq)
	last := pawl.CommitInfo{}
	for c, err := range v.Commits(0) {
		if err != nil {
			return "", err
		}
		if last.Version.Revision != 0 && c.Version.Revision != last.Version.Revision+1 || c.ID != fmt.Sprint("id-", c.Version.Revision) {
			return "", fmt.Errorf("commit %+v after %+v", c, last)
		}
		last = c
	}
	if rev == 0 {
		return "", nil // a Store that shares has not seen the first commit yet
	}
	if last.Version != v.Version() {
		return "", fmt.Errorf("ends with %v, not %v", last.Version, v.Version())
	}
	fmt.Fprintln(&b, last.Version, last.FirstSeq, last.LastSeq)
	if ok, err := v.Contains(pawl.Receipt{Version: last.Version, FirstSeq: last.FirstSeq, LastSeq: last.LastSeq}); !ok || err != nil {
		return "", fmt.Errorf("contains %v: %v, %v", last.Version, ok, err)
	}
	for _, name := range []string{"one", "two"} {
		data, ok, err := v.Get(name)
		if err != nil || ok && !bytes.Equal(data, m.part(rev, name)) || !ok && rev > 0 {
			return "", fmt.Errorf("at revision %d part %q: %.40q, %v, %v", rev, name, data, ok, err)
		}
	}
	return b.String(), nil
}

// TestViewsBesideWriters: many goroutines read Views while two Stores that share the
// store commit, seal, merge and compact, and a Reader follows them. Each View is whole,
// and stays what it was when it was taken.
func TestViewsBesideWriters(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Wine does not rename over a file that a process has open")
	}
	commits := 150
	if testing.Short() || raceEnabled {
		commits = 60
	}
	for _, unsealed := range []int64{1, 700, 4096} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/shared %v", unsealed, shared), func(t *testing.T) {
				inMemory(t)
				dir, trust := testkit.Dirs(t)
				collected(t, filepath.Dir(dir))
				m := viewModel{}
				o := &pawl.Options{Shared: shared, CheckpointEvery: 3, Limits: pawl.Limits{Unsealed: unsealed, Inline: 64, Journal: 16 << 10}}
				var stores []*pawl.Store
				for range map[bool]int{false: 1, true: 2}[shared] {
					s, err := pawl.Open(quick(), dir, trust, o)
					if err != nil {
						t.Fatal(err)
					}
					stores = append(stores, s)
				}
				if _, err := stores[0].Update(context.Background(), "id-1", func(v pawl.View) (pawl.Change, error) { return m.change(v, 1), nil }); err != nil {
					t.Fatal(err)
				}
				r, err := pawl.OpenReader(quick(), dir, trust, o)
				if err != nil {
					t.Fatal(err)
				}
				var done atomic.Bool
				var writing, reading sync.WaitGroup
				fail := func(what string, err error) bool {
					if err != nil {
						t.Errorf("%s: %v", what, err)
						done.Store(true)
					}
					return err != nil
				}
				for w, s := range stores {
					writing.Go(func() {
						random := rand.New(rand.NewPCG(uint64(w), uint64(unsealed)))
						for i := 0; i < commits && !done.Load(); i++ {
							_, err := s.Update(context.Background(), "", func(v pawl.View) (pawl.Change, error) { return m.change(v, random.IntN(4)), nil })
							if fail("update", err) {
								return
							}
							if random.IntN(40) == 0 {
								p := pawl.Policy{KeepLast: 1 + random.Uint64N(50)}
								if random.IntN(2) == 0 {
									p.ForgetBefore = s.View().Version().Revision
								}
								_, err := s.Compact(context.Background(), p)
								fail("compact", err)
							}
							if random.IntN(30) == 0 {
								fail("verify", s.Verify(context.Background(), nil))
							}
						}
					})
				}
				look := func(what string, view func() pawl.View) {
					reading.Go(func() {
						for !done.Load() {
							v := view()
							before, err := m.picture(v)
							if fail(what, err) {
								return
							}
							for range 3 {
								runtime.Gosched()
								after, err := m.picture(v)
								if fail(what+" again", err) {
									return
								}
								if after != before {
									t.Errorf("%s: a View changed from %s to %s", what, before, after)
								}
							}
						}
					})
				}
				for _, s := range stores {
					for range 2 {
						look("a View", s.View)
					}
				}
				look("a Reader's View", r.View)
				reading.Go(func() {
					for !done.Load() {
						fail("refresh", r.Refresh(context.Background()))
						runtime.Gosched()
					}
				})
				first := stores[0].View()
				old, err := m.picture(first)
				fail("the first", err)
				writing.Wait()
				done.Store(true)
				reading.Wait()
				if now, err := m.picture(first); now != old {
					t.Errorf("the first View: %q, then %q, %v", old, now, err)
				}
				fail("verify", stores[0].Verify(context.Background(), nil))
				if n := int(stores[0].View().Version().Revision); n < commits && !t.Failed() {
					t.Errorf("%d revisions", n)
				}
				if n := len(glob(t, filepath.Join(dir, "segments", "*"))); n == 0 {
					t.Error("there are no segments")
				}
				for _, s := range stores {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
				for _, path := range openFiles(dir) {
					if !strings.HasSuffix(path, " (deleted)") {
						t.Errorf("left open: %s", path)
					}
				}
			})
		}
	}
}
