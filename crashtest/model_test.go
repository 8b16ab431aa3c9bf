package crashtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

var (
	flagModelTime = flag.Duration("crash.model.time", 2*time.Second, "how long TestModel makes random histories")
	flagModelSeed = flag.Uint64("crash.model.seed", 0, "run the one random history of this seed (0: new ones)")
)

// TestModel drives random histories against a model: commits of all kinds, alone and in
// groups, with journals of several sizes and with none, checkpoints, lookups, views,
// idleness, reopening, errors at random calls, kills and power cuts at random calls. The
// model knows of each commit whether it is set, unset or maybe. A failure is shrunk, and
// can be run again by its seed.
func TestModel(t *testing.T) {
	if *flagModelSeed != 0 {
		steps := randomSteps(*flagModelSeed)
		if err := runHistory(steps, nil); err != nil {
			t.Fatal(modelReport(*flagModelSeed, steps, err))
		}
		return
	}
	first := uint64(time.Now().UnixNano())>>10<<16 | 1
	until := time.Now().Add(*flagModelTime)
	done := modelStats{}
	seed := first
	for ; time.Now().Before(until) || seed == first; seed++ {
		steps := randomSteps(seed)
		if err := runHistory(steps, &done); err != nil {
			t.Fatal(modelReport(seed, steps, err))
		}
	}
	t.Logf("seeds %d to %d: %d histories, %+v", first, seed-1, seed-first, done)
}

type modelStats struct {
	Steps, Commits, Groups, Checkpoints, Extends, Publishes, Maybe, Landed, NotLanded, Faults, Kills, PowerCuts, Opens int
}

// step is one thing that a history does. It means something whatever came before, so
// that steps can be left out.
type modelStep struct {
	do   string
	seed uint64
}

// nothing stands for a step that shrinking left out.
const nothing = "nothing"

var modelSteps = []struct {
	do     string
	weight int
}{
	{"commit", 40}, {"update", 6}, {"group", 6}, {"checkpoint", 2}, {"idle", 10}, {"view", 6}, {"lookup", 8}, {"recover", 6}, {"verify", 2}, {"inspect", 2},
	{"close", 4}, {"open", 6}, {"kill", 2}, {"power cut", 3},
	{"fault", 12}, {"kill within", 5}, {"power cut within", 6}, // of the next step that calls the store
}

func randomSteps(seed uint64) (steps []modelStep) {
	r := rand.New(rand.NewPCG(seed, 1))
	total := 0
	for _, s := range modelSteps {
		total += s.weight
	}
	for range 10 + r.IntN(120) {
		n := r.IntN(total)
		for _, s := range modelSteps {
			if n -= s.weight; n < 0 {
				steps = append(steps, modelStep{s.do, r.Uint64()})
				break
			}
		}
	}
	return steps
}

// modelState is one state that the store may be in. It is never changed.
type modelState struct {
	parts   map[string]string
	entries []string
	commits []modelCommit
}

type modelCommit struct {
	id      string
	entries []string
	put     map[string]string
	del     []string
	receipt *pawl.Receipt // once somebody has got it
}

func (c *modelCommit) same(o *modelCommit) bool {
	return slices.Equal(c.entries, o.entries) && maps.Equal(c.put, o.put) && slices.Equal(c.del, o.del)
}

func (s *modelState) after(c modelCommit) *modelState {
	n := &modelState{parts: maps.Clone(s.parts), entries: append(slices.Clip(s.entries), c.entries...), commits: append(slices.Clip(s.commits), c)}
	for _, name := range c.del {
		delete(n.parts, name)
	}
	maps.Copy(n.parts, c.put)
	return n
}

func (s *modelState) find(id string) *modelCommit {
	for i := range s.commits {
		if id != "" && s.commits[i].id == id {
			return &s.commits[i]
		}
	}
	return nil
}

