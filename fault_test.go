//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// faultKind is one way in which calls go wrong.
type faultKind struct {
	name   string
	action faultfs.Action
	only   func(faultfs.Call) bool // which calls can go wrong in this way
	sticky bool                    // every call from the first on, until the operation has returned
	long   bool                    // not with -short
}

// faultKinds are all of them: errors before and after the call has had its effect,
// once or again and again, and transfers that stop half way.
func faultKinds() []faultKind {
	effects := func(c faultfs.Call) bool { return c.Mutates() || c.Op == "TryLock" || strings.HasPrefix(c.Op, "Open") }
	reads := func(c faultfs.Call) bool { return c.Op == "ReadAt" }
	writes := func(c faultfs.Call) bool { return c.Op == "WriteAt" }
	fails := func(err error) faultfs.Action { return faultfs.Action{Err: err} }
	done := func(err error) faultfs.Action { return faultfs.Action{Err: err, Done: true} }
	half := func(err error) faultfs.Action { return faultfs.Action{Err: err, Half: true} }
	return []faultKind{
		{name: "EIO", action: fails(syscall.EIO)},
		{name: "EIO, sticky", action: fails(syscall.EIO), sticky: true},
		{name: "EIO, done", action: done(syscall.EIO), only: effects},
		{name: "EIO, done, sticky", action: done(syscall.EIO), only: effects, sticky: true, long: true},
		{name: "ENOSPC", action: fails(syscall.ENOSPC), only: effects, long: true},
		{name: "ENOSPC, sticky", action: fails(syscall.ENOSPC), only: effects, sticky: true, long: true},
		{name: "ENOSPC, done", action: done(syscall.ENOSPC), only: effects, long: true},
		{name: "EINTR", action: fails(syscall.EINTR), long: true},
		{name: "EINTR, sticky", action: fails(syscall.EINTR), only: effects, sticky: true, long: true},
		{name: "EINTR, done", action: done(syscall.EINTR), only: effects, long: true},
		{name: "short write", action: half(nil), only: writes},
		{name: "short write, ENOSPC", action: half(syscall.ENOSPC), only: writes},
		{name: "short write, EIO", action: half(syscall.EIO), only: writes},
		{name: "short read", action: half(nil), only: reads},
		{name: "short read, EIO", action: half(syscall.EIO), only: reads},
	}
}

// tolerated are the calls whose failure need not be an error of the operation, each
// with the reason. All others must surface.
var tolerated = []struct {
	call string // a regular expression for the call's name
	why  string
}{
	{`^(session/lock|trust/session\.lock) (WriteAt|ReadAt) `, "the line about the owner is for messages only"},
	{`^(session/bundle|trust/session\.trust) Close$`, "a handle that was read from, or whose bytes are flushed, has nothing to lose"},
	{`^(above|\.|trust|session) Close$`, "a directory handle has nothing to lose; each flush was asked for its own error"},
	{`^(session/|trust/session\.)tmp-\* (Lstat|Remove)$`, "a temp that cannot be removed now stays for the next sweep"},
	{`^session/journal\.\d+ (Lstat|Remove)$`, "a journal that a bundle has replaced and that cannot be removed now stays for the next sweep"},
	{`^session/journal\.\d+ Close$`, "a handle whose bytes are flushed, or belong to nothing any more, has nothing to lose"},
}

// faultRun is one run of a script with one fault in it.
type faultRun struct {
	t         *testing.T
	r         *rig
	kind      faultKind
	opts      *Options
	plan      *faultfs.Plan
	reopen    bool // settle doubts by opening again, not by Recover
	before    *Report
	usedRules map[int]bool
	label     string

	seen    int // of the plan's fired calls, those that were accounted for
	doubted bool
	intent  bool // Close was in doubt, and has left one
}

func (x *faultRun) errorf(format string, args ...any) {
	x.t.Helper()
	x.t.Errorf("%s: %s", x.label, fmt.Sprintf(format, args...))
}

