package crashtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// errBusy is returned by sharer.open when another process holds the lock.
var errBusy = errors.New("busy")

// sharer is a process that shares the toy's files with another one. The lock is held
// from open to close; without it, locks keep nobody out.
type sharer struct {
	*toy
	lock     vfs.File
	lockless bool
}

// open takes the lock, recovers, and says what it found.
func (s *sharer) open(ctx context.Context, p *Process) error {
	d, err := vfs.FromContext(ctx).OpenDir("/store")
	if err != nil {
		return err
	}
	defer d.Close()
	if s.lock, err = d.OpenLock("lock"); err != nil {
		return err
	}
	got, err := s.lock.TryLock()
	if err == nil && !got && !s.lockless {
		err = errBusy
	}
	if err != nil {
		return errors.Join(err, s.lock.Close())
	}
	s.toy = &toy{fs: p.FS(), p: p}
	if err := s.recover(); err != nil {
		return err
	}
	p.Observe(s.state)
	return nil
}

func (s *sharer) commits(n int) error {
	for i := range n {
		label := fmt.Sprintf("v%d.%d", s.p.Number(), i)
		s.p.Begin(label)
		err := s.commit(label)
		s.p.End(label, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// session is all that a process does: open, n commits, close.
func (s *sharer) session(ctx context.Context, p *Process, n int) error {
	if err := s.open(ctx, p); err != nil {
		return err
	}
	return errors.Join(s.commits(n), s.lock.Close())
}

// exploreShared is the toy with a workload of its own, and recoveries that take the
// lock.
func exploreShared(c *C, do Func) {
	exploreToy(c, "")
	c.Unexplored("/store/lock")
	c.Do(do)
	c.Recover(func(ctx context.Context, p *Process) error { return new(sharer).session(ctx, p, 1) })
}

// killedBeside is a workload in which a second process is killed just before its nth
// mutating call, with the lock in its hands unless that is its first, and the first one
// goes on. mutations, where it is not nil, gets how many there are without a kill.
func killedBeside(n int, mutations *int) Func {
	return func(ctx context.Context, p *Process) error {
		qctx, q := p.Beside(ctx)
		q.KillAt(n)
		s := new(sharer)
		err := s.open(qctx, q)
		if err == nil {
			err = s.commits(2)
		}
		if n > 0 && !errors.Is(err, ErrKilled) || n == 0 && err != nil {
			return fmt.Errorf("to be killed at %d: %w", n, err)
		}
		if mutations != nil {
			*mutations = q.Mutations()
		}
		if n == 0 { // it lives, and holds the lock: the other stays out, until it does not
			if err := new(sharer).open(ctx, p); !errors.Is(err, errBusy) {
				return fmt.Errorf("beside a holder of the lock: %w", err)
			}
			q.Kill()
			if err := s.lock.Close(); !errors.Is(err, ErrKilled) {
				return fmt.Errorf("a call after Kill: %w", err)
			}
		}
		return new(sharer).session(ctx, p, 1)
	}
}

// TestBesideKilled: a process that is killed at each of its steps, holding the lock,
// leaves the lock to the other, which recovers from what is visible and goes on, and
// every crash of all this recovers.
func TestBesideKilled(t *testing.T) {
	n := 0
	if f := explorerFor(simfs.PosixMinimal, func(c *C) {
		exploreShared(c, killedBeside(0, &n))
		c.kinds = 0
	}).explore(); f != nil {
		t.Fatal(f.err)
	}
	if n < 20 {
		t.Fatalf("a session makes %d mutating calls", n)
	}
	for at := range n + 1 {
		if testing.Short() && at%5 != 0 {
			continue
		}
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			Run(t, func(c *C) {
				exploreShared(c, killedBeside(at, nil))
				if raced {
					c.Depth(1)
				}
			})
		})
	}
}

// inTurns is a workload in which a second process opens before the first commits, and
// commits after it.
func inTurns(lockless bool) Func {
	return func(ctx context.Context, p *Process) error {
		a, b := &sharer{lockless: lockless}, &sharer{lockless: lockless}
		qctx, q := p.Beside(ctx)
		if err := a.open(ctx, p); err != nil {
			return err
		}
		err := b.open(qctx, q)
		if lockless == errors.Is(err, errBusy) {
			return fmt.Errorf("the second open: %w", err)
		}
		if err := errors.Join(a.commits(1), a.lock.Close()); err != nil {
			return err
		}
		if lockless {
			return errors.Join(b.commits(1), b.lock.Close())
		}
		return b.session(qctx, q, 1)
	}
}

// TestBesideWithoutALock: two that think they are alone are caught, and the lock is what
// helps. The token of the failure leads to it again, and its report tells of both.
func TestBesideWithoutALock(t *testing.T) {
	Run(t, func(c *C) { exploreShared(c, inTurns(false)) })
	explore := func() (*explorer, *failure) {
		x := explorerFor(simfs.PosixMinimal, func(c *C) { exploreShared(c, inTurns(true)) })
		return x, x.explore()
	}
	x, f := explore()
	if f == nil {
		t.Fatal("nothing found")
	}
	report := x.report("TestX", f)
	_, rest, _ := strings.Cut(report, "-crash.replay='")
	token, _, _ := strings.Cut(rest, "'")
	_, _, legs, err := parseToken(token)
	if err != nil {
		t.Fatalf("%v in\n%s", err, report)
	}
	for range 3 {
		y, _ := explore()
		acts, broken, err := y.replay(legs)
		if err != nil || broken == nil || !strings.HasPrefix(report, "crashtest: "+broken.Error()) {
			t.Fatalf("%s gave %v, %v; the report was\n%s", token, broken, err, report)
		}
		if story := y.story(acts); !strings.Contains(report, story) {
			t.Errorf("%s told\n%s\nand the report\n%s", token, story, report)
		}
	}
	for _, want := range []string{"processes 2 and 3, the workload", "\n  2.", "\n  3.", "process 4, recovery"} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in\n%s", want, report)
		}
	}
	t.Logf("\n%s", report)
}