// model is a machine, the program on it, and what must hold.
type model struct {
	m     *simfs.Machine
	p     *simfs.Process
	ctx   context.Context
	s     *pawl.Store // nil: not open
	doubt bool        // the open store is in doubt

	untold  bool         // of which no call has told yet
	journal int64        // the limit of a journal
	before  pawl.Stats   // of the open store, as counted already
	opts    pawl.Options // the store is open with

	set   *modelState // certainly durable
	maybe *modelState // may have replaced it; nil: nothing
	begun *modelState // what the call that is being made would make

	r     *rand.Rand
	armed *modelStep // what happens within the next call
	hit   *simfs.Call
	crash *simfs.Machine // as it was at the crash within the call
	stats *modelStats
}

func runHistory(steps []modelStep, stats *modelStats) (err error) {
	if stats == nil {
		stats = new(modelStats)
	}
	profiles := []simfs.Profile{simfs.PosixMinimal, simfs.OrderedTorn, simfs.Ext4Ordered, simfs.PosixSplit, simfs.NTFSDurable}
	d := &model{set: &modelState{parts: map[string]string{}}, stats: stats}
	d.m = simfs.New(profiles[len(steps)%len(profiles)], "/store", "/trust")
	d.journal = int64(2+len(steps)/len(profiles)%7) * 4096
	d.boot(d.m)
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	for i, st := range append(slices.Clone(steps), modelStep{"kill", 1}, modelStep{"open", 1}, modelStep{"view", 1}) {
		d.stats.Steps++
		d.r = rand.New(rand.NewPCG(st.seed, 2))
		if err := d.step(st); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, st.do, err)
		}
		if v := d.p.Violations(); len(v) > 0 {
			return fmt.Errorf("step %d, %s: %w", i+1, st.do, v[0])
		}
	}
	return nil
}

// boot starts a process on a machine.
func (d *model) boot(m *simfs.Machine) {
	d.m, d.s, d.doubt, d.untold, d.armed, d.hit, d.crash = m, nil, false, false, nil, nil, nil
	d.p = m.Start()
	d.ctx = vfs.NewContext(context.Background(), d.p)
}

func (d *model) step(st modelStep) error {
	switch st.do {
	case "kill":
		d.die(d.m.Snapshot(), false)
	case "power cut":
		d.die(d.m.Snapshot(), true)
	case "fault", "kill within", "power cut within":
		d.armed = &st
	case "open":
		if d.s == nil {
			return d.within(d.open)
		}
	case "inspect":
		return d.inspect()
	case nothing:
	default:
		if d.s == nil && st.do == "commit" {
			return d.within(d.open)
		}
		if d.s == nil {
			return nil
		}
		return d.within(map[string]func() error{"commit": d.commit, "update": d.update, "group": d.group, "checkpoint": d.checkpoint,
			"idle": d.idle, "view": d.view, "lookup": d.lookup, "recover": d.recover, "verify": d.verify, "close": d.close}[st.do])
	}
	return nil
}

// die goes on with a new process on what a crash left of a machine.
func (d *model) die(m *simfs.Machine, power bool) {
	if d.p != nil {
		d.p.Kill()
	}
	if !power {
		d.stats.Kills++
		d.boot(m)
		return
	}
	d.stats.PowerCuts++
	n := 0
	var left *simfs.Machine
	m.Cut(simfs.CutOptions{Budget: 300, Random: 50, Seed: d.r.Uint64()}).Disks(func(disk *simfs.Disk) bool {
		if n++; d.r.IntN(n) == 0 {
			left = disk.Machine()
		}
		return true
	})
	d.boot(left)
}

