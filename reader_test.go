//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// These tests hold readers against stores that are left alone, at the moments at which
// a process may leave them. readerlive_test.go and readerfollow_test.go have those with
// a writer at work, readeruse_test.go those of each method, and readerplace_test.go those
// about places and permissions.

// noWait is a LockWait that is over before anybody looks.
const noWait = time.Nanosecond

// forever is one that is not over before the test is.
const forever = time.Hour

// onlooker is a reader whose calls the test sees, on a file system of its own.
type onlooker struct {
	*Reader
	t  testing.TB
	fs *faultfs.FS
}

// watching returns a file system for one who only looks at the rig's store.
func (r *rig) watching() *faultfs.FS { return faultfs.New(vfs.OS(), r.base) }

// reader opens a reader through a file system of its own, and closes it in the end.
func (r *rig) reader(opts *Options) (*onlooker, error) { return r.readerOn(r.watching(), opts) }

func (r *rig) readerOn(f *faultfs.FS, opts *Options) (*onlooker, error) {
	r.t.Helper()
	reader, err := OpenReader(f.Context(context.Background()), r.dir, r.trust, opts)
	if err != nil {
		onlyReads(r.t, f)
		return nil, err
	}
	o := &onlooker{reader, r.t, f}
	r.t.Cleanup(func() {
		if err := o.Close(); err != nil {
			r.t.Errorf("closing a reader: %v", err)
		}
		onlyReads(r.t, f)
	})
	return o, nil
}

func (r *rig) mustRead(opts *Options) *onlooker {
	r.t.Helper()
	o, err := r.reader(opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return o
}

// at wants the reader to show the state after so many commits, settled.
func (o *onlooker) at(n int) {
	o.t.Helper()
	if err := checkNth(o.View(), n); err != nil {
		o.t.Errorf("the reader shows: %v", err)
	}
	if o.Unsettled() {
		o.t.Error("the reader says that this is not settled")
	}
}

// refreshed is at, after a Refresh.
func (o *onlooker) refreshed(n int) {
	o.t.Helper()
	if err := o.Refresh(context.Background()); err != nil {
		o.t.Errorf("Refresh: %v", err)
	}
	o.at(n)
}

// onlyReads wants all calls to be such that nothing can change by them, and no lock to
// be touched: a reader is in nobody's way.
func onlyReads(t testing.TB, f *faultfs.FS) {
	t.Helper()
	reads := []string{"Resolve", "Lstat", "Identify", "OpenDir", "Open", "Stat", "System", "Names", "ReadAt", "Close"}
	for _, c := range f.Calls() {
		if !slices.Contains(reads, c.Op) || strings.HasSuffix(c.Path, "lock") {
			t.Errorf("a reader called %s", c)
		}
	}
}

// still returns a function that wants nothing in both directories, lock files and the
// directories themselves included, to have been changed, replaced, or touched.
func (r *rig) still() (check func()) {
	r.t.Helper()
	look := func() (testkit.Tree, map[string]fs.FileInfo) {
		infos := map[string]fs.FileInfo{}
		for path := range testkit.Snapshot(r.t, r.dir, r.trust) {
			if info, err := os.Lstat(path); err == nil {
				infos[path] = info
			}
		}
		return testkit.Snapshot(r.t, r.dir, r.trust), infos
	}
	tree, infos := look()
	return func() {
		r.t.Helper()
		now, infosNow := look()
		if diff := cmp.Diff(tree, now); diff != "" {
			r.t.Errorf("a reader changed something: %s", diff)
		}
		if names := touched(infos, infosNow); names != nil {
			r.t.Errorf("a reader touched %v", names)
		}
	}
}

// unsettled is what OpenReader says of a commit that nobody is there to finish.
func unsettled(t testing.TB, err error, op string) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != ErrUnsettled || e.Op != op || e.Path == "" || e.Hint == "" || e.Outcome != nil {
		t.Errorf("%v, want ErrUnsettled with operation, path and hint", err)
		return new(Error)
	}
	return e
}

// TestReaderTouchesNothing: whatever a reader is asked for, and whatever it finds, it
// takes no lock and writes nothing.
func TestReaderTouchesNothing(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			r.prepare(kind)
			defer func() { // with the temps of the killed
				if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(r.trust)); err != nil {
					t.Error(err)
				}
			}()
			check := r.still()
			for _, allow := range []Allowance{0, Unsettled} {
				o, err := r.reader(&Options{LockWait: noWait, Allow: allow})
				if err != nil {
					unsettled(t, err, "open")
					continue
				}
				_, _, err = o.Lookup(context.Background(), "c1")
				_, _, err1 := o.Lookup(context.Background(), "never")
				err2 := o.Refresh(context.Background())
				if o.View().Version().Revision > 0 {
					for _, e := range o.Watch(context.Background(), 0) {
						err = errors.Join(err, e)
						break
					}
				}
				if err := errors.Join(err, err1, err2, o.Close()); err != nil {
					t.Error(err)
				}
			}
			check()
		})
	}
	t.Run("nothing", func(t *testing.T) {
		r := newRig(t)
		// MustExist goes without saying.
		for _, opts := range []*Options{nil, {MustExist: true}, {Shared: true}} {
			_, err := r.reader(opts)
			var e *Error
			if !errors.As(err, &e) || e.Kind != ErrNotExist || e.Op != "open" || e.Hint == "" || !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v, want ErrNotExist", err)
			}
		}
		if names, err := os.ReadDir(r.base); err != nil || len(names) != 0 {
			t.Errorf("there is %v (error %v) where there was nothing", names, err)
		}
	})
}

