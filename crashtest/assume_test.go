package crashtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The tests of this file take an assumption of docs/guarantees.md away and show what
// fails then: each demands that a violation is found, and which. One that finds
// nothing any more means that the assumption is not needed, and should go.

// brokenUnder explores scenarios under a profile, two crashes deep, and returns what
// broke in each.
func brokenUnder(t *testing.T, profile simfs.Profile, scenarios []scenario) (broken map[string]string) {
	t.Helper()
	broken = map[string]string{}
	for _, sc := range scenarios {
		x := explorerFor(profile, sc.plan)
		if slices.ContainsFunc(simfs.Broken(), func(p simfs.Profile) bool { return p.Name == profile.Name }) {
			x.cut.Budget = 1000 // what is found breaks soon, and one disk is enough
		}
		if f := x.explore(); f != nil {
			broken[sc.name] = f.err.Error()
			t.Logf("%s, %s, after %d crashes: %.150s", profile.Name, sc.name, f.item.depth, f.err)
		} else {
			t.Logf("%s, %s: holds (%s)", profile.Name, sc.name, &x.stats)
		}
	}
	return broken
}

// breaks demands that something breaks in every scenario (with -short: in some that are
// unlike each other) but the exempt ones, in which nothing may, and somewhere with each
// of the given texts.
func breaks(t *testing.T, profile simfs.Profile, exempt []string, wants ...string) {
	t.Helper()
	scenarios := scenarios
	if raced || testing.Short() {
		scenarios = whereNamesChange(t)
	}
	broken := brokenUnder(t, profile, scenarios)
	all := ""
	for _, text := range broken {
		all += text + "\n"
	}
	for _, sc := range scenarios {
		if got, want := broken[sc.name] != "", !slices.Contains(exempt, sc.name); got != want {
			t.Errorf("%s: without the assumption something breaks: %v, want %v", sc.name, got, want)
		}
	}
	for _, want := range wants {
		if !strings.Contains(all, want) {
			t.Errorf("nothing broke with %q:\n%s", want, all)
		}
	}
}

// silent lets a recovery say no: then only states that are lost or invented without
// a word are found, and refusals that count.
func silent(c *C, counts func(*pawl.Error) bool) {
	aloud := c.recover
	c.recover = func(ctx context.Context, p *Process) error {
		err := aloud(ctx, p)
		if e := (*pawl.Error)(nil); errors.As(err, &e) && e.Op == "open" && !counts(e) {
			p.Observe(p.run.ledger().open[0])
			return nil
		}
		return err
	}
	c.checks = nil
}

// losesInSilence demands that an acknowledged commit can be gone without an error, from
// the bundle and from the journal.
func losesInSilence(t *testing.T, profile simfs.Profile) {
	t.Helper()
	for _, name := range []string{"two commits", "extend, two commits"} {
		x := explorerFor(profile, func(c *C) {
			scenarioNamed(name).plan(c)
			silent(c, func(*pawl.Error) bool { return false })
		})
		f := x.explore()
		if f == nil || !strings.HasPrefix(f.err.Error(), "K1") {
			t.Fatalf("%s, %s: found %v (%s)", profile.Name, name, f, &x.stats)
		}
		t.Logf("%s, %s, after %d crashes, without a word: %v", profile.Name, name, f.item.depth, f.err)
	}
}

// skipLong skips what needs minutes under the race detector.
func skipLong(t *testing.T) {
	t.Helper()
	if raced || testing.Short() {
		t.Skip("explores every scenario")
	}
}

// TestWithoutA1: where a rename takes the old name away first, the name can lead to
// nothing. The store says so. Making a store and its first two commits do no such
// harm: the rename over a trust file that names the empty store leaves a store that is
// not there yet, and bundle and journal go where nothing was.
func TestWithoutA1(t *testing.T) {
	breaks(t, simfs.GapRename, []string{"extend, create"}, "committed state is missing", "store files without a trust file")
}