// within makes a call on the store, and what was armed happens in it.
func (d *model) within(call func() error) error {
	armed := d.armed
	d.armed, d.hit, d.crash, d.begun = nil, nil, nil, nil
	if armed != nil {
		r := rand.New(rand.NewPCG(armed.seed, 3))
		// Quick calls make ten calls of the file system, an open makes a hundred.
		at := 1 + r.IntN([]int{12, 40, 130}[r.IntN(3)])
		ways := FaultsInDo
		calls := 0
		var f *fault
		d.p.SetHook(func(c *simfs.Call) simfs.Fault {
			if c.Part > 0 {
				return simfs.Fault{}
			}
			calls++
			if armed.do != "fault" {
				if d.crash == nil && calls >= at && c.Op.Mutates() {
					d.crash = c.Snapshot()
				}
				return simfs.Fault{}
			}
			if aboveStore(c) && c.Op.IsSync() { // see TestWithoutA12
				return simfs.Fault{}
			}
			if f == nil && calls >= at {
				kinds := ways.ways(c.Op)
				f = &fault{int(c.ID.N), kinds[r.IntN(len(kinds))]}
			}
			if f == nil {
				return simfs.Fault{}
			}
			out := f.at(c)
			if out.Err != nil && d.hit == nil {
				failed := *c
				d.hit = &failed
				d.stats.Faults++
			}
			return out
		})
	}
	err := call()
	if d.p != nil {
		d.p.SetHook(nil)
	}
	if err != nil {
		return err
	}
	if armed != nil && armed.do != "fault" {
		m := d.crash
		if m == nil {
			m = d.m.Snapshot()
		}
		d.die(m, armed.do == "power cut within")
	}
	d.hit, d.crash, d.begun = nil, nil, nil
	return nil
}

// surfaced checks that the program heard of a fault.
func (d *model) surfaced(err error) error {
	if d.hit == nil || errors.As(err, new(*InjectedError)) {
		return nil
	}
	c := Call{Op: d.hit.Op.String(), Path: d.hit.Path, To: d.hit.To}
	if swallowable(c) || swept.excuses(c) {
		return nil
	}
	return fmt.Errorf("K10: the error of %s was swallowed: %v", d.hit, err)
}

func (d *model) open() error {
	d.stats.Opens++
	d.opts = pawl.Options{CheckpointEvery: []int{0, 0, 0, 1, 2, 5}[d.r.IntN(6)], SyncConfirm: d.r.IntN(4) == 0,
		Limits: pawl.Limits{Journal: d.journal}}
	s, err := pawl.Open(d.ctx, pawlStore, pawlTrust, &d.opts)
	told := err
	if s != nil {
		told = s.Recovery().Audit
	}
	if e := d.surfaced(told); e != nil {
		return e
	}
	if err != nil {
		if d.hit == nil {
			return fmt.Errorf("an ordinary crash blocks: %w", err)
		}
		return nil
	}
	d.s, d.before = s, pawl.Stats{}
	return d.settled(s.Recovery())
}

// settled holds what is there after settling against the model, which knows more
// from then on.
func (d *model) settled(rec pawl.Recovery) error {
	err := d.agrees(d.set)
	if err != nil && d.maybe != nil {
		if e := d.agrees(d.maybe); e != nil {
			return fmt.Errorf("neither the old state (%w) nor the new one (%w)", err, e)
		}
		err = nil
		if d.crash == nil {
			d.set = d.maybe
			d.stats.Landed++
		}
	} else if err == nil && d.maybe != nil {
		d.stats.NotLanded++
	}
	if err != nil {
		return err
	}
	if got := d.s.View().Version().Revision; rec.Confirmed.Revision != got {
		return fmt.Errorf("settled on revision %d, and the view has %d", rec.Confirmed.Revision, got)
	}
	if d.crash == nil {
		d.maybe = nil
	}
	d.doubt, d.untold = false, false
	return nil
}

