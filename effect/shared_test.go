package effect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// sharers are several opens of one store, which take turns like processes.
func sharers(t *testing.T, n int) (all []*site) {
	t.Helper()
	first := newSite(t, &pawl.Options{Shared: true})
	all = append(all, first)
	for range n - 1 {
		s := &site{t: t, ctx: first.ctx, opts: first.opts}
		s.open()
		t.Cleanup(func() { s.store.Close() })
		all = append(all, s)
	}
	return all
}

// sync makes View what the store is by now.
func (s *site) sync() *site {
	s.t.Helper()
	if _, err := s.store.Update(s.ctx, "", func(pawl.View) (pawl.Change, error) { return pawl.Change{}, nil }); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// Several outboxes on one store deliver nothing twice.
func TestSharedOutboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, w := sharers(t, 3), newWorld()
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprintf("m %d", i), fmt.Sprintf("n %d", i))
		}
		if err := all[0].enqueue(effect.NewOutbox(all[0].store, nil), keys...); err != nil {
			t.Fatal(err)
		}
		n := w.handler(nil)
		n.Idempotent = true
		handlers := map[string]effect.Handler{"m": w.handler(nil), "n": n}
		ended := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		for _, s := range all {
			go func() { ended <- effect.NewOutbox(s.store, nil).Run(wrap(ctx, s.ctx), handlers) }()
		}
		time.Sleep(time.Hour)
		cancel()
		for range all {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		seen := map[string]int{}
		for _, c := range w.calls {
			seen[c]++
		}
		for _, key := range keys {
			if got := seen[key[:1]+"/"+key+"/1"]; got != 1 || all[0].sync().state(key) != "settled" {
				t.Errorf("%s was carried out %d times", key, got)
			}
		}
		if len(w.calls) != len(keys) {
			t.Errorf("%d calls", len(w.calls))
		}
	})
}

// wrap is a context that ends with one and carries the machine of another.
func wrap(ctx, machine context.Context) context.Context { return values{ctx, machine} }

type values struct {
	context.Context
	machine context.Context
}

func (v values) Value(key any) any {
	if x := v.Context.Value(key); x != nil {
		return x
	}
	return v.machine.Value(key)
}

