//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// agedRig is a rig for stores whose files go while Views have them open.
func agedRig(t *testing.T, o *Options) *rig {
	t.Helper()
	dir, trust := testkit.AgedDirs(t)
	r := rigAt(t, filepath.Dir(dir), vfs.OS(), filepath.Base(trust))
	r.opts = o
	return r
}

// must is for the calls of a test that are not what it is about.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A call ends while another call's commit of the same id is written, and sealed: it is not
// told that there is no such commit (contract 7).
func TestEndedBesideASealedID(t *testing.T) {
	for _, unsealed := range []int64{0, 1} {
		t.Run(fmt.Sprint("Unsealed ", unsealed), func(t *testing.T) {
			r := agedRig(t, &Options{CheckpointEvery: 1, Limits: Limits{Unsealed: unsealed}})
			s := r.mustOpen()
			_, err := s.Commit(r.ctx(), Change{Entries: [][]byte{[]byte("x")}})
			must(t, err)
			ctx, cancel := context.WithCancel(r.ctx())
			c := Change{ID: "both", Entries: [][]byte{[]byte("x")}}
			var once sync.Once
			var wg sync.WaitGroup
			var late error
			r.fs.Set(func(call faultfs.Call) faultfs.Action {
				if call.Op == "Create" {
					once.Do(func() {
						wg.Go(func() { _, late = s.Commit(ctx, c) })
						r.waiting(s, 1)
						cancel()
					})
				}
				return faultfs.Action{}
			})
			_, first := s.Commit(r.ctx(), c)
			r.fs.Set(nil)
			wg.Wait()
			_, o, err := s.Lookup(r.ctx(), "both")
			if first != nil || late != nil || o != OutcomeCommitted || err != nil {
				t.Errorf("%v, %v, %v, %v", first, late, o, err)
			}
			must(t, s.Close())
		})
	}
}

// A View keeps what it has when Recover sweeps the files that only the state before needed.
func TestViewOfWhatRecoverSweeps(t *testing.T) {
	for _, how := range []string{"compact", "part", "merge"} {
		t.Run(how, func(t *testing.T) {
			r := agedRig(t, &Options{Limits: Limits{Unsealed: 1, Inline: 10}})
			s := r.mustOpen()
			for i := range 7 {
				_, err := s.Commit(r.ctx(), Change{Entries: [][]byte{fmt.Append(nil, i)}, Put: map[string][]byte{"a": []byte(strings.Repeat("a", 100))}})
				must(t, err, s.Checkpoint(r.ctx()))
			}
			must(t, s.Close())
			s = r.mustOpen()
			v := s.View()
			change := Change{Entries: [][]byte{[]byte("more")}}
			if how == "part" {
				change = Change{Put: map[string][]byte{"a": []byte("b")}}
			}
			_, err := s.Commit(r.ctx(), change)
			must(t, err)
			renamed := false
			r.fs.Set(func(c faultfs.Call) faultfs.Action {
				renamed = renamed || c.Op == "Rename" && strings.Contains(c.String(), "bundle")
				if renamed && c.Path == "session" && c.Op == "Sync" {
					return faultfs.Action{Err: errors.New("no flush")}
				}
				return faultfs.Action{}
			})
			if how == "compact" {
				_, err = s.Compact(r.ctx(), Policy{KeepLast: 1})
			} else {
				err = s.Checkpoint(r.ctx())
			}
			r.fs.Set(nil)
			if !errors.Is(err, ErrInDoubt) {
				t.Fatal(err)
			}
			rec, err := s.Recover(r.ctx())
			if err != nil || rec.Settled != SettledLanded {
				t.Fatal(rec, err)
			}
			n := 0
			for _, err := range v.Entries(0) {
				must(t, err)
				n++
			}
			b, _, err := v.Get("a")
			if n != 7 || len(b) != 100 || err != nil {
				t.Errorf("%d entries, a part of %d bytes, %v", n, len(b), err)
			}
			must(t, s.Verify(r.ctx(), nil), s.Close())
		})
	}
}

