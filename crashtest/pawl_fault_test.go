package crashtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// stubborn is a program that goes on after errors: it opens, carries out a script,
// settles in place when it is in doubt, and closes. It checks on the way what errors
// promise.
func stubborn(script string) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return checkOpenHandles(p, err, 0)
		}
		p.Report(u.s.Recovery().Audit)
		err = u.work(script)
		gone := 0
		if u.growth != nil {
			gone = u.growth.open
		}
		return errors.Join(err, u.s.Close(), checkOpenHandles(p, nil, gone))
	}
}

func (u *user) work(script string) error {
	if err := u.observe(); err != nil {
		return err
	}
	var errs []error
	for _, word := range strings.Fields(script) {
		before := u.n
		err := u.does(word)
		if err == nil {
			continue
		}
		errs = append(errs, err)
		commits := u.n > before
		if commits && errors.Is(err, pawl.ErrInDoubt) == errors.Is(err, pawl.ErrNotCommitted) {
			return broken("%s failed with %v, which is not exactly one of in doubt and not committed", word, err)
		}
		if !errors.Is(err, pawl.ErrInDoubt) {
			continue
		}
		id := ""
		if commits {
			id = u.newest
		}
		if err := u.settle(id); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// settle leaves doubt behind: until then no commit succeeds, and Lookup knows
// nothing; from then on both do. The id is that of the commit in doubt, if it is one.
func (u *user) settle(id string) error {
	err := u.commit()
	if u.growth != nil && errors.As(err, new(*InjectedError)) && !errors.Is(err, pawl.ErrInDoubt) {
		return err // the state could not be read
	}
	if !errors.Is(err, pawl.ErrInDoubt) && !errors.Is(err, pawl.ErrNotCommitted) {
		return broken("a commit after one that is in doubt: %v", err)
	}
	ids := []string{u.newest}
	if id != "" {
		ids = append(ids, id)
	}
	for _, id := range ids {
		if _, out, err := u.s.Lookup(u.ctx, id); out != pawl.OutcomeUnknown || err != nil {
			return broken("Lookup of %s while in doubt: %v, %v", id, out, err)
		}
	}
	rec, err := u.s.Recover(u.ctx)
	if err != nil {
		return err
	}
	u.p.Report(rec.Audit)
	if err := u.observe(); err != nil {
		return err
	}
	label, err := u.growth.label(u.s.View())
	if err != nil {
		return err
	}
	for _, id := range ids {
		want := pawl.OutcomeNotCommitted
		if label == id {
			want = pawl.OutcomeCommitted
		}
		if _, out, err := u.s.Lookup(u.ctx, id); out != want || err != nil {
			return broken("Lookup of %s after Recover: %v, %v, and the state is %q", id, out, err, label)
		}
	}
	return nil
}

// checkOpenHandles says that what a process opened is closed. Of files whose names are
// gone some may be open: the garbage collector closes them.
func checkOpenHandles(p *Process, err error, gone int) error {
	if n := p.sim.Open(); n > gone {
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

// faultScenario is a workload in which calls fail.
type faultScenario struct {
	name   string
	opts   pawl.Options
	setup  Func
	script string
	mode   FaultMode

	old oldJournal
}

// oldJournal says what happens to a journal that a bundle has replaced: what cannot be
// removed now stays for the next sweep. Where a journal is looked at or removed for
// another reason, the error must surface; that is shown by scenarios with no old one.
type oldJournal int

const (
	noneOld oldJournal = iota
	removed            // after a publish
	swept              // and by a recovery, which looks at it before
)

func (o oldJournal) excuses(c Call) bool {
	return strings.HasPrefix(c.Path, pawlStore+"/journal.") && (o >= removed && c.Op == "remove" || o == swept && c.Op == "lstat")
}

var faultScenarios = []faultScenario{
	{"create", publishing, nil, "commit commit", FaultsInDo, noneOld},
	{"two commits", publishing, made(1), "commit commit", FaultsInDo, noneOld},
	{"settle landed", publishing, stopped("commit", syncStore), "commit commit", FaultsInDo, noneOld},
	{"settle not landed", publishing, stopped("commit", renameTemp), "commit commit", FaultsInDo, noneOld},
	{"recovery", publishing, made(1), "commit commit", FaultsInRecover, noneOld},

	{"extend, make the journal", extending(roomy), made(1), "commit idle", FaultsInDo, noneOld}, // Close must tell of the flush
	{"extend, idle between", extending(4), left("publish extend"), "commit idle commit", FaultsInDo, removed},
	{"extend, confirms synced", synced(4), left("publish extend"), "commit commit", FaultsInDo, removed},
	{"extend, full", extending(1), left("publish extend"), "commit commit", FaultsInDo, removed},
	{"extend, checkpoint", extending(4), left("publish extend"), "commit checkpoint", FaultsInDo, removed},
	{"extend, groups", extending(4), left("publish extend"), "group group", FaultsInDo, removed},
	{"extend, abort", extending(4), left("publish extend"), "commit abort commit", FaultsInDo, removed},
	{"extend, settle landed", extending(3), stopped("publish extend", syncJournal), "commit", FaultsInDo, removed},
	{"extend, settle not landed", extending(3), stopped("publish extend", writeJournal), "commit", FaultsInDo, removed},
	{"extend, settle a new journal, landed", extending(roomy), stopped("publish", syncStore), "", FaultsInDo, noneOld},
	{"extend, settle a new journal, not landed", extending(roomy), stopped("publish", renameTemp), "commit", FaultsInDo, noneOld},
	{"extend, settle a publish, landed", extending(1), stopped("publish extend", syncStore), "commit", FaultsInDo, swept},
	{"extend, settle a publish, not landed", extending(1), stopped("publish extend", renameTemp), "commit", FaultsInDo, removed},
	{"extend, recovery", extending(4), left("publish extend"), "commit", FaultsInRecover, swept},
}

func (sc *faultScenario) publishes() bool { return sc.opts.CheckpointEvery == 1 }

func faultScenarioNamed(name string) *faultScenario {
	for i := range faultScenarios {
		if faultScenarios[i].name == name {
			return &faultScenarios[i]
		}
	}
	return nil
}

// plan describes the exploration of faults in a scenario: a stubborn program goes on
// after each, and then everything crashes.
func (sc *faultScenario) plan(c *C) {
	pawlPlan(c)
	if sc.setup != nil {
		c.Setup(with(sc.opts, sc.setup))
	}
	c.Depth(1)
	c.Do(with(sc.opts, stubborn(sc.script)))
	again := "commit commit"
	if sc.mode&FaultsInRecover != 0 && !*flagLong {
		again = "commit"
	}
	c.Recover(with(sc.opts, stubborn(again)))
	c.Faults(sc.mode, 1)
	c.MaySwallow(func(call Call) bool { return sc.old.excuses(call) || swallowable(call) })
}

// TestPawlFaults makes every call fail in every way, and then crashes (K10).
func TestPawlFaults(t *testing.T) {
	for _, sc := range faultScenarios {
		t.Run(sc.name, func(t *testing.T) {
			if sc.mode&FaultsInRecover != 0 && (raced || testing.Short()) {
				t.Skip("thousands of faults")
			}
			if raced && !sc.publishes() && sc.name != "extend, groups" {
				t.Skip("has one goroutine, and is explored without the race detector")
			}
			Run(t, func(c *C) {
				sc.plan(c)
				quick := raced || testing.Short() && !sc.publishes()
				if (sc.mode&FaultsInRecover != 0 || quick) && !*flagLong {
					// To pawl the other ways are errors like any other, as the other scenarios show.
					few := []faultKind{faultEIO, faultApplied, faultRevert, faultDead}
					c.faulty = func(_ *simfs.Call, k faultKind) bool { return slices.Contains(few, k) }
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
	for _, name := range []string{"create", "two commits", "extend, make the journal", "extend, idle between"} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(c *C) {
				faultScenarioNamed(name).plan(c)
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
