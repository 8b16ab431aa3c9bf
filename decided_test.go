//go:build unix

package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

var bg = context.Background()

// Adopt names D2; the directory holds state 3 whose parent is D2: it is adopted.
func TestDecidedAdoptParent(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	o := &pawl.Options{CheckpointEvery: 1}
	s := openStore(t, bg, dir, trust, o)
	commits(t, s, 1, 2)
	d2 := inspect(t, dir, trust, nil).Confirmed.Digest
	commits(t, s, 3, 1)
	must(t, s.Close())
	early := copyOf(t, dir)
	s = openStore(t, bg, dir, trust, o)
	commits(t, s, 4, 2)
	must(t, s.Close())
	early.putBack(t, dir) // state 3
	r, err := pawl.Adopt(bg, dir, trust, nil, pawl.Decision{Digest: d2, Reason: "state 2"})
	if err == nil {
		t.Errorf("Adopt(%s of revision 2) adopted revision %d (%s)", d2, r.From.Revision, r.Chosen.Digest)
	}
}

// Adopt says Done about a store in order whose bundle happened to replace D.
func TestDecidedAdoptDone(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	o := &pawl.Options{CheckpointEvery: 1}
	s := openStore(t, bg, dir, trust, o)
	commits(t, s, 1, 2)
	d2 := inspect(t, dir, trust, nil).Confirmed.Digest
	commits(t, s, 3, 1)
	must(t, s.Close())
	r, err := pawl.Adopt(bg, dir, trust, nil, pawl.Decision{Digest: d2, Reason: "state 2"})
	if err == nil {
		t.Errorf("Adopt(revision 2): done=%v, version %d", r.Done, r.Version.Revision)
	}
}

// two backups, one digest: the second says Done.
func TestDecidedRestoreOtherBackupDone(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 2)
	b2 := backupOf(t, s)
	commits(t, s, 3, 2)
	b4 := backupOf(t, s)
	commits(t, s, 5, 3)
	must(t, s.Close())
	d7 := trusted(t, dir, trust)
	restoreTo(t, dir, trust, b4, d7)
	r, err := pawl.Restore(bg, dir, trust, nil, bytes.NewReader(b2), pawl.Decision{Digest: d7, Reason: "rather this"})
	if err == nil {
		t.Errorf("Restore of backup of revision 2: Done=%v From=%d Version=%d", r.Done, r.From.Revision, r.Version.Revision)
		s = openStore(t, bg, dir, trust, nil)
		b, _, _ := s.View().Get("count")
		t.Errorf("count is %s", b)
		s.Close()
	}
}

// an ordinary commit is taken for the declaring one.
func TestDecidedRestoreOrdinaryCommitDone(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, &pawl.Options{CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 1}})
	commits(t, s, 1, 4)
	b4 := backupOf(t, s)
	must(t, s.Close())
	d4 := trusted(t, dir, trust)
	s = openStore(t, bg, dir, trust, &pawl.Options{CheckpointEvery: 1})
	commits(t, s, 5, 1)
	must(t, s.Close())
	r, err := pawl.Restore(bg, dir, trust, nil, bytes.NewReader(b4), pawl.Decision{Digest: d4, Reason: "back to 4"})
	if err == nil {
		t.Errorf("Restore over a state that is not trusted any more: Done=%v Version=%d", r.Done, r.Version.Revision)
	}
}

