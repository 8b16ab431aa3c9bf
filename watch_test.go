//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// These tests run in bubbles, where time passes only while everybody waits: a minute on
// a quiet store takes no time, and what is seen is the same in each run. No call to the
// operating system is among what they wait for.

// aWhile is long enough for all that somebody who watches waits for.
const aWhile = 2 * (watchError + readerWait)

// watched is one of those that can be watched, beside or at the writer.
type watched struct {
	watch func(context.Context, Revision) iter.Seq2[View, error]
	close func() error
	fs    *faultfs.FS // that it looks through
	knows func() View
}

// sources are all of them.
var sources = []struct {
	name   string
	opts   *Options // of the writer
	own    bool     // it is the writer
	polls  bool
	source func(r *rig, s *Store) watched
}{
	{"the store", nil, true, false, func(r *rig, s *Store) watched { return watched{s.Watch, s.Close, r.fs, s.View} }},
	{"a reader", nil, false, true, func(r *rig, s *Store) watched {
		o := r.mustRead(nil)
		return watched{o.Watch, o.Close, o.fs, o.View}
	}},
	{"a reader, bundles", publishing(), false, true, func(r *rig, s *Store) watched {
		o := r.mustRead(nil)
		return watched{o.Watch, o.Close, o.fs, o.View}
	}},
	{"the shared store", &Options{Shared: true, LockWait: readerWait}, true, true, func(r *rig, s *Store) watched { return watched{s.Watch, s.Close, r.fs, s.View} }},
	{"another shared store", &Options{Shared: true, LockWait: readerWait}, false, true, func(r *rig, s *Store) watched {
		f := faultfs.New(&patient{FS: vfs.OS()}, r.base)
		f.NoFlush = true
		other, err := Open(f.Context(context.Background()), r.dir, r.trust, r.opts)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { other.Close() })
		return watched{other.Watch, other.Close, f, other.View}
	}},
}

// eachSource runs a test with a store at revision 2 and each of the sources, in a bubble.
func eachSource(t *testing.T, test func(t *testing.T, r *rig, s *Store, w watched, polls bool)) {
	for _, from := range sources {
		t.Run(from.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.opts = from.opts
				s := r.mustOpen()
				defer s.Close()
				r.upTo(s, 2)
				test(t, r, s, from.source(r, s), from.polls)
			})
		})
	}
}

// loop is a loop over Watch in a goroutine of its own.
type loop struct {
	t      testing.TB
	cancel context.CancelFunc

	mu    sync.Mutex
	seen  []int // revisions
	errs  []error
	ended bool
}

// start begins to watch. body, which may be nil, is called for each that is yielded, and
// reports whether to go on.
func (w watched) start(t testing.TB, after Revision, body func(View, error) bool) *loop {
	ctx, cancel := context.WithCancel(context.Background())
	l := &loop{t: t, cancel: cancel}
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ended = true
		}()
		for v, err := range w.watch(ctx, after) {
			if l.take(v, err); body != nil && !body(v, err) {
				break
			}
		}
	}()
	return l
}

func (l *loop) take(v View, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int(v.Version().Revision)
	if err != nil {
		l.errs = append(l.errs, err)
		if n != 0 {
			l.t.Errorf("an error with revision %d: %v", n, err)
		}
	} else {
		if e := checkNth(v, n); e != nil {
			l.t.Error(e)
		}
		l.seen = append(l.seen, n)
	}
}

// saw wants a loop, left alone for a while, to have got these revisions, and errors of
// these kinds.
func (l *loop) saw(ended bool, revisions []int, kinds ...error) {
	l.t.Helper()
	time.Sleep(aWhile)
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.seen, revisions) || l.ended != ended || len(l.errs) != len(kinds) {
		l.t.Errorf("it saw %v, errors %v, and has ended: %v; want %v, %v, %v", l.seen, l.errs, l.ended, revisions, kinds, ended)
		return
	}
	for i, err := range l.errs {
		var e *Error
		if !errors.As(err, &e) || e.Kind != kinds[i] || e.Op == "" || e.Path == "" || kinds[i] == ErrClosed && e.Op != "watch" {
			l.t.Errorf("error %d: %v, want %v", i, err, kinds[i])
		}
	}
}

