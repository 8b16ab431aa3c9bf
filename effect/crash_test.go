package effect_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// The outside, as the explorer sees it: a file in which each effect and each answer is a
// line that is durable at once. A crash may come just before a line, and just after it.
const outsideFile = "/outside/log"

type outside struct{ p *crashtest.Process }

func (o outside) lines() ([]string, error) {
	b, err := o.p.FS().ReadFile(outsideFile)
	return strings.Fields(string(b)), err
}

func (o outside) write(line string) error {
	b, err := o.p.FS().ReadFile(outsideFile)
	if err != nil {
		return err
	}
	return o.p.FS().WriteAt(outsideFile, fmt.Appendf(nil, "%-31s\n", line), int64(len(b)))
}

// count is how often something is on record there.
func (o outside) count(prefix string) (n int, last string, err error) {
	lines, err := o.lines()
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, prefix+":"); ok {
			n++
			last = rest
		}
	}
	return n, last, err
}

// act is the effect itself. Its result tells which attempt made it.
func (o outside) act(_ context.Context, c effect.Call) (string, error) {
	if want := 64; len(c.Key) != want {
		return "", fmt.Errorf("the idempotency key is %q", c.Key)
	}
	result := "by-" + strconv.Itoa(c.Attempt)
	return result, o.write("act/" + c.Name + ":" + result)
}

// knows is what Settle finds out.
func (o outside) knows(_ context.Context, c effect.Call) (string, error) {
	n, result, err := o.count("act/" + c.Name)
	if err == nil && n == 0 {
		err = effect.NotDone(nil)
	}
	return result, err
}

// holds says that what was done, and what was answered, is what may be: the model.
func (o outside) holds(key string, kind byte, result string, err error) error {
	acts, _, e := o.count("act/" + key)
	acked, was, e2 := o.count("ack/" + key)
	if e := errors.Join(e, e2); e != nil {
		return e
	}
	switch {
	case acked > 0 && (err != nil || result != was):
		return fmt.Errorf("%s had the result %q, and now it is %q, %v", key, was, result, err)
	case err == nil && acts == 0:
		return fmt.Errorf("%s is done, and nothing happened", key)
	case err == nil && kind != 'i' && result != "by-1" && acts > 1, kind != 'i' && acts > 1:
		return fmt.Errorf("%s happened %d times", key, acts)
	case err != nil && (kind != 'o' || !errors.Is(err, effect.ErrUnsettled)):
		return fmt.Errorf("%s: %w", key, err)
	}
	if err == nil && acked == 0 {
		return o.write("ack/" + key + ":" + result)
	}
	return nil
}

func (o outside) options(kind byte) *effect.Options[string] {
	opts := &effect.Options[string]{Timeout: 30 * time.Second}
	switch kind {
	case 'i':
		opts.Idempotent = true
	case 's':
		opts.Settle = o.knows
	}
	return opts
}

// does carries an effect out; the first letter of the key says of which kind it is: i is
// idempotent, of s the outside knows, and of o nothing is known.
func (o outside) does(ctx context.Context, s *pawl.Store, key string) error {
	result, err := effect.Do(ctx, s, key, requestOf(key), o.act, o.options(key[0]))
	return o.holds(key, key[0], result, err)
}

// explored is two crashes deep, and what is large one, without -crash.long.
func explored(c *crashtest.C, f crashtest.Func, large bool) {
	c.Disks("/store", "/trust", "/outside")
	// How a store is made is explored elsewhere.
	c.Setup(func(ctx context.Context, p *crashtest.Process) error {
		s, err := pawl.Open(ctx, "/store/s", "/trust", nil)
		if err == nil {
			_, err = s.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("made")}})
		}
		return errors.Join(err, p.FS().Create(outsideFile, nil))
	})
	c.Do(f)
	c.Recover(f)
	c.Unexplored(outsideFile, "/store/s/lock", "/trust/*.lock", "/trust/*.audit")
	c.NeverRead("tmp-*", "s.tmp-*")
	c.Certain(func(err error) bool { return errors.Is(err, pawl.ErrNotCommitted) })
	c.Check(understood)
	if testing.Short() || raced || large {
		c.Depth(1)
	}
}

// understood says that no record is left that nobody understands.
func understood(ctx context.Context, p *crashtest.Process) error {
	r, err := pawl.OpenReader(ctx, "/store/s", "/trust", nil)
	if err != nil {
		return err
	}
	defer r.Close()
	for e := range effect.Unsettled(r.View()) {
		if e.Problem != "" {
			return fmt.Errorf("%+v", e)
		}
	}
	return nil
}

