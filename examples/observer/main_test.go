package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
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

// testEnv makes the test binary the program: its own main function, its own writers.
const testEnv = "PAWL_EXAMPLE_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" || os.Getenv(testEnv) != "" {
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

var (
	shown   = regexp.MustCompile(`(?m)^revision +(\d+) `)
	summary = regexp.MustCompile(`(?m)^observer: all (\d+) acknowledged entries were seen, in (\d+) states, (\d+) kills$`)
)

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The whole story: the writer is killed for real, and started again; what it
// acknowledged is seen.
func TestWriterKilled(t *testing.T) {
	t.Parallel()
	cmd, temp := program(t, "-commits", "20", "-kills", "2", "-seed", "7")
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sum := summary.FindStringSubmatch(out)
	if sum == nil {
		t.Fatalf("no summary:\n%s", out)
	}
	acked, states, kills := number(t, sum[1]), number(t, sum[2]), number(t, sum[3])
	// Each kill can cost an acknowledgement.
	if acked < 20-kills || acked > 20 || kills < 1 || kills > 2 || strings.Count(out, "was killed") != kills {
		t.Errorf("%s", out)
	}
	last := 0
	all := shown.FindAllStringSubmatch(out, -1)
	for _, m := range all {
		if n := number(t, m[1]); n <= last {
			t.Errorf("revision %d after %d", n, last)
		} else {
			last = n
		}
	}
	if last != 20 || len(all) != states {
		t.Errorf("%d states, up to revision %d:\n%s", len(all), last, out)
	}
	for line := range strings.Lines(out) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\r\n")) > 79 {
			t.Errorf("a line of more than 79 columns: %s", line)
		}
	}
	empty(t, temp)
}

// A writer that is told to end has the observer end well, too.
func TestFor(t *testing.T) {
	t.Parallel()
	cmd, temp := program(t, "-commits", "1000000", "-kills", "0", "-for", "300ms")
	out, err := cmd.CombinedOutput()
	if err != nil || !summary.Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
	empty(t, temp)
}

func commit(t *testing.T, s *pawl.Store, data string) {
	t.Helper()
	if _, err := s.Commit(t.Context(), pawl.Change{Entries: [][]byte{[]byte(data)}}); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir, trust string) *pawl.Store {
	t.Helper()
	s, err := pawl.Open(t.Context(), dir, trust, &pawl.Options{SyncConfirm: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// onText is a writer that calls f once it has been written a text.
type onText struct {
	out  bytes.Buffer
	text string
	f    func()
}

func (w *onText) String() string { return w.out.String() }

func (w *onText) Write(b []byte) (int, error) {
	if f := w.f; f != nil && strings.Contains(string(b), w.text) {
		w.f = nil
		f()
	}
	return w.out.Write(b)
}

// The store of another program is followed from before it is there.
func TestFollow(t *testing.T) {
	t.Parallel()
	dir, trust := testkit.Dirs(t)
	var errs bytes.Buffer
	out := &onText{text: "no store yet", f: func() {
		s := open(t, dir, trust)
		commit(t, s, "one")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}}
	if code := run([]string{"-dir", dir, "-trust", trust, "-n", "1", "-for", "1m"}, out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, &errs)
	}
	if !strings.Contains(out.String(), `revision     1   entry 1: "one"`) || !strings.Contains(out.String(), "1 states, the last is revision 1") {
		t.Errorf("%s", out)
	}

	s := open(t, dir, trust)
	out = &onText{text: "revision     1", f: func() {
		commit(t, s, strings.Repeat("two\n", 100))
	}}
	if code := run([]string{"-dir", dir, "-trust", trust, "-n", "2", "-for", "1m"}, out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, &errs)
	}
	if !strings.Contains(out.String(), `revision     2   entry 2: "two\ntwo\n`) {
		t.Errorf("%s", out)
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("a line of more than 79 columns: %s", line)
		}
	}

	// One that ends because its time is over ends well.
	out = &onText{}
	if code := run([]string{"-dir", filepath.Join(dir, "nothing"), "-for", "1ms"}, out, &errs); code != 0 {
		t.Errorf("exit code %d: %s%s", code, out, &errs)
	}
	// One that is refused says why.
	if code := run([]string{"-dir", dir, "-trust", dir, "-for", "1m"}, out, &errs); code != 1 || !strings.Contains(errs.String(), "inside or the same") {
		t.Errorf("exit code %d: %s%s", code, out, &errs)
	}
}

