//go:build unix || windows

package pawl

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// childJob is what a second process is asked to do; it is the test binary again.
type childJob struct {
	Do   string // "work", "hold" or "count"
	Base string

	Kill  int    // ends the process before the Kill-th call that changes something
	Half  bool   // in the middle of the Kill-th WriteAt instead
	Seed  uint64 // of temp names and of a new store's id
	Doubt string // a call that fails, once, to bring the store into doubt
	Times int    // how many commits; how often to open
	Flush bool   // flush, and be idle, as ordinary processes do

	Every      int   // Options.CheckpointEvery
	Blocks     int64 // of the largest journal
	Checkpoint bool  // after the first commit
}

const onWindows = runtime.GOOS == "windows"

const childEnv = "PAWL_TEST_CHILD"

// In a child, init does the job and never returns.
func init() {
	env := os.Getenv(childEnv)
	if env == "" {
		return
	}
	var job childJob
	err := json.Unmarshal([]byte(env), &job)
	if err == nil {
		err = map[string]func(childJob) error{"work": childWork, "hold": childHold, "count": childCount}[job.Do](job)
	}
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

// fixed is a machine on which two processes with the same seed leave the same bytes.
type fixed struct {
	vfs.FS
	random *rand.Rand
	clock  *time.Time
}

func newFixed(seed uint64) fixed {
	clock := time.Date(2025, 11, 30, 6, 0, int(seed), 0, time.UTC)
	return fixed{vfs.OS(), rand.New(rand.NewPCG(seed, 0)), &clock}
}

func (f fixed) Owner() string { return "a child" }

func (f fixed) Now() time.Time {
	*f.clock = f.clock.Add(time.Second)
	return *f.clock
}

func (f fixed) Random(p []byte) {
	for i := range p {
		p[i] = byte(f.random.Uint32())
	}
}

// die ends the process as kill -9 and TerminateProcess do: nothing runs after it.
func die() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		fmt.Println("failed", err)
	}
	select {}
}

// countedKill is the hook that kills.
func countedKill(job childJob) faultfs.Hook {
	p := &faultfs.Plan{N: job.Kill, Action: faultfs.Action{Before: die}, Only: func(c faultfs.Call) bool {
		return c.Mutates() && c.Path != "above"
	}}
	if job.Half {
		p.Action = faultfs.Action{Half: true, After: die}
		p.Only = func(c faultfs.Call) bool { return c.Op == "WriteAt" }
	}
	return p.Hook
}