// A call in another process waits for the one that carries it out, and gets its result.
func TestSharedDoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := sharers(t, 2)
		a, b := all[0], all[1]
		ended := make(chan error)
		go func() {
			got, err := effect.Do(a.ctx, a.store, "k", mail, func(context.Context, effect.Call) (string, error) {
				time.Sleep(30 * time.Second)
				return "a", nil
			}, nil)
			if got != "a" {
				t.Errorf("a: %q", got)
			}
			ended <- err
		}()
		synctest.Wait()
		f := &answers{result: "b"}
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		if _, err := effect.Do(ctx, b.store, "k", mail, f.do, &effect.Options[string]{Idempotent: true}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("b, with a context that ends: %v", err)
		}
		err := effect.Cancel(b.ctx, b.store, effect.Decision{Digest: b.sync().digest("k"), By: "me", Reason: "x"})
		if !errors.Is(err, effect.ErrRefused) {
			t.Errorf("cancelled while it is carried out: %v", err)
		}
		if got, err := effect.Do(b.ctx, b.store, "k", mail, f.do, &effect.Options[string]{Idempotent: true}); got != "a" || err != nil || len(f.calls) != 0 {
			t.Errorf("b: %q, %v, %d calls", got, err, len(f.calls))
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// When its lease has ended an attempt is taken for dead. What it says later is knowledge.
func TestSharedLease(t *testing.T) {
	for _, tt := range []struct {
		idempotent bool
		late       error
		want       string // of b, while a is at it
		said       string // of a, when it returns
		end        string
	}{
		{false, nil, "parked attempt 1 epoch 1", "a unsettled false, not done false", "settled"},
		{false, errSaid, "parked attempt 1 epoch 1", " unsettled true, not done false", "parked attempt 1 epoch 1"},
		{false, effect.NotDone(errSaid), "parked attempt 1 epoch 1", " unsettled false, not done true", "failed attempt 1 epoch 1"},
		{true, nil, "settled", "b unsettled false, not done false", "settled"},
	} {
		synctest.Test(t, func(t *testing.T) {
			all := sharers(t, 2)
			a, b := all[0], all[1]
			ended := make(chan string)
			go func() {
				got, err := effect.Do(a.ctx, a.store, "k", mail, func(context.Context, effect.Call) (string, error) {
					time.Sleep(time.Hour)
					return "a", tt.late
				}, nil)
				ended <- fmt.Sprintf("%s unsettled %v, not done %v", got, errors.Is(err, effect.ErrUnsettled), errors.Is(err, effect.ErrNotDone))
			}()
			synctest.Wait()
			began := time.Now()
			f := &answers{result: "b"}
			got, err := effect.Do(b.ctx, b.store, "k", mail, f.do, &effect.Options[string]{Idempotent: tt.idempotent})
			if tt.idempotent && (got != "b" || err != nil || f.calls[0].Attempt != 2) || !tt.idempotent && (!errors.Is(err, effect.ErrUnsettled) || len(f.calls) != 0) {
				t.Errorf("b: %q, %v", got, err)
			}
			if waited := time.Since(began); waited < 75*time.Second {
				t.Errorf("b waited %v", waited)
			}
			if got := b.state("k"); got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
			a.sync()
			said := <-ended
			if said != tt.said {
				t.Errorf("a: %s, want %s", said, tt.said)
			}
			if got := b.sync().state("k"); got != tt.end {
				t.Errorf("in the end it is %q, want %q", got, tt.end)
			}
		})
	}
}

// The lease of an attempt in a shared store holds for one who has it for himself, too: who
// shares a store holds no locks while he carries something out.
func TestLeaseWithoutSharing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSite(t, &pawl.Options{Shared: true})
		ended := make(chan error)
		go func() {
			_, err := effect.Do(a.ctx, a.store, "k", mail, func(context.Context, effect.Call) (string, error) {
				time.Sleep(45 * time.Second)
				return "a", nil
			}, &effect.Options[string]{Timeout: time.Minute + time.Nanosecond})
			ended <- err
		}()
		synctest.Wait()
		b := &site{t: t, ctx: a.ctx}
		b.open()
		f := &answers{result: "b"}
		ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
		defer cancel()
		if _, err := effect.Do(ctx, b.store, "k", mail, f.do, &effect.Options[string]{Idempotent: true}); !errors.Is(err, context.DeadlineExceeded) || len(f.calls) != 0 {
			t.Errorf("while a carries it out: %v, %d calls", err, len(f.calls))
		}
		if err := b.store.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got, err := effect.Do(a.ctx, a.store, "k", mail, f.do, nil); got != "a" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// An outbox takes up what another one has left, when its lease has ended.
func TestSharedOutboxLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, w := sharers(t, 2), newWorld()
		a, b := all[0], all[1]
		// a begins two, and is gone.
		for _, key := range []string{"m k", "n k"} {
			a.while(key, requestOf(key), nil, func() { a.store.Close(); a.open() })
		}
		n := w.handler(nil)
		n.Idempotent = true
		b.runs(effect.NewOutbox(b.store, nil), map[string]effect.Handler{"m": w.handler(nil), "n": n}, 70*time.Second)
		if len(w.calls) != 0 {
			t.Errorf("before the lease has ended: %v", w.calls)
		}
		b.runs(effect.NewOutbox(b.store, nil), map[string]effect.Handler{"m": w.handler(nil), "n": n}, 70*time.Second)
		if fmt.Sprint(w.calls) != "[n/n k/2]" || b.state("m k") != "parked attempt 1 epoch 1" {
			t.Errorf("%v, and m is %q", w.calls, b.state("m k"))
		}
	})
}

// A release, and an effect that is queued, by one process are noticed by another.
func TestSharedNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, w := sharers(t, 2), newWorld()
		a, b := all[0], all[1]
		h := w.handler(func(c effect.Call) error {
			if c.Attempt == 1 && c.Name == "m 1" {
				return errSaid
			}
			return nil
		})
		b.runs(effect.NewOutbox(b.store, nil), map[string]effect.Handler{"m": h}, time.Minute, func() {
			if err := a.enqueue(effect.NewOutbox(a.store, nil), "m 1", "m 2"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if err := effect.Release(a.ctx, a.store, effect.Decision{Digest: a.sync().digest("m 1"), Epoch: 1, By: "me", Reason: "x"}); err != nil {
				t.Error(err)
			}
		})
		if len(w.calls) != 3 || w.calls[2] != "m/m 1/2" {
			t.Errorf("%v", w.calls)
		}
	})
}

// That it happened is written down, though another process has begun the next attempt.
func TestSharedLateResult(t *testing.T) {
	all := sharers(t, 2)
	o := &effect.Options[string]{Idempotent: true, Timeout: 20 * time.Millisecond}
	type answer struct {
		result string
		err    error
	}
	run := func(s *site, result string, err error) (in, out chan int, said chan answer) {
		in, out, said = make(chan int), make(chan int), make(chan answer, 1)
		go func() {
			got, e := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
				close(in)
				<-out
				return result, err
			}, o)
			said <- answer{got, e}
		}()
		return in, out, said
	}
	inA, outA, saidA := run(all[0], "the receipt", nil)
	<-inA
	inB, outB, saidB := run(all[1], "", errSaid)
	<-inB
	close(outA)
	if a := <-saidA; a.err != nil || a.result != "the receipt" {
		t.Errorf("the slow one: %+v", a)
	}
	close(outB)
	if b := <-saidB; b.err != nil || b.result != "the receipt" {
		t.Errorf("the other one: %+v", b)
	}
	for _, s := range all {
		if got, err := effect.Do(s.ctx, s.store, "k", mail, none, nil); err != nil || got != "the receipt" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
	}
}
