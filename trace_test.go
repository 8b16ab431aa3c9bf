//go:build unix || windows

package pawl

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// rig is a place for one store on the real disk, and a file system through which
// the test sees every call that is made there.
type rig struct {
	t                testing.TB
	base, dir, trust string
	fs               *faultfs.FS
	machine          *patient
	opts             *Options // that it is opened with
}

// patient is a machine on which nothing is idle until the test says so. Each run of a
// test makes the same calls there.
type patient struct {
	vfs.FS
	mu     sync.Mutex
	timers []*patientTimer
}

type patientTimer struct {
	on    *patient
	armed bool
	f     func()
}

func (p *patient) AfterFunc(_ time.Duration, f func()) vfs.Timer {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &patientTimer{p, true, f}
	p.timers = append(p.timers, t)
	return t
}

func (t *patientTimer) arm(armed bool) (was bool) {
	t.on.mu.Lock()
	defer t.on.mu.Unlock()
	was, t.armed = t.armed, armed
	return was
}

func (t *patientTimer) Reset(time.Duration) bool { return t.arm(true) }
func (t *patientTimer) Stop() bool               { return t.arm(false) }

// idle does what the stores of the machine do when they are left alone.
func (p *patient) idle() {
	p.mu.Lock()
	timers := slices.Clone(p.timers)
	p.mu.Unlock()
	for _, t := range timers {
		if t.arm(false) {
			t.f()
		}
	}
}

// publishing are options with which every commit publishes the bundle.
func publishing() *Options { return &Options{CheckpointEvery: 1} }

// newRig returns a rig whose flushes are counted and not done: no power is cut in
// the tests that use it, and what a process leaves is the same with and without.
func newRig(t testing.TB) *rig {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	return rigAt(t, filepath.Dir(dir), vfs.OS(), filepath.Base(trust))
}

func rigAt(t testing.TB, base string, under vfs.FS, trust string) *rig {
	r := &rig{t: t, base: base, dir: filepath.Join(base, "session"), trust: filepath.Join(base, trust)}
	r.machine = &patient{FS: under}
	r.fs = faultfs.New(r.machine, base)
	r.fs.NoFlush = true
	return r
}

// inside returns another rig, in a directory of its own below this one.
func (r *rig) inside(name string) *rig {
	r.t.Helper()
	base := filepath.Join(r.base, name)
	if err := os.Mkdir(base, 0o700); err != nil {
		r.t.Fatal(err)
	}
	in := rigAt(r.t, base, vfs.OS(), "trust")
	in.opts = r.opts
	return in
}

func (r *rig) ctx() context.Context { return r.fs.Context(context.Background()) }

func (r *rig) open() (*Store, error) { return Open(r.ctx(), r.dir, r.trust, r.opts) }

