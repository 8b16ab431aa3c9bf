package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// inspect describes a store, and fails the test when that changed anything or the
// report is not fit to be shown.
func inspect(t testing.TB, dir, trust string, opts *pawl.Options) *pawl.Report {
	t.Helper()
	before := testkit.Snapshot(t, dir, trust)
	r, err := pawl.Inspect(t.Context(), dir, trust, opts)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, dir, trust)); diff != "" {
		t.Errorf("Inspect changed:\n%s", diff)
	}
	presentable(t, r)
	return r
}

// presentable checks what holds for every report.
func presentable(t testing.TB, r *pawl.Report) {
	t.Helper()
	j, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(j, &back); err != nil || back["verdict"] != r.Verdict {
		t.Errorf("as JSON: %s, %v", j, err)
	}
	refused := r.Verdict == "refuse"
	if (r.Err != nil) != refused || (r.Problem != "") != refused || (back["problem"] != nil) != refused {
		t.Errorf("verdict %q with error %v, problem %q", r.Verdict, r.Err, r.Problem)
	}
	var e *pawl.Error
	if refused && (!errors.As(r.Err, &e) || e.Op != "open" || r.Hint != e.Hint || r.Problem != r.Err.Error()) {
		t.Errorf("error %v, hint %q, problem %q", r.Err, r.Hint, r.Problem)
	}
	// What names and files say does not act on a terminal (R22).
	for _, s := range slices.Concat([]string{r.Problem, r.Hint, r.CreatedAt}, r.Unknown, r.Temps) {
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("not fit to be shown: %q", s)
		}
	}
}