// TestCrashes explores calls of Do: every kill and every power loss, at each call on a disk
// and around each effect, in the first run and in the one that comes after it.
func TestCrashes(t *testing.T) {
	for _, keys := range []string{"i", "o", "s", "o i"} {
		t.Run(keys, func(t *testing.T) {
			crashtest.Run(t, func(c *crashtest.C) {
				explored(c, func(ctx context.Context, p *crashtest.Process) error {
					s, err := pawl.Open(ctx, "/store/s", "/trust", nil)
					if err != nil {
						return err
					}
					p.Observe("")
					o := outside{p}
					// The same as before, and then one more.
					for _, key := range append(strings.Fields(keys), "o-"+strconv.Itoa(p.Number())) {
						if err := o.does(ctx, s, key); err != nil {
							return err
						}
					}
					return nil
				}, len(keys) > 1)
			})
		})
	}
}

// TestCrashesOfOutbox explores an outbox: each order is a commit with its effects in it.
func TestCrashesOfOutbox(t *testing.T) {
	for _, kinds := range []string{"i-", "o-", "f-", "i- o-"} {
		t.Run(kinds, func(t *testing.T) { crashesOfOutbox(t, strings.Fields(kinds)) })
	}
}

func crashesOfOutbox(t *testing.T, kinds []string) {
	crashtest.Run(t, func(c *crashtest.C) {
		explored(c, func(ctx context.Context, p *crashtest.Process) error {
			s, err := pawl.Open(ctx, "/store/s", "/trust", nil)
			if err != nil {
				return err
			}
			orders, _, err := pawl.GetJSON[[]int](s.View(), "orders")
			if err != nil {
				return err
			}
			p.Observe(label(orders))
			o, box := outside{p}, effect.NewOutbox(s, &effect.OutboxOptions{Concurrency: 1})
			orders = append(orders, p.Number())
			p.Begin(label(orders))
			_, err = s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
				var c pawl.Change
				c.SetJSON("orders", orders)
				for _, kind := range kinds {
					key := kind + strconv.Itoa(p.Number())
					if err := box.Enqueue(ctx, v, &c, key, effect.Request{Destination: kind}); err != nil {
						return c, err
					}
				}
				return c, nil
			})
			p.End(label(orders), err)
			if err != nil {
				return err
			}
			return o.drains(ctx, s, box, orders, kinds)
		}, len(kinds) > 1 || kinds[0] == "f-" && flag.Lookup("crash.long").Value.String() != "true")
	})
}

func label(orders []int) string {
	if orders == nil {
		return ""
	}
	return strings.Trim(fmt.Sprint(orders), "[]")
}

// drains runs the outbox until nothing is left to do, and holds what happened against the
// orders that there are.
func (o outside) drains(ctx context.Context, s *pawl.Store, box *effect.Outbox, orders []int, kinds []string) error {
	running, cancel := context.WithTimeout(ctx, time.Minute) // and what is left then, is told
	defer cancel()
	go func() {
		for v, err := range s.Watch(running, 0) {
			if err != nil || pending(v) == 0 {
				cancel()
			}
		}
	}()
	act := func(ctx context.Context, c effect.Call) ([]byte, error) {
		result, err := o.act(ctx, c)
		return []byte(result), err
	}
	fails := func(ctx context.Context, c effect.Call) ([]byte, error) { // the first time
		if c.Attempt == 1 {
			return nil, effect.NotDone(errSaid)
		}
		return act(ctx, c)
	}
	// The clock of the machine stands still.
	atOnce := func(int) time.Duration { return 0 }
	err := box.Run(running, map[string]effect.Handler{"i-": {Run: act, Idempotent: true}, "o-": {Run: act}, "f-": {Run: fails, Backoff: atOnce}})
	if err != nil {
		return err
	}
	if left := pending(s.View()); left > 0 {
		return fmt.Errorf("%d are left", left)
	}
	parked := map[string]bool{}
	for e := range effect.Unsettled(s.View()) {
		parked[e.Key] = true
	}
	ordered := 0
	for _, n := range orders {
		for _, kind := range kinds {
			key := kind + strconv.Itoa(n)
			acts, _, err := o.count("act/" + key)
			ordered += acts
			switch {
			case err != nil:
				return err
			case key[0] == 'i' && (acts == 0 || parked[key]):
				return fmt.Errorf("%s happened %d times, parked: %v", key, acts, parked[key])
			case key[0] != 'i' && (acts > 1 || acts == 0 && !parked[key]):
				return fmt.Errorf("%s happened %d times, parked: %v", key, acts, parked[key])
			}
		}
	}
	lines, err := o.lines()
	if err == nil && ordered != len(lines) {
		err = fmt.Errorf("something happened that nobody ordered: %q of %v", lines, orders)
	}
	return err
}

