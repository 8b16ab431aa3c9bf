package pawl_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
)

// What these measure is mostly the disk below the temporary directory, and whoever
// else uses it at the time.

// benchStore makes a store with a number of commits.
func benchStore(b *testing.B, commits int) (s *pawl.Store, dir, trust string) {
	b.Helper()
	root := b.TempDir()
	dir, trust = filepath.Join(root, "session"), filepath.Join(root, "trust")
	s, err := pawl.Open(b.Context(), dir, trust, nil)
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

func BenchmarkCommit(b *testing.B) {
	for _, commits := range []int{0, 1000} {
		b.Run(fmt.Sprintf("after=%d", commits), func(b *testing.B) {
			s, _, _ := benchStore(b, commits)
			defer s.Close()
			c := pawl.Change{
				Entries: [][]byte{bytes.Repeat([]byte("e"), 1<<10)},
				Put:     map[string][]byte{"state.json": bytes.Repeat([]byte("p"), 4<<10)},
			}
			before := s.Stats()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Commit(context.Background(), c); err != nil {
					b.Fatal(err)
				}
			}
			n := s.Stats()
			b.ReportMetric(float64(n.BytesWritten-before.BytesWritten)/float64(n.Commits-before.Commits), "written/op")
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, commits := range []int{1, 1000} {
		b.Run(fmt.Sprintf("commits=%d", commits), func(b *testing.B) {
			s, dir, trust := benchStore(b, commits)
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				s, err := pawl.Open(context.Background(), dir, trust, nil)
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A view costs nothing to take; what it gives is copied.
func BenchmarkView(b *testing.B) {
	s, _, _ := benchStore(b, 100)
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
