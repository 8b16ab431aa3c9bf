//go:build unix || windows

package pawl_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// copies holds what was in two directories at some moment.
type copies map[string][]byte

func copyOf(t testing.TB, dirs ...string) copies {
	t.Helper()
	c := copies{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			c[path], err = os.ReadFile(path)
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return c
}

// putBack makes the directories what they were.
func (c copies) putBack(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for path, b := range c {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(path, dir+string(filepath.Separator)) }) {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// kept fails if the bytes of a file are nowhere any more. Lock files say who holds them.
func (c copies) kept(t testing.TB, dirs ...string) {
	t.Helper()
	have := map[[32]byte]bool{}
	for _, b := range copyOf(t, dirs...) {
		have[sha256.Sum256(b)] = true
	}
	for path, b := range c {
		if name := filepath.Base(path); !have[sha256.Sum256(b)] && !strings.HasSuffix(name, "lock") && !strings.HasSuffix(name, ".audit") {
			t.Errorf("%s is nowhere any more", path)
		}
	}
}

// damaged puts a store into each state that Open refuses and Adopt can lead out of.
var refusedStates = map[string]struct {
	spoil func(t *testing.T, dir, trust string, early copies)
	kind  error
	from  pawl.Revision // of the state that is whole
	lost  pawl.Revision // the last one that is lost; 0: none is
}{
	"rolled back": {
		func(t *testing.T, dir, _ string, early copies) { early.putBack(t, dir) }, pawl.ErrRolledBack, 3, 6},
	"trust behind": {
		func(t *testing.T, _, trust string, early copies) { early.putBack(t, trust) }, pawl.ErrTrustBehind, 6, 0},
	"trust lost": {
		func(t *testing.T, _, trust string, _ copies) {
			if err := os.Remove(filepath.Join(trust, "session.trust")); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrUntrusted, 6, 0},
	"trust directory lost": {
		func(t *testing.T, _, trust string, _ copies) {
			if err := os.RemoveAll(trust); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrUntrusted, 6, 0},
	"trust damaged": {
		func(t *testing.T, _, trust string, _ copies) {
			if err := os.WriteFile(filepath.Join(trust, "session.trust"), bytes.Repeat([]byte("x"), 16384), 0o600); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrTrustDamaged, 6, 0},
	"trust cut off": {
		func(t *testing.T, _, trust string, _ copies) {
			if err := os.Truncate(filepath.Join(trust, "session.trust"), 100); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrTrustDamaged, 6, 0},
	"another store": {
		func(t *testing.T, dir, trust string, _ copies) {
			other, otherTrust := testkit.AgedDirs(t)
			s := openStore(t, context.Background(), other, otherTrust, nil)
			commits(t, s, 1, 2)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(other))); err != nil {
				t.Fatal(err)
			}
		}, pawl.ErrForeign, 2, 6},
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAdopt leads a store out of each state, with nothing destroyed: whatever was there is
// still in one of the two directories, byte for byte.
func TestAdopt(t *testing.T) {
	ctx := context.Background()
	for layout, o := range laid {
		for name, tt := range refusedStates {
			t.Run(layout+"/"+name, func(t *testing.T) {
				dir, trust := testkit.AgedDirs(t)
				s := openStore(t, ctx, dir, trust, o)
				receipts := commits(t, s, 1, 3)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				early := copyOf(t, dir, trust)
				s = openStore(t, ctx, dir, trust, o)
				receipts = append(receipts, commits(t, s, 4, 3)...)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				tt.spoil(t, dir, trust, early)
				before := copyOf(t, dir, trust)
				report := inspect(t, dir, trust, nil)
				if !errors.Is(report.Err, tt.kind) {
					t.Fatalf("the state: %v, want %v", report.Err, tt.kind)
				}
				plan, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{DryRun: true})
				if err != nil {
					t.Fatal(err)
				}
				if plan.Chosen != report.Found || plan.From.Revision != tt.from || plan.LostTo != tt.lost || plan.Root != (pawl.Root{}) {
					t.Errorf("a dry run: %+v, found %+v", plan, report.Found)
				}
				if now := inspect(t, dir, trust, nil); !errors.Is(now.Err, tt.kind) || now.Found != report.Found || now.Confirmed != report.Confirmed {
					t.Errorf("a dry run changed something: %+v", now)
				}
				for _, bad := range []pawl.Decision{{}, {Digest: plan.Chosen.Digest}, {Digest: plan.Chosen.Digest, Reason: "a\nb"}, {Reason: "no digest"}, {Digest: pawl.Digest{1}, Reason: "another digest"}} {
					if _, err := pawl.Adopt(ctx, dir, trust, nil, bad); !errors.Is(err, pawl.ErrInvalid) && !errors.Is(err, pawl.ErrStale) {
						t.Errorf("%+v: %v", bad, err)
					}
				}
				dec := pawl.Decision{Digest: plan.Chosen.Digest, Reason: "it is all there is"}
				r, err := pawl.Adopt(ctx, dir, trust, nil, dec)
				if err != nil {
					t.Fatal(err)
				}
				before.kept(t, dir, trust)
				again, err := pawl.Adopt(ctx, dir, trust, nil, dec)
				if err != nil || !again.Done || again.Root != r.Root || again.Version != r.Version {
					t.Errorf("the same decision again: %+v, %v", again, err)
				}
				if now := inspect(t, dir, trust, nil); now.Verdict != "clean" || now.Confirmed != r.Root {
					t.Errorf("afterwards: %+v", now)
				}
				s = openStore(t, ctx, dir, trust, o)
				other := tt.kind == pawl.ErrForeign // whose history goes on as it is
				for _, receipt := range receipts {
					if ok, err := s.View().Contains(receipt); err != nil || ok != (receipt.Revision <= tt.from && !other) {
						t.Errorf("Contains(%d) = %v, %v", receipt.Revision, ok, err)
					}
				}
				if other != (plan.TrustedStore != "") || plan.Store == "" || plan.Store == plan.TrustedStore {
					t.Errorf("the stores: %+v", plan)
				}
				if err := s.Close(); err != nil { // its sweep has destroyed nothing either
					t.Fatal(err)
				}
				before.kept(t, dir, trust)
				s = openStore(t, ctx, dir, trust, o)
				next := commits(t, s, 10, 2)
				if tt.lost > 0 && !other && (next[0].Revision != tt.lost+2 || next[0].FirstSeq != receipts[5].LastSeq+1) {
					t.Errorf("the next commit: %+v", next[0])
				}
				if (tt.lost == 0 || other) && (r.Version != r.From || next[0].Revision != tt.from+1) {
					t.Errorf("nothing was lost: %+v, next %+v", r, next[0])
				}
				if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
					t.Error(err)
				}
				lines, _ := auditOf(t, trust)
				if n := len(lines); n == 0 || lines[n-1].Event != "adopt" || lines[n-1].Reason != dec.Reason || *lines[n-1].Digest != dec.Digest || *lines[n-1].Pending != r.Root {
					t.Errorf("the audit file: %+v", lines)
				}
			})
		}
	}
}

// TestAdoptWithinJournal: of a journal that is damaged in the middle, the state before the
// damage can be adopted, or that after any earlier commit, or that of the bundle.
func TestAdoptWithinJournal(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	var roots []pawl.Root
	for i := range 5 {
		commits(t, s, i+1, 1)
		roots = append(roots, inspect(t, dir, trust, nil).Confirmed)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(dir, "journal.000000000001")
	b, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	b[roots[2].Journal+100] ^= 1 // in the fourth commit
	if err := os.WriteFile(journal, b, 0o600); err != nil {
		t.Fatal(err)
	}
	whole := copyOf(t, dir, trust)
	for n, want := range map[int]error{0: nil, 1: nil, 2: nil, 3: pawl.ErrStale, 4: pawl.ErrStale} {
		whole.putBack(t, dir, trust)
		if err := inspect(t, dir, trust, nil).Err; !errors.Is(err, pawl.ErrDamaged) {
			t.Fatalf("the state: %v", err)
		}
		r, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{Digest: roots[n].Digest, Reason: "the disk is bad"})
		if !errors.Is(err, want) {
			t.Errorf("state %d: %v, want %v", n+1, err, want)
		}
		if err != nil {
			continue
		}
		if r.From.Revision != pawl.Revision(n+1) || r.LostFrom != pawl.Revision(n+2) || r.LostTo != 5 || r.Version.Revision != 6 {
			t.Errorf("state %d: %+v", n+1, r)
		}
		whole.kept(t, dir, trust)
		s := openStore(t, ctx, dir, trust, nil)
		if got, _, err := s.View().Get("count"); err != nil || string(got) != string(rune('1'+n)) {
			t.Errorf("state %d holds %q, %v", n+1, got, err)
		}
		if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestAdoptNothing: what opens, and what holds no whole state, has nothing to adopt.
func TestAdoptNothing(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	dec := pawl.Decision{Digest: pawl.Digest{1}, Reason: "test"}
	if _, err := pawl.Adopt(ctx, dir, trust, nil, dec); !errors.Is(err, pawl.ErrNotExist) {
		t.Errorf("no store: %v", err)
	}
	for _, path := range []string{dir, trust} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s was made", path)
		}
	}
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 2)
	if _, err := pawl.Adopt(ctx, dir, trust, nil, dec); !errors.Is(err, pawl.ErrLocked) {
		t.Errorf("beside a writer: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := pawl.Adopt(ctx, dir, trust, nil, dec); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("a store that opens: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bundle"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := testkit.Snapshot(t, dir, trust)
	if _, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{Digest: sha256.Sum256([]byte("nonsense")), Reason: "test"}); !errors.Is(err, pawl.ErrDamaged) {
		t.Errorf("no whole state: %v", err)
	}
	after := testkit.Snapshot(t, dir, trust)
	delete(before, filepath.Join(trust, "session.lock"))
	for path, what := range before {
		if after[path] != what && !strings.HasSuffix(path, "lock") {
			t.Errorf("%s was %s, is %s", path, what, after[path])
		}
	}
}

// TestQuarantine moves aside what is in the way, and nothing that is needed.
func TestQuarantine(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, laid["segments"])
	commits(t, s, 1, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	sums := map[string]pawl.Digest{}
	for path, b := range copyOf(t, dir) {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		name = filepath.ToSlash(name)
		sums[name] = sha256.Sum256(b)
		_, err = pawl.Quarantine(ctx, dir, trust, nil, name, pawl.Decision{Digest: sums[name], Reason: "test"})
		if want := name != "journal.000000000001"; errors.Is(err, pawl.ErrInvalid) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../session.trust", "segments", "parts", "quarantine", "a/b/c", "segments/", "quarantine/x"} {
		if _, err := pawl.Quarantine(ctx, dir, trust, nil, name, pawl.Decision{Reason: "test"}); !errors.Is(err, pawl.ErrInvalid) && !(name == "quarantine" && errors.Is(err, pawl.ErrNotExist)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	note := []byte("somebody's note")
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), note, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "segments", "notes.txt"), note, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "drafts"), 0o700), os.WriteFile(filepath.Join(dir, "drafts", "one"), note, 0o600)); err != nil {
		t.Fatal(err)
	}
	plan, err := pawl.Quarantine(ctx, dir, trust, nil, "notes.txt", pawl.Decision{DryRun: true})
	if err != nil || plan.Chosen.Digest != sha256.Sum256(note) || plan.SetAside != nil {
		t.Errorf("a dry run: %+v, %v", plan, err)
	}
	if _, err := pawl.Quarantine(ctx, dir, trust, nil, "notes.txt", pawl.Decision{Digest: pawl.Digest{1}, Reason: "test"}); !errors.Is(err, pawl.ErrStale) {
		t.Errorf("another digest: %v", err)
	}
	for name, as := range map[string]string{"notes.txt": "", "segments/notes.txt": "", "drafts": ""} {
		dec := pawl.Decision{Digest: sha256.Sum256(note), Reason: "in the way"}
		if name == "drafts" {
			dec.Digest = pawl.Digest{}
		}
		r, err := pawl.Quarantine(ctx, dir, trust, nil, name, dec)
		if err != nil || len(r.SetAside) != 1 {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if as = r.SetAside[0]; name == "drafts" {
			as += "/one"
		}
		if b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(as))); err != nil || !bytes.Equal(b, note) {
			t.Errorf("%s is not %s: %q, %v", name, as, b, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name))); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	report := inspect(t, dir, trust, nil)
	if report.Verdict != "clean" || len(report.Unknown) != 0 || !slices.Equal(report.Aside, []string{"drafts", "notes.txt", "notes.txt.2"}) && len(report.Aside) != 4 {
		t.Errorf("%+v", report)
	}
	// One that no trust record names can go, and then a copy can be put back.
	good := copyOf(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "bundle"), note, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pawl.Quarantine(ctx, dir, trust, nil, "bundle", pawl.Decision{Digest: sha256.Sum256(note), Reason: "foreign"}); err != nil {
		t.Fatal(err)
	}
	if err := inspect(t, dir, trust, nil).Err; !errors.Is(err, pawl.ErrMissing) {
		t.Errorf("with the bundle out of the way: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bundle"), good[filepath.Join(dir, "bundle")], 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, ctx, dir, trust, laid["segments"])
	if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestRemove takes away what pawl made, and nothing else, and not without being told which.
