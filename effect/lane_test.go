package effect_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// However many fail, those that wait come to their turn, and those that failed too (R17).
func TestFailuresTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		box := effect.NewOutbox(s.store, nil)
		var keys []string
		for i := range 20 {
			keys = append(keys, fmt.Sprint("mail bad ", i))
		}
		if err := s.enqueue(box, append(keys, "mail good")...); err != nil {
			t.Fatal(err)
		}
		h := w.handler(func(c effect.Call) error {
			if strings.Contains(c.Name, "bad") {
				return effect.NotDone(errSaid)
			}
			return nil
		})
		h.Concurrency, h.Backoff = 1, func(int) time.Duration { return 5 * time.Second }
		s.runs(box, map[string]effect.Handler{"mail": h}, 3*time.Minute, func() {
			time.Sleep(time.Minute)
			if err := s.enqueue(box, "mail late"); err != nil {
				t.Error(err)
			}
		})
		calls := w.seen("mail")
		if calls[20] != "mail/mail good/1" {
			t.Errorf("the good one, which is 21st, is not: %q", calls[:25])
		}
		late := 0
		for i, c := range calls {
			if c == "mail/mail late/1" {
				late = i
			}
		}
		if late < 50 || late > 85 {
			t.Errorf("one that came after a minute is call number %d", late)
		}
		for _, key := range keys {
			if n := strings.Count(strings.Join(calls, "\n"), key+"/"); n < 6 {
				t.Errorf("%s was tried %d times", key, n)
			}
		}
	})
}

// A record that was written while the clock was ahead holds nothing up.
func TestOutboxOfAnotherClock(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, w := newSite(t, &pawl.Options{Shared: shared}), newWorld()
			box := effect.NewOutbox(s.store, nil)
			ahead := &site{t: t, ctx: vfs.NewContext(s.ctx, jumping{vfs.FromContext(s.ctx), 365 * 24 * time.Hour}), store: s.store}
			if err := s.enqueue(box, "mail a"); err != nil {
				t.Fatal(err)
			}
			h := w.handler(func(effect.Call) error { return effect.NotDone(errSaid) })
			ahead.runs(box, map[string]effect.Handler{"mail": h}, 30*time.Second)
			if got := s.state("mail a"); got != "failed attempt 1 epoch 1" {
				t.Fatal(got)
			}
			if shared { // one that was begun, and has a lease
				func() {
					defer func() { _ = recover() }()
					_, _ = effect.Do(ahead.ctx, s.store, "mail b", requestOf("mail b"), func(context.Context, effect.Call) (string, error) {
						s.store.Close()
						panic("gone")
					}, nil)
				}()
				s.open()
				box = effect.NewOutbox(s.store, nil)
			}
			good := w.handler(nil)
			good.Idempotent = true
			s.runs(box, map[string]effect.Handler{"mail": good}, time.Hour)
			for _, key := range []string{"mail a", "mail b"} {
				if got := s.state(key); got != "settled" && (shared || key == "mail a") {
					t.Errorf("shared %v: %s is %s", shared, key, got)
				}
			}
		})
	}
}

// One mark says nothing of what stands beside it.
func TestMarksBesideOthers(t *testing.T) {
	mark := effect.NotDone(errSaid)
	for _, tt := range []struct {
		err  error
		want error
	}{
		{errors.Join(errors.New("it may be sent"), mark), effect.ErrUnsettled},
		{errors.Join(mark, errors.New("it may be sent")), effect.ErrUnsettled},
		{fmt.Errorf("%w, %w", mark, errSaid), effect.ErrUnsettled},
		{fmt.Errorf("more: %w", errors.Join(errSaid)), effect.ErrUnsettled},
		{errors.Join(mark), effect.ErrNotDone},
		{fmt.Errorf("more: %w", errors.Join(mark, fmt.Errorf("and: %w", mark))), effect.ErrNotDone},
		{errors.Join(mark, effect.Permanent(errSaid)), effect.ErrNotDone},
		{errors.Join(effect.Permanent(errSaid), effect.Permanent(errSaid)), effect.ErrFailed},
	} {
		s := newSite(t, nil)
		if _, err := effect.Do(s.ctx, s.store, "k", mail, (&answers{err: tt.err}).do, nil); !errors.Is(err, tt.want) {
			t.Errorf("%v: %v", tt.err, err)
		}
	}
}

