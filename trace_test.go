//go:build unix || windows

package pawl

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

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
}

// newRig returns a rig whose flushes are counted and not done: no power is cut in
// the tests that use it, and what a process leaves is the same with and without.
func newRig(t testing.TB) *rig {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	return rigAt(t, filepath.Dir(dir), vfs.OS(), filepath.Base(trust))
}

func rigAt(t testing.TB, base string, under vfs.FS, trust string) *rig {
	r := &rig{t: t, base: base, dir: filepath.Join(base, "session"), trust: filepath.Join(base, trust)}
	r.fs = faultfs.New(under, base)
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
	return rigAt(r.t, base, vfs.OS(), "trust")
}

func (r *rig) ctx() context.Context { return r.fs.Context(context.Background()) }

func (r *rig) open() (*Store, error) { return Open(r.ctx(), r.dir, r.trust, nil) }

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

// nthChange is the change that makes revision i in these tests.
func nthChange(i int) Change {
	c := Change{ID: fmt.Sprintf("c%d", i), Entries: [][]byte{fmt.Appendf(nil, "entry %d", i)}}
	c.SetJSON("state.json", i)
	return c
}

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
	part, ok, err := GetJSON[int](v, "state.json")
	if seen != n || commits != n || ok != (n > 0) || part != n || err != nil {
		return fmt.Errorf("%d entries, %d commits, state.json %d (there: %v, error %v), want %d of each", seen, commits, part, ok, err, n)
	}
	return nil
}

