package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// testEnv makes the test binary the program: its own main function, its own workers.
const testEnv = "PAWL_EXAMPLE_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" || os.Getenv(testEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"-errands", "0"}, args...)...)
	// With the race detector a process would sleep for a second before it ends.
	cmd.Env = append(os.Environ(), testEnv+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// agent runs the program to its end.
func agent(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := program(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// jsonRun runs the program with -json.
func jsonRun(t *testing.T, wantCode int, args ...string) summary {
	t.Helper()
	code, stdout, stderr := agent(t, append([]string{"-json"}, args...)...)
	if code != wantCode {
		t.Fatalf("exit code %d, want %d:\n%s%s", code, wantCode, stdout, stderr)
	}
	var sum summary
	if err := json.Unmarshal([]byte(stdout), &sum); err != nil {
		t.Fatalf("standard output is not one JSON document: %v\n%s", err, stdout)
	}
	if sum.OK != (code == 0) || (sum.Problem == "") != sum.OK {
		t.Errorf("exit code %d, ok %v, problem %q", code, sum.OK, sum.Problem)
	}
	return sum
}

// makeTree makes a tree with n Go files, some in src and below, one of them empty and
// one without a line feed at its end, and with files that are none of the agent's
// business. It returns how many lines and bytes the Go files have.
func makeTree(t *testing.T, n int) (tree string, lines, size int64) {
	t.Helper()
	tree = t.TempDir()
	for i := range n {
		text := "package p\n" + strings.Repeat("// line\n", i%7)
		lines += 1 + int64(i%7)
		switch i {
		case 3:
			text, lines = "", lines-4
		case 5:
			text += "// no line feed" // one more line
			lines++
		}
		size += int64(len(text))
		write(t, filepath.Join(tree, "src", "p"+string(rune('a'+i%3)), fmt.Sprintf("f%03d.go", i)), text)
	}
	write(t, filepath.Join(tree, "src", "pa", "README"), "not Go\n")
	write(t, filepath.Join(tree, "outside.go"), "package outside\n")
	return tree, lines, size
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The whole story: killed while at work, whole at the end (R23: by the real path, a
// real kill and a real restart), gone on with, and held against a tree that changed.
func TestKilledAndResumed(t *testing.T) {
	t.Parallel()
	tree, lines, size := makeTree(t, 48)
	dir, trust := testkit.Dirs(t)
	where := []string{"-tree", tree, "-dir", dir, "-trust", trust, "-seed", "7"}

	// Where the worker is so much faster than the supervisor that it is done before it
	// is killed, nothing is shown: then once more.
	var got summary
	for try := 1; ; try++ {
		got = jsonRun(t, 0, append(where, "-files", "32", "-kills", "6")...)
		if got.Kills > 2 || try == 10 {
			break
		}
		for _, d := range []string{dir, trust} {
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got.Files != 32 || got.Resumed != 0 || got.Kills < 3 || got.Kills > 6 || got.Seed != 7 || got.Dir != dir || got.Trust != trust || !got.Kept {
		t.Errorf("first run: %+v", got)
	}
	if got.Landed+got.NotLanded+got.Nothing != got.Unclean || got.Unclean > got.Kills {
		t.Errorf("the opens do not add up: %+v", got)
	}
	got = jsonRun(t, 0, append(where, "-kills", "100")...)
	if got.Files != 48 || got.Resumed != 32 || got.Kills > 4 {
		t.Errorf("second run: %+v; want 16 more steps, and at most a kill for every four of them", got)
	}
	if got.Lines != lines || got.Bytes != size {
		t.Errorf("%d lines, %d bytes; the tree was made with %d and %d", got.Lines, got.Bytes, lines, size)
	}
	got = jsonRun(t, 0, where...)
	if got.Files != 48 || got.Resumed != 48 || got.Kills != 0 {
		t.Errorf("third run, with nothing left to do: %+v", got)
	}

	changed := filepath.Join(tree, "src", "pa", "f000.go")
	write(t, changed, "package changed\n")
	got = jsonRun(t, 1, where...)
	for _, want := range []string{"step 1 records \"src/pa/f000.go\"", "state.json says", "the tree has changed since", "whole and adds up"} {
		if !strings.Contains(got.Problem, want) {
			t.Errorf("with a changed file the problem lacks %q:\n%s", want, got.Problem)
		}
	}
	if err := os.Remove(changed); err != nil {
		t.Fatal(err)
	}
	if got = jsonRun(t, 1, where...); !strings.Contains(got.Problem, "the tree has changed since") {
		t.Errorf("with a file removed: %s", got.Problem)
	}
	if got = jsonRun(t, 1, append(where, "-files", "20")...); !strings.Contains(got.Problem, "-files is not what it was") {
		t.Errorf("with fewer files asked for: %s", got.Problem)
	}
}

// A store that was put back as it was earlier is refused, and left as it is (35).
func TestRolledBack(t *testing.T) {
	t.Parallel()
	tree, _, _ := makeTree(t, 12)
	dir, trust := testkit.Dirs(t)
	where := []string{"-tree", tree, "-dir", dir, "-trust", trust, "-kills", "0"}
	jsonRun(t, 0, append(where, "-files", "8")...)
	old := map[string][]byte{}
	for _, pattern := range []string{"bundle", "journal.*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(paths) != 1 {
			t.Fatalf("%s: %v, %v", pattern, paths, err)
		}
		if old[paths[0]], err = os.ReadFile(paths[0]); err != nil {
			t.Fatal(err)
		}
	}
	jsonRun(t, 0, where...)
	for path, b := range old {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := testkit.Snapshot(t, dir, trust)
	got := jsonRun(t, 1, where...)
	if !strings.Contains(got.Problem, pawl.ErrRolledBack.Error()) || !got.Kept {
		t.Errorf("%+v", got)
	}
	if after := testkit.Snapshot(t, dir, trust); !maps.Equal(before, after) {
		t.Errorf("before %v\nafter %v", before, after)
	}
}

// New directories are removed when all is well, and kept when asked to.
func TestOwnDirectories(t *testing.T) {
	t.Parallel()
	tree, _, _ := makeTree(t, 8)
	for _, keep := range []bool{false, true} {
		temp := t.TempDir()
		cmd := program(t, "-tree", tree, "-kills", "2", fmt.Sprintf("-keep=%v", keep))
		cmd.Env = append(cmd.Env, "TMPDIR="+temp, "TMP="+temp, "TEMP="+temp)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		left, err := filepath.Glob(filepath.Join(temp, "pawl-agent-*", "session", "bundle"))
		if err != nil {
			t.Fatal(err)
		}
		if (len(left) == 1) != keep || !strings.Contains(string(out), temp) {
			t.Errorf("keep %v: left %v, and printed\n%s", keep, left, out)
		}
	}

	base := t.TempDir()
	sum := summary{Dir: filepath.Join(base, "session")}
	if err := cleanUp(config{}, &sum, 1); err != nil || !sum.Kept {
		t.Errorf("after a failure: %v, kept %v", err, sum.Kept)
	}
	if _, err := os.Stat(base); err != nil {
		t.Errorf("after a failure the directories were removed: %v", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"more"}, {"-bogus"}, {"-kills", "-1"}, {"-errands", "-1"}, {"-errand-kills", "-1"}, {"-kills", "x"}, {"-files", "0"}, {"-trust", "x"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), "agent -h") {
			t.Errorf("%q: exit code %d, printed %q and %q", args, code, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-h"}, &out, &errs); code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), "-seed") {
		t.Errorf("-h: exit code %d, printed %q and %q", code, &out, &errs)
	}
}

// running starts the program on enough work to keep it busy, and returns when it has
// done some. It also returns how much there is to do.
func running(t *testing.T, dir, trust string, args ...string) (cmd *exec.Cmd, files int) {
	t.Helper()
	files = 3000
	if runtime.GOOS == "windows" {
		files = 300 // all of it is slower there, making them too
	}
	tree, _, _ := makeTree(t, files)
	cmd = program(t, append([]string{"-tree", tree, "-files", "3000", "-dir", dir, "-trust", trust}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r, err := pawl.Inspect(t.Context(), dir, trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Confirmed.Revision > 2 {
			return cmd, files
		}
		if time.Now().After(end) {
			t.Fatalf("nothing is done: %+v", r)
		}
	}
}

// noWorker fails if there is still a worker, which would hold the store's lock, or one
// went on to the end of its work.
func noWorker(t *testing.T, dir, trust string, files int) {
	t.Helper()
	store, err := pawl.Open(t.Context(), dir, trust, &pawl.Options{MustExist: true, LockWait: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if store.View().Version().Revision == pawl.Revision(files) {
		t.Error("the worker went on")
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("on Windows os.Process.Signal cannot send an interrupt")
	}
	t.Parallel()
	dir, trust := testkit.Dirs(t)
	cmd, files := running(t, dir, trust)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("exit code %d (%v), want 130", cmd.ProcessState.ExitCode(), err)
	}
	noWorker(t, dir, trust, files)
}

// A supervisor that is killed takes its worker with it.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	dir, trust := testkit.Dirs(t)
	cmd, files := running(t, dir, trust, "-kills", "0")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	noWorker(t, dir, trust, files)
}

// build makes a store as the agent would, with the steps given by the paths of their
// files; a function may spoil a step's change.
func build(t *testing.T, j job, paths []string, spoil func(n int, c *pawl.Change)) (acked []pawl.Receipt) {
	t.Helper()
	store, err := pawl.Open(t.Context(), j.Dir, j.Trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var sum totals
	for i, path := range paths {
		s := step{Step: i + 1, Call: call{toolName, path}}
		if s.Result, err = digest(j.Tree, path); err != nil {
			t.Fatal(err)
		}
		entry, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		sum = sum.add(s, entry)
		c := pawl.Change{ID: stepID(s.Step), Entries: [][]byte{entry}}
		c.SetJSON(statePart, sum)
		if spoil != nil {
			spoil(s.Step, &c)
		}
		r, err := store.Commit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		acked = append(acked, r)
	}
	return acked
}

// A check that finds nothing wrong is worth what it finds when something is.
func TestCheck(t *testing.T) {
	t.Parallel()
	tree, _, _ := makeTree(t, 9)
	all, err := list(tree, 6)
	if err != nil {
		t.Fatal(err)
	}
	root := pawl.Root{Revision: 3, Epoch: 3}
	auditOf := func(outcome string, commits ...string) string {
		b, err := json.Marshal(map[string]any{"event": "settle", "outcome": outcome, "pending": root, "commits": commits})
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	}
	at := func(step int, f func(c *pawl.Change)) func(int, *pawl.Change) {
		return func(n int, c *pawl.Change) {
			if n == step {
				f(c)
			}
		}
	}
	for name, c := range map[string]struct {
		paths   []string
		spoil   func(int, *pawl.Change)
		acked   []pawl.Receipt
		settled []message
		audit   string
		store   string // expected of the store itself
		tree    string // expected against the tree
	}{
		"whole": {},
		"lost": {
			paths: slices.Delete(slices.Clone(all), 2, 3),
			tree:  "step 3 is lost",
		},
		"last lost": {
			paths: all[:5],
			tree:  "step 6 is lost",
		},
		"twice": {
			paths: slices.Insert(slices.Clone(all), 2, all[1]),
			store: "done twice: steps 2 and 3",
		},
		"order": {
			paths: []string{all[0], all[2], all[1], all[3], all[4], all[5]},
			tree:  "should be step 2, and is step 3",
		},
		"foreign file": {
			paths: append(slices.Clone(all), "outside.go"),
			tree:  `step 7 is on "outside.go"`,
		},
		"result": {
			spoil: at(4, func(c *pawl.Change) {
				c.Entries[0] = bytes.Replace(c.Entries[0], []byte(`"bytes":`), []byte(`"bytes":1`), 1)
			}),
			store: "state.json says",
			tree:  "step 4 records",
		},
		"totals": {
			spoil: at(6, func(c *pawl.Change) { c.SetJSON(statePart, totals{Files: 6}) }),
			store: "the history adds up to",
			tree:  "a fresh walk of the tree adds up to",
		},
		"no state": {
			spoil: func(_ int, c *pawl.Change) { c.Put = nil },
			store: "has the parts [], and should have",
			tree:  "a fresh walk of the tree adds up to",
		},
		"state that does not decode": {
			spoil: at(6, func(c *pawl.Change) { c.Put[statePart] = []byte("{") }),
			store: "does not decode",
		},
		"extra part": {
			spoil: at(2, func(c *pawl.Change) { c.Put["other"] = nil }),
			store: `has the parts ["other" "state.json"]`,
		},
		"extra entry": {
			spoil: at(2, func(c *pawl.Change) { c.Entries = append(c.Entries, c.Entries[0]) }),
			store: "where step 3 should be there is entry 3 of revision 2, which records step 2",
		},
		"extra commit": {
			paths: all[:5],
			spoil: at(5, func(c *pawl.Change) { c.Entries = nil }),
			store: "5 commits, and 4 entries",
		},
		"id": {
			spoil: at(2, func(c *pawl.Change) { c.ID = "other" }),
			store: `commit 2 has id "other"`,
		},
		"entry that is no step": {
			spoil: at(1, func(c *pawl.Change) { c.Entries[0] = []byte("x") }),
			store: "entry 1 is not a step",
		},
		"acknowledged and gone": {
			acked: []pawl.Receipt{{Version: pawl.Version{Revision: 2}, FirstSeq: 2, LastSeq: 2}},
			store: "step 2 was acknowledged",
		},
		"settled, and in the audit file": {
			settled: []message{{Settled: landed, Pending: &root}},
			audit:   "{torn\n" + auditOf(landed, stepID(3)),
		},
		"settled without an audit line": {
			settled: []message{{Settled: landed, Pending: &root}},
			store:   `settled as "landed", and the audit file says ""`,
		},
		"audit says two things": {
			audit: auditOf(landed, stepID(3)) + auditOf(notLanded, stepID(3)),
			store: "both",
		},
		"audit of something else": {
			audit: auditOf(landed, "other"),
			store: `has the commits ["other"]`,
		},
		"audit says landed, history does not": {
			paths: all[:2],
			audit: auditOf(landed, stepID(3)),
			store: "not in the history",
			tree:  "lost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, trust := testkit.Dirs(t)
			j := job{Dir: dir, Trust: trust, Tree: tree, Files: len(all)}
			if c.paths == nil {
				c.paths = all
			}
			acked := append(build(t, j, c.paths, c.spoil), c.acked...)
			audit := filepath.Join(t.TempDir(), "audit")
			if c.audit != "" {
				write(t, audit, c.audit)
			}
			v, err := check(t.Context(), j, acked, c.settled, audit, 0)
			if err != nil {
				t.Fatal(err)
			}
			inStore, withTree := strings.Join(v.inStore, "\n"), strings.Join(v.withTree, "\n")
			if !strings.Contains(inStore, c.store) || (c.store == "") != (inStore == "") {
				t.Errorf("wrong in the store: %q, want %q", inStore, c.store)
			}
			if !strings.Contains(withTree, c.tree) || c.store == "" && (c.tree == "") != (withTree == "") {
				t.Errorf("against the tree: %q, want %q", withTree, c.tree)
			}
			if wrong := v.report(); (wrong == "") != (c.store == "" && c.tree == "") {
				t.Errorf("report: %q", wrong)
			}
		})
	}

	t.Run("not closed", func(t *testing.T) {
		dir, trust := testkit.Dirs(t)
		j := job{Dir: dir, Trust: trust, Tree: tree, Files: len(all)}
		build(t, j, all[:5], nil)
		store, err := pawl.Open(t.Context(), dir, trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		last := step{Step: 6, Call: call{toolName, all[5]}}
		if last.Result, err = digest(tree, all[5]); err != nil {
			t.Fatal(err)
		}
		if _, err := commit(t.Context(), store, last); err != nil {
			t.Fatal(err)
		}
		// What is on disk now is what a kill would leave.
		j.Dir, j.Trust = testkit.Dirs(t)
		err = errors.Join(os.CopyFS(j.Dir, os.DirFS(dir)), os.CopyFS(j.Trust, os.DirFS(trust)), store.Close())
		if err != nil {
			t.Fatal(err)
		}
		v, err := check(t.Context(), j, nil, nil, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.withTree) != 0 || len(v.inStore) != 1 || !strings.Contains(v.inStore[0], "did not close") {
			t.Errorf("%+v", v)
		}
	})
}

// What the supervisor believes of a new worker.
func TestSupervisorIsStrict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		m      message
		killed int
		ok     bool
	}{
		{message{Revision: 5, Settled: nothing}, 1, true},
		{message{Revision: 6, Settled: nothing}, 1, true}, // its acknowledgement was lost
		{message{Revision: 6, Settled: nothing}, 0, false},
		{message{Revision: 4, Settled: nothing}, 1, false},
		{message{Revision: 7, Settled: nothing}, 1, false},
		{message{Revision: 6, Settled: landed}, 1, true},
		{message{Revision: 5, Settled: landed}, 1, false},
		{message{Revision: 5, Settled: notLanded}, 1, true},
		{message{Revision: 6, Settled: notLanded}, 1, false},
		{message{Revision: 5, Settled: nothing, AuditLost: "x"}, 1, false},
	} {
		s := &supervisor{done: 5, killed: c.killed, found: map[string]int{}}
		if err := s.hasOpened(c.m); (err == nil) != c.ok {
			t.Errorf("%+v after step 5 and %d kills: %v", c.m, c.killed, err)
		}
	}
	for revision, ok := range map[pawl.Revision]bool{5: false, 6: true, 7: false} {
		s := &supervisor{done: 5}
		r := pawl.Receipt{Version: pawl.Version{Revision: revision}}
		if err := s.hasStepped(message{Receipt: &r}); (err == nil) != ok {
			t.Errorf("acknowledgement of %d after step 5: %v", revision, err)
		}
	}
	if err := new(supervisor).hasStepped(message{}); err == nil {
		t.Error("an acknowledgement without a receipt was believed")
	}
}

// A receipt that somebody kept, of a step that the store does not hold, stops the
// agent before it does anything (R1, 35).
func TestWorkerNeedsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	tree, _, _ := makeTree(t, 4)
	dir, trust := testkit.Dirs(t)
	j := job{Dir: dir, Trust: trust, Tree: tree, Files: 4}
	j.Kept = pawl.Receipt{Version: pawl.Version{Revision: 3}, FirstSeq: 3, LastSeq: 3}
	err := work(t.Context(), j, func(m message) { t.Errorf("said %+v", m) })
	if err == nil || !strings.Contains(err.Error(), "step 3 was acknowledged") {
		t.Fatal(err)
	}
}

// One flush fails, at each place in turn, applied and not: the step is done once, or
// certainly not and again when asked to (7, 31, 33; R20).
func TestInDoubt(t *testing.T) {
	t.Parallel()
	tree, _, _ := makeTree(t, 2)
	paths, err := list(tree, 2)
	if err != nil {
		t.Fatal(err)
	}
	settled := map[pawl.Settlement]int{}
	certain := 0
	kinds := []bool{true, false}
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, applied := range kinds {
		for at := 1; ; at++ {
			dir, trust := testkit.Dirs(t)
			f := &fault{applied: applied}
			ctx := vfs.NewContext(t.Context(), faultyFS{vfs.OS(), f})
			store, err := pawl.Open(ctx, dir, trust, nil)
			if err != nil {
				t.Fatal(err)
			}
			f.at = at
			for i, path := range paths {
				s := step{Step: i + 1, Call: call{toolName, path}}
				if s.Result, err = digest(tree, path); err != nil {
					t.Fatal(err)
				}
				_, err = commit(ctx, store, s)
				if errors.Is(err, pawl.ErrNotCommitted) {
					certain++
					_, err = commit(ctx, store, s)
				}
				if err != nil {
					t.Fatalf("flush %d, applied %v, step %d: %v", at, applied, s.Step, err)
				}
			}
			if store.Stats().InDoubt > 0 {
				settled[store.Recovery().Settled]++
			}
			if err := store.Close(); err != nil && f.n < f.at {
				t.Error(err)
			}
			v, err := check(t.Context(), job{Dir: dir, Trust: trust, Tree: tree, Files: 2}, nil, nil, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			if wrong := v.report(); wrong != "" {
				t.Errorf("flush %d, applied %v: %s", at, applied, wrong)
			}
			if f.n < at {
				break // there is no such flush
			}
		}
	}
	if settled[pawl.SettledLanded] == 0 || settled[pawl.SettledNotLanded] == 0 || certain == 0 {
		t.Errorf("in doubt: %v; certainly not committed: %d; each should occur", settled, certain)
	}
}

// fault makes one flush fail, of those that come after at was set.
type fault struct {
	at, n   int
	applied bool
}

func (f *fault) flush(do func() error) error {
	if f.at == 0 {
		return do()
	}
	if f.n++; f.n != f.at {
		return do()
	}
	if f.applied {
		if err := do(); err != nil {
			return err
		}
	}
	return errors.New("injected")
}

type faultyFS struct {
	vfs.FS
	f *fault
}

type faultyDir struct {
	vfs.Dir
	f *fault
}

type faultyFile struct {
	vfs.File
	f *fault
}

func (fs faultyFS) OpenDir(path string) (vfs.Dir, error) {
	d, err := fs.FS.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return faultyDir{d, fs.f}, nil
}

func (d faultyDir) Sync() error { return d.f.flush(d.Dir.Sync) }

func (d faultyDir) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return faultyFile{f, d.f}, nil
}

func (d faultyDir) OpenRW(name string) (vfs.File, error) { return d.file(d.Dir.OpenRW(name)) }

func (d faultyDir) Create(name string, perm os.FileMode) (vfs.File, error) {
	return d.file(d.Dir.Create(name, perm))
}

func (f faultyFile) Sync() error     { return f.f.flush(f.File.Sync) }
func (f faultyFile) SyncData() error { return f.f.flush(f.File.SyncData) }

// The default tree: the Go toolchain's own source, and files as they are on disk.
func TestGoroot(t *testing.T) {
	t.Parallel()
	root, err := goroot(context.Background())
	if err != nil {
		t.Skipf("there is no Go toolchain here: %v", err)
	}
	paths, err := list(root, 300)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != 300 {
		t.Fatalf("%d files", len(paths))
	}
	for _, path := range paths[:20] {
		if !strings.HasPrefix(path, "src/") || strings.Contains(path, `\`) {
			t.Errorf("path %q", path)
		}
		r, err := digest(root, path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); r.SHA256 != hex.EncodeToString(sum[:]) || r.Bytes != int64(len(b)) {
			t.Errorf("%s: %v", path, r)
		}
	}
}
