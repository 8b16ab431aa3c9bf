package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// This file kills the agent while it is on its errands, with pawl and the usual way, looks at
// what really happened, and decides about what is in doubt as a person would.

// errandRow is what became of the errands, one way.
type errandRow struct {
	Way      string `json:"way"`
	Errands  int    `json:"errands"`
	Kills    int    `json:"kills"`
	Parked   int    `json:"parked"`   // in doubt after the kills: listed, and not tried again
	Lost     int    `json:"lost"`     // did not happen, and nobody says so
	Repeated int    `json:"repeated"` // happened more than once
}

func (r errandRow) String() string {
	return fmt.Sprintf("%-14s %8d %6d %7d %5d %9d", r.Way, r.Errands, r.Kills, r.Parked, r.Lost, r.Repeated)
}

const errandHead = "               errands  kills  parked  lost  repeated"

// compare does so many errands both ways, killed so many times each.
func compare(ctx context.Context, base string, errands, kills int, rng *rand.Rand, show io.Writer) ([]errandRow, error) {
	fmt.Fprintf(show, "\nagent: %d errands with effects outside, %d kills; then the same the usual way\n", errands, kills)
	var rows []errandRow
	for _, way := range []string{"with effect.Do", "the usual way"} {
		row := errandRow{Way: way, Errands: errands}
		if err := row.run(ctx, filepath.Join(base, fmt.Sprint("errands", len(rows)+1)), kills, rng, len(rows) == 1); err != nil {
			return rows, fmt.Errorf("%s: %w", way, err)
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(show, "%s\n%s\n%s\n", errandHead, rows[0], rows[1])
	if r := rows[0]; r.Lost+r.Repeated > 0 {
		return rows, fmt.Errorf("%d errands were lost and %d repeated", r.Lost, r.Repeated)
	}
	fmt.Fprintf(show, "what was parked was then decided: in the end, each of the %d happened once\n", errands)
	return rows, nil
}

// run does the errands one way, and counts.
func (r *errandRow) run(ctx context.Context, base string, kills int, rng *rand.Rand, usual bool) error {
	w, err := newWorld(filepath.Join(base, "out"))
	if err != nil {
		return err
	}
	defer w.stop()
	j := &errandJob{Dir: filepath.Join(base, "session"), Trust: filepath.Join(base, "trust"), Out: w.out, Server: w.url, Count: r.Errands}
	if usual {
		j.Usual = filepath.Join(base, "journal.jsonl")
	}
	h := hunter{job: j, rng: rng, stepTime: 2 * time.Millisecond}
	for h.next = 1; ; {
		finished, err := h.life(ctx, kills-r.Kills)
		if err != nil {
			return err
		}
		if finished {
			break
		}
		r.Kills++
	}
	times, err := w.happened(r.Errands)
	if err != nil {
		return err
	}
	parked := map[int]effect.Effect{}
	if !usual {
		if parked, err = listParked(ctx, j); err != nil {
			return err
		}
	}
	r.Parked = len(parked)
	for n := 1; n <= r.Errands; n++ {
		_, tool := errandOf(n)
		_, doubt := parked[n]
		switch {
		case times[n] > 1:
			r.Repeated++
		case times[n] == 0 && !doubt:
			r.Lost++
		case doubt && tools[tool].idempotent:
			return fmt.Errorf("errand %d is parked, and could have been tried again", n)
		}
	}
	if usual || r.Lost+r.Repeated > 0 {
		return nil
	}
	return r.decide(ctx, j, w, parked, times)
}

// listParked finds what is in doubt, as `pawl effects` does.
func listParked(ctx context.Context, j *errandJob) (map[int]effect.Effect, error) {
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{MustExist: true, LockWait: lockWait})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	parked := map[int]effect.Effect{}
	for e := range effect.Unsettled(store.View()) {
		var about errand
		err := json.Unmarshal(e.Body, &about)
		if err == nil && (e.Problem != "" || e.State != effect.Parked) {
			err = fmt.Errorf("%s is %s %s, and nobody works on it", e.Key, e.State, e.Problem)
		}
		if err != nil {
			return nil, err
		}
		parked[about.Number] = e
	}
	return parked, store.Close()
}

// decide is the operator: he looks at the world, resolves what happened, and releases what did
// not. Then the agent goes on, and in the end each errand has happened once.
func (r *errandRow) decide(ctx context.Context, j *errandJob, w *world, parked map[int]effect.Effect, times []int) error {
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{MustExist: true, LockWait: lockWait})
	if err != nil {
		return err
	}
	defer store.Close()
	for n, e := range parked {
		d := effect.Decision{Digest: e.Digest, Epoch: e.Epoch, By: "the supervisor", Reason: fmt.Sprintf("looked at the world: it happened %d times", times[n])}
		if times[n] == 1 {
			err = effect.Resolve(ctx, store, d, []byte(`"as the world has it"`))
		} else if err = effect.Release(ctx, store, d); err == nil {
			if again := effect.Release(ctx, store, d); !errors.Is(again, effect.ErrRefused) {
				err = fmt.Errorf("a second release of errand %d: %w", n, again)
			}
		}
		if err != nil {
			return err
		}
	}
	if err := store.Close(); err != nil {
		return err
	}
	h := hunter{job: j}
	if finished, err := h.life(ctx, 0); err != nil || !finished {
		return errors.Join(err, errors.New("the last worker did not come to its end"))
	}
	if times, err = w.happened(r.Errands); err != nil {
		return err
	}
	for n := 1; n <= r.Errands; n++ {
		if times[n] != 1 {
			return fmt.Errorf("in the end errand %d has happened %d times", n, times[n])
		}
	}
	left, err := listParked(ctx, j)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d errands are still in doubt", len(left))
	}
	return err
}