// agrees compares the view with a state.
func (d *model) agrees(want *modelState) error {
	v := d.s.View()
	if v.Version().Revision != pawl.Revision(len(want.commits)) {
		return fmt.Errorf("K1: revision %d, want %d", v.Version().Revision, len(want.commits))
	}
	if got := slices.Collect(v.Parts()); !slices.Equal(got, slices.Sorted(maps.Keys(want.parts))) {
		return fmt.Errorf("K2: parts %q, want %q", got, want.parts)
	}
	for name, data := range want.parts {
		if got, ok, err := v.Get(name); !ok || err != nil || string(got) != data {
			return fmt.Errorf("K2: part %s is %q (%v, %v), want %q", name, got, ok, err, data)
		}
	}
	n := 0
	for e, err := range v.Entries(0) {
		if err != nil || n >= len(want.entries) || string(e.Data) != want.entries[n] || e.Seq != pawl.Seq(n+1) {
			return fmt.Errorf("K2: entry %d is %q (%v)", e.Seq, e.Data, err)
		}
		n++
	}
	if n != len(want.entries) {
		return fmt.Errorf("K2: %d entries, want %d", n, len(want.entries))
	}
	i := 0
	for c, err := range v.Commits(0) {
		if w := &want.commits[i]; err != nil || c.ID != w.id || w.receipt != nil && w.receipt.Version != c.Version {
			return fmt.Errorf("K2: commit %d is %+v (%v), want %+v", i+1, c, err, w)
		}
		i++
	}
	return nil
}

// randomChange makes a change; what ids there are is up to the model.
func (d *model) randomChange() (pawl.Change, modelCommit) {
	r := d.r
	var c pawl.Change
	var mc modelCommit
	for range r.IntN(4) {
		e := bytes.Repeat([]byte{byte('a' + r.IntN(26))}, r.IntN(3)*r.IntN(300))
		c.Entries = append(c.Entries, e)
		mc.entries = append(mc.entries, string(e))
	}
	for _, name := range []string{"a", "b", "deep/c"} {
		switch r.IntN(5) {
		case 0, 1:
			if c.Put == nil {
				c.Put, mc.put = map[string][]byte{}, map[string]string{}
			}
			data := fmt.Sprintf("%s%d%s", name, r.Uint32(), strings.Repeat("x", r.IntN(2)*r.IntN(600)))
			c.Put[name], mc.put[name] = []byte(data), data
		case 2:
			c.Delete = append(c.Delete, name)
			mc.del = append(mc.del, name)
		}
	}
	if r.IntN(3) > 0 {
		c.ID = fmt.Sprintf("id%d", r.IntN(40))
	}
	mc.id = c.ID
	return c, mc
}

func (d *model) commit() error {
	c, mc := d.randomChange()
	if k := len(d.set.commits); k > 0 && d.r.IntN(8) == 0 { // what a caller does who lost the answer
		mc = d.set.commits[d.r.IntN(k)]
		c = pawl.Change{ID: mc.id, Delete: mc.del, Put: map[string][]byte{}}
		for _, e := range mc.entries {
			c.Entries = append(c.Entries, []byte(e))
		}
		for name, data := range mc.put {
			c.Put[name] = []byte(data)
		}
		mc.receipt = nil
	}
	stale := false
	if d.r.IntN(5) == 0 {
		v := d.s.View().Version()
		if stale = d.r.IntN(2) == 0; stale {
			v.Revision++
		}
		c.Expect = &v
	}
	d.begin(mc, stale)
	r, err := d.s.Commit(d.ctx, c)
	return d.ended(r, err, mc, stale)
}

func (d *model) update() error {
	c, mc := d.randomChange()
	c.ID, mc.id = "", ""
	if d.r.IntN(2) == 0 {
		mc.id = fmt.Sprintf("up%d", d.r.IntN(10))
	}
	refuse := errors.New("the function refuses")
	if d.r.IntN(6) == 0 {
		_, err := d.s.Update(d.ctx, mc.id, func(pawl.View) (pawl.Change, error) { return pawl.Change{}, refuse })
		switch {
		case d.doubt && !errors.Is(err, pawl.ErrInDoubt),
			!d.doubt && d.set.find(mc.id) == nil && (!errors.Is(err, refuse) || !errors.Is(err, pawl.ErrNotCommitted)),
			!d.doubt && d.set.find(mc.id) != nil && err != nil:
			return fmt.Errorf("an Update whose function fails: %w", err)
		}
		return nil
	}
	if old := d.set.find(mc.id); old != nil { // the function does not run: whatever it was is acknowledged again
		mc = *old
		mc.receipt = nil
	}
	d.begin(mc, false)
	r, err := d.s.Update(d.ctx, mc.id, func(pawl.View) (pawl.Change, error) { return c, nil })
	return d.ended(r, err, mc, false)
}

