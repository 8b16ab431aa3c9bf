package pawl_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// A Reader verifies what is on disk, without a lock and beside the writer, whatever it has
// read before.
func TestReaderVerifies(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, t.Context(), dir, trust, &pawl.Options{Limits: pawl.Limits{Unsealed: 1, Inline: 10}})
	r, err := pawl.OpenReader(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Verify(t.Context(), func(done, total int64) { t.Errorf("%d of %d of an empty store", done, total) }); err != nil {
		t.Error(err)
	}
	for i := range 4 {
		c := put("large", strings.Repeat("x", 100+i))
		c.Entries = [][]byte{[]byte("entry " + strconv.Itoa(i))}
		commit(t, s, c)
		if i%2 == 0 {
			if err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := testkit.Snapshot(t, dir, trust)
	last, all := int64(0), int64(0)
	err = r.Verify(t.Context(), func(done, total int64) {
		if done <= last && done != total || done > total || all != 0 && total != all {
			t.Errorf("%d of %d after %d of %d", done, total, last, all)
		}
		last, all = done, total
	})
	if err != nil || last != all || all == 0 || r.View().Version() != s.View().Version() {
		t.Errorf("%v at %d of %d", err, last, all)
	}
	for path, what := range testkit.Snapshot(t, dir, trust) {
		if before[path] != what {
			t.Errorf("Verify changed %s", path)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	if err := r.Verify(ctx, func(_, _ int64) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	// The bytes are damaged, and the size and time of the file are as they were.
	segments, err := filepath.Glob(filepath.Join(dir, "segments", "*"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	for _, path := range []string{segments[0], filepath.Join(dir, "bundle")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		rewrite := func() {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}
		rewrite()
		err = r.Verify(t.Context(), nil)
		var e *pawl.Error
		if !errors.As(err, &e) || e.Kind != pawl.ErrDamaged || e.Path != path || e.Op != "verify" {
			t.Errorf("%s: %v", path, err)
		}
		b[len(b)/2] ^= 1
		rewrite()
		if err := r.Verify(t.Context(), nil); err != nil {
			t.Errorf("%s, mended: %v", path, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Verify(t.Context(), nil); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A writer that publishes, merges and compacts meanwhile makes no damage of what it removes.
func TestReaderVerifiesBesideWriter(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, t.Context(), dir, trust, &pawl.Options{Limits: pawl.Limits{Unsealed: 1, Inline: 10}, CheckpointEvery: 2})
	commit(t, s, entry("first", "x"))
	r, err := pawl.OpenReader(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 120 {
			c := put("large", strings.Repeat("x", 100+i))
			c.Entries = [][]byte{[]byte("entry")}
			if _, err := s.Commit(t.Context(), c); err != nil {
				t.Error(err)
				return
			}
			if i%40 == 39 {
				if _, err := s.Compact(t.Context(), pawl.Policy{KeepLast: 10}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for n := 0; ; n++ {
		if err := r.Verify(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			if n == 0 {
				t.Error("the writer was done before the first Verify")
			}
			if err := r.Verify(t.Context(), nil); err != nil || r.View().Version() != s.View().Version() {
				t.Error(err)
			}
			return
		default:
		}
	}
}
