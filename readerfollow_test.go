//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
)

// TestReaderFollows: whatever a writer does, a reader goes along, and without an error.
func TestReaderFollows(t *testing.T) {
	for name, opts := range map[string]*Options{
		"journals": nil, "every commit": publishing(), "every two": {CheckpointEvery: 2}, "every three": {CheckpointEvery: 3},
		"small journals": small(4), "shared": {Shared: true, Limits: Limits{Journal: 6 * blockSize}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.opts = opts
			random := rand.New(rand.NewPCG(1, 2))
			s := r.mustOpen()
			defer func() { s.Close() }()
			always, seldom := r.mustRead(nil), r.mustRead(nil)
			doubt := []string{"session Sync", firstJournal[:len(firstJournal)-1], "session/bundle"}
			n, shared := 0, opts != nil && opts.Shared
			for step := range 60 {
				what := random.IntN(10)
				switch {
				case what < 5:
					n += 1 + random.IntN(4)
					r.upTo(s, n)
				case what == 5:
					if err := s.Checkpoint(r.ctx()); err != nil {
						t.Fatal(err)
					}
				case what == 6: // it closes, and another one opens, who makes a trust file of its own
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = r.mustOpen()
				case what == 7: // another one changes it meanwhile
					if shared {
						other := r.mustOpen()
						n++
						r.upTo(other, n)
						if err := other.Close(); err != nil {
							t.Fatal(err)
						}
					}
				default: // in doubt, and settled: files are made anew
					in := doubt[random.IntN(len(doubt))]
					plan := &faultfs.Plan{N: 1, Action: faultfs.Action{Err: fs.ErrInvalid, Done: what == 8}, Only: func(c faultfs.Call) bool {
						return strings.HasPrefix(c.Path+" "+c.Op, in) && (c.Op == "Sync" || c.Op == "SyncData" || c.Op == "WriteAt")
					}}
					r.fs.Set(plan.Hook)
					err := commitNth(r.ctx(), s, n+1)
					r.fs.Set(nil)
					if errors.Is(err, ErrInDoubt) {
						if _, err := s.Recover(r.ctx()); err != nil {
							t.Fatal(err)
						}
					}
					n = max(n, int(s.View().Version().Revision))
				}
				always.refreshed(n)
				// A shared store may not have seen what the other one did.
				if got, want := dumpOf(always.View()), dumpOf(s.View()); !shared && got != want {
					t.Fatalf("step %d: it shows\n%s\nand the store\n%s", step, got, want)
				}
				if random.IntN(6) == 0 {
					seldom.refreshed(n)
				}
			}
			seldom.refreshed(n)
			if n < 60 {
				t.Errorf("only %d commits", n)
			}
		})
	}
}

// readBytes are how many bytes of a file a reader has read since its calls were forgotten.
func (o *onlooker) readBytes(path string) (n int) {
	for _, c := range o.fs.Calls() {
		var k, at int
		if _, err := fmt.Sscanf(c.Detail, "%d@%d", &k, &at); c.Op == "ReadAt" && c.Path == path && err == nil {
			n += k
		}
	}
	return n
}

// TestReaderIncremental: what is known is not read again.
func TestReaderIncremental(t *testing.T) {
	r := newRig(t)
	s := r.mustOpen()
	defer s.Close()
	r.upTo(s, 1)
	o := r.mustRead(nil)
	journal := firstJournal
	refresh := func(n int) {
		t.Helper()
		o.fs.Set(nil)
		o.refreshed(n)
	}
	reads := func(bundle, journalBytes, trust int) {
		t.Helper()
		if b, j, tr := o.readBytes("session/bundle"), o.readBytes(journal), o.readBytes("trust/session.trust"); b != bundle || j != journalBytes || tr != trust {
			t.Errorf("read: %d bytes of the bundle, %d of the journal, %d of the trust file; want %d, %d, %d", b, j, tr, bundle, journalBytes, trust)
		}
	}
	refresh(1)
	reads(0, 0, ringSize)
	r.upTo(s, 2) // the journal is made: its header tells which bundle it goes with
	refresh(2)
	used := int(r.says().confirmed.Journal)
	reads(0, headerSize+used-blockSize, ringSize)
	for _, more := range []int{1, 3, 2} {
		was := int(r.says().confirmed.Journal)
		n := int(s.View().Version().Revision) + more
		r.upTo(s, n)
		refresh(n)
		now := int(r.says().confirmed.Journal)
		if now <= was {
			t.Fatal("the journal was replaced")
		}
		reads(0, now-was, ringSize)
		for _, c := range o.fs.Calls() {
			if c.Op == "Names" || strings.HasPrefix(c.Path, "session/bundle") && c.Op != "Lstat" {
				t.Errorf("it calls %s", c)
			}
		}
		refresh(n)
		reads(0, 0, ringSize)
	}
	// A bundle that is another, if only by its identity, is read, and all that goes with it.
	whole := func(change func(), n int) {
		t.Helper()
		change()
		refresh(n)
		info, err := os.Stat(filepath.Join(r.dir, "bundle"))
		if err != nil {
			t.Fatal(err)
		}
		if got := o.readBytes("session/bundle"); got < int(info.Size()) {
			t.Errorf("%d bytes of the bundle were read, of %d", got, info.Size())
		}
	}
	whole(func() { r.upTo(s, 9); r.reinstall("bundle") }, 9)
	if o.readBytes(journal) < int(r.says().confirmed.Journal) {
		t.Error("the journal was not read whole")
	}
	whole(func() {
		r.restore("bundle")
		if err := s.Checkpoint(r.ctx()); err != nil {
			t.Fatal(err)
		}
	}, 9)
	journal = "session/journal.000000000002"
	r.upTo(s, 10)
	refresh(10)
	reads(0, headerSize+int(r.says().confirmed.Journal)-blockSize, ringSize)
}