// surfaced holds an operation's error against the calls that failed in it, and
// reports whether it failed.
func (x *faultRun) surfaced(op string, err error, audit error) bool {
	x.t.Helper()
	fired := x.plan.Fired()[x.seen:]
	x.seen += len(fired)
	if len(fired) > 0 {
		x.plan.Lift() // a sticky fault lasts for one operation
	}
	var e *Error
	switch {
	case err != nil && len(fired) == 0:
		x.errorf("%s failed without a fault: %v", op, err)
	case err != nil && x.kind.action.Err == nil:
		x.errorf("%s failed though the rest could be transferred: %v", op, err)
	case err != nil && (!errors.Is(err, faultfs.ErrInjected) || !errors.Is(err, x.kind.action.Err)):
		x.errorf("%s: %q failed with %v, and the error is %v", op, fired, x.kind.action.Err, err)
	case err != nil && (!errors.As(err, &e) || e.Op != strings.ToLower(op) || e.Path == ""): // R7
		x.errorf("%s: no error of pawl: %#v", op, err)
	case err == nil && x.kind.action.Err != nil:
		for _, c := range fired {
			if !errors.Is(audit, x.kind.action.Err) && !x.tolerated(c) {
				x.errorf("%s: %q failed, and there was no error", op, c)
			}
		}
	}
	return err != nil
}

func (x *faultRun) tolerated(c faultfs.Call) bool {
	for i, rule := range tolerated {
		if regexp.MustCompile(rule.call).MatchString(c.String()) {
			x.usedRules[i] = true
			return true
		}
	}
	return false
}

// open opens the store, which must come to the given revision. When the fault got in
// the way it has changed nothing that counts, and without it the store opens.
func (x *faultRun) open(revision int) *Store {
	x.t.Helper()
	s, err := x.r.open()
	var audit error
	if err == nil {
		audit = s.Recovery().Audit
	}
	if x.surfaced("Open", err, audit) {
		before := x.before
		if after := x.r.picture(); after.Found != before.Found || after.Verdict != before.Verdict && after.Verdict != "clean" && after.Verdict != "create" {
			x.errorf("an open that failed made of %s (%+v) %s (%+v)", before.Verdict, before.Found, after.Verdict, after.Found)
		}
		if s, err = x.r.open(); err != nil {
			x.t.Fatalf("%s: without the fault the store does not open: %v", x.label, err)
		}
	}
	if err := checkNth(s.View(), revision); err != nil {
		x.errorf("opened: %v", err)
	}
	return s
}

