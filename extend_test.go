//go:build unix || windows

package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// opened opens the store of the rig and closes it when the test ends.
func (r *rig) opened(opts *Options) *Store {
	r.t.Helper()
	r.opts = opts
	s := r.mustOpen()
	r.t.Cleanup(func() {
		r.fs.Set(nil)
		if err := s.Close(); err != nil {
			r.t.Errorf("close: %v", err)
		}
	})
	return s
}

// commits makes the commits up to revision n.
func (r *rig) commits(s *Store, n int) {
	r.t.Helper()
	for i := int(s.View().Version().Revision) + 1; i <= n; i++ {
		if err := commitNth(r.ctx(), s, i); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) file(name string) []byte {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.base, filepath.FromSlash(name)))
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// overwrite changes bytes of a file in place: whoever has it open sees it.
func overwrite(t testing.TB, path string, b []byte, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(b, at)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// published fails unless there is a bundle and no journal, and the trust file names
// what sha256sum says of the bundle.
func (r *rig) published(s *Store) {
	r.t.Helper()
	if j := r.journal(); j != "" {
		r.t.Errorf("there is %s", filepath.Base(j))
	}
	want := Root{Revision: s.View().Version().Revision, Epoch: s.root.Epoch, Digest: sha256.Sum256(r.file("session/bundle"))}
	if rec := r.says(); rec.confirmed != want || rec.intent() {
		r.t.Errorf("trust says %+v, want %+v", rec, want)
	}
}

// What a commit costs that extends the journal: two flushes of files, one after the
// other, and none of a directory; the confirm's flush is the next intent's.
func TestWhatExtendingCosts(t *testing.T) {
	for _, confirm := range []bool{false, true} {
		t.Run(map[bool]string{false: "confirms unflushed", true: "SyncConfirm"}[confirm], func(t *testing.T) {
			r := newRig(t)
			s := r.opened(&Options{SyncConfirm: confirm})
			r.commits(s, 1)
			extra := map[bool]int64{true: 1}[confirm]
			costs := func(what string, files, dirs, bytes int64) {
				t.Helper()
				before := s.Stats()
				r.fs.Set(nil)
				r.commits(s, int(s.View().Version().Revision)+1)
				now := s.Stats()
				got := []int64{now.FileSyncs - before.FileSyncs, now.DirSyncs - before.DirSyncs, now.BytesWritten - before.BytesWritten, now.ConfirmSyncs - before.ConfirmSyncs,
					now.Commits - before.Commits, now.Batches - before.Batches, now.Publishes - before.Publishes}
				if want := []int64{files + extra, dirs, bytes, extra, 1, 1, 0}; !slices.Equal(got, want) {
					t.Errorf("%s: flushes of files and directories, bytes, flushes of confirms, commits, batches and publishes: %v, want %v", what, got, want)
				}
				if now.ConfirmPending == confirm {
					t.Errorf("%s: ConfirmPending is %v", what, now.ConfirmPending)
				}
				var flushes []string
				for _, c := range r.fs.Calls() {
					if strings.HasPrefix(c.Op, "Sync") {
						flushes = append(flushes, c.String())
					}
				}
				if int64(len(flushes)) != files+dirs+extra {
					t.Errorf("%s: %v", what, flushes)
				}
			}
			costs("to make the journal", 2, 1, slotSize+journalLeast+slotSize)
			for i := range 12 {
				costs(fmt.Sprint("commit ", i), 2, 0, slotSize+blockSize+slotSize)
			}
		})
	}
}

// The confirm is written before Commit returns: a process that is killed leaves it.
func TestConfirmIsWritten(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	for i := range 2 * slotCount {
		r.commits(s, i+1)
		if rec := r.says(); rec.intent() || rec.confirmed != s.root || int(rec.confirmed.Revision) != i+1 || rec.history != s.View().Version().Digest {
			t.Errorf("after commit %d trust says %+v", i+1, rec)
		}
	}
}

// A store that is left alone flushes its confirm, once.
func TestIdleFlush(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	for i, want := range []int64{0, 1, 2, 3} { // the first commit publishes
		r.commits(s, i+1)
		if pending := s.Stats().ConfirmPending; pending != (i > 0) {
			t.Errorf("commit %d: ConfirmPending is %v", i+1, pending)
		}
		r.fs.Set(nil)
		r.machine.idle()
		n := s.Stats()
		if got := trace(r.fs.Calls()); n.ConfirmPending || n.ConfirmSyncs != want || i > 0 && !slices.Equal(got, []string{"trust/session.trust SyncData"}) {
			t.Errorf("commit %d, idle: %v, ConfirmPending %v, %d flushes", i+1, got, n.ConfirmPending, n.ConfirmSyncs)
		}
		r.fs.Set(nil)
		r.machine.idle()
		if calls := r.fs.Calls(); len(calls) > 0 {
			t.Errorf("idle again: %v", calls)
		}
	}
}

// A flush in the background that failed is the error of the next change, before
// anything is written; or of Close, when there is none.
func TestIdleFlushFails(t *testing.T) {
	fail := func(c faultfs.Call) faultfs.Action {
		if c.String() == "trust/session.trust SyncData" {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	}
	doubtful := func(t *testing.T) (*rig, *Store) {
		r := newRig(t)
		s := r.mustOpen()
		r.commits(s, 3)
		r.fs.Set(fail)
		r.machine.idle()
		r.fs.Set(nil)
		return r, s
	}
	t.Run("then a change", func(t *testing.T) {
		r, s := doubtful(t)
		_, err := s.Commit(r.ctx(), nthChange(4))
		if !errors.Is(err, ErrInDoubt) || errors.Is(err, ErrNotCommitted) || !errors.Is(err, syscall.EIO) {
			t.Errorf("Commit: %v", err)
		}
		_, err = s.Update(r.ctx(), "c4", func(View) (Change, error) { t.Error("ran"); return Change{}, nil })
		if !errors.Is(err, ErrInDoubt) || errors.Is(err, ErrNotCommitted) || !errors.Is(err, syscall.EIO) {
			t.Errorf("Update: %v", err)
		}
		if err := s.Checkpoint(r.ctx()); !errors.Is(err, ErrInDoubt) {
			t.Errorf("Checkpoint: %v", err)
		}
		if calls := r.fs.Mutating(); len(calls) > 0 {
			t.Errorf("wrote %v", calls)
		}
		for id, want := range map[string]Outcome{"c3": OutcomeCommitted, "c4": OutcomeUnknown} {
			if _, got, err := s.Lookup(r.ctx(), id); got != want || err != nil {
				t.Errorf("Lookup(%s): %v, %v", id, got, err)
			}
		}
		if _, err := s.Recover(r.ctx()); err != nil {
			t.Fatal(err)
		}
		if calls := trace(r.fs.Calls()); !slices.Contains(calls, "trust/session.tmp-* Rename trust/session.trust") {
			t.Errorf("the confirm that may not be on disk was not written anew: %v", calls)
		}
		r.commits(s, 4)
		if err := errors.Join(s.Close()); err != nil {
			t.Error(err)
		}
		if err := checkNth(r.opened(nil).View(), 4); err != nil {
			t.Error(err)
		}
	})
	t.Run("then Close", func(t *testing.T) {
		r, s := doubtful(t)
		if err := s.Close(); !errors.Is(err, syscall.EIO) {
			t.Errorf("Close: %v", err)
		}
		if calls := r.fs.Mutating(); len(calls) > 0 {
			t.Errorf("wrote %v", calls)
		}
		again := r.opened(nil)
		if err := checkNth(again.View(), 3); err != nil || !again.Recovery().Unclean {
			t.Errorf("%v, %+v", err, again.Recovery())
		}
	})
}

// Close flushes what is left, and keeps a journal that is small.
func TestCloseKeepsASmallJournal(t *testing.T) {
	// A quarter of the limit holds the header and three commits.
	for n := 1; n <= 7; n++ {
		r := newRig(t)
		r.opts = small(16)
		s := r.mustOpen()
		r.commits(s, n)
		old := s.root
		r.fs.Set(nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		calls := trace(r.fs.Calls())
		if last := calls[len(calls)-1]; last != "trust/session.trust SyncData" {
			t.Errorf("%d commits: the last call was %s", n, last)
		}
		if rec := r.says(); !rec.closed || rec.intent() || int(rec.confirmed.Revision) != n {
			t.Errorf("%d commits: trust says %+v", n, rec)
		}
		if large := n > 4; large {
			if r.published(s); s.root.Epoch != old.Epoch+1 {
				t.Errorf("%d commits: epoch %d", n, s.root.Epoch)
			}
		} else if s.root != old || (r.journal() != "") != (n > 1) {
			t.Errorf("%d commits: %+v became %+v, journal %q", n, old, s.root, r.journal())
		}
		again := r.opened(r.opts)
		if err := checkNth(again.View(), n); err != nil || again.Recovery().Unclean {
			t.Errorf("%d commits: %v, %+v", n, err, again.Recovery())
		}
	}
}

// A journal that does not read back is no reason for Close to write a bundle over it.
func TestCloseOverADamagedJournal(t *testing.T) {
	r := newRig(t)
	r.opts = small(16)
	s := r.mustOpen()
	r.commits(s, 7)
	at := int64(3*blockSize + 200)
	whole := r.file(firstJournal)
	overwrite(t, r.journal(), []byte{whole[at] ^ 1}, at)
	bundle := r.file("session/bundle")
	if err := s.Close(); !errors.Is(err, ErrDamaged) {
		t.Errorf("Close: %v", err)
	}
	if !bytes.Equal(bundle, r.file("session/bundle")) {
		t.Error("the bundle was replaced")
	}
	if _, err := r.open(); !errors.Is(err, ErrDamaged) {
		t.Errorf("Open: %v", err)
	}
	overwrite(t, r.journal(), whole[at:at+1], at)
	if err := checkNth(r.opened(r.opts).View(), 7); err != nil {
		t.Error(err)
	}
}

// Checkpoint leaves a bundle and no journal, and commits go on from there.
func TestCheckpointPublishes(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	for n := 1; n <= 12; n += 1 + n%3 {
		r.commits(s, n)
		v, epoch := s.View().Version(), s.root.Epoch
		if err := s.Checkpoint(r.ctx()); err != nil {
			t.Fatal(err)
		}
		r.published(s)
		if err := errors.Join(checkNth(s.View(), n), s.Verify(r.ctx(), nil)); err != nil || s.View().Version() != v || s.root.Epoch > epoch+1 {
			t.Errorf("%v; at %v with epoch %d; it was %v, %d", err, s.View().Version(), s.root.Epoch, v, epoch)
		}
		r.fs.Set(nil)
		if err := s.Checkpoint(r.ctx()); err != nil || len(r.fs.Mutating()) > 0 {
			t.Errorf("with nothing to do: %v, %v", err, r.fs.Mutating())
		}
	}
	n := int(s.View().Version().Revision)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkNth(r.opened(nil).View(), n); err != nil {
		t.Error(err)
	}
}

// A batch goes into blocks that held zeros. No byte of the journal that belongs to an
// acknowledged state changes, all after it is zero, and the file keeps its size and
// its identity until a bundle takes its place.
func TestAppendsIntoFreshBlocks(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	random := rand.New(rand.NewPCG(1, 1))
	var before []byte
	var info os.FileInfo
	old := Root{}
	extended := 0
	for i := range 120 {
		c := Change{Entries: [][]byte{make([]byte, random.IntN(3000))}}
		if i%7 == 0 {
			c.Put = map[string][]byte{"p": bytes.Repeat([]byte{1}, 5000+random.IntN(4000))}
		}
		if _, err := s.Commit(r.ctx(), c); err != nil {
			t.Fatal(err)
		}
		if i%9 == 0 {
			r.machine.idle()
		}
		if r.journal() == "" {
			old = s.root
			continue
		}
		now := r.file("session/" + filepath.Base(r.journal()))
		is, err := os.Stat(r.journal())
		if err != nil {
			t.Fatal(err)
		}
		if s.root.Epoch == old.Epoch && old.Journal > 0 {
			extended++
			if !os.SameFile(is, info) || len(now) != len(before) || !bytes.Equal(now[:old.Journal], before[:old.Journal]) {
				t.Fatalf("commit %d changed what was acknowledged, up to %d", i, old.Journal)
			}
		}
		if s.root.Journal <= old.Journal && s.root.Epoch == old.Epoch || s.root.Journal%blockSize != 0 || usedBytes(now) > s.root.Journal || int64(len(now)) != s.log.size {
			t.Fatalf("commit %d: %+v after %+v, used up to %d of %d", i, s.root, old, usedBytes(now), len(now))
		}
		before, info, old = now, is, s.root
	}
	if extended < 50 {
		t.Errorf("only %d commits extended a journal", extended)
	}
	if err := s.Verify(r.ctx(), nil); err != nil {
		t.Error(err)
	}
}

// A journal that is full gives way to a bundle, and the next one is larger, up to the
// limit; one of which little was used gives way to a smaller one.
func TestJournalsFollowUse(t *testing.T) {
	r := newRig(t)
	s := r.opened(&Options{Limits: Limits{Journal: 250 << 10, Inline: 1 << 20}})
	const limit = 248 << 10 // whole blocks
	var sizes []int64
	epoch := uint64(0)
	note := func() {
		if s.root.Epoch != epoch && r.journal() != "" {
			epoch, sizes = s.root.Epoch, append(sizes, int64(len(r.file("session/"+filepath.Base(r.journal())))))
		}
	}
	put := func(n int) {
		t.Helper()
		if _, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{"p": make([]byte, n)}}); err != nil {
			t.Fatal(err)
		}
		note()
	}
	for len(sizes) < 5 {
		put(30_000)
	}
	if sizes[0] != journalLeast || sizes[1] <= sizes[0] || !slices.IsSorted(sizes) || sizes[3] != limit || sizes[4] != limit {
		t.Errorf("sizes %v; the limit is %d", sizes, limit)
	}
	// What never fits publishes each time.
	for range 3 {
		put(300_000)
		r.published(s)
	}
	sizes = nil
	for range 5 {
		put(10)
		if err := s.Checkpoint(r.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(sizes); n == 0 || sizes[n-1] != journalLeast || sizes[0] > limit {
		t.Errorf("sizes %v when little is used", sizes)
	}
}

// CheckpointEvery publishes with every so many commits, whoever makes them.
func TestCheckpointEvery(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		r := newRig(t)
		s := r.opened(&Options{CheckpointEvery: n})
		for i := range 12 {
			r.commits(s, i+1)
			if want := uint64(1 + i/n); s.root.Epoch != want || (s.root.Journal == 0) != (i%n == 0) {
				t.Errorf("every %d: after commit %d %+v", n, i+1, s.root)
			}
			if i == 6 {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = r.opened(r.opts)
			}
		}
		if n == 1 && r.journal() != "" {
			t.Error("every commit publishes, and there is a journal")
		}
	}
	dir, trust := testkit.Dirs(t)
	if _, err := Open(t.Context(), dir, trust, &Options{CheckpointEvery: -1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("-1: %v", err)
	}
}

// The size of the bundle is known without making it.
func TestStateSize(t *testing.T) {
	r := newRig(t)
	random := rand.New(rand.NewPCG(2, 2))
	// Programs of all lengths, and none, say the state's program anew.
	said := func() *Options {
		return &Options{Program: strings.Repeat("p", random.IntN(3)*random.IntN(maxName/2+1))}
	}
	s := r.opened(said())
	bytesOf := func(n int) []byte { return make([]byte, random.IntN(n)) }
	programs := map[int]bool{}
	for i := range 150 {
		c := Change{ID: strings.Repeat("i", random.IntN(20)) + fmt.Sprint(i), Put: map[string][]byte{}}
		for range random.IntN(4) {
			c.Entries = append(c.Entries, bytesOf(500))
		}
		for range random.IntN(4) {
			c.Put["part-"+strings.Repeat("x", random.IntN(6))] = bytesOf(2000)
		}
		for range random.IntN(3) {
			if name := "part-" + strings.Repeat("x", random.IntN(9)); c.Put[name] == nil {
				c.Delete = append(c.Delete, name)
			}
		}
		if _, err := s.Commit(r.ctx(), c); err != nil {
			t.Fatal(err)
		}
		st := s.state.Load()
		if want := bundleSize(st); counted(st) != want || int64(len(encodeBundle(st))) != want {
			t.Fatalf("commit %d: %d bytes, and the bundle has %d", i, counted(st), want)
		}
		programs[len(st.program)] = true
		if i%5 == 4 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = r.opened(said())
			if st := s.state.Load(); counted(st) != bundleSize(st) {
				t.Fatalf("opened: %d bytes, and the bundle has %d", counted(st), bundleSize(st))
			}
		}
	}
	if len(programs) < 10 {
		t.Errorf("programs of only these lengths: %v", programs)
	}
}

// Before a bundle takes the place of a journal, that is read back: what is wrong there
// is found while it still can be.
func TestJournalIsReadBack(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	r.commits(s, 4)
	whole := r.file(firstJournal)
	publishes := map[string]func() error{
		"Checkpoint": func() error { return s.Checkpoint(r.ctx()) },
		"a commit that does not fit": func() error {
			_, err := s.Commit(r.ctx(), Change{ID: "large", Put: map[string][]byte{"p": make([]byte, 100_000)}})
			if !errors.Is(err, ErrNotCommitted) || errors.Is(err, ErrInDoubt) {
				t.Errorf("not certain: %v", err)
			}
			return err
		},
	}
	for what, at := range map[string]int64{
		"the magic": 0, "the header": 70, "the first block": 1000, "a frame's length": blockSize, "a frame": blockSize + 200,
		"a part": blockSize + 2500, "the last frame": s.root.Journal - blockSize + 100, "padding": s.root.Journal - 1,
		"what no commit has used": s.root.Journal + 10, "the end": int64(len(whole)) - 1,
	} {
		overwrite(t, r.journal(), []byte{whole[at] ^ 4}, at)
		before := testkit.Snapshot(t, r.dir, r.trust)
		for how, publish := range publishes {
			var e *Error
			if err := publish(); !errors.Is(err, ErrDamaged) || !errors.As(err, &e) || e.Hint == "" || filepath.Base(e.Path) != filepath.Base(firstJournal) {
				t.Errorf("a bit in %s, %s: %v", what, how, err)
			}
		}
		if diff := cmp.Diff(before, testkit.Snapshot(t, r.dir, r.trust)); diff != "" {
			t.Errorf("a bit in %s: something was written (-before +after):\n%s", what, diff)
		}
		overwrite(t, r.journal(), whole[at:at+1], at)
	}
	if err := checkNth(s.View(), 4); err != nil {
		t.Error(err)
	}
	if err := s.Checkpoint(r.ctx()); err != nil {
		t.Errorf("whole again: %v", err)
	}
	r.published(s)
}

// Verify finds a bit that changed anywhere in the journal where it belongs to the
// state. What comes after is none of its business: there a commit may be under way.
func TestVerifyReadsTheJournal(t *testing.T) {
	r := newRig(t)
	s := r.opened(nil)
	r.commits(s, 4)
	whole := r.file(firstJournal)
	for at := int64(0); at < s.root.Journal; at += 1 + at/200 {
		overwrite(t, r.journal(), []byte{whole[at] ^ 1<<(at%8)}, at)
		err := s.Verify(r.ctx(), nil)
		var e *Error
		if !errors.Is(err, ErrDamaged) || !errors.As(err, &e) || e.Op != "verify" || e.Hint == "" || filepath.Base(e.Path) != filepath.Base(firstJournal) || e.Trusted != s.root {
			t.Errorf("a bit at %d: %v", at, err)
		}
		overwrite(t, r.journal(), whole[at:at+1], at)
	}
	overwrite(t, r.journal(), []byte{1, 2, 3}, s.root.Journal)
	if err := s.Verify(r.ctx(), nil); err != nil {
		t.Errorf("beside an append: %v", err)
	}
	overwrite(t, r.journal(), []byte{0, 0, 0}, s.root.Journal)
	if err := s.Verify(r.ctx(), nil); err != nil {
		t.Error(err)
	}
	last := int64(0)
	total := int64(len(r.file("session/bundle"))) + s.root.Journal
	if err := s.Verify(r.ctx(), func(done, of int64) {
		if done <= last || of != total {
			t.Errorf("%d of %d after %d of %d", done, of, last, total)
		}
		last = done
	}); err != nil || last != total {
		t.Errorf("%v, at %d of %d", err, last, total)
	}
}

// A journal that is gone, or another, is named by Verify, and no commit goes on.
func TestVerifyMissesTheJournal(t *testing.T) {
	if onWindows {
		t.Skip("the journal is held open, and Windows keeps the name of an open file until it is closed")
	}
	for what, tt := range map[string]struct {
		do   func(r *rig, path string) error
		want error
	}{
		"gone":        {func(_ *rig, path string) error { return os.Remove(path) }, ErrMissing},
		"a directory": {func(_ *rig, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, ErrUnauthorized},
		"cut":         {func(_ *rig, path string) error { return os.Truncate(path, 2*blockSize) }, ErrDamaged},
		"empty":       {func(_ *rig, path string) error { return os.Truncate(path, 0) }, ErrDamaged},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			s := r.mustOpen()
			defer s.Close() // stale, and says so
			r.commits(s, 4)
			path := r.journal()
			if err := tt.do(r, path); err != nil {
				t.Fatal(err)
			}
			var e *Error
			if err := s.Verify(r.ctx(), nil); !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Path != path {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if _, err := s.Commit(r.ctx(), nthChange(5)); !errors.Is(err, ErrStale) || !errors.Is(err, ErrNotCommitted) {
				t.Errorf("Commit: %v", err)
			}
		})
	}
}

// A journal that cannot be removed is no error of the commit that made it useless. It
// is logged, and swept later.
func TestOldJournalStays(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t)
	r.opts = &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := r.mustOpen()
	r.commits(s, 3)
	r.fs.Set(func(c faultfs.Call) faultfs.Action {
		if c.String() == firstJournal+" Remove" {
			return faultfs.Action{Err: syscall.EACCES}
		}
		return faultfs.Action{}
	})
	if err := s.Checkpoint(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.fs.Set(nil)
	if !strings.Contains(log.String(), "journal.000000000001") {
		t.Errorf("logged: %s", &log)
	}
	r.commits(s, 5)
	if err := errors.Join(s.Verify(r.ctx(), nil), s.Close()); err != nil {
		t.Error(err)
	}
	again := r.opened(nil)
	if rec := again.Recovery(); !slices.Equal(rec.Swept, []string{"journal.000000000001"}) || rec.Unclean {
		t.Errorf("%+v", rec)
	}
	if err := checkNth(again.View(), 5); err != nil {
		t.Error(err)
	}
}

// A journal over the limit is not read, and the store stays as it is.
func TestJournalOverTheLimit(t *testing.T) {
	r := newRig(t)
	r.prepare("journal")
	before := testkit.Snapshot(t, r.dir, r.trust)
	r.opts = &Options{Limits: Limits{Journal: journalLeast - blockSize}}
	if _, err := r.open(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	for path, is := range testkit.Snapshot(t, r.dir, r.trust) {
		if before[path] != is && !strings.HasSuffix(path, "lock") {
			t.Errorf("%s was changed", path)
		}
	}
	if _, err := Open(r.ctx(), r.dir, r.trust, &Options{Limits: Limits{Journal: 2*blockSize - 1}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a limit that no journal keeps: %v", err)
	}
	if err := checkNth(r.opened(nil).View(), 2); err != nil {
		t.Error(err)
	}
}

// Who may read the bundle may read what comes after it.
func TestJournalIsLikeTheBundle(t *testing.T) {
	if onWindows {
		t.Skip("modes say nothing on Windows")
	}
	r := newRig(t)
	r.prepare("one")
	if err := os.Chmod(filepath.Join(r.dir, "bundle"), 0o640); err != nil {
		t.Fatal(err)
	}
	r.commits(r.opened(nil), 2)
	info, err := os.Stat(r.journal())
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A change that the limit of the bundle leaves no room for is refused, wherever it
// would have gone.
func TestBundleLimitOfAJournal(t *testing.T) {
	r := newRig(t)
	r.opts = &Options{Limits: Limits{Bundle: 20_000}}
	s := r.opened(r.opts)
	n := 0
	for {
		_, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{fmt.Sprint("part", n): make([]byte, 1000)}})
		if errors.Is(err, ErrTooLarge) && errors.Is(err, ErrNotCommitted) {
			break
		}
		if n++; err != nil || n > 20 {
			t.Fatalf("commit %d: %v", n, err)
		}
	}
	if n < 10 || s.root.Journal == 0 {
		t.Errorf("%d commits, %+v", n, s.root)
	}
	if err := s.Checkpoint(r.ctx()); err != nil {
		t.Errorf("what was acknowledged does not fit: %v", err)
	}
	r.published(s)
}

// Frames that were not all written are taken back in three steps, each of which may
// fail as well: zeros, their flush, and the record that takes the intent back, which is
// flushed too. After the last of them it is certain; before, the store is in doubt, and
// settles on what was there.
func TestAppendThatCannotBeTakenBack(t *testing.T) {
	for _, reopen := range []bool{false, true} {
		for n := 1; ; n++ {
			r := newRig(t)
			r.opts = roomy()
			s := r.mustOpen()
			r.commits(s, 3)
			old := s.root
			after, failed := 0, ""
			r.fs.Set(func(c faultfs.Call) faultfs.Action {
				switch {
				case after == 0 && strings.HasPrefix(c.String(), firstJournal+" WriteAt"):
					after = 1
					return faultfs.Action{Half: true, Err: syscall.ENOSPC}
				case after > 0 && c.Mutates():
					if after++; after == n+1 {
						failed = c.String()
						return faultfs.Action{Half: true, Err: syscall.EIO}
					}
				}
				return faultfs.Action{}
			})
			_, err := s.Commit(r.ctx(), nthChange(4))
			r.fs.Set(nil)
			if failed == "" {
				if want := 4; n != want+1 {
					t.Errorf("%d steps, want %d", n-1, want)
				}
				if !errors.Is(err, ErrNotCommitted) || errors.Is(err, ErrInDoubt) || !errors.Is(err, syscall.ENOSPC) || s.root != old {
					t.Errorf("taken back: %v", err)
				}
				if p := r.picture(); p.Verdict != "clean" || p.Found != old {
					t.Errorf("taken back: %+v", p)
				}
			} else if !errors.Is(err, ErrInDoubt) || errors.Is(err, ErrNotCommitted) || !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, syscall.EIO) {
				t.Errorf("%s failed: %v", failed, err)
			} else {
				var rec Recovery
				if reopen {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
					s = r.mustOpen()
					rec = s.Recovery()
				} else if rec, err = s.Recover(r.ctx()); err != nil {
					t.Fatalf("%s failed, Recover: %v", failed, err)
				}
				if err := checkNth(s.View(), 3); err != nil || rec.Settled == SettledLanded {
					t.Errorf("%s failed, settled: %v, %+v", failed, err, rec)
				}
			}
			r.commits(s, 5)
			if err := errors.Join(s.Verify(r.ctx(), nil), s.Close()); err != nil {
				t.Errorf("%s failed, afterwards: %v", failed, err)
			}
			s = r.mustOpen()
			if err := errors.Join(checkNth(s.View(), 5), s.Close()); err != nil {
				t.Errorf("%s failed, opened again: %v", failed, err)
			}
			if failed == "" {
				break
			}
		}
	}
}

// atOnce is a machine whose timers fire the moment that they are wound up, before
// Reset returns; or only count that, until they are fired by hand.
type atOnce struct {
	vfs.FS
	byHand bool
	timers []*atOnceTimer
	resets atomic.Int64
}

type atOnceTimer struct {
	on *atOnce
	f  func()
}

func (m *atOnce) AfterFunc(_ time.Duration, f func()) vfs.Timer {
	t := &atOnceTimer{m, f}
	m.timers = append(m.timers, t)
	return t
}

func (t *atOnceTimer) Stop() bool { return false }
func (t *atOnceTimer) Reset(time.Duration) bool {
	t.on.resets.Add(1)
	if !t.on.byHand {
		t.f()
	}
	return false
}

// openAtOnce opens a store of the rig on such a machine.
func (r *rig) openAtOnce(byHand bool) (*Store, *atOnce) {
	r.t.Helper()
	m := &atOnce{FS: vfs.OS(), byHand: byHand}
	r.fs = faultfs.New(m, r.base)
	r.fs.NoFlush = true
	return r.mustOpen(), m
}

// A timer that fires at once finds the turn free: the flush of a confirm that nothing
// follows is not lost, by whichever call it came to be.
func TestIdleFlushAtOnce(t *testing.T) {
	r := newRig(t)
	s, m := r.openAtOnce(false)
	flushed := func(what string) {
		t.Helper()
		if n := s.Stats(); n.ConfirmPending {
			t.Errorf("%s: the confirm is left unflushed: %+v", what, n)
		}
	}
	for i := range 6 {
		if err := commitNth(r.ctx(), s, i+1); err != nil {
			t.Fatal(err)
		}
		flushed(fmt.Sprint("commit ", i+1))
	}
	if n := s.Stats(); n.ConfirmSyncs != 5 || m.resets.Load() != 5 { // the first publishes
		t.Errorf("%d flushes, the timer was wound up %d times", n.ConfirmSyncs, m.resets.Load())
	}
	if _, err := s.Update(r.ctx(), "c7", func(View) (Change, error) { return nthChange(7), nil }); err != nil {
		t.Fatal(err)
	}
	flushed("Update")
	var line []*asked
	if _, err := s.Update(r.ctx(), "", func(View) (Change, error) {
		line = r.lineUp(s, ids("x", 3)...)
		return Change{}, errOnlyHeld
	}); !errors.Is(err, errOnlyHeld) {
		t.Fatal(err)
	}
	landed(t, s, line, 8)
	if _, err := s.Update(r.ctx(), "", func(View) (Change, error) { return Change{}, nil }); err != nil { // after the last has given its turn
		t.Fatal(err)
	}
	flushed("a batch")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// noticing is a context that tells when somebody begins to wait for its end.
type noticing struct {
	context.Context
	waits func()
}

func (c noticing) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// updateLeads has a change written by an Update that waits for its turn before the
// change does, and runs f while the function of that Update runs. It reports whether
// it came to that.
func (r *rig) updateLeads(s *Store, c Change, f func()) (led bool) {
	r.t.Helper()
	var writer atomic.Uint64
	r.fs.Set(func(c faultfs.Call) faultfs.Action {
		if c.String() == firstJournal+" SyncData" {
			writer.Store(goroutineID())
		}
		return faultfs.Action{}
	})
	waits, second := make(chan struct{}), make(chan error, 1)
	var line []*asked
	_, err := s.Update(r.ctx(), "", func(View) (Change, error) {
		go func() {
			ctx := noticing{r.ctx(), sync.OnceFunc(func() { close(waits) })}
			_, err := s.Update(ctx, "", func(View) (Change, error) {
				if led = writer.Load() == goroutineID(); led {
					f()
				}
				return Change{}, errOnlyHeld
			})
			second <- err
		}()
		<-waits
		runtime.Gosched()
		line = r.lineUp(s, c)
		return Change{}, errOnlyHeld
	})
	if err2 := <-second; !errors.Is(err, errOnlyHeld) || !errors.Is(err2, errOnlyHeld) {
		r.t.Errorf("%v, %v", err, err2)
	}
	landed(r.t, s, line, Revision(s.View().Version().Revision))
	return led
}

// An Update may find that others wait, and writes for them before its function runs.
// However long that takes: their confirm is flushed meanwhile, as when nobody is there.
func TestIdleFlushWhileAFunctionRuns(t *testing.T) {
	r := newRig(t)
	r.opts = roomy()
	s := r.opened(r.opts)
	r.commits(s, 3)
	r.machine.idle() // nothing is wound up any more
	led := 0
	for try := 0; led < 3; try++ {
		if try == 100 {
			t.Fatal("no Update was ever before a change that waited")
		}
		before := s.Stats()
		if r.updateLeads(s, entryOf(fmt.Sprint("x", try)), func() {
			if now := s.Stats(); !now.ConfirmPending {
				t.Errorf("there is no confirm to flush: %+v", now)
			}
			r.fs.Set(nil)
			r.machine.idle()
			if now := s.Stats(); now.ConfirmPending || now.ConfirmSyncs != before.ConfirmSyncs+1 {
				t.Errorf("idle while a function runs, and the confirm is left unflushed: %+v", now)
			}
			if got := trace(r.fs.Calls()); !slices.Equal(got, []string{"trust/session.trust SyncData"}) {
				t.Errorf("idle: %v", got)
			}
		}) {
			led++
		}
		r.fs.Set(nil)
		r.machine.idle()
	}
}

// In doubt nothing is flushed any more, and nothing asks for it over and over.
func TestNoTimerInDoubt(t *testing.T) {
	for what, fails := range map[string]func(faultfs.Call) bool{
		"the intent is not written":    func(c faultfs.Call) bool { return c.Op == "WriteAt" && c.Path == "trust/session.trust" },
		"the intent is not flushed":    func(c faultfs.Call) bool { return c.String() == "trust/session.trust SyncData" },
		"the frames are not flushed":   func(c faultfs.Call) bool { return c.String() == firstJournal+" SyncData" },
		"nor taken back":               func(c faultfs.Call) bool { return c.Op == "WriteAt" && c.Path == firstJournal },
		"the abort record, not either": func(c faultfs.Call) bool { return c.Op == "WriteAt" },
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			s, m := r.openAtOnce(true)
			r.commits(s, 3)
			if !s.Stats().ConfirmPending {
				t.Fatal("there is no confirm to flush")
			}
			r.fs.Set(func(c faultfs.Call) faultfs.Action {
				if fails(c) {
					return faultfs.Action{Err: syscall.EIO}
				}
				return faultfs.Action{}
			})
			if _, err := s.Commit(r.ctx(), nthChange(4)); !errors.Is(err, ErrInDoubt) {
				t.Fatal(err)
			}
			r.fs.Set(nil)
			wound := m.resets.Load()
			for range 3 {
				for _, timer := range m.timers { // as wound up by commit 3
					timer.f()
				}
				if _, err := s.Commit(r.ctx(), nthChange(5)); !errors.Is(err, ErrInDoubt) {
					t.Error(err)
				}
			}
			if n := m.resets.Load() - wound; n != 0 || s.Stats().ConfirmPending {
				t.Errorf("the timer was wound up %d times in doubt: %+v", n, s.Stats())
			}
			if calls := r.fs.Calls(); len(calls) > 0 {
				t.Errorf("in doubt: %v", calls)
			}
			if _, err := s.Recover(r.ctx()); err != nil {
				t.Fatal(err)
			}
			next := int(s.View().Version().Revision) + 1
			for range 2 { // the first may publish
				if err := commitNth(r.ctx(), s, next); err != nil {
					t.Fatal(err)
				}
				next++
			}
			if !s.Stats().ConfirmPending || m.resets.Load() == wound {
				t.Errorf("settled, and the timer is not used any more: %+v", s.Stats())
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Frames whose write reported an error are all there nevertheless, and another writer
// came past the locks before they are taken back: it has found them, and kept them, and
// gone on. What it has written must not be written over, and that the commit did not
// happen is not certain.
func TestUndoBehindAnother(t *testing.T) {
	if onWindows {
		t.Skip("Wine does not rename over a file that a process has open, and the writer has the trust file open")
	}
	r := newRig(t)
	s := r.mustOpen()
	r.commits(s, 3)
	var q Receipt
	r.fs.Set(func(c faultfs.Call) faultfs.Action {
		if q != (Receipt{}) || c.Op != "WriteAt" || c.Path != firstJournal {
			return faultfs.Action{}
		}
		return faultfs.Action{Err: syscall.EIO, Done: true, After: func() {
			for _, l := range r.lockFiles() {
				r.aside(l)
			}
			other, err := Open(context.Background(), r.dir, r.trust, r.opts)
			if err != nil {
				t.Fatal(err)
			}
			if rec := other.Recovery(); rec.Settled != SettledLanded {
				t.Errorf("the other one settled %+v", rec)
			}
			if q, err = other.Commit(context.Background(), entryOf("q")); err != nil || q.Revision != 5 {
				t.Errorf("the other one's commit: %+v, %v", q, err)
			}
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			r.fs.Set(nil)
		}}
	})
	_, err := s.Commit(r.ctx(), nthChange(4))
	if !errors.Is(err, ErrInDoubt) || errors.Is(err, ErrNotCommitted) || !errors.Is(err, syscall.EIO) {
		t.Errorf("Commit: %v", err)
	}
	if calls := r.fs.Mutating(); len(calls) > 0 {
		t.Errorf("wrote %v over what the other one wrote", calls)
	}
	if _, err := s.Commit(r.ctx(), entryOf("y")); !errors.Is(err, ErrInDoubt) {
		t.Errorf("once more: %v", err)
	}
	s.Close() // in doubt, and stale
	again := r.opened(nil)
	seen := history(t, again.View())
	if seen["c4"] != 4 || seen["q"] != 5 || len(seen) != 5 {
		t.Errorf("the history is %v", seen)
	}
	if ok, err := again.View().Contains(q); !ok || err != nil {
		t.Errorf("what the other one acknowledged is gone: %v", err)
	}
	if err := again.Verify(r.ctx(), nil); err != nil {
		t.Error(err)
	}
}

// A file that looks like a journal and is none is listed as one that pawl did not make.
func TestInspectListsWhatIsNoJournal(t *testing.T) {
	r := newRig(t)
	r.prepare("journal")
	strangers := []string{"journal.000000000001.bak", "journal.1", "journal.old"}
	for _, name := range strangers {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rep, err := Inspect(r.ctx(), r.dir, r.trust, nil)
	if err != nil || rep.Verdict != "clean" || rep.Journal == 0 || !slices.Equal(slices.Sorted(slices.Values(rep.Unknown)), strangers) {
		t.Errorf("%+v, %v", rep, err)
	}
}

// A bundle that has a journal is no use without it: the hint says so, whoever finds
// the damage. One that has none can be put back by itself.
func TestHintForADamagedBundle(t *testing.T) {
	for _, kind := range []string{"journal", "one", "extend landed", "making landed"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			r.prepare(kind)
			journal := strings.HasPrefix(kind, "journal") || strings.HasPrefix(kind, "extend")
			want := hintDamaged
			if journal {
				want = hintWhole
			}
			path := filepath.Join(r.dir, bundleName)
			whole := r.file("session/" + bundleName)
			overwrite(t, path, []byte{whole[300] ^ 1}, 300)
			_, err := r.open()
			var e *Error
			if !errors.Is(err, ErrDamaged) || !errors.As(err, &e) || e.Hint != want {
				t.Errorf("Open: %v; want the hint %q", err, want)
			}
			rep, err := Inspect(r.ctx(), r.dir, r.trust, nil)
			if err != nil || rep.Verdict != "refuse" || rep.Hint != want {
				t.Errorf("Inspect: %+v, %v; want the hint %q", rep, err, want)
			}
			overwrite(t, path, whole[300:301], 300)
			s := r.mustOpen()
			defer s.Close() // the bundle was touched, and it says so
			want = hintDamaged
			if s.root.Journal > 0 {
				want = hintWhole
			}
			overwrite(t, path, []byte{whole[300] ^ 1}, 300)
			if err := s.Verify(r.ctx(), nil); !errors.Is(err, ErrDamaged) || !errors.As(err, &e) || e.Hint != want {
				t.Errorf("Verify: %v; want the hint %q", err, want)
			}
			overwrite(t, path, whole[300:301], 300)
		})
	}
}

// A file that is not read because of a limit comes with the way out.
func TestHintForAFileOverTheLimit(t *testing.T) {
	for what, limits := range map[string]Limits{
		"Limits.Bundle":  {Bundle: 1000},
		"Limits.Journal": {Journal: 2 * blockSize},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.prepare("journal")
			r.opts = &Options{Limits: limits}
			_, err := r.open()
			var e *Error
			if !errors.Is(err, ErrTooLarge) || !errors.As(err, &e) || e.Hint != hintLimit || !strings.Contains(err.Error(), what) {
				t.Errorf("Open: %v", err)
			}
			rep, err := Inspect(r.ctx(), r.dir, r.trust, r.opts)
			if err != nil || rep.Verdict != "refuse" || !errors.Is(rep.Err, ErrTooLarge) || rep.Hint != hintLimit {
				t.Errorf("Inspect: %+v, %v", rep, err)
			}
			r.opts = nil
			if err := checkNth(r.opened(nil).View(), 2); err != nil {
				t.Error(err)
			}
		})
	}
}

// A journal gets the mode that the bundle has when it is made, not the one that it had
// when it was opened or written.
func TestJournalIsLikeTheBundleNow(t *testing.T) {
	if onWindows {
		t.Skip("modes say nothing on Windows")
	}
	r := newRig(t)
	r.prepare("one")
	s := r.opened(nil)
	for i, mode := range []fs.FileMode{0o640, 0o600, 0o644} {
		if err := os.Chmod(filepath.Join(r.dir, bundleName), mode); err != nil {
			t.Fatal(err)
		}
		r.commits(s, i+2)
		info, err := os.Stat(r.journal())
		if err != nil || info.Mode() != mode {
			t.Errorf("made after the bundle got %v: %v, %v", mode, info.Mode(), err)
		}
		if err := s.Checkpoint(r.ctx()); err != nil {
			t.Fatal(err)
		}
	}
}

// While a confirm is flushed nobody writes to the trust file: an error of the flush could
// belong to either, and one of the two would not hear of it.
func TestIdleFlushHoldsTheTurn(t *testing.T) {
	r := newRig(t)
	r.opts = roomy()
	s := r.opened(r.opts)
	r.commits(s, 3)
	var next *asked
	r.fs.Set(func(c faultfs.Call) faultfs.Action {
		if next != nil || c.String() != "trust/session.trust SyncData" {
			return faultfs.Action{}
		}
		next = r.ask(context.Background(), s, entryOf("x"))
		for try := 0; s.Stats().Waiting != 1; try++ {
			if try == 10_000 {
				t.Error("a commit does not wait for the flush")
				return faultfs.Action{}
			}
			time.Sleep(50 * time.Microsecond)
		}
		time.Sleep(5 * time.Millisecond) // a chance for wrong code to be wrong
		if s.Stats().Waiting != 1 {
			t.Error("a commit goes on while the confirm before it is flushed")
		}
		return faultfs.Action{}
	})
	r.machine.idle()
	if next == nil {
		t.Fatal("nothing was flushed")
	}
	<-next.done
	if next.err != nil {
		t.Error(next.err)
	}
}
