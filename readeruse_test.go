//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// TestReaderNeverBackwards: an older copy of both directories is put back together
// (README: pawl alone cannot tell). A reader that has seen more can.
func TestReaderNeverBackwards(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not remove or rename a directory that a reader has open")
	}
	for _, tt := range []struct {
		name string
		put  func(r *rig, older, newer, foreign *rig)
		want error
		open error // of a new reader
	}{
		{"an older copy of both", func(r, older, _, _ *rig) { older.copyTo(r) }, ErrRolledBack, nil},
		{"an older copy of both, lived on with", func(r, older, _, _ *rig) {
			older.copyTo(r)
			s := r.mustOpen()
			for i := range 4 {
				if _, err := s.Commit(r.ctx(), Change{Entries: [][]byte{fmt.Appendf(nil, "other %d", i)}}); err != nil {
					r.t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				r.t.Fatal(err)
			}
		}, ErrRolledBack, nil},
		{"an older trust file", func(r, older, newer, _ *rig) {
			copyTree(r.t, newer.dir, r.dir)
			copyTree(r.t, older.trust, r.trust)
		}, ErrTrustBehind, ErrTrustBehind},
		// What trust names is known, and nothing has to be read: but a new one finds out.
		{"an older store directory", func(r, older, newer, _ *rig) {
			copyTree(r.t, older.dir, r.dir)
			copyTree(r.t, newer.trust, r.trust)
		}, nil, ErrRolledBack},
		{"another store", func(r, _, _, foreign *rig) { foreign.copyTo(r) }, ErrForeign, nil},
		{"another store's trust file", func(r, _, newer, foreign *rig) {
			copyTree(r.t, newer.dir, r.dir)
			copyTree(r.t, foreign.trust, r.trust)
		}, ErrForeign, ErrForeign},
		{"no trust file", func(r, _, newer, _ *rig) { copyTree(r.t, newer.dir, r.dir) }, ErrUntrusted, ErrUntrusted},
		{"nothing", func(r, _, newer, _ *rig) {}, ErrNotExist, ErrNotExist},
	} {
		for opts, name := range map[*Options]string{publishing(): "bundles", nil: "journals"} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				r := newRig(t)
				r.opts = opts
				older, newer, foreign := r.inside("older"), r.inside("newer"), r.inside("foreign")
				s := r.mustOpen()
				for i := range 4 {
					if i == 2 {
						r.copyTo(older)
					}
					if err := commitNth(r.ctx(), s, i+1); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				r.copyTo(newer)
				f := foreign.mustOpen()
				if err := errors.Join(commitNth(foreign.ctx(), f, 1), f.Close()); err != nil {
					t.Fatal(err)
				}
				o := r.mustRead(nil)
				o.at(4)
				kept := dumpOf(o.View())
				clear := func() {
					if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(r.trust)); err != nil {
						t.Fatal(err)
					}
				}
				clear()
				tt.put(r, older, newer, foreign)
				for range 2 {
					err := o.Refresh(context.Background())
					var e *Error
					if !errors.Is(err, tt.want) || tt.want != nil && (!errors.As(err, &e) || e.Kind != tt.want || e.Op != "refresh" || e.Hint == "" || e.Path == "") {
						t.Errorf("Refresh: %v, want %v", err, tt.want)
					}
					if got := dumpOf(o.View()); got != kept || o.Unsettled() {
						t.Errorf("it went on to\n%s", got)
					}
				}
				if _, err := r.reader(nil); !errors.Is(err, tt.open) {
					t.Errorf("a new reader: %v, want %v", err, tt.open)
				}
				// The right ones are put back, and it goes on.
				clear()
				newer.copyTo(r)
				o.refreshed(4)
				s = r.mustOpen()
				defer s.Close()
				if err := commitNth(r.ctx(), s, 5); err != nil {
					t.Fatal(err)
				}
				o.refreshed(5)
			})
		}
	}
}