// Parts that are in files stay there when Limits.Inline is raised, and do not count as if
// they were in the bundle.
func TestInlineRaised(t *testing.T) {
	r := agedRig(t, &Options{Limits: Limits{Bundle: 64 << 10, Inline: 100}})
	s := r.mustOpen()
	for i := range 20 {
		_, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{fmt.Sprint(i): []byte(strings.Repeat(fmt.Sprint(i), 5000))}})
		must(t, err)
	}
	must(t, s.Checkpoint(r.ctx()), s.Close())
	r.opts = &Options{Limits: Limits{Bundle: 64 << 10}}
	s = r.mustOpen()
	_, err := s.Commit(r.ctx(), Change{Entries: [][]byte{[]byte("x")}})
	must(t, err, s.Checkpoint(r.ctx()), s.Close())
}

// A bundle that names a part of a size that no file has is refused, and nothing of that size
// is made of one that is read (contract 11).
func TestPartOfNoSize(t *testing.T) {
	r := newRig(t)
	r.opts = &Options{CheckpointEvery: 1, Limits: Limits{Inline: 1}}
	s := r.mustOpen()
	_, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{"a": []byte("aa")}})
	must(t, err)
	p := s.state.Load().parts["a"]
	p.ref.size = 1<<64 - 1
	if _, e := p.bytes(); e == nil || e.Kind != ErrDamaged {
		t.Error(e)
	}
	st := *s.state.Load()
	st.parts = map[string]part{"a": p}
	if _, _, err := decodeBundle(encodeBundle(&st), new(directory)); err == nil || !strings.Contains(err.Error(), "no file has") {
		t.Error(err)
	}
	must(t, s.Close())
}

// A Reader that does not come to be holds nothing open: the rig looks.
func TestReaderOfAnotherSchema(t *testing.T) {
	r := newRig(t)
	r.opts = &Options{Schema: 1, Limits: Limits{Inline: 10, Unsealed: 1}}
	s := r.mustOpen()
	for i := range 5 {
		_, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{fmt.Sprint(i): []byte(strings.Repeat(fmt.Sprint(i), 500))}})
		must(t, err)
	}
	must(t, s.Checkpoint(r.ctx()), s.Close())
	if _, err := OpenReader(r.ctx(), r.dir, r.trust, &Options{Schema: 2}); !errors.Is(err, ErrSchema) {
		t.Error(err)
	}
	if _, err := Inspect(r.ctx(), r.dir, r.trust, nil); err != nil {
		t.Error(err)
	}
}

// What was known last is in a segment by now that is damaged: nobody is held back by that,
// neither a Reader nor a process that shares the store.
func TestDamageHoldsNobodyBack(t *testing.T) {
	r := agedRig(t, &Options{Shared: true, CheckpointEvery: 1, Limits: Limits{Unsealed: 3000}})
	a, b := r.mustOpen(), r.mustOpen()
	for range 3 {
		_, err := a.Commit(r.ctx(), Change{Entries: [][]byte{[]byte("a")}})
		must(t, err)
	}
	reader, err := OpenReader(r.ctx(), r.dir, r.trust, nil)
	must(t, err)
	for b.Stats().Segments == 0 {
		_, err := b.Commit(r.ctx(), Change{Entries: [][]byte{[]byte("b")}})
		must(t, err)
	}
	segments, err := filepath.Glob(filepath.Join(r.dir, "segments", "*"))
	must(t, err)
	for _, name := range segments {
		raw, err := os.ReadFile(name)
		must(t, err)
		raw[len(raw)-10] ^= 1
		must(t, os.WriteFile(name, raw, 0o600))
	}
	for i, s := range []*Store{b, a, b, a} {
		r, err := s.Commit(r.ctx(), Change{Entries: [][]byte{[]byte("on")}})
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
		must(t, reader.Refresh(context.Background()))
		if reader.View().Version() != r.Version {
			t.Errorf("the reader is at %v", reader.View().Version())
		}
	}
	if err := a.Verify(r.ctx(), nil); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	must(t, reader.Close(), a.Close(), b.Close())
}

// Files whose names are gone do not use up the descriptors of a process that keeps no View.
func TestRetiredFilesAreReclaimed(t *testing.T) {
	if onWindows {
		t.Skip("there they are removed by Close")
	}
	r := agedRig(t, &Options{CheckpointEvery: 1, Limits: Limits{Inline: 10}})
	s := r.mustOpen()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing but the store calls the collector
	most := int64(0)
	for i := range 400 {
		_, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{"a": fmt.Appendf(nil, "%050d", i)}})
		must(t, err)
		most = max(most, s.counts.retired.Load())
	}
	if most < 64 || most > 300 {
		t.Errorf("up to %d files without a name were open at once", most)
	}
	must(t, s.Close())
}