// What is recorded can be moved: under the lowest limits that let an effect begin, it goes
// through every state.
func TestRoomToMove(t *testing.T) {
	long := strings.Repeat("<", 255)
	for name, tt := range map[string]struct {
		key string
		r   effect.Request
	}{
		"a large body":  {"k", effect.Request{Destination: "mail", Body: make([]byte, 5000)}},
		"long names":    {long, effect.Request{Destination: long, Body: []byte("x")}},
		"nothing to it": {"k", effect.Request{Destination: "m"}},
	} {
		for limit, set := range map[string]func(*pawl.Limits, int64){
			"Part":   func(l *pawl.Limits, n int64) { l.Part = n },
			"Entry":  func(l *pawl.Limits, n int64) { l.Entry = n },
			"Commit": func(l *pawl.Limits, n int64) { l.Commit = n },
		} {
			site := func(n int) *site {
				var l pawl.Limits
				set(&l, int64(n))
				return newSite(t, &pawl.Options{Limits: l, Shared: true})
			}
			// The lowest that lets it begin.
			begins := func(n int) bool {
				s, calls := site(n), 0
				_, err := effect.Do(s.ctx, s.store, tt.key, tt.r, func(context.Context, effect.Call) (int, error) { calls++; return 0, nil }, nil)
				if (err == nil) != (calls == 1) || err != nil && (!errors.Is(err, pawl.ErrTooLarge) || s.find(tt.key).Key != "") {
					t.Fatalf("%s, %s %d: %v, %d calls", name, limit, n, err, calls)
				}
				return calls == 1
			}
			low := 1 + sort.Search(30_000, func(n int) bool { return begins(n + 1) })
			if low > 30_000 {
				t.Fatalf("%s: nothing is taken", name)
			}
			s := site(low)
			box := effect.NewOutbox(s.store, nil)
			_, err := s.store.Update(s.ctx, "", func(v pawl.View) (pawl.Change, error) {
				var c pawl.Change
				err := box.Enqueue(s.ctx, v, &c, tt.key, tt.r)
				return c, err
			})
			if err != nil {
				t.Fatalf("%s, %s %d: %v", name, limit, low, err)
			}
			words := errors.New(strings.Repeat("<&>", 300))
			do := func(answer error, idempotent bool, want error) {
				t.Helper()
				_, err := effect.Do(s.ctx, s.store, tt.key, tt.r, (&answers{err: answer}).do, &effect.Options[string]{Idempotent: idempotent})
				if !errors.Is(err, want) || errors.Is(err, pawl.ErrTooLarge) {
					t.Fatalf("%s, %s %d: %v, and it is %s", name, limit, low, err, s.state(tt.key))
				}
			}
			do(effect.NotDone(words), true, effect.ErrNotDone)
			for range 12 {
				do(words, true, effect.ErrUnsettled)
			}
			do(words, false, effect.ErrUnsettled)
			d := effect.Decision{Digest: s.find(tt.key).Digest, Epoch: 1, By: "me", Reason: "x"}
			if err := effect.Release(s.ctx, s.store, d); err != nil {
				t.Fatalf("%s, %s %d: %v", name, limit, low, err)
			}
			do(words, false, effect.ErrUnsettled)
			do(nil, true, nil)
		}
	}
}