// TestReaderViewStays: a view is what it was, whatever becomes of the store.
func TestReaderViewStays(t *testing.T) {
	for opts, name := range map[*Options]string{publishing(): "bundles", nil: "journals"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.opts = opts
			s := r.mustOpen()
			for i := range 3 {
				if err := commitNth(r.ctx(), s, i+1); err != nil {
					t.Fatal(err)
				}
			}
			o := r.mustRead(nil)
			views, says := []View{o.View()}, []string{dumpOf(o.View())}
			next := func() {
				views, says = append(views, o.View()), append(says, dumpOf(o.View()))
				for i, v := range views {
					if got := dumpOf(v); got != says[i] {
						t.Errorf("view %d is now\n%s", i, got)
					}
				}
			}
			for i := 3; i < 12; i++ {
				if err := commitNth(r.ctx(), s, i+1); err != nil {
					t.Fatal(err)
				}
				if i%4 == 3 {
					if err := s.Checkpoint(r.ctx()); err != nil {
						t.Fatal(err)
					}
				}
				o.refreshed(i + 1)
				next()
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			next()
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			next()
			if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(r.trust)); err != nil {
				t.Fatal(err)
			}
			next()
		})
	}
}

// TestReaderClosed: closed twice, and used after that.
func TestReaderClosed(t *testing.T) {
	r := newRig(t)
	r.prepare("journal")
	o := r.mustRead(nil)
	if err := errors.Join(o.Close(), o.Close()); err != nil {
		t.Fatal(err)
	}
	o.fs.Set(nil)
	closed := func(op string, err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrClosed || e.Op != op || e.Path == "" || !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", op, err)
		}
	}
	closed("refresh", o.Refresh(context.Background()))
	for _, id := range []string{"c1", "never"} { // as of a Store
		_, outcome, err := o.Lookup(context.Background(), id)
		if closed("lookup", err); outcome != OutcomeUnknown {
			t.Errorf("Lookup of %s: %v", id, outcome)
		}
	}
	n := 0
	for _, err := range o.Watch(context.Background(), 2) {
		closed("watch", err)
		n++
	}
	if n != 1 {
		t.Errorf("Watch yields %d times", n)
	}
	o.at(2)
	if calls := o.fs.Calls(); len(calls) > 0 {
		t.Errorf("closed, and it calls %v", calls)
	}
}

