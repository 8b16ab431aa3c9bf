//go:build unix || windows

package pawl_test

import (
	"context"
	"crypto/sha256"
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

// What is in quarantine/ stays, also under the very name that pawl is about to use.
func TestQuarantineNotWrittenOver(t *testing.T) {
	for _, what := range []string{"file", "directory"} {
		ctx := context.Background()
		dir, trust := testkit.AgedDirs(t)
		s := openStore(t, ctx, dir, trust, nil)
		commits(t, s, 1, 3)
		must(t, s.Close())
		early := copyOf(t, trust)
		s = openStore(t, ctx, dir, trust, nil)
		commits(t, s, 4, 1)
		must(t, s.Close())
		early.putBack(t, trust)

		// Where would it go?
		twin := t.TempDir()
		must(t, os.CopyFS(filepath.Join(twin, "session"), os.DirFS(dir)))
		must(t, os.CopyFS(filepath.Join(twin, "trust"), os.DirFS(trust)))
		must(t, os.Chmod(filepath.Join(twin, "trust"), 0o700))
		dec := pawl.Decision{Digest: inspect(t, dir, trust, nil).Found.Digest, Reason: "the trust file is lost"}
		r, err := pawl.Adopt(ctx, filepath.Join(twin, "session"), filepath.Join(twin, "trust"), &pawl.Options{Name: filepath.Base(dir)}, dec)
		must(t, err)
		must(t, os.Mkdir(filepath.Join(dir, "quarantine"), 0o700))
		for _, as := range r.SetAside {
			path := filepath.Join(dir, filepath.FromSlash(as))
			if what == "directory" {
				must(t, os.Mkdir(path, 0o700))
			} else {
				must(t, os.WriteFile(path, []byte("mine: "+as), 0o600))
			}
		}
		before := copyOf(t, dir, trust)
		got, err := pawl.Adopt(ctx, dir, trust, nil, dec)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		before.kept(t, dir, trust)
		for i, as := range got.SetAside {
			if as == r.SetAside[i] {
				t.Errorf("%s: set aside as %s, which was there", what, as)
			}
		}
	}
}

// What the trust file names is not moved away, also while the store is refused.
func TestQuarantineLeavesTheTrustedState(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 3)
	must(t, s.Close())
	journal := filepath.Join(dir, "journal.000000000001")
	b, err := os.ReadFile(journal)
	must(t, err)
	b[len(b)-100] = 1
	must(t, os.WriteFile(journal, b, 0o600))
	r := inspect(t, dir, trust, nil)
	if !errors.Is(r.Err, pawl.ErrUnauthorized) || !strings.Contains(r.Hint, "pawl adopt") || strings.Contains(r.Hint, "quarantine NAME") {
		t.Fatalf("%v: %s", r.Err, r.Hint)
	}
	for _, name := range []string{"bundle", "journal.000000000001"} {
		if _, err := pawl.Quarantine(ctx, dir, trust, nil, name, pawl.Decision{DryRun: true}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{Digest: r.Confirmed.Digest, Reason: "nothing is lost"}); err != nil || r.LostTo != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A look at what a rename would do leaves nothing behind.
func TestRenameDryRunLeavesNothing(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 1)
	must(t, s.Close())
	before := testkit.Snapshot(t, trust)
	if _, err := pawl.Rename(ctx, dir, trust, nil, filepath.Join(filepath.Dir(dir), "other"), "", pawl.Decision{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	for name := range testkit.Snapshot(t, trust) {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is left", name)
		}
	}
}

// A commit cannot say that history was given up, and a reason says something.
func TestOnlyDecisionsDeclare(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	defer s.Close()
	r := commits(t, s, 1, 1)[0]
	for _, event := range []string{"adopt", "restore"} {
		id := event + " 1 " + r.Digest.String() + " over 9 " + r.Digest.String()
		if _, err := s.Commit(ctx, pawl.Change{ID: id}); !errors.Is(err, pawl.ErrInvalid) || !errors.Is(err, pawl.ErrNotCommitted) {
			t.Errorf("%s: %v", id, err)
		}
		for _, id := range []string{event + " the old one", event + " puppy over weekend", event + " 1 x over 9 y"} {
			if _, err := s.Commit(ctx, pawl.Change{ID: id}); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := pawl.Remove(ctx, dir, trust, nil, pawl.Decision{Digest: r.Digest, Reason: " \u00a0"}); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// A decision whose last step fails after the new state is in place is what Open goes on
// from: its intent names both.
func TestDecisionLands(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 3)
	must(t, s.Close())
	early := copyOf(t, dir)
	s = openStore(t, ctx, dir, trust, nil)
	commits(t, s, 4, 3)
	must(t, s.Close())
	early.putBack(t, dir)
	dec := pawl.Decision{Digest: inspect(t, dir, trust, nil).Found.Digest, Reason: "the newer copy is lost"}

	machine := faultfs.New(vfs.OS(), filepath.Dir(dir))
	inPlace := false
	machine.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Rename" && strings.HasSuffix(c.Detail, "bundle") {
			inPlace = true
		}
		if inPlace && c.Op == "Rename" && strings.HasSuffix(c.Detail, ".trust") {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	if _, err := pawl.Adopt(machine.Context(ctx), dir, trust, nil, dec); err == nil || !inPlace {
		t.Fatalf("nothing failed: %v, in place: %v", err, inPlace)
	}
	if r := inspect(t, dir, trust, nil); r.Verdict != "landed" || r.Pending.Revision != 7 || r.Confirmed.Revision != 6 {
		t.Fatalf("%s, %v: %+v", r.Verdict, r.Err, r.Pending)
	}
	s = openStore(t, ctx, dir, trust, nil)
	if rev := s.View().Version().Revision; rev != 7 {
		t.Errorf("revision %d", rev)
	}
	must(t, s.Close())
}

// An epoch that no store comes to is no reason to trust anything.
func TestDecisionBesideAHugeEpoch(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 3)
	must(t, s.Close())
	huge := filepath.Join(dir, "journal.18446744073709551615")
	must(t, os.WriteFile(huge, nil, 0o600))
	dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
	before := copyOf(t, dir, trust)
	if _, err := pawl.Adopt(ctx, dir, trust, nil, dec); !errors.Is(err, pawl.ErrUnauthorized) {
		t.Errorf("%v", err)
	}
	before.kept(t, dir, trust)
	r := inspect(t, dir, trust, nil)
	var e *pawl.Error
	if !errors.As(r.Err, &e) || e.Path != huge || r.Confirmed.Digest != dec.Digest {
		t.Fatalf("%v: %+v", r.Err, r.Confirmed)
	}
	if _, err := pawl.Quarantine(ctx, dir, trust, nil, filepath.Base(huge), pawl.Decision{Digest: pawl.Digest(sha256.Sum256(nil)), Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	must(t, openStore(t, ctx, dir, trust, nil).Close())
}

// A journal that was being made, and is damaged, is not moved away as if it were nothing: it
// may hold an acknowledged commit. The hint leads out.
func TestDecisionAboutADamagedNewJournal(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 3)
	must(t, s.Checkpoint(ctx))
	must(t, s.Close())
	machine := faultfs.New(vfs.OS(), filepath.Dir(dir))
	made := ""
	machine.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Rename" && strings.HasPrefix(filepath.Base(c.Detail), "journal.") {
			made = filepath.Base(c.Detail)
		}
		if made != "" && c.Op == "Sync" {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	s = openStore(t, machine.Context(ctx), dir, trust, nil)
	if _, err := s.Commit(machine.Context(ctx), pawl.Change{Entries: [][]byte{[]byte("in doubt")}}); !errors.Is(err, pawl.ErrInDoubt) {
		t.Fatalf("%v", err)
	}
	s.Close()
	b, err := os.ReadFile(filepath.Join(dir, made))
	must(t, err)
	copy(b[300:], "damage")
	copy(b[4096+8:], "damage")
	must(t, os.WriteFile(filepath.Join(dir, made), b, 0o600))
	r := inspect(t, dir, trust, nil)
	if r.Verdict != "refuse" || r.Pending.Journal == 0 || r.Confirmed.Journal != 0 || !strings.Contains(r.Hint, "pawl adopt") {
		t.Fatalf("%s, %v: %s", r.Verdict, r.Err, r.Hint)
	}
	if _, err := pawl.Quarantine(ctx, dir, trust, nil, made, pawl.Decision{DryRun: true}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("%v", err)
	}
	before := copyOf(t, dir, trust)
	got, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{Digest: r.Confirmed.Digest, Reason: "x"})
	if err != nil || got.LostTo != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	before.kept(t, dir, trust)
	must(t, openStore(t, ctx, dir, trust, nil).Close())
}