// hunter kills workers in the middle of their errands.
type hunter struct {
	job      *errandJob
	rng      *rand.Rand
	next     int           // the errand that the worker is about to do, as far as it was told
	stepTime time.Duration // of one errand
}

// life is the life of one worker, which ends with all errands done or by a kill; with no kill
// left, by the former.
func (h *hunter) life(ctx context.Context, killsLeft int) (finished bool, err error) {
	cmd, stdin, lines, err := startWorker(job{Errands: h.job})
	if err != nil {
		return false, err
	}
	defer stdin.Close()
	// Spread over the work: so many errands more than are done, and then somewhere in one.
	target := h.job.Count + 2
	if killsLeft > 0 {
		target = h.next + h.rng.IntN(2*(h.job.Count-h.next+1)/killsLeft+1)
	}
	killed := false
	var shot <-chan time.Time
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	ended := ctx.Done()
	begun, stepped := 1, time.Now() // the errand that it is about to do, and since when
	for lines != nil {
		select {
		case line, ok := <-lines:
			if !ok {
				lines = nil
				break
			}
			quiet.Reset(silence)
			var m message
			if e := json.Unmarshal(line, &m); e != nil {
				err = errors.Join(err, fmt.Errorf("the worker said %q: %w", line, e))
			}
			switch m.Event {
			case "step":
				if begun++; begun > h.next {
					h.next = begun
					average(&h.stepTime, time.Since(stepped))
				}
				stepped = time.Now()
			case "failed":
				err = errors.Join(err, errors.New(m.Error))
			case "done":
				finished = true
			}
			if begun >= target && shot == nil {
				shot = time.After(time.Duration(h.rng.Float64() * 1.2 * float64(h.stepTime)))
			}
		case <-shot:
			killed, shot = true, make(chan time.Time) // and no second one
			_ = cmd.Process.Kill()
		case <-quiet.C:
			err = errors.Join(err, fmt.Errorf("the worker said nothing for %v", silence))
			_ = cmd.Process.Kill()
		case <-ended:
			ended = nil
			err = errors.Join(err, context.Cause(ctx))
			_ = cmd.Process.Kill()
		}
	}
	waited := cmd.Wait()
	if err == nil && !finished && !killed {
		err = fmt.Errorf("the worker ended by itself: %w", waited)
	}
	return finished, err
}