// What the store says of an effect that was begun does not hide that it was.
func TestDoubtBesideAnError(t *testing.T) {
	s := newSite(t, nil)
	s.dies("k", mail, nil)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := effect.Do(ctx, s.store, "k", mail, none, nil); !errors.Is(err, effect.ErrUnsettled) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for range 20 { // who has its turn, and whose context has ended: chance decides which is seen first
		if _, err := effect.Do(ctx, s.store, "k", requestOf("k"), none, nil); !errors.Is(err, effect.ErrKeyReused) || errors.Is(err, effect.ErrUnsettled) {
			t.Error(err)
		}
	}
	if _, err := effect.Do(ctx, s.store, "new", mail, none, nil); errors.Is(err, effect.ErrUnsettled) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The other side's answer to one attempt is no answer to another where it does not know the
// key.
func TestPermanentAfterRelease(t *testing.T) {
	s := newSite(t, nil)
	s.tries("k", errSaid)
	d := effect.Decision{Digest: s.digest("k"), Epoch: 1, By: "me", Reason: "x"}
	if err := effect.Release(s.ctx, s.store, d); err != nil {
		t.Fatal(err)
	}
	_, err := effect.Do(s.ctx, s.store, "k", requestOf("k"), (&answers{err: effect.Permanent(errSaid)}).do, nil)
	if !errors.Is(err, effect.ErrUnsettled) || s.state("k") != "parked attempt 2 epoch 2" {
		t.Errorf("%v, and it is %s", err, s.state("k"))
	}
}

// A store that is in doubt about a transition is settled, and the transition is made once.
func TestDoubtIsSettled(t *testing.T) {
	for flush := range 12 {
		s := newSite(t, nil)
		if err := s.store.Close(); err != nil {
			t.Fatal(err)
		}
		machine := faultfs.New(vfs.FromContext(s.ctx), "/")
		flushes := -1
		machine.Set(func(c faultfs.Call) faultfs.Action {
			if flushes >= 0 && strings.HasPrefix(c.Op, "Sync") {
				if flushes++; flushes == flush+1 {
					return faultfs.Action{Err: syscall.EIO}
				}
			}
			return faultfs.Action{}
		})
		s.ctx = machine.Context(s.ctx)
		s.open()
		if _, err := s.store.Commit(s.ctx, pawl.Change{Entries: [][]byte{[]byte("so that there is a journal")}}); err != nil {
			t.Fatal(err)
		}
		flushes = 0
		a := &answers{result: "sent"}
		got, err := effect.Do(s.ctx, s.store, "k", mail, a.do, nil)
		failed := flushes > flush
		flushes = -1
		if before := errors.Is(err, pawl.ErrNotCommitted) && len(a.calls) == 0; !before && (got != "sent" || err != nil || len(a.calls) != 1) {
			t.Errorf("flush %d failed (%v): %q, %v, %d calls", flush, failed, got, err, len(a.calls))
		}
		if got, err := effect.Do(s.ctx, s.store, "k", mail, a.do, nil); got != "sent" || err != nil || len(a.calls) != 1 {
			t.Errorf("flush %d, again: %q, %v, %d calls", flush, got, err, len(a.calls))
		}
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The context of a handler is not that of Run: what has begun is brought to its end.
func TestHandlerOutlivesRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		box := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(box, "mail a"); err != nil {
			t.Fatal(err)
		}
		s.runs(box, map[string]effect.Handler{"mail": {Run: func(ctx context.Context, _ effect.Call) ([]byte, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(10 * time.Second):
				return nil, nil
			}
		}}}, time.Second)
		if got := s.state("mail a"); got != "settled" {
			t.Error(got)
		}
	})
}

// Several effects of one commit begin in the order in which they were enqueued.
func TestOrderWithinACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		box := effect.NewOutbox(s.store, nil)
		var keys, want []string
		for i := range 9 {
			keys = append(keys, fmt.Sprint("mail ", (i*7)%9))
			want = append(want, fmt.Sprint("mail/mail ", (i*7)%9, "/1"))
		}
		if err := s.enqueue(box, keys...); err != nil {
			t.Fatal(err)
		}
		h := w.handler(nil)
		h.Concurrency = 1
		s.runs(box, map[string]effect.Handler{"mail": h}, time.Minute)
		if got := w.seen("mail"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q, enqueued as %q", got, want)
		}
	})
}

// With less concurrency than destinations, each gets its share.
func TestDestinationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		box := effect.NewOutbox(s.store, &effect.OutboxOptions{Concurrency: 1})
		var keys []string
		for i := range 30 {
			for _, destination := range []string{"a", "b", "c"} {
				keys = append(keys, fmt.Sprint(destination, " ", i))
			}
		}
		if err := s.enqueue(box, keys...); err != nil {
			t.Fatal(err)
		}
		s.runs(box, map[string]effect.Handler{"a": w.handler(nil), "b": w.handler(nil), "c": w.handler(nil)}, 30*time.Second)
		for _, destination := range []string{"a", "b", "c"} {
			if n := len(w.seen(destination)); n < 5 {
				t.Errorf("%s was called %d times of 30", destination, n)
			}
		}
	})
}

// counting counts how often the time is asked for.
type counting struct {
	vfs.FS
	asked *atomic.Int64
}

func (c counting) Now() time.Time {
	c.asked.Add(1)
	return c.FS.Now()
}