// reinstall puts a copy of a file of the store in its place; restore puts it back for
// the writer, which would be stale otherwise.
func (r *rig) reinstall(name string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	b, err := os.ReadFile(path)
	if err == nil {
		err = errors.Join(os.Rename(path, path+".kept"), os.WriteFile(path, b, 0o600))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) restore(name string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.Rename(path+".kept", path); err != nil {
		r.t.Fatal(err)
	}
}

// TestReaderBeside: neither a writer that holds the locks, nor one in the middle of
// Update's function, is in the way, and it is not in theirs.
func TestReaderBeside(t *testing.T) {
	for name, opts := range map[string]*Options{"exclusive": nil, "shared": {Shared: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.opts = opts
			s := r.mustOpen()
			defer s.Close()
			r.upTo(s, 2)
			o := r.mustRead(nil)
			_, err := s.Update(r.ctx(), "c3", func(View) (Change, error) {
				o.refreshed(2)
				r.mustRead(nil).at(2)
				if _, outcome, err := o.Lookup(context.Background(), "c3"); outcome != OutcomeNotCommitted || err != nil {
					t.Errorf("Lookup: %v, %v", outcome, err)
				}
				return nthChange(3), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			o.refreshed(3)
			// Nor is it a lock: somebody else can open the store.
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again := r.mustOpen()
			defer again.Close()
			r.upTo(again, 4)
			o.refreshed(4)
		})
	}
}

// TestReaderConcurrent: many at a time use one reader, beside a writer. Each sees what
// was acknowledged before it asked, and never less than before.
func TestReaderConcurrent(t *testing.T) {
	for name, opts := range map[string]*Options{"journals": small(16), "bundles": publishing(), "shared": {Shared: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.opts = opts
			s := r.mustOpen()
			defer s.Close()
			r.upTo(s, 1)
			o := r.mustRead(&Options{LockWait: forever})
			const commits = 60
			var acknowledged atomic.Int64
			acknowledged.Store(1)
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					last := int64(0)
					for last < commits {
						before := acknowledged.Load()
						id := fmt.Sprintf("c%d", before)
						var err error
						var outcome Outcome
						if i%3 == 0 {
							_, outcome, err = o.Lookup(context.Background(), id)
							if outcome != OutcomeCommitted {
								t.Errorf("Lookup of %s, which was acknowledged: %v, %v", id, outcome, err)
							}
						} else {
							err = o.Refresh(context.Background())
						}
						v := o.View()
						now := int64(v.Version().Revision)
						if err == nil {
							err = checkNth(v, int(now))
						}
						if err != nil || now < before || now < last {
							t.Errorf("revision %d after %d and %d: %v", now, last, before, err)
							return
						}
						last = now
					}
				})
			}
			for i := 2; i <= commits; i++ {
				if err := commitNth(r.ctx(), s, i); err != nil {
					t.Fatal(err)
				}
				acknowledged.Store(int64(i))
			}
			wg.Wait()
		})
	}
}

// TestReaderDirectoriesReplaced: the directories are moved away, others come, and they
// are put back.
func TestReaderDirectoriesReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not remove or rename a directory that a reader has open")
	}
	r := newRig(t)
	s := r.mustOpen()
	r.upTo(s, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o := r.mustRead(nil)
	away := func(path string) {
		t.Helper()
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
	}
	back := func(path string) {
		t.Helper()
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
	wrong := func(want error) {
		t.Helper()
		for range 2 {
			var e *Error
			if err := o.Refresh(context.Background()); !errors.As(err, &e) || e.Kind != want || e.Hint == "" || errors.Is(err, os.ErrClosed) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		o.at(3)
	}
	away(r.trust)
	wrong(ErrUntrusted)
	if err := os.Mkdir(r.trust, 0o777); err != nil {
		t.Fatal(err)
	}
	if !onWindows {
		if err := os.Chmod(r.trust, 0o777); err != nil {
			t.Fatal(err)
		}
		wrong(ErrInsecure)
	}
	if err := os.Chmod(r.trust, 0o700); err != nil {
		t.Fatal(err)
	}
	wrong(ErrUntrusted)
	if err := os.Remove(r.trust); err != nil {
		t.Fatal(err)
	}
	back(r.trust)
	o.refreshed(3)

	// What trust names is known; the rest is a new reader's business.
	away(r.dir)
	o.refreshed(3)
	if _, err := r.reader(nil); !errors.Is(err, ErrMissing) {
		t.Errorf("%v, want ErrMissing", err)
	}
	back(r.dir)
	away(r.dir)
	copyTree(t, r.dir+".away", r.dir) // a copy, elsewhere by identity, is as good
	o.refreshed(3)
	s = r.mustOpen()
	defer s.Close()
	r.upTo(s, 4)
	o.refreshed(4)
}
