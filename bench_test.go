//go:build unix || windows

package pawl_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What these measure is mostly the disk below the temporary directory, and whoever
// else uses it at the time. So what is compared is measured in one run, in turns, and
// the figures to keep are the ratios. docs/performance.md has some.

// usual is a commit of the usual size.
func usual() pawl.Change {
	return pawl.Change{
		Entries: [][]byte{bytes.Repeat([]byte("e"), 1<<10)},
		Put:     map[string][]byte{"state.json": bytes.Repeat([]byte("p"), 4<<10)},
	}
}

// benchStore makes a store with a number of commits.
func benchStore(b *testing.B, commits int, o *pawl.Options) (s *pawl.Store, dir, trust string) {
	b.Helper()
	root := b.TempDir()
	dir, trust = filepath.Join(root, "session"), filepath.Join(root, "trust")
	s, err := pawl.Open(b.Context(), dir, trust, o)
	if err != nil {
		b.Fatal(err)
	}
	for i := range commits {
		c := entry("id-"+strconv.Itoa(i), "an entry of the usual size, some hundred bytes of text or JSON")
		c.Put = map[string][]byte{"state.json": fmt.Appendf(nil, `{"cursor":%d}`, i)}
		if _, err := s.Commit(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
	return s, dir, trust
}

// floor is the least that a commit can cost which two files have to agree on: two
// flushes, one after the other, of blocks that were written before.
type floor struct {
	trust, data vfs.File
	n           int64
}

const (
	floorSlots  = 4
	floorBlocks = 1 << 9
	floorBatch  = 8 << 10 // what the usual commit takes in a journal
)

func newFloor(b *testing.B) *floor {
	b.Helper()
	dir, err := vfs.OS().OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dir.Close() })
	make := func(name string, size int64) vfs.File {
		f, err := dir.Create(name, 0o600)
		for at := int64(0); at < size && err == nil; at += 4096 {
			_, err = f.WriteAt(bytes.Repeat([]byte("."), 4096), at)
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		return f
	}
	return &floor{trust: make("trust", floorSlots*4096), data: make("data", floorBlocks*floorBatch)}
}

func (f *floor) commit() error {
	f.n++
	for _, w := range []struct {
		file vfs.File
		size int
		at   int64
	}{{f.trust, 4096, f.n % floorSlots * 4096}, {f.data, floorBatch, f.n % floorBlocks * floorBatch}} {
		if _, err := w.file.WriteAt(bytes.Repeat([]byte{byte(f.n)}, w.size), w.at); err != nil {
			return err
		}
		if err := w.file.SyncData(); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkCommit holds a commit that extends and one that publishes against the
// floor, some of each in turn. Figures are medians; x/floor are ratios.
func BenchmarkCommit(b *testing.B) {
	f := newFloor(b)
	extend, _, _ := benchStore(b, 1, nil)
	defer extend.Close()
	publish, _, _ := benchStore(b, 1, &pawl.Options{CheckpointEvery: 1})
	defer publish.Close()
	c := usual()
	commit := func(s *pawl.Store) func() error {
		return func() error {
			_, err := s.Commit(context.Background(), c)
			return err
		}
	}
	const turn = 16
	ways := []struct {
		name  string
		times int // in a turn
		do    func() error
		took  []time.Duration
	}{
		{name: "floor", times: turn, do: f.commit},
		{name: "extend", times: turn, do: commit(extend)},
		{name: "publish", times: 1, do: commit(publish)}, // its bundle grows
	}
	for b.Loop() {
		for i := range ways {
			w := &ways[i]
			for range w.times {
				start := time.Now()
				if err := w.do(); err != nil {
					b.Fatal(err)
				}
				w.took = append(w.took, time.Since(start))
			}
		}
	}
	least := median(ways[0].took)
	for _, w := range ways {
		b.ReportMetric(float64(median(w.took))/1e3, w.name+"-µs")
		b.ReportMetric(float64(median(w.took))/float64(least), w.name+"/floor")
	}
	b.ReportMetric(0, "ns/op") // of no meaning here
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkExtend is one commit after the other, with its allocations and with what
// it writes.
func BenchmarkExtend(b *testing.B) {
	s, _, _ := benchStore(b, 2, nil)
	defer s.Close()
	c := usual()
	before := s.Stats()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Commit(context.Background(), c); err != nil {
			b.Fatal(err)
		}
	}
	n := s.Stats()
	commits := float64(n.Commits - before.Commits)
	b.ReportMetric(float64(n.BytesWritten-before.BytesWritten)/commits, "written/op")
	b.ReportMetric(float64(n.FileSyncs-before.FileSyncs)/commits, "syncs/op")
}

// BenchmarkCommitters: many callers at once, each waiting for its own commits.
// Commits per second, and by how much that is more than what one caller gets in the
// same run, while there is room in the journal. Each turn has new stores: the bundle
// holds all history, and what it costs to publish it grows with that.
func BenchmarkCommitters(b *testing.B) {
	counts := []int{1, 16, 64}
	spent, made := map[int]time.Duration{}, map[int]int{}
	batches := map[int]int64{}
	for b.Loop() {
		for _, n := range counts {
			b.StopTimer()
			s, _, _ := benchStore(b, 2, nil)
			grown(b, s, 4<<20) // so that no bundle is published in what follows
			before := s.Stats()
			commits := 10 * n * (1 + 16/n)
			b.StartTimer()
			start := time.Now()
			if err := together(s, n, commits); err != nil {
				b.Fatal(err)
			}
			spent[n] += time.Since(start)
			made[n] += commits
			b.StopTimer()
			batches[n] += s.Stats().Batches - before.Batches
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	rate := func(n int) float64 { return float64(made[n]) / spent[n].Seconds() }
	for _, n := range counts {
		b.ReportMetric(rate(n), fmt.Sprintf("commits/s-by-%d", n))
		b.ReportMetric(rate(n)/rate(1), fmt.Sprintf("by-%d/by-1", n))
		b.ReportMetric(float64(made[n])/float64(batches[n]), fmt.Sprintf("in-a-batch-by-%d", n))
	}
	b.ReportMetric(0, "ns/op")
}

// together makes commits by n callers at once.
func together(s *pawl.Store, n, commits int) error {
	var left atomic.Int64
	left.Store(int64(commits))
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			c := usual()
			for left.Add(-1) >= 0 && errs[i] == nil {
				_, errs[i] = s.Commit(context.Background(), c)
			}
		}()
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkOpen opens stores as a killed process leaves them: with the bundle alone,
// with a bundle of all that was committed, and with a journal that is nearly full.
func BenchmarkOpen(b *testing.B) {
	for _, tt := range []struct {
		name    string
		commits int
		o       *pawl.Options
	}{
		{"bundle", 1, nil},
		{"large-bundle", 500, &pawl.Options{CheckpointEvery: 500}},
		{"journal", 500, &pawl.Options{Limits: pawl.Limits{Journal: 4 << 20}}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			s, dir, trust := benchStore(b, 1, tt.o)
			defer s.Close()
			if tt.name == "journal" {
				grown(b, s, 4<<20)
			}
			for range tt.commits - 1 {
				if _, err := s.Commit(b.Context(), usual()); err != nil {
					b.Fatal(err)
				}
			}
			var size int64
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				at := b.TempDir()
				d, t := filepath.Join(at, "session"), filepath.Join(at, "trust")
				if err := os.CopyFS(d, os.DirFS(dir)); err != nil {
					b.Fatal(err)
				}
				if err := os.CopyFS(t, os.DirFS(trust)); err != nil {
					b.Fatal(err)
				}
				private(b, t)
				r, err := pawl.Inspect(b.Context(), d, t, nil)
				if err != nil || r.Err != nil {
					b.Fatal(err, r.Err)
				}
				size = r.Bytes + r.Confirmed.Journal
				b.StartTimer()
				s, err := pawl.Open(context.Background(), d, t, nil)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}

// grown commits until the store has a journal of that size with nothing in it but one
// commit.
func grown(b *testing.B, s *pawl.Store, size int64) {
	b.Helper()
	for {
		before := s.Stats().BytesWritten
		if _, err := s.Commit(b.Context(), usual()); err != nil {
			b.Fatal(err)
		}
		if s.Stats().BytesWritten-before > size {
			return
		}
	}
}

// private takes from others what a copy may have given them.
func private(b *testing.B, dir string) {
	b.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		mode := fs.FileMode(0o600)
		if d.IsDir() {
			mode = 0o700
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		b.Fatal(err)
	}
}

// A view costs nothing to take; what it gives is copied.
func BenchmarkView(b *testing.B) {
	s, _, _ := benchStore(b, 100, nil)
	defer s.Close()
	b.Run("take", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if s.View().Version().Revision != 100 {
				b.Fatal("another revision")
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok, err := s.View().Get("state.json"); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("entries", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for _, err := range s.View().Entries(0) {
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
			if n != 100 {
				b.Fatal(n)
			}
		}
	})
}

// TestCommitAllocates pins how often a commit allocates.
func TestCommitAllocates(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("what the calls of the operating system allocate differs from one to the other")
	}
	if raceEnabled {
		t.Skip("the race detector allocates too")
	}
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, &pawl.Options{Limits: pawl.Limits{Journal: 4 << 20}})
	defer s.Close()
	c := usual()
	commit(t, s, c)
	commit(t, s, c)
	const most = 75
	// No more commits than the first journal has room for: publishing is another matter.
	if n := testing.AllocsPerRun(5, func() { commit(t, s, c) }); n > most {
		t.Errorf("a commit allocates %v times, and %d are allowed", n, most)
	}
}
