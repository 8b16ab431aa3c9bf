// Agent shows pawl at work, and being killed at work.
//
// A supervisor starts a worker, which is an agent that reads its way through the
// source of the Go toolchain and commits every step: an entry in the history, which
// records the tool call and its result, and the part state.json, which holds the
// cursor and the running totals. The supervisor kills it at random moments, sixty
// times, and starts it again. At the end history and state are compared with a
// fresh walk of the tree: no step lost, none twice, all totals equal.
//
// Then the agent goes on errands, whose tools act on the world outside: they write files and
// call a server. Half of them are idempotent under a key. It is killed two hundred times more,
// and none is lost, and none done twice; what is in doubt is parked, and is decided about in
// the end. The usual way, with a journal and "you may try again", runs beside it.
//
//	go run ./examples/agent
//
// agent.go and errands.go are the parts to copy from. supervise.go kills, and check.go
// compares; compare.go does both for the errands, whose world is in world.go, and whose usual
// way is in usual.go.
package main

import (
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
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(worker())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `Usage: agent [flags]

A supervisor starts an agent, which works through the Go files of a tree and commits
every step to a pawl store. It kills the agent at random moments, starts it again,
and compares history and state with a fresh walk of the tree at the end. Then the agent
does errands with effects outside of the store, and is killed meanwhile; and the same
the usual way, to compare.

Exit code 0: no step was lost, none was done twice, all totals are equal, and intents
that kills had left were settled (demanded from %d kills on); with pawl, no errand was
lost and none repeated.
1: any difference, or another failure; the directories are kept. 2: bad usage.
130: interrupted.

Flags:
`

// config is what the flags say.
type config struct {
	kills, files     int
	errands          int
	errandKills      int
	seed             uint64
	tree, dir, trust string
	json, keep       bool
}

// errUsage is an error that was reported already.
var errUsage = errors.New("usage")

func parse(args []string, stdout, stderr io.Writer) (c config, err error) {
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&c.kills, "kills", 60, "kill the agent `n` times; a few more if only then both kinds of settles occur")
	f.Uint64Var(&c.seed, "seed", 0, "draw the moments of the kills from this `number`; 0: another one each time")
	f.IntVar(&c.files, "files", 3000, "work on the first `n` Go files of the tree")
	f.IntVar(&c.errands, "errands", 400, "then do `n` errands with effects outside; 0: none")
	f.IntVar(&c.errandKills, "errand-kills", defaultErrandKills, "and kill the agent `n` times meanwhile")
	f.StringVar(&c.tree, "tree", "", "work on this `directory`; default: what \"go env GOROOT\" says")
	f.StringVar(&c.dir, "dir", "", "store `directory`; one that exists is gone on with; default: a new one, removed if all is well")
	f.StringVar(&c.trust, "trust", "", "trust `directory`; default: the store directory's name and \"-trust\"")
	f.BoolVar(&c.keep, "keep", false, "keep the new directories in any case")
	f.BoolVar(&c.json, "json", false, "print a summary as JSON on standard output, and the rest on standard error")
	err = f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, usage, bothFrom)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return c, err
	case err != nil:
	case f.NArg() > 0:
		err = fmt.Errorf("what is %q?", f.Arg(0))
	case c.kills < 0 || c.errands < 0 || c.errandKills < 0:
		err = errors.New("-kills, -errands or -errand-kills is negative")
	case c.files < 1:
		err = errors.New("-files is less than 1")
	case c.trust != "" && c.dir == "":
		err = errors.New("-trust needs -dir")
	default:
		return c, nil
	}
	fmt.Fprintf(stderr, "agent: %v\nagent -h lists the flags.\n", err)
	return c, errUsage
}

