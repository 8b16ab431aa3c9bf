package pawl

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// stateOf is a state of a store with one commit for each id.
func stateOf(id storeID, ids ...string) *state {
	s := emptyState(id, wide)
	for _, commit := range ids {
		v := s.version()
		r := &record{revision: v.Revision + 1, firstSeq: s.nextSeq(), id: commit, entriesDigest: digestEntries(nil)}
		r.seal(v.Digest)
		s = after(s, r, nil, Digest{})
	}
	return s
}

// TestOnlyExtensions: a new bundle is held against the old state before anything is
// written (contract 9). Nothing but a fault in memory can make one that does not fit.
func TestOnlyExtensions(t *testing.T) {
	id := storeID{1}
	old, next := stateOf(id, "a"), stateOf(id, "a", "b")
	if err := checkExtends(old, next, encodeBundle(next), new(directory)); err != nil {
		t.Errorf("an extension: %v", err)
	}
	for what, raw := range map[string][]byte{
		"another history":     encodeBundle(stateOf(id, "x", "b")),
		"the old state":       encodeBundle(old),
		"a longer one":        encodeBundle(stateOf(id, "a", "b", "c")),
		"another store":       encodeBundle(stateOf(storeID{2}, "a", "b")),
		"bytes that are none": {1, 2, 3},
	} {
		if err := checkExtends(old, next, raw, new(directory)); err == nil {
			t.Errorf("%s is taken for an extension", what)
		}
	}
}

// TestTornSlotIsNoNewerVersion: a slot that a crash tore is broken, whatever version
// it seems to have; only its checksum can tell.
func TestTornSlotIsNoNewerVersion(t *testing.T) {
	r := trustRecord{store: storeID{1}, sequence: 1, path: quotePath("/s"), closed: true}
	torn := bytes.Replace(r.encode(), []byte("pawl-trust 1 "), []byte("pawl-trust 2 "), 1)
	if _, err := decodeSlot(torn); err == nil || errors.Is(err, ErrVersion) {
		t.Errorf("%v, want a broken slot", err)
	}
}

// TestLockFileReplacedWhileTaken: a lock counts only if the next opener will find the
// same file. One that was replaced between open and lock is left, and the new one
// taken (24).
func TestLockFileReplacedWhileTaken(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a lock file that is open keeps its name on Windows")
	}
	dir, trust := testkit.Dirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(t.Context())
	replaced := false
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op != "OpenLock" || c.Path != "trust/session.lock" || replaced {
			return faultfs.Action{}
		}
		replaced = true
		return faultfs.Action{After: func() {
			lock := filepath.Join(trust, "session.lock")
			if err := errors.Join(os.Remove(lock), os.WriteFile(lock, nil, 0o600)); err != nil {
				t.Error(err)
			}
		}}
	})
	s, err := Open(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !replaced {
		t.Error("the lock file was never opened")
	}
	if _, err := Open(t.Context(), dir, trust, nil); !errors.Is(err, ErrLocked) {
		t.Errorf("a second opener: %v", err)
	}
}

// TestRenameWithoutATemp: a rename that reports an error, after which the temp is gone
// and the old file still there, is not certain not to have happened (20).
func TestRenameWithoutATemp(t *testing.T) {
	t.Run("bundle", func(t *testing.T) { renameWithoutATemp(t, &Options{CheckpointEvery: 1}) })
	t.Run("journal", func(t *testing.T) { renameWithoutATemp(t, nil) })
}

func renameWithoutATemp(t *testing.T, opts *Options) {
	dir, trust := testkit.Dirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(t.Context())
	s, err := Open(ctx, dir, trust, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Commit(ctx, Change{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op != "Rename" || !strings.HasPrefix(c.Path, "session/") {
			return faultfs.Action{}
		}
		return faultfs.Action{Before: func() {
			for _, temp := range testkit.Temps(t, dir) {
				if err := os.Remove(temp); err != nil {
					t.Error(err)
				}
			}
		}}
	})
	if _, err := s.Commit(ctx, Change{ID: "b"}); !errors.Is(err, ErrInDoubt) {
		t.Errorf("%v, want ErrInDoubt", err)
	}
	f.Set(nil)
	if rec, err := s.Recover(ctx); err != nil || rec.Settled != SettledNotLanded {
		t.Errorf("%v, %v", rec.Settled, err)
	}
}

// after is the state that a sealed record makes of s, published over the bundle with
// the given disk digest.
func after(s *state, r *record, data [][]byte, replaced Digest) *state {
	g := s.grow()
	g.add(r, data)
	return g.published(replaced)
}

// seal encodes a record and extends the history by it.
func (r *record) seal(before Digest) {
	r.encode()
	r.place(before)
}