// whereNamesChange are scenarios that together make, replace and remove names in every
// way that pawl does it: each of the files made, published, settled anew and cleared,
// and an old journal removed. Commits that go into a journal which is there already
// change no name, so the other scenarios say nothing about a profile that differs from
// posix-minimal in names alone.
func whereNamesChange(t *testing.T) (chosen []scenario) {
	t.Helper()
	names := []string{
		"create and first commits", "two commits and close", "settle landed", "settle not landed", "recover after doubt",
		"extend, create and first commits", "extend, make the journal", "extend, full",
		"extend, settle landed", "extend, settle a new journal, landed", "extend, settle a new journal, not landed",
		"extend, settle a publish, landed", "extend, settle a publish, not landed",
		"extend, recover after doubt of a new journal", "extend, abort of a new journal",
	}
	for _, sc := range scenarios {
		if slices.Contains(names, sc.name) || *flagLong {
			chosen = append(chosen, sc)
		}
	}
	if len(chosen) < len(names) {
		t.Fatalf("%d of %d scenarios", len(chosen), len(names))
	}
	return chosen
}

// TestHalfARename: what A1 does not need is that the two names change at once. A
// rename that leaves both is as good.
func TestHalfARename(t *testing.T) {
	skipLong(t)
	if broken := brokenUnder(t, simfs.PosixSplit, whereNamesChange(t)); len(broken) != 0 {
		t.Errorf("%v", broken)
	}
}

// TestWithoutA2: where a power cut in the middle of a write spoils the pages beside
// it, records go that were flushed long before.
func TestWithoutA2(t *testing.T) {
	breaks(t, simfs.TornBlock, nil, "trust file is damaged", "trust file is older than the store")
}

// TestWithoutA2InTheJournal: the same with the commits in a journal, which stand in
// blocks of 4 KiB beside each other. The store says that they are damaged, and opens
// with none of them gone in silence.
func TestWithoutA2InTheJournal(t *testing.T) {
	x := explorerFor(simfs.TornBlock, func(c *C) {
		scenarioNamed("extend, two commits").plan(c)
		silent(c, func(e *pawl.Error) bool { return strings.Contains(e.Path, "journal.") })
	})
	f := x.explore()
	if f == nil || !errors.Is(f.err, pawl.ErrDamaged) {
		t.Fatalf("found %v (%s)", f, &x.stats)
	}
	t.Logf("after %d crashes: %v", f.item.depth, f.err)
}

// TestWithoutA3: a disk that lies loses acknowledged commits, and where both
// directories lost the same, nobody notices.
func TestWithoutA3(t *testing.T) {
	breaks(t, simfs.LyingSync, nil, "trust file is damaged", "committed state is missing")
	losesInSilence(t, simfs.LyingSync)
}

// TestWithoutA4: the same with the names alone. ntfs-like keeps them in order, which
// does not help: the two directories are not in one order.
func TestWithoutA4(t *testing.T) {
	for _, p := range []simfs.Profile{simfs.NoDirSync, simfs.NTFSLike} {
		breaks(t, p, nil, "store files without a trust file", "trust file is older than the store")
		losesInSilence(t, p)
	}
}

// TestNTFSDurableRename: names in order, and a rename that makes itself durable, are
// as good as A4.
func TestNTFSDurableRename(t *testing.T) {
	skipLong(t)
	if broken := brokenUnder(t, simfs.NTFSDurable, whereNamesChange(t)); len(broken) != 0 {
		t.Errorf("%v", broken)
	}
}

// noLocks are locks that keep nobody out.
type noLocks struct{ vfs.FS }

func (f noLocks) OpenDir(path string) (vfs.Dir, error) {
	d, err := f.FS.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return noLocksDir{d}, nil
}

type noLocksDir struct{ vfs.Dir }

func (d noLocksDir) OpenLock(name string) (vfs.File, error) {
	f, err := d.Dir.OpenLock(name)
	if err != nil {
		return nil, err
	}
	return freeLock{f}, nil
}

type freeLock struct{ vfs.File }

func (freeLock) TryLock() (bool, error) { return true, nil }