func TestInspectFresh(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	want := &pawl.Report{Dir: dir, Trust: filepath.Join(trust, "session.trust"), Verdict: "create"}
	if diff := cmp.Diff(want, inspect(t, dir, trust, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Directories that are there and empty are as good as none.
	for _, d := range []string{dir, trust} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, inspect(t, dir, trust, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r := inspect(t, dir, trust, &pawl.Options{MustExist: true}); r.Verdict != "refuse" || !errors.Is(r.Err, pawl.ErrNotExist) {
		t.Errorf("MustExist: %q, %v", r.Verdict, r.Err)
	}
	if _, err := pawl.Inspect(t.Context(), "", trust, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pawl.Inspect(ctx, dir, trust, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Beside an open store and after it was closed, the same is described, and no lock
// is in the way (29).
func TestInspectClean(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	if r := inspect(t, dir, trust, nil); r.Verdict != "clean" || r.Confirmed != (pawl.Root{}) || !r.Closed || r.Sequence != 1 || r.Entries != 0 {
		t.Errorf("an empty store: %+v", r)
	}
	commit(t, s, pawl.Change{Entries: [][]byte{nil, nil, nil}, Put: map[string][]byte{"b": nil, "a": nil}})
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "quarantine"), 0o700); err != nil {
		t.Fatal(err)
	}
	sum := pawl.Digest(fileSum(t, filepath.Join(dir, "bundle")))
	info, err := os.Stat(filepath.Join(dir, "bundle"))
	if err != nil {
		t.Fatal(err)
	}
	r := inspect(t, dir, trust, nil)
	root := pawl.Root{Revision: 1, Epoch: 1, Digest: sum}
	want := &pawl.Report{
		Dir: dir, Trust: filepath.Join(trust, "session.trust"), Verdict: "clean", StoreID: r.StoreID, Sequence: 3,
		Confirmed: root, Found: root, Bytes: info.Size(), Entries: 3, Parts: []string{"a", "b"}, CreatedAt: r.CreatedAt, Unknown: r.Unknown,
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Contains(r.Unknown, "notes.txt") || slices.Contains(r.Unknown, "lock") || len(r.StoreID) != 32 || !strings.Contains(r.CreatedAt, "session") {
		t.Errorf("%+v", r)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want.Closed, want.Sequence = true, 4
	if diff := cmp.Diff(want, inspect(t, dir, trust, nil)); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
}

func TestInspectIntent(t *testing.T) {
	for when, want := range map[string]string{"idle": "clean", "unlanded": "not landed", "landed": "landed", "unlanded journal": "not landed", "landed journal": "landed"} {
		t.Run(when, func(t *testing.T) {
			dir, trust, last := killed(t, when)
			r := inspect(t, dir, trust, nil)
			if r.Verdict != want || r.Closed || r.Found.Revision != last.Revision {
				t.Errorf("%+v", r)
			}
			if intent := when != "idle"; intent != (r.Pending.Revision == 2) || intent != slices.Equal(r.Commits, []string{"second"}) {
				t.Errorf("pending %+v, commits %q", r.Pending, r.Commits)
			}
			if temps := len(testkit.Temps(t, dir)); len(r.Temps) != temps || (temps == 1) != (want == "not landed") {
				t.Errorf("temps %q, there are %d", r.Temps, temps)
			}
			// Open does what was foretold, and sweeps up.
			rec := openStore(t, t.Context(), dir, trust, nil).Recovery()
			foretold := map[string]pawl.Settlement{"clean": pawl.SettledNothing, "landed": pawl.SettledLanded, "not landed": pawl.SettledNotLanded}[r.Verdict]
			if rec.Settled != foretold || !slices.Equal(rec.Swept, r.Temps) || rec.Unclean == r.Closed {
				t.Errorf("foretold %+v, done %+v", r, rec)
			}
		})
	}
}

// A bad state is no error of Inspect but described: the verdict and its reason are
// those of Open.
func TestInspectDamage(t *testing.T) {
	journal := func(dir string) string { return filepath.Join(dir, "journal.000000000001") }
	for name, tt := range map[string]struct {
		damage func(dir, trust string) error
		want   error
		found  pawl.Revision
	}{
		"a bit in the journal": {func(dir, _ string) error {
			b, err := os.ReadFile(journal(dir))
			if err != nil {
				return err
			}
			b[4096+100] ^= 1
			return os.WriteFile(journal(dir), b, 0)
		}, pawl.ErrDamaged, 1},
		"no journal":       {func(dir, _ string) error { return os.Remove(journal(dir)) }, pawl.ErrRolledBack, 1},
		"an empty journal": {func(dir, _ string) error { return os.Truncate(journal(dir), 0) }, pawl.ErrDamaged, 1},
		"a directory for a journal": {func(dir, _ string) error {
			return errors.Join(os.Remove(journal(dir)), os.Mkdir(journal(dir), 0o700))
		}, pawl.ErrUnauthorized, 1},
		"a bit": {func(dir, _ string) error {
			b, err := os.ReadFile(filepath.Join(dir, "bundle"))
			if err != nil {
				return err
			}
			b[len(b)-9] ^= 1
			return os.WriteFile(filepath.Join(dir, "bundle"), b, 0)
		}, pawl.ErrDamaged, 2},
		"no bundle":    {func(dir, _ string) error { return os.Remove(filepath.Join(dir, "bundle")) }, pawl.ErrMissing, 0},
		"no directory": {func(dir, _ string) error { return os.RemoveAll(dir) }, pawl.ErrMissing, 0},
		"an empty bundle": {func(dir, _ string) error {
			return os.Truncate(filepath.Join(dir, "bundle"), 0)
		}, pawl.ErrMissing, 0},
		"another bundle": {func(dir, _ string) error {
			b, err := os.ReadFile("testdata/golden/v1/full.bundle")
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "bundle"), b, 0)
		}, pawl.ErrForeign, 5},
		"no trust file":      {func(_, trust string) error { return os.Remove(filepath.Join(trust, "session.trust")) }, pawl.ErrUntrusted, 2},
		"no trust directory": {func(_, trust string) error { return os.RemoveAll(trust) }, pawl.ErrUntrusted, 2},
		"an empty trust file": {func(_, trust string) error {
			return os.Truncate(filepath.Join(trust, "session.trust"), 0)
		}, pawl.ErrTrustDamaged, 2},
		"another trust file": {func(_, trust string) error {
			b, err := os.ReadFile("testdata/golden/v1/clean.trust")
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(trust, "session.trust"), b, 0)
		}, pawl.ErrForeign, 2},
		"a bundle in the trust directory": {func(_, trust string) error {
			return os.WriteFile(filepath.Join(trust, "bundle"), nil, 0o600)
		}, pawl.ErrInsecure, 2},
		"a file for a directory": {func(dir, _ string) error {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			return os.WriteFile(dir, nil, 0o600)
		}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.Dirs(t)
			var opts *pawl.Options
			if !strings.Contains(name, "journal") {
				opts = &pawl.Options{CheckpointEvery: 1}
			}
			s := openStore(t, t.Context(), dir, trust, opts)
			commit(t, s, entry("", "one"))
			commit(t, s, entry("", "two"))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := tt.damage(dir, trust); err != nil {
				t.Fatal(err)
			}
			r := inspect(t, dir, trust, nil)
			if r.Verdict != "refuse" || tt.want != nil && !errors.Is(r.Err, tt.want) {
				t.Fatalf("%q: %v, want %v", r.Verdict, r.Err, tt.want)
			}
			if r.Found.Revision != tt.found {
				t.Errorf("found %+v, want revision %d", r.Found, tt.found)
			}
			_, err := pawl.Open(t.Context(), dir, trust, nil)
			if err == nil {
				t.Fatal("Open opens what Inspect says it refuses")
			}
			var foretold, found *pawl.Error
			if !errors.As(r.Err, &foretold) || !errors.As(err, &found) || foretold.Kind != found.Kind || foretold.Hint != found.Hint ||
				foretold.Trusted != found.Trusted || foretold.Found != found.Found {
				t.Errorf("Inspect: %s\nOpen:    %v", r.Problem, err)
			}
		})
	}
}

// Inspect beside a writer in full swing: what it says was true at one moment, and
// it never takes a moment between two files for a fault. Every receipt that was
// acknowledged before is in what it finds.
func TestInspectBesideAWriter(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	commit(t, s, entry("", "first"))
	commits := 60
	if testing.Short() {
		commits = 25
	}
	done := make(chan error)
	go func() {
		for i := range commits {
			if _, err := s.Commit(context.Background(), entry(fmt.Sprint(i), "x")); err != nil {
				done <- err
				return
			}
		}
		close(done)
	}()
	verdicts := map[string]int{}
	for last := pawl.Revision(0); ; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			if r := inspect(t, dir, trust, nil); r.Verdict != "clean" || int(r.Found.Revision) != commits+1 {
				t.Errorf("in the end: %+v", r)
			}
			t.Logf("verdicts: %v", verdicts)
			return
		default:
		}
		acknowledged := s.View().Version().Revision
		r, err := pawl.Inspect(t.Context(), dir, trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		presentable(t, r)
		verdicts[r.Verdict]++
		switch {
		case r.Verdict == "changing":
		case r.Verdict != "clean" && r.Verdict != "landed" && r.Verdict != "not landed":
			t.Fatalf("beside a writer: %+v", r)
		case r.Found.Revision < acknowledged, r.Found.Revision < last:
			t.Fatalf("found revision %d; %d was acknowledged, and %d found before", r.Found.Revision, acknowledged, last)
		default:
			last = r.Found.Revision
		}
	}
}

// A writer that is always faster than Inspect: it gives up within bounds and says
// so, rather than call a healthy store damaged.
func TestInspectOutrun(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	commit(t, s, entry("", "first"))
	looks := 0
	ctx := hooked(t.Context(), func(call, path string) error {
		if call == "open" && filepath.Base(path) == "bundle" {
			looks++
			commit(t, s, entry("", "x"))
		}
		return nil
	})
	r, err := pawl.Inspect(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	presentable(t, r)
	if r.Verdict != "changing" || r.Hint == "" || looks < 2 || looks > 1000 {
		t.Errorf("%q after %d looks: %+v", r.Verdict, looks, r)
	}
	// One commit in between is no reason to give up.
	left := 1
	ctx = hooked(t.Context(), func(call, path string) error {
		if call == "open" && filepath.Base(path) == "bundle" && left > 0 {
			left--
			commit(t, s, entry("", "x"))
		}
		return nil
	})
	if r, err := pawl.Inspect(ctx, dir, trust, nil); err != nil || r.Verdict != "clean" {
		t.Errorf("%+v, %v", r, err)
	}
}
