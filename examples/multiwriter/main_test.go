package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
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

// program returns the program as a process of its own, with a temp directory of its own.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, temp string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temp = t.TempDir()
	cmd = exec.Command(self, args...)
	// With the race detector a process would sleep for a second before it ends.
	cmd.Env = append(os.Environ(), testEnv+"=1", "GORACE=atexit_sleep_ms=0", "TMPDIR="+temp, "TMP="+temp, "TEMP="+temp)
	return cmd, temp
}

// empty fails if something is left in the program's temp directory.
func empty(t *testing.T, temp string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(temp, "*")); err != nil || left != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

var total = regexp.MustCompile(`(?m)^ +all +36 +(\d+) +(\d+) `)

// The whole story: real kills, real restarts, and all of it is there once (R1, R23).
func TestKilled(t *testing.T) {
	t.Parallel()
	cmd, temp := program(t, "-workers", "3", "-goroutines", "2", "-commits", "12", "-kills", "6", "-seed", "7")
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Where a worker is done before its kill comes, there are fewer.
	if m := total.FindStringSubmatch(out); m == nil || m[1] != m[2] || m[2] == "0" {
		t.Errorf("restarts and kills: %v\n%s", m, out)
	}
	if !strings.Contains(out, "36 commits with 54 entries") || !strings.Contains(out, "counter    18,") {
		t.Errorf("%s", out)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n > 80 && !strings.HasPrefix(line, "store") {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	empty(t, temp)
}

// Directories that were named are kept, and those with a store are refused.
func TestNamedDirectories(t *testing.T) {
	t.Parallel()
	dir, trust := testkit.Dirs(t)
	args := []string{"-workers", "1", "-goroutines", "1", "-commits", "2", "-kills", "0", "-dir", dir, "-trust", trust}
	cmd, _ := program(t, args...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), dir+" (kept)") {
		t.Fatalf("%v\n%s", err, out)
	}
	s, err := pawl.Open(t.Context(), dir, trust, &pawl.Options{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	if rec := s.Recovery(); s.View().Version().Revision != 2 || rec.Unclean {
		t.Errorf("%v, %+v", s.View().Version(), rec)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	cmd, _ = program(t, args...)
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "has 2 commits: name another") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"more"}, {"-bogus"}, {"-kills", "-1"}, {"-commits", "0"}, {"-workers", "0"}, {"-commits", "5"}, {"-trust", "x"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), "multiwriter -h") {
			t.Errorf("%q: exit code %d, printed %q and %q", args, code, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-h"}, &out, &errs); code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), "-workers") {
		t.Errorf("-h: exit code %d, printed %q and %q", code, &out, &errs)
	}
}

// running starts the program on more than it can do, and returns when it has done some.
func running(t *testing.T) (cmd *exec.Cmd, temp string, r *pawl.Reader) {
	t.Helper()
	cmd, temp = program(t, "-workers", "2", "-commits", "1000000", "-kills", "0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is done")
		}
		dirs, err := filepath.Glob(filepath.Join(temp, "pawl-multiwriter-*"))
		if err != nil || len(dirs) != 1 {
			continue
		}
		if r == nil {
			r, err = pawl.OpenReader(t.Context(), filepath.Join(dirs[0], "session"), filepath.Join(dirs[0], "trust"), nil)
			if errors.Is(err, pawl.ErrNotExist) || errors.Is(err, pawl.ErrUnsettled) {
				r = nil
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
		}
		if err := r.Refresh(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnsettled) {
			t.Fatal(err)
		}
		if r.View().Version().Revision > 4 {
			return cmd, temp, r
		}
	}
}

func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("on Windows os.Process.Signal cannot send an interrupt")
	}
	t.Parallel()
	cmd, temp, _ := running(t)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("%v, want exit code 130", err)
	}
	empty(t, temp)
}