// prepare makes a rig with a store of the given kind in it, all of it made by real
// opens and commits:
//
//	nothing        no directory at all
//	empty          a store without commits, closed
//	one, two       one commit, two commits, closed
//	landed         one commit, then a process that ended after the rename of the second
//	not landed     one commit, then a process that ended before the rename of the second
//	first landed, first not landed      the same with the first commit
func (r *rig) prepare(kind string) {
	r.t.Helper()
	until := func(from int, stop func(faultfs.Call) bool) {
		other := r.inside("making")
		s := other.mustOpen()
		for i := 1; i <= from; i++ {
			if err := commitNth(other.ctx(), s, i); err != nil {
				r.t.Fatal(err)
			}
		}
		if stop == nil {
			if err := s.Close(); err != nil {
				r.t.Fatal(err)
			}
			other.copyTo(r)
			return
		}
		copied := false
		other.fs.Set(func(c faultfs.Call) faultfs.Action {
			if !copied && stop(c) {
				copied = true
				return faultfs.Action{Before: func() { other.copyTo(r) }}
			}
			return faultfs.Action{}
		})
		if err := errors.Join(commitNth(other.ctx(), s, from+1), s.Close()); err != nil {
			r.t.Fatal(err)
		}
		if !copied {
			r.t.Fatalf("the commit never came to where %q begins", kind)
		}
	}
	beforeRename := func(c faultfs.Call) bool { return c.String() == "session/tmp-* Rename session/bundle" }
	afterRename := func(c faultfs.Call) bool { return c.String() == "session Sync" }
	switch kind {
	case "nothing":
		return
	case "empty":
		until(0, nil)
	case "one":
		until(1, nil)
	case "two":
		until(2, nil)
	case "landed":
		until(1, afterRename)
	case "not landed":
		until(1, beforeRename)
	case "first landed":
		until(0, afterRename)
	case "first not landed":
		until(0, beforeRename)
	default:
		r.t.Fatalf("no kind %q", kind)
	}
	if err := os.RemoveAll(filepath.Join(r.base, "making")); err != nil {
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
	run        func(t *testing.T, r *rig) []faultfs.Call
}

var tracedSteps = []traced{
	{"create", "nothing", traceOpen(SettledNothing, 0)},
	{"open", "one", traceOpen(SettledNothing, 1)},
	{"first-commit", "empty", traceCommit(0, "", faultfs.Action{})},
	{"commit", "one", traceCommit(0, "", faultfs.Action{})},
	{"next-commit", "empty", traceCommit(1, "", faultfs.Action{})},
	{"close", "empty", traceClose},
	{"settle-landed", "landed", traceOpen(SettledLanded, 2)},
	{"settle-not-landed", "not landed", traceOpen(SettledNotLanded, 1)},
	{"settle-first-landed", "first landed", traceOpen(SettledLanded, 1)},
	{"settle-first-not-landed", "first not landed", traceOpen(SettledNotLanded, 0)},
	{"abort-temp", "one", traceCommit(0, "session/tmp-* WriteAt", faultfs.Action{Half: true, Err: syscall.ENOSPC})},
	{"abort-intent", "one", traceCommit(1, "trust/session.trust WriteAt", faultfs.Action{Half: true, Err: syscall.EIO})},
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

func traceClose(t *testing.T, r *rig) []faultfs.Call {
	s := r.mustOpen()
	err := commitNth(r.ctx(), s, 1)
	r.fs.Set(nil)
	if err = errors.Join(err, s.Close()); err != nil {
		t.Error(err)
	}
	return r.fs.Calls()
}

// TestTrace pins the order of writes: what each step of the protocol does to the
// disk, call by call.
func TestTrace(t *testing.T) {
	for _, step := range tracedSteps {
		t.Run(step.name, func(t *testing.T) {
			r := newRig(t)
			r.prepare(step.from)
			got := strings.Join(trace(step.run(t, r)), "\n") + "\n"
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
		r := newRig(t)
		r.prepare(step.from)
		traces[step.name] = trace(step.run(t, r))
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
	// What an acknowledgement rests on is flushed before it.
	for _, name := range []string{"first-commit", "commit", "next-commit", "close", "abort-temp", "abort-intent"} {
		lines := traces[name]
		if last := lines[len(lines)-1]; last != slotFlushed {
			t.Errorf("%s: returned after %q, not after the flush of the trust file", name, last)
		}
	}
}

// TestOrderOfRecords looks at what the trust file says while commits go on: the
// intent is there before the bundle is, and names it; nothing confirms the new state
// until the bundle's name is durable.
func TestOrderOfRecords(t *testing.T) {
	r := newRig(t)
	s := r.mustOpen()
	defer s.Close()
	says := func() trustRecord {
		b, err := os.ReadFile(filepath.Join(r.trust, "session.trust"))
		if err != nil {
			t.Fatal(err)
		}
		newest, broken, err := decodeRing(b)
		if err != nil || broken != nil {
			t.Fatalf("the trust file: %v, broken slots %v", err, broken)
		}
		return newest
	}
	for i := range 6 { // more than there are slots
		old := s.root
		var intents []trustRecord
		renamed, confirming := false, false
		r.fs.Set(func(c faultfs.Call) faultfs.Action {
			if c.Mutates() && !confirming && (strings.HasPrefix(c.Path, "session") || renamed) {
				intents = append(intents, says())
			}
			confirming = confirming || renamed && strings.HasPrefix(c.Path, "trust/")
			renamed = renamed || c.String() == "session/tmp-* Rename session/bundle"
			return faultfs.Action{}
		})
		if err := commitNth(r.ctx(), s, i+1); err != nil {
			t.Fatal(err)
		}
		bundle, err := os.ReadFile(filepath.Join(r.dir, "bundle"))
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range intents {
			if rec.confirmed != old || rec.pending.Digest != sha256.Sum256(bundle) || int(rec.pending.Revision) != i+1 || !slices.Equal(rec.ids, []string{fmt.Sprintf("c%d", i+1)}) {
				t.Errorf("while revision %d was made, trust said %+v", i+1, rec)
			}
		}
		if len(intents) != 6 { // before create, write, flush, rename, flush of the names, confirm
			t.Errorf("looked %d times", len(intents))
		}
		if rec := says(); rec.intent() || rec.confirmed != s.root || rec.confirmed.Digest != sha256.Sum256(bundle) || rec.history != s.View().Version().Digest {
			t.Errorf("after revision %d trust says %+v", i+1, rec)
		}
	}
}
