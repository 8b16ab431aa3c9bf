package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// grownStore makes a store with two segments of one commit each, and a part in a file.
// It returns the options to open it with, and the receipts.
func grownStore(t *testing.T, dir, trust string) (*Options, []Receipt) {
	t.Helper()
	o := &Options{CheckpointEvery: 1, Limits: Limits{Unsealed: 1, Inline: 10}}
	s, err := Open(context.Background(), dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	var receipts []Receipt
	for _, id := range []string{"first", "second"} {
		r, err := s.Commit(context.Background(), Change{ID: id, Entries: [][]byte{[]byte("the entry of " + id)},
			Put: map[string][]byte{"large": []byte("the large part of " + id)}})
		if err != nil {
			t.Fatal(err)
		}
		receipts = append(receipts, r)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return o, receipts
}

// rewritten changes the only file that a pattern matches.
func rewritten(t *testing.T, pattern string, edit func([]byte) []byte) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: %q, %v", pattern, paths, err)
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[0], edit(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What is not as the bundle names it is never returned, and never taken for not there:
// whatever asks for it fails.
func TestSealedBytesAreHeldAgainstDigests(t *testing.T) {
	ctx := context.Background()
	other := func(b []byte) []byte {
		return bytes.Replace(b, []byte("the entry of first"), []byte("the entry of frost"), 1)
	}
	const foot = footerHead + sha256.Size
	for name, tt := range map[string]struct {
		pattern string
		edit    func([]byte) []byte
		segment bool
	}{
		"an entry": {"segments/seg-000000000001-*", other, true},
		"an entry, with the digest of its chunk": {"segments/seg-000000000001-*", func(b []byte) []byte {
			b = other(b)
			digest := sha256.Sum256(b[:len(b)-foot])
			return append(b[:len(b)-sha256.Size], digest[:]...)
		}, true},
		"cut off":        {"segments/seg-000000000001-*", func(b []byte) []byte { return b[:len(b)-1] }, true},
		"longer":         {"segments/seg-000000000001-*", func(b []byte) []byte { return append([]byte{0}, b...) }, true},
		"a part":         {"parts/*", func(b []byte) []byte { return bytes.ToUpper(b) }, false},
		"a part, longer": {"parts/*", func(b []byte) []byte { return append(b, 0) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, trust := filepath.Join(t.TempDir(), "s"), t.TempDir()
			o, receipts := grownStore(t, dir, trust)
			rewritten(t, filepath.Join(dir, tt.pattern), tt.edit)
			s, err := Open(ctx, dir, trust, o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Verify(ctx, nil); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: %v", err)
			}
			b, ok, err := s.View().Get("large")
			if tt.segment != (err == nil) || !ok || tt.segment != (string(b) == "the large part of second") {
				t.Errorf("the part is %q, %v, %v", b, ok, err)
			}
			if !tt.segment {
				return
			}
			for e, err := range s.View().Entries(0) {
				if !errors.Is(err, ErrDamaged) || e.Data != nil {
					t.Errorf("an entry: %q, %v", e.Data, err)
				}
				break
			}
			n := 0
			for e, err := range s.View().Entries(1) {
				if n++; err != nil || string(e.Data) != "the entry of second" {
					t.Errorf("the entry after it: %q, %v", e.Data, err)
				}
			}
			if n != 1 {
				t.Errorf("%d entries after it", n)
			}
			for _, id := range []string{"first", "of nobody"} {
				if r, out, err := s.Lookup(ctx, id); out != OutcomeUnknown || !errors.Is(err, ErrDamaged) {
					t.Errorf("Lookup of %q: %v, %v, %v", id, r, out, err)
				}
				if r, err := s.Commit(ctx, Change{ID: id}); !errors.Is(err, ErrNotCommitted) || !errors.Is(err, ErrDamaged) {
					t.Errorf("a commit of %q: %v, %v", id, r, err)
				}
			}
			if r, out, err := s.Lookup(ctx, "second"); out != OutcomeCommitted || err != nil || r.Version != receipts[1].Version {
				t.Errorf("Lookup of what is in the other one: %v, %v, %v", r, out, err)
			}
			if r, err := s.Commit(ctx, Change{Entries: [][]byte{[]byte("goes on")}}); err != nil || r.Revision != 3 {
				t.Errorf("a commit without id: %v, %v", r, err)
			}
		})
	}
}

// A bundle whose table of segments cannot be is refused, before anything of that size
// is allocated.
func TestSegmentRows(t *testing.T) {
	dir, trust := filepath.Join(t.TempDir(), "s"), t.TempDir()
	grownStore(t, dir, trust)
	raw, err := os.ReadFile(filepath.Join(dir, bundleName))
	if err != nil {
		t.Fatal(err)
	}
	edited := func(edit func(r *row)) error {
		st, _, err := decodeBundle(raw, new(directory))
		if err != nil {
			t.Fatal(err)
		}
		edit(&st.sealed[0].row)
		_, _, err = decodeBundle(encodeBundle(st), new(directory))
		return err
	}
	if err := edited(func(*row) {}); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(r *row){
		"no size":               func(r *row) { r.size = 0 },
		"a negative size":       func(r *row) { r.size = -r.size },
		"a huge size":           func(r *row) { r.size = 1 << 62 },
		"a huge footer":         func(r *row) { r.footer = 1 << 31 },
		"another chunk":         func(r *row) { r.size += chunkSize },
		"no commits":            func(r *row) { r.end.revision = 0 },
		"more entries":          func(r *row) { r.entries = 2 },
		"an unknown flag":       func(r *row) { r.flags = 1 << 5 },
		"forgotten, with some":  func(r *row) { r.flags = rowForgotten },
		"a later seq than next": func(r *row) { r.end.nextSeq = 0 },
	} {
		if err := edited(edit); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

// A segment is read back before a bundle names it: what was spoilt on the way to disk is
// found while the history is still elsewhere, and the next attempt writes it anew.
func TestSegmentIsReadBack(t *testing.T) {
	dir, trust := filepath.Join(t.TempDir(), "s"), t.TempDir()
	o, receipts := grownStore(t, dir, trust)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(context.Background())
	s, err := Open(ctx, dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spoilt := false
	f.Set(func(c faultfs.Call) faultfs.Action {
		if spoilt || !strings.HasPrefix(c.Path, "s/segments/seg-000000000003-") || c.Op != "Open" {
			return faultfs.Action{}
		}
		spoilt = true
		return faultfs.Action{Before: func() {
			rewritten(t, filepath.Join(dir, "segments/seg-000000000003-*"), func(b []byte) []byte {
				b[headerSize+30] ^= 1
				return b
			})
		}}
	})
	third := Change{ID: "third", Entries: [][]byte{[]byte("the entry of third")}}
	_, err = s.Commit(ctx, third)
	if !spoilt || !errors.Is(err, ErrNotCommitted) || !errors.Is(err, ErrDamaged) {
		t.Fatalf("a commit whose segment is spoilt (%v): %v", spoilt, err)
	}
	if got := s.View().Version(); got != receipts[1].Version {
		t.Errorf("the view is at %v", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "segments/seg-000000000003-*")); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
	if r, err := s.Commit(ctx, third); err != nil || r.Revision != 3 {
		t.Fatalf("the same once more: %v, %v", r, err)
	}
	if err := s.Verify(ctx, nil); err != nil {
		t.Error(err)
	}
}

// A damaged segment that was to be merged with others stays, and stops no commit.
func TestDamagedSegmentStopsNoCommit(t *testing.T) {
	ctx := context.Background()
	dir, trust := filepath.Join(t.TempDir(), "s"), t.TempDir()
	o, _ := grownStore(t, dir, trust)
	rewritten(t, filepath.Join(dir, "segments/seg-000000000002-*"), func(b []byte) []byte {
		b[headerSize+30] ^= 1
		return b
	})
	s, err := Open(ctx, dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 12 {
		if _, err := s.Commit(ctx, Change{Entries: [][]byte{{byte(i)}}}); err != nil {
			t.Fatalf("commit %d: %v", i, err)
		}
	}
	n := 0
	for e, err := range s.View().Entries(2) {
		if err != nil || len(e.Data) != 1 || int(e.Data[0]) != n {
			t.Fatalf("entry %d: %q, %v", e.Seq, e.Data, err)
		}
		n++
	}
	if n != 12 {
		t.Errorf("%d entries", n)
	}
	if err := s.Verify(ctx, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("Verify: %v", err)
	}
}

// A View reads what it has not read before, though the store does not need it any more.
func TestRetiredStaysReadable(t *testing.T) {
	ctx := context.Background()
	dir, trust := filepath.Join(t.TempDir(), "s"), t.TempDir()
	o, _ := grownStore(t, dir, trust)
	s, err := Open(ctx, dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v := s.View()
	if _, err := s.Commit(ctx, Change{Put: map[string][]byte{"large": []byte("the large part of third")}}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "parts/*")); len(left) != 1 && vfs.ReplacesOpen {
		t.Errorf("there are %q", left)
	}
	if _, err := s.Compact(ctx, Policy{KeepSince: 3}); err != nil {
		t.Fatal(err)
	}
	if b, _, err := v.Get("large"); err != nil || string(b) != "the large part of second" {
		t.Errorf("the part of the view is %q, %v", b, err)
	}
	n := 0
	for e, err := range v.Entries(0) {
		if n++; err != nil {
			t.Fatalf("entry %d: %q, %v", e.Seq, e.Data, err)
		}
	}
	if n != 2 {
		t.Errorf("the view has %d entries", n)
	}
}

// The order of a publish that makes files and needs others no more: they are durable
// before the intent, and those that go stay until the confirm is durable.
func TestOrderOfFiles(t *testing.T) {
	base := t.TempDir()
	dir, trust := filepath.Join(base, "s"), filepath.Join(base, "trust")
	o, _ := grownStore(t, dir, trust)
	f := faultfs.New(vfs.OS(), base)
	ctx := f.Context(context.Background())
	s, err := Open(ctx, dir, trust, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// The second commit writes its records in place.
	for _, id := range []string{"third", "fourth"} {
		before := len(f.Mutating())
		if _, err := s.Commit(ctx, Change{ID: id, Put: map[string][]byte{"large": []byte("the large part of " + id)}}); err != nil {
			t.Fatal(err)
		}
		if id == "third" {
			continue
		}
		var steps []string
		for _, c := range f.Mutating()[before:] {
			step := c.Op
			switch {
			case strings.HasPrefix(c.Path, "s/segments"):
				step += " segment"
			case strings.HasPrefix(c.Path, "s/parts"):
				step += " part"
			case strings.HasPrefix(c.Path, "trust/"):
				step += " trust"
			default:
				step += " bundle"
			}
			if n := len(steps); n == 0 || steps[n-1] != step {
				steps = append(steps, step)
			}
		}
		got, want := strings.Join(steps, ", "), "Create part, WriteAt part, Sync part, Rename part, Sync part, "+
			"Create segment, WriteAt segment, Sync segment, Rename segment, Sync segment, "+
			"WriteAt trust, SyncData trust, Create bundle, WriteAt bundle, Sync bundle, Rename bundle, Sync bundle, "+
			"WriteAt trust, SyncData trust, Remove part"
		if !vfs.ReplacesOpen {
			want = strings.TrimSuffix(want, ", Remove part")
		}
		if got = strings.ReplaceAll(got, "Chmod part, ", ""); got != want {
			t.Errorf("the order is\n%s\nwant\n%s", got, want)
		}
	}
}