// begin takes down what a commit would make, for a crash within it.
func (d *model) begin(mc modelCommit, stale bool) {
	empty := mc.id == "" && len(mc.entries)+len(mc.put)+len(mc.del) == 0
	if d.doubt || stale || empty || d.set.find(mc.id) != nil {
		return
	}
	d.begun = d.set.after(mc)
	d.stats.Commits++
}

// ended holds the result of a commit against the model.
func (d *model) ended(r pawl.Receipt, err error, mc modelCommit, stale bool) error {
	if err != nil && errors.Is(err, pawl.ErrInDoubt) == errors.Is(err, pawl.ErrNotCommitted) {
		return fmt.Errorf("not exactly one of in doubt and not committed: %w", err)
	}
	if e := d.surfaced(err); e != nil {
		return e
	}
	old := d.set.find(mc.id)
	d.stats.add(&d.before, d.s.Stats())
	switch {
	case d.doubt:
		return d.inDoubt(err)
	case old != nil && old.same(&mc):
		if err != nil || !r.Replayed || old.receipt != nil && (r.Version != old.receipt.Version || r.FirstSeq != old.receipt.FirstSeq) {
			return fmt.Errorf("the same id again: %+v, %w", r, err)
		}
		return nil
	case old != nil:
		if !errors.Is(err, pawl.ErrIDReused) {
			return fmt.Errorf("the same id with other content: %w", err)
		}
		return nil
	case stale:
		if !errors.Is(err, pawl.ErrStale) {
			return fmt.Errorf("another version was expected: %w", err)
		}
		return nil
	case d.begun == nil:
		if err != nil || int(r.Revision) != len(d.set.commits) {
			return fmt.Errorf("an empty change: %+v, %w", r, err)
		}
		return nil
	case err == nil:
		if int(r.Revision) != len(d.begun.commits) || r.Replayed {
			return fmt.Errorf("acknowledged as %+v, want revision %d", r, len(d.begun.commits))
		}
		if e := d.agrees(d.begun); e != nil {
			return e
		}
		if d.crash != nil { // the machine had crashed before this answer came
			d.maybe = d.begun
			return nil
		}
		d.begun.commits[len(d.begun.commits)-1].receipt = &r
		d.set = d.begun
		return nil
	case d.hit == nil:
		return err
	case errors.Is(err, pawl.ErrInDoubt):
		d.maybe, d.doubt = d.begun, true
		d.stats.Maybe++
	}
	return d.agrees(d.set)
}

// inDoubt holds the error of a call against the doubt that it must be about.
func (d *model) inDoubt(err error) error {
	if !errors.Is(err, pawl.ErrInDoubt) || d.untold && !errors.As(err, new(*InjectedError)) {
		return fmt.Errorf("K10: a change while in doubt: %w", err)
	}
	d.untold = false
	return nil
}

func (m *modelStats) add(before *pawl.Stats, now pawl.Stats) {
	m.Extends += int(now.Batches - before.Batches)
	m.Publishes += int(now.Publishes - before.Publishes)
	*before = now
}