// picture is what Inspect says, by a file system without faults.
func (r *rig) picture() *Report {
	r.t.Helper()
	report, err := Inspect(context.Background(), r.dir, r.trust, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

// commit makes revision i. When the fault gets in the way it does what a caller
// would, and the commit is made in the end, once.
func (x *faultRun) commit(s *Store, i int, update bool) *Store {
	x.t.Helper()
	ran := false
	do := func() (Receipt, error) {
		if update {
			return s.Update(x.r.ctx(), nthChange(i).ID, func(View) (Change, error) { ran = true; return nthChange(i), nil })
		}
		return s.Commit(x.r.ctx(), nthChange(i))
	}
	op := map[bool]string{false: "Commit", true: "Update"}[update]
	old := s.root
	receipt, err := do()
	if !x.surfaced(op, err, nil) {
		if receipt.Revision != Revision(i) || receipt.Replayed {
			x.errorf("acknowledged as %+v", receipt)
		}
		return s
	}
	certain, doubt := errors.Is(err, ErrNotCommitted), errors.Is(err, ErrInDoubt)
	if certain == doubt {
		x.errorf("the error matches both or none of ErrNotCommitted and ErrInDoubt: %v", err)
	}
	// Memory moves only after disk: whatever is true, it is not shown yet.
	if err := checkNth(s.View(), i-1); err != nil {
		x.errorf("after an error: %v", err)
	}
	id := nthChange(i).ID
	_, outcome, err := s.Lookup(x.r.ctx(), id)
	replay := false
	switch {
	case certain:
		if outcome != OutcomeNotCommitted || err != nil {
			x.errorf("Lookup after ErrNotCommitted: %v, %v", outcome, err)
		}
		x.unharmed(old)
	default:
		x.doubted = true
		if outcome != OutcomeUnknown || err != nil {
			x.errorf("Lookup after ErrInDoubt: %v, %v", outcome, err)
		}
		s, replay = x.settle(s, i, &ran, do)
	}
	// The store goes on; and a caller that asks again is never told anything else
	// than what was found (R1).
	if receipt, err = do(); err != nil || receipt.Revision != Revision(i) || receipt.Replayed != replay {
		x.errorf("%s again: %+v, %v; want revision %d, replayed: %v", op, receipt, err, i, replay)
	}
	if err := checkNth(s.View(), i); err != nil {
		x.errorf("committed again: %v", err)
	}
	return s
}

// unharmed checks both directories after a commit that did not happen: bundle and
// journal are what they were, the intent is taken back, and no temp is left but one
// that could not be removed, or that was made by a call that said it was not (R11).
func (x *faultRun) unharmed(old Root) {
	x.t.Helper()
	r := x.r.picture()
	if r.Verdict != "clean" && r.Verdict != "create" || r.Found != old || r.Confirmed != old || r.Pending != (Root{}) {
		x.errorf("after ErrNotCommitted there is not what there was, %s, but %+v", old.short(), r)
	}
	excused := x.kind.sticky
	for _, c := range x.plan.Fired() {
		excused = excused || c.Op == "Remove" || c.Op == "Create" && x.kind.action.Done
	}
	if temps := testkit.Temps(x.t, x.r.base); temps != nil && !excused {
		x.errorf("after ErrNotCommitted there are temps: %v", temps)
	}
}

// settle brings a store out of doubt, by Recover or by a new Open, and tells whether
// the commit has happened.
func (x *faultRun) settle(s *Store, i int, ran *bool, do func() (Receipt, error)) (_ *Store, happened bool) {
	x.t.Helper()
	// 7: until then every change is refused for the same reason, and nothing is
	// written. Nor is it by Close, which has nothing to say about the state.
	x.r.fs.Set(nil)
	*ran = false
	if _, err := do(); !errors.Is(err, ErrInDoubt) || errors.Is(err, ErrNotCommitted) || !errors.Is(err, x.kind.action.Err) || *ran {
		x.errorf("a commit after one in doubt: %v (Update's function ran: %v)", err, *ran)
	}
	if err := s.Checkpoint(x.r.ctx()); !errors.Is(err, ErrInDoubt) {
		x.errorf("Checkpoint in doubt: %v", err)
	}
	if _, outcome, err := s.Lookup(x.r.ctx(), "c1"); i > 1 && (outcome != OutcomeCommitted || err != nil) {
		x.errorf("Lookup of an earlier commit, in doubt: %v, %v", outcome, err)
	}
	if calls := x.r.fs.Mutating(); len(calls) > 0 {
		x.errorf("in doubt, and it wrote: %v", calls)
	}
	var rec Recovery
	if x.reopen {
		if err := s.Close(); err != nil {
			x.errorf("Close in doubt: %v", err)
		}
		if calls := x.r.fs.Mutating(); len(calls) > 0 {
			x.errorf("Close in doubt wrote: %v", calls)
		}
		var err error
		if s, err = x.r.open(); err != nil {
			x.t.Fatalf("%s: a store in doubt does not open again: %v", x.label, err)
		}
		rec = s.Recovery()
	} else {
		if x.kind.sticky {
			again := &faultfs.Plan{N: 1, Sticky: true, Action: x.kind.action}
			x.r.fs.Set(again.Hook)
			if _, err := s.Recover(x.r.ctx()); !errors.Is(err, x.kind.action.Err) {
				x.errorf("Recover while the fault lasts: %v", err)
			}
			if _, err := do(); !errors.Is(err, ErrInDoubt) {
				x.errorf("a commit after a Recover that failed: %v", err)
			}
			x.r.fs.Set(nil)
		}
		var err error
		if rec, err = s.Recover(x.r.ctx()); err != nil {
			x.t.Fatalf("%s: Recover: %v", x.label, err)
		}
		if diff := cmp.Diff(rec, s.Recovery()); diff != "" {
			x.errorf("Recover and Recovery differ: %s", diff)
		}
	}
	now := int(s.View().Version().Revision)
	if now != i && now != i-1 {
		x.errorf("settled on revision %d; in doubt was %d", now, i)
	}
	if err := checkNth(s.View(), now); err != nil {
		x.errorf("settled: %v", err)
	}
	happened = now == i
	receipt, outcome, err := s.Lookup(x.r.ctx(), nthChange(i).ID)
	if want := map[bool]Outcome{true: OutcomeCommitted, false: OutcomeNotCommitted}[happened]; outcome != want || err != nil ||
		happened != (receipt.Revision == Revision(i)) {
		x.errorf("Lookup after settling on revision %d: %v, %v, %v", now, receipt, outcome, err)
	}
	if rec.Settled == SettledLanded && !happened || rec.Settled == SettledNotLanded && happened {
		x.errorf("%v, and the state is at revision %d", rec.Settled, now)
	}
	return s, happened
}

// close closes the store. When the fault gets in the way, nothing is held any more
// all the same.
func (x *faultRun) close(s *Store) {
	x.t.Helper()
	err := s.Close()
	x.surfaced("Close", err, nil)
	x.intent = errors.Is(err, ErrInDoubt)
	if err := s.Close(); err != nil {
		x.errorf("Close again: %v", err)
	}
}

// faultScripts are what the faults are put into. Each begins with a directory as
// rig.prepare makes it, and ends with a closed store at the revision it returns.
var faultScripts = []struct {
	name, from string
	opts       *Options
	run        func(x *faultRun) int
	long       bool // not with -short
}{
	{"create", "nothing", nil, func(x *faultRun) int { return x.opening(0) }, false},
	{"open", "one", nil, func(x *faultRun) int { return x.opening(1) }, false},
	{"open a journal", "journal", nil, func(x *faultRun) int { return x.opening(2) }, false},
	{"open beside an old journal", "checkpoint confirmed", nil, func(x *faultRun) int { return x.opening(2) }, true},
	{"settle landed", "landed", nil, func(x *faultRun) int { return x.opening(2) }, false},
	{"settle not landed", "not landed", nil, func(x *faultRun) int { return x.opening(1) }, false},
	{"settle first landed", "first landed", nil, func(x *faultRun) int { return x.opening(1) }, false},
	{"settle first not landed", "first not landed", nil, func(x *faultRun) int { return x.opening(0) }, false},
	{"settle making landed", "making landed", nil, func(x *faultRun) int { return x.opening(2) }, false},
	{"settle making not landed", "making not landed", nil, func(x *faultRun) int { return x.opening(1) }, true},
	{"settle extend landed", "extend landed", nil, func(x *faultRun) int { return x.opening(3) }, false},
	{"settle extend not landed", "extend torn", nil, func(x *faultRun) int { return x.opening(2) }, false},
	{"settle checkpoint landed", "checkpoint landed", nil, func(x *faultRun) int { return x.opening(2) }, false},
	{"settle checkpoint not landed", "checkpoint not landed", nil, func(x *faultRun) int { return x.opening(2) }, true},
	{"first commit, next, close", "empty", publishing(), func(x *faultRun) int { return x.committing(0, false) }, false},
	{"commit, next, close", "one", publishing(), func(x *faultRun) int { return x.committing(1, false) }, false},
	{"first commit, make, idle, close", "empty", small(4), func(x *faultRun) int { return x.committing(0, true) }, true},
	{"make, extend, close", "one", roomy(), func(x *faultRun) int { return x.committing(1, false) }, true},
	{"extend, idle, extend, idle, close", "journal", roomy(), func(x *faultRun) int { return x.committing(2, true) }, false},
	{"extend, extend, close, with confirms flushed", "journal", syncing(), func(x *faultRun) int { return x.committing(2, false) }, true},
	{"make, publish for lack of room, close", "one", small(2), func(x *faultRun) int { return x.committing(1, false) }, false},
	{"make, extend, close with a publish", "one", small(4), func(x *faultRun) int { return x.committing(1, false) }, false},
	{"checkpoint, commit, close", "journal", roomy(), func(x *faultRun) int { return x.checkpointing(2) }, false},
	{"recover landed", "one", publishing(), func(x *faultRun) int { return x.recovering("session Sync", 2) }, false},
	{"recover not landed", "one", publishing(), func(x *faultRun) int { return x.recovering("trust Sync", 1) }, false},
	{"recover making landed", "one", small(4), func(x *faultRun) int { return x.recovering("session Sync", 2) }, false},
	{"recover making not landed", "one", small(4), func(x *faultRun) int { return x.recovering("trust Sync", 1) }, true},
	{"recover extend landed", "journal", roomy(), func(x *faultRun) int { return x.recovering(firstJournal+" SyncData", 3) }, false},
	{"recover extend not landed", "journal", roomy(), func(x *faultRun) int { return x.recovering("trust Sync", 2) }, true},
	{"recover a confirm", "journal", roomy(), func(x *faultRun) int { return x.recovering("trust/session.trust SyncData", 3) }, false},
}

// small are options with which a journal has so many blocks, the first of them for its
// header.
func small(blocks int64) *Options { return &Options{Limits: Limits{Journal: blocks * blockSize}} }

// roomy are options with which a journal that prepare has made is small enough not to
// be published by Close.
func roomy() *Options { return &Options{Limits: Limits{Journal: 1 << 20}} }

func syncing() *Options {
	o := roomy()
	o.SyncConfirm = true
	return o
}

// opening has the fault in Open, and in Close when nothing was committed.
func (x *faultRun) opening(revision int) int {
	s := x.open(revision)
	x.close(s)
	return revision
}

// committing has the fault in two commits, one with a trust file made anew and one in
// place, by Update, in what the store does when it is idle after each, and in Close.
func (x *faultRun) committing(revision int, idle bool) int {
	x.t.Helper()
	s := x.begin()
	for i := range 2 {
		s = x.commit(s, revision+1+i, i == 1)
		if idle {
			x.r.machine.idle() // what fails here is the error of the commit that comes next
		}
	}
	if x.seen < len(x.plan.Fired()) {
		_, err := s.Commit(x.r.ctx(), nthChange(revision+3))
		if x.surfaced("Commit", err, nil); !errors.Is(err, ErrInDoubt) {
			x.errorf("a commit after a confirm that was not flushed: %v", err)
		}
	}
	x.close(s)
	return revision + 2
}

// checkpointing has the fault in Checkpoint, and in a commit and Close after it.
func (x *faultRun) checkpointing(revision int) int {
	x.t.Helper()
	s := x.begin()
	old := s.root
	err := s.Checkpoint(x.r.ctx())
	if x.surfaced("Checkpoint", err, nil) {
		if errors.Is(err, ErrInDoubt) {
			x.doubted = true
			if _, err := s.Commit(x.r.ctx(), nthChange(revision+1)); !errors.Is(err, ErrInDoubt) {
				x.errorf("a commit after a Checkpoint in doubt: %v", err)
			}
			if x.reopen {
				if err := s.Close(); err != nil {
					x.errorf("Close in doubt: %v", err)
				}
				s, err = x.r.open()
			} else {
				_, err = s.Recover(x.r.ctx())
			}
			if err != nil {
				x.t.Fatalf("%s: %v", x.label, err)
			}
		} else {
			x.unharmed(old)
		}
		if err := checkNth(s.View(), revision); err != nil {
			x.errorf("after a Checkpoint that failed: %v", err)
		}
	} else if s.root.Journal != 0 || s.root.Revision != old.Revision || s.root.Epoch != old.Epoch+1 {
		x.errorf("Checkpoint made %+v of %+v", s.root, old)
	}
	s = x.commit(s, revision+1, false)
	x.close(s)
	return revision + 1
}

// begin opens the store, and begins with the fault then.
func (x *faultRun) begin() *Store {
	x.t.Helper()
	x.r.fs.Set(nil)
	s, err := x.r.open()
	if err != nil {
		x.t.Fatal(err)
	}
	x.inject()
	return s
}

// recovering brings a store into doubt by a fault of its own, at a flush in a commit
// or in what the store does when it is idle after that, and has the other fault in
// what Recover does.
func (x *faultRun) recovering(at string, revision int) int {
	x.t.Helper()
	s := x.begin()
	next := int(s.View().Version().Revision) + 1
	doubt := &faultfs.Plan{N: 1, Only: func(c faultfs.Call) bool { return c.String() == at }, Action: faultfs.Action{Err: syscall.EIO}}
	x.r.fs.Set(doubt.Hook)
	_, err := s.Commit(x.r.ctx(), nthChange(next))
	if err == nil {
		x.r.machine.idle()
		_, err = s.Commit(x.r.ctx(), nthChange(next))
	}
	if !errors.Is(err, ErrInDoubt) {
		x.t.Fatalf("%s: a flush that failed: %v", x.label, err)
	}
	x.inject()
	rec, err := s.Recover(x.r.ctx())
	if x.surfaced("Recover", err, rec.Audit) {
		x.doubted = true
		if _, err := s.Commit(x.r.ctx(), nthChange(next)); !errors.Is(err, ErrInDoubt) {
			x.errorf("a commit after a Recover that failed: %v", err)
		}
		if x.reopen {
			if err := s.Close(); err != nil {
				x.errorf("Close in doubt: %v", err)
			}
			s, err = x.r.open()
		} else {
			_, err = s.Recover(x.r.ctx())
		}
		if err != nil {
			x.t.Fatalf("%s: without the fault: %v", x.label, err)
		}
	}
	x.r.fs.Set(nil)
	if err := checkNth(s.View(), revision); err != nil {
		x.errorf("recovered: %v", err)
	}
	r, err := s.Commit(x.r.ctx(), nthChange(next))
	if err != nil || r.Revision != Revision(next) || r.Replayed != (revision == next) {
		x.errorf("the commit that was in doubt, again: %+v, %v", r, err)
	}
	if err := s.Close(); err != nil {
		x.errorf("Close: %v", err)
	}
	return next
}

// faultStep is 1 where every call is failed. Under Wine a call takes long, and what is
// tested is the same code.
var faultStep = map[bool]int{false: 1, true: 80}[onWindows]

// TestFaults fails every call of every script, one after the other, in every way.
// Whatever fails: the error comes out and says what is true, the store goes on or
// settles, nothing acknowledged is lost, nothing is left behind, and without the
// fault the store opens. 7, 8, 20, 21 and R7, R11 are kinds of it.
func TestFaults(t *testing.T) {
	var mu sync.Mutex
	used, doubts, runs := map[int]bool{}, 0, 0
	t.Run("scripts", func(t *testing.T) {
		for _, script := range faultScripts {
			if testing.Short() && script.long {
				continue
			}
			t.Run(script.name, func(t *testing.T) {
				t.Parallel()
				top := newRig(t)
				from := top.inside("from")
				from.prepare(script.from)
				rules, n, d := map[int]bool{}, 0, 0
				before := from.picture()
				for _, kind := range faultKinds() {
					if testing.Short() && kind.long {
						continue // EIO stands for all errors that are not treated by number
					}
					for at := 1; ; at += faultStep {
						x := &faultRun{t: t, kind: kind, opts: script.opts, usedRules: rules, before: before}
						fired := x.once(at, top.inside(fmt.Sprint("run", n)), from, script.run)
						n++
						if x.doubted { // what was settled by Recover is settled by opening, too
							d++
							x = &faultRun{t: t, kind: kind, opts: script.opts, usedRules: rules, before: before, reopen: true}
							x.once(at, top.inside(fmt.Sprint("run", n)), from, script.run)
							n++
						}
						if !fired {
							break
						}
					}
				}
				if err := os.RemoveAll(from.base); err != nil { // has temps, on purpose
					t.Fatal(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range rules {
					used[i] = true
				}
				runs += n
				doubts += d
			})
		}
	})
	for i, rule := range tolerated {
		if !used[i] && faultStep == 1 {
			t.Errorf("nothing failed that %q is for", rule.call)
		}
	}
	if doubts == 0 {
		t.Error("nothing was ever in doubt")
	}
	t.Logf("%d runs, %d of them in doubt", runs, doubts)
}

// once is one run of a script. It reports whether the fault was met.
func (x *faultRun) once(at int, r, from *rig, script func(*faultRun) int) bool {
	x.t.Helper()
	x.r = r
	x.label = fmt.Sprintf("%s at call %d (settle by opening: %v)", x.kind.name, at, x.reopen)
	above := map[string]int{}
	x.plan = &faultfs.Plan{N: at, Sticky: x.kind.sticky, Action: x.kind.action, Only: func(c faultfs.Call) bool {
		above[c.String()]++
		// There are as many directories above as the path is deep: two stand for all.
		return (x.kind.only == nil || x.kind.only(c)) && (c.Path != "above" || above[c.String()] <= 2)
	}}
	from.copyTo(x.r)
	x.r.opts = x.opts
	x.inject()
	want := script(x)
	// An ordinary fault never blocks (contract 13): in the end the store opens.
	x.r.fs.Set(nil)
	s, err := x.r.open()
	if err != nil {
		x.t.Fatalf("%s: in the end the store does not open: %v", x.label, err)
	}
	if rec := s.Recovery(); rec.Settled != SettledNothing && !x.intent {
		x.errorf("in the end there was an intent: %+v", rec)
	}
	if err := checkNth(s.View(), want); err != nil {
		x.errorf("in the end: %v", err)
	}
	if err := errors.Join(s.Verify(x.r.ctx(), nil), s.Close()); err != nil {
		x.errorf("in the end: %v", err)
	}
	bad := x.t.Failed()
	if testkit.NothingLeft(x.t, x.r.base); x.t.Failed() && !bad {
		x.errorf("something is left")
	}
	if err := os.RemoveAll(x.r.base); err != nil {
		x.t.Fatal(err)
	}
	return len(x.plan.Fired()) > 0
}

// inject begins with the fault.
func (x *faultRun) inject() {
	x.r.fs.Set(func(c faultfs.Call) faultfs.Action {
		a := x.plan.Hook(c)
		if fired := x.plan.Fired(); len(fired) == 1 && fired[0] == c {
			x.label = fmt.Sprintf("%s at %q (%v, settle by opening: %v)", x.kind.name, c, c.N, x.reopen)
		}
		return a
	})
}