// TestWatch: what is newer is yielded, once, and nothing else.
func TestWatch(t *testing.T) {
	if runtime.GOOS == "windows" && testing.Short() {
		t.Skip("it takes a minute under Wine; without -short it runs there too")
	}
	eachSource(t, func(t *testing.T, r *rig, s *Store, w watched, _ bool) {
		all, newer, none, later := w.start(t, 0, nil), w.start(t, 1, nil), w.start(t, 2, nil), w.start(t, 6, nil)
		check := func(want ...int) {
			t.Helper()
			all.saw(false, want)
			newer.saw(false, want)
			none.saw(false, want[1:])
			later.saw(false, slices.DeleteFunc(slices.Clone(want), func(n int) bool { return n <= 6 }))
		}
		check(2)
		want := []int{2}
		for n := 3; n < 9; n++ {
			r.upTo(s, n)
			want = append(want, n)
			check(want...)
		}
		// The state is the same, and so is the revision.
		if err := s.Checkpoint(r.ctx()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(r.ctx(), Change{}); err != nil {
			t.Fatal(err)
		}
		check(want...)
		r.upTo(s, 9)
		check(append(want, 9)...)
	})
}

// TestWatchEmpty: of a store to which nothing was committed there is nothing to tell.
func TestWatchEmpty(t *testing.T) {
	for _, opts := range []*Options{nil, {Shared: true}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.opts = opts
			s := r.mustOpen()
			defer s.Close()
			o := r.mustRead(nil)
			one, two := watched{watch: s.Watch}.start(t, 0, nil), watched{watch: o.Watch}.start(t, 0, nil)
			one.saw(false, nil)
			two.saw(false, nil)
			r.upTo(s, 1)
			one.saw(false, []int{1})
			two.saw(false, []int{1})
		})
	}
}

// TestWatchBursts: states may be skipped, never the newest; several watch, and some of
// them are slow.
func TestWatchBursts(t *testing.T) {
	eachSource(t, func(t *testing.T, r *rig, s *Store, w watched, _ bool) {
		var loops []*loop
		for i := range 6 {
			loops = append(loops, w.start(t, Revision(i%3), func(View, error) bool {
				if i > 2 {
					time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				}
				return true
			}))
		}
		n := 2
		for burst := range 8 {
			for range 1 + burst*2 {
				n++
				r.upTo(s, n)
				if burst%2 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
			for i, l := range loops {
				l.mu.Lock()
				seen, errs := slices.Clone(l.seen), l.errs
				l.mu.Unlock()
				if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) || !slices.Contains(seen, n) || len(errs) > 0 {
					t.Errorf("loop %d saw %v, errors %v, after %d commits", i, seen, errs, n)
				}
			}
		}
	})
}

// handles are how many handles were opened through a file system and not closed.
func handles(f *faultfs.FS) (n int) {
	for _, c := range f.Calls() {
		switch {
		case strings.HasPrefix(c.Op, "Open") || c.Op == "Create":
			n++
		case c.Op == "Close":
			n--
		}
	}
	return n
}

// TestWatchEnds: by its context, without an error; by a break; by Close, with the newest
// state and then an error. Nothing is left of it.
func TestWatchEnds(t *testing.T) {
	eachSource(t, func(t *testing.T, r *rig, s *Store, w watched, _ bool) {
		if w.fs.Set(nil); w.fs == r.fs {
			defer func() { w.fs.Set(nil) }()
		}
		l := w.start(t, 0, nil)
		l.saw(false, []int{2})
		l.cancel()
		l.saw(true, []int{2})
		l = w.start(t, 0, func(View, error) bool { return false })
		l.saw(true, []int{2})
		l = w.start(t, 9, nil)
		l.cancel() // before there was anything
		l.saw(true, nil)
		l = w.start(t, 0, nil)
		l.cancel() // maybe before it has begun
		time.Sleep(aWhile)
		if synctest.Wait(); !l.ended || len(l.errs) > 0 {
			t.Errorf("it has ended: %v, errors %v", l.ended, l.errs)
		}
		if n := handles(w.fs); n != 0 {
			t.Errorf("%d handles are left open: %v", n, w.fs.Calls())
		}

		// The same loop may be gone over again.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		seq := w.watch(ctx, 0)
		for range 2 {
			for v, err := range seq {
				if v.Version().Revision != 2 || err != nil {
					t.Error(v.Version(), err)
				}
				break
			}
		}

		waiting, behind := w.start(t, 0, nil), (*loop)(nil)
		going := make(chan struct{})
		behind = w.start(t, 0, func(View, error) bool { <-going; return true })
		waiting.saw(false, []int{2})
		r.upTo(s, 3)
		waiting.saw(false, []int{2, 3})
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		waiting.saw(true, []int{2, 3}, ErrClosed)
		close(going)
		behind.saw(true, []int{2, 3}, ErrClosed)
		last := int(w.knows().Version().Revision) // another store may not know of 3, though its loops do
		w.start(t, 0, nil).saw(true, []int{last}, ErrClosed)
		w.start(t, 3, nil).saw(true, nil, ErrClosed)
		// One who has heard enough is not told more.
		w.start(t, 0, func(View, error) bool { return false }).saw(true, []int{last})
		w.start(t, 3, func(View, error) bool { return false }).saw(true, nil, ErrClosed)
		l = w.start(t, 0, nil)
		l.cancel()
		l.saw(true, l.seen, l.errs...)
	})
}