// group makes commits that go to disk together: all of them happen, or none.
func (d *model) group() error {
	n := 2 + d.r.IntN(3)
	next := d.set
	var changes []pawl.Change
	for i := range n {
		mc := modelCommit{entries: []string{fmt.Sprintf("group %d %d", d.r.Uint32(), i)}}
		changes = append(changes, pawl.Change{Entries: [][]byte{[]byte(mc.entries[0])}})
		next = next.after(mc)
	}
	if !d.doubt {
		d.begun = next
		d.stats.Commits += n
		d.stats.Groups++
	}
	queued := false
	receipts, errs := make([]pawl.Receipt, n), make([]error, n)
	var wg sync.WaitGroup
	receipts[0], errs[0] = d.s.Update(d.ctx, "", func(pawl.View) (pawl.Change, error) {
		queued = true
		for i := 1; i < n; i++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				receipts[i], errs[i] = d.s.Commit(d.ctx, changes[i])
			}()
			for d.s.Stats().Waiting < int64(i) {
				runtime.Gosched()
			}
		}
		return changes[0], nil
	})
	wg.Wait()
	err := errs[0]
	for i := 1; i < n && queued; i++ {
		if (errs[i] == nil) != (err == nil) || errors.Is(errs[i], pawl.ErrInDoubt) != errors.Is(err, pawl.ErrInDoubt) {
			return fmt.Errorf("of one batch, a commit ended with %w and another with %w", err, errs[i])
		}
	}
	if e := d.surfaced(err); e != nil {
		return e
	}
	d.stats.add(&d.before, d.s.Stats())
	switch {
	case d.doubt:
		return d.inDoubt(err)
	case err == nil:
		if e := d.agrees(d.begun); e != nil {
			return e
		}
		if d.crash != nil {
			d.maybe = d.begun
			return nil
		}
		commits := d.begun.commits[len(d.begun.commits)-n:]
		for i := range commits {
			if int(receipts[i].Revision) != len(d.set.commits)+i+1 {
				return fmt.Errorf("K2: the batch has the revisions %v", receipts)
			}
			commits[i].receipt = &receipts[i]
		}
		d.set = d.begun
		return nil
	case d.hit == nil:
		return err
	case errors.Is(err, pawl.ErrInDoubt):
		d.maybe, d.doubt = d.begun, true
		d.stats.Maybe++
	}
	return d.agrees(d.set)
}

// checkpoint publishes: the state is the same before and after, and in doubt.
func (d *model) checkpoint() error {
	d.stats.Checkpoints++
	err := d.s.Checkpoint(d.ctx)
	if e := d.surfaced(err); e != nil {
		return e
	}
	switch {
	case d.doubt:
		return d.inDoubt(err)
	case errors.Is(err, pawl.ErrInDoubt):
		d.doubt = true
	}
	if err != nil && d.hit == nil {
		return err
	}
	return d.agrees(d.set)
}

// idle lets the store flush a confirm. When that fails, the next call tells.
func (d *model) idle() error {
	d.p.Idle()
	if d.hit != nil {
		d.doubt, d.untold = true, true
	}
	return d.agrees(d.set)
}

func (d *model) view() error {
	if err := d.agrees(d.set); err != nil {
		return err
	}
	for _, c := range d.set.commits {
		if c.receipt == nil {
			continue
		}
		if ok, err := d.s.View().Contains(*c.receipt); !ok || err != nil {
			return fmt.Errorf("K1: the receipt %v is not in the history: %w", c.receipt, err)
		}
	}
	return nil
}

func (d *model) lookup() error {
	id := fmt.Sprintf("id%d", d.r.IntN(40))
	r, out, err := d.s.Lookup(d.ctx, id)
	want := pawl.OutcomeNotCommitted
	c := d.set.find(id)
	switch {
	case c != nil:
		want = pawl.OutcomeCommitted
	case d.doubt:
		want = pawl.OutcomeUnknown
	}
	if err != nil || out != want || c != nil && c.receipt != nil && c.receipt.Version != r.Version {
		return fmt.Errorf("%s: %v, %v (%w), want %v", id, r, out, err, want)
	}
	return nil
}

