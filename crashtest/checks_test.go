package crashtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// TestChecks: each check is broken by a small change to the sound toy, and found
// under its name.
func TestChecks(t *testing.T) {
	for _, k := range []struct {
		name, want string
		build      func(c *C)
	}{
		{"a recovery that fails", "an ordinary crash blocks", func(c *C) {
			c.Recover(func(context.Context, *Process) error { return errors.New("no") })
		}},
		{"a recovery that does not tell", "never called Observe", func(c *C) {
			c.Recover(func(context.Context, *Process) error { return nil })
		}},
		{"a recovery that panics", "panic: oh", func(c *C) {
			c.Recover(func(context.Context, *Process) error { panic("oh") })
		}},
		{"a workload that panics", "panic: oh", func(c *C) {
			c.Do(func(context.Context, *Process) error { panic("oh") })
		}},
		{"a workload that fails", "the workload fails without a crash: no", func(c *C) {
			c.Do(func(context.Context, *Process) error { return errors.New("no") })
		}},
		{"a setup that fails", "Setup: no", func(c *C) {
			c.Setup(func(context.Context, *Process) error { return errors.New("no") })
		}},
		{"an invented state", "K2", func(c *C) {
			c.Recover(func(_ context.Context, p *Process) error { p.Observe("elsewhere"); return nil })
		}},
		{"a lost state", "K1", func(c *C) {
			c.Recover(func(_ context.Context, p *Process) error { p.Observe("v0"); return nil })
		}},
		{"a recovery that always writes", "K7", func(c *C) {
			c.RecoverTwice()
			sound := c.recover
			c.Recover(func(ctx context.Context, p *Process) error {
				name := fmt.Sprintf("/store/tmp-again%d", p.Number())
				if err := errors.Join(p.FS().Create(name, nil), p.FS().Remove(name)); err != nil {
					return err
				}
				return sound(ctx, p)
			})
		}},
		{"a check of the test", "check after the recovery: never", func(c *C) {
			c.Check(func(context.Context, *Process) error { return errors.New("never") })
		}},
		{"a check that writes", "a Check changed something", func(c *C) {
			c.Check(func(_ context.Context, p *Process) error { return p.FS().Create("/store/tmp", nil) })
		}},
		{"a removal that was not declared", "may be removed", func(c *C) { c.Removable("/store/tmp*") }},
		{"a write to what is immutable", "is immutable", func(c *C) { c.Immutable("/store/tmp*") }},
		{"a temp that is read", "nobody uses a file of that name", func(c *C) {
			c.NeverRead("tmp*")
			sound := c.recover
			c.Recover(func(ctx context.Context, p *Process) error {
				names, err := p.FS().ReadDir("/store")
				for _, name := range names {
					if strings.HasPrefix(name, "tmp") {
						_, e := p.FS().ReadFile("/store/" + name)
						err = errors.Join(err, e)
					}
				}
				return errors.Join(err, sound(ctx, p))
			})
		}},
		{"a use after close", "use after close", func(c *C) {
			c.Do(func(_ context.Context, p *Process) error {
				d, err := p.FS().sys.OpenDir("/store")
				if err != nil {
					return err
				}
				d.Close()
				d.Sync()
				return nil
			})
		}},
	} {
		x := explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreToy(c, "")
			c.depth = 1
			k.build(c)
		})
		f := x.explore()
		if f == nil {
			t.Errorf("%s: nothing found", k.name)
			continue
		}
		if report := x.report("TestX", f); !strings.Contains(report, k.want) {
			t.Errorf("%s: want %q in\n%s", k.name, k.want, report)
		}
	}
}

// TestNondeterminismIsSaid: a Func that does something else when it is run again
// makes a failure that cannot be replayed, and the report says so.
func TestNondeterminismIsSaid(t *testing.T) {
	once := true
	x := explorerFor(simfs.PosixMinimal, func(c *C) {
		exploreToy(c, "")
		c.Recover(func(_ context.Context, p *Process) error {
			if once {
				once = false
				return errors.New("only once")
			}
			p.Observe("v0")
			return nil
		})
		c.Do(nil)
		c.depth = 1
	})
	if report := x.report("TestX", x.explore()); !strings.Contains(report, "does not do the same thing each time") {
		t.Error(report)
	}
}

// TestFaultsSurface: a toy that drops an error is caught, for each call it drops the
// error of, and one that keeps going in doubt is too.
func TestFaultsSurface(t *testing.T) {
	explore := func(build func(c *C)) *failure {
		return explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreToy(c, "")
			c.Faults(FaultsInDo|FaultsInRecover, 1)
			build(c)
		}).explore()
	}
	deaf := func(c *C) {
		c.Do(func(_ context.Context, p *Process) error {
			p.FS().Create("/store/tmp1", nil)
			return nil
		})
	}
	if f := explore(deaf); f == nil || !strings.Contains(f.err.Error(), "K10: the error of") {
		t.Errorf("a dropped error: %v", f)
	}
	if f := explore(func(c *C) {
		deaf(c)
		c.MaySwallow(func(c Call) bool { return c.Op == "create" || strings.HasSuffix(c.Op, "dir") || c.Op == "close" })
	}); f != nil {
		t.Errorf("an error that may be dropped: %v", f.err)
	}
	if f := explore(func(c *C) {
		c.Do(func(_ context.Context, p *Process) error {
			u := &toy{fs: p.FS(), p: p, state: "v0"}
			for _, label := range []string{"a", "b"} {
				p.Begin(label)
				p.End(label, u.commit(label))
			}
			return nil
		})
	}); f == nil || !strings.Contains(f.err.Error(), "K10: \"b\" succeeded while") {
		t.Errorf("a commit while in doubt: %v", f)
	}
}

// TestToyUnderFaults: the toy stops at its first error, and every crash after that
// recovers.
func TestToyUnderFaults(t *testing.T) {
	Run(t, func(c *C) {
		exploreToy(c, "")
		c.Depth(1)
		c.Faults(FaultsInDo, 1)
		if !raced {
			c.Faults(FaultsInDo|FaultsInRecover, 1)
		}
		c.MaySwallow(func(c Call) bool { return c.Op == "close" })
	})
}

// TestCountsAreExact: the same exploration covers the same, whatever the scheduler
// does; and what NeverRead leaves out was of no account.
func TestCountsAreExact(t *testing.T) {
	if raced {
		t.Skip("it counts what other tests run")
	}
	count := func(build func(c *C)) Stats {
		x := explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreToy(c, "")
			build(c)
		})
		if f := x.explore(); f != nil {
			t.Fatal(x.report("TestX", f))
		}
		return x.stats
	}
	all := count(func(*C) {})
	for range 3 {
		if again := count(func(*C) {}); again != all {
			t.Errorf("%v, then %v", &all, &again)
		}
	}
	fewer := count(func(c *C) { c.NeverRead("tmp*") })
	if fewer.Recoveries*2 > all.Recoveries {
		t.Errorf("NeverRead left %d of %d recoveries", fewer.Recoveries, all.Recoveries)
	}
	deeper := count(func(c *C) { c.depth = 3 })
	if deeper.Recoveries < 2*all.Recoveries {
		t.Errorf("depth 3 made %d recoveries, depth 2 %d", deeper.Recoveries, all.Recoveries)
	}
	t.Logf("depth 2: %v", &all)
	t.Logf("depth 2, temps never read: %v", &fewer)
	t.Logf("depth 3: %v", &deeper)
}
