//go:build unix || windows

package effect_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// killEnv makes the test binary one of the processes that work on the outbox.
const killEnv = "PAWL_TEST_EFFECT"

type killJob struct{ Dir, Trust, World string }

// In such a process, init does the job and never returns.
func init() {
	env := os.Getenv(killEnv)
	if env == "" {
		return
	}
	var job killJob
	err := json.Unmarshal([]byte(env), &job)
	if err == nil {
		err = job.work()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work carries effects out until standard input ends.
func (j killJob) work() error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		time.Sleep(time.Minute)
		os.Exit(1)
	}()
	s, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{Shared: true})
	if err != nil {
		return err
	}
	world, err := os.OpenFile(j.World, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	// The effect is a line in a file. It takes a moment before and after.
	act := func(_ context.Context, c effect.Call) ([]byte, error) {
		time.Sleep(rand.N(4 * time.Millisecond))
		_, err := fmt.Fprintf(world, "%s %s\n", c.Name, c.Key)
		time.Sleep(rand.N(4 * time.Millisecond))
		return []byte(c.Key), err
	}
	h := effect.Handler{Run: act, Timeout: 2 * time.Second, Backoff: func(int) time.Duration { return 10 * time.Millisecond }}
	again := h
	again.Idempotent = true
	if err := effect.NewOutbox(s, nil).Run(ctx, map[string]effect.Handler{"once": h, "again": again}); err != nil {
		return err
	}
	return s.Close()
}

// TestKilled: three processes carry out what is in one outbox, and are killed at random. What
// is idempotent is done, with one key each; the rest is done at most once, and parked where it
// is in doubt (R20, R23; 31).
func TestKilled(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	job := killJob{dir, trust, filepath.Join(filepath.Dir(dir), "world")}
	if err := os.WriteFile(job.World, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := pawl.Open(t.Context(), dir, trust, &pawl.Options{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	effects, kills := 300, 24
	if testing.Short() {
		effects, kills = 60, 6
	}
	box := effect.NewOutbox(s, nil)
	_, err = s.Update(t.Context(), "", func(v pawl.View) (pawl.Change, error) {
		var c pawl.Change
		for i := range effects {
			key := fmt.Sprintf("%s/%d", []string{"once", "again"}[i%2], i)
			destination, _, _ := strings.Cut(key, "/")
			if err := box.Enqueue(t.Context(), v, &c, key, effect.Request{Destination: destination}); err != nil {
				return c, err
			}
		}
		return c, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var children [3]*exec.Cmd
	var ins [3]io.Closer
	start := func(i int) {
		env, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+string(env))
		cmd.Stderr = os.Stderr
		if ins[i], err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		children[i] = cmd
	}
	for i := range children {
		start(i)
	}
	defer func() {
		for i, c := range children {
			ins[i].Close()
			if c.ProcessState == nil {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
		}
	}()
	for range kills {
		time.Sleep(rand.N(60 * time.Millisecond))
		i := rand.IntN(len(children))
		_ = children[i].Process.Kill()
		_ = children[i].Wait()
		ins[i].Close()
		start(i)
	}
	// Until all that is left is parked, and the children have come to their end.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for v, err := range s.Watch(ctx, 0) {
		if err != nil {
			continue
		}
		left := 0
		for e := range effect.Unsettled(v) {
			if e.State != effect.Parked {
				left++
			}
		}
		if left == 0 {
			break
		}
	}
	if ctx.Err() != nil {
		t.Fatal("something is left")
	}
	for i, c := range children {
		ins[i].Close()
		if err := c.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
	}
	if _, err := s.Update(t.Context(), "", func(pawl.View) (pawl.Change, error) { return pawl.Change{}, nil }); err != nil {
		t.Fatal(err)
	}
	checkKilled(t, s, job.World, effects, kills)
}

func checkKilled(t *testing.T, s *pawl.Store, world string, effects, kills int) {
	f, err := os.Open(world)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	times, keys := map[string]int{}, map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, key, ok := strings.Cut(lines.Text(), " ")
		if old := keys[name]; !ok || old != "" && old != key {
			t.Errorf("%s has the keys %s and %s", name, old, key)
		}
		times[name]++
		keys[name] = key
	}
	parked := map[string]bool{}
	for e := range effect.Unsettled(s.View()) {
		if e.State != effect.Parked {
			t.Errorf("%+v", e)
		}
		parked[e.Key] = true
	}
	again := 0
	for i := range effects {
		name := fmt.Sprintf("%s/%d", []string{"once", "again"}[i%2], i)
		n := times[name]
		switch {
		case i%2 == 1:
			if again += n - 1; n == 0 || parked[name] {
				t.Errorf("%s: %d times, parked: %v", name, n, parked[name])
			}
		case n > 1 || n == 0 && !parked[name]:
			t.Errorf("%s: %d times, parked: %v", name, n, parked[name])
		}
	}
	t.Logf("%d effects, %d kills: %d parked, %d idempotent calls more than once", effects, kills, len(parked), again)
}
