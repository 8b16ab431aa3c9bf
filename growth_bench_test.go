//go:build unix || windows

package pawl_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// A store with a million entries is made once for all benchmarks that need one, which
// takes about a minute and half a gigabyte below the temporary directory. Each entry is
// a commit with an id: there is nothing that costs more to keep.
const (
	million   = 1_000_000
	entrySize = 200
)

var aMillion struct {
	once       sync.Once
	root       string
	err        error
	took       time.Duration
	dir, trust string
}

// TestMain removes it.
func TestMain(m *testing.M) {
	code := m.Run()
	if aMillion.root != "" {
		os.RemoveAll(aMillion.root)
	}
	os.Exit(code)
}

func millionStore(b *testing.B) (dir, trust string) {
	b.Helper()
	if testing.Short() {
		b.Skip("it takes a minute to make")
	}
	aMillion.once.Do(func() {
		start := time.Now()
		if aMillion.root, aMillion.err = os.MkdirTemp("", "pawl-million"); aMillion.err != nil {
			return
		}
		aMillion.dir, aMillion.trust = filepath.Join(aMillion.root, "session"), filepath.Join(aMillion.root, "trust")
		aMillion.err = makeMillion(aMillion.dir, aMillion.trust)
		aMillion.took = time.Since(start)
	})
	if aMillion.err != nil {
		b.Fatal(aMillion.err)
	}
	return aMillion.dir, aMillion.trust
}

