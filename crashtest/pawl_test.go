package crashtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

const (
	pawlStore = "/store/s"
	pawlTrust = "/trust/t"
)

// TestMain lets the garbage collector run less often than it would: explorations make
// much of it and keep little, and take a third less time so.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}

// optionsKey is where a Func finds the options that it opens its stores with.
type optionsKey struct{}

// with is a Func whose stores are opened with these options.
func with(o pawl.Options, f Func) Func {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, p *Process) error {
		return f(context.WithValue(ctx, optionsKey{}, &o), p)
	}
}

// tidy is the check of what a recovery leaves. Nothing is left to settle, and the trust
// file names what is there, which is whole; and in the two directories there are no
// other names than these: of journals the one that goes with the bundle, and that only
// when commits are in it; of segments and parts those that the bundle names.
func tidy(ctx context.Context, p *Process) error {
	r, err := pawl.Inspect(ctx, pawlStore, pawlTrust, nil)
	if err != nil {
		return err
	}
	journal := ""
	if r.Confirmed.Journal > 0 {
		journal = journalName(r.Confirmed.Epoch)
	}
	if err := known(p, "bundle", "lock", journal, "segments", "parts"); err != nil {
		return err
	}
	return errors.Join(resolved(p, r), shelved(p))
}

// known says which names may be in the store directory after a recovery.
func known(p *Process, names ...string) error {
	for dir, names := range map[string][]string{pawlStore: names, pawlTrust: {"s.audit", "s.lock", "s.trust"}} {
		found, err := p.FS().ReadDir(dir)
		if err != nil {
			return err
		}
		for _, name := range found {
			if !slices.Contains(names, name) {
				return fmt.Errorf("K9: %s is left in %s", name, dir)
			}
		}
	}
	return nil
}

func journalName(epoch uint64) string { return fmt.Sprintf("journal.%012d", epoch) }

