package crashtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// shared are options with which several processes take turns.
func shared(o pawl.Options) pawl.Options {
	o.Shared = true
	return o
}

// takesTurn is a commit on what the store shows when it is this user's turn.
func (u *user) takesTurn() error {
	label := none
	r, err := u.s.Update(u.ctx, "", func(v pawl.View) (pawl.Change, error) {
		before, err := u.growth.label(v)
		if err != nil {
			return pawl.Change{}, err
		}
		u.p.Observe(before)
		var c pawl.Change
		label, c = u.change(before)
		u.p.Begin(label)
		return c, nil
	})
	if label != none {
		u.p.End(label, err)
	}
	if err != nil || label == none {
		return err
	}
	return u.growth.note(u.p, label, r)
}

// pair is two processes that share a store: a is the workload's own. A third one, c, may
// come to it.
type pair struct {
	a, b, c *user
	ctx     context.Context
	p       *Process
}

// openPair opens the store twice.
func openPair(ctx context.Context, p *Process) (*pair, error) {
	a, err := openPawl(ctx, p)
	if err != nil {
		return nil, err
	}
	pr := &pair{a: a, ctx: ctx, p: p}
	pr.b, err = pr.another()
	return pr, err
}

// another process opens the store.
func (pr *pair) another() (*user, error) { return openPawl(pr.p.Beside(pr.ctx)) }