// TestReaderTable: a reader is served what Open returns without having to settle
// anything, refuses what Open refuses, for the same reason, and says that the rest is
// not settled.
func TestReaderTable(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not remove or rename a directory that a reader has open")
	}
	columns := trustColumns()
	for _, half := range []struct {
		table string
		disks []diskRow
	}{{settleTable, diskRows()}, {journalTable, journalRows()}} {
		rows := map[string]diskRow{}
		for _, d := range half.disks {
			rows[d.name] = d
		}
		lines := slices.DeleteFunc(strings.Split(half.table, "\n"), func(l string) bool { return l == "" })
		head := strings.Fields(lines[0])[1:]
		for row, line := range lines[1:] {
			cells := strings.Fields(line)
			for i, name := range head {
				if testing.Short() && (row+i)%4 != 0 {
					continue
				}
				t.Run(cells[0]+"/"+name, func(t *testing.T) { readCell(t, rows[cells[0]], columns[name], cells[1+i]) })
			}
		}
	}
}

func readCell(t *testing.T, d diskRow, c trustColumn, want string) {
	r := newRig(t)
	r.lay(d, c)
	defer func() { // some of what was laid looks like temps left behind
		if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(r.trust)); err != nil {
			t.Error(err)
		}
	}()
	defer r.still()()
	o, err := r.reader(&Options{LockWait: noWait})
	loose, looseErr := r.reader(&Options{LockWait: noWait, Allow: Unsettled})
	root := func(g *grown) (v Version) {
		if g == nil {
			return Version{Digest: genesis(tableID)}
		}
		return g.st.version()
	}
	switch want {
	case "clean":
		for _, o := range []*onlooker{o, loose} {
			if err := errors.Join(err, looseErr); err != nil {
				t.Fatalf("Open opens it, and a reader says %v", err)
			}
			if o.View().Version() != root(c.confirmed) || o.Unsettled() {
				t.Errorf("shows %s (unsettled: %v)", o.View().Version(), o.Unsettled())
			}
		}
		return
	case "landed", "not":
		now := c.confirmed
		if want == "landed" {
			now = c.pending
		}
		e := unsettled(t, err, "open")
		found := Root{}
		if d.whole != nil {
			found = d.whole.root()
		}
		if e.Trusted != c.confirmed.root() || e.Pending != c.pending.root() || e.Found != found {
			t.Errorf("evidence: %+v", e)
		}
		if looseErr != nil {
			t.Fatalf("with Unsettled allowed: %v", looseErr)
		}
		if loose.View().Version() != root(now) || !loose.Unsettled() {
			t.Errorf("with Unsettled allowed it shows %s (unsettled: %v)", loose.View().Version(), loose.Unsettled())
		}
		return
	case "create":
		want = "not exist"
	}
	report, inspectErr := Inspect(context.Background(), r.dir, r.trust, &Options{MustExist: true})
	if inspectErr != nil {
		t.Fatal(inspectErr)
	}
	for _, err := range []error{err, looseErr} {
		if err == nil {
			t.Fatalf("a reader opens it; Open says: %s", want)
		}
		if got := classesOf(err); got != want {
			t.Errorf("%s (%v), want %s", got, err, want)
		}
		var e, is *Error
		if !errors.As(err, &e) || !errors.As(report.Err, &is) || err.Error() != report.Err.Error() || e.Kind != is.Kind || e.Op != "open" || e.Path != is.Path ||
			e.Hint != is.Hint || e.Trusted != is.Trusted || e.Pending != is.Pending || e.Found != is.Found {
			t.Errorf("a reader says\n%v\nand Inspect\n%v", err, report.Err)
		}
	}
}

// intents are the kinds of stores that are left with an intent.
func intents() (names []string) {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if k := kinds[kind]; k.moment != "" && k.moment != "removing the journal" {
			names = append(names, kind)
		}
	}
	return names
}