// resolved says that nothing is left to settle, and that the files are what the trust
// file names.
func resolved(p *Process, r *pawl.Report) error {
	if r.Verdict != "clean" || r.Pending != (pawl.Root{}) || r.Found != r.Confirmed {
		return fmt.Errorf("K5: after a recovery that went well, the trust file names %v and %v, and %v is there: %s %s", r.Confirmed, r.Pending, r.Found, r.Verdict, r.Problem)
	}
	bundle, err := p.FS().ReadFile(pawlStore + "/bundle")
	var journal []byte
	if err == nil && r.Confirmed.Journal > 0 {
		journal, err = p.FS().ReadFile(pawlStore + "/" + journalName(r.Confirmed.Epoch))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := attests(r.Confirmed, bundle, journal); err != nil {
		return fmt.Errorf("K5: after a recovery that went well, %w", err)
	}
	return nil
}

// attests holds a root against bundle and journal, by what docs/format.md says of the
// disk digest and by nothing of pawl's own code.
func attests(root pawl.Root, bundle, journal []byte) error {
	const header, block = 256, 4096
	var digest pawl.Digest
	if bundle != nil {
		digest = sha256.Sum256(bundle)
	}
	extend := func(more []byte) { digest = sha256.Sum256(append(digest[:], more...)) }
	if root.Journal > 0 {
		if int64(len(journal)) < root.Journal || root.Journal%block != 0 {
			return fmt.Errorf("trust names %d bytes of a journal that has %d", root.Journal, len(journal))
		}
		extend(journal[:header])
		for at := int64(block); at < root.Journal; {
			n := int64(binary.LittleEndian.Uint32(journal[at:]))
			if n == 0 { // the batch ends in this block
				at += block - at%block
				continue
			}
			if at+n > root.Journal {
				return fmt.Errorf("a frame at %d reaches beyond %d", at, root.Journal)
			}
			extend(journal[at : at+n])
			at += (n + 7) &^ 7
		}
		if rest := journal[root.Journal:]; !bytes.Equal(rest, make([]byte, len(rest))) {
			return fmt.Errorf("there is something in the journal beyond %d", root.Journal)
		}
	}
	if digest != root.Digest {
		return fmt.Errorf("trust names %v, and the files have the digest %v", root, digest)
	}
	return nil
}

// user is a program on top of a store: each of its commits replaces one part and
// appends an entry that names the commit before.
type user struct {
	ctx context.Context
	p   *Process
	s   *pawl.Store
	n   int

	newest string // the id of the last commit that was begun
	growth *growth
	held   []sighting
}

func openPawl(ctx context.Context, p *Process) (*user, error) {
	opts, _ := ctx.Value(optionsKey{}).(*pawl.Options)
	s, err := pawl.Open(ctx, pawlStore, pawlTrust, opts)
	if err != nil {
		return nil, err
	}
	u := &user{ctx: ctx, p: p, s: s}
	u.growth, _ = ctx.Value(growthKey{}).(*growth)
	return u, nil
}

// observe tells the label of the state, after checking that part and history agree.
func (u *user) observe() error {
	label, err := u.growth.label(u.s.View())
	if err != nil {
		return err
	}
	u.p.Observe(label)
	return nil
}

func stateLabel(v pawl.View) (string, error) {
	part, ok, err := v.Get("state")
	if err != nil {
		return "", err
	}
	label, last := string(part), none
	for e, err := range v.Entries(0) {
		if err != nil {
			return "", err
		}
		before, now, found := strings.Cut(string(e.Data), ">")
		if !found || before != last {
			return "", fmt.Errorf("K2: entry %d is %q, after %q", e.Seq, e.Data, last)
		}
		last = now
	}
	if ok != (label != none) || label != last {
		return "", fmt.Errorf("K2: the part holds %q, the journal ends with %q", label, last)
	}
	return label, nil
}

// change is the next one of the user, on the state with the given label.
func (u *user) change(before string) (label string, c pawl.Change) {
	label = fmt.Sprintf("v%d.%d", u.p.Number(), u.n) + kindsOf(before)
	u.n++
	u.newest = label
	return label, pawl.Change{
		ID:      label,
		Entries: [][]byte{[]byte(before + ">" + label)},
		Put:     map[string][]byte{"state": []byte(label)},
	}
}

func (u *user) commit() error {
	before, err := u.growth.label(u.s.View())
	if err != nil {
		return err
	}
	label, c := u.change(before)
	return u.commits(label, c)
}

func (u *user) commits(label string, c pawl.Change) error {
	u.p.Begin(label)
	r, err := u.s.Commit(u.ctx, c)
	u.p.End(label, err)
	if err != nil {
		return err
	}
	return u.growth.note(u.p, label, r)
}

// group makes three commits that go to disk together: the first by Update, whose
// function lets two others queue up behind it one after the other. All calls are made
// by this goroutine, so a run is the same each time. Of the three, only the state
// after the last may be found: a batch is there whole or not at all.
func (u *user) group() error {
	before, err := u.growth.label(u.s.View())
	if err != nil {
		return err
	}
	first, own := u.change(before)
	second, c2 := u.change(first)
	last, c3 := u.change(second)
	u.p.Begin(last)
	var wg sync.WaitGroup
	others := []pawl.Change{c2, c3}
	receipts, errs := make([]pawl.Receipt, len(others)), make([]error, len(others))
	queued := false
	r, err := u.s.Update(u.ctx, own.ID, func(pawl.View) (pawl.Change, error) {
		queued = true
		for i, c := range others {
			wg.Add(1)
			go func() {
				defer wg.Done()
				receipts[i], errs[i] = u.s.Commit(u.ctx, c)
			}()
			for u.s.Stats().Waiting <= int64(i) {
				runtime.Gosched()
			}
		}
		return own, nil
	})
	wg.Wait() // they take the turn, and give it back
	u.p.End(last, err)
	for i := range others {
		if !queued { // the store refused before it asked
			break
		}
		if (errs[i] == nil) != (err == nil) || errors.Is(errs[i], pawl.ErrInDoubt) != errors.Is(err, pawl.ErrInDoubt) {
			return broken("of one batch, a commit ended with %v and another with %v", err, errs[i])
		}
		if err == nil && receipts[i].Revision != r.Revision+pawl.Revision(i+1) {
			return broken("the batch has the revisions %v and %v", r, receipts)
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(u.growth.note(u.p, own.ID, r), u.growth.note(u.p, c2.ID, receipts[0]), u.growth.note(u.p, c3.ID, receipts[1]))
}

// does carries out the words of a script.
func (u *user) does(script string) error {
	for _, word := range strings.Fields(script) {
		before := u.s.Stats()
		var err error
		switch word {
		case "commit", "extend", "publish":
			err = u.commit()
		case "group":
			err = u.group()
		case "idle":
			u.p.Idle()
		case "checkpoint":
			err = u.s.Checkpoint(u.ctx)
		case "abort":
			if err = u.commitFails(pawl.ErrNotCommitted, false, writeJournal); !errors.Is(err, pawl.ErrInDoubt) {
				err = nil // of what else failed, End was told
			}
		case "close":
			err = u.s.Close()
		default:
			err = u.grow(word)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		now := u.s.Stats()
		extends, publishes := now.Batches-before.Batches, now.Publishes-before.Publishes
		if word == "extend" && extends != 1 || word == "publish" && publishes != 1 || now.Batches+now.Publishes > before.Batches+before.Publishes+1 {
			return broken("%s, in %q, extended the journal %d times and published %d times", word, script, extends, publishes)
		}
	}
	return nil
}

// broken is the error of a check of these tests, which no fault excuses.
func broken(format string, args ...any) error {
	panic(fmt.Sprintf(format, args...))
}

// pawlPlan is what all scenarios share: the recovery opens, tells what it found, and
// commits twice.
func pawlPlan(c *C) {
	c.Unexplored(pawlStore+"/lock", pawlTrust+"/s.lock", pawlTrust+"/s.audit")
	c.NeverRead("tmp-*", "s.tmp-*")
	c.Removable(pawlStore+"/tmp-*", pawlTrust+"/s.tmp-*", pawlStore+"/journal.*")
	c.Removable(segmentFiles, pawlStore+"/segments/tmp-*", partFiles, pawlStore+"/parts/tmp-*")
	c.Removable(pawlStore+"/segments", pawlStore+"/parts") // which are empty then
	c.Immutable(pawlStore+"/bundle", segmentFiles, partFiles)
	c.FreshBlocks(pawlStore + "/journal.*")
	c.FixedSize(pawlStore + "/journal.*")
	c.Check(tidy)
	c.Certain(func(err error) bool { return errors.Is(err, pawl.ErrNotCommitted) })
	c.Recover(does("commit commit"))
}

// left is a Setup: a store with some commits, and a process that was killed.
func left(script string) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		return u.does(script)
	}
}

// made is a Setup: a store with some commits, closed.
func made(commits int) Func { return left(strings.Repeat("commit ", commits) + "close") }

// does opens the store, tells what it found, and carries out a script.
func does(script string) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := u.observe(); err != nil {
			return err
		}
		return u.does(script)
	}
}

