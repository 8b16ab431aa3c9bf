package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// This file starts the agent as a process of its own, kills it at random moments,
// starts it again, and holds what each new process finds against what the one before
// had acknowledged.

// workerEnv makes this program the worker. Its job comes as the first line of
// standard input; its reports go to standard output.
const workerEnv = "PAWL_EXAMPLE_WORKER"

// silence is how long a worker may say nothing before it is taken to hang.
const silence = time.Minute

// worker is the worker's main function.
func worker() int {
	// A Ctrl-C reaches every process of a terminal. What to do about it is the
	// supervisor's decision. (On Windows, signal.Ignore would not do.)
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	out := json.NewEncoder(os.Stdout)
	tell := func(m message) {
		if err := out.Encode(m); err != nil {
			os.Exit(workerFailed) // nobody listens
		}
	}
	var j job
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &j)
	}
	// The other end of standard input is held by the supervisor and nobody else. When
	// it ends, the supervisor is gone, however it went, and so is the reason to run.
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(workerFailed)
	}()
	if err == nil {
		err = j.run(context.Background(), tell)
	}
	if err != nil {
		tell(message{Event: "failed", Error: err.Error()})
		return workerFailed
	}
	tell(message{Event: "done"})
	return 0
}

const workerFailed = 3

// supervisor kills workers, and keeps the account.
type supervisor struct {
	job      job
	kills    int // to be made
	steps    int // to be made in all
	rng      *rand.Rand
	progress func(*supervisor, bool)

	acked     []pawl.Receipt // by step, as far as this supervisor was told
	done      int            // steps that are in the store for certain
	killed    int
	opens     int
	unclean   int
	found     map[string]int // what opens after a kill settled
	settled   []message      // opens that settled something
	startTime time.Duration  // from the start of a worker to its report that the store is open
	stepTime  time.Duration  // from one step to the next

	aims map[string]*aim // see hunt
	last *shot           // at the worker before
}

// The outcomes of a settle, as pawl names them.
var (
	nothing   = pawl.SettledNothing.String()
	landed    = pawl.SettledLanded.String()
	notLanded = pawl.SettledNotLanded.String()
)

// shot is a kill: when it is to come, and what the store was like at the time.
type shot struct {
	opening bool          // while the store is being opened; else after a step
	steps   int           // how many more steps to wait for
	delay   time.Duration // after the start, or after the last of these steps
	hunted  string        // the outcome that is hoped for
	at      int           // done, when the delay began
}

// bothFrom: when at least so many kills are asked for, at least so many must be made, and
// intents must be left to settle. Both kinds are hunted for; the time in which a kill
// leaves one that lands is that of one flush, so chance may be against it.
const bothFrom = 20

// mostExtra bounds how many kills are added for the sake of both kinds.
const mostExtra = 100

// next draws the moment of the next kill; nil lets the worker finish.
func (s *supervisor) next() *shot {
	left := s.kills - s.killed
	missing := s.found[landed] == 0 || s.found[notLanded] == 0
	if left <= 0 {
		if !missing || s.kills < bothFrom || left <= -mostExtra {
			return nil
		}
		return s.hunt(1 + s.rng.IntN(2))
	}
	// Spread over the work, but for a rest at the end. While one kind is missing, few steps
	// are given away: kills on top may be needed, and work for them.
	room := max(0, s.steps-s.steps/5-s.done)
	steps := s.rng.IntN(2*room/left + 1)
	if missing {
		steps = min(steps, s.rng.IntN(3))
	}
	switch s.rng.IntN(5) {
	case 0:
		// Being killed in recovery is part of the job.
		return &shot{opening: true, delay: s.upTo(1.2, s.startTime)}
	case 1, 2:
		return &shot{steps: steps, delay: s.upTo(1.2, s.stepTime)}
	default:
		return s.hunt(max(1, steps))
	}
}

// aim is where in a step one kind of settled intents is looked for.
type aim struct {
	at   float64 // in times of stepTime
	step float64 // by which the next kill may correct it
}

// hunt aims at the kind of settled intents that is rarer so far. In the course of a
// step the outcomes of a kill follow one another: nothing to settle, not landed,
// landed, nothing to settle and one step more. The moments of the third can be very
// short: on a RAM disk, where flushes take no time, some microseconds. So a kill that
// came too early for what was hunted makes the next one come later, and the other way
// round.
func (s *supervisor) hunt(steps int) *shot {
	kind := landed
	if s.found[notLanded] < s.found[landed] {
		kind = notLanded
	}
	if s.aims == nil {
		s.aims = map[string]*aim{notLanded: {0.4, 0.1}, landed: {0.8, 0.1}}
	}
	at := s.aims[kind].at + 0.1*(s.rng.Float64()-0.5)
	return &shot{steps: steps, delay: time.Duration(at * float64(s.stepTime)), hunted: kind}
}

// adjust corrects the aim by what the next worker found after the kill.
func (s *supervisor) adjust(settled string, revision int) {
	if s.last == nil || s.last.hunted == "" {
		return
	}
	order := map[string]int{nothing: 0, notLanded: 1, landed: 2}
	got, before := order[settled], revision
	if settled == landed {
		before--
	}
	if before > s.last.at {
		got = 3 // the step was over, and this is of a later one
	}
	a := s.aims[s.last.hunted]
	switch want := order[s.last.hunted]; {
	case got < want:
		a.at = min(a.at+a.step, 2)
	case got > want:
		a.at = max(a.at-a.step, 0)
	}
	a.step = max(0.9*a.step, 0.02)
}

// upTo draws a duration between 0 and so many times d.
func (s *supervisor) upTo(times float64, d time.Duration) time.Duration {
	return time.Duration(s.rng.Float64() * times * float64(d))
}

