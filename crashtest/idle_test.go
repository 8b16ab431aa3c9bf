package crashtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// TestIdle: what a program does when it is idle happens where the test says, and is
// crashed there.
func TestIdle(t *testing.T) {
	explore := func(idle bool) (*failure, Stats) {
		x := explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreToy(c, "")
			c.depth = 1
			c.Do(func(ctx context.Context, p *Process) error {
				var err error
				vfs.FromContext(ctx).AfterFunc(time.Hour, func() { err = p.FS().Remove("/trust/t") })
				if idle {
					p.Idle()
					p.Idle() // it has fired
				}
				return err
			})
		})
		return x.explore(), x.stats
	}
	if f, stats := explore(false); f != nil || stats.Calls != 0 {
		t.Errorf("never idle: %v, %v", f, &stats)
	}
	if f, _ := explore(true); f == nil || !strings.Contains(f.err.Error(), "trust: ") {
		t.Errorf("idle: %v", f)
	}
}

// TestIdlePanics: a panic of what is done when idle is the Func's own.
func TestIdlePanics(t *testing.T) {
	x := explorerFor(simfs.PosixMinimal, func(c *C) {
		exploreToy(c, "")
		c.Do(func(ctx context.Context, p *Process) error {
			vfs.FromContext(ctx).AfterFunc(0, func() { panic("oh") })
			p.Idle()
			return nil
		})
	})
	if f := x.explore(); f == nil || !errors.Is(f.err, errPanic) {
		t.Errorf("%v", f)
	}
}

// TestIdleOfAContext: the same for code that is given a machine by Context.
func TestIdleOfAContext(t *testing.T) {
	ctx := Context(context.Background())
	n := 0
	timer := vfs.FromContext(ctx).AfterFunc(time.Second, func() { n++ })
	Idle(ctx)
	Idle(ctx)
	if timer.Reset(0); n != 1 {
		t.Errorf("fired %d times", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic on the real machine")
		}
	}()
	Idle(context.Background())
}