// does carries out the words of a script: who it is, and what that one does.
func (pr *pair) does(script string) error {
	for _, word := range strings.Fields(script) {
		who, what, _ := strings.Cut(word, ":")
		var err error
		if pr.c == nil && who == "c" {
			pr.c, err = pr.another()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		u := map[string]*user{"a": pr.a, "b": pr.b, "c": pr.c}[who]
		switch what {
		case "turn":
			err = u.takesTurn()
		case "checkpoint":
			err = u.s.Checkpoint(u.ctx)
		case "idle":
			u.p.Idle()
		case "close":
			err = u.s.Close()
		case "looks":
			_, _, err = u.s.Lookup(u.ctx, "nothing")
		case "open":
			*u, err = reopened(u)
		default:
			err = u.grow(what)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return nil
}

func reopened(u *user) (user, error) {
	again, err := openPawl(u.ctx, u.p)
	if err != nil {
		return *u, err
	}
	again.n = u.n // labels go on
	return *again, nil
}

// pairing is a workload of two processes.
func pairing(script string) Func {
	return func(ctx context.Context, p *Process) error {
		pr, err := openPair(ctx, p)
		if err != nil {
			return err
		}
		return pr.does(script)
	}
}

// handOver is a workload in which what one process did is found by another one that was
// open before.
type handOver struct {
	name   string
	opts   pawl.Options
	setup  Func
	script string // without a kill
	before string // what comes before b is killed in a turn,
	dies   string // the word that it is killed in,
	after  string // and what a does then

	growth growth
}

var handOvers = []handOver{
	{"publishing", publishing, left("publish close"), "a:turn b:turn a:turn b:close a:turn", "a:turn", "b:turn", "a:turn a:turn", growth{}},
	{"from nothing", publishing, nil, "a:turn b:turn a:close b:turn", "", "b:turn", "a:turn a:turn", growth{}},
	{"extending", extending(5), left("publish extend"), "a:turn b:turn a:turn a:close b:turn b:close", "a:turn", "b:turn", "a:turn a:turn", growth{}},
	{"extending after extending", extending(5), left("publish extend"), "b:turn b:turn a:idle a:turn b:idle", "b:turn", "b:turn", "a:turn a:turn", growth{}},
	{"making the journal", extending(3), left("publish close"), "a:turn b:turn a:turn", "", "b:turn", "a:turn a:turn", growth{}},
	{"a full journal", extending(1), left("publish extend"), "b:turn a:turn b:turn a:turn", "", "b:turn", "a:turn a:turn", growth{}},
	{"checkpoints", extending(4), left("publish extend"), "a:turn b:checkpoint a:turn b:turn", "a:turn", "b:checkpoint", "a:turn a:turn", growth{}},
	{"synced", synced(5), left("publish extend"), "a:turn b:turn a:turn", "a:turn", "b:turn", "a:turn", growth{}},
	{"closing", extending(roomy), left("publish extend close"), "a:turn b:turn b:close a:turn", "a:turn b:turn", "b:close", "a:turn a:close", growth{}},
	{"a third settles a publish", publishing, left("publish close"), "a:turn b:turn c:turn a:turn", "a:turn", "b:turn", "c:looks a:turn", growth{}},
	{"a third settles an extend", extending(5), left("publish extend"), "a:turn b:turn c:turn a:turn", "a:turn", "b:turn", "c:looks a:turn", growth{}},
	{"opening", extending(5), left("publish extend"), "b:close a:turn b:open a:turn b:turn", "b:close a:turn", "b:open", "a:turn a:turn", growth{}},
}

func sharedPlan(c *C, tt handOver, do Func) {
	pawlPlan(c)
	if tt.setup != nil {
		c.Setup(with(tt.opts, tt.setup))
	}
	c.Do(with(shared(tt.opts), do))
	if tt.growth.receipts {
		c.Recover(grows("commit commit"))
	}
	c.Recover(with(tt.opts, c.recover))
	tt.growth.around(c)
}

// TestHandOver explores two processes that share a store: while both live, and with one
// of them killed at each of its calls, after which the other goes on. The crashes are
// those of the machine, which ends both: two deep, and with a kill before them one deep
// for three of four calls, unless -crash.long.
func TestHandOver(t *testing.T) {
	for _, tt := range handOvers {
		t.Run(tt.name, tt.explore)
	}
}

func (tt handOver) explore(t *testing.T) {
	t.Run("alive", func(t *testing.T) {
		Run(t, func(c *C) {
			sharedPlan(c, tt, pairing(tt.script))
			c.RecoverTwice()
			if raced || testing.Short() {
				c.Depth(1)
			}
		})
	})
	t.Run("killed", func(t *testing.T) { killedInTurn(t, tt) })
}

// killedInTurn explores a hand-over after b was killed, for each of its calls.
func killedInTurn(t *testing.T, tt handOver) {
	var total Stats
	seen := map[uint64]bool{}
	at, last, sum := 0, false, uint64(0)
	// dies lets b be killed. It makes no crash points: the calls up to there are those of
	// the run in which nobody is killed.
	dies := func(ctx context.Context, p *Process) (*pair, error) {
		p.run.muted = true
		pr, err := openPair(ctx, p)
		if err != nil {
			return nil, err
		}
		if err := pr.does(tt.before); err != nil {
			return nil, err
		}
		pr.b.p.KillAt(at)
		err = pr.does(tt.dies)
		if last = err == nil; !last && !errors.Is(err, ErrKilled) {
			return nil, err
		}
		pr.b.p.Kill()
		sum = p.run.machine.Snapshot().Sum()
		p.run.muted = false
		return pr, nil
	}
	for at = 1; !last; at++ {
		if (raced || testing.Short()) && at%3 != 1 {
			continue
		}
		c := newC()
		sharedPlan(c, tt, func(ctx context.Context, p *Process) error {
			pr, err := dies(ctx, p)
			if err != nil {
				return err
			}
			return pr.does(tt.after)
		})
		if raced || testing.Short() || at%4 != 2 && !*flagLong {
			c.depth = 1
		}
		c.applyFlags()
		x := newExplorer(&c.plan, c.profiles[0])
		root, f := x.prepare()
		if f != nil {
			t.Fatal(x.report(t.Name(), f))
		}
		probe := c.plan.play(root.machine.Snapshot(), root.claims, growing(tt.growth, with(shared(tt.opts), func(ctx context.Context, p *Process) error {
			_, err := dies(ctx, p)
			return err
		})), start{})
		if err := probe.verdict("the workload"); err != nil {
			t.Fatalf("up to where b is killed, before its call %d: %v", at, err)
		}
		if seen[sum] {
			continue // as at an earlier call
		}
		seen[sum] = true
		x = newExplorer(&c.plan, c.profiles[0])
		if f := x.explore(); f != nil {
			t.Fatalf("b is killed before its call %d: %s", at, x.report(t.Name(), f))
		}
		total.Disks += x.stats.Disks
		total.Recoveries += x.stats.Recoveries
		total.Points += x.stats.Points
	}
	t.Logf("killed at each of %d calls, %d of them different: %d crash points, %d disks, %d recoveries", at-2, len(seen), total.Points, total.Disks, total.Recoveries)
	if at < 7 {
		t.Errorf("it made only %d calls", at-2)
	}
}

// stubbornPair is pairing, by processes that go on after errors, and settle in place when
// they are in doubt.
func stubbornPair(script string) Func {
	return func(ctx context.Context, p *Process) error {
		pr, err := openPair(ctx, p)
		if err != nil {
			return err
		}
		var errs []error
		for _, word := range strings.Fields(script) {
			err := pr.does(word)
			if err == nil {
				continue
			}
			errs = append(errs, err)
			if !errors.Is(err, pawl.ErrInDoubt) {
				continue
			}
			u := map[bool]*user{true: pr.a, false: pr.b}[strings.HasPrefix(word, "a:")]
			if _, err := u.s.Recover(u.ctx); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		return errors.Join(append(errs, pr.a.s.Close(), pr.b.s.Close())...)
	}
}

// TestHandOverFaults makes each call of two processes that share a store fail, each in
// every way; the other one goes on, and so does the one that failed.
func TestHandOverFaults(t *testing.T) {
	if raced {
		t.Skip("nothing runs at the same time here, and it takes minutes")
	}
	for _, tt := range handOvers[:7] {
		t.Run(tt.name, func(t *testing.T) {
			Run(t, func(c *C) {
				sharedPlan(c, tt, nil)
				c.Do(with(shared(tt.opts), stubbornPair(tt.before+" "+tt.dies+" "+tt.after)))
				c.Depth(1)
				c.Faults(FaultsInDo, 1)
				if testing.Short() {
					c.Faults(FaultsInDo, 0)
				}
				c.MaySwallow(func(call Call) bool {
					// What cannot be read of the part that is new is read again, with the rest; and an
					// old journal that cannot be removed stays for the next open.
					if call.Op == "openrw" && !vfs.ReplacesOpen {
						return true // what was closed between two turns: then all is read anew
					}
					return swallowable(call) || slices.Contains([]string{"open", "lstat", "stat", "readat", "remove"}, call.Op)
				})
			})
		})
	}
}
