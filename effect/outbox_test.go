package effect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// world is what is outside: it counts what was done to it.
type world struct {
	mu    sync.Mutex
	calls []string // "destination/name/attempt"
	most  map[string]int
	now   map[string]int
}

func newWorld() *world { return &world{most: map[string]int{}, now: map[string]int{}} }

func (w *world) enters(c effect.Call) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, fmt.Sprintf("%s/%s/%d", c.Destination, c.Name, c.Attempt))
	w.now[c.Destination]++
	w.most[c.Destination] = max(w.most[c.Destination], w.now[c.Destination])
	w.now[""]++
	w.most[""] = max(w.most[""], w.now[""])
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.now[c.Destination]--
		w.now[""]--
	}
}

func (w *world) seen(destination string) (calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if strings.HasPrefix(c, destination+"/") {
			calls = append(calls, c)
		}
	}
	return calls
}

// handler is one that takes a second, and then answers.
func (w *world) handler(answer func(c effect.Call) error) effect.Handler {
	return effect.Handler{
		Run: func(ctx context.Context, c effect.Call) ([]byte, error) {
			defer w.enters(c)()
			time.Sleep(time.Second)
			if answer == nil {
				return []byte("ok"), nil
			}
			return []byte("ok"), answer(c)
		},
		Backoff: func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute },
	}
}

func (s *site) enqueue(o *effect.Outbox, keys ...string) error {
	_, err := s.store.Update(s.ctx, "", func(v pawl.View) (pawl.Change, error) {
		var c pawl.Change
		for _, key := range keys {
			destination, _, _ := strings.Cut(key, " ")
			if err := o.Enqueue(s.ctx, v, &c, key, effect.Request{Destination: destination, Body: []byte(key)}); err != nil {
				return c, err
			}
		}
		return c, nil
	})
	return err
}

// runs runs an outbox for a while, and then waits for its end.
func (s *site) runs(o *effect.Outbox, handlers map[string]effect.Handler, d time.Duration, while ...func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error)
	go func() { ended <- o.Run(ctx, handlers) }()
	for _, f := range while {
		synctest.Wait()
		f()
	}
	time.Sleep(d)
	cancel()
	if err := <-ended; err != nil {
		s.t.Errorf("Run: %v", err)
	}
}