// An effect that somebody else in the process is at is left alone for a while, whatever the
// back-off is.
func TestRunIsNoHotLoop(t *testing.T) {
	s := newSite(t, nil)
	box := effect.NewOutbox(s.store, nil)
	if err := s.enqueue(box, "mail a"); err != nil {
		t.Fatal(err)
	}
	in, out := make(chan int), make(chan int)
	go func() { // holds the effect
		_, _ = effect.Do(s.ctx, s.store, "mail a", requestOf("mail a"), func(context.Context, effect.Call) (string, error) {
			close(in)
			<-out
			return "", nil
		}, nil)
	}()
	<-in
	var asked atomic.Int64
	ctx, cancel := context.WithTimeout(vfs.NewContext(s.ctx, counting{vfs.FromContext(s.ctx), &asked}), 300*time.Millisecond)
	defer cancel()
	_ = box.Run(ctx, map[string]effect.Handler{"mail": {Run: func(context.Context, effect.Call) ([]byte, error) { return nil, nil },
		Backoff: func(int) time.Duration { return 0 }}})
	close(out)
	if n := asked.Load(); n == 0 || n > 30 {
		t.Errorf("it looked at the clock %d times", n)
	}
}

// What nobody knows the end of waits as long as the handler says, and so does what was known
// and not written down.
func TestBackoffAsTheHandlerSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		box := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(box, "mail a"); err != nil {
			t.Fatal(err)
		}
		var pauses []time.Duration
		last, asked := time.Now(), 0
		s.runs(box, map[string]effect.Handler{"mail": {Idempotent: true,
			Run: func(context.Context, effect.Call) ([]byte, error) {
				pauses, last = append(pauses, time.Since(last).Round(100*time.Millisecond)), time.Now()
				return nil, errSaid
			},
			Backoff: func(attempt int) time.Duration { asked++; return time.Second << (attempt - 1) },
		}}, 5*time.Minute)
		want := "[0s 1s 2s 4s 8s 16s 32s 1m4s 2m8s]"
		if fmt.Sprint(pauses) != want || asked > 10 {
			t.Errorf("%v, want %s; the handler was asked %d times", pauses, want, asked)
		}
	})
}

// A clock that is set right while an outbox runs holds nothing up.
func TestClockSetRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		box := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(box, "mail a"); err != nil {
			t.Fatal(err)
		}
		var by atomic.Int64
		by.Store(int64(365 * 24 * time.Hour))
		s.ctx = vfs.NewContext(s.ctx, setRight{vfs.FromContext(s.ctx), &by})
		calls := 0
		s.runs(box, map[string]effect.Handler{"mail": {Backoff: func(int) time.Duration { return time.Minute },
			Run: func(context.Context, effect.Call) ([]byte, error) {
				calls++
				return nil, effect.NotDone(errSaid)
			}}}, 30*time.Minute, func() {
			time.Sleep(10 * time.Second)
			by.Store(0)
		})
		if calls < 20 {
			t.Errorf("called %d times", calls)
		}
	})
}

// setRight is a machine whose clock is ahead until it is set right.
type setRight struct {
	vfs.FS
	by *atomic.Int64
}

func (s setRight) Now() time.Time { return s.FS.Now().Add(time.Duration(s.by.Load())) }

