//go:build unix || windows

package pawl

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
)

// held is something that a writer does, and that waits in the middle of it.
type held struct {
	reached chan struct{} // closed when it waits there
	release func()
	done    chan error // what came of it
}

// hold lets a writer do something, up to its first call of that name.
func (r *rig) hold(call string, half bool, do func() error) *held {
	r.t.Helper()
	h := &held{reached: make(chan struct{}), done: make(chan error, 1)}
	on := make(chan struct{})
	h.release = sync.OnceFunc(func() { close(on) })
	r.t.Cleanup(h.release)
	var once sync.Once
	wait := func() { once.Do(func() { close(h.reached); <-on }) }
	r.fs.Set(func(c faultfs.Call) faultfs.Action {
		select {
		case <-h.reached:
			return faultfs.Action{}
		default:
		}
		switch {
		case !strings.HasPrefix(c.String(), call):
			return faultfs.Action{}
		case half:
			return faultfs.Action{Half: true, After: wait}
		}
		return faultfs.Action{Before: wait}
	})
	go func() { h.done <- do() }()
	select {
	case <-h.reached:
	case err := <-h.done:
		r.t.Fatalf("it never came to %q: %v", call, err)
	}
	return h
}

// looks returns a channel that is closed when the trust file is about to be read for
// the nth time: who reads it a second time waits for something.
func looks(f *faultfs.FS, n int64) <-chan struct{} {
	looked := make(chan struct{})
	var count atomic.Int64
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.String() == "trust/session.trust Open" && count.Add(1) == n {
			close(looked)
		}
		return faultfs.Action{}
	})
	return looked
}

// upTo makes commits up to the nth.
func (r *rig) upTo(s *Store, n int) {
	r.t.Helper()
	for i := int(s.View().Version().Revision) + 1; i <= n; i++ {
		// Replayed, where another Store was here and this one has not seen it yet.
		if got, err := s.Commit(r.ctx(), nthChange(i)); err != nil || got.Revision != Revision(i) {
			r.t.Fatal(got, err)
		}
	}
}

// TestReaderWaits: while a commit is being written, wherever its writer is, a reader
// waits for it; and one that was there before does.
func TestReaderWaits(t *testing.T) {
	for _, kind := range intents() {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			k := kinds[kind]
			if r.opts = small(4); k.publish {
				r.opts = publishing()
			}
			s := r.mustOpen()
			defer s.Close()
			r.upTo(s, k.commits)
			o := r.mustRead(&Options{LockWait: forever})
			o.at(k.commits)
			want, do := k.commits+1, func() error { return commitNth(r.ctx(), s, k.commits+1) }
			if k.checkpoint {
				want, do = k.commits, func() error { return s.Checkpoint(r.ctx()) }
			}
			h := r.hold(moments[k.moment].call, moments[k.moment].half, do)

			// Without the time to wait, it says so, and keeps what it has.
			hasty, err := r.reader(&Options{LockWait: noWait})
			if unsettled(t, err, "open"); hasty != nil {
				t.Errorf("shows %s", hasty.View().Version())
			}
			o.at(k.commits)

			newcomer := r.watching()
			waiting, refreshing := looks(newcomer, 3), looks(o.fs, 3)
			opened, refreshed := make(chan *onlooker, 1), make(chan error, 1)
			go func() {
				o, err := r.readerOn(newcomer, &Options{LockWait: forever})
				if err != nil {
					t.Error(err)
				}
				opened <- o
			}()
			go func() { refreshed <- o.Refresh(context.Background()) }()
			<-waiting
			<-refreshing
			select {
			case <-opened:
				t.Error("OpenReader has not waited")
			case err := <-refreshed:
				t.Errorf("Refresh has not waited: %v", err)
			default:
			}
			h.release()
			if err := <-h.done; err != nil {
				t.Fatal(err)
			}
			if err := <-refreshed; err != nil {
				t.Error(err)
			}
			o.at(want)
			if n := <-opened; n != nil {
				n.at(want)
			}
		})
	}
}