// An effect is queued with the state that causes it, or not at all; and once, however often
// it is asked for.
func TestEnqueue(t *testing.T) {
	s := newSite(t, nil)
	o := effect.NewOutbox(s.store, nil)
	note := func(key string, r effect.Request, more error) (pawl.Receipt, error) {
		return s.store.Update(s.ctx, "", func(v pawl.View) (pawl.Change, error) {
			c := pawl.Change{Put: map[string][]byte{"order": []byte("17")}}
			if err := o.Enqueue(s.ctx, v, &c, key, r); err != nil {
				return c, err
			}
			if err := o.Enqueue(s.ctx, v, &c, key, r); err != nil {
				return c, err
			}
			if len(c.Entries) > 1 {
				t.Errorf("%d entries", len(c.Entries))
			}
			return c, more
		})
	}
	if _, err := note("k", mail, errSaid); !errors.Is(err, errSaid) || s.state("k") != "" {
		t.Fatalf("%v, and it is %q", err, s.state("k"))
	}
	for range 2 {
		if _, err := note("k", mail, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok, _ := s.store.View().Get("order"); !ok || s.state("k") != "queued attempt 0 epoch 1" || s.story(s.digest("k")) != "enqueue" {
		t.Errorf("%q %q", s.state("k"), s.story(s.digest("k")))
	}
	var e *effect.Error
	if _, err := note("k", effect.Request{Destination: "post"}, nil); !errors.Is(err, effect.ErrKeyReused) || !errors.As(err, &e) || e.Op != "enqueue" {
		t.Errorf("another request: %v", err)
	}
	if _, err := note("", mail, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
	// Two requests under one key in one change.
	_, err := s.store.Update(s.ctx, "", func(v pawl.View) (pawl.Change, error) {
		var c pawl.Change
		if err := o.Enqueue(s.ctx, v, &c, "two", mail); err != nil {
			return c, err
		}
		err := o.Enqueue(s.ctx, v, &c, "two", effect.Request{Destination: "post"})
		return c, err
	})
	if !errors.Is(err, effect.ErrKeyReused) {
		t.Errorf("two requests: %v", err)
	}
	// Do carries out what is queued; and then it is settled, also for Enqueue.
	if _, err := effect.Do(s.ctx, s.store, "k", mail, (&answers{}).do, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := note("k", mail, nil); err != nil || s.state("k") != "settled" {
		t.Errorf("%v, and it is %q", err, s.state("k"))
	}
	if _, err := note("k", effect.Request{Destination: "post"}, nil); !errors.Is(err, effect.ErrKeyReused) {
		t.Errorf("another request: %v", err)
	}
}

// Everything is carried out once, within the bounds, in order, each destination by itself.
func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		o := effect.NewOutbox(s.store, &effect.OutboxOptions{Concurrency: 5})
		var keys []string
		for i := range 20 {
			keys = append(keys, fmt.Sprintf("a %02d", i), fmt.Sprintf("b %02d", i))
		}
		for _, key := range keys {
			if err := s.enqueue(o, key); err != nil {
				t.Fatal(err)
			}
		}
		a := w.handler(nil)
		a.Concurrency = 1
		handlers := map[string]effect.Handler{"a": a, "b": w.handler(nil)}
		s.runs(o, handlers, time.Minute, func() {
			if err := s.enqueue(o, "a late", "b late", "c nobody"); err != nil {
				t.Error(err)
			}
		})
		for _, name := range []string{"a", "b"} {
			calls := w.seen(name)
			if len(calls) != 21 || !slices.IsSorted(calls) && name == "a" {
				t.Errorf("%s: %d calls: %v", name, len(calls), calls)
			}
		}
		if w.most["a"] != 1 || w.most["b"] != 4 || w.most[""] != 5 {
			t.Errorf("at a time: %v", w.most)
		}
		if got := s.state("c nobody"); got != "queued attempt 0 epoch 1" {
			t.Errorf("one without a handler is %q", got)
		}
		// Do has the result of the handler, if that is JSON of its type.
		got, err := effect.Do(s.ctx, s.store, "a 01", requestOf("a 01"), (&answers{}).do, nil)
		if err == nil {
			t.Errorf("ok, which is no JSON, is read as %q", got)
		}
		before := len(w.calls)
		s.restart()
		s.runs(effect.NewOutbox(s.store, nil), handlers, time.Minute)
		if len(w.calls) != before {
			t.Errorf("after a restart: %v", w.calls[before:])
		}
	})
}

// No effect stops another: not one that fails, panics, hangs, or whose record is damaged.
func TestOutboxIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		var logged bytes.Buffer
		log := slog.New(slog.NewTextHandler(&syncWriter{w: &logged}, nil))
		o := effect.NewOutbox(s.store, &effect.OutboxOptions{Logger: log})
		if err := s.enqueue(o, "m fails", "m panics", "m hangs", "m unknown", "m permanent", "m exits", "m good", "n good", "x nobody"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.Commit(s.ctx, pawl.Change{Put: map[string][]byte{"effects/bad": []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
		never := make(chan struct{})
		h := w.handler(func(c effect.Call) error {
			switch c.Name {
			case "m fails":
				return effect.NotDone(errSaid)
			case "m panics":
				panic("\x1b[2J at the disco")
			case "m hangs":
				<-never
			case "m unknown":
				return errSaid
			case "m permanent":
				return effect.Permanent(errSaid)
			case "m exits":
				runtime.Goexit()
			}
			return nil
		})
		h.Concurrency = 2
		s.runs(o, map[string]effect.Handler{"m": h, "n": w.handler(nil)}, 20*time.Minute)
		close(never)
		synctest.Wait()
		for key, want := range map[string]string{
			"m good": "settled", "n good": "settled", "m panics": "parked attempt 1 epoch 1", "m unknown": "parked attempt 1 epoch 1", "m exits": "parked attempt 1 epoch 1",
			"m permanent": "settled", "x nobody": "queued attempt 0 epoch 1", "m fails": "failed attempt 6 epoch 1",
		} {
			if got := s.state(key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		// What it returned when nobody waited any more is knowledge all the same.
		if got := s.state("m hangs"); got != "settled" {
			t.Errorf("the one that hung is %q", got)
		}
		text := logged.String()
		for want, n := range map[string]int{"no handler": 1, "is not understood": 1, "parked": 4, "failed for good": 1} {
			if strings.Count(text, want) != n {
				t.Errorf("%q is logged %d times, want %d:\n%s", want, strings.Count(text, want), n, text)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Errorf("the log is not inert: %q", text)
		}
	})
}

type syncWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// Unknown outcomes go by Settle and Idempotent, with back-off; attempts have an end where
// the handler says so.
func TestOutboxUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		o := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(o, "again k", "ask k", "askdone k", "most k", "mostly k"); err != nil {
			t.Fatal(err)
		}
		unknown := func(effect.Call) error { return errSaid }
		again := w.handler(func(c effect.Call) error {
			if c.Attempt < 4 {
				return errSaid
			}
			return nil
		})
		again.Idempotent = true
		asked := 0
		ask := w.handler(unknown)
		ask.Settle = func(context.Context, effect.Call) ([]byte, error) {
			if asked++; asked < 3 {
				return nil, errSaid
			}
			return nil, effect.Permanent(errSaid)
		}
		askDone := w.handler(unknown)
		askDone.Settle = func(context.Context, effect.Call) ([]byte, error) { return []byte("found"), nil }
		most := w.handler(func(effect.Call) error { return effect.NotDone(errSaid) })
		most.Attempts = 3
		mostly := w.handler(unknown)
		mostly.Attempts, mostly.Idempotent = 3, true
		s.runs(o, map[string]effect.Handler{"again": again, "ask": ask, "askdone": askDone, "most": most, "mostly": mostly}, time.Hour)
		for key, want := range map[string]string{"again k": "settled", "ask k": "settled", "askdone k": "settled", "most k": "settled", "mostly k": "parked attempt 3 epoch 1"} {
			if got := s.state(key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		for name, n := range map[string]int{"again": 4, "ask": 1, "askdone": 1, "most": 3, "mostly": 3} {
			if calls := w.seen(name); len(calls) != n {
				t.Errorf("%s: %v", name, calls)
			}
		}
		if asked != 3 {
			t.Errorf("asked %d times", asked)
		}
		var e *effect.Error
		_, err := effect.Do(s.ctx, s.store, "most k", effect.Request{Destination: "most", Body: []byte("most k")}, (&answers{}).do, nil)
		if !errors.Is(err, effect.ErrFailed) || !errors.As(err, &e) || e.Attempt != 3 || !strings.Contains(err.Error(), errSaid.Error()) {
			t.Error(err)
		}
	})
}

// What a process has left that is gone: queued goes on, and what was begun is in doubt.
func TestOutboxAfterACrash(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, w := newSite(t, nil), newWorld()
			r := func(key string) effect.Request { return effect.Request{Destination: "m", Body: []byte(key)} }
			if err := s.enqueue(effect.NewOutbox(s.store, nil), "m queued"); err != nil {
				t.Fatal(err)
			}
			s.dies("m begun", r("m begun"), nil)
			h := w.handler(nil)
			h.Idempotent = idempotent
			s.runs(effect.NewOutbox(s.store, nil), map[string]effect.Handler{"m": h}, time.Hour)
			want := []string{"m/m queued/1"}
			if idempotent {
				want = []string{"m/m begun/2", "m/m queued/1"}
			}
			calls := w.seen("m")
			slices.Sort(calls)
			if !slices.Equal(calls, want) {
				t.Errorf("%v", calls)
			}
			if got := s.state("m begun"); idempotent != (got == "settled") || !idempotent && got != "parked attempt 1 epoch 1" {
				t.Errorf("%q", got)
			}
		})
	}
}

// When ctx ends nothing new begins, and what has begun comes to its end.
func TestOutboxEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		o := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(o, "m 1", "m 2", "m 3"); err != nil {
			t.Fatal(err)
		}
		h := w.handler(nil)
		h.Concurrency = 1
		s.runs(o, map[string]effect.Handler{"m": h}, 1500*time.Millisecond)
		if calls := fmt.Sprint(w.seen("m")); calls != "[m/m 1/1 m/m 2/1]" {
			t.Errorf("%v", calls)
		}
		queued := 0
		for range effect.Unsettled(s.store.View()) {
			queued++
		}
		if queued != 1 {
			t.Errorf("%d are left", queued)
		}
	})
}

