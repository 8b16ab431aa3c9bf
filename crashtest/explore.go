package crashtest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// item is one machine, what must hold on it, and the process that is to run on it:
// the workload for the root, the recovery for a machine that crashed.
type item struct {
	parent  *item
	step    step
	depth   int // crashes so far
	limit   int // crashes in all
	machine *simfs.Machine
	claims  *ledger
	fault   *fault // that the process meets
}

// step says which crash of the parent's process made an item.
type step struct {
	point int // index into the run's points
	disk  int // index of the disk that a power cut left; killed for a kill
}

const killed = -1

// key is what the rest of an exploration depends on.
type key struct{ machine, claims uint64 }

// explorer explores a plan under one profile.
type explorer struct {
	plan    *plan
	profile simfs.Profile
	cut     simfs.CutOptions

	mu      sync.Mutex
	seen    map[key]int // the crashes that could still follow when it was met
	twice   map[key]bool
	stats   Stats
	found   *failure
	stopped atomic.Bool
}

func newExplorer(pl *plan, p simfs.Profile) *explorer {
	return &explorer{plan: pl, profile: p, seen: map[key]int{}, twice: map[key]bool{}, cut: pl.cutOptions()}
}

// explore returns the first failure, or nil: with the fewest crashes where there is
// no fault.
func (x *explorer) explore() *failure {
	root, err := x.prepare()
	if err != nil {
		return err
	}
	root.limit = x.plan.depth
	x.stats.Calls = x.run(root, start{}).calls
	first := x.expandAll([]*item{root})
	for level := first; len(level) > 0 && !x.stopped.Load(); {
		next := x.expandAll(level)
		x.shallower(level)
		level = next
	}
	if x.plan.faults&FaultsInDo != 0 {
		x.expandFaults([]*item{root})
	}
	if x.plan.faults&FaultsInRecover != 0 {
		x.expandFaults(first)
	}
	return x.found
}

// expandAll runs all items, and returns the machines that their crashes leave, in
// order. Those after which no crash may follow are run at once.
func (x *explorer) expandAll(level []*item) (next []*item) {
	children := make([][]*item, len(level))
	x.parallel(len(level), func(i int) { children[i] = x.expand(level[i]) })
	for _, c := range children {
		next = append(next, c...)
	}
	return next
}

// shallower prefers a failure among items to one that a crash of another item led to.
func (x *explorer) shallower(items []*item) {
	for _, it := range items {
		if x.found == nil || x.found.item.depth <= it.depth {
			return
		}
		if err := x.check(it, x.run(it, start{})); err != nil {
			x.fail(it, err)
		}
	}
}

func (x *explorer) parallel(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := int(next.Add(1) - 1); i < n && !x.stopped.Load(); i = int(next.Add(1) - 1) {
				f(i)
			}
		}()
	}
	wg.Wait()
}

func (x *explorer) expand(it *item) (children []*item) {
	r := x.run(it, start{record: it.depth < it.limit})
	if err := x.check(it, r); err != nil {
		x.fail(it, err)
		return nil
	}
	x.crashes(it, r, func(child *item) bool {
		if child.depth < child.limit || x.plan.faults&FaultsInRecover != 0 && it.parent == nil && it.fault == nil {
			children = append(children, child)
		} else if err := x.check(child, x.run(child, start{})); err != nil {
			x.fail(child, err)
		}
		return !x.stopped.Load()
	})
	return children
}

// expandFaults runs each item once for each of its calls and each way in which that
// can fail.
func (x *explorer) expandFaults(items []*item) {
	x.parallel(len(items), func(i int) {
		ops := x.run(items[i], start{ops: true}).ops
		var level []*item
		for _, op := range ops {
			for _, kind := range x.plan.ways(&op) {
				it := *items[i]
				it.limit, it.fault = it.depth+x.plan.faultDepth, &fault{op.Turn, kind}
				level = append(level, &it)
			}
		}
		x.count(func(s *Stats) { s.Faults += len(level) })
		for len(level) > 0 && !x.stopped.Load() {
			var next []*item
			for _, it := range level {
				next = append(next, x.expand(it)...)
			}
			level = next
		}
	})
}

// prepare makes the machine and runs Setup on it.
func (x *explorer) prepare() (*item, *failure) {
	pl := x.plan
	m := simfs.New(x.profile, pl.disks...)
	if len(pl.unexplored) > 0 {
		m.SetScratch(func(name string) bool { return matchAny(pl.unexplored, name) })
	}
	if len(pl.unread) > 0 {
		m.SetUnread(func(name string) bool { return matchAny(pl.unread, name) })
	}
	root := &item{machine: m, claims: emptyLedger}
	if pl.setup == nil {
		return root, nil
	}
	r := pl.play(m, emptyLedger, pl.setup, start{})
	if err := r.verdict("Setup"); err != nil {
		return nil, &failure{item: root, err: err, setup: true}
	}
	m.Flush()
	root.claims = r.claims
	return root, nil
}

// run plays an item on a copy of its machine.
func (x *explorer) run(it *item, how start) *run {
	m, f := it.machine.Snapshot(), x.plan.recover
	how.fault = it.fault
	if it.parent != nil {
		x.count(func(s *Stats) { s.Recoveries++ })
	} else if f = x.plan.do; f == nil {
		f = func(context.Context, *Process) error { return nil }
	}
	return x.plan.play(m, it.claims, f, how)
}

// crashes calls yield with an item for each machine that a crash of r leaves and
// that was not met before.
func (x *explorer) crashes(it *item, r *run, yield func(*item) bool) {
	for i, pt := range r.points {
		if it.fault != nil && (r.fault == nil || pt.turn <= r.fault.Turn) {
			continue // as without the fault
		}
		x.count(func(s *Stats) { s.Points++ })
		claims := pt.claims.sum()
		child := func(sum uint64, disk int, m func() *simfs.Machine) bool {
			if !x.isNew(key{sum, claims}, it.limit-it.depth-1) {
				return true
			}
			return yield(&item{parent: it, step: step{i, disk}, depth: it.depth + 1, limit: it.limit, machine: m(), claims: pt.claims})
		}
		if x.plan.kinds&kill != 0 && !child(pt.machine.Sum(), killed, func() *simfs.Machine { return pt.machine }) {
			return
		}
		if x.plan.kinds&power != 0 && !x.powerCut(pt, child) {
			return
		}
	}
}

func (x *explorer) powerCut(pt point, child func(uint64, int, func() *simfs.Machine) bool) bool {
	cut := pt.machine.Cut(x.cut)
	n, ok := 0, true
	cut.Disks(func(d *simfs.Disk) bool {
		n++
		ok = child(d.Sum, d.Index, d.Machine)
		return ok
	})
	x.count(func(s *Stats) {
		s.Disks += n
		if !cut.Exhaustive() {
			s.Sampled++
		}
	})
	return ok
}

// isNew says whether k was not yet met with as many crashes to follow.
func (x *explorer) isNew(k key, remaining int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, ok := x.seen[k]
	if ok && before >= remaining {
		return false
	}
	x.seen[k] = remaining
	if !ok {
		x.stats.Distinct++
	}
	return true
}

func (x *explorer) count(f func(*Stats)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f(&x.stats)
}