// TestBesideAtEachStep: the same, where the whole session of the second falls between
// two calls of the first.
func TestBesideAtEachStep(t *testing.T) {
	at := func(n int, lockless bool, steps *int) Func {
		return func(ctx context.Context, p *Process) error {
			qctx, q := p.Beside(ctx)
			made, met := 0, error(nil)
			a := &sharer{lockless: lockless}
			step := func() {
				if made++; made == n {
					met = (&sharer{lockless: lockless}).session(qctx, q, 1)
				}
			}
			err := a.open(ctx, p)
			if err != nil {
				return err
			}
			a.fs = &FS{&simfs.Stepper{Process: p.sim, Step: step}}
			err = errors.Join(a.commits(2), a.lock.Close())
			if steps != nil {
				*steps = made
			}
			if errors.Is(met, errBusy) && !lockless {
				met = nil
			}
			return errors.Join(err, met)
		}
	}
	explore := func(n int, lockless bool, steps *int) *failure {
		return explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreShared(c, at(n, lockless, steps))
			c.depth = 1
			if steps != nil {
				c.kinds = 0
			}
		}).explore()
	}
	steps := 0
	if f := explore(0, false, &steps); f != nil || steps < 50 {
		t.Fatalf("%d steps, %v", steps, f)
	}
	caught := 0
	for n := 1; n <= steps; n += 5 {
		if f := explore(n, false, nil); f != nil {
			t.Errorf("with the lock, at step %d: %v", n, f.err)
		}
		if explore(n, true, nil) != nil {
			caught++
		}
	}
	if tried := (steps + 4) / 5; caught < tried*3/4 {
		t.Errorf("without the lock, caught at %d of %d steps", caught, tried)
	}
}

// TestBesideSharesTheLedger: what one process claims holds for the other, and for what
// comes after both; what a killed one says is not heard.
func TestBesideSharesTheLedger(t *testing.T) {
	for _, k := range []struct {
		name, want string
		do         func(p, q *Process)
	}{
		{"nothing", "", func(p, q *Process) {}},
		{"begun by the one, observed by the other", "", func(p, q *Process) { p.Begin("a"); q.Observe("a"); p.Observe("a") }},
		{"acknowledged by the one, lost for the other", "K1", func(p, q *Process) { p.Begin("a"); p.End("a", nil); q.Observe("v0") }},
		{"the other way round", "K1", func(p, q *Process) { q.Begin("a"); q.End("a", nil); p.Observe("v0") }},
		{"one label twice", "twice", func(p, q *Process) { p.Begin("a"); q.Begin("a") }},
		{"in doubt, and the other goes on", "K10", func(p, q *Process) {
			p.Begin("a")
			p.End("a", errors.New("?"))
			q.Begin("b")
			q.End("b", nil)
		}},
		{"killed in between", "", func(p, q *Process) {
			q.Begin("a")
			q.Kill()
			q.End("a", errors.New("?"))
			q.Observe("never")
			p.Begin("b")
			p.End("b", nil)
		}},
		{"killed, and then acknowledged", "", func(p, q *Process) {
			q.Begin("a")
			q.Kill()
			q.End("a", nil)
			p.Observe("v0")
		}},
		{"the first is killed", "K1", func(p, q *Process) {
			p.Kill()
			p.Observe("never")
			q.Begin("a")
			q.End("a", nil)
			q.Observe("v0")
		}},
	} {
		x := explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreToy(c, "")
			c.kinds = 0
			c.Do(func(ctx context.Context, p *Process) error {
				_, q := p.Beside(ctx)
				k.do(p, q)
				return nil
			})
		})
		switch f := x.explore(); {
		case k.want == "" && f != nil:
			t.Errorf("%s: %v", k.name, f.err)
		case k.want != "" && (f == nil || !strings.Contains(f.err.Error(), k.want)):
			t.Errorf("%s: %v, want %s", k.name, f, k.want)
		}
	}
}

