package crashtest

import (
	"context"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// Func is one process's work. ctx carries the simulated machine, p takes down what
// the process claims.
type Func func(ctx context.Context, p *Process) error

// C describes what is explored. Its methods are called from the function given to
// Run, before anything runs.
type C struct {
	plan
}

// plan is what an exploration needs to know.
type plan struct {
	setup, do, recover Func
	checks             []Func
	certain            func(error) bool
	swallow            func(Call) bool
	disks              []string
	profiles           []simfs.Profile
	depth              int
	unexplored         []string
	unread             []string
	removable          []string
	immutable          []string
	fresh              []string
	fixed              []string
	idempotent         bool
	faults             FaultMode
	faultDepth         int

	// For the tests of the explorer itself, and for comparing ways of looking.
	kinds    kinds
	strategy simfs.Strategy
	faulty   func(*simfs.Call, faultKind) bool // nil: every way of failing is tried
}

// kinds says which crashes are tried.
type kinds uint8

const (
	power kinds = 1 << iota
	kill
)

// strategyNames are the ways of looking that -crash.strategy names.
var strategyNames = map[string]struct {
	kinds    kinds
	strategy simfs.Strategy
}{
	"kill":     {kill, simfs.AllSets},
	"drop":     {power, simfs.DropUnsynced},
	"prefixes": {power, simfs.Alice},
	"power":    {power, simfs.AllSets},
	"all":      {power | kill, simfs.AllSets},
}

func newC() *C {
	return &C{plan{
		disks: []string{"/store", "/trust"}, profiles: []simfs.Profile{simfs.PosixMinimal}, depth: 2, faultDepth: 1,
		certain: func(error) bool { return false }, kinds: power | kill,
	}}
}

// Setup runs first; all that it does is durable, and it is not crashed.
func (c *C) Setup(f Func) { c.setup = f }

// Do is the workload.
func (c *C) Do(f Func) { c.do = f }

// Recover is what a process does after a crash: it opens what is there, calls
// Observe, and should go on to make changes.
func (c *C) Recover(f Func) { c.recover = f }

// Check runs after each recovery that came to its end, as a process of its own on
// what that left; it fails by returning an error. It must change nothing.
func (c *C) Check(f Func) { c.checks = append(c.checks, f) }

// Certain says which errors given to End mean that the change certainly did not
// happen. Without it every error is taken as doubt.
func (c *C) Certain(f func(err error) bool) { c.certain = f }

// Disks replaces the disks of the machine, "/store" and "/trust". Each has its own
// order of writes; a power cut takes all at one instant.
func (c *C) Disks(mounts ...string) { c.disks = mounts }

// Profiles replaces the profiles that are explored, "posix-minimal" alone. It
// panics on a name that it does not know: see Profiles.
func (c *C) Profiles(names ...string) {
	c.profiles = nil
	for _, name := range names {
		p, ok := simfs.ProfileByName(name)
		if !ok {
			panic("crashtest: no profile " + name)
		}
		c.profiles = append(c.profiles, p)
	}
}

// Depth sets how many crashes follow each other; 2 is the default, and the flag
// -crash.depth goes before it.
func (c *C) Depth(n int) { c.depth = n }

// Unexplored names files, by patterns as in path.Match on whole paths, whose content
// does not matter after a crash: owner lines in lock files, logs. What is written
// there is durable at once, so that it does not multiply the disks.
func (c *C) Unexplored(patterns ...string) { c.unexplored = append(c.unexplored, patterns...) }

// NeverRead names temps, by patterns for the last element of their path: files that a
// process makes, fills and then gives another name, or that are removed, but never
// read, nor renamed by another process. What a crash leaves in them is then not
// explored; a program that breaks the rule fails the test.
func (c *C) NeverRead(patterns ...string) { c.unread = append(c.unread, patterns...) }

// Removable names the files that may be removed; once it was called, removing any
// other fails the test.
func (c *C) Removable(patterns ...string) { c.removable = append(c.removable, patterns...) }

// Immutable names files that may be written only by the process that made them, and
// only before it has given them this name.
func (c *C) Immutable(patterns ...string) { c.immutable = append(c.immutable, patterns...) }

// FreshBlocks names files in which data is never written over: each write to a file
// that has this name is made of whole blocks of 4096 bytes, and each block of it goes
// where there are only zeros, or is all zeros itself. Then no write, however it is cut
// off, can spoil what an earlier one acknowledged. A block that a crash left half
// written is data too: it must be given zeros before anything else. What is written
// before the file gets the name does not count.
func (c *C) FreshBlocks(patterns ...string) { c.fresh = append(c.fresh, patterns...) }

// FixedSize names files that keep their size from the moment that they have this name:
// no write goes beyond their end. Another file, of another size, may be given the name.
func (c *C) FixedSize(patterns ...string) { c.fixed = append(c.fixed, patterns...) }

// RecoverTwice demands that a process which recovers after a recovery finds nothing
// to do: it observes the same state, and has changed nothing by then.
func (c *C) RecoverTwice() { c.idempotent = true }

// Faults makes calls fail: one history for each call and each way of failing, and
// then as many crashes as depth says. A process that met a fault may return an
// error; it must not keep the fault to itself, unless MaySwallow lets it.
func (c *C) Faults(m FaultMode, depth int) { c.faults, c.faultDepth = m, depth }

// MaySwallow names the calls whose failure the program may keep to itself.
func (c *C) MaySwallow(f func(Call) bool) { c.swallow = f }

// Profiles lists the names of the profiles, weakest promise first.
func Profiles() (names []string) {
	for _, p := range simfs.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

// Run explores what build describes and fails t for the first broken check, with a
// report. It logs what it covered.
func Run(t testing.TB, build func(c *C)) {
	t.Helper()
	c := newC()
	build(c)
	c.applyFlags()
	if c.recover == nil {
		t.Fatal("crashtest: no Recover")
	}
	if *flagReplay != "" {
		replayToken(t, &c.plan, *flagReplay)
		return
	}
	for _, p := range c.profiles {
		x, began := newExplorer(&c.plan, p), time.Now()
		if f := x.explore(); f != nil {
			t.Fatal(x.report(t.Name(), f))
		}
		t.Logf("%s: %s, %.2f s", p.Name, &x.stats, time.Since(began).Seconds())
	}
}

func (c *C) applyFlags() {
	if *flagDepth > 0 {
		c.depth = *flagDepth
	} else if *flagLong {
		c.depth++
	}
	if *flagLong {
		c.faultDepth++
	}
	if *flagStrategy != "" {
		s, ok := strategyNames[*flagStrategy]
		if !ok {
			panic("crashtest: no strategy " + *flagStrategy)
		}
		c.kinds, c.strategy = s.kinds, s.strategy
	}
	switch *flagProfile {
	case "":
	case "all":
		c.profiles = simfs.Profiles()
	default:
		c.Profiles(*flagProfile)
	}
}

func (pl *plan) cutOptions() simfs.CutOptions {
	opt := simfs.CutOptions{Strategy: pl.strategy, Budget: *flagBudget, Seed: 1}
	if opt.Budget == 0 && *flagLong {
		opt.Budget = 500_000
	}
	return opt
}