// TestWatchQuiet: while nothing happens, who watches a store of its own makes no call at
// all, and who watches that of another one only looks at the trust file, less and less.
func TestWatchQuiet(t *testing.T) {
	eachSource(t, func(t *testing.T, r *rig, s *Store, w watched, polls bool) {
		l := w.start(t, 0, nil)
		l.saw(false, []int{2})
		w.fs.Set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		looks := 0
		for _, c := range w.fs.Calls() {
			name := c.String()
			if strings.Contains(c.Path, "session.trust") && c.Op == "Open" {
				looks++
			}
			if c.Path != "trust/session.trust" && name != "trust Lstat" || !slices.Contains([]string{"Open", "Stat", "ReadAt", "Close", "Lstat"}, c.Op) {
				t.Errorf("on a quiet store it calls %s", c)
			}
		}
		if most := int(time.Minute / watchMost); polls && (looks < most/2 || looks > most) || !polls && len(w.fs.Calls()) > 0 {
			t.Errorf("%d looks at the trust file in a minute, and %d calls", looks, len(w.fs.Calls()))
		}
		r.upTo(s, 3)
		l.saw(false, []int{2, 3})
	})
}

// TestWatchError: an error is told once, and the next state when there is one.
func TestWatchError(t *testing.T) {
	if runtime.GOOS == "windows" && testing.Short() {
		t.Skip("it takes half a minute under Wine; without -short it runs there too")
	}
	for _, from := range sources[1:] {
		if from.own {
			continue
		}
		for _, tt := range []struct {
			name        string
			break_, fix func(r *rig, s *Store) error
			want        error
			next        []int
		}{
			{"the store directory is away", func(r *rig, s *Store) error {
				r.upTo(s, 3)
				return errors.Join(s.Close(), os.Rename(r.dir, r.dir+".away"))
			}, func(r *rig, _ *Store) error { return os.Rename(r.dir+".away", r.dir) }, ErrMissing, []int{2, 3}},
			{"the trust directory is away", func(r *rig, s *Store) error {
				r.upTo(s, 3)
				return errors.Join(s.Close(), os.Rename(r.trust, r.trust+".away"))
			}, func(r *rig, _ *Store) error { return os.Rename(r.trust+".away", r.trust) }, ErrUntrusted, []int{2, 3}},
			{"the trust file is damaged", func(r *rig, s *Store) error {
				r.upTo(s, 3)
				path := filepath.Join(r.trust, "session.trust")
				return errors.Join(s.Close(), os.Rename(path, path+".kept"), os.WriteFile(path, make([]byte, ringSize), 0o600))
			}, func(r *rig, _ *Store) error {
				path := filepath.Join(r.trust, "session.trust")
				return os.Rename(path+".kept", path)
			}, ErrTrustDamaged, []int{2, 3}},
			{"a commit is not settled", func(r *rig, s *Store) error { return r.doubt(s, 3) }, func(r *rig, s *Store) error {
				_, err := s.Recover(r.ctx())
				return err
			}, ErrUnsettled, []int{2, 3}},
			{"a commit is not settled, and has not landed", func(r *rig, s *Store) error {
				bundle, err := os.ReadFile(filepath.Join(r.dir, bundleName))
				return errors.Join(err, r.doubt(s, 3), s.Close(), r.undo(bundle))
			}, func(r *rig, _ *Store) error {
				again := r.mustOpen()
				defer again.Close()
				if got := again.View().Version().Revision; got != 2 {
					return fmt.Errorf("settled on revision %d", got)
				}
				r.upTo(again, 4)
				return nil
			}, ErrUnsettled, nil},
		} {
			t.Run(from.name+"/"+tt.name, func(t *testing.T) {
				if runtime.GOOS == "windows" && strings.HasSuffix(tt.name, "directory is away") {
					t.Skip("Windows does not rename a directory that a process has open")
				}
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.opts = from.opts
					s := r.mustOpen()
					defer s.Close()
					r.upTo(s, 2)
					w := from.source(r, s)
					l, second := w.start(t, 0, nil), w.start(t, 0, func(_ View, err error) bool { return err == nil })
					l.saw(false, []int{2})
					if err := tt.break_(r, s); err != nil {
						t.Fatal(err)
					}
					l.saw(false, []int{2}, tt.want)
					l.saw(false, []int{2}, tt.want)
					second.saw(true, []int{2}, tt.want) // it breaks at the error
					w.fs.Set(nil)
					time.Sleep(2 * aWhile)
					synctest.Wait()
					looks := 0
					for _, c := range w.fs.Calls() {
						if c.String() == "trust Lstat" {
							looks++
						}
					}
					if most := int(2 * aWhile / (16 * time.Millisecond)); looks > most {
						t.Errorf("%d looks in %v while it cannot be read", looks, 2*aWhile)
					}
					if err := tt.fix(r, s); err != nil {
						t.Fatal(err)
					}
					if tt.next != nil {
						l.saw(false, tt.next, tt.want)
						return
					}
					l.saw(false, []int{2, 4}, tt.want)
				})
			})
		}
	}
}

