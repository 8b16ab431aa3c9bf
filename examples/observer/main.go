// Observer shows a reader that follows a store while its writer is at work, and dies.
//
// It starts a writer, which is a process of its own that commits entries, kills it with
// SIGKILL (TerminateProcess on Windows) a few times, and starts it again. Meanwhile it
// reads the store with pawl.OpenReader, which takes no lock and is in nobody's way, and
// prints a line for each state that Watch yields. In the end it looks for every entry
// that a writer has acknowledged in the last state.
//
//	go run ./examples/observer
//	go run ./examples/observer -dir session -trust trust    # follows another program
//
// follow is the part to copy from. What is below it writes, kills and compares.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

func main() {
	if os.Getenv(writerEnv) != "" {
		os.Exit(writer())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `Usage: observer [flags]

With -dir it follows the store of another program and prints a line for each state,
until it is interrupted or -n or -for ends it. Without, it shows how: it starts a
writer, kills it a few times, starts it again, and follows what it does.

Exit code 0: all went well; without -dir, every entry that the writer acknowledged
was seen. 1: one was not, or the states went backwards, or another failure; new
directories are kept. 2: bad usage. 130: interrupted without -dir.

Flags:
`

// config is what the flags say.
type config struct {
	dir, trust     string
	states         int
	period         time.Duration
	commits, kills int
	seed           uint64
}

// errUsage is an error that was reported already.
var errUsage = errors.New("usage")

func parse(args []string, stdout, stderr io.Writer) (c config, err error) {
	f := flag.NewFlagSet("observer", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.dir, "dir", "", "follow the store in this `directory`; default: a new one, with a writer")
	f.StringVar(&c.trust, "trust", "", "its trust `directory`; default: the store directory's name and \"-trust\"")
	f.IntVar(&c.states, "n", 0, "with -dir: end after `n` states")
	f.DurationVar(&c.period, "for", 0, "end after this `time`")
	f.IntVar(&c.commits, "commits", 60, "without -dir: `n` entries are written")
	f.IntVar(&c.kills, "kills", 4, "without -dir: kill the writer `n` times")
	f.Uint64Var(&c.seed, "seed", 0, "draw the moments of the kills from this `number`; 0: another one each time")
	err = f.Parse(args)
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return c, err
	case err != nil:
	case f.NArg() > 0:
		err = fmt.Errorf("what is %q?", f.Arg(0))
	case c.states < 0 || c.period < 0 || c.kills < 0 || c.commits < 1:
		err = errors.New("-n, -for and -kills cannot be negative, and -commits is at least 1")
	case c.dir == "" && (given["trust"] || given["n"]):
		err = errors.New("-trust and -n need -dir")
	case c.dir != "" && (given["commits"] || given["kills"] || given["seed"]):
		err = errors.New("with -dir there is no writer to kill")
	default:
		c.trust = cmp.Or(c.trust, c.dir+"-trust")
		return c, nil
	}
	fmt.Fprintf(stderr, "observer: %v\nobserver -h lists the flags.\n", err)
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
	show := &screen{w: stdout}
	if c.dir == "" {
		err = demo(ctx, c, show)
	} else {
		err = watchOnly(ctx, c, show)
	}
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "observer: interrupted")
		return 130
	}
	fmt.Fprintf(stderr, "observer: %v\n", err)
	return 1
}

// screen prints lines, for whoever has one.
type screen struct {
	mu sync.Mutex
	w  io.Writer
}

// line prints a line of at most 79 columns.
func (s *screen) line(format string, args ...any) {
	text := []rune(fmt.Sprintf(format, args...))
	if len(text) > 79 {
		text = append(text[:78], '…')
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.w, string(text))
}

// ---- following -----------------------------------------------------------------

// patience is how long a reader waits for a commit that is being written before it says
// that nobody is there to finish it. It is short, so that this can be seen.
const patience = 150 * time.Millisecond

// observer follows one store.
type observer struct {
	reader *pawl.Reader
	show   *screen
	last   pawl.Version // of the state that was shown last
	seq    pawl.Seq     // of its newest entry
	states int
}

// follow shows each state, until ctx ends or it has shown so many; 0 is no limit.
func (o *observer) follow(ctx context.Context, most int) error {
	for view, err := range o.reader.Watch(ctx, o.last.Revision) {
		if err != nil {
			// The store cannot be read at this moment. Watch looks again, and goes on
			// with the next state when there is one.
			o.show.line("%s", problem(err))
			continue
		}
		if err := o.see(view); err != nil {
			return err
		}
		if o.states == most {
			break
		}
	}
	return nil
}