// pending is how many effects wait for an outbox, and not for somebody who decides.
func pending(v pawl.View) (n int) {
	for e := range effect.Unsettled(v) {
		if e.State != effect.Parked {
			n++
		}
	}
	return n
}

// TestCrashesOfSharers explores two processes: while one is slow, the other takes it for
// dead, and then the slow one answers.
func TestCrashesOfSharers(t *testing.T) {
	for _, kind := range []string{"i", "o"} {
		t.Run(kind, func(t *testing.T) {
			crashtest.Run(t, func(c *crashtest.C) {
				explored(c, func(ctx context.Context, p *crashtest.Process) error {
					open := func(ctx context.Context) (*pawl.Store, error) {
						return pawl.Open(ctx, "/store/s", "/trust", &pawl.Options{Shared: true})
					}
					s, err := open(ctx)
					if err != nil {
						return err
					}
					p.Observe("")
					o := outside{p}
					slow := func(within context.Context, call effect.Call) (string, error) {
						result, err := o.act(within, call)
						if err != nil {
							return "", err
						}
						// The clock of the other one is a minute ahead: the lease has ended.
						other, q := p.Beside(ctx)
						t, err := open(other)
						if err != nil {
							return "", err
						}
						return result, errors.Join(outside{q}.does(other, t, kind), t.Close())
					}
					result, err := effect.Do(ctx, s, kind, requestOf(kind), slow, o.options(kind[0]))
					if err := o.holds(kind, kind[0], result, err); err != nil {
						return err
					}
					return s.Close()
				}, false)
			})
		})
	}
}

// TestCrashesOfRelease explores an operator: a release is for one attempt, whatever crashes.
func TestCrashesOfRelease(t *testing.T) {
	crashtest.Run(t, func(c *crashtest.C) {
		explored(c, func(ctx context.Context, p *crashtest.Process) error {
			s, err := pawl.Open(ctx, "/store/s", "/trust", nil)
			if err != nil {
				return err
			}
			p.Observe("")
			o := outside{p}
			unknown := func(ctx context.Context, c effect.Call) (string, error) {
				_, err := o.act(ctx, c)
				return "", errors.Join(err, errSaid)
			}
			// Parked first. Then every process releases it at the epoch that it was at then.
			if _, err = effect.Do(ctx, s, "o", requestOf("o"), unknown, nil); !errors.Is(err, effect.ErrUnsettled) {
				return fmt.Errorf("it is not parked: %w", err)
			}
			var digest pawl.Digest
			for e := range effect.Unsettled(s.View()) {
				digest = e.Digest
			}
			err = effect.Release(ctx, s, effect.Decision{Digest: digest, Epoch: 1, By: "me", Reason: "x"})
			if err != nil && !errors.Is(err, effect.ErrRefused) {
				return err
			}
			if _, err = effect.Do(ctx, s, "o", requestOf("o"), unknown, nil); !errors.Is(err, effect.ErrUnsettled) {
				return fmt.Errorf("it is not parked: %w", err)
			}
			acts, _, err := o.count("act/o")
			released := 0
			for e, err := range effect.Events(s.View(), digest) {
				if err != nil {
					return err
				}
				if e.Transition == "release" {
					released++
				}
			}
			if err == nil && (acts > 2 || released != 1) {
				err = fmt.Errorf("released %d times, and it happened %d times", released, acts)
			}
			return err
		}, false)
	})
}

// TestFaults makes every call on a disk fail, once for each way in which it can, and then
// crashes: a store that is in doubt about a transition settles it first.
func TestFaults(t *testing.T) {
	if raced || testing.Short() {
		t.Skip("takes half a minute; has one goroutine, and is explored without the race detector")
	}
	for _, key := range []string{"o", "i", "s"} {
		t.Run(key, func(t *testing.T) {
			if key != "o" && flag.Lookup("crash.long").Value.String() != "true" {
				t.Skip("takes as long, and differs little: ask for it with -crash.long")
			}
			crashtest.Run(t, func(c *crashtest.C) {
				explored(c, func(ctx context.Context, p *crashtest.Process) error {
					s, err := pawl.Open(ctx, "/store/s", "/trust", nil)
					if err != nil {
						return err
					}
					p.Observe("")
					o := outside{p}
					return errors.Join(o.does(ctx, s, key), o.does(ctx, s, "o-"+strconv.Itoa(p.Number())))
				}, true)
				c.Faults(crashtest.FaultsInDo, 1)
				c.MaySwallow(func(crashtest.Call) bool { return true }) // what the store is in doubt about is settled here
			})
		})
	}
}