// summary is what -json prints.
type summary struct {
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`

	Tree  string `json:"tree"`
	Files int    `json:"files"` // steps that the store holds
	Lines int64  `json:"lines"`
	Bytes int64  `json:"bytes"`

	Resumed    int    `json:"resumed"` // of the steps, those that were there at the start
	Seed       uint64 `json:"seed"`
	Kills      int    `json:"kills"`
	Landed     int    `json:"settled_landed"`
	NotLanded  int    `json:"settled_not_landed"`
	Unreported int    `json:"settled_unreported"` // by workers that were killed before they could say so
	Nothing    int    `json:"settled_nothing"`    // unclean, but with no intent
	Unclean    int    `json:"unclean_opens"`

	Seconds          float64 `json:"seconds"`
	CommitsPerSecond float64 `json:"commits_per_second"`

	Errands []errandRow `json:"errands,omitempty"`

	Dir   string `json:"dir"`
	Trust string `json:"trust"`
	Kept  bool   `json:"kept"`
}

// stopped is a signal that asked for an end.
type stopped struct{ os.Signal }

func (s stopped) Error() string { return "stopped by a signal: " + s.String() }

func run(args []string, stdout, stderr io.Writer) (code int) {
	c, err := parse(args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case sig := <-signals:
			cancel(stopped{sig})
		case <-ctx.Done():
		}
	}()

	show := stdout
	if c.json {
		show = stderr
	}
	var sum summary
	err = demo(ctx, c, &sum, show)
	sum.OK = err == nil
	var stop stopped
	switch {
	case errors.As(err, &stop):
		code = 130
		if stop.Signal == syscall.SIGTERM {
			code = 143
		}
	case err != nil:
		code = 1
	}
	if err != nil {
		sum.Problem = strings.TrimSpace(err.Error())
		fmt.Fprintf(stderr, "agent: %s\n", sum.Problem)
	}
	if err := cleanUp(c, &sum, code); err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
	}
	if code != 0 && sum.Kept {
		fmt.Fprintf(stderr, "agent: kept: the store %s and its trust directory %s\n", sum.Dir, sum.Trust)
	}
	if c.json {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(&sum); err != nil {
			return cmp.Or(code, 1)
		}
	}
	return code
}

// demo does all of it, and fills in the summary as far as it comes.
func demo(ctx context.Context, c config, sum *summary, show io.Writer) (err error) {
	start := time.Now()
	if c.tree == "" {
		if c.tree, err = goroot(ctx); err != nil {
			return err
		}
	}
	files, err := list(c.tree, c.files)
	if err != nil {
		return err
	}
	if sum.Dir, sum.Trust, err = c.directories(); err != nil {
		return err
	}
	if c.seed == 0 {
		c.seed = uint64(rand.Uint32())
	}
	sum.Tree, sum.Seed = c.tree, c.seed

	// What is there already, if -dir names a store. Inspect changes nothing.
	before, err := pawl.Inspect(ctx, sum.Dir, sum.Trust, nil)
	if err != nil {
		return err
	}
	if before.Err != nil {
		return before.Err
	}
	audit := strings.TrimSuffix(before.Trust, ".trust") + ".audit"
	auditBefore, err := readAudit(audit)
	if err != nil {
		return err
	}
	s := &supervisor{
		job:   job{Dir: sum.Dir, Trust: sum.Trust, Tree: c.tree, Files: c.files},
		steps: len(files), done: int(before.Confirmed.Revision),
		rng: rand.New(rand.NewPCG(c.seed, 0)), progress: progress(show),
	}
	sum.Resumed = s.done
	left := max(0, s.steps-s.done)
	s.kills = min(c.kills, left/4)
	fmt.Fprintf(show, "agent: %d Go files of %s, one commit for each; %d kills, seed %d\n", s.steps, c.tree, s.kills, c.seed)
	if s.done > 0 {
		fmt.Fprintf(show, "agent: going on with the store in %s, which has %d steps\n", sum.Dir, s.done)
	}
	if s.kills < c.kills && left > 0 {
		fmt.Fprintf(show, "agent: %d kills are what %d steps have room for\n", s.kills, left)
	}

	err = s.run(ctx)
	s.progress(s, true)
	sum.Kills, sum.Unclean = s.killed, s.unclean
	sum.Landed, sum.NotLanded, sum.Nothing = s.found[landed], s.found[notLanded], s.found[nothing]
	sum.Files = s.done
	sum.Seconds = time.Since(start).Seconds()
	sum.CommitsPerSecond = float64(len(s.acked)) / sum.Seconds
	if err != nil {
		return err
	}
	v, err := check(ctx, s.job, s.acked, s.settled, audit, len(auditBefore))
	if err != nil {
		return err
	}
	sum.Lines, sum.Bytes, sum.Unreported = v.sum.Lines, v.sum.Bytes, v.unreported
	sum.Seconds = time.Since(start).Seconds()
	if wrong := v.report(); wrong != "" {
		return errors.New(wrong)
	}
	what := "removed now; -keep keeps it"
	if !c.temporary() {
		what = "kept"
	}
	fmt.Fprintf(show, `
steps      %d: none lost, none twice, in order
totals     %d lines, %d bytes: equal in history, state and tree
kills      %d of %d
settled    %d landed, %d not landed, as reported by the workers after them,
           and %d by workers that were killed before they could report it
nothing    to settle after %d kills
unclean    %d opens
time       %.1f s, %.0f commits a second
store      %s (%s)
trust      %s
`, v.sum.Files, v.sum.Lines, v.sum.Bytes, sum.Kills, s.kills, sum.Landed, sum.NotLanded, sum.Unreported,
		sum.Nothing, sum.Unclean, sum.Seconds, sum.CommitsPerSecond, sum.Dir, what, sum.Trust)
	if c.errands == 0 {
		return nil
	}
	base, err := os.MkdirTemp("", "pawl-errands-")
	if err != nil {
		return err
	}
	sum.Errands, err = compare(ctx, base, c.errands, c.errandKills, s.rng, show)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w (kept: %s)", err, base)
	}
	return errors.Join(err, os.RemoveAll(base))
}

// defaultErrandKills: a process takes long to start on Windows, and longer under Wine.
var defaultErrandKills = map[bool]int{true: 10, false: 200}[runtime.GOOS == "windows"]

// temporary says that the directories are to be removed if all is well.
func (c config) temporary() bool { return c.dir == "" && !c.keep }

// directories names the two directories, and makes a place for new ones.
func (c config) directories() (dir, trust string, err error) {
	if c.dir == "" {
		base, err := os.MkdirTemp("", "pawl-agent-")
		return filepath.Join(base, "session"), filepath.Join(base, "trust"), err
	}
	if dir, err = filepath.Abs(c.dir); err != nil {
		return "", "", err
	}
	trust, err = filepath.Abs(cmp.Or(c.trust, dir+"-trust"))
	return dir, trust, err
}

// cleanUp removes what directories made, unless something went wrong.
func cleanUp(c config, sum *summary, code int) error {
	sum.Kept = sum.Dir != ""
	if !sum.Kept || !c.temporary() || code == 1 {
		return nil
	}
	if err := os.RemoveAll(filepath.Dir(sum.Dir)); err != nil {
		return fmt.Errorf("not all was removed: %w", err)
	}
	sum.Kept = false
	return nil
}

// goroot finds the source of the Go toolchain.
func goroot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		root = os.Getenv("GOROOT")
	}
	if root == "" {
		return "", fmt.Errorf("there is no Go toolchain to read (%w); -tree names another tree", cmp.Or(err, errors.New("it has no GOROOT")))
	}
	return root, nil
}

// progress shows how far the work is: in place on a terminal, else as a line now and
// then.
func progress(w io.Writer) func(*supervisor, bool) {
	terminal := false
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	every, format := time.Second, "%s\n"
	if terminal {
		every, format = 100*time.Millisecond, "\r%-78s"
	}
	last := time.Now()
	return func(s *supervisor, final bool) {
		if !final && time.Since(last) < every {
			return
		}
		last = time.Now()
		fmt.Fprintf(w, format, fmt.Sprintf("%5d/%d steps  %3d/%d kills  settled: %d landed, %d not landed",
			s.done, s.steps, s.killed, s.kills, s.found[landed], s.found[notLanded]))
		if final && terminal {
			fmt.Fprintln(w)
		}
	}
}