func TestRemove(t *testing.T) {
	ctx := context.Background()
	for layout, o := range laid {
		t.Run(layout, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			if _, err := pawl.Remove(ctx, dir, trust, nil, pawl.Decision{Reason: "test"}); !errors.Is(err, pawl.ErrNotExist) {
				t.Errorf("no store: %v", err)
			}
			s := openStore(t, ctx, dir, trust, o)
			commits(t, s, 1, 4)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			whole := copyOf(t, dir, trust)
			dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "no longer needed"}
			for _, bad := range []pawl.Decision{{Reason: "none named"}, {Digest: pawl.Digest{1}, Reason: "another"}, {Digest: dec.Digest}} {
				if _, err := pawl.Remove(ctx, dir, trust, nil, bad); !errors.Is(err, pawl.ErrStale) && !errors.Is(err, pawl.ErrInvalid) {
					t.Errorf("%+v: %v", bad, err)
				}
			}
			if r, err := pawl.Remove(ctx, dir, trust, nil, pawl.Decision{DryRun: true}); err != nil || r.Removed != nil || inspect(t, dir, trust, nil).Verdict != "clean" {
				t.Errorf("a dry run: %+v, %v", r, err)
			}
			r, err := pawl.Remove(ctx, dir, trust, nil, dec)
			if err != nil || len(r.Left) != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("the directory is there: %v", err)
			}
			if now := inspect(t, dir, trust, nil); now.Verdict != "create" {
				t.Errorf("%+v", now)
			}
			// What somebody else put there stays, and the store can be made anew beside it.
			whole.putBack(t, dir, trust)
			for _, name := range []string{"notes.txt", "quarantine/old", "segments/notes.txt"} {
				path := filepath.Join(dir, filepath.FromSlash(name))
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(name), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			r, err = pawl.Remove(ctx, dir, trust, nil, dec)
			if err != nil || !slices.Equal(r.Left, []string{"notes.txt", "quarantine", "segments"}) {
				t.Errorf("%+v, %v", r, err)
			}
			left := copyOf(t, dir)
			delete(left, filepath.Join(dir, "lock"))
			if len(left) != 3 {
				t.Errorf("left: %v", left)
			}
			s = openStore(t, ctx, dir, trust, o)
			if v := s.View().Version(); v.Revision != 0 {
				t.Errorf("made anew: %s", v)
			}
			commits(t, s, 1, 1)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			lines, _ := auditOf(t, trust)
			if n := len(lines); n != 1 || lines[n-1].Event != "remove" || lines[n-1].Reason != dec.Reason {
				t.Errorf("the audit file: %+v", lines)
			}
		})
	}
}