func makeMillion(dir, trust string) error {
	ctx := context.Background()
	s, err := pawl.Open(ctx, dir, trust, nil)
	if err != nil {
		return err
	}
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range 256 {
		wg.Go(func() {
			data := make([]byte, entrySize)
			for failed.Load() == nil {
				i := next.Add(1)
				if i > million {
					return
				}
				if _, err := s.Commit(ctx, pawl.Change{ID: idOf(i), Entries: [][]byte{data}}); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return *e
	}
	return s.Close()
}

func idOf(i int64) string { return fmt.Sprint("commit-", i) }

func opened(b *testing.B, dir, trust string) *pawl.Store {
	b.Helper()
	s, err := pawl.Open(b.Context(), dir, trust, nil)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkMillionCommit commits in turns to a store of a million entries and to a new one.
func BenchmarkMillionCommit(b *testing.B) {
	dir, trust := millionStore(b)
	large := opened(b, dir, trust)
	defer large.Close()
	small, _, _ := benchStore(b, 0, nil)
	defer small.Close()
	run := rand.Uint64()
	commit := func(s *pawl.Store, i int) time.Duration {
		c := usual()
		c.ID = fmt.Sprint(run, "-", i)
		start := time.Now()
		if _, err := s.Commit(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	start := time.Now()
	commit(large, -1) // reads all filters
	first := time.Since(start)
	commit(small, -1)
	var l, s []time.Duration
	for i := 0; b.Loop(); i++ {
		l, s = append(l, commit(large, i)), append(s, commit(small, i))
	}
	b.ReportMetric(ratio(l, s), "x-empty")
	b.ReportMetric(float64(first.Microseconds()), "first-µs")
}

// BenchmarkMillionOpen opens and closes both in turns.
func BenchmarkMillionOpen(b *testing.B) {
	dir, trust := millionStore(b)
	s, few, fewTrust := benchStore(b, 1, nil)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	open := func(dir, trust string) time.Duration {
		start := time.Now()
		s := opened(b, dir, trust)
		took := time.Since(start)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		return took
	}
	var l, f []time.Duration
	for b.Loop() {
		l, f = append(l, open(dir, trust)), append(f, open(few, fewTrust))
	}
	b.ReportMetric(ratio(l, f), "x-empty")
}

// BenchmarkMillionMemory is what an open store of a million entries keeps in memory, after
// a commit with an id and a look at an old one.
func BenchmarkMillionMemory(b *testing.B) {
	dir, trust := millionStore(b)
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	run := rand.Uint64()
	for i := 0; b.Loop(); i++ {
		before := heap()
		s := opened(b, dir, trust)
		if _, err := s.Commit(b.Context(), pawl.Change{ID: fmt.Sprint(run, "-memory-", i), Entries: [][]byte{{1}}}); err != nil {
			b.Fatal(err)
		}
		if _, o, err := s.Lookup(b.Context(), idOf(1)); o != pawl.OutcomeCommitted || err != nil {
			b.Fatal(o, err)
		}
		b.ReportMetric((heap()-before)/(1<<20), "MiB")
		b.ReportMetric(float64(s.Stats().Segments), "segments")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMillionLookup looks up ids, revisions and entries at random.
func BenchmarkMillionLookup(b *testing.B) {
	dir, trust := millionStore(b)
	s := opened(b, dir, trust)
	defer s.Close()
	b.Run("id", func(b *testing.B) {
		for b.Loop() {
			if _, o, err := s.Lookup(b.Context(), idOf(1+rand.Int64N(million))); o != pawl.OutcomeCommitted || err != nil {
				b.Fatal(o, err)
			}
		}
	})
	b.Run("unknown-id", func(b *testing.B) {
		for b.Loop() {
			if _, o, err := s.Lookup(b.Context(), fmt.Sprint("no-", rand.Uint64())); o != pawl.OutcomeNotCommitted || err != nil {
				b.Fatal(o, err)
			}
		}
	})
	b.Run("seq", func(b *testing.B) {
		for b.Loop() {
			want := pawl.Seq(1 + rand.Int64N(million))
			for e, err := range s.View().Entries(want - 1) {
				if e.Seq != want || err != nil {
					b.Fatal(e, err)
				}
				break
			}
		}
	})
	b.Run("revision", func(b *testing.B) {
		for b.Loop() {
			want := pawl.Revision(1 + rand.Int64N(million))
			for c, err := range s.View().Commits(want - 1) {
				if c.Version.Revision != want || err != nil {
					b.Fatal(c, err)
				}
				break
			}
		}
	})
}

// BenchmarkReadAll reads the entries of 256 MiB of history in turns with the files that
// hold them: raw, and with their SHA-256, which is what pawl does not go without.
func BenchmarkReadAll(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			s, dir, trust := benchStore(b, 0, nil)
			total := 256 << 20
			for range total / (64 * size) {
				c := pawl.Change{}
				for range 64 {
					c.Entries = append(c.Entries, make([]byte, size))
				}
				if _, err := s.Commit(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			s = opened(b, dir, trust)
			defer s.Close()
			files, err := filepath.Glob(filepath.Join(dir, "segments", "*"))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(total))
			all := func() time.Duration {
				start := time.Now()
				n := 0
				for e, err := range s.View().Entries(0) {
					if err != nil {
						b.Fatal(err)
					}
					n += len(e.Data)
				}
				if n != total {
					b.Fatal(n)
				}
				return time.Since(start)
			}
			var entries, raw, hashed, cold, coldRaw []time.Duration
			for b.Loop() {
				raw = append(raw, readRaw(b, files, func([]byte) {}))
				h := sha256.New()
				hashed = append(hashed, readRaw(b, files, func(p []byte) { h.Write(p) }))
				entries = append(entries, all())
				if forget(b, files) {
					coldRaw = append(coldRaw, readRaw(b, files, func([]byte) {}))
					forget(b, files)
					cold = append(cold, all())
				}
			}
			b.ReportMetric(ratio(raw, entries), "of-raw")
			b.ReportMetric(ratio(hashed, entries), "of-raw+sha256")
			if len(cold) > 0 {
				b.ReportMetric(ratio(coldRaw, cold), "of-raw-from-disk")
			}
		})
	}
}

func readRaw(b *testing.B, files []string, use func([]byte)) time.Duration {
	start := time.Now()
	room := make([]byte, 1<<20)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		for {
			n, err := f.Read(room)
			use(room[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		f.Close()
	}
	return time.Since(start)
}

// BenchmarkAmplification is how many bytes are written for each byte of usual commits,
// blocks aside, until their history is sealed and merged.
func BenchmarkAmplification(b *testing.B) {
	const commits = 12_000
	for b.Loop() {
		s, _, _ := benchStore(b, 0, nil)
		for range commits {
			if _, err := s.Commit(b.Context(), usual()); err != nil {
				b.Fatal(err)
			}
		}
		st := s.Stats()
		payload := float64(commits * (5 << 10))
		b.ReportMetric(float64(st.BytesWritten-st.BytesBlocks)/payload, "x-payload")
		b.ReportMetric(float64(st.BytesWritten)/payload, "x-with-blocks")
		b.ReportMetric(float64(st.Seals), "seals")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// ratio is how the medians of two series of runs in turns compare.
func ratio(a, b []time.Duration) float64 { return float64(median(a)) / float64(median(b)) }
