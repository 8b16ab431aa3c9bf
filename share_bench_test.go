//go:build unix || windows

package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// BenchmarkShared holds a commit of a store that is shared against one of a store that is
// not: by a process that is alone, and by two that take turns at each commit. All are
// measured in turns.
func BenchmarkShared(b *testing.B) {
	alone, _, _ := benchStore(b, 1, nil)
	single, _, _ := benchStore(b, 1, &pawl.Options{Shared: true})
	first, dir, trust := benchStore(b, 1, &pawl.Options{Shared: true})
	second, err := pawl.Open(b.Context(), dir, trust, &pawl.Options{Shared: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		for _, s := range []*pawl.Store{alone, single, first, second} {
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		}
	}()
	var took [3]time.Duration
	turn := 0
	for b.Loop() {
		turn++
		for i, s := range []*pawl.Store{alone, single, []*pawl.Store{first, second}[turn%2]} {
			start := time.Now()
			if _, err := s.Commit(b.Context(), usual()); err != nil {
				b.Fatal(err)
			}
			took[i] += time.Since(start)
		}
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N), "ns/exclusive")
	b.ReportMetric(float64(took[1])/float64(took[0]), "shared/exclusive")
	b.ReportMetric(float64(took[2])/float64(took[0]), "by-turns/exclusive")
}

// BenchmarkReader measures what a Reader does when nothing happened, when one commit was
// made, and when the bundle was published, beside a store of a thousand commits; and
// Open, to compare.
func BenchmarkReader(b *testing.B) {
	s, dir, trust := benchStore(b, 1000, nil)
	defer s.Close()
	open := func() *pawl.Reader {
		r, err := pawl.OpenReader(b.Context(), dir, trust, nil)
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	r := open()
	defer r.Close()
	for _, bm := range []struct {
		name   string
		before func() error
	}{
		{"nothing", func() error { return nil }},
		{"commit", func() error { _, err := s.Commit(b.Context(), usual()); return err }},
		{"publish", func() error {
			if _, err := s.Commit(b.Context(), usual()); err != nil {
				return err
			}
			return s.Checkpoint(b.Context())
		}},
	} {
		b.Run("refresh/"+bm.name, func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				if err := bm.before(); err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				if err := r.Refresh(context.Background()); err != nil {
					b.Fatal(err)
				}
				took += time.Since(start)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/refresh")
		})
	}
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			if err := open().Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