// Workers end when whoever started them is gone.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	cmd, temp, r := running(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	dirs, err := filepath.Glob(filepath.Join(temp, "pawl-multiwriter-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%v, %v", dirs, err)
	}
	// They are gone once nobody changes anything for a while; whoever opens the store
	// settles what they have left.
	for end := time.Now().Add(time.Minute); ; {
		s, err := pawl.Open(t.Context(), filepath.Join(dirs[0], "session"), filepath.Join(dirs[0], "trust"), &pawl.Options{MustExist: true, LockWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		before := s.View().Version()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		if err := r.Refresh(t.Context()); err == nil && r.View().Version() == before {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the workers go on")
		}
	}
}

// build makes a store with the steps of one worker's goroutine, as it would; a function
// may spoil a step's change. It returns what a keeper would know.
func build(t *testing.T, steps []int, spoil func(n int, c *pawl.Change)) *keeper {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	k := &keeper{account: &account{acked: map[string]pawl.Receipt{}}}
	k.job = job{Dir: dir, Trust: trust, Worker: 1, Steps: 6, Next: []int{7}, Begun: []bool{false}}
	store, err := pawl.Open(t.Context(), dir, trust, &pawl.Options{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	count := 0
	for i, n := range steps {
		s := step{1, 1, n}
		if s.counts() {
			count++
		}
		c, err := s.change(count)
		if err != nil {
			t.Fatal(err)
		}
		if spoil != nil {
			spoil(i+1, &c)
		}
		r, err := store.Commit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		k.acked[s.id()] = r
	}
	return k
}

// A check that finds nothing wrong is worth what it finds when something is.
func TestCheck(t *testing.T) {
	t.Parallel()
	all := []int{1, 2, 3, 4, 5, 6}
	at := func(step int, f func(c *pawl.Change)) func(int, *pawl.Change) {
		return func(n int, c *pawl.Change) {
			if n == step {
				f(c)
			}
		}
	}
	for name, c := range map[string]struct {
		steps []int
		spoil func(int, *pawl.Change)
		acked func(map[string]pawl.Receipt)
		want  string
	}{
		"whole":          {},
		"lost":           {steps: all[:5], want: "step 1.1.6 is lost"},
		"never told":     {acked: func(a map[string]pawl.Receipt) { delete(a, "1.1.3") }, want: "step 1.1.3 was never acknowledged"},
		"order":          {steps: []int{1, 3, 2, 4, 5, 6}, want: "revision 2 is step 1.1.3, and the one before it was 1"},
		"foreign id":     {steps: append(all[:6:6], 7), want: `revision 7 has id "1.1.7", and nobody asked for that`},
		"no id":          {spoil: at(6, func(c *pawl.Change) { c.ID = "" }), want: `revision 6 has id "", and nobody asked for that`},
		"entry":          {spoil: at(4, func(c *pawl.Change) { c.Entries[0][2]++ }), want: "revision 4, step 1.1.4, has the entries"},
		"no entry":       {spoil: at(4, func(c *pawl.Change) { c.Entries = nil }), want: "revision 4, step 1.1.4, has the entries"},
		"one entry more": {spoil: at(1, func(c *pawl.Change) { c.Entries = append(c.Entries, nil) }), want: "revision 1, step 1.1.1, has the entries"},
		"count":          {spoil: at(5, func(c *pawl.Change) { c.SetJSON(counterPart, 2) }), want: "counter.json says 2, and 3 commits have counted"},
		"other part":     {spoil: at(2, func(c *pawl.Change) { c.SetJSON("other", 2) }), want: "revision 2, step 1.1.2, replaces the parts"},
		"own part":       {spoil: at(6, func(c *pawl.Change) { c.SetJSON("worker-1-1.json", 5) }), want: "worker-1-1.json says 5, and should say 6"},
		"acknowledged, and gone": {acked: func(a map[string]pawl.Receipt) {
			a["1.1.6"] = pawl.Receipt{Version: pawl.Version{Revision: 6}, FirstSeq: 9, LastSeq: 9}
		}, want: "step 1.1.6 was acknowledged as revision 6, and is revision 6"},
		"acknowledged as another": {acked: func(a map[string]pawl.Receipt) { a["1.1.6"] = a["1.1.5"] }, want: "step 1.1.6 was acknowledged as revision 5, and is revision 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.steps == nil {
				c.steps = all
			}
			k := build(t, c.steps, c.spoil)
			if c.acked != nil {
				c.acked(k.acked)
			}
			f, err := check(t.Context(), []*keeper{k})
			if err != nil {
				t.Fatal(err)
			}
			wrong := strings.Join(f.wrong, "\n")
			if !strings.Contains(wrong, c.want) || (c.want == "") != (wrong == "") {
				t.Errorf("found %q, want %q", wrong, c.want)
			}
			if c.want == "" && (f.commits != 6 || f.counted != 3 || f.entries != 9) {
				t.Errorf("%+v", f)
			}
			if wrong != "" && !strings.Contains(f.report(), f.wrong[0]) {
				t.Errorf("report: %q", f.report())
			}
		})
	}
	f := finding{}
	for i := range 30 {
		f.wrongf("wrong %d", i)
	}
	if !strings.Contains(f.report(), "(30)") || !strings.Contains(f.report(), "and 10 more") {
		t.Errorf("report: %q", f.report())
	}
}

// What is believed of a worker.
func TestKeeperIsStrict(t *testing.T) {
	t.Parallel()
	receipt := pawl.Receipt{Version: pawl.Version{Revision: 5}, FirstSeq: 5, LastSeq: 5}.String()
	for _, c := range []struct {
		lines string
		ok    bool
	}{
		{"begin 2.1.4, ack 2.1.4 R 17, begin 2.1.5", true},
		{"begin 2.1.4, begin 2.2.1, ack 2.2.1 R 17, ack 2.1.4 R 17", true},
		{"begin 2.1.4, begin 2.1.4", true}, // made again
		{"begin 2.1.4, found 2.1.4 R", true},
		{"begin 2.1.5", false},
		{"begin 2.1.3", false},
		{"begin 1.1.4", false},
		{"begin 2.3.1", false},
		{"begin 2.2.1, ack 2.2.1 R 17, begin 2.2.2", false},
		{"ack 2.1.4 R 17", false},
		{"found 2.1.4 R", false},
		{"begin 2.1.4, ack 2.1.4 R", false},
		{"begin 2.1.4, ack 2.1.4 R x", false},
		{"begin 2.1.4, ack 2.1.4 x 17", false},
		{"begin 2.01.4", false},
		{"begin", false},
		{"something 2.1.4", false},
	} {
		k := &keeper{account: &account{acked: map[string]pawl.Receipt{}}}
		k.job = job{Worker: 2, Steps: 5, Next: []int{4, 1}, Begun: make([]bool, 2)}
		if strings.Contains(c.lines, "2.2.2") {
			k.job.Steps = 1
		}
		var err error
		for line := range strings.SplitSeq(strings.ReplaceAll(c.lines, "R", receipt), ", ") {
			err = errors.Join(err, k.heard(line))
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.lines, err)
		}
	}
}