// a fork (a clone restored elsewhere went on) with segments: loss is not declared.
func TestDecidedRestoreFork(t *testing.T) {
	for name, o := range laid {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			s := openStore(t, bg, dir, trust, o)
			commits(t, s, 1, 4)
			b4 := backupOf(t, s)
			lost := commits(t, s, 5, 6)
			must(t, s.Close())
			dir2, trust2 := testkit.AgedDirs(t)
			restoreTo(t, dir2, trust2, b4, pawl.Digest{})
			s = openStore(t, bg, dir2, trust2, o)
			commits(t, s, 105, 16)
			b20 := backupOf(t, s)
			must(t, s.Close())
			d10 := trusted(t, dir, trust)
			plan, err := pawl.Restore(bg, dir, trust, nil, bytes.NewReader(b20), pawl.Decision{DryRun: true})
			must(t, err)
			r := restoreTo(t, dir, trust, b20, d10)
			if plan.LostTo == 0 || r.LostTo == 0 {
				t.Errorf("loss of %d commits is not declared: %+v", len(lost), r)
			}
			if r.LostFrom != 5 && r.LostTo != 0 {
				t.Logf("LostFrom is %d, want 5", r.LostFrom)
			}
			again, err := pawl.Restore(bg, dir, trust, nil, bytes.NewReader(b20), pawl.Decision{Digest: d10, Reason: "test"})
			if err != nil || !again.Done {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
}

// an intent that may have been acknowledged is forgotten by an interrupted restore.
func TestDecidedRestorePendingNumbers(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	o := &pawl.Options{CheckpointEvery: 1}
	s := openStore(t, ctx, dir, trust, o)
	commits(t, s, 1, 2)
	b2 := backupOf(t, s)
	commits(t, s, 3, 2)
	// commit 5: bundle in place, confirm fails: in doubt.
	n := 0
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Rename" && strings.HasPrefix(c.Path, "session/") {
			n = 1
		}
		if n == 1 && strings.HasPrefix(c.Path, "trust/session.trust") && (c.Op == "WriteAt" || c.Op == "SyncData") {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	if _, err := s.Commit(ctx, pawl.Change{ID: "five", Entries: [][]byte{[]byte("5")}}); !errors.Is(err, pawl.ErrInDoubt) {
		t.Fatal(err)
	}
	f.Set(nil)
	s.Close()
	rep := inspect(t, dir, trust, nil)
	// the disk goes bad
	must(t, os.WriteFile(filepath.Join(dir, "bundle"), []byte("x"), 0o600))
	d := rep.Confirmed.Digest
	plan, err := pawl.Restore(bg, dir, trust, nil, bytes.NewReader(b2), pawl.Decision{DryRun: true})
	must(t, err)
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Rename" && strings.HasSuffix(c.Detail, "bundle") {
			return faultfs.Action{Err: syscall.ENOSPC}
		}
		return faultfs.Action{}
	})
	if _, err := pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b2), pawl.Decision{Digest: d, Reason: "x"}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	f.Set(nil)
	r, err := pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b2), pawl.Decision{Digest: d, Reason: "x"})
	must(t, err)
	if plan.LostTo != 5 || r.LostTo < plan.LostTo || r.Version.Revision <= plan.LostTo {
		t.Errorf("lost to %d, version %d: revision %d is used again", r.LostTo, r.Version.Revision, plan.LostTo)
	}
}

// a same-directory rename cut off before the old trust file went; the old name goes on.
func TestDecidedRenameTwoTrusts(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 2)
	must(t, s.Close())
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Remove" && c.Path == "trust/session.trust" {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
	if _, err := pawl.Rename(ctx, dir, trust, nil, dir, "third", dec); err == nil {
		t.Fatal("nothing failed")
	}
	f.Set(nil)
	_, err := pawl.Open(bg, dir, trust, &pawl.Options{MustExist: true})
	var e *pawl.Error
	if !errors.Is(err, pawl.ErrMissing) || !errors.As(err, &e) || !strings.Contains(e.Hint, "pawl rename") {
		t.Errorf("under the old name: %v", err)
	}
	o := &pawl.Options{Name: "third", MustExist: true}
	s = openStore(t, bg, dir, trust, o)
	commits(t, s, 3, 1)
	must(t, s.Close())
	_, err = pawl.Rename(ctx, dir, trust, nil, dir, "third", dec)
	must(t, err)
	s = openStore(t, bg, dir, trust, o)
	if v := s.View().Version(); v.Revision != 3 {
		t.Errorf("renamed, at %s", v)
	}
	must(t, errors.Join(s.Verify(bg, nil), s.Close()))
}

// same-directory rename repeated after it was done.
func TestDecidedRenameAgain(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 2)
	must(t, s.Close())
	dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
	_, err := pawl.Rename(bg, dir, trust, nil, dir, "third", dec)
	must(t, err)
	r, err := pawl.Rename(bg, dir, trust, nil, dir, "third", dec)
	if err != nil || !r.Done {
		t.Errorf("again: %+v, %v", r, err)
	}
}