func (r *rig) mustOpen() *Store {
	r.t.Helper()
	s, err := r.open()
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// copyTo copies what is in both directories, as it is now, to another rig.
func (r *rig) copyTo(to *rig) {
	r.t.Helper()
	copyTree(r.t, r.dir, to.dir)
	copyTree(r.t, r.trust, to.trust)
}

// copyTree copies directories and regular files, with their modes.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) && path == from {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o700)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nthChange is the change that makes revision i in these tests. Its frame is larger
// than half a block, so that half of a write is half a frame.
func nthChange(i int) Change {
	c := Change{ID: fmt.Sprintf("c%d", i), Entries: [][]byte{fmt.Appendf(nil, "entry %d", i)}}
	c.Put = map[string][]byte{"large": nthPart(i)}
	c.SetJSON("state.json", i)
	return c
}

func nthPart(i int) []byte { return bytes.Repeat([]byte{byte(i)}, blockSize*5/8) }

func commitNth(ctx context.Context, s *Store, i int) error {
	r, err := s.Commit(ctx, nthChange(i))
	if err == nil && (r.Revision != Revision(i) || r.Replayed) {
		err = fmt.Errorf("commit %d made revision %d (replayed: %v)", i, r.Revision, r.Replayed)
	}
	return err
}

// checkNth says how a view differs from the state after commits 1 to n, or nil.
func checkNth(v View, n int) error {
	if got := int(v.Version().Revision); got != n {
		return fmt.Errorf("revision %d, want %d", got, n)
	}
	seen := 0
	for e, err := range v.Entries(0) {
		seen++
		if err != nil || string(e.Data) != fmt.Sprintf("entry %d", seen) || e.Seq != Seq(seen) || int(e.Revision) != seen {
			return fmt.Errorf("entry %d is %q, seq %d, revision %d, error %v", seen, e.Data, e.Seq, e.Revision, err)
		}
	}
	commits := 0
	for c, err := range v.Commits(0) {
		commits++
		if err != nil || c.ID != fmt.Sprintf("c%d", commits) {
			return fmt.Errorf("commit %d has id %q, error %v", commits, c.ID, err)
		}
	}
	if large, ok, err := v.Get("large"); ok != (n > 0) || err != nil || ok && !bytes.Equal(large, nthPart(n)) {
		return fmt.Errorf("the large part of revision %d is not as it was (there: %v, error %v)", n, ok, err)
	}
	part, ok, err := GetJSON[int](v, "state.json")
	if seen != n || commits != n || ok != (n > 0) || part != n || err != nil {
		return fmt.Errorf("%d entries, %d commits, state.json %d (there: %v, error %v), want %d of each", seen, commits, part, ok, err, n)
	}
	return nil
}

// firstJournal is the journal that goes with the bundle of the first commit.
const firstJournal = "session/journal.000000000001"

// moments are where a process may end: a call, before it is made, or in the middle of
// the bytes that it writes.
var moments = map[string]struct {
	call string
	half bool
}{
	"renaming the bundle":  {"session/tmp-* Rename session/bundle", false},
	"flushing names":       {"session Sync", false},
	"renaming the journal": {"session/tmp-* Rename " + firstJournal, false},
	"appending":            {firstJournal + " WriteAt", false},
	"in the frames":        {firstJournal + " WriteAt", true},
	"flushing frames":      {firstJournal + " SyncData", false},
	"removing the journal": {firstJournal + " Remove", false},
}

// kinds are the stores that prepare makes, all of them by real opens and commits:
// first some commits, then one more, or a Checkpoint, whose process ends at a moment;
// or else Close. Those that publish do so at every commit, in the others the second
// commit makes a journal.
var kinds = map[string]struct {
	commits    int
	publish    bool
	checkpoint bool
	moment     string // "": closed
}{
	"empty":                 {},
	"one":                   {commits: 1},
	"two":                   {commits: 2, publish: true},
	"landed":                {commits: 1, publish: true, moment: "flushing names"},
	"not landed":            {commits: 1, publish: true, moment: "renaming the bundle"},
	"first landed":          {moment: "flushing names"},
	"first not landed":      {moment: "renaming the bundle"},
	"journal":               {commits: 2},
	"making landed":         {commits: 1, moment: "flushing names"},
	"making not landed":     {commits: 1, moment: "renaming the journal"},
	"extend landed":         {commits: 2, moment: "flushing frames"},
	"extend not landed":     {commits: 2, moment: "appending"},
	"extend torn":           {commits: 2, moment: "in the frames"},
	"checkpoint landed":     {commits: 2, checkpoint: true, moment: "flushing names"},
	"checkpoint not landed": {commits: 2, checkpoint: true, moment: "renaming the bundle"},
	"checkpoint confirmed":  {commits: 2, checkpoint: true, moment: "removing the journal"},
}

// prepare makes a store of the given kind in a rig; "nothing" is no directory at all.
func (r *rig) prepare(kind string) {
	r.t.Helper()
	if kind == "nothing" {
		return
	}
	k, ok := kinds[kind]
	if !ok {
		r.t.Fatalf("no kind %q", kind)
	}
	making := r.inside("making")
	switch making.opts = nil; {
	case k.publish:
		making.opts = publishing()
	case k.moment != "": // Close would publish a journal with these
		making.opts = small(4)
	}
	s := making.mustOpen()
	for i := range k.commits {
		if err := commitNth(making.ctx(), s, i+1); err != nil {
			r.t.Fatal(err)
		}
	}
	var err error
	if k.moment != "" {
		moment, copied := moments[k.moment], false
		making.fs.Set(func(c faultfs.Call) faultfs.Action {
			if copied || !strings.HasPrefix(c.String(), moment.call) {
				return faultfs.Action{}
			}
			copied = true
			leave := func() { making.copyTo(r) }
			if moment.half {
				return faultfs.Action{Half: true, After: leave}
			}
			return faultfs.Action{Before: leave}
		})
		if k.checkpoint {
			err = s.Checkpoint(making.ctx())
		} else {
			err = commitNth(making.ctx(), s, k.commits+1)
		}
		if !copied {
			r.t.Fatalf("the commit never came to where %q begins", kind)
		}
	}
	if err := errors.Join(err, s.Close()); err != nil {
		r.t.Fatal(err)
	}
	if k.moment == "" {
		making.copyTo(r)
	}
	if err := os.RemoveAll(making.base); err != nil {
		r.t.Fatal(err)
	}
}

var updateTraces = flag.Bool("update-traces", false, "write testdata/trace from what the code does now")

// anyLength hides how long a line of the audit file is: the process and the time are
// in it.
var anyLength = regexp.MustCompile(`(\.audit WriteAt) \d+@`)

// trace names the mutating calls, one a line. Flushes of the directories above the
// base, of which there are as many as the path is deep, are one line.
func trace(calls []faultfs.Call) []string {
	var lines []string
	for _, c := range calls {
		if c.Mutates() {
			lines = append(lines, anyLength.ReplaceAllString(c.String(), "$1 line@"))
		}
	}
	return slices.CompactFunc(lines, func(a, b string) bool { return a == b && a == "above Sync" })
}

// traced is one thing that the store does, alone, and the calls that it made.
type traced struct {
	name, from string
	opts       *Options
	run        func(t *testing.T, r *rig) []faultfs.Call
}

var tracedSteps = []traced{
	{"create", "nothing", nil, traceOpen(SettledNothing, 0)},
	{"open", "one", nil, traceOpen(SettledNothing, 1)},
	{"first-commit", "empty", nil, traceCommit(0, "", faultfs.Action{})},
	{"commit", "one", publishing(), traceCommit(0, "", faultfs.Action{})},
	{"next-commit", "empty", publishing(), traceCommit(1, "", faultfs.Action{})},
	{"close", "empty", nil, traceAfter(1, func(r *rig, s *Store) error { return s.Close() })},
	{"settle-landed", "landed", nil, traceOpen(SettledLanded, 2)},
	{"settle-not-landed", "not landed", nil, traceOpen(SettledNotLanded, 1)},
	{"settle-first-landed", "first landed", nil, traceOpen(SettledLanded, 1)},
	{"settle-first-not-landed", "first not landed", nil, traceOpen(SettledNotLanded, 0)},
	{"abort-temp", "one", publishing(), traceCommit(0, "session/tmp-* WriteAt", faultfs.Action{Half: true, Err: syscall.ENOSPC})},
	{"abort-intent", "one", publishing(), traceCommit(1, "trust/session.trust WriteAt", faultfs.Action{Half: true, Err: syscall.EIO})},

	{"open-journal", "journal", nil, traceOpen(SettledNothing, 2)},
	{"make-journal", "empty", nil, traceCommit(1, "", faultfs.Action{})},
	{"extend", "empty", nil, traceCommit(2, "", faultfs.Action{})},
	{"extend-first", "journal", nil, traceCommit(0, "", faultfs.Action{})},
	{"extend-sync-confirm", "empty", &Options{SyncConfirm: true}, traceCommit(2, "", faultfs.Action{})},
	{"extend-idle", "empty", nil, traceAfter(3, func(r *rig, s *Store) error { r.machine.idle(); return nil })},
	{"extend-abort", "empty", nil, traceCommit(2, firstJournal+" WriteAt", faultfs.Action{Half: true, Err: syscall.ENOSPC})},
	{"make-journal-abort", "empty", nil, traceCommit(1, "session/tmp-* WriteAt", faultfs.Action{Half: true, Err: syscall.ENOSPC})},
	{"checkpoint", "empty", nil, traceAfter(2, func(r *rig, s *Store) error { return s.Checkpoint(r.ctx()) })},
	{"close-small", "empty", nil, traceAfter(3, func(r *rig, s *Store) error { return s.Close() })},
	{"close-large", "empty", &Options{Limits: Limits{Journal: 16 << 10}}, traceAfter(2, func(r *rig, s *Store) error { return s.Close() })},
	{"settle-making-landed", "making landed", nil, traceOpen(SettledLanded, 2)},
	{"settle-making-not-landed", "making not landed", nil, traceOpen(SettledNotLanded, 1)},
	{"settle-extend-landed", "extend landed", nil, traceOpen(SettledLanded, 3)},
	{"settle-extend-not-landed", "extend torn", nil, traceOpen(SettledNotLanded, 2)},
	{"settle-checkpoint-landed", "checkpoint landed", nil, traceOpen(SettledLanded, 2)},
	{"settle-checkpoint-not-landed", "checkpoint not landed", nil, traceOpen(SettledNotLanded, 2)},
	{"open-old-journal", "checkpoint confirmed", nil, traceOpen(SettledNothing, 2)},
}

func traceOpen(settled Settlement, revision int) func(*testing.T, *rig) []faultfs.Call {
	return func(t *testing.T, r *rig) []faultfs.Call {
		s := r.mustOpen()
		defer s.Close()
		calls := r.fs.Calls()
		if err := checkNth(s.View(), revision); err != nil || s.Recovery().Settled != settled {
			t.Errorf("opened: %v, %v; want %v", err, s.Recovery().Settled, settled)
		}
		return calls
	}
}

// traceCommit makes commits before the one that it traces. That one meets a fault
// at the first call of the given name, if there is a name, and must not happen.
func traceCommit(before int, at string, fault faultfs.Action) func(*testing.T, *rig) []faultfs.Call {
	return func(t *testing.T, r *rig) []faultfs.Call {
		s := r.mustOpen()
		defer s.Close()
		next := int(s.View().Version().Revision) + 1
		for range before {
			if err := commitNth(r.ctx(), s, next); err != nil {
				t.Fatal(err)
			}
			next++
		}
		p := &faultfs.Plan{N: 1, Action: fault, Only: func(c faultfs.Call) bool { return at != "" && strings.HasPrefix(c.String(), at) }}
		r.fs.Set(p.Hook)
		err := commitNth(r.ctx(), s, next)
		switch {
		case at == "" && err != nil:
			t.Errorf("commit: %v", err)
		case at != "" && (!errors.Is(err, ErrNotCommitted) || !errors.Is(err, fault.Err) || len(p.Fired()) != 1):
			t.Errorf("commit with a fault: %v; want %v (failed: %v)", err, fault.Err, p.Fired())
		}
		return r.fs.Calls()
	}
}

// traceAfter makes commits and traces what is done then.
func traceAfter(commits int, do func(*rig, *Store) error) func(*testing.T, *rig) []faultfs.Call {
	return func(t *testing.T, r *rig) []faultfs.Call {
		s := r.mustOpen()
		defer s.Close()
		for i := range commits {
			if err := commitNth(r.ctx(), s, i+1); err != nil {
				t.Fatal(err)
			}
		}
		r.fs.Set(nil)
		if err := do(r, s); err != nil {
			t.Error(err)
		}
		return r.fs.Calls()
	}
}

func (step traced) trace(t *testing.T) []string {
	r := newRig(t)
	r.prepare(step.from)
	r.opts = step.opts
	return trace(step.run(t, r))
}

// TestTrace pins the order of writes: what each step of the protocol does to the
// disk, call by call.
func TestTrace(t *testing.T) {
	for _, step := range tracedSteps {
		t.Run(step.name, func(t *testing.T) {
			got := strings.Join(step.trace(t), "\n") + "\n"
			path := filepath.Join("testdata", "trace", step.name+".txt")
			if *updateTraces {
				if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("the order of writes is not that of %s (-want +got); -update-traces writes it anew:\n%s", path, diff)
			}
		})
	}
}

// TestOrder holds the traces against the rules that the order is for, so that a
// trace written anew cannot quietly break one.
func TestOrder(t *testing.T) {
	traces := map[string][]string{}
	for _, step := range tracedSteps {
		traces[step.name] = step.trace(t)
	}
	const (
		trustFlushed = "trust/session.tmp-* Sync"
		trustLink    = "trust/session.tmp-* Link trust/session.trust"
		trustRename  = "trust/session.tmp-* Rename trust/session.trust"
		trustNames   = "trust Sync"
		slotWritten  = "trust/session.trust WriteAt"
		slotFlushed  = "trust/session.trust SyncData"
		anyInStore   = "session"
		tempFlushed  = "session/tmp-* Sync"
		rename       = "session/tmp-* Rename session/bundle"
		storeNames   = "session Sync"
		auditFlushed = "trust/session.audit Sync"
		makeJournal  = "session/tmp-* Rename " + firstJournal
		frames       = firstJournal + " WriteAt"
		framesSynced = firstJournal + " SyncData"
		journalGone  = firstJournal + " Remove"
	)
	for _, rule := range []struct {
		in, why string
		order   []string // what there is in this order; the first of the last comes after all the others
	}{
		// R4: the first write has its intent before its file, as any other.
		{"first-commit", "an intent is durable before anything appears in the store directory", []string{trustRename, trustNames, anyInStore}},
		{"commit", "an intent is durable before anything appears in the store directory", []string{trustRename, trustNames, anyInStore}},
		{"next-commit", "an intent is durable before anything appears in the store directory", []string{slotWritten, slotFlushed, anyInStore}},
		{"create", "the trust file is durable before there is a store directory", []string{trustLink, trustNames, anyInStore}},
		// 2: zeros, or nothing, under the new name.
		{"create", "a file is flushed before it gets its name", []string{trustFlushed, trustLink}},
		{"commit", "a file is flushed before it gets its name", []string{trustFlushed, trustRename}},
		{"first-commit", "a file is flushed before it gets its name", []string{tempFlushed, rename}},
		{"next-commit", "a file is flushed before it gets its name", []string{tempFlushed, rename}},
		{"settle-landed", "a file is flushed before it gets its name", []string{tempFlushed, rename}},
		// 1: a rename and no flush of the directory.
		{"first-commit", "a name is durable before it is confirmed", []string{rename, storeNames, slotWritten}},
		{"commit", "a name is durable before it is confirmed", []string{rename, storeNames, slotWritten}},
		{"next-commit", "a name is durable before it is confirmed", []string{rename, storeNames, slotWritten + " 4096@4096"}},
		// 5 and 6: an intent goes only after what it was settled on is durable, and that
		// is written anew, for what was read may have been in the page cache only.
		{"settle-landed", "the state is written anew before the intent goes", []string{tempFlushed, rename, storeNames, trustRename}},
		{"settle-not-landed", "the state is written anew before the intent goes", []string{tempFlushed, rename, storeNames, trustRename}},
		{"settle-first-landed", "the state is written anew before the intent goes", []string{tempFlushed, rename, storeNames, trustRename}},
		{"settle-not-landed", "temps go after the intent", []string{trustRename, trustNames, "session/tmp-* Remove"}},
		{"settle-landed", "the audit line is durable before the intent goes", []string{auditFlushed, trustNames, trustRename}},
		// 8: a record that failed must not come up again.
		{"extend", "an intent is durable before its frames are written", []string{slotWritten, slotFlushed, anyInStore}},
		{"extend-first", "an intent is durable before its frames are written", []string{trustRename, trustNames, anyInStore}},
		{"make-journal", "an intent is durable before its journal is made", []string{slotWritten, slotFlushed, anyInStore}},
		{"checkpoint", "an intent is durable before its bundle is written", []string{slotWritten, slotFlushed, anyInStore}},
		{"make-journal", "a file is flushed before it gets its name", []string{tempFlushed, makeJournal}},
		{"settle-extend-landed", "a file is flushed before it gets its name", []string{tempFlushed, makeJournal}},
		{"extend", "frames are durable before they are confirmed", []string{frames, framesSynced, slotWritten + " 4096@12288"}},
		{"extend-first", "frames are durable before they are confirmed", []string{frames, framesSynced, slotWritten}},
		{"make-journal", "a name is durable before it is confirmed", []string{makeJournal, storeNames, slotWritten + " 4096@4096"}},
		{"checkpoint", "a name is durable before it is confirmed", []string{rename, storeNames, slotWritten + " 4096@12288"}},
		{"extend-sync-confirm", "frames are durable before they are confirmed", []string{frames, framesSynced, slotWritten + " 4096@12288"}},
		{"checkpoint", "the old journal goes when no record names it any more", []string{storeNames, slotWritten, slotFlushed, journalGone}},
		{"close-large", "the old journal goes when no record names it any more", []string{storeNames, slotWritten, slotFlushed, journalGone}},
		{"extend-abort", "the residue is gone before the intent is taken back", []string{frames, frames, framesSynced, slotWritten + " 4096@12288"}},
		{"settle-extend-landed", "the state is written anew before the intent goes", []string{tempFlushed, makeJournal, storeNames, trustRename}},
		{"settle-extend-not-landed", "the state is written anew before the intent goes", []string{tempFlushed, makeJournal, storeNames, trustRename}},
		{"settle-making-landed", "the state is written anew before the intent goes", []string{tempFlushed, makeJournal, storeNames, trustRename}},
		{"settle-making-not-landed", "the name is written anew, and gone, before the intent goes", []string{makeJournal, journalGone, storeNames, auditFlushed}},
		{"settle-checkpoint-landed", "the state is written anew before the intent goes", []string{tempFlushed, rename, storeNames, trustRename}},
		{"settle-checkpoint-landed", "the old journal goes after the intent", []string{trustRename, trustNames, journalGone}},
		{"abort-temp", "the temp is gone before the intent is taken back", []string{"session/tmp-* Remove", slotWritten}},
	} {
		last := rule.order[len(rule.order)-1]
		isLast := func(line string) bool { return strings.HasPrefix(line, last) }
		lines, at := traces[rule.in], 0
		for _, step := range rule.order {
			i := slices.IndexFunc(lines[at:], func(line string) bool { return strings.HasPrefix(line, step) })
			if i < 0 || slices.ContainsFunc(lines[:at], isLast) {
				t.Errorf("%s: %s: no %q where it should be in\n%s", rule.in, rule.why, step, strings.Join(lines, "\n"))
				break
			}
			at += i + 1
		}
	}
	// In place there is nothing but the trust file, and the journal, which has its size.
	for name, lines := range traces {
		for _, line := range lines {
			if strings.HasPrefix(line, "session/bundle WriteAt") || strings.HasPrefix(line, "session/journal.") && strings.HasPrefix(name, "settle") && !strings.HasSuffix(line, " Remove") {
				t.Errorf("%s: written in place: %s", name, line)
			}
		}
	}
	// What an acknowledgement rests on is flushed before it.
	for _, name := range []string{"make-journal", "extend", "extend-first"} {
		lines := traces[name]
		if n := len(lines); !strings.HasPrefix(lines[n-1], slotWritten) || lines[n-2] != framesSynced && lines[n-2] != storeNames {
			t.Errorf("%s: returned after %q", name, lines[n-2:])
		}
	}
	for _, name := range []string{"first-commit", "commit", "next-commit", "close", "abort-temp", "abort-intent",
		"extend-sync-confirm", "extend-idle", "extend-abort", "make-journal-abort", "close-small", "close-large"} {
		lines := traces[name]
		if last := lines[len(lines)-1]; last != slotFlushed {
			t.Errorf("%s: returned after %q, not after the flush of the trust file", name, last)
		}
	}
}

// TestOrderOfRecords looks at what the trust file says while commits go on: the
// intent is there before the bundle, or the frames, and names what they will make;
// nothing confirms the new state until that is durable; and it is confirmed before
// anybody is told.
func TestOrderOfRecords(t *testing.T) {
	for _, publish := range []bool{true, false} {
		t.Run(map[bool]string{true: "publish", false: "extend"}[publish], func(t *testing.T) {
			r := newRig(t)
			if publish {
				r.opts = publishing()
			}
			s := r.mustOpen()
			defer s.Close()
			for i := range 9 { // more than twice the slots
				old := s.root
				var intents []trustRecord
				committed, confirming := false, false
				last := "session Sync" // what commits
				if !publish && i > 1 {
					last = firstJournal + " SyncData"
				}
				r.fs.Set(func(c faultfs.Call) faultfs.Action {
					if c.Mutates() && !confirming && (strings.HasPrefix(c.Path, "session") || committed) {
						intents = append(intents, r.says())
					}
					confirming = confirming || committed && c.Mutates() && strings.HasPrefix(c.Path, "trust/")
					committed = committed || c.String() == last
					return faultfs.Action{}
				})
				if err := commitNth(r.ctx(), s, i+1); err != nil {
					t.Fatal(err)
				}
				found, err := readStore(s.dir, &s.opts.Limits)
				if err != nil || found.bad != nil || found.walk.bad != nil {
					t.Fatalf("%v, %v, %v", err, found.bad, found.walk.bad)
				}
				for _, rec := range intents {
					if rec.confirmed != old || rec.pending != found.newest() || int(rec.pending.Revision) != i+1 || !slices.Equal(rec.ids, []string{fmt.Sprintf("c%d", i+1)}) {
						t.Errorf("while revision %d was made, trust said %+v", i+1, rec)
					}
				}
				switch n := len(intents); {
				// Before create, write, flush, rename, flush of the names, confirm; before
				// write, flush, confirm.
				case (publish || i == 0) && n != 6, !publish && i > 1 && n != 3, !publish && i == 1 && n != 5+journalLeast/blockSize:
					t.Errorf("revision %d: looked %d times", i+1, n)
				}
				if rec := r.says(); rec.intent() || rec.confirmed != s.root || rec.confirmed != found.newest() || rec.history != s.View().Version().Digest {
					t.Errorf("after revision %d trust says %+v", i+1, rec)
				}
				if i%4 == 3 {
					r.machine.idle()
				}
			}
		})
	}
}

// says is the newest record of the trust file on disk, of which all must be whole.
func (r *rig) says() trustRecord {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.trust, "session.trust"))
	if err != nil {
		r.t.Fatal(err)
	}
	newest, broken, err := decodeRing(b)
	if err != nil || broken != nil {
		r.t.Fatalf("the trust file: %v, broken slots %v", err, broken)
	}
	return newest
}