// TestRemoveRefused: a store that is in no order is not removed, unless nothing is left of it.
func TestRemoveRefused(t *testing.T) {
	ctx := context.Background()
	for name, tt := range refusedStates {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			s := openStore(t, ctx, dir, trust, nil)
			commits(t, s, 1, 3)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			early := copyOf(t, dir, trust)
			s = openStore(t, ctx, dir, trust, nil)
			commits(t, s, 4, 3)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			tt.spoil(t, dir, trust, early)
			before := copyOf(t, dir, trust)
			_, err := pawl.Remove(ctx, dir, trust, nil, pawl.Decision{Digest: trusted(t, dir, trust), Reason: "test"})
			if !errors.Is(err, tt.kind) {
				t.Errorf("%v, want %v", err, tt.kind)
			}
			before.kept(t, dir, trust)
		})
	}
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 3)
	if err := errors.Join(s.Close(), os.RemoveAll(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := pawl.Remove(ctx, dir, trust, nil, pawl.Decision{Digest: trusted(t, dir, trust), Reason: "the disk is gone"}); err != nil {
		t.Errorf("nothing but a trust file: %v", err)
	}
	if now := inspect(t, dir, trust, nil); now.Verdict != "create" {
		t.Errorf("%+v", now)
	}
}

// TestRename: directory and trust file get their new names, with everything in them.
func TestRename(t *testing.T) {
	ctx := context.Background()
	for layout, o := range laid {
		t.Run(layout, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			to := filepath.Join(filepath.Dir(dir), "renamed")
			s := openStore(t, ctx, dir, trust, o)
			commits(t, s, 1, 4)
			want := contents(t, s.View())
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "a better name"}
			if _, err := pawl.Rename(ctx, dir, trust, nil, dir, "", dec); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("to its own name: %v", err)
			}
			if _, err := pawl.Rename(ctx, dir, trust, nil, filepath.Join(t.TempDir(), "x"), "", dec); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("elsewhere: %v", err)
			}
			if _, err := pawl.Rename(ctx, dir, trust, nil, to, "", pawl.Decision{Reason: "no digest"}); !errors.Is(err, pawl.ErrStale) {
				t.Errorf("without a digest: %v", err)
			}
			if err := os.Mkdir(to, 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := pawl.Rename(ctx, dir, trust, nil, to, "", dec); err == nil {
				t.Error("over a directory that is there")
			}
			if err := os.Remove(to); err != nil {
				t.Fatal(err)
			}
			other := openStore(t, ctx, filepath.Join(filepath.Dir(dir), "other"), trust, nil)
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := pawl.Rename(ctx, dir, trust, nil, to, "other", dec); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("to the name of another store: %v", err)
			}
			for _, r := range []struct{ dir, name string }{{to, ""}, {to, "third"}} {
				from, opts := dir, &pawl.Options{}
				if r.name != "" {
					from = to
				}
				got, err := pawl.Rename(ctx, from, trust, opts, r.dir, r.name, dec)
				if err != nil {
					t.Fatal(err)
				}
				if got.Root.Digest != dec.Digest {
					t.Errorf("%+v", got)
				}
				if again, err := pawl.Rename(ctx, from, trust, opts, r.dir, r.name, dec); r.name == "" && (err != nil || !again.Done) {
					t.Errorf("again: %+v, %v", again, err)
				}
				so := pawl.Options{}
				if o != nil {
					so = *o
				}
				so.Name, so.MustExist = r.name, true
				s = openStore(t, ctx, r.dir, trust, &so)
				if rec := s.Recovery(); rec.Unclean || contents(t, s.View()) != want {
					t.Errorf("renamed: %+v", rec)
				}
				if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
					t.Error(err)
				}
				dec.Digest = inspect(t, r.dir, trust, &so).Confirmed.Digest
			}
			if now := inspect(t, dir, trust, nil); now.Verdict != "create" {
				t.Errorf("the old name: %+v", now)
			}
			names, err := filepath.Glob(filepath.Join(trust, "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				base := filepath.Base(name)
				if !strings.HasPrefix(base, "third.") && !strings.HasPrefix(base, "other.") && !strings.HasSuffix(base, ".lock") {
					t.Errorf("left: %s", base)
				}
			}
		})
	}
}