// TestReaderUnsettled: nobody goes on with a commit. A reader says so; or it shows what
// settling would come to, and says that; and when somebody has settled it, all is well.
func TestReaderUnsettled(t *testing.T) {
	for _, kind := range intents() {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			r.prepare(kind)
			k, want := kinds[kind], 0
			landed := strings.HasSuffix(kind, " landed") && !strings.HasSuffix(kind, "not landed") || kind == "landed"
			switch {
			case k.checkpoint || !landed:
				want = k.commits
			default:
				want = k.commits + 1
			}
			says := r.says()
			_, err := r.reader(&Options{LockWait: noWait})
			e := unsettled(t, err, "open")
			if e.Trusted != says.confirmed || e.Pending != says.pending || !says.intent() || (e.Found == says.pending) != landed || !strings.HasPrefix(e.Path, r.base) {
				t.Errorf("evidence %+v; trust says %s, %s", e, says.confirmed.short(), says.pending.short())
			}
			o := r.mustRead(&Options{LockWait: noWait, Allow: Unsettled})
			shows := func() {
				t.Helper()
				if err := checkNth(o.View(), want); err != nil || !o.Unsettled() {
					t.Errorf("with Unsettled allowed: %v (unsettled: %v)", err, o.Unsettled())
				}
			}
			shows()
			for i := range want + 1 { // what may not last is nothing to rely on
				id := nthChange(i + 1).ID
				if receipt, outcome, err := o.Lookup(context.Background(), id); receipt != (Receipt{}) || outcome != OutcomeUnknown || err != nil {
					t.Errorf("Lookup of %s: %v, %v, %v", id, receipt, outcome, err)
				}
			}
			if err := o.Refresh(context.Background()); err != nil {
				t.Error(err)
			}
			shows()
			kept, dumped := o.View(), dumpOf(o.View())

			s := r.mustOpen()
			defer s.Close()
			if err := checkNth(s.View(), want); err != nil {
				t.Errorf("settled: %v", err)
			}
			shows() // until it is asked
			o.refreshed(want)
			if _, outcome, err := o.Lookup(context.Background(), nthChange(want+1).ID); outcome != OutcomeNotCommitted || err != nil {
				t.Errorf("Lookup: %v, %v", outcome, err)
			}
			for i := range 3 {
				if err := commitNth(r.ctx(), s, want+1+i); err != nil {
					t.Fatal(err)
				}
				o.refreshed(want + 1 + i)
			}
			if got := dumpOf(kept); got != dumped {
				t.Errorf("a view changed:\n%s", got)
			}
		})
	}
}

// TestReaderStays: a reader that was there before a commit that nobody finished keeps
// what it had.
func TestReaderStays(t *testing.T) {
	for _, tt := range []struct {
		name, fails string
		opts        *Options
	}{
		{"publish", "session Sync", publishing()},
		{"extend", firstJournal + " SyncData", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.opts = tt.opts
			s := r.mustOpen()
			defer s.Close()
			for i := range 2 {
				if err := commitNth(r.ctx(), s, i+1); err != nil {
					t.Fatal(err)
				}
			}
			o, loose := r.mustRead(&Options{LockWait: noWait}), r.mustRead(&Options{LockWait: noWait, Allow: Unsettled})
			for n := 2; n < 5; n++ {
				plan := &faultfs.Plan{N: 1, Action: faultfs.Action{Err: fs.ErrInvalid}, Only: func(c faultfs.Call) bool { return c.String() == tt.fails }}
				r.fs.Set(plan.Hook)
				if err := commitNth(r.ctx(), s, n+1); !errors.Is(err, ErrInDoubt) {
					t.Fatal(err)
				}
				r.fs.Set(nil)
				unsettled(t, o.Refresh(context.Background()), "refresh")
				o.at(n)
				if err := errors.Join(loose.Refresh(context.Background()), checkNth(loose.View(), n+1)); err != nil || !loose.Unsettled() {
					t.Errorf("with Unsettled allowed: %v (unsettled: %v)", err, loose.Unsettled())
				}
				// What is known for certain is told, also now; the rest is not.
				if got, outcome, err := o.Lookup(context.Background(), nthChange(n).ID); got.Revision != Revision(n) || outcome != OutcomeCommitted || err != nil {
					t.Errorf("Lookup of what is settled: %v, %v, %v", got, outcome, err)
				}
				for _, id := range []string{nthChange(n + 1).ID, "never"} {
					_, outcome, err := o.Lookup(context.Background(), id)
					if unsettled(t, err, "lookup"); outcome != OutcomeUnknown {
						t.Errorf("Lookup of %s: %v", id, outcome)
					}
				}
				if _, err := s.Recover(r.ctx()); err != nil {
					t.Fatal(err)
				}
				// The file that it was about was made anew.
				o.refreshed(n + 1)
				loose.refreshed(n + 1)
			}
		})
	}
}

// dumpOf is everything that a View says.
func dumpOf(v View) string {
	var b strings.Builder
	fmt.Fprintln(&b, "version", v.Version())
	for c, err := range v.Commits(0) {
		fmt.Fprintln(&b, "commit", c, err)
	}
	for e, err := range v.Entries(0) {
		fmt.Fprintf(&b, "entry %d %d %q %v\n", e.Seq, e.Revision, e.Data, err)
	}
	for name := range v.Parts() {
		data, ok, err := v.Get(name)
		fmt.Fprintf(&b, "part %q %q %v %v\n", name, data, ok, err)
	}
	return b.String()
}