// childWork opens the store, makes commits and closes it. What it says on the way:
//
//	open R        Open returned, with revision R
//	try R         the commit that makes revision R begins
//	ack R         it was acknowledged
//	doubt R       it was in doubt
//	settled R     Recover returned, with revision R
//	closed        Close returned
func childWork(job childJob) error {
	r := rigAt(nil, job.Base, newFixed(job.Seed), "trust")
	r.opts = &Options{CheckpointEvery: job.Every, Limits: Limits{Journal: job.Blocks * blockSize}}
	if r.fs.NoFlush = !job.Flush; job.Flush {
		r.fs.FS = r.machine.FS
	}
	kill := countedKill(job)
	doubt := &faultfs.Plan{N: 1, Only: func(c faultfs.Call) bool { return job.Doubt != "" && c.String() == job.Doubt },
		Action: faultfs.Action{Err: syscall.EIO}}
	opened := false
	r.fs.Set(func(c faultfs.Call) faultfs.Action {
		if a := kill(c); a.Before != nil || a.After != nil {
			return a
		}
		if opened { // the doubt is about a commit
			return doubt.Hook(c)
		}
		return faultfs.Action{}
	})
	s, err := r.open()
	if err != nil {
		return err
	}
	opened = true
	at := int(s.View().Version().Revision)
	fmt.Println("open", at)
	for i := range job.Times {
		fmt.Println("try", at+1)
		err := commitNth(r.ctx(), s, at+1)
		if errors.Is(err, ErrInDoubt) {
			fmt.Println("doubt", at+1)
			if _, err := s.Recover(r.ctx()); err != nil {
				return err
			}
			fmt.Println("settled", int(s.View().Version().Revision))
			_, err = s.Commit(r.ctx(), nthChange(at+1))
		}
		if err != nil {
			return err
		}
		at++
		fmt.Println("ack", at)
		r.machine.idle()
		if job.Checkpoint && i == 0 {
			if err := s.Checkpoint(r.ctx()); err != nil {
				return err
			}
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	fmt.Println("closed")
	return nil
}

// child is a running child.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

var testBinary = sync.OnceValues(os.Executable)

func startChild(t testing.TB, job childJob) *child {
	t.Helper()
	exe, err := testBinary()
	if err != nil {
		t.Fatal(err)
	}
	env, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(exe)}
	// The race detector has a process wait a second at its end.
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(env), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// line returns the next thing that the child says, "" at its end.
func (c *child) line() string {
	if c.out.Scan() {
		return strings.TrimSpace(c.out.Text())
	}
	return ""
}

// wait returns the rest of what the child says, once it has ended.
func (c *child) wait() (said []string) {
	for line := c.line(); line != ""; line = c.line() {
		said = append(said, line)
	}
	c.in.Close()
	c.cmd.Wait() // that it was killed is no news
	return said
}

// kill ends the child from outside.
func (c *child) kill() (said []string) {
	c.cmd.Process.Kill()
	return c.wait()
}

// footprints is what is known of a store whose processes were killed.
type footprints struct {
	acked int // the newest revision that somebody was told of: by Commit, Open or Recover
	tried int // the newest one that may have been made
}

// follow adds what a child said, and reports whether it came to its end.
func (tr *footprints) follow(t testing.TB, said []string) (done bool) {
	t.Helper()
	for _, line := range said {
		what, rest, _ := strings.Cut(line, " ")
		n, _ := strconv.Atoi(rest)
		switch what {
		case "open", "settled":
			// What one process was shown, the next must not miss (R1).
			if n < tr.acked || n > max(tr.tried, tr.acked) {
				t.Errorf("a child found revision %d; acknowledged was %d, tried %d (%v)", n, tr.acked, tr.tried, said)
			}
			tr.acked = n
		case "try":
			tr.tried = n
		case "ack":
			tr.acked = n
		case "doubt", "closed":
		case "done":
			done = true
		default:
			t.Errorf("a child: %s (%v)", line, said)
		}
	}
	return done
}

// check opens the store as the next process does. It opens by itself (contract 13);
// nothing acknowledged is missing, and nothing is there that nobody asked for.
func (tr footprints) check(t testing.TB, r *rig, label string) {
	t.Helper()
	s, err := r.open()
	if err != nil {
		t.Fatalf("%s: after a kill the store does not open: %v", label, err)
	}
	n := int(s.View().Version().Revision)
	if n < tr.acked || n > max(tr.tried, tr.acked) {
		t.Errorf("%s: at revision %d; acknowledged was %d, tried %d", label, n, tr.acked, tr.tried)
	}
	if err := checkNth(s.View(), n); err != nil {
		t.Errorf("%s: %v", label, err)
	}
	if rec := s.Recovery(); rec.Audit != nil {
		t.Errorf("%s: %+v", label, rec)
	}
	// The caller that got no answer asks again (R1): it is told that it happened, or
	// it happens now. Then the store goes on.
	if tr.tried > 0 {
		receipt, err := s.Commit(r.ctx(), nthChange(tr.tried))
		if err != nil || receipt.Replayed != (n >= tr.tried) || int(receipt.Revision) != tr.tried {
			t.Errorf("%s: commit %d again, at revision %d: %+v, %v", label, tr.tried, n, receipt, err)
		}
		n = max(n, tr.tried)
	}
	err = errors.Join(commitNth(r.ctx(), s, n+1), s.Verify(r.ctx(), nil), s.Close())
	if err != nil {
		t.Errorf("%s: afterwards: %v", label, err)
	}
	if s, err = r.open(); err != nil {
		t.Fatalf("%s: %v", label, err)
	}
	if rec := s.Recovery(); rec.Unclean || rec.Settled != SettledNothing || rec.Swept != nil {
		t.Errorf("%s: after Close: %+v", label, rec)
	}
	if err := errors.Join(checkNth(s.View(), n+1), s.Close()); err != nil {
		t.Errorf("%s: after Close: %v", label, err)
	}
	if temps := testkit.Temps(t, r.base); temps != nil {
		t.Errorf("%s: temps left: %v", label, temps)
	}
}

// killScripts are what children are killed in. All of them go on to commit and
// close, so those are in each.
var killScripts = []struct {
	name, from string
	revision   int // before
	job        childJob
}{
	{"create", "nothing", 0, childJob{Every: 1}},
	{"commit", "one", 1, childJob{Every: 1}},
	{"settle landed", "landed", 2, childJob{Every: 1}},
	{"settle not landed", "not landed", 1, childJob{Every: 1}},
	{"settle first landed", "first landed", 1, childJob{Every: 1}},
	{"settle first not landed", "first not landed", 0, childJob{Every: 1}},
	{"recover landed", "one", 1, childJob{Every: 1, Doubt: "session Sync"}},
	{"recover not landed", "one", 1, childJob{Every: 1, Doubt: "trust Sync"}},
	{"recover first landed", "empty", 0, childJob{Every: 1, Doubt: "session Sync"}},
	{"make, extend", "one", 1, childJob{Blocks: 4}},
	{"make, publish for lack of room", "one", 1, childJob{Blocks: 2}},
	{"extend", "journal", 2, childJob{Blocks: 256}},
	{"extend, checkpoint, make", "journal", 2, childJob{Blocks: 256, Checkpoint: true}},
	{"settle making landed", "making landed", 2, childJob{Blocks: 4}},
	{"settle making not landed", "making not landed", 1, childJob{Blocks: 4}},
	{"settle extend landed", "extend landed", 3, childJob{Blocks: 256}},
	{"settle extend not landed", "extend torn", 2, childJob{Blocks: 256}},
	{"settle checkpoint landed", "checkpoint landed", 2, childJob{Blocks: 4}},
	{"recover making landed", "one", 1, childJob{Blocks: 4, Doubt: "session Sync"}},
	{"recover extend landed", "extend not landed", 2, childJob{Blocks: 256, Doubt: firstJournal + " SyncData"}},
}

// killSteps say how many of the kills are made: one in so many of the first ones, and
// one in so many of those in the recovery from each.
func killSteps() (first, second int) {
	switch {
	case onWindows:
		return 20, 1000 // a process takes long under Wine
	case testing.Short():
		return 1, 40
	}
	return 1, 20
}

// TestKills kills a child before every call that changes something, and in the
// middle of every write; and kills the child that recovers from that again, at every
// twentieth such place. In the end the store opens, and goes on. R1 (the first write
// and a lost acknowledgement of recovery are among the kills), R4, 5, 6.
func TestKills(t *testing.T) {
	var kills, disks, twice atomic.Int64
	t.Run("scripts", func(t *testing.T) {
		for _, script := range killScripts {
			t.Run(script.name, func(t *testing.T) {
				t.Parallel()
				k := &killer{t: t, top: newRig(t), seen: map[string]bool{}}
				from := k.top.inside("from")
				from.prepare(script.from)
				job := script.job
				job.Do, job.Seed, job.Times = "work", 1, 2
				first, _ := killSteps()
				k.kill(from, job, footprints{script.revision, script.revision}, first, func(disk *rig, tr footprints, label string) {
					k.again(disk, job, tr, label)
				})
				if err := os.RemoveAll(from.base); err != nil { // has temps, on purpose
					t.Fatal(err)
				}
				kills.Add(k.kills)
				disks.Add(int64(len(k.seen)))
				twice.Add(k.twice)
			})
		}
	})
	t.Logf("%d kills left %d disks; %d kills in recovering from those", kills.Load(), disks.Load(), twice.Load())
}

type killer struct {
	t            *testing.T
	top          *rig
	seen         map[string]bool // disks that kills have left
	n            int
	kills, twice int64
}

func (k *killer) fresh() *rig {
	k.n++
	return k.top.inside(fmt.Sprint("run", k.n))
}

func (k *killer) remove(r *rig) {
	if err := os.RemoveAll(r.base); err != nil {
		k.t.Fatal(err)
	}
}

// kill runs the job on copies of a directory, and kills it in another place each
// time, until it comes to its end. then is called with what each kill left.
func (k *killer) kill(from *rig, job childJob, before footprints, step int, then func(*rig, footprints, string)) {
	k.t.Helper()
	for _, half := range []bool{false, true} {
		for at := 1 + k.n%step; ; at += step {
			r := k.fresh()
			from.copyTo(r)
			job.Base, job.Kill, job.Half = r.base, at, half
			tr := before
			done := tr.follow(k.t, startChild(k.t, job).wait())
			if !done {
				then(r, tr, fmt.Sprintf("killed %s", map[bool]string{false: fmt.Sprint("before call ", at), true: fmt.Sprint("in write ", at)}[half]))
			}
			k.remove(r)
			if done {
				break
			}
		}
	}
}

// again looks at what a kill has left, and kills the child that recovers from it.
// Kills that leave the same bytes are one: what a killed process leaves is what can
// be seen.
func (k *killer) again(disk *rig, job childJob, tr footprints, label string) {
	k.t.Helper()
	k.kills++
	r := k.fresh()
	disk.copyTo(r)
	tr.check(k.t, r, label)
	k.remove(r)
	picture := fmt.Sprint(tr, disk.bytes())
	if k.seen[picture] {
		return
	}
	k.seen[picture] = true
	_, second := killSteps()
	job.Doubt, job.Seed, job.Times = "", 2, 1
	k.kill(disk, job, tr, second, func(r *rig, tr footprints, then string) {
		k.twice++
		tr.check(k.t, r, label+", then "+then)
	})
}

// bytes is everything in the two directories but who holds the locks.
func (r *rig) bytes() testkit.Tree {
	tree := testkit.Snapshot(r.t, r.dir, r.trust)
	rel := testkit.Tree{}
	for path, what := range tree {
		if name := strings.TrimPrefix(path, r.base); filepath.Base(name) != lockName && filepath.Ext(name) != lockSuffix {
			rel[name] = what
		}
	}
	return rel
}

// TestKillsAtRandom kills children that flush and commit as fast as they can, from
// outside, whenever it happens to be.
func TestKillsAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	r := newRig(t)
	var tr footprints
	for i := range rounds {
		c := startChild(t, childJob{Do: "work", Base: r.base, Seed: seed + uint64(i), Times: 1 << 30, Flush: true})
		patience := time.Duration(random.Int64N(int64(60 * time.Millisecond)))
		if onWindows {
			patience *= 10 // for Wine to come to something
		}
		if first := c.line(); !strings.HasPrefix(first, "open ") {
			t.Fatalf("round %d of seed %d: a child said %q", i, seed, first)
		} else {
			tr.follow(t, []string{first})
		}
		timer := time.AfterFunc(patience, func() { c.cmd.Process.Kill() })
		if tr.follow(t, c.wait()) {
			t.Fatalf("round %d of seed %d: the child came to its end", i, seed)
		}
		timer.Stop()
	}
	tr.check(t, r, fmt.Sprintf("%d rounds of seed %d", rounds, seed))
	t.Logf("seed %d: %d rounds, %d commits", seed, rounds, tr.acked)
}
