package effect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

func none(context.Context, effect.Call) (string, error) { return "", nil }

// What Settle says counts as an attempt like any other, and one that is tried at once again
// holds up nobody.
func TestSettleIsNoHotLoop(t *testing.T) {
	s := newSite(t, nil)
	box := effect.NewOutbox(s.store, nil)
	if err := s.enqueue(box, "mail a", "mail b"); err != nil {
		t.Fatal(err)
	}
	var a atomic.Int64
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	_ = box.Run(ctx, map[string]effect.Handler{"mail": {Concurrency: 1, Attempts: 3, Backoff: func(int) time.Duration { return 0 },
		Run: func(_ context.Context, c effect.Call) ([]byte, error) {
			if c.Name == "mail a" {
				a.Add(1)
				return nil, errors.New("503, who knows")
			}
			return []byte("ok"), nil
		},
		Settle: func(context.Context, effect.Call) ([]byte, error) {
			if a.Load() >= 3 { // one more answer, and that is the end of it, or it is not
				defer time.AfterFunc(100*time.Millisecond, cancel)
			}
			return nil, effect.NotDone(nil)
		},
	}})
	if s.state("mail b") != "settled" || a.Load() > 3 {
		t.Errorf("a was tried %d times, and b is %s", a.Load(), s.state("mail b"))
	}
}

// The cause of a context may be the error of another effect, and so may an error within that
// of the function. Neither says anything of this one.
func TestErrorsOfOthers(t *testing.T) {
	s := newSite(t, nil)
	_, errA := effect.Do(s.ctx, s.store, "a", mail, func(context.Context, effect.Call) (string, error) {
		return "", effect.Permanent(errors.New("refused"))
	}, nil)
	ctx, cancel := context.WithCancelCause(s.ctx)
	in, out, done := make(chan int), make(chan int), make(chan error)
	go func() {
		_, err := effect.Do(s.ctx, s.store, "b", mail, func(context.Context, effect.Call) (string, error) {
			close(in)
			<-out
			return "b happened", nil
		}, nil)
		done <- err
	}()
	<-in
	cancel(errA)
	_, errB := effect.Do(ctx, s.store, "b", mail, none, nil)
	_, errC := effect.Do(ctx, s.store, "c", mail, none, nil)
	close(out)
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, err := range []error{errB, errC} {
		if errors.Is(err, effect.ErrFailed) || !errors.Is(err, context.Canceled) {
			t.Errorf("the error is that of another effect: %v", err)
		}
	}
	_, err := effect.Do(s.ctx, s.store, "outer", mail, func(context.Context, effect.Call) (string, error) {
		return "", fmt.Errorf("inner: %w", &effect.Error{Op: "do", Key: "inner", Kind: pawl.ErrForgotten})
	}, nil)
	if errors.Is(err, pawl.ErrForgotten) || !errors.Is(err, effect.ErrUnsettled) {
		t.Errorf("the outer one: %v", err)
	}
}

// evil is a pointer whose Error is not made for nil: a mistake that is often made.
type evil struct{ s *string }

func (e *evil) Error() string { return *e.s }

