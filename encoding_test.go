//go:build unix || windows

package pawl

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkEncoding is how much of a commit by one caller goes into checking, copying,
// hashing and encoding it: all that happens before the turn is taken.
func BenchmarkEncoding(b *testing.B) {
	root := b.TempDir()
	s, err := Open(b.Context(), filepath.Join(root, "session"), filepath.Join(root, "trust"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c := Change{Entries: [][]byte{bytes.Repeat([]byte("e"), 1<<10)}, Put: map[string][]byte{"state.json": bytes.Repeat([]byte("p"), 4<<10)}}
	var encoding, all []time.Duration
	for b.Loop() {
		start := time.Now()
		p, err := c.prepare(&s.opts.Limits)
		if err != nil {
			b.Fatal(err)
		}
		r := s.enter(context.Background(), p)
		encoding = append(encoding, time.Since(start))
		s.await(r)
		all = append(all, time.Since(start))
		if r.err != nil {
			b.Fatal(r.err)
		}
	}
	slices.Sort(encoding)
	slices.Sort(all)
	half := len(all) / 2
	b.ReportMetric(float64(encoding[half])/1e3, "encoding-µs")
	b.ReportMetric(float64(all[half])/1e3, "commit-µs")
	b.ReportMetric(float64(encoding[half])/float64(all[half]), "encoding/commit")
}