// failing names a call by what it does and to which path, as in path.Match.
type failing struct {
	op      simfs.Op
	pattern string
}

// Calls that are made to fail.
var (
	syncStore    = failing{simfs.OpSyncDir, pawlStore}
	renameTemp   = failing{simfs.OpRename, pawlStore + "/tmp-*"}
	writeTemp    = failing{simfs.OpWriteAt, pawlStore + "/tmp-*"}
	writeJournal = failing{simfs.OpWriteAt, pawlStore + "/journal.*"}
	syncJournal  = failing{simfs.OpSyncData, pawlStore + "/journal.*"}
	writeTrust   = failing{simfs.OpWriteAt, pawlTrust + "/s.trust"}
	syncTrust    = failing{simfs.OpSyncData, pawlTrust + "/s.trust"}
)

// fails makes calls fail, each the next one of its kind after the one before it; with
// andAll, every call after the last, too. The function that it returns says whether it
// came to all of them.
func (u *user) fails(andAll bool, calls ...failing) func() error {
	next := 0
	u.p.fail = func(c *simfs.Call) error {
		hit := andAll && next == len(calls)
		if next < len(calls) {
			if ok, _ := path.Match(calls[next].pattern, c.Path); ok && c.Op == calls[next].op {
				hit = true
				next++
			}
		}
		if hit {
			return syscall.EIO
		}
		return nil
	}
	return func() error {
		u.p.fail = nil
		if next < len(calls) {
			return fmt.Errorf("it never came to %s of %s", calls[next].op, calls[next].pattern)
		}
		return nil
	}
}

// commitFails is a commit in which calls fail. It ends in doubt, or certainly not.
func (u *user) commitFails(want error, andAll bool, calls ...failing) error {
	done := u.fails(andAll, calls...)
	err := u.commit()
	came := done()
	if err == nil {
		return broken("a commit went well in which %v failed", calls)
	}
	if !errors.Is(err, want) {
		return fmt.Errorf("the commit ended with %w, want %v", err, want)
	}
	return came
}