// TestWatchUnsettled: who allows for a state that may not last is told of it, and not
// told again when it does last.
func TestWatchUnsettled(t *testing.T) {
	for _, opts := range []*Options{nil, publishing()} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.opts = opts
			s := r.mustOpen()
			defer s.Close()
			r.upTo(s, 2)
			o, strict := r.mustRead(&Options{Allow: Unsettled}), r.mustRead(nil)
			loose, other := watched{watch: o.Watch}.start(t, 0, nil), watched{watch: strict.Watch}.start(t, 0, nil)
			loose.saw(false, []int{2})
			if err := r.doubt(s, 3); err != nil {
				t.Fatal(err)
			}
			loose.saw(false, []int{2, 3})
			other.saw(false, []int{2}, ErrUnsettled)
			if _, err := s.Recover(r.ctx()); err != nil {
				t.Fatal(err)
			}
			loose.saw(false, []int{2, 3})
			o.at(3)
			other.saw(false, []int{2, 3}, ErrUnsettled)
			r.upTo(s, 4)
			loose.saw(false, []int{2, 3, 4})
			other.saw(false, []int{2, 3, 4}, ErrUnsettled)
		})
	}
}

// TestWatchBesideErrors: what somebody else who uses the same Reader has heard, in an
// error, a loop hears too; and the state after it.
func TestWatchBesideErrors(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not rename a directory that a process has open")
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.mustOpen()
		r.upTo(s, 2)
		o := r.mustRead(nil)
		l := watched{watch: o.Watch}.start(t, 0, nil)
		l.saw(false, []int{2})
		r.upTo(s, 3)
		if err := errors.Join(s.Close(), os.Rename(r.dir, r.dir+".away")); err != nil {
			t.Fatal(err)
		}
		if err := o.Refresh(context.Background()); !errors.Is(err, ErrMissing) {
			t.Fatal(err)
		}
		l.saw(false, []int{2}, ErrMissing)
		if err := os.Rename(r.dir+".away", r.dir); err != nil {
			t.Fatal(err)
		}
		o.refreshed(3)
		l.saw(false, []int{2, 3}, ErrMissing)
	})
}

// doubt brings a store into doubt about the commit that makes revision n.
func (r *rig) doubt(s *Store, n int) error {
	plan := &faultfs.Plan{N: 1, Action: faultfs.Action{Err: fs.ErrInvalid}, Only: func(c faultfs.Call) bool {
		return c.String() == firstJournal+" SyncData" || c.String() == "session Sync"
	}}
	r.fs.Set(plan.Hook)
	defer r.fs.Set(nil)
	if err := commitNth(r.ctx(), s, n); !errors.Is(err, ErrInDoubt) {
		return fmt.Errorf("not in doubt: %w", err)
	}
	return nil
}

// undo makes what landed not to have landed: the new frame, or the new bundle, is gone.
func (r *rig) undo(bundle []byte) error {
	says := r.says()
	if says.pending.Epoch != says.confirmed.Epoch {
		return os.WriteFile(filepath.Join(r.dir, bundleName), bundle, 0o600)
	}
	f, err := os.OpenFile(filepath.Join(r.dir, journalName(says.pending.Epoch)), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, says.pending.Journal-says.confirmed.Journal), says.confirmed.Journal)
	return errors.Join(err, f.Close())
}