// Each call that writes or flushes fails in turn: every step is made once, or certainly
// not and again when asked to (R20).
func TestInDoubt(t *testing.T) {
	t.Parallel()
	doubts, certain, every := int64(0), 0, 1
	if runtime.GOOS == "windows" {
		every = 4 // a store takes long under Wine
	}
	for at := 1; ; at += every {
		dir, trust := testkit.Dirs(t)
		f := faultfs.New(vfs.OS(), filepath.Dir(dir))
		store, err := pawl.Open(f.Context(t.Context()), dir, trust, &pawl.Options{Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		plan := &faultfs.Plan{N: at, Action: faultfs.Action{Err: syscall.EIO}, Only: func(c faultfs.Call) bool {
			return (c.Op == "Sync" || c.Op == "SyncData" || c.Op == "WriteAt") && !strings.HasSuffix(c.Path, "lock")
		}}
		f.Set(plan.Hook)
		k := &keeper{account: &account{acked: map[string]pawl.Receipt{}}, rng: rand.New(rand.NewPCG(1, 1))}
		k.job = job{Dir: dir, Trust: trust, Worker: 1, Steps: 2, Next: []int{3}}
		for n := range 2 {
			s := step{1, 1, n + 1}
			r, err := commit(t.Context(), store, s)
			if errors.Is(err, pawl.ErrNotCommitted) {
				certain++
				r, err = commit(t.Context(), store, s)
			}
			if err != nil {
				t.Fatalf("call %d, step %s: %v", at, s.id(), err)
			}
			k.acked[s.id()] = r
		}
		doubts += store.Stats().InDoubt
		fired := plan.Fired()
		f.Set(nil)
		if err := store.Close(); err != nil {
			t.Errorf("call %d: %v", at, err)
		}
		found, err := check(t.Context(), []*keeper{k})
		if err != nil {
			t.Fatal(err)
		}
		if found.wrong != nil {
			t.Errorf("call %d (%v): %s", at, fired, found.report())
		}
		if fired == nil {
			break // there is no such call
		}
	}
	if doubts == 0 || certain == 0 {
		t.Errorf("in doubt: %d; certainly not committed: %d; each should occur", doubts, certain)
	}
}

// What a process that is gone had begun is asked for by its id: found, or made.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	for next, want := range map[int]string{
		2: "[open found begin ack begin ack begin ack begin ack]", // had been made
		3: "[open begin ack begin ack begin ack begin ack]",       // had not
	} {
		k := build(t, []int{1, 2}, nil)
		k.job.Next, k.job.Begun = []int{next}, []bool{true}
		var said []string
		err := work(context.Background(), k.job, func(format string, args ...any) {
			said = append(said, strings.Fields(fmt.Sprintf(format, args...))[0])
		})
		if got := fmt.Sprint(said); err != nil || got != want {
			t.Errorf("going on with step %d: %s, %v; want %s", next, got, err, want)
		}
	}
}