// A commit that nobody finishes is shown as a line, and followed on (R1).
func TestUnsettled(t *testing.T) {
	t.Parallel()
	dir, trust := testkit.Dirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	s, err := pawl.Open(f.Context(t.Context()), dir, trust, &pawl.Options{SyncConfirm: true, CheckpointEvery: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit(t, s, "one")
	plan := &faultfs.Plan{N: 1, Action: faultfs.Action{Err: syscall.EIO}, Only: func(c faultfs.Call) bool { return c.String() == "session Sync" }}
	f.Set(plan.Hook)
	if _, err := s.Commit(t.Context(), pawl.Change{Entries: [][]byte{[]byte("two")}}); !errors.Is(err, pawl.ErrInDoubt) {
		t.Fatal(err)
	}
	f.Set(nil)
	out := &onText{text: "nobody is there to finish it", f: func() {
		if _, err := s.Recover(t.Context()); err != nil {
			t.Error(err)
		}
		commit(t, s, "three")
	}}
	var errs bytes.Buffer
	if code := run([]string{"-dir", dir, "-trust", trust, "-n", "1", "-for", "1m"}, out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, &errs)
	}
	if out.f != nil || !strings.Contains(out.String(), `"three"`) {
		t.Errorf("%s", out)
	}
}

// An observer that finds nothing wrong is worth what it finds when something is.
func TestStrict(t *testing.T) {
	t.Parallel()
	var views []pawl.View
	var receipts []pawl.Receipt
	for _, who := range []int{1, 2} {
		dir, trust := testkit.Dirs(t)
		s := open(t, dir, trust)
		for n := range 3 {
			r, err := s.Commit(t.Context(), pawl.Change{Entries: [][]byte{[]byte(entry(n+1, who))}})
			if err != nil {
				t.Fatal(err)
			}
			views = append(views, s.View())
			receipts = append(receipts, r)
		}
	}
	var out bytes.Buffer
	for _, c := range []struct {
		see  []int
		want string
	}{
		{[]int{0, 1, 2}, ""},
		{[]int{0, 2}, ""},
		{[]int{2, 1}, "backwards"},
		{[]int{1, 1}, "backwards"},
		{[]int{0, 4}, "does not go on"},
	} {
		o := &observer{show: &screen{w: &out}}
		var err error
		for _, i := range c.see {
			err = errors.Join(err, o.see(views[i]))
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.see, err, c.want)
		}
	}
	if err := compare(views[2], receipts[:3]); err != nil {
		t.Error(err)
	}
	if err := compare(views[1], receipts[:3]); err == nil || !strings.Contains(err.Error(), "entry 3 was acknowledged as revision 3, and was not seen") {
		t.Error(err)
	}
	dir, trust := testkit.Dirs(t)
	s := open(t, dir, trust)
	commit(t, s, entry(1, 1))
	commit(t, s, entry(1, 1))
	if err := compare(s.View(), nil); err == nil || !strings.Contains(err.Error(), "entry 2 of revision 2") {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"more"}, {"-bogus"}, {"-kills", "-1"}, {"-commits", "0"}, {"-n", "1"}, {"-trust", "x"}, {"-dir", "x", "-kills", "1"}, {"-for", "-1s"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), "observer -h") {
			t.Errorf("%q: exit code %d, printed %q and %q", args, code, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-h"}, &out, &errs); code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), "-commits") {
		t.Errorf("-h: exit code %d, printed %q and %q", code, &out, &errs)
	}
}

func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("on Windows os.Process.Signal cannot send an interrupt")
	}
	t.Parallel()
	dir, trust := testkit.Dirs(t)
	commit(t, open(t, dir, trust), "one")
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"-commits", "1000000"}, 130},
		{[]string{"-dir", dir, "-trust", trust}, 0},
	} {
		cmd, temp := program(t, c.args...)
		ready := make(chan struct{})
		out := &onText{text: "revision ", f: func() { close(ready) }}
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ready:
		case <-time.After(time.Minute):
			t.Error("nothing is seen")
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("%q: %v, want exit code %d\n%s", c.args, err, c.code, out)
		}
		empty(t, temp)
	}
}

// A writer whose observer is gone ends.
func TestObserverKilled(t *testing.T) {
	t.Parallel()
	cmd, temp := program(t, "-commits", "1000000", "-kills", "0")
	ready := make(chan struct{})
	cmd.Stdout = &onText{text: "revision ", f: func() { close(ready) }}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Error("nothing is seen")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	dirs, err := filepath.Glob(filepath.Join(temp, "pawl-observer-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%v, %v", dirs, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := pawl.Open(ctx, filepath.Join(dirs[0], "session"), filepath.Join(dirs[0], "trust"), &pawl.Options{MustExist: true, LockWait: time.Hour})
	if err != nil {
		t.Fatal(fmt.Errorf("the writer goes on: %w", err))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