// stopped is a Setup: a store in which the commit after the script ended in doubt, at
// a call after which no other one succeeded. So its intent is left.
func stopped(script string, calls ...failing) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		return errors.Join(u.does(script), u.commitFails(pawl.ErrInDoubt, true, calls...))
	}
}

// doubtful is a workload: a commit that fails and is in doubt, Recover, and more.
func doubtful(before, after string, calls ...failing) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := errors.Join(u.observe(), u.does(before)); err != nil {
			return err
		}
		if err := u.commitFails(pawl.ErrInDoubt, false, calls...); err != nil {
			return err
		}
		if err := u.settle(u.newest); err != nil {
			return err
		}
		return u.does(after)
	}
}

// aborted is a workload: a commit that fails for certain, and more.
func aborted(before, after string, calls ...failing) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := errors.Join(u.observe(), u.does(before)); err != nil {
			return err
		}
		if err := u.commitFails(pawl.ErrNotCommitted, false, calls...); err != nil {
			return err
		}
		return u.does(after)
	}
}

// settled says that a Setup left what its name says.
func settled(want pawl.Settlement) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if got := u.s.Recovery().Settled; got != want {
			return fmt.Errorf("the setup left something that settles as %v", got)
		}
		return errors.Join(u.observe(), u.does("commit close"))
	}
}

// scenario is a workload on pawl.
type scenario struct {
	name  string
	opts  pawl.Options
	setup Func // nil: nothing
	do    Func
	again string // what a recovery does; "": two commits
}

// publishing are options with which each commit publishes the bundle.
var publishing = pawl.Options{CheckpointEvery: 1}

// extending are options with which commits extend a journal that has room for so many
// batches.
func extending(batches int64) pawl.Options {
	return pawl.Options{Limits: pawl.Limits{Journal: (1 + batches) * 4096}}
}

func every(n int) pawl.Options {
	o := extending(4)
	o.CheckpointEvery = n
	return o
}

func synced(batches int64) pawl.Options {
	o := extending(batches)
	o.SyncConfirm = true
	return o
}

// roomy is the least room of a journal that Close does not publish when one batch is
// in it.
const roomy = 8

const idling = "commit idle commit idle"

// scenarioNamed finds one of them.
func scenarioNamed(name string) *scenario {
	for i := range scenarios {
		if scenarios[i].name == name {
			return &scenarios[i]
		}
	}
	return nil
}