// TestReaderEnds: a context that ends, and a Close, while a reader waits.
func TestReaderEnds(t *testing.T) {
	r := newRig(t)
	s := r.mustOpen()
	defer s.Close()
	r.upTo(s, 2)
	o, closing := r.mustRead(&Options{LockWait: forever}), r.mustRead(&Options{LockWait: forever})
	h := r.hold(firstJournal+" SyncData", false, func() error { return commitNth(r.ctx(), s, 3) })
	why := errors.New("no more time")
	ends := func(op string, err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Op != op || e.Kind != nil || e.Path == "" || !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("%s: %v, want why the context has ended", op, err)
		}
	}
	for _, tt := range []struct {
		op string
		do func(ctx context.Context, f *faultfs.FS) error
	}{
		{"refresh", func(ctx context.Context, _ *faultfs.FS) error { return o.Refresh(ctx) }},
		{"lookup", func(ctx context.Context, _ *faultfs.FS) error { _, _, err := o.Lookup(ctx, "never"); return err }},
		{"open", func(ctx context.Context, f *faultfs.FS) error {
			_, err := OpenReader(f.Context(ctx), r.dir, r.trust, &Options{LockWait: forever})
			return err
		}},
	} {
		f := o.fs
		if tt.op == "open" {
			f = r.watching()
		}
		waiting, done := looks(f, 2), make(chan error, 2)
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() { done <- tt.do(ctx, f) }()
		<-waiting
		// Another one waits for the first, and is as free to go.
		go func() { done <- o.Refresh(ctx) }()
		cancel(why)
		for range 2 {
			err := <-done
			var e *Error
			if errors.As(err, &e) && e.Op == "refresh" {
				ends("refresh", err)
			} else {
				ends(tt.op, err)
			}
		}
		ends(tt.op, tt.do(ctx, f)) // and one that has ended before
		o.at(2)
	}
	for range o.Watch(func() context.Context { ctx, cancel := context.WithCancel(context.Background()); cancel(); return ctx }(), 0) {
		t.Error("Watch yields something after its context has ended")
	}

	// Close does not wait for those who wait.
	waiting, refreshed, closed := looks(closing.fs, 2), make(chan error, 1), make(chan error, 1)
	go func() { refreshed <- closing.Refresh(context.Background()) }()
	<-waiting
	go func() { closed <- closing.Close() }()
	if err := <-refreshed; !errors.Is(err, ErrClosed) {
		t.Errorf("Refresh, closed meanwhile: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	h.release()
	if err := <-h.done; err != nil {
		t.Fatal(err)
	}
	closing.at(2)
	o.refreshed(3)
}

// TestReaderBusyWriter: an intent that is newer than the look at it has a living writer,
// who had not acknowledged anything that its record does not name as confirmed.
func TestReaderBusyWriter(t *testing.T) {
	for _, tt := range []struct {
		name          string
		opts          *Options
		first, second string
		old           bool // the state between the two can still be read
	}{
		{"extend", nil, firstJournal + " SyncData", firstJournal + " WriteAt", true},
		{"extend, landed", nil, firstJournal + " WriteAt", firstJournal + " SyncData", true},
		{"publish", publishing(), "session Sync", "session/tmp-* Rename session/bundle", true},
		{"publish, landed", publishing(), "session/tmp-* Rename session/bundle", "session Sync", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.opts = tt.opts
			s := r.mustOpen()
			defer s.Close()
			r.upTo(s, 2)
			readers := []*onlooker{r.mustRead(&Options{LockWait: forever}), r.mustRead(&Options{LockWait: forever})}
			one := r.hold(tt.first, false, func() error { return commitNth(r.ctx(), s, 3) })
			var two *held
			next := sync.OnceFunc(func() {
				one.release()
				if err := <-one.done; err != nil {
					t.Error(err)
				}
				two = r.hold(tt.second, false, func() error { return commitNth(r.ctx(), s, 4) })
			})
			// Each has seen the first intent when it comes to see the second.
			ready, met := sync.WaitGroup{}, make(chan struct{})
			ready.Add(len(readers))
			third := make(chan struct{}, len(readers))
			for _, o := range readers {
				var n atomic.Int64
				o.fs.Set(func(c faultfs.Call) faultfs.Action {
					if c.String() != "trust/session.trust Open" {
						return faultfs.Action{}
					}
					switch n.Add(1) {
					case 2:
						return faultfs.Action{Before: func() { ready.Done(); <-met }}
					case 8:
						third <- struct{}{}
					}
					return faultfs.Action{}
				})
			}
			done := make(chan error, 2)
			go func() { done <- readers[0].Refresh(context.Background()) }()
			go func() {
				_, outcome, err := readers[1].Lookup(context.Background(), "c4")
				if want := map[bool]Outcome{true: OutcomeUnknown, false: OutcomeCommitted}[tt.old]; outcome != want {
					t.Errorf("Lookup of what is under way: %v, want %v", outcome, want)
				}
				done <- err
			}()
			ready.Wait()
			next()
			close(met)
			want := 3
			if !tt.old {
				<-third // they wait for the second commit too
				<-third
				two.release()
				want = 4
			}
			for range readers {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			for _, o := range readers {
				o.at(want)
			}
			two.release()
			if err := <-two.done; err != nil {
				t.Fatal(err)
			}
			for _, o := range readers {
				if _, outcome, err := o.Lookup(context.Background(), "c4"); outcome != OutcomeCommitted || err != nil {
					t.Errorf("Lookup: %v, %v", outcome, err)
				}
				o.refreshed(4)
			}
		})
	}
}

// TestReaderAtEveryCall: readers look before every call that a writer makes. They show
// what the trust file confirms, and nothing else; with an intent there they say so.
func TestReaderAtEveryCall(t *testing.T) {
	if runtime.GOOS == "windows" && testing.Short() {
		t.Skip("it takes a minute under Wine; without -short it runs there too")
	}
	for _, tt := range []struct {
		name, from string
		opts       *Options
		commits    int
		end        func(r *rig, s *Store) error
	}{
		{"a new store", "nothing", nil, 4, nil},
		{"a new store, publishing", "nothing", publishing(), 3, nil},
		{"small journals", "one", small(4), 5, nil},
		{"every two", "empty", &Options{CheckpointEvery: 2}, 5, nil},
		{"shared", "one", &Options{Shared: true}, 3, nil},
		{"confirms flushed", "journal", &Options{SyncConfirm: true}, 2, nil},
		{"checkpoint", "journal", nil, 1, func(r *rig, s *Store) error { return s.Checkpoint(r.ctx()) }},
		{"to settle: landed", "landed", nil, 1, nil},
		{"to settle: not landed", "not landed", nil, 1, nil},
		{"to settle: extend landed", "extend landed", nil, 1, nil},
		{"to settle: extend torn", "extend torn", nil, 1, nil},
		{"to settle: making not landed", "making not landed", nil, 1, nil},
		{"to settle: first not landed", "first not landed", nil, 1, nil},
		{"to settle: checkpoint landed", "checkpoint landed", nil, 1, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.opts = tt.opts
			r.prepare(tt.from)
			old, loose := (*onlooker)(nil), (*onlooker)(nil)
			looks := 0
			look := func(c faultfs.Call) {
				looks++
				raw, err := os.ReadFile(filepath.Join(r.trust, "session.trust"))
				if err == nil {
					_, _, err = decodeRing(raw)
				}
				fresh, freshErr := r.reader(&Options{LockWait: noWait})
				if errors.Is(err, fs.ErrNotExist) {
					if !errors.Is(freshErr, ErrNotExist) {
						t.Errorf("before %s: %v, want ErrNotExist", c, freshErr)
					}
					return
				}
				says := r.says()
				if loose == nil {
					loose = r.mustRead(&Options{LockWait: noWait, Allow: Unsettled})
				} else if err := loose.Refresh(context.Background()); err != nil {
					t.Errorf("before %s, with Unsettled allowed: %v", c, err)
				}
				n := int(loose.View().Version().Revision)
				if err := checkNth(loose.View(), n); err != nil || loose.Unsettled() != says.intent() || n != int(says.confirmed.Revision) && n != int(says.pending.Revision) {
					t.Errorf("before %s, with Unsettled allowed: revision %d (unsettled: %v): %v", c, n, loose.Unsettled(), err)
				}
				if old != nil {
					err = old.Refresh(context.Background())
				}
				if says.intent() {
					if unsettled(t, freshErr, "open"); old != nil {
						unsettled(t, err, "refresh")
						old.at(int(says.confirmed.Revision))
					}
					return
				}
				if err := errors.Join(err, freshErr); err != nil {
					t.Errorf("before %s: %v", c, err)
					return
				}
				fresh.at(int(says.confirmed.Revision))
				if old == nil {
					old = fresh
				} else if err := fresh.Close(); err != nil {
					t.Error(err)
				}
				old.at(int(says.confirmed.Revision))
			}
			r.fs.Set(func(c faultfs.Call) faultfs.Action {
				if strings.HasPrefix(c.Path, "above") || !c.Mutates() && c.Op != "Close" {
					return faultfs.Action{} // nothing has changed since the last look
				}
				return faultfs.Action{Before: func() { look(c) }}
			})
			s := r.mustOpen()
			r.upTo(s, int(s.View().Version().Revision)+tt.commits)
			n := int(s.View().Version().Revision)
			if tt.end != nil {
				if err := tt.end(r, s); err != nil {
					t.Error(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if looks < 10 {
				t.Errorf("only %d looks", looks)
			}
			old.refreshed(n)
			loose.refreshed(n)
		})
	}
}

// TestWriterAtEveryCall: a writer does something between any two calls of a reader.
func TestWriterAtEveryCall(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Wine does not rename over a file that a process has open, and the reader stands still with one open")
	}
	for _, tt := range []struct {
		name string
		opts *Options
		do   func(r *rig, s **Store, n *int)
	}{
		{"commits", nil, func(r *rig, s **Store, n *int) { *n++; r.upTo(*s, *n) }},
		{"publishes", publishing(), func(r *rig, s **Store, n *int) { *n++; r.upTo(*s, *n) }},
		{"checkpoints and commits", nil, func(r *rig, s **Store, n *int) {
			if err := (*s).Checkpoint(r.ctx()); err != nil {
				r.t.Error(err)
			}
			*n += 2
			r.upTo(*s, *n)
		}},
		{"opens again, and checkpoints", nil, func(r *rig, s **Store, n *int) {
			if err := (*s).Close(); err != nil {
				r.t.Error(err)
			}
			*s = r.mustOpen()
			*n++
			r.upTo(*s, *n)
			if err := (*s).Checkpoint(r.ctx()); err != nil {
				r.t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for call, fired := 1, true; fired; call++ {
				r := newRig(t)
				r.opts = tt.opts
				s, n := r.mustOpen(), 3
				r.upTo(s, n)
				o := r.mustRead(&Options{LockWait: forever})
				n++
				r.upTo(s, n)
				fired = false
				for _, open := range []bool{true, false} {
					f, before := o.fs, n
					if open {
						f = r.watching()
					}
					f.Set(func(c faultfs.Call) faultfs.Action {
						if c.N != call || c.Op == "Resolve" {
							return faultfs.Action{}
						}
						fired = true
						return faultfs.Action{Before: func() { tt.do(r, &s, &n) }}
					})
					now, err := o, error(nil)
					if open {
						now, err = r.readerOn(f, &Options{LockWait: forever})
					} else {
						err = o.Refresh(context.Background())
					}
					if err != nil {
						t.Fatalf("call %d: %v", call, err)
					}
					got := int(now.View().Version().Revision)
					if err := checkNth(now.View(), got); err != nil || got < before || got > n || now.Unsettled() {
						t.Errorf("call %d: revision %d, of %d before and %d after: %v", call, got, before, n, err)
					}
					f.Set(nil)
					now.refreshed(n)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if call > 200 {
					t.Fatal("no end of calls")
				}
			}
		})
	}
}

// TestReaderOutrun: a writer that is always faster than the reader is no fault of the
// store's, and no reason to go on for ever.
func TestReaderOutrun(t *testing.T) {
	r := newRig(t)
	r.opts = publishing()
	s := r.mustOpen()
	defer s.Close()
	r.upTo(s, 1)
	f, n, left := r.watching(), 1, 1<<30
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.String() != "session/bundle Open" || left == 0 {
			return faultfs.Action{}
		}
		left--
		return faultfs.Action{Before: func() { n++; r.upTo(s, n) }}
	})
	_, err := r.readerOn(f, &Options{LockWait: noWait})
	if e := unsettled(t, err, "open"); e.Hint != hintChanging || n < 3 || n > 1000 {
		t.Errorf("after %d commits: %v", n, err)
	}
	left = 5
	o, err := r.readerOn(f, &Options{LockWait: noWait})
	if err != nil {
		t.Fatal(err)
	}
	o.at(n)

	// One that appends leaves what trust named where it was, and cannot outrun it.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.opts = nil
	s = r.mustOpen()
	defer s.Close()
	left, n = 1<<30, n+1
	r.upTo(s, n)
	if o, err = r.readerOn(f, &Options{LockWait: noWait}); err != nil {
		t.Fatal(err)
	}
	o.at(n - 1)
}
