// Multiwriter shows several processes that change one store by turns, and die.
//
// It starts four workers, which are processes of their own with two goroutines each. All
// of them open the same store with Options.Shared, and commit: every other time they
// count one on in a part that all of them share, with Update, and in between they append
// entries, with Commit. At random moments a worker is killed with SIGKILL
// (TerminateProcess on Windows) and started again. It then asks, by the commit's id, what
// became of the one whose acknowledgement it lost, and makes it if it was not made. In
// the end the history is compared, entry by entry, with what was acknowledged.
//
//	go run ./examples/multiwriter
//
// worker is the part to copy from. What is below it kills and compares.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `Usage: multiwriter [flags]

Several worker processes change one store by turns. They are killed at random moments
and started again. In the end the history is compared with what was acknowledged.

Exit code 0: all that was asked for was committed once, as acknowledged, in order, and
nothing else. 1: it was not, or another failure; the directories are kept. 2: bad
usage. 130: interrupted.

Flags:
`

// config is what the flags say.
type config struct {
	workers, goroutines, commits, kills int
	seed                                uint64
	dir, trust                          string
	keep                                bool
}

// errUsage is an error that was reported already.
var errUsage = errors.New("usage")

func parse(args []string, stdout, stderr io.Writer) (c config, err error) {
	f := flag.NewFlagSet("multiwriter", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&c.workers, "workers", 4, "start `n` processes")
	f.IntVar(&c.goroutines, "goroutines", 2, "each with `n` goroutines")
	f.IntVar(&c.commits, "commits", 100, "each process has `n` commits to make")
	f.IntVar(&c.kills, "kills", 40, "kill them `n` times, all in all")
	f.Uint64Var(&c.seed, "seed", 0, "draw the moments of the kills from this `number`; 0: another one each time")
	f.StringVar(&c.dir, "dir", "", "store `directory`, without a store; default: a new one, removed if all is well")
	f.StringVar(&c.trust, "trust", "", "trust `directory`; default: the store directory's name and \"-trust\"")
	f.BoolVar(&c.keep, "keep", false, "keep the new directories in any case")
	err = f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return c, err
	case err != nil:
	case f.NArg() > 0:
		err = fmt.Errorf("what is %q?", f.Arg(0))
	case c.workers < 1 || c.goroutines < 1 || c.commits < 1:
		err = errors.New("-workers, -goroutines and -commits are at least 1")
	case c.kills < 0:
		err = errors.New("-kills is negative")
	case c.commits%c.goroutines != 0:
		err = errors.New("-commits is no multiple of -goroutines")
	case c.trust != "" && c.dir == "":
		err = errors.New("-trust needs -dir")
	default:
		return c, nil
	}
	fmt.Fprintf(stderr, "multiwriter: %v\nmultiwriter -h lists the flags.\n", err)
	return c, errUsage
}

func run(args []string, stdout, stderr io.Writer) int {
	c, err := parse(args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = demo(ctx, c, stdout)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "multiwriter: interrupted")
		return 130
	}
	fmt.Fprintf(stderr, "multiwriter: %v\n", err)
	return 1
}

// ---- the worker ----------------------------------------------------------------

// workerEnv makes this program a worker, and holds its job. It works until it is done or
// its standard input ends, which happens when whoever started it is gone.
const workerEnv = "PAWL_EXAMPLE_WRITER"

// job is what a worker is started with.
type job struct {
	Dir, Trust string
	Worker     int // from 1
	Steps      int // of each goroutine

	// For each goroutine: the step to go on with, and whether a process that was killed
	// had begun it already.
	Next  []int
	Begun []bool
}

// step is one commit that a worker has to make: the Nth of one of its goroutines.
type step struct{ Worker, Goroutine, N int } // each from 1

// id is that of the commit. Whoever goes on with a step asks for the same.
func (s step) id() string { return fmt.Sprintf("%d.%d.%d", s.Worker, s.Goroutine, s.N) }

func parseStep(id string) (s step, err error) {
	if _, err = fmt.Sscanf(id, "%d.%d.%d", &s.Worker, &s.Goroutine, &s.N); err != nil || s.id() != id {
		return s, fmt.Errorf("%q is no step of a worker", id)
	}
	return s, nil
}

// counts says which steps count: every other one.
func (s step) counts() bool { return s.N%2 == 1 }

// entry is what the history keeps of a step, as JSON.
type entry struct {
	Step  string `json:"step"`
	Count int    `json:"count,omitempty"` // what it counted to
	Item  int    `json:"item,omitempty"`  // of a step that appends some
	Of    int    `json:"of,omitempty"`
}

// counterPart is changed by all workers, ownPart by one goroutine of one worker.
const counterPart = "counter.json"

func (s step) ownPart() string { return fmt.Sprintf("worker-%d-%d.json", s.Worker, s.Goroutine) }

// change is the commit of a step; to is what it counts to, if it counts.
func (s step) change(to int) (c pawl.Change, err error) {
	c.ID = s.id()
	entries := []entry{{Step: c.ID, Count: to}}
	if s.counts() {
		c.SetJSON(counterPart, to)
	} else {
		c.SetJSON(s.ownPart(), s.N)
		n := 1 + s.N/2%3
		entries = nil
		for i := range n {
			entries = append(entries, entry{Step: c.ID, Item: i + 1, Of: n})
		}
	}
	for _, e := range entries {
		b, err := json.Marshal(e)
		if err != nil {
			return c, err
		}
		c.Entries = append(c.Entries, b)
	}
	return c, nil
}

// lockWait is how long a change waits for the others. They hold the locks for the time
// of a commit, but a machine may be slow.
const lockWait = 30 * time.Second

// worker is one process.
type worker struct {
	job   job
	store *pawl.Store
	tell  func(format string, args ...any)
}

// work does the job of all goroutines. It tells whoever started it:
//
//	open                     the store is open
//	begin ID                 the commit is about to be asked for
//	ack ID RECEIPT WAITED    it was acknowledged, after so many microseconds
//	found ID RECEIPT         the process before this one had made it
func work(ctx context.Context, j job, tell func(string, ...any)) error {
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{Shared: true, MustExist: true, LockWait: lockWait})
	if err != nil {
		return err
	}
	defer store.Close()
	tell("open")
	w := &worker{job: j, store: store, tell: tell}
	results := make(chan error, len(j.Next))
	for g := range j.Next {
		go func() { results <- w.steps(ctx, g+1) }()
	}
	for range j.Next {
		if err := <-results; err != nil {
			return err
		}
	}
	return store.Close()
}

// steps makes the commits of one goroutine.
func (w *worker) steps(ctx context.Context, goroutine int) error {
	first := w.job.Next[goroutine-1]
	for n := first; n <= w.job.Steps; n++ {
		s := step{w.job.Worker, goroutine, n}
		if n == first && w.job.Begun[goroutine-1] {
			// Of this one the acknowledgement was lost.
			receipt, outcome, err := w.store.Lookup(ctx, s.id())
			if err != nil {
				return err
			}
			if outcome == pawl.OutcomeCommitted {
				w.tell("found %s %s", s.id(), receipt)
				continue
			}
		}
		w.tell("begin %s", s.id())
		start := time.Now()
		receipt, err := commit(ctx, w.store, s)
		if err != nil {
			return fmt.Errorf("step %s: %w", s.id(), err)
		}
		w.tell("ack %s %s %d", s.id(), receipt, time.Since(start).Microseconds())
	}
	return nil
}

// commit makes the commit of a step. However often it is called, it is made once.
func commit(ctx context.Context, store *pawl.Store, s step) (pawl.Receipt, error) {
	for try := 1; ; try++ {
		receipt, err := ask(ctx, store, s)
		if !errors.Is(err, pawl.ErrInDoubt) {
			return receipt, err // done, or certainly not
		}
		// Something failed at a moment after which nobody can know: settle, then ask.
		if _, err := store.Recover(ctx); err != nil {
			return receipt, err
		}
		receipt, outcome, e := store.Lookup(ctx, s.id())
		if e != nil || outcome == pawl.OutcomeCommitted {
			return receipt, e
		}
		if try == 3 {
			return receipt, err
		}
	}
}

func ask(ctx context.Context, store *pawl.Store, s step) (pawl.Receipt, error) {
	if !s.counts() {
		c, err := s.change(0)
		if err != nil {
			return pawl.Receipt{}, err
		}
		return store.Commit(ctx, c)
	}
	// No other change, of whatever process, comes between what the function sees and
	// what it asks for.
	return store.Update(ctx, s.id(), func(v pawl.View) (pawl.Change, error) {
		n, _, err := pawl.GetJSON[int](v, counterPart)
		if err != nil {
			return pawl.Change{}, err
		}
		return s.change(n + 1)
	})
}

// workerMain is the worker's main function.
func workerMain() int {
	// A Ctrl-C reaches every process of a terminal; what to do about it is for the one
	// that started this one to say.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var output sync.Mutex
	tell := func(format string, args ...any) {
		output.Lock()
		defer output.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	var j job
	err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &j)
	if err == nil {
		err = work(context.Background(), j, tell)
	}
	if err != nil {
		tell("failed %q", err.Error())
		return 1
	}
	tell("done")
	return 0
}

// ---- killing them --------------------------------------------------------------

// demo does all of it.
func demo(ctx context.Context, c config, show io.Writer) (err error) {
	dir, trust := c.dir, cmp.Or(c.trust, c.dir+"-trust")
	temporary := c.dir == ""
	if temporary {
		base, err := os.MkdirTemp("", "pawl-multiwriter-")
		if err != nil {
			return err
		}
		dir, trust = filepath.Join(base, "session"), filepath.Join(base, "trust")
	}
	defer func() {
		switch {
		case temporary && (err == nil && !c.keep || ctx.Err() != nil):
			err = cmp.Or(err, os.RemoveAll(filepath.Dir(dir)))
		case err != nil:
			err = fmt.Errorf("%w\nmultiwriter: kept: the store %s\nmultiwriter: and its trust directory %s", err, dir, trust)
		}
	}()
	store, err := pawl.Open(ctx, dir, trust, nil)
	if err != nil {
		return err
	}
	had := store.View().Version().Revision
	if err := store.Close(); err != nil {
		return err
	}
	if had > 0 {
		return fmt.Errorf("there is a store in %s, which has %d commits: name another directory", dir, had)
	}

	seed := c.seed
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	fmt.Fprintf(show, "multiwriter: %d processes with %d goroutines each, %d commits each,\nmultiwriter: %d kills, seed %d\n",
		c.workers, c.goroutines, c.commits, c.kills, seed)
	start := time.Now()
	a := &account{acked: map[string]pawl.Receipt{}}
	a.progress = progress(show, a, c)
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	keepers := make([]*keeper, c.workers)
	var all sync.WaitGroup
	for i := range keepers {
		k := &keeper{account: a, kills: c.kills / c.workers, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		if i < c.kills%c.workers {
			k.kills++
		}
		k.job = job{Dir: dir, Trust: trust, Worker: i + 1, Steps: c.commits / c.goroutines,
			Next: make([]int, c.goroutines), Begun: make([]bool, c.goroutines)}
		for g := range k.job.Next {
			k.job.Next[g] = 1
		}
		keepers[i] = k
		all.Go(func() {
			if err := k.run(working); err != nil {
				cancel(fmt.Errorf("worker %d: %w", k.job.Worker, err)) // all the others end too
			}
		})
	}
	all.Wait()
	if err := context.Cause(working); err != nil {
		return err
	}
	took := time.Since(start)
	f, err := check(ctx, keepers)
	table(show, keepers, f)
	if err == nil && f.wrong != nil {
		err = errors.New(f.report())
	}
	if err != nil {
		return err
	}
	landed, notLanded, err := settled(strings.TrimSuffix(filepath.Join(trust, filepath.Base(dir)), ".trust") + ".audit")
	if err != nil {
		return err
	}
	what := "kept"
	if temporary && !c.keep {
		what = "removed now; -keep keeps it"
	}
	fmt.Fprintf(show, `