// TestWithoutA5 is the window of two writers, where locks exclude nobody:
//
//	P, Q  have the store open, and look, Q just before it puts its trust file in place: nothing has changed
//	P     intent for its revision 3, the new bundle in a temp; looks again
//	Q     puts its own trust file, with its intent, over P's; commits revision 3; is acknowledged
//	P     renames its temp over Q's bundle, confirms in the trust file that nobody sees; is acknowledged
//
// What is left is P's bundle and Q's trust file.
func TestWithoutA5(t *testing.T) {
	m := simfs.New(simfs.PosixMinimal, "/store", "/trust")
	open := func() (*faultfs.FS, context.Context, *pawl.Store) {
		f := faultfs.New(noLocks{m.Start()}, "/")
		ctx := f.Context(context.Background())
		s, err := pawl.Open(ctx, pawlStore, pawlTrust, &publishing)
		if err != nil {
			t.Fatal(err)
		}
		return f, ctx, s
	}
	put := func(ctx context.Context, s *pawl.Store, what string) error {
		_, err := s.Commit(ctx, pawl.Change{Put: map[string][]byte{"state": []byte(what)}})
		return err
	}
	_, ctx, first := open()
	if err := errors.Join(put(ctx, first, "one"), first.Close()); err != nil {
		t.Fatal(err)
	}
	pfs, pctx, p := open()
	if err := put(pctx, p, "two"); err != nil { // P writes in place from here on
		t.Fatal(err)
	}
	qfs, qctx, q := open()
	looked, goOn, done := make(chan bool), make(chan bool), make(chan error, 1)
	qfs.Set(before("Rename", "/s.trust", func() { close(looked); <-goOn }))
	pfs.Set(before("Rename", "bundle", func() { close(goOn); done <- <-done }))
	go func() { done <- put(qctx, q, "three, by Q") }()
	<-looked
	perr := put(pctx, p, "three, by P")
	if qerr := <-done; qerr != nil || perr != nil {
		t.Fatalf("P: %v; Q: %v", perr, qerr)
	}
	_, err := pawl.Open(vfs.NewContext(t.Context(), noLocks{m.Start()}), pawlStore, pawlTrust, nil)
	if !errors.Is(err, pawl.ErrUnauthorized) {
		t.Errorf("two writers were acknowledged for revision 3, and the next open says %v", err)
	}
}

// before runs f once, before the first call of this kind on a path that has this end.
func before(op, end string, f func()) faultfs.Hook {
	var once sync.Once
	return func(c faultfs.Call) faultfs.Action {
		if c.Op != op || !strings.HasSuffix(c.Path, end) && !strings.HasSuffix(c.Detail, end) {
			return faultfs.Action{}
		}
		return faultfs.Action{Before: func() { once.Do(f) }}
	}
}

// TestWithoutA11: a directory whose flush failed shows the old names again, and the
// disk has the new ones. pawl settles on what it sees, "not landed" on the empty
// store, writes no bundle there, because there is none to write anew; and a power cut
// brings the bundle that nobody authorises any more.
func TestWithoutA11(t *testing.T) {
	x := explorerFor(simfs.PosixMinimal, func(c *C) {
		(&faultScenario{opts: publishing, script: "commit commit", mode: FaultsInDo | RevertNames}).plan(c)
		c.faulty = func(c *simfs.Call, k faultKind) bool { return c.Op == simfs.OpSyncDir && k == faultRevert }
	})
	f := x.explore()
	if f == nil || !strings.Contains(f.err.Error(), "an ordinary crash blocks") {
		t.Fatalf("found %v (%s)", f, &x.stats)
	}
	t.Logf("after %d crashes: %v", f.item.depth, f.err)
}

// TestRevertedNames: where there is a state already, settling writes it anew, and
// names that come back, or go again, do no harm: those of bundle and trust file, that of
// a journal that was being made, which settling writes before it removes it, and that of
// one which a new bundle has replaced.
func TestRevertedNames(t *testing.T) {
	for _, name := range []string{"two commits", "extend, make the journal", "extend, full"} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(c *C) {
				sc := *faultScenarioNamed(name)
				sc.mode |= RevertNames
				sc.plan(c)
				c.faulty = func(c *simfs.Call, k faultKind) bool { return c.Op == simfs.OpSyncDir && k == faultRevert }
			})
		})
	}
}

// TestWithoutA12: the flush of a directory above the store fails while the store is
// made, the process is killed, and the next one goes on in the same boot: it finds
// the directory that the first one made, and cannot know that its name will not
// last.
func TestWithoutA12(t *testing.T) {
	x := explorerFor(simfs.PosixMinimal, func(c *C) {
		(&faultScenario{opts: publishing, script: "commit commit", mode: FaultsInDo}).plan(c)
		c.Faults(FaultsInDo, 2)
		c.faulty = func(c *simfs.Call, k faultKind) bool { return failedSync(c, k) && aboveStore(c) }
	})
	f := x.explore()
	if f == nil || !strings.Contains(f.err.Error(), "an ordinary crash blocks") {
		t.Fatalf("found %v (%s)", f, &x.stats)
	}
	t.Logf("after %d crashes: %v", f.item.depth, f.err)
}