// rename of nothing to an unrelated store says Done.
func TestDecidedRenameUnrelatedDone(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 2)
	must(t, s.Close())
	r, err := pawl.Rename(bg, filepath.Join(filepath.Dir(dir), "sesion"), trust, nil, dir, "", pawl.Decision{Digest: pawl.Digest{9}, Reason: "x"})
	if err == nil {
		t.Errorf("Done=%v of a store that never was: %+v", r.Done, r.Root)
	}
}

// cut off after N3, the new name has gone on, the same call again.
func TestDecidedRenameGoneOn(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 2)
	must(t, s.Close())
	to := filepath.Join(filepath.Dir(dir), "renamed")
	dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Remove" && c.Path == "trust/session.trust" {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	if _, err := pawl.Rename(ctx, dir, trust, nil, to, "", dec); err == nil {
		t.Fatal("nothing failed")
	}
	f.Set(nil)
	s = openStore(t, bg, to, trust, nil)
	commits(t, s, 3, 1)
	must(t, s.Close())
	r, err := pawl.Rename(ctx, dir, trust, nil, to, "", dec)
	if err != nil {
		t.Errorf("again: %+v %v", r, err)
	}
}

// the audit file of a removed store of the new name.
func TestDecidedRenameAudit(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	to := filepath.Join(filepath.Dir(dir), "renamed")
	s := openStore(t, bg, to, trust, nil)
	commits(t, s, 1, 1)
	must(t, s.Close())
	_, err := pawl.Remove(bg, to, trust, nil, pawl.Decision{Digest: trusted(t, to, trust), Reason: "old one"})
	must(t, err)
	s = openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 2)
	must(t, s.Close())
	_, err = pawl.Rename(bg, dir, trust, nil, to, "", pawl.Decision{Digest: trusted(t, dir, trust), Reason: "why"})
	must(t, err)
	b, err := os.ReadFile(filepath.Join(trust, "renamed.audit"))
	if !strings.Contains(string(b), `"why"`) {
		t.Errorf("the audit file under the new name does not tell of the rename: %v", err)
	}
}

// the bundle is lost; its segments are all that is left. Remove destroys them.
func TestDecidedRemoveSegmentsLeft(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, laid["segments"])
	commits(t, s, 1, 4)
	must(t, s.Close())
	must(t, os.Remove(filepath.Join(dir, "bundle")))
	js, _ := filepath.Glob(dir + "/journal.*")
	for _, j := range js {
		os.Remove(j)
	}
	before := copyOf(t, dir)
	r, err := pawl.Remove(bg, dir, trust, nil, pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"})
	if err == nil {
		t.Errorf("removed, of %d files that were left: %v", len(before), r.Removed)
	}
}

// a removal is resumed over another store's files.
func TestDecidedRemoveForeign(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 4)
	must(t, s.Close())
	dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Remove" && c.Path == "trust/session.trust" {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	if _, err := pawl.Remove(ctx, dir, trust, nil, dec); err == nil {
		t.Fatal("nothing failed")
	}
	f.Set(nil)
	// the directory is free: another store is made there, under another name
	o := &pawl.Options{Name: "another"}
	s = openStore(t, bg, dir, trust, o)
	commits(t, s, 1, 4)
	must(t, s.Close())
	r, err := pawl.Remove(ctx, dir, trust, nil, dec)
	if err == nil {
		_, err := pawl.Open(bg, dir, trust, &pawl.Options{Name: "another", MustExist: true})
		t.Errorf("another store's files are removed: %v; it says %v", r.Removed, err)
	}
}

// Inspect of a store in state removing.
func TestDecidedInspectRemoving(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 4)
	b := backupOf(t, s)
	must(t, s.Close())
	dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Remove" && strings.HasPrefix(c.Path, "session/") {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	if _, err := pawl.Remove(ctx, dir, trust, nil, dec); err == nil {
		t.Fatal("it was removed")
	}
	f.Set(nil)
	rep := inspect(t, dir, trust, nil)
	if rep.Confirmed.Digest != dec.Digest {
		t.Errorf("Inspect does not tell the digest that the same decision needs: %+v", rep)
	}
	r := restoreTo(t, dir, trust, b, dec.Digest)
	if r.LostTo != 0 || r.Version.Revision != 4 {
		t.Errorf("%+v", r)
	}
	s = openStore(t, bg, dir, trust, nil)
	must(t, errors.Join(s.Verify(bg, nil), s.Close()))
}