// TestAdoptWritesAnew: what was put there may not be durable, so each file that the adopted
// state names is another one afterwards, with the same bytes.
func TestAdoptWritesAnew(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("package os asks there for the identity of a file when it compares it, and not before")
	}
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, laid["segments"])
	commits(t, s, 1, 3)
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(trust, "session.trust"))); err != nil {
		t.Fatal(err)
	}
	before := map[string]os.FileInfo{}
	for path := range copyOf(t, dir) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		before[path] = info
	}
	if _, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{Digest: inspect(t, dir, trust, nil).Found.Digest, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for path, was := range before {
		if sub := filepath.Base(filepath.Dir(path)); sub != "segments" && sub != "parts" && filepath.Base(path) != "bundle" {
			continue
		}
		n++
		if now, err := os.Stat(path); err != nil || os.SameFile(was, now) {
			t.Errorf("%s is still the same file: %v", path, err)
		}
	}
	if n < 4 {
		t.Errorf("%d files", n)
	}
}

// TestAdoptDamage: a file that is damaged or missing does not stand in the way; the ruling
// tells of it.
func TestAdoptDamage(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, laid["segments"])
	commits(t, s, 1, 4)
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(trust, "session.trust"))); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "segments", "*"))
	if err != nil || len(segments) < 2 {
		t.Fatal(segments, err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[300] ^= 1
	if err := errors.Join(os.WriteFile(segments[0], b, 0o600), os.Remove(segments[1])); err != nil {
		t.Fatal(err)
	}
	r, err := pawl.Adopt(ctx, dir, trust, nil, pawl.Decision{Digest: inspect(t, dir, trust, nil).Found.Digest, Reason: "test"})
	if err != nil || len(r.Damage) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	s = openStore(t, ctx, dir, trust, laid["segments"])
	var e *pawl.Error
	if err := s.Verify(ctx, nil); !errors.As(err, &e) || len(e.Damage) != 2 {
		t.Errorf("Verify: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveCutOff: a store that somebody has begun to remove is nobody's any more, until
// the removal is repeated, or a backup is restored.
func TestRemoveCutOff(t *testing.T) {
	for _, way := range []string{"remove", "restore"} {
		ctx := context.Background()
		dir, trust := testkit.AgedDirs(t)
		s := openStore(t, ctx, dir, trust, laid["segments"])
		commits(t, s, 1, 3)
		b := backupOf(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "test"}
		m := faultfs.New(vfs.OS(), filepath.Dir(dir))
		m.Set(func(c faultfs.Call) faultfs.Action {
			if c.Op == "Remove" && c.Path == "session/bundle" {
				return faultfs.Action{Err: syscall.EIO}
			}
			return faultfs.Action{}
		})
		if _, err := pawl.Remove(m.Context(ctx), dir, trust, nil, dec); err == nil {
			t.Fatal("it was removed")
		}
		_, err1 := pawl.Open(ctx, dir, trust, nil)
		_, err2 := pawl.OpenReader(ctx, dir, trust, nil)
		_, err3 := pawl.Adopt(ctx, dir, trust, nil, dec)
		for _, err := range []error{err1, err2, err3, inspect(t, dir, trust, nil).Err} {
			var e *pawl.Error
			if !errors.Is(err, pawl.ErrMissing) || !errors.As(err, &e) || !strings.Contains(e.Hint, "pawl remove") {
				t.Errorf("of a store that is being removed: %v", err)
			}
		}
		if way == "remove" {
			r, err := pawl.Remove(ctx, dir, trust, nil, dec)
			if err != nil || len(r.Left) > 0 || inspect(t, dir, trust, nil).Verdict != "create" {
				t.Errorf("%+v, %v", r, err)
			}
			continue
		}
		r := restoreTo(t, dir, trust, b, dec.Digest)
		s = openStore(t, ctx, dir, trust, laid["segments"])
		if v := s.View().Version(); v != r.Version {
			t.Errorf("%s, the ruling says %s", v, r.Version)
		}
		if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestFollowersOfALostState: who has shown what was given up is told, and does not go on.
func TestFollowersOfALostState(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	shared := &pawl.Options{Shared: true, LockWait: time.Minute}
	s := openStore(t, ctx, dir, trust, shared)
	defer s.Close()
	commits(t, s, 1, 2)
	b := backupOf(t, s)
	commits(t, s, 3, 2)
	r, err := pawl.OpenReader(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	restoreTo(t, dir, trust, b, trusted(t, dir, trust))
	errR := r.Refresh(ctx)
	_, errC := s.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("x")}})
	for _, err := range []error{errR, errC} {
		var e *pawl.Error
		if !errors.Is(err, pawl.ErrRolledBack) || !errors.As(err, &e) || !strings.Contains(e.Hint, "given up") {
			t.Errorf("after a restore: %v", err)
		}
	}
	again, err := pawl.OpenReader(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v := again.View().Version(); v.Revision != 5 {
		t.Errorf("opened again: %s", v)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCompactAfterGap: retention works on both sides of what was given up, and across it.
func TestCompactAfterGap(t *testing.T) {
	ctx := context.Background()
	for _, p := range []pawl.Policy{{KeepLast: 1}, {KeepSince: 7}, {KeepLast: 3, ForgetBefore: 100}, {KeepLast: 100}} {
		dir, trust := testkit.AgedDirs(t)
		s := openStore(t, ctx, dir, trust, laid["segments"])
		kept := commits(t, s, 1, 3)
		b := backupOf(t, s)
		lost := commits(t, s, 4, 2)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		restoreTo(t, dir, trust, b, trusted(t, dir, trust))
		s = openStore(t, ctx, dir, trust, laid["segments"])
		after := commits(t, s, 6, 30)
		report, err := s.Compact(ctx, p)
		if err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, ctx, dir, trust, laid["segments"])
		for i, receipt := range slices.Concat(kept, lost, after) {
			ok, err := s.View().Contains(receipt)
			want := i < 3 || i >= 5
			if ok != want && !(want && errors.Is(err, pawl.ErrForgotten) && receipt.Revision <= report.ForgottenTo) || err != nil && !errors.Is(err, pawl.ErrForgotten) {
				t.Errorf("%+v: Contains(%d) = %v, %v", p, receipt.Revision, ok, err)
			}
		}
		again := backupOf(t, s)
		if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
			t.Fatal(err)
		}
		to, toTrust := testkit.AgedDirs(t)
		restoreTo(t, to, toTrust, again, pawl.Digest{})
		restoreTo(t, dir, trust, b, trusted(t, dir, trust)) // over a history with a gap, and forgotten commits
		s = openStore(t, ctx, dir, trust, laid["segments"])
		if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
