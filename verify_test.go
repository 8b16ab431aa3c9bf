package pawl_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// Verify reads everything and tells how far it is: never back, and to the end.
func TestVerifyProgress(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	if err := s.Verify(t.Context(), func(done, total int64) { t.Errorf("%d of %d of an empty store", done, total) }); err != nil {
		t.Error(err)
	}
	for range 2 {
		commit(t, s, put("large", strings.Repeat("x", 5<<19)))
		info, err := os.Stat(filepath.Join(dir, "bundle"))
		if err != nil {
			t.Fatal(err)
		}
		before := testkit.Snapshot(t, dir, trust)
		last, calls, all := int64(0), 0, info.Size()+inspect(t, dir, trust, nil).Confirmed.Journal+s.Stats().SegmentBytes+s.Stats().PartFileBytes
		err = s.Verify(t.Context(), func(done, total int64) {
			if done <= last || done > total || total != all {
				t.Errorf("%d of %d after %d; there are %d", done, total, last, all)
			}
			last = done
			calls++
		})
		if err != nil || last != all || calls < 3 {
			t.Errorf("ended at %d of %d after %d calls: %v", last, all, calls, err)
		}
		after := testkit.Snapshot(t, dir, trust)
		for path, what := range before {
			if after[path] != what {
				t.Errorf("Verify changed %s", path)
			}
		}
	}
}

func TestVerifyIsCancelled(t *testing.T) {
	s := newStore(t)
	commit(t, s, put("large", strings.Repeat("x", 5<<19)))
	mine := errors.New("mine")
	ctx, cancel := context.WithCancelCause(t.Context())
	calls := 0
	err := s.Verify(ctx, func(done, total int64) {
		calls++
		cancel(mine)
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, mine) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if err := s.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("begun when cancelled: %v", err)
	}
	if err := s.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Changes may be made while Verify reads, from its progress function even: it
// answers for the state that it began with.
func TestVerifyBesideCommits(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Wine does not rename over a file that a process has open")
	}
	s := newStore(t)
	commit(t, s, put("large", strings.Repeat("x", 3<<20)))
	n := 0
	err := s.Verify(t.Context(), func(done, total int64) {
		n++
		commit(t, s, put("small", "x"))
	})
	if err != nil || n < 2 || int(s.View().Version().Revision) != n+1 {
		t.Errorf("%v; %d commits, at %v", err, n, s.View().Version())
	}
}

// Damage under an open store is found, and the file that has it is named.
func TestVerifyFindsDamage(t *testing.T) {
	flip := func(at func(b []byte) int) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[at(b)] ^= 0x10
			if err := os.WriteFile(path, b, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	rewrite := func(change func([]byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(b), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	middle := func(b []byte) int { return len(b) / 2 }
	text := func(text string) func(b []byte) int {
		return func(b []byte) int { return bytes.LastIndex(b, []byte(text)) }
	}
	for _, tt := range []struct {
		name   string
		file   string
		damage func(t *testing.T, path string)
		want   error
	}{
		{"a bit in a part", "bundle", flip(text("part bytes")), pawl.ErrDamaged},
		{"a bit in an entry", "bundle", flip(text("entry bytes")), pawl.ErrDamaged},
		{"a bit in the header", "bundle", flip(func([]byte) int { return 70 }), pawl.ErrDamaged},
		{"a bit in the checksum", "bundle", flip(func(b []byte) int { return len(b) - 1 }), pawl.ErrDamaged},
		{"a shorter bundle", "bundle", rewrite(func(b []byte) []byte { return b[:len(b)-1] }), pawl.ErrDamaged},
		{"a longer bundle", "bundle", rewrite(func(b []byte) []byte { return append(b, 0) }), pawl.ErrDamaged},
		{"an empty bundle", "bundle", rewrite(func([]byte) []byte { return nil }), pawl.ErrDamaged},
		{"no bundle", "bundle", remove, pawl.ErrMissing},
		{"a directory for a bundle", "bundle", func(t *testing.T, path string) {
			remove(t, path)
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrUnauthorized},
		{"the same history, published otherwise", "bundle", rewrite(func(b []byte) []byte {
			table := crc32.MakeTable(crc32.Castagnoli)
			b[52]++ // epoch
			binary.LittleEndian.PutUint32(b[252:], crc32.Checksum(b[:252], table))
			binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], table))
			return b
		}), pawl.ErrDamaged},
		{"another store's bundle", "bundle", rewrite(func([]byte) []byte { return readGolden(t, "full.bundle") }), pawl.ErrDamaged},
		{"a bit in the newest slot", "session.trust", flip(text("\nhistory ")), pawl.ErrTrustDamaged},
		{"a bit in the padding", "session.trust", flip(func(b []byte) int { return len(b) - 9 }), pawl.ErrTrustDamaged},
		{"a bit in a slot that is out of use", "session.trust", flip(middle), pawl.ErrTrustDamaged},
		{"a shorter trust file", "session.trust", rewrite(func(b []byte) []byte { return b[:len(b)-1] }), pawl.ErrTrustDamaged},
		{"another store's trust file", "session.trust", rewrite(func([]byte) []byte { return readGolden(t, "clean.trust") }), pawl.ErrTrustDamaged},
		{"no trust file", "session.trust", remove, pawl.ErrTrustDamaged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.name == "no trust file" {
				t.Skip("the trust file is held open, and Windows keeps the name of an open file until it is closed")
			}
			dir, trust := testkit.Dirs(t)
			s, err := pawl.Open(t.Context(), dir, trust, &pawl.Options{CheckpointEvery: 1})
			if err != nil {
				t.Fatal(err)
			}
			// Close may find it too, and then says so; the locks are given up all the same.
			defer s.Close()
			for range 3 {
				commit(t, s, pawl.Change{Entries: [][]byte{[]byte("entry bytes")}, Put: map[string][]byte{"p": []byte("part bytes")}})
			}
			if err := s.Verify(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, tt.file)
			if tt.file != "bundle" {
				path = filepath.Join(trust, tt.file)
			}
			tt.damage(t, path)
			err = s.Verify(t.Context(), nil)
			var e *pawl.Error
			if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Op != "verify" || filepath.Base(e.Path) != tt.file || e.Hint == "" {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if tt.file == "bundle" && e.Trusted.Revision != 3 {
				t.Errorf("trusted %+v", e.Trusted)
			}
			// What is in memory is still whole, and is not written over the evidence.
			if got := partsOf(t, s.View())["p"]; got != "part bytes" {
				t.Errorf("part %q", got)
			}
			if tt.file == "bundle" {
				// Where the clock is coarse, a file may be changed twice at one time.
				later := time.Now().Add(time.Hour)
				if err := os.Chtimes(path, later, later); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			_, err = s.Commit(t.Context(), entry("", "x"))
			notCommitted(t, err, pawl.ErrStale)
		})
	}
}