history    %d commits with %d entries, as acknowledged: none lost, none
           twice, none that nobody asked for, and each goroutine's in order
counter    %d, one for each of as many commits
kills      %d of %d
turns      %d times the next commit was another process's
settled    %d landed, %d not landed: what a kill interrupted, by the next one
time       %.1f s, %.0f commits a second
store      %s (%s)
`, f.commits, f.entries, f.counted, a.killed, c.kills, f.turns, landed, notLanded, took.Seconds(), float64(f.commits)/took.Seconds(), dir, what)
	return nil
}

// account is what was acknowledged, to whichever worker.
type account struct {
	mu       sync.Mutex
	acked    map[string]pawl.Receipt // by id
	killed   int
	progress func()
}

// keeper keeps one worker running, and kills it.
type keeper struct {
	*account
	job   job
	rng   *rand.Rand
	kills int // to be made

	commits, starts, killed int
	found, again            int // of the commits whose acknowledgement was lost
	longest                 time.Duration
	startTime, stepTime     time.Duration // about
}

// silence is how long a worker may say nothing before it is taken to hang.
const silence = time.Minute

// run starts workers until one is done.
func (k *keeper) run(ctx context.Context) error {
	k.startTime, k.stepTime = 10*time.Millisecond, 5*time.Millisecond // until known
	for {
		k.starts++
		done, err := k.life(ctx)
		if done || err != nil {
			return err
		}
		k.killed++
		k.mu.Lock()
		k.account.killed++
		k.mu.Unlock()
	}
}

// life is the life of one worker, which ends with the job done, or by the kill.
func (k *keeper) life(ctx context.Context) (done bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	j, err := json.Marshal(k.job)
	if err != nil {
		return false, err
	}
	ctx, kill := context.WithCancelCause(ctx) // which kills, whoever calls it
	defer kill(nil)
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(j))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return false, err
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	started := time.Now()
	hangs := time.AfterFunc(silence, func() { kill(fmt.Errorf("it said nothing for %v", silence)) })
	defer hangs.Stop()

	// The kill comes so many acknowledgements later, and then some time; or while the
	// worker starts and opens the store.
	after, planned := -1, errors.New("killed by plan")
	if left := k.kills - k.killed; left > 0 {
		room := 0
		for _, n := range k.job.Next {
			room += k.job.Steps + 1 - n
		}
		after = k.rng.IntN(2*room/(left+1) + 1)
		if k.rng.IntN(5) == 0 {
			defer time.AfterFunc(k.upTo(k.startTime), func() { kill(planned) }).Stop()
		}
	}
	// What a killed worker had said is heard to the end: an acknowledgement that was on
	// its way was given.
	for in := bufio.NewReader(stdout); ; {
		line, e := in.ReadString('\n')
		if e != nil {
			break // a line that is not whole was not said
		}
		hangs.Reset(silence)
		line = strings.TrimSpace(line)
		switch {
		case line == "open":
			k.startTime += (time.Since(started) - k.startTime) / 8
		case line == "done":
			done = true
		case strings.HasPrefix(line, "failed "):
			e = errors.New(strings.TrimPrefix(line, "failed "))
		default:
			e = k.heard(line)
		}
		if e != nil && err == nil {
			err = e
			kill(nil)
		}
		if strings.HasPrefix(line, "ack ") {
			if after == 0 {
				defer time.AfterFunc(k.upTo(k.stepTime), func() { kill(planned) }).Stop()
			}
			after--
		}
		k.progress()
	}
	_ = cmd.Wait() // its error is that of a kill, or is in ProcessState
	switch why := context.Cause(ctx); {
	case err != nil || done:
		return done, err
	case why == planned:
		return false, nil
	case why != nil:
		return false, why
	}
	return false, fmt.Errorf("it ended by itself (%v)", cmd.ProcessState)
}

// upTo draws a time up to a bit more than d.
func (k *keeper) upTo(d time.Duration) time.Duration {
	return time.Duration(k.rng.Float64() * 1.2 * float64(d))
}

// heard takes what a worker says of a step.
func (k *keeper) heard(line string) error {
	f := strings.Fields(line)
	if len(f) < 2 {
		return fmt.Errorf("it said %q", line)
	}
	s, err := parseStep(f[1])
	if err != nil {
		return err
	}
	if s.Worker != k.job.Worker || s.Goroutine < 1 || s.Goroutine > len(k.job.Next) || s.N != k.job.Next[s.Goroutine-1] || s.N > k.job.Steps {
		return fmt.Errorf("it said %q, and that is not its next step", line)
	}
	next, begun := &k.job.Next[s.Goroutine-1], &k.job.Begun[s.Goroutine-1]
	switch {
	case f[0] == "begin" && len(f) == 2:
		if *begun {
			k.again++
		}
		*begun = true
		return nil
	case f[0] == "ack" && len(f) == 4 && *begun:
		n, err := strconv.Atoi(f[3])
		if err != nil {
			return err
		}
		wait := time.Duration(n) * time.Microsecond
		k.longest = max(k.longest, wait)
		k.stepTime += (wait - k.stepTime) / 8
	case f[0] == "found" && len(f) == 3 && *begun:
		k.found++
	default:
		return fmt.Errorf("it said %q", line)
	}
	var r pawl.Receipt
	if err := r.UnmarshalText([]byte(f[2])); err != nil {
		return err
	}
	*next, *begun = s.N+1, false
	k.commits++
	k.mu.Lock()
	defer k.mu.Unlock()
	k.acked[s.id()] = r
	return nil
}

// progress shows how far the work is, now and then.
func progress(w io.Writer, a *account, c config) func() {
	var mu sync.Mutex
	last := time.Now()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < time.Second {
			return
		}
		last = time.Now()
		a.mu.Lock()
		defer a.mu.Unlock()
		fmt.Fprintf(w, "%6d/%d commits %5d/%d kills\n", len(a.acked), c.workers*c.commits, a.killed, c.kills)
	}
}

// ---- comparing -----------------------------------------------------------------

// finding is what check found.
type finding struct {
	wrong                    []string
	commits, entries, counts int
	counted                  int // what the counter says
	turns                    int
}

func (f *finding) wrongf(format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

// report is all that is wrong, as far as somebody would read it.
func (f *finding) report() string {
	const most = 20
	n := len(f.wrong)
	text := strings.Join(f.wrong[:min(n, most)], "\n  ")
	if n > most {
		text += fmt.Sprintf("\n  and %d more", n-most)
	}
	return fmt.Sprintf("the history is not what it should be (%d):\n  %s", n, text)
}

// check compares the history with the steps of all workers, which have to be there, and
// with what was acknowledged. Its error is for what kept it from looking.
func check(ctx context.Context, keepers []*keeper) (f finding, err error) {
	j := keepers[0].job
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{MustExist: true, LockWait: lockWait})
	if err != nil {
		return f, err
	}
	defer store.Close()
	if err := store.Verify(ctx, nil); err != nil {
		f.wrongf("%v", err)
	}
	view := store.View()
	entries := map[pawl.Revision][][]byte{}
	for e, err := range view.Entries(0) {
		if err != nil {
			return f, err
		}
		entries[e.Revision] = append(entries[e.Revision], e.Data)
		f.entries++
	}
	made := map[string]pawl.Revision{}
	last := map[string]int{} // the goroutine's last step
	before := 0              // the worker of the commit before
	for c, err := range view.Commits(0) {
		if err != nil {
			return f, err
		}
		f.commits++
		n := c.Version.Revision
		s, err := parseStep(c.ID)
		if err != nil || s.Worker < 1 || s.Worker > len(keepers) || s.Goroutine < 1 || s.Goroutine > len(j.Next) || s.N < 1 || s.N > j.Steps {
			f.wrongf("revision %d has id %q, and nobody asked for that", n, c.ID)
			continue
		}
		if first, ok := made[c.ID]; ok {
			f.wrongf("step %s was made twice, as revision %d and %d", c.ID, first, n)
		}
		made[c.ID] = n
		if s.N != last[s.ownPart()]+1 {
			f.wrongf("revision %d is step %s, and the one before it was %d", n, c.ID, last[s.ownPart()])
		}
		last[s.ownPart()] = s.N
		if s.Worker != before && before != 0 {
			f.turns++
		}
		before = s.Worker
		if s.counts() {
			f.counts++
		}
		want, err := s.change(f.counts)
		if err != nil {
			return f, err
		}
		if got, want := bytes.Join(entries[n], []byte("\n")), bytes.Join(want.Entries, []byte("\n")); !bytes.Equal(got, want) {
			f.wrongf("revision %d, step %s, has the entries\n    %.300q, and should have\n    %.300q", n, c.ID, got, want)
		}
		if len(c.Put) != 1 || want.Put[c.Put[0]] == nil || c.Deleted != nil {
			f.wrongf("revision %d, step %s, replaces the parts %q, and removes %q", n, c.ID, c.Put, c.Deleted)
		}
	}
	for id, r := range keepers[0].acked {
		switch ok, err := view.Contains(r); {
		case err != nil:
			return f, err
		case !ok || made[id] != r.Revision:
			f.wrongf("step %s was acknowledged as revision %d, and is revision %d (0: not there)", id, r.Revision, made[id])
		}
	}
	for _, k := range keepers {
		for g := range k.job.Next {
			for n := range j.Steps {
				s := step{k.job.Worker, g + 1, n + 1}
				if _, ok := keepers[0].acked[s.id()]; !ok {
					f.wrongf("step %s was never acknowledged", s.id())
				}
				if made[s.id()] == 0 {
					f.wrongf("step %s is lost", s.id())
				}
			}
			s := step{k.job.Worker, g + 1, j.Steps - j.Steps%2} // that last replaced its part
			if got, _, err := pawl.GetJSON[int](view, s.ownPart()); err != nil || got != s.N {
				f.wrongf("%s says %d, and should say %d (%v)", s.ownPart(), got, s.N, err)
			}
		}
	}
	if f.counted, _, err = pawl.GetJSON[int](view, counterPart); err != nil || f.counted != f.counts {
		f.wrongf("%s says %d, and %d commits have counted (%v)", counterPart, f.counted, f.counts, err)
	}
	return f, store.Close()
}

// settled counts in the audit file what was settled after the kills, by outcome.
func settled(audit string) (landed, notLanded int, err error) {
	b, err := os.ReadFile(audit)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	seen := map[string]bool{}
	for line := range bytes.Lines(b) {
		var l struct {
			Event, Outcome string
			Pending        pawl.Root
		}
		// A line that a kill tore is none, and one that was settled by a process that was
		// killed before it could go on is settled, and written down, once more.
		if json.Unmarshal(line, &l) != nil || l.Event != "settle" || seen[fmt.Sprint(l.Pending)] {
			continue
		}
		seen[fmt.Sprint(l.Pending)] = true
		if l.Outcome == pawl.SettledLanded.String() {
			landed++
		} else {
			notLanded++
		}
	}
	return landed, notLanded, err
}

// table shows what became of each worker.
func table(w io.Writer, keepers []*keeper, f finding) {
	fmt.Fprintf(w, "\n%8s %8s %8s %8s   %-22s %13s\n%41s %8s   %10s\n", "worker", "commits", "restarts", "kills",
		"acknowledgements lost:", "longest wait", "", "found", "made again")
	row := func(name string, k *keeper) {
		fmt.Fprintf(w, "%8s %8d %8d %8d   %8d   %10d %10d ms\n", name, k.commits, k.starts-1, k.killed, k.found, k.again, k.longest.Milliseconds())
	}
	sum := &keeper{starts: 1}
	for _, k := range keepers {
		row(strconv.Itoa(k.job.Worker), k)
		sum.commits += k.commits
		sum.starts += k.starts - 1
		sum.killed += k.killed
		sum.found += k.found
		sum.again += k.again
		sum.longest = max(sum.longest, k.longest)
	}
	row("all", sum)
}