// open waits until there is a store to read.
func (o *observer) open(ctx context.Context, dir, trust string) error {
	told := ""
	for {
		var err error
		o.reader, err = pawl.OpenReader(ctx, dir, trust, &pawl.Options{LockWait: patience})
		if !errors.Is(err, pawl.ErrNotExist) && !errors.Is(err, pawl.ErrUnsettled) {
			return err
		}
		if say := problem(err); say != told {
			o.show.line("%s", say)
			told = say
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// see shows a state, and holds it against the one before: it has to be newer, and to go
// on from there.
func (o *observer) see(view pawl.View) error {
	now := view.Version()
	if now.Revision <= o.last.Revision {
		return fmt.Errorf("backwards: revision %d after %d", now.Revision, o.last.Revision)
	}
	if o.states > 0 {
		switch ok, err := view.Contains(pawl.Receipt{Version: o.last}); {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("revision %d does not go on from the state that was revision %d", now.Revision, o.last.Revision)
		}
	}
	newest := "no new entry"
	for e, err := range view.Entries(o.seq) {
		if err != nil {
			return err
		}
		o.seq = e.Seq
		newest = fmt.Sprintf("entry %d: %.60q", e.Seq, e.Data)
	}
	if skipped := now.Revision - o.last.Revision - 1; skipped > 0 && o.states > 0 {
		newest += fmt.Sprintf(" (%d skipped)", skipped)
	}
	o.show.line("revision %5d   %s", now.Revision, newest)
	o.last = now
	o.states++
	return nil
}

// problem says in a few words why the store cannot be read at the moment.
func problem(err error) string {
	var e *pawl.Error
	switch {
	case errors.Is(err, pawl.ErrUnsettled):
		return "                 (a commit was begun, and nobody is there to finish it)"
	case errors.Is(err, pawl.ErrNotExist):
		return "                 (there is no store yet)"
	case errors.As(err, &e) && e.Kind != nil:
		return fmt.Sprintf("                 (%v)", e.Kind)
	}
	return fmt.Sprintf("                 (%v)", err)
}

// watchOnly follows the store of another program.
func watchOnly(ctx context.Context, c config, show *screen) error {
	if c.period > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, c.period)
		defer cancel()
	}
	o := &observer{show: show}
	err := o.open(ctx, c.dir, c.trust)
	if err == nil {
		defer o.reader.Close()
		err = o.follow(ctx, c.states)
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		err = nil // that it ends is what was asked for
	}
	if err == nil {
		show.line("observer: %d states, the last is revision %d", o.states, o.last.Revision)
	}
	return err
}

// sleep reports false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// ---- the writer ----------------------------------------------------------------

// writerEnv makes this program the writer, and holds its job. It writes until its
// standard input ends, which also happens when whoever started it is gone.
const writerEnv = "PAWL_EXAMPLE_WRITER"

type job struct {
	Dir, Trust string
	Writer     int // so many were there before, and this one
	Commits    int // to be made by all of them
}

// pause is how long the writer does nothing between two commits, on average.
const pause = 20 * time.Millisecond

// writer is the writer's main function. It says "begin" before each commit and "ack"
// and the receipt after it.
func writer() int {
	// A Ctrl-C reaches every process of a terminal; what to do about it is for the
	// observer to say.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var j job
	err := json.Unmarshal([]byte(os.Getenv(writerEnv)), &j)
	if err == nil {
		err = write(ctx, j)
	}
	if err != nil {
		fmt.Printf("failed %q\n", err.Error())
		return 1
	}
	fmt.Println("done")
	return 0
}

func write(ctx context.Context, j job) error {
	// One that was killed may take a moment to be gone.
	store, err := pawl.Open(context.Background(), j.Dir, j.Trust, &pawl.Options{LockWait: 10 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	for ctx.Err() == nil {
		n, _, err := pawl.GetJSON[int](store.View(), "entries")
		if err != nil {
			return err
		}
		if n >= j.Commits {
			break
		}
		n++
		c := pawl.Change{ID: fmt.Sprintf("entry-%d", n), Entries: [][]byte{[]byte(entry(n, j.Writer))}}
		c.SetJSON("entries", n)
		fmt.Println("begin")
		receipt, err := store.Commit(context.Background(), c)
		if err != nil {
			return err
		}
		fmt.Println("ack", receipt)
		sleep(ctx, rand.N(2*pause))
	}
	return store.Close()
}

func entry(n, writer int) string { return fmt.Sprintf("step %d, by writer %d", n, writer) }

// ---- killing it ----------------------------------------------------------------

// demo follows a writer that it kills.
func demo(ctx context.Context, c config, show *screen) (err error) {
	base, err := os.MkdirTemp("", "pawl-observer-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(base))
		} else {
			err = fmt.Errorf("%w\nobserver: kept: %s", err, base)
		}
	}()
	k := &keeper{
		job:  job{Dir: filepath.Join(base, "session"), Trust: filepath.Join(base, "trust"), Commits: c.commits},
		show: show, kills: c.kills, step: 2 * time.Millisecond,
	}
	seed := c.seed
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	k.rng = rand.New(rand.NewPCG(seed, 0))
	show.line("observer: %d commits, %d kills, seed %d", c.commits, c.kills, seed)

	// While the writer lives and dies, the observer watches.
	watching, stop := context.WithCancel(ctx)
	defer stop()
	written := make(chan error, 1)
	go func() {
		defer stop()
		written <- k.run(ctx, c.period)
	}()
	o := &observer{show: show}
	err = o.open(watching, k.job.Dir, k.job.Trust)
	if err == nil {
		defer o.reader.Close()
		err = o.follow(watching, 0)
	}
	followed := watching.Err() != nil // to the end
	stop()
	if e := <-written; e != nil || !followed {
		return cmp.Or(e, err)
	}
	if o.reader == nil { // all was over before there was a store to open
		if err := o.open(ctx, k.job.Dir, k.job.Trust); err != nil {
			return err
		}
		defer o.reader.Close()
	}
	// All is written: the next state is the last.
	if err := o.reader.Refresh(ctx); err != nil {
		return err
	}
	if view := o.reader.View(); view.Version().Revision != o.last.Revision {
		if err := o.see(view); err != nil {
			return err
		}
	}
	if err := compare(o.reader.View(), k.acked); err != nil {
		return err
	}
	show.line("observer: all %d acknowledged entries were seen, in %d states, %d kills", len(k.acked), o.states, k.killed)
	return nil
}

// compare looks for all that was acknowledged in a view, whose entries have to be the
// steps of the writers: in order, none twice, none missing.
func compare(view pawl.View, acked []pawl.Receipt) error {
	for _, r := range acked {
		switch ok, err := view.Contains(r); {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("entry %d was acknowledged as revision %d, and was not seen", r.FirstSeq, r.Revision)
		}
	}
	n := 0
	for e, err := range view.Entries(0) {
		if err != nil {
			return err
		}
		n++
		var step, by int
		if _, err := fmt.Sscanf(string(e.Data), "step %d, by writer %d", &step, &by); err != nil || step != n || int(e.Revision) != n {
			return fmt.Errorf("entry %d of revision %d is %q", e.Seq, e.Revision, e.Data)
		}
	}
	return nil
}

// keeper keeps a writer running, and kills it.
type keeper struct {
	job    job
	show   *screen
	rng    *rand.Rand
	kills  int // to be made
	killed int
	acked  []pawl.Receipt
	step   time.Duration // from "begin" to "ack", about
}

// run starts writers until one is done. It lets the last one end after so long, if that
// is not 0.
func (k *keeper) run(ctx context.Context, period time.Duration) error {
	over := make(chan struct{})
	if period > 0 {
		defer time.AfterFunc(period, func() { close(over) }).Stop()
	}
	for {
		k.job.Writer++
		done, err := k.life(ctx, over)
		if done || err != nil {
			return err
		}
		k.killed++
		k.show.line("writer %d was killed: %d entries are acknowledged", k.job.Writer, len(k.acked))
		// Long enough for the observer to find that nobody is there.
		if !sleep(ctx, 4*patience) {
			return context.Cause(ctx)
		}
	}
}

// life is the life of one writer, which ends with all written, or by a kill.
func (k *keeper) life(ctx context.Context, over <-chan struct{}) (done bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	j, err := json.Marshal(k.job)
	if err != nil {
		return false, err
	}
	// Killed when ctx ends, too.
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), writerEnv+"="+string(j))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return false, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	k.show.line("writer %d starts", k.job.Writer)
	asked := make(chan struct{})
	defer close(asked)
	go func() {
		select {
		case <-over:
		case <-asked:
		}
		stdin.Close()
	}()

	// The kill comes in the middle of a commit, or about there.
	after := -1
	if left := k.kills - k.killed; left > 0 {
		room := max(0, k.job.Commits-k.job.Commits/5-len(k.acked))
		after = k.rng.IntN(2*room/left + 1)
	}
	shot := false
	var begun time.Time
	for in := bufio.NewReader(stdout); ; {
		line, e := in.ReadString('\n')
		if e != nil {
			break // a line that is not whole was not said
		}
		switch what, rest, _ := strings.Cut(strings.TrimSpace(line), " "); what {
		case "begin":
			begun = time.Now()
			if after == 0 {
				shot = true
				defer time.AfterFunc(time.Duration(k.rng.Float64()*1.2*float64(k.step)), kill).Stop()
			}
			after--
		case "ack":
			k.step += (time.Since(begun) - k.step) / 8
			var r pawl.Receipt
			if e := r.UnmarshalText([]byte(rest)); e != nil && err == nil {
				err = e
			}
			k.acked = append(k.acked, r)
		case "done":
			done = true
		case "failed":
			err = fmt.Errorf("writer %d: %s", k.job.Writer, rest)
		default:
			err = fmt.Errorf("writer %d said %q", k.job.Writer, line)
		}
	}
	_ = cmd.Wait() // its error is that of a kill, or is in ProcessState
	switch {
	case err != nil || done:
		return done, err
	case shot:
		return false, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	}
	return false, fmt.Errorf("writer %d ended by itself (%v)", k.job.Writer, cmd.ProcessState)
}