// TestBesideIsOneRun: the calls of both are numbered, recorded and made to fail as those
// of one, what either breaks counts, and the end of the Func is the end of both.
func TestBesideIsOneRun(t *testing.T) {
	var first, second *Process
	do := func(ctx context.Context, p *Process) error {
		_, q := p.Beside(ctx)
		first, second = p, q
		for _, s := range []struct {
			p    *Process
			name string
		}{{p, "1"}, {q, "2"}, {q, "3"}, {p, "4"}} {
			if err := s.p.FS().Create("/store/"+s.name, nil); err != nil {
				return err
			}
		}
		return nil
	}
	x := explorerFor(simfs.PosixMinimal, func(c *C) {
		exploreToy(c, "")
		c.Do(do)
	})
	root, f := x.prepare()
	if f != nil {
		t.Fatal(f.err)
	}
	r := x.run(root, start{record: true, log: true, ops: true})
	if r.err != nil || first.Number() != 2 || second.Number() != 3 || first.Mutations() != 2 || second.Mutations() != 2 {
		t.Fatalf("%v; processes %d, %d", r.err, first.Number(), second.Number())
	}
	if _, err := second.FS().ReadDir("/store"); !errors.Is(err, ErrKilled) {
		t.Errorf("after the run: %v", err)
	}
	var log []string
	for _, c := range r.log {
		log = append(log, c.String())
	}
	if got := strings.Join(log, ", "); got != "2.2 create /store/1, 3.2 create /store/2, 3.6 create /store/3, 2.6 create /store/4" {
		t.Error(got)
	}
	for i, op := range r.ops {
		if op.Turn != i+1 {
			t.Errorf("call %d has turn %d", i+1, op.Turn)
		}
	}
	if r.calls != 16 || len(r.points) != 5 {
		t.Fatalf("%d calls, %d points", r.calls, len(r.points))
	}
	for i, turn := range []int{2, 6, 10, 14, 17} {
		pt := r.points[i]
		if files := len(pt.machine.Image().Under("/store")); pt.turn != turn || files != i+1 {
			t.Errorf("point %d is before call %d, with %d names", i, pt.turn, files)
		}
	}
	for i, op := range r.ops { // each call can be made to fail, and only that
		it := *root
		it.fault = &fault{op.Turn, faultEIO}
		r := x.run(&it, start{})
		if r.fault == nil || r.fault.ID != op.ID || op.Op != simfs.OpClose && r.err == nil {
			t.Errorf("fault at call %d: met by %v, %v", i+1, r.fault, r.err)
		}
	}
	// Crashes before the fault are those of the run without it.
	it := *root
	it.fault, it.limit = &fault{r.ops[9].Turn, faultEIO}, 1
	x.crashes(&it, x.run(&it, start{record: true}), func(*item) bool { return true })
	if it.fault.n != 10 || x.stats.Points != 1 {
		t.Errorf("after a fault in call %d, %d crash points", it.fault.n, x.stats.Points)
	}
	// The story of a crash has the calls before it, and of each what became of it.
	acts, broken, err := x.replay([]leg{{step: step{point: 3}}, {}})
	if err != nil || broken != nil {
		t.Fatal(broken, err)
	}
	story := x.story(acts)
	if strings.Count(story, "/store/3   [") != 1 || strings.Contains(story, "left by") || strings.Contains(story, "/store/4") {
		t.Error(story)
	}
	x.plan.immutable = []string{"/store/3"}
	x.plan.do = func(ctx context.Context, p *Process) error {
		err := do(ctx, p)
		return errors.Join(err, first.FS().WriteAt("/store/1", []byte{1}, 0), ignore(second.FS().WriteAt("/store/3", []byte{1}, 0)))
	}
	if f := x.explore(); f == nil || !errors.Is(f.err, simfs.ErrViolation) || !strings.Contains(f.err.Error(), "/store/3 is immutable") {
		t.Errorf("what the second broke: %v", f)
	}
}

func ignore(error) error { return nil }

// TestBesideUnderFaults: with failing calls in either of two that take turns.
func TestBesideUnderFaults(t *testing.T) {
	Run(t, func(c *C) {
		exploreShared(c, inTurns(false))
		c.Depth(1)
		c.Faults(FaultsInDo, 1)
		c.MaySwallow(func(c Call) bool { return c.Op == "close" })
	})
}

// TestBesideTwice: a second recovery may have a second process too, and the first to
// observe is the one that must not have written.
func TestBesideTwice(t *testing.T) {
	explore := func(early bool) *failure {
		return explorerFor(simfs.PosixMinimal, func(c *C) {
			exploreShared(c, inTurns(false))
			sound := c.recover
			c.Recover(func(ctx context.Context, p *Process) error {
				qctx, q := p.Beside(ctx)
				if name := fmt.Sprintf("/store/tmp-early%d", q.Number()); early {
					if err := errors.Join(q.FS().Create(name, nil), q.FS().Remove(name)); err != nil {
						return err
					}
				}
				return errors.Join(sound(ctx, p), sound(qctx, q))
			})
			c.depth = 1
			c.RecoverTwice()
		}).explore()
	}
	if f := explore(false); f != nil {
		t.Error(f.err)
	}
	if f := explore(true); f == nil || !strings.Contains(f.err.Error(), "K7") {
		t.Errorf("a second process that writes first: %v", f)
	}
}
