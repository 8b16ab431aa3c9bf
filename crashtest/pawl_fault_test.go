package crashtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// stubborn is a program that goes on after errors: it opens, commits twice, settles
// in place when a commit is in doubt, and closes. It checks on the way what errors
// promise.
func stubborn(ctx context.Context, p *Process) error {
	u, err := openPawl(ctx, p)
	if err != nil {
		return checkOpenHandles(p, err)
	}
	p.Report(u.s.Recovery().Audit)
	err = u.work()
	return errors.Join(err, u.s.Close(), checkOpenHandles(p, nil))
}

func (u *user) work() error {
	if err := u.observe(); err != nil {
		return err
	}
	var errs []error
	for range 2 {
		err := u.commit()
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if errors.Is(err, pawl.ErrInDoubt) == errors.Is(err, pawl.ErrNotCommitted) {
			return broken("a commit failed with %v, which is not exactly one of in doubt and not committed", err)
		}
		if !errors.Is(err, pawl.ErrInDoubt) {
			continue
		}
		if err := u.settle(); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// settle leaves doubt behind: until then no commit succeeds, and Lookup knows
// nothing; from then on both do.
func (u *user) settle() error {
	id := fmt.Sprintf("v%d.%d", u.p.Number(), u.n-1)
	if err := u.commit(); !errors.Is(err, pawl.ErrInDoubt) && !errors.Is(err, pawl.ErrNotCommitted) {
		return broken("a commit after one that is in doubt: %v", err)
	}
	if _, out, err := u.s.Lookup(u.ctx, id); out != pawl.OutcomeUnknown || err != nil {
		return broken("Lookup while in doubt: %v, %v", out, err)
	}
	rec, err := u.s.Recover(u.ctx)
	if err != nil {
		return err
	}
	u.p.Report(rec.Audit)
	if err := u.observe(); err != nil {
		return err
	}
	label, err := stateLabel(u.s.View())
	if err != nil {
		return err
	}
	want := pawl.OutcomeNotCommitted
	if label == id {
		want = pawl.OutcomeCommitted
	}
	if _, out, err := u.s.Lookup(u.ctx, id); out != want || err != nil {
		return broken("Lookup after Recover: %v, %v, and the state is %q", out, err, label)
	}
	return nil
}

// broken is the error of a check of these tests, which no fault excuses.
func broken(format string, args ...any) error {
	panic(fmt.Sprintf(format, args...))
}

func checkOpenHandles(p *Process, err error) error {
	if n := p.sim.Open(); n != 0 {
		return broken("%d handles are open at the end (%v)", n, err)
	}
	return err
}

// swallowable lists the calls whose failure pawl may keep to itself, and why.
func swallowable(c Call) bool {
	switch c.Op {
	case "close": // all that was written was flushed before, and checked
		return true
	case "writeat": // the owner's line is for messages only
		return strings.HasSuffix(c.Path, "lock")
	case "remove": // a temp that cannot be swept now stays for the next sweep
		return strings.Contains(c.Path, "tmp-")
	case "lstat": // the same; what was not looked at is not removed
		return strings.Contains(c.Path, "tmp-")
	case "readat": // whether the last line of the audit file was torn, and needs an end
		return strings.HasSuffix(c.Path, ".audit")
	}
	return false
}

// faultPlan describes the exploration of faults in a scenario: a stubborn program
// goes on after each, and then everything crashes.
func faultPlan(c *C, setup Func, mode FaultMode) {
	pawlPlan(c)
	if setup != nil {
		c.Setup(setup)
	}
	c.Depth(1)
	c.Do(stubborn)
	c.Recover(stubborn)
	c.Faults(mode, 1)
	c.MaySwallow(swallowable)
}

// TestPawlFaults makes every call fail in every way, and then crashes (K10).
func TestPawlFaults(t *testing.T) {
	for _, sc := range []struct {
		name  string
		setup Func
		mode  FaultMode
	}{
		{"create", nil, FaultsInDo},
		{"two commits", made(1), FaultsInDo},
		{"settle landed", stopped(simfs.OpSyncDir, pawlStore), FaultsInDo},
		{"settle not landed", stopped(simfs.OpRename, ""), FaultsInDo},
		{"recovery", made(1), FaultsInRecover},
	} {
		t.Run(sc.name, func(t *testing.T) {
			if sc.mode&FaultsInRecover != 0 && (raced || testing.Short()) {
				t.Skip("thousands of faults")
			}
			Run(t, func(c *C) {
				faultPlan(c, sc.setup, sc.mode)
				if sc.mode&FaultsInRecover != 0 && !*flagLong {
					// To pawl these are errors like any other, as the other scenarios show.
					c.faulty = func(_ *simfs.Call, k faultKind) bool { return k != faultIntr && k != faultNoSpace }
				}
			})
		})
	}
}

// TestPawlFailedSyncs: a sync fails, the page cache keeps what it covered or goes
// back; the store goes on, is opened again in the same boot, and then the power is
// cut: two crashes after the fault.
func TestPawlFailedSyncs(t *testing.T) {
	if raced || testing.Short() {
		t.Skip("two crashes after each of a hundred faults")
	}
	for _, sc := range []struct {
		name  string
		setup Func
	}{{"create", nil}, {"two commits", made(1)}} {
		t.Run(sc.name, func(t *testing.T) {
			Run(t, func(c *C) {
				faultPlan(c, sc.setup, FaultsInDo)
				c.Faults(FaultsInDo, 2)
				c.faulty = func(c *simfs.Call, k faultKind) bool { return failedSync(c, k) && !aboveStore(c) }
			})
		})
	}
}

func failedSync(c *simfs.Call, k faultKind) bool {
	return c.Op.IsSync() && (k == faultEIO || k == faultRevert)
}

// aboveStore says whether a call is about a directory above the two of the store.
func aboveStore(c *simfs.Call) bool {
	return c.Path == "/" || c.Path == "/store" || c.Path == "/trust"
}