// An error that panics when it is looked at leaves it open whether it happened, and takes
// nothing else with it.
func TestErrorThatPanics(t *testing.T) {
	s := newSite(t, nil)
	box := effect.NewOutbox(s.store, nil)
	if err := s.enqueue(box, "mail a", "mail b"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	_ = box.Run(ctx, map[string]effect.Handler{"mail": {Concurrency: 1, Run: func(_ context.Context, c effect.Call) ([]byte, error) {
		if c.Name == "mail a" {
			var e *evil
			return []byte("ok"), e
		}
		cancel()
		return nil, nil
	}}})
	if a, b := s.state("mail a"), s.state("mail b"); !strings.HasPrefix(a, "parked") || b != "settled" {
		t.Errorf("a is %s, b is %s", a, b)
	}
}

// A record that somebody puts back while its effect runs blocks only itself.
func TestRecordPutBackMeanwhile(t *testing.T) {
	other := newSite(t, nil)
	for _, elsewhere := range []string{"elsewhere", "mail"} {
		s := newSite(t, nil)
		var c pawl.Change
		// A valid record of the same key, with another destination or another order.
		if _, err := other.store.Update(other.ctx, "", func(v pawl.View) (pawl.Change, error) {
			c = pawl.Change{Entries: make([][]byte, 5)}
			return pawl.Change{}, effect.NewOutbox(other.store, nil).Enqueue(other.ctx, v, &c, "mail a", effect.Request{Destination: elsewhere})
		}); err != nil {
			t.Fatal(err)
		}
		box := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(box, "mail a", "mail b"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		_ = box.Run(ctx, map[string]effect.Handler{"mail": {Concurrency: 1, Run: func(_ context.Context, call effect.Call) ([]byte, error) {
			if call.Name == "mail b" {
				cancel()
			} else if _, err := s.store.Commit(s.ctx, pawl.Change{Put: c.Put}); err != nil {
				t.Error(err)
			}
			return []byte("ok"), nil
		}}})
		cancel()
		if s.state("mail b") != "settled" {
			t.Errorf("b is %s", s.state("mail b"))
		}
	}
}

// jumping is a machine whose clock is set off.
type jumping struct {
	vfs.FS
	by time.Duration
}

func (j jumping) Now() time.Time { return j.FS.Now().Add(j.by) }

// A lease that was written under a clock that was years ahead holds nobody up.
func TestLeaseOfAnotherClock(t *testing.T) {
	s := newSite(t, &pawl.Options{Shared: true})
	ahead := vfs.NewContext(s.ctx, jumping{vfs.FromContext(s.ctx), 10 * 365 * 24 * time.Hour})
	func() {
		defer func() { _ = recover() }()
		_, _ = effect.Do(ahead, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
			s.store.Close()
			panic("gone")
		}, nil)
	}()
	s.open()
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	if _, err := effect.Do(ctx, s.store, "k", mail, none, nil); !errors.Is(err, effect.ErrUnsettled) {
		t.Error(err)
	}
	if err := effect.Release(s.ctx, s.store, effect.Decision{Digest: s.digest("k"), Epoch: 1, By: "x", Reason: "y"}); err != nil {
		t.Error(err)
	}
}

// Two who ask Settle, and hear the same truth, say the same.
func TestBothAskSettle(t *testing.T) {
	all := sharers(t, 2)
	_, _ = effect.Do(all[0].ctx, all[0].store, "k", mail, func(context.Context, effect.Call) (string, error) { return "", errors.New("?") }, nil)
	in, out, done := make(chan int), make(chan int), make(chan error)
	no := func(context.Context, effect.Call) (string, error) { return "", effect.NotDone(errors.New("not there")) }
	go func() {
		_, err := effect.Do(all[0].ctx, all[0].store, "k", mail, no, &effect.Options[string]{Settle: func(context.Context, effect.Call) (string, error) {
			close(in)
			<-out
			return "", effect.NotDone(nil)
		}})
		done <- err
	}()
	<-in
	ctx, cancel := context.WithCancel(all[1].ctx)
	_, _ = effect.Do(ctx, all[1].store, "k", mail, no, &effect.Options[string]{Settle: func(context.Context, effect.Call) (string, error) {
		cancel()
		return "", effect.NotDone(nil)
	}})
	close(out)
	if err := <-done; !errors.Is(err, effect.ErrNotDone) {
		t.Errorf("%v, and it is %s", err, all[0].sync().state("k"))
	}
}

// That it happened is written down, however late the function returns. Until it has, nothing
// in this process begins beside it: not what may be repeated, and not what was released.
func TestHungFunction(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		s := newSite(t, nil)
		box := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(box, "mail a"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		var calls atomic.Int64
		goOn, ended := make(chan int), make(chan error)
		go func() {
			ended <- box.Run(ctx, map[string]effect.Handler{"mail": {Idempotent: idempotent, Timeout: 20 * time.Millisecond, Backoff: func(int) time.Duration { return 0 },
				Run: func(context.Context, effect.Call) ([]byte, error) {
					calls.Add(1)
					<-goOn
					return []byte("the receipt"), nil
				}}})
		}()
		given := func() bool { return !strings.HasPrefix(s.state("mail a"), "queued") && s.find("mail a").Runner == "" }
		for !given() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // in which many attempts could begin
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls at a time", n)
		}
		a := &answers{}
		if _, err := effect.Do(s.ctx, s.store, "mail a", requestOf("mail a"), a.do, &effect.Options[string]{Idempotent: true}); !errors.Is(err, effect.ErrUnsettled) || len(a.calls) != 0 {
			t.Errorf("Do beside it: %v", err)
		}
		if _, err := effect.Do(s.ctx, s.store, "mail a", mail, a.do, nil); !errors.Is(err, effect.ErrKeyReused) {
			t.Errorf("another request beside it: %v", err)
		}
		gone, end := context.WithCancel(s.ctx)
		end()
		for range 20 {
			if _, err := effect.Do(gone, s.store, "mail a", requestOf("mail a"), a.do, nil); !errors.Is(err, effect.ErrUnsettled) {
				t.Errorf("Do beside it, with a context that has ended: %v", err)
			}
		}
		d := effect.Decision{Digest: s.digest("mail a"), Epoch: 1, By: "me", Reason: "x"}
		for _, decide := range []func(context.Context, *pawl.Store, effect.Decision) error{effect.Release, effect.Cancel} {
			if err := decide(s.ctx, s.store, d); !errors.Is(err, effect.ErrRefused) {
				t.Errorf("a decision beside it: %v", err)
			}
		}
		close(goOn)
		for s.state("mail a") != "settled" {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for e, err := range effect.Settled(s.store.View()) {
			if err != nil || e.To != effect.Done || string(e.Result) != "the receipt" {
				t.Errorf("%+v, %v", e, err)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
	}
}

// When a function that hung has returned, the effect is free again for all.
func TestHungAndReturned(t *testing.T) {
	for range 30 {
		s := newSite(t, nil)
		box := effect.NewOutbox(s.store, nil)
		if err := s.enqueue(box, "mail a"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(s.ctx)
		goOn, ended := make(chan int), make(chan error)
		go func() {
			ended <- box.Run(ctx, map[string]effect.Handler{"mail": {Timeout: 5 * time.Millisecond,
				Run: func(context.Context, effect.Call) ([]byte, error) {
					<-goOn
					return nil, errors.New("who knows")
				}}})
		}()
		for !strings.HasPrefix(s.state("mail a"), "parked") {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// Some ask while it returns; one of them may get its turn.
		answers := make(chan error)
		for range 4 {
			go func() {
				_, err := effect.Do(s.ctx, s.store, "mail a", requestOf("mail a"), none, nil)
				answers <- err
			}()
		}
		close(goOn)
		for range 4 {
			if err := <-answers; !errors.Is(err, effect.ErrUnsettled) {
				t.Error(err)
			}
		}
		d := effect.Decision{Digest: s.digest("mail a"), Epoch: 1, By: "me", Reason: "x"}
		var err error
		for range 1000 { // until it has returned
			if err = effect.Release(s.ctx, s.store, d); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			t.Fatalf("Release: %v", err)
		}
		in, out := make(chan int), make(chan int)
		go func() {
			_, err := effect.Do(s.ctx, s.store, "mail a", requestOf("mail a"), func(context.Context, effect.Call) (string, error) {
				close(in)
				<-out
				return "", nil
			}, nil)
			answers <- err
		}()
		<-in
		go func() { // waits for it, and hears the same
			_, err := effect.Do(s.ctx, s.store, "mail a", requestOf("mail a"), none, nil)
			answers <- err
		}()
		time.Sleep(time.Millisecond)
		close(out)
		for range 2 {
			if err := <-answers; err != nil {
				t.Errorf("beside a healthy attempt: %v", err)
			}
		}
	}
}

// What is known is written down, however short of space the record is, or busy the store.
func TestResultIsNotLost(t *testing.T) {
	small := newSite(t, &pawl.Options{Limits: pawl.Limits{Part: 2100}})
	r := effect.Request{Destination: "mail", Body: bytes.Repeat([]byte("x"), 900)}
	_, err := effect.Do(small.ctx, small.store, "k", r, func(context.Context, effect.Call) (string, error) {
		return "", effect.NotDone(errors.New(strings.Repeat("<", 999)))
	}, nil)
	if !errors.Is(err, effect.ErrNotDone) || !strings.HasPrefix(small.state("k"), "failed") {
		t.Errorf("%v, and it is %s", err, small.state("k"))
	}

	shared := newSite(t, &pawl.Options{Shared: true, LockWait: 1})
	busy := &site{t: t, ctx: shared.ctx, opts: shared.opts}
	busy.open()
	defer busy.store.Close()
	in, out := make(chan int), make(chan int)
	_, err = effect.Do(shared.ctx, shared.store, "k", mail, func(context.Context, effect.Call) (string, error) {
		go func() {
			defer close(out)
			_, _ = busy.store.Update(busy.ctx, "", func(pawl.View) (pawl.Change, error) {
				close(in)
				time.Sleep(30 * time.Millisecond)
				return pawl.Change{}, nil
			})
		}()
		<-in
		return "it happened", nil
	}, nil)
	if <-out; err != nil {
		t.Errorf("the store was locked for a moment: %v", err)
	}
}

// An effect that is carried out cannot be decided about from within.
func TestDecideInside(t *testing.T) {
	s := newSite(t, nil)
	_, err := effect.Do(s.ctx, s.store, "k", mail, func(ctx context.Context, c effect.Call) (string, error) {
		d, err := effect.ParseDigest(c.Key)
		if err != nil {
			t.Error(err)
		}
		if err := effect.Cancel(ctx, s.store, effect.Decision{Digest: d, By: "x", Reason: "y"}); !errors.Is(err, effect.ErrRefused) {
			t.Error(err)
		}
		return "", nil
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

// A change that deletes the part of an effect does not queue it too.
func TestEnqueueAndDelete(t *testing.T) {
	s := newSite(t, nil)
	box := effect.NewOutbox(s.store, nil)
	if err := s.enqueue(box, "mail a"); err != nil {
		t.Fatal(err)
	}
	_, err := s.store.Update(s.ctx, "", func(v pawl.View) (pawl.Change, error) {
		var c pawl.Change
		for part := range v.Parts() {
			c.Delete = append(c.Delete, part)
		}
		err := box.Enqueue(s.ctx, v, &c, "mail a", effect.Request{Destination: "mail", Body: []byte("mail a")})
		return c, err
	})
	if !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// What is missing is said, and nothing panics.
func TestNothingGiven(t *testing.T) {
	s := newSite(t, nil)
	var c pawl.Change
	for _, err := range []error{
		effect.NewOutbox(nil, nil).Run(s.ctx, nil),
		effect.NewOutbox(nil, nil).Enqueue(s.ctx, s.store.View(), &c, "k", mail),
		effect.NewOutbox(s.store, nil).Enqueue(s.ctx, s.store.View(), nil, "k", mail),
		effect.Release(s.ctx, nil, effect.Decision{Epoch: 1, By: "x", Reason: "y"}),
	} {
		if !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
	}
}

// What is parked while Run comes to its end is in the log too.
func TestParkedAtTheEnd(t *testing.T) {
	s := newSite(t, nil)
	var log bytes.Buffer
	box := effect.NewOutbox(s.store, &effect.OutboxOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := s.enqueue(box, "mail a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	_ = box.Run(ctx, map[string]effect.Handler{"mail": {Run: func(context.Context, effect.Call) ([]byte, error) {
		cancel()
		return nil, errors.New("?")
	}}})
	if !strings.HasPrefix(s.state("mail a"), "parked") || !strings.Contains(log.String(), "parked") {
		t.Errorf("%s: %s", s.state("mail a"), &log)
	}
}