// TestReaderLookup: of what is committed and what is not.
func TestReaderLookup(t *testing.T) {
	r := newRig(t)
	s := r.mustOpen()
	defer s.Close()
	o := r.mustRead(nil)
	lookup := func(id string, revision int, want Outcome) {
		t.Helper()
		receipt, outcome, err := o.Lookup(context.Background(), id)
		if outcome != want || err != nil || int(receipt.Revision) != revision {
			t.Errorf("Lookup of %q: %v, %v, %v; want revision %d, %v", id, receipt, outcome, err, revision, want)
		}
		if is, _, err := s.Lookup(r.ctx(), id); err != nil || is != receipt {
			t.Errorf("Lookup of %q: %v, and by the store %v, %v", id, receipt, is, err)
		}
	}
	lookup("c1", 0, OutcomeNotCommitted)
	for i := range 3 {
		if err := commitNth(r.ctx(), s, i+1); err != nil {
			t.Fatal(err)
		}
		lookup(nthChange(i+1).ID, i+1, OutcomeCommitted) // it refreshes for it
		o.at(i + 1)
	}
	lookup("c4", 0, OutcomeNotCommitted)
	// What is known is told without a look.
	o.fs.Set(nil)
	lookup("c1", 1, OutcomeCommitted)
	if calls := o.fs.Calls(); len(calls) > 0 {
		t.Errorf("it calls %v", calls)
	}
	for _, id := range []string{"", "a\x00b", strings.Repeat("x", maxName+1)} {
		_, outcome, err := o.Lookup(context.Background(), id)
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrInvalid || e.Op != "lookup" || outcome != OutcomeUnknown {
			t.Errorf("Lookup of %q: %v, %v", id, outcome, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, id := range []string{"c1", "never"} { // as of a Store
		if _, outcome, err := o.Lookup(ctx, id); outcome != OutcomeUnknown || !errors.Is(err, context.Canceled) {
			t.Errorf("Lookup of %q with a context that has ended: %v, %v", id, outcome, err)
		}
	}
}

// TestReaderOptions: what a reader is asked to insist on.
func TestReaderOptions(t *testing.T) {
	r := newRig(t)
	r.opts = &Options{Schema: 3, Name: "other"}
	s := r.mustOpen()
	defer s.Close()
	big := bytesOf(3 * blockSize)
	if _, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{"big": big}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(r.ctx(), Change{Put: map[string][]byte{"big": big}}); err != nil {
		t.Fatal(err)
	}
	check := r.still()
	for _, tt := range []struct {
		name string
		opts Options
		want error
	}{
		{"nothing", Options{}, nil},
		{"the schema", Options{Schema: 3}, nil},
		{"a lower schema", Options{Schema: 2}, ErrSchema},
		{"a higher schema", Options{Schema: 4}, ErrSchema},
		{"a higher schema, and how to come there", Options{Schema: 4, Migrate: func(context.Context, int, View) (Change, error) {
			t.Error("a reader migrates")
			return Change{}, nil
		}}, ErrSchema},
		{"another name", Options{Name: "session"}, ErrUntrusted},
		{"a bad name", Options{Name: "a/b"}, ErrInvalid},
		{"a negative wait", Options{LockWait: -1}, ErrInvalid},
		{"an unknown allowance", Options{Allow: 1 << 30}, ErrInvalid},
		{"a small bundle", Options{Limits: Limits{Bundle: blockSize}}, ErrTooLarge},
		{"a small journal", Options{Limits: Limits{Journal: 2 * blockSize}}, ErrTooLarge},
		{"small entries, which are of no account", Options{Limits: Limits{Entry: 1, Part: 1, Commit: 1}}, nil},
		{"nor is what is about writing", Options{CheckpointEvery: 1, SyncConfirm: true, Program: "another", Shared: true}, nil},
	} {
		opts := tt.opts
		if opts.Name == "" {
			opts.Name = "other"
		}
		o, err := r.reader(&opts)
		var e *Error
		if !errors.Is(err, tt.want) || tt.want != nil && (!errors.As(err, &e) || e.Kind != tt.want || e.Op != "open") {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.want == nil && o.View().Version().Revision != 2 {
			t.Errorf("%s: revision %d", tt.name, o.View().Version().Revision)
		}
	}
	check()

	// And later, when what is there no longer fits.
	fits := func(limits Limits, schema int) *onlooker {
		return r.mustRead(&Options{Name: "other", Schema: schema, Limits: limits})
	}
	readers := map[*onlooker]error{
		fits(Limits{}, 3):                                ErrSchema,
		fits(Limits{}, 0):                                nil,
		fits(Limits{Bundle: 8 * blockSize}, 0):           ErrTooLarge,
		fits(Limits{Journal: journalLeast, Entry: 1}, 0): nil,
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.opts.Schema, r.opts.Migrate = 4, func(context.Context, int, View) (Change, error) {
		return Change{Put: map[string][]byte{"big": bytesOf(9 * blockSize)}}, nil
	}
	r.opts.CheckpointEvery = 1
	s = r.mustOpen()
	defer s.Close()
	for o, want := range readers {
		for range 2 {
			err := o.Refresh(context.Background())
			now := 3
			var e *Error
			if want != nil {
				now = 2
				if !errors.As(err, &e) || e.Kind != want || e.Op != "refresh" || e.Hint == "" {
					t.Errorf("%v, want %v", err, want)
				}
			} else if err != nil {
				t.Error(err)
			}
			if got := o.View().Version().Revision; int(got) != now {
				t.Errorf("after %v: revision %d", err, got)
			}
		}
	}
}

// TestReaderNetwork: its locks are of no account to a reader; but what it flushes may be
// seen late, or never (26).
func TestReaderNetwork(t *testing.T) {
	r := newRig(t)
	r.prepare("journal")
	at := oddFS{FS: vfs.OS(), where: func(string) bool { return true }, system: vfs.FileSystem{Type: "nfs", Class: vfs.Network}}
	ctx := vfs.NewContext(context.Background(), at)
	_, err := OpenReader(ctx, r.dir, r.trust, nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != ErrUnsupported || e.Op != "open" || e.Hint == "" || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	o, err := OpenReader(ctx, r.dir, r.trust, &Options{Allow: NetworkFS})
	if err == nil {
		err = errors.Join(checkNth(o.View(), 2), o.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

func bytesOf(n int) []byte { return []byte(strings.Repeat("x", n)) }