// run starts workers until one of them is done.
func (s *supervisor) run(ctx context.Context) error {
	s.found = map[string]int{}
	s.startTime, s.stepTime = 5*time.Millisecond, time.Millisecond // until known
	for {
		kill := s.next()
		finished, err := s.life(ctx, kill)
		s.last = kill
		switch {
		case err != nil:
			return err
		case !finished:
			s.killed++
		case s.kills < bothFrom:
			return nil
		case s.killed < bothFrom:
			return fmt.Errorf("the work was done after %d of %d kills: give more -files, or fewer -kills", s.killed, s.kills)
		case s.found[landed]+s.found[notLanded] == 0:
			return fmt.Errorf("%d kills, and none of them left an intent to settle", s.killed)
		default:
			return nil
		}
	}
}

// life is the life of one worker, which ends with the job done, or by the kill.
func (s *supervisor) life(ctx context.Context, kill *shot) (finished bool, err error) {
	cmd, stdin, lines, err := s.start()
	if err != nil {
		return false, err
	}
	defer stdin.Close()
	var end error // why it was killed, when not by plan
	dead := false
	shoot := func(why error) {
		if end == nil {
			end = why
		}
		if !dead {
			dead = true
			_ = cmd.Process.Kill() // fails if it has just ended by itself
		}
	}

	// What a killed worker had said is heard to the end: an acknowledgement that was
	// on its way was given.
	started := time.Now()
	stepped := time.Time{}
	var fuse <-chan time.Time
	if kill != nil && kill.opening {
		fuse = time.After(kill.delay)
	}
	cancelled := ctx.Done()
	watch := time.NewTimer(silence)
	defer watch.Stop()
	for lines != nil {
		select {
		case line, ok := <-lines:
			if !ok {
				lines = nil
				break
			}
			now := time.Now()
			watch.Reset(silence)
			var m message
			if err := json.Unmarshal(line, &m); err != nil {
				shoot(fmt.Errorf("the worker said %q: %w", line, err))
				break
			}
			switch m.Event {
			case "opened":
				average(&s.startTime, now.Sub(started))
				err = s.hasOpened(m)
			case "step":
				if !stepped.IsZero() {
					average(&s.stepTime, now.Sub(stepped))
				}
				stepped = now
				err = s.hasStepped(m)
			case "done":
				finished = true
			case "failed":
				err = errors.New(m.Error)
			}
			if err != nil {
				shoot(err)
				break
			}
			if kill != nil && !kill.opening && fuse == nil && m.Event != "done" {
				if kill.steps == 0 {
					kill.at = s.done
					fuse = time.After(kill.delay)
				}
				kill.steps--
			}
			s.progress(s, false)
		case <-fuse:
			shoot(nil)
		case <-cancelled:
			cancelled = nil
			shoot(context.Cause(ctx))
		case <-watch.C:
			shoot(fmt.Errorf("the worker said nothing for %v", silence))
		}
	}
	_ = cmd.Wait() // its error is that of a kill, or is in ProcessState
	switch {
	case end != nil:
		return false, end
	case finished:
		return true, nil
	case dead:
		return false, nil
	}
	// A Ctrl-C can end a worker that has only just started before it is heard of here.
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return false, fmt.Errorf("the worker ended by itself (%v)", cmd.ProcessState)
	}
}

// start starts a worker on what is left to do.
func (s *supervisor) start() (*exec.Cmd, io.Closer, <-chan []byte, error) {
	if n := len(s.acked); n > 0 {
		s.job.Kept = s.acked[n-1]
	}
	return startWorker(s.job)
}

// startWorker starts a worker and gives it its job. Its reports come as lines.
func startWorker(j job) (*exec.Cmd, io.Closer, <-chan []byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	b, err := json.Marshal(j)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, err
	}
	_, _ = stdin.Write(append(b, '\n')) // a worker that is gone by now is found to be
	lines := make(chan []byte)
	go func() {
		defer close(lines)
		for in := bufio.NewReader(stdout); ; {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return // a line that is not whole was not said
			}
			lines <- line
		}
	}()
	return cmd, stdin, lines, nil
}

// hasOpened holds what a new worker found against what the ones before had told.
func (s *supervisor) hasOpened(m message) error {
	s.opens++
	now := int(m.Revision) // each step is one commit
	// What is acknowledged is there. Beyond that there is at most the one step whose
	// acknowledgement was lost, and it is what the settling said it is.
	ok := now == s.done || now == s.done+1 && s.killed > 0
	switch m.Settled {
	case landed:
		ok = now == s.done+1
	case notLanded:
		ok = now == s.done
	}
	if !ok {
		return fmt.Errorf("revision %d was acknowledged, and after a kill the store opened at revision %d (settled: %s)", s.done, now, m.Settled)
	}
	if m.AuditLost != "" {
		return fmt.Errorf("no audit line was written: %s", m.AuditLost)
	}
	s.adjust(m.Settled, now)
	s.done = now
	if m.Unclean {
		s.unclean++
		s.found[m.Settled]++
	}
	if m.Settled != nothing {
		s.settled = append(s.settled, m)
	}
	return nil
}

// hasStepped takes an acknowledgement.
func (s *supervisor) hasStepped(m message) error {
	if m.Receipt == nil || int(m.Receipt.Revision) != s.done+1 {
		return fmt.Errorf("after step %d the worker acknowledged %v", s.done, m.Receipt)
	}
	s.acked = append(s.acked, *m.Receipt)
	s.done++
	return nil
}

// average moves a running average.
func average(avg *time.Duration, d time.Duration) { *avg += (d - *avg) / 8 }