func (d *model) recover() error {
	rec, err := d.s.Recover(d.ctx)
	if e := d.surfaced(errors.Join(err, rec.Audit)); e != nil {
		return e
	}
	if err != nil {
		if d.hit == nil {
			return fmt.Errorf("an ordinary crash blocks: %w", err)
		}
		return nil
	}
	if !d.doubt {
		return d.agrees(d.set)
	}
	return d.settled(rec)
}

func (d *model) verify() error {
	err := d.s.Verify(d.ctx, nil)
	if err == nil && d.hit != nil && d.hit.Op == simfs.OpReadAt {
		return nil // half of it was read, and the rest in a second call; the digest has decided
	}
	if e := d.surfaced(err); e != nil || err == nil || d.hit != nil || d.doubt {
		return e
	}
	return err
}

func (d *model) close() error {
	err := d.s.Close()
	d.s = nil
	doubt, untold := d.doubt, d.untold
	d.doubt, d.untold = false, false
	if untold && !errors.As(err, new(*InjectedError)) {
		return fmt.Errorf("K10: Close does not tell that an idle flush failed: %w", err)
	}
	if e := d.surfaced(err); e != nil || err == nil || d.hit != nil || doubt {
		return e
	}
	return err
}

// inspect looks at the store from beside; it changes nothing.
func (d *model) inspect() error {
	before := d.m.Writes()
	if _, err := pawl.Inspect(d.ctx, pawlStore, pawlTrust, nil); err != nil {
		return err
	}
	if d.m.Writes() != before {
		return errors.New("K8: Inspect wrote")
	}
	return nil
}

// modelReport shrinks a history that fails and says how to run it again.
func modelReport(seed uint64, steps []modelStep, err error) string {
	total := len(steps)
	tries := 0
	for size := len(steps) / 2; size > 0 && tries < 3000; size /= 2 {
		for at := 0; at+size <= len(steps) && tries < 3000; tries++ {
			// The number of steps chooses the profile: what is left out is replaced.
			fewer := slices.Clone(steps)
			for i := at; i < at+size; i++ {
				fewer[i] = modelStep{nothing, 0}
			}
			if slices.Equal(fewer, steps) {
				at += size
				continue
			}
			if e := runHistory(fewer, nil); e != nil {
				steps, err = fewer, e
			}
			at += size
		}
	}
	var b strings.Builder
	for i, st := range steps {
		if st.do != nothing {
			fmt.Fprintf(&b, "  %3d %s (%#x)\n", i+1, st.do, st.seed)
		}
	}
	return fmt.Sprintf("%v\n\nshrunk from %d steps:\n%s\nagain: go test ./crashtest -run '^TestModel$' -crash.model.seed=%d", err, total, &b, seed)
}

// TestModelNotices: a model that finds nothing in a store that loses commits is no
// use. Here the disk lies.
func TestModelNotices(t *testing.T) {
	lies := func(c *simfs.Call) simfs.Fault {
		if c.Op.IsSync() {
			return simfs.Fault{Err: syscall.EIO}
		}
		return simfs.Fault{}
	}
	d := &model{set: &modelState{parts: map[string]string{}}, stats: new(modelStats), r: rand.New(rand.NewPCG(1, 1))}
	d.boot(simfs.New(simfs.LyingSync, "/store", "/trust"))
	if err := errors.Join(d.open(), d.commit(), d.commit()); err != nil || len(d.set.commits) == 0 {
		t.Fatal(err, d.set)
	}
	found := 0
	for seed := range uint64(200) {
		e := *d
		e.r = rand.New(rand.NewPCG(seed, 1))
		e.p = nil
		e.die(d.m.Snapshot(), true)
		if err := e.open(); err != nil {
			found++
		}
	}
	if found < 20 {
		t.Errorf("of 200 power cuts on a disk that lies %d are noticed", found)
	}
	d.p.SetHook(lies)
	if _, err := d.s.Commit(d.ctx, pawl.Change{Entries: [][]byte{nil}}); err == nil {
		t.Error("a commit on a disk that cannot flush")
	}
}