// Run ends with an error when the store does.
func TestOutboxClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		ended := make(chan error)
		go func() { ended <- effect.NewOutbox(s.store, nil).Run(s.ctx, nil) }()
		synctest.Wait()
		if err := s.store.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, pawl.ErrClosed) {
			t.Error(err)
		}
	})
	s := newSite(t, nil)
	if err := effect.NewOutbox(s.store, nil).Run(s.ctx, map[string]effect.Handler{"m": {}}); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// What an operator decides while the outbox runs is noticed at once.
func TestOutboxReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSite(t, nil), newWorld()
		o := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(o, "m 1", "m 2"); err != nil {
			t.Fatal(err)
		}
		h := w.handler(func(c effect.Call) error {
			if c.Attempt == 1 {
				return errSaid
			}
			// The attempt that was released: certainly not. The first is as unknown as before.
			return effect.NotDone(errSaid)
		})
		s.runs(o, map[string]effect.Handler{"m": h}, time.Hour, func() {
			time.Sleep(time.Hour)
			d := effect.Decision{Digest: s.digest("m 1"), Epoch: 1, By: "me", Reason: "looked"}
			if err := effect.Release(s.ctx, s.store, d); err != nil {
				t.Error(err)
			}
		})
		if calls := w.seen("m"); len(calls) != 3 || calls[2] != "m/m 1/2" {
			t.Errorf("%v", calls)
		}
		if got := s.state("m 1"); got != "parked attempt 2 epoch 2" {
			t.Errorf("%q", got)
		}
	})
}