var scenarios = []scenario{
	{"create", publishing, nil, does(""), ""},
	{"create and close", publishing, nil, does("close"), ""},
	{"create and first commits", publishing, nil, does("commit commit close"), ""},
	{"first commit of a made store", publishing, made(0), does("commit"), ""},
	{"two commits", publishing, made(1), does("commit commit"), ""},
	{"two commits and close", publishing, made(2), does("commit commit close"), ""},
	{"close at once", publishing, made(1), does("close"), ""},
	{"five commits", publishing, made(1), does("publish publish publish publish publish close"), ""}, // once around the ring
	{"settle landed", publishing, stopped("commit", syncStore), settled(pawl.SettledLanded), ""},
	{"settle not landed", publishing, stopped("commit", renameTemp), settled(pawl.SettledNotLanded), ""},
	{"recover after doubt", publishing, made(1), doubtful("", "commit close", syncStore), ""},

	{"extend, create", extending(2), nil, does(""), idling},
	{"extend, create and first commits", extending(2), nil, does("publish extend close"), ""},
	{"extend, make the journal", extending(2), made(1), does("extend"), ""},
	{"extend, two commits", extending(4), left("publish extend"), does("extend extend"), ""},
	{"extend, two commits, recoveries idle", extending(4), left("publish extend"), does("extend extend"), idling},
	{"extend, idle between", extending(4), left("publish extend"), does("extend idle extend idle"), ""},
	{"extend, confirms synced", synced(4), left("publish extend"), does("extend extend"), ""},
	{"extend, three commits", extending(4), left("publish extend"), does("extend extend extend"), ""}, // six slots, the ring has four
	{"extend, publish every second", every(2), made(1), does("extend publish extend"), ""},
	{"extend, publish every third", every(3), made(1), does("extend extend publish extend"), ""},
	{"extend, checkpoints", extending(4), made(1), does("extend checkpoint extend extend checkpoint checkpoint"), ""},
	{"extend, full", extending(1), made(1), does("extend publish extend"), ""},
	{"extend, full, recoveries idle", extending(1), made(1), does("extend idle publish idle extend"), idling},
	{"extend, groups", extending(4), left("publish extend"), does("group extend group"), ""},
	{"extend, a group makes the journal", extending(2), made(1), does("group idle group"), ""},
	{"extend, a group that does not fit", extending(1), left("publish extend"), does("group"), ""},
	{"extend, close publishes", extending(2), left("publish"), does("extend close"), ""},
	{"extend, close does not publish", extending(roomy), left("publish"), does("extend close"), ""},
	{"extend, close at once", extending(roomy), left("publish extend close"), does("close"), ""},
	{"extend, settle landed", extending(3), stopped("publish extend", syncJournal), settled(pawl.SettledLanded), ""},
	{"extend, settle not landed", extending(3), stopped("publish extend", writeJournal), settled(pawl.SettledNotLanded), ""},
	{"extend, settle a new journal, landed", extending(2), stopped("publish", syncStore), settled(pawl.SettledLanded), ""},
	{"extend, settle a new journal, not landed", extending(2), stopped("publish", renameTemp), settled(pawl.SettledNotLanded), ""},
	{"extend, settle a publish, landed", extending(1), stopped("publish extend", syncStore), settled(pawl.SettledLanded), ""},
	{"extend, settle a publish, not landed", extending(1), stopped("publish extend", renameTemp), settled(pawl.SettledNotLanded), ""},
	{"extend, recover after doubt", extending(4), left("publish extend"), doubtful("extend", "extend", syncJournal), ""},
	{"extend, recover after doubt of a new journal", extending(2), made(1), doubtful("", "extend", syncStore), ""},
	{"extend, recover after doubt of a publish", extending(1), left("publish extend"), doubtful("", "extend", syncStore), ""},
	{"extend, recover after doubt of a confirm", extending(4), left("publish extend"), doubtful("extend", "extend", writeJournal, writeTrust), ""},
	{"extend, abort", extending(4), left("publish extend"), aborted("extend", "extend", writeJournal), ""},
	{"extend, abort of a new journal", extending(2), made(1), aborted("", "extend", writeTemp), ""},
	{"extend, abort fails at the zeros", extending(4), left("publish extend"), doubtful("extend", "extend", writeJournal, writeJournal), ""},
	{"extend, abort fails at their flush", extending(4), left("publish extend"), doubtful("extend", "extend", writeJournal, syncJournal), ""},
	{"extend, abort fails at the record", extending(4), left("publish extend"), doubtful("extend", "extend", writeJournal, syncTrust), ""},
}

// plan describes the exploration of a scenario.
func (sc *scenario) plan(c *C) {
	pawlPlan(c)
	if sc.again != "" {
		c.Recover(does(sc.again))
	}
	if sc.setup != nil {
		c.Setup(with(sc.opts, sc.setup))
	}
	c.Do(with(sc.opts, sc.do))
	c.Recover(with(sc.opts, c.recover))
}

// publishes says whether a scenario is one of a bundle that each commit publishes.
func (sc *scenario) publishes() bool { return sc.opts.CheckpointEvery == 1 }

// TestPawl explores pawl as it is: no crash of an ordinary kind, two deep, loses or
// invents a state, or keeps the store from opening.
//
// Every disk that an ordered profile can leave is also one that posix-minimal can, and
// so is every one after the recovery that follows: what holds under posix-minimal holds
// under them. So the scenarios with a journal, of which there are many, are explored
// under posix-minimal only; -crash.profile=all explores them under each. The others
// show, at less cost, that the explorer keeps to it.
//
// With -short the scenarios with a journal are explored one crash deep.
func TestPawl(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			Run(t, func(c *C) {
				sc.plan(c)
				c.RecoverTwice()
				if raced || testing.Short() && !sc.publishes() {
					c.Depth(1)
				} else if !testing.Short() && sc.publishes() {
					c.Profiles("posix-minimal", "ordered-torn", "ext4-ordered")
				}
			})
		})
	}
}