// What the function returned is written down once the disk has room again.
func TestResultBesideAFullDisk(t *testing.T) {
	for _, only := range []string{"", ".trust"} {
		s := newSite(t, nil)
		if err := s.store.Close(); err != nil {
			t.Fatal(err)
		}
		machine := faultfs.New(vfs.FromContext(s.ctx), "/")
		var full atomic.Bool
		machine.Set(func(c faultfs.Call) faultfs.Action {
			if full.Load() && c.Op == "WriteAt" && strings.HasSuffix(c.Path, only) {
				return faultfs.Action{Err: syscall.ENOSPC}
			}
			return faultfs.Action{}
		})
		s.ctx = machine.Context(s.ctx)
		s.open()
		got, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
			full.Store(true)
			time.AfterFunc(200*time.Millisecond, func() { full.Store(false) })
			return "the receipt", nil
		}, nil)
		if got != "the receipt" || err != nil {
			t.Errorf("%q: %q, %v, and it is %s", only, got, err, s.state("k"))
		}
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A store whose disk is full for a moment keeps its effects, and goes on.
func TestOutboxBesideAFullDisk(t *testing.T) {
	s := newSite(t, nil)
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	machine := faultfs.New(vfs.FromContext(s.ctx), "/")
	var full atomic.Bool
	var refused atomic.Int64
	machine.Set(func(c faultfs.Call) faultfs.Action {
		if full.Load() && c.Op == "WriteAt" && strings.HasSuffix(c.Path, ".trust") {
			if refused.Add(1)%2 == 1 { // the intent, and not the record that takes it back
				return faultfs.Action{Err: syscall.ENOSPC}
			}
		}
		return faultfs.Action{}
	})
	s.ctx = machine.Context(s.ctx)
	s.open()
	box := effect.NewOutbox(s.store, nil)
	if err := s.enqueue(box, "mail a"); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
	defer cancel()
	go func() {
		time.Sleep(200 * time.Millisecond)
		full.Store(false)
	}()
	var calls atomic.Int64
	err := box.Run(ctx, map[string]effect.Handler{"mail": {Run: func(context.Context, effect.Call) ([]byte, error) {
		calls.Add(1)
		cancel()
		return nil, nil
	}, Backoff: func(int) time.Duration { return 50 * time.Millisecond }}})
	if n := refused.Load(); err != nil || calls.Load() != 1 || s.state("mail a") != "settled" || n == 0 || n > 20 {
		t.Errorf("%v: %d calls, %d refusals, and it is %s", err, calls.Load(), n, s.state("mail a"))
	}
}

// stringer is a type that encodes, and cannot be read back.
type stringer interface{ String() string }

// A result that cannot be read as what is asked for says that it happened.
func TestResultOfAnotherType(t *testing.T) {
	s := newSite(t, nil)
	if _, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (stringer, error) {
		t.Error("called")
		return nil, nil
	}, nil); !errors.Is(err, pawl.ErrInvalid) || s.state("k") != "" {
		t.Errorf("%v, and it is %q", err, s.state("k"))
	}
	if _, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (any, error) { return "text", nil }, nil); err != nil {
		t.Error(err)
	}
	_, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (int, error) { return 1, nil }, nil)
	var e *effect.Error
	if !errors.As(err, &e) || !errors.Is(err, effect.ErrResult) || e.State != effect.Done || e.Digest == (pawl.Digest{}) || e.Hint() == "" || !strings.Contains(err.Error(), "int") {
		t.Errorf("%v", err)
	}
	s.tries("garbage", errSaid)
	if err := effect.Resolve(s.ctx, s.store, effect.Decision{Digest: s.digest("garbage"), Epoch: 1, By: "me", Reason: "x"}, []byte("250 ok")); err != nil {
		t.Fatal(err)
	}
	if _, err := effect.Do(s.ctx, s.store, "garbage", requestOf("garbage"), none, nil); !errors.Is(err, effect.ErrResult) {
		t.Error(err)
	}
}

// Who decided what about an effect stays, as long as it is not settled.
func TestKeepUnsettled(t *testing.T) {
	s := newSite(t, nil)
	s.tries("open", errSaid)
	if _, err := effect.Do(s.ctx, s.store, "settled", mail, none, nil); err != nil {
		t.Fatal(err)
	}
	d := effect.Decision{Digest: s.digest("open"), Epoch: 1, By: "me", Reason: "they never got it"}
	if err := effect.Release(s.ctx, s.store, d); err != nil {
		t.Fatal(err)
	}
	if _, err := effect.Do(s.ctx, s.store, "open", requestOf("open"), (&answers{err: errSaid}).do, nil); !errors.Is(err, effect.ErrUnsettled) {
		t.Fatal(err)
	}
	if _, err := s.store.Commit(s.ctx, pawl.Change{Entries: [][]byte{[]byte("other"), []byte("last")}}); err != nil {
		t.Fatal(err)
	}
	before := s.story(d.Digest)
	if _, err := s.store.Compact(s.ctx, pawl.Policy{KeepLast: 1, Keep: effect.KeepUnsettled(s.store)}); err != nil {
		t.Fatal(err)
	}
	if got := s.story(d.Digest); got != before || !strings.Contains(got, "release") {
		t.Errorf("%q, before %q", got, before)
	}
	n := 0
	for _, err := range s.store.View().Entries(0) {
		if n++; err != nil {
			t.Error(err)
		}
	}
	if n != strings.Count(before, ",")+1+2 {
		t.Errorf("%d entries are left", n)
	}
}
