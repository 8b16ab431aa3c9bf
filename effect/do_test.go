package effect_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
	"github.com/seed-5cdcd42d/pawl/effect"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

var (
	mail    = effect.Request{Destination: "mail", Body: []byte("hello")}
	errSaid = errors.New("said by the function")
)

// site is a machine with one store, of which processes come and go.
type site struct {
	t     *testing.T
	ctx   context.Context
	opts  *pawl.Options
	store *pawl.Store
}

// moving is a simulated machine whose clock is that of the test.
type moving struct{ vfs.FS }

func (moving) Now() time.Time { return time.Now() }

func newSite(t *testing.T, opts *pawl.Options) *site {
	ctx := crashtest.Context(context.Background())
	s := &site{t: t, ctx: vfs.NewContext(ctx, moving{vfs.FromContext(ctx)}), opts: opts}
	s.open()
	t.Cleanup(func() { s.store.Close() })
	return s
}

func (s *site) open() {
	s.t.Helper()
	store, err := pawl.Open(s.ctx, "/store/s", "/trust/s", s.opts)
	if err != nil {
		s.t.Fatal(err)
	}
	s.store = store
}

// restart is the end of one process, and the beginning of the next.
func (s *site) restart() {
	s.t.Helper()
	if err := s.store.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.open()
}

// dies makes a process that is killed in the function: its start is on stable storage, and
// nothing else. It returns what the process would have gone on with.
func (s *site) dies(key string, r effect.Request, o *effect.Options[string]) {
	s.t.Helper()
	s.while(key, r, o, s.restart)
}

// while calls Do, and another function while it is under way, whose end nobody hears of.
func (s *site) while(key string, r effect.Request, o *effect.Options[string], f func()) {
	s.t.Helper()
	defer func() {
		if recover() == nil {
			s.t.Fatal("Do returned")
		}
	}()
	_, err := effect.Do(s.ctx, s.store, key, r, func(context.Context, effect.Call) (string, error) {
		f()
		panic("the process is gone")
	}, o)
	s.t.Fatalf("Do: %v", err)
}

// answers is a function that answers the same each time, and counts.
type answers struct {
	result string
	err    error
	calls  []effect.Call
}

func (a *answers) do(_ context.Context, c effect.Call) (string, error) {
	a.calls = append(a.calls, c)
	return a.result, a.err
}

// state is what is recorded of an effect: its state, or how it ended.
func (s *site) state(key string) string {
	s.t.Helper()
	for e := range effect.Unsettled(s.store.View()) {
		if e.Key == key {
			return fmt.Sprintf("%s attempt %d epoch %d", e.State, e.Attempt, e.Epoch)
		}
	}
	last := ""
	for e, err := range s.store.View().Entries(0) {
		if err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(string(e.Data), `"settled":true`) && strings.Contains(string(e.Data), fmt.Sprintf(`"key":%q`, key)) {
			last = "settled"
		}
	}
	return last
}

// find is an unsettled effect.
func (s *site) find(key string) (found effect.Effect) {
	for e := range effect.Unsettled(s.store.View()) {
		if e.Key == key {
			found = e
		}
	}
	return found
}

// digest is the identity of an unsettled effect.
func (s *site) digest(key string) pawl.Digest {
	s.t.Helper()
	for e := range effect.Unsettled(s.store.View()) {
		if e.Key == key {
			return e.Digest
		}
	}
	s.t.Fatalf("%q is settled", key)
	return pawl.Digest{}
}

// story are the transitions of an effect, from its entries.
func (s *site) story(digest pawl.Digest) string {
	s.t.Helper()
	var all []string
	for e, err := range effect.Events(s.store.View(), digest) {
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, e.Transition)
	}
	return strings.Join(all, ", ")
}

func TestDoOnce(t *testing.T) {
	s := newSite(t, nil)
	f := &answers{result: "sent"}
	for range 3 {
		got, err := effect.Do(s.ctx, s.store, "k", mail, f.do, nil)
		if got != "sent" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		s.restart()
	}
	if len(f.calls) != 1 {
		t.Fatalf("called %d times", len(f.calls))
	}
	c := f.calls[0]
	if c.Name != "k" || c.Destination != "mail" || string(c.Body) != "hello" || c.Attempt != 1 || len(c.Key) != 64 {
		t.Errorf("%+v", c)
	}
	for part := range s.store.View().Parts() {
		t.Errorf("part %s is left", part)
	}
}

// The request is durable before the function runs, and the result before Do returns.
func TestDoOrder(t *testing.T) {
	s := newSite(t, nil)
	_, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
		if got := s.state("k"); got != "started attempt 1 epoch 1" {
			t.Errorf("while it runs: %q", got)
		}
		return "", nil
	}, nil)
	if got := s.state("k"); err != nil || got != "settled" {
		t.Errorf("%q, %v", got, err)
	}
}

// What an error of the function leads to, in the first attempt and after one of which nobody
// knows how it ended.
func TestDoErrors(t *testing.T) {
	settles := func(result string, err error) *effect.Options[string] {
		return &effect.Options[string]{Settle: (&answers{result: result, err: err}).do}
	}
	again := &effect.Options[string]{Idempotent: true}
	for _, tt := range []struct {
		name    string
		doubted bool // a process died in attempt 1
		says    error
		opts    *effect.Options[string]
		want    error // kind
		calls   int
		state   string
	}{
		{"plain", false, errSaid, nil, effect.ErrUnsettled, 1, "parked attempt 1 epoch 1"},
		{"not done", false, effect.NotDone(errSaid), nil, effect.ErrNotDone, 1, "failed attempt 1 epoch 1"},
		{"not done, wrapped", false, fmt.Errorf("more: %w", effect.NotDone(errSaid)), nil, effect.ErrNotDone, 1, "failed attempt 1 epoch 1"},
		{"permanent", false, effect.Permanent(errSaid), nil, effect.ErrFailed, 1, "settled"},
		{"plain, idempotent", false, errSaid, again, effect.ErrUnsettled, 1, "started attempt 1 epoch 1"},
		{"plain, settle says done", false, errSaid, settles("found", nil), nil, 1, "settled"},
		{"plain, settle says not done", false, errSaid, settles("", effect.NotDone(nil)), effect.ErrNotDone, 1, "failed attempt 1 epoch 1"},
		{"plain, settle says never", false, errSaid, settles("", effect.Permanent(nil)), effect.ErrFailed, 1, "settled"},
		{"plain, settle does not know", false, errSaid, settles("", errSaid), effect.ErrUnsettled, 1, "parked attempt 1 epoch 1"},

		{"in doubt", true, errSaid, nil, effect.ErrUnsettled, 0, "parked attempt 1 epoch 1"},
		{"in doubt, settle says done", true, errSaid, settles("found", nil), nil, 0, "settled"},
		{"in doubt, settle says never", true, errSaid, settles("", effect.Permanent(nil)), effect.ErrFailed, 0, "settled"},
		{"in doubt, settle does not know", true, errSaid, settles("", errSaid), effect.ErrUnsettled, 0, "parked attempt 1 epoch 1"},
		{"in doubt, settle says not done, then not done", true, effect.NotDone(errSaid), settles("", effect.NotDone(nil)), effect.ErrNotDone, 1, "failed attempt 2 epoch 1"},
		{"in doubt, again, plain", true, errSaid, again, effect.ErrUnsettled, 1, "started attempt 2 epoch 1"},
		// The second attempt had no effect. The first one may have had it.
		{"in doubt, again, not done", true, effect.NotDone(errSaid), again, effect.ErrUnsettled, 1, "started attempt 2 epoch 1"},
		{"in doubt, again, permanent", true, effect.Permanent(errSaid), again, effect.ErrFailed, 1, "settled"},
		{"in doubt, again, done", true, nil, again, nil, 1, "settled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, nil)
			if tt.doubted {
				s.dies("k", mail, nil)
			}
			f := &answers{result: "found", err: tt.says}
			got, err := effect.Do(s.ctx, s.store, "k", mail, f.do, tt.opts)
			if !errors.Is(err, tt.want) || tt.want == nil && got != "found" || len(f.calls) != tt.calls {
				t.Errorf("%q, %v, after %d calls", got, err, len(f.calls))
			}
			for _, kind := range []error{effect.ErrUnsettled, effect.ErrNotDone, effect.ErrFailed} {
				if errors.Is(err, kind) != (kind == tt.want) {
					t.Errorf("%v matches %v", err, kind)
				}
			}
			var e *effect.Error
			if err != nil && (!errors.As(err, &e) || e.Op != "do" || e.Key != "k") {
				t.Errorf("%#v", err)
			}
			if state := s.state("k"); state != tt.state {
				t.Errorf("it is %q, want %q", state, tt.state)
			}
			if tt.want == effect.ErrUnsettled {
				return
			}
			// What is settled stays so, without another call; what certainly did not happen is
			// tried again.
			s.restart()
			f = &answers{result: "second"}
			got, err = effect.Do(s.ctx, s.store, "k", mail, f.do, nil)
			switch {
			case tt.want == effect.ErrNotDone && (got != "second" || err != nil || len(f.calls) != 1):
				t.Errorf("again: %q, %v", got, err)
			case tt.want == nil && (got != "found" || err != nil || len(f.calls) != 0):
				t.Errorf("again: %q, %v", got, err)
			case tt.want == effect.ErrFailed && (!errors.Is(err, effect.ErrFailed) || len(f.calls) != 0):
				t.Errorf("again: %q, %v", got, err)
			}
		})
	}
}

// A parked effect is not carried out again by itself, however often it is asked for; with
// Idempotent it is, under the same key and with the next number.
func TestDoUnsettled(t *testing.T) {
	s := newSite(t, nil)
	s.dies("k", mail, nil)
	f := &answers{result: "x"}
	for range 3 {
		if _, err := effect.Do(s.ctx, s.store, "k", mail, f.do, nil); !errors.Is(err, effect.ErrUnsettled) {
			t.Fatal(err)
		}
		s.restart()
	}
	if len(f.calls) != 0 {
		t.Fatal("it was carried out again")
	}
	digest := s.digest("k")
	if got, err := effect.Do(s.ctx, s.store, "k", mail, f.do, &effect.Options[string]{Idempotent: true}); got != "x" || err != nil {
		t.Fatal(got, err)
	}
	if c := f.calls[0]; c.Attempt != 2 || "sha256:"+c.Key != digest.String() {
		t.Errorf("%+v", c)
	}
	if got := s.story(digest); got != "begin, park, again, done" {
		t.Error(got)
	}
}

// A panic in the function leaves the effect unsettled, and goes on.
func TestDoPanic(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		s := newSite(t, nil)
		s.while("k", mail, &effect.Options[string]{Idempotent: idempotent}, func() {})
		want := "parked attempt 1 epoch 1"
		if idempotent {
			want = "started attempt 1 epoch 1"
		}
		if got := s.state("k"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDoContext(t *testing.T) {
	s := newSite(t, nil)
	ctx, cancel := context.WithCancel(s.ctx)
	f := &answers{}
	cancel()
	if _, err := effect.Do(ctx, s.store, "k", mail, f.do, nil); !errors.Is(err, context.Canceled) || len(f.calls) != 0 || s.state("k") != "" {
		t.Errorf("%v, and it is %q", err, s.state("k"))
	}
	// One that ends while the function runs says nothing of the effect, and its result is kept.
	ctx, cancel = context.WithCancel(s.ctx)
	got, err := effect.Do(ctx, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
		cancel()
		return "done", nil
	}, nil)
	if got != "done" || err != nil || s.state("k") != "settled" {
		t.Errorf("%q, %v", got, err)
	}
	_, err = effect.Do(s.ctx, s.store, "t", mail, func(ctx context.Context, _ effect.Call) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}, &effect.Options[string]{Timeout: 200 * time.Millisecond})
	if !errors.Is(err, effect.ErrUnsettled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// Where no time is left when the attempt has begun, the function is not called: certainly.
	f = &answers{}
	_, err = effect.Do(s.ctx, s.store, "n", mail, f.do, &effect.Options[string]{Timeout: time.Nanosecond})
	if !errors.Is(err, effect.ErrNotDone) || !errors.Is(err, context.DeadlineExceeded) || len(f.calls) != 0 {
		t.Errorf("%v, %d calls", err, len(f.calls))
	}
}

func TestDoArguments(t *testing.T) {
	s := newSite(t, nil)
	f := &answers{}
	long := strings.Repeat("x", 256)
	for name, call := range map[string]func() (string, error){
		"no key":         func() (string, error) { return effect.Do(s.ctx, s.store, "", mail, f.do, nil) },
		"a long key":     func() (string, error) { return effect.Do(s.ctx, s.store, long, mail, f.do, nil) },
		"a control":      func() (string, error) { return effect.Do(s.ctx, s.store, "a\x1b[2J", mail, f.do, nil) },
		"no UTF-8":       func() (string, error) { return effect.Do(s.ctx, s.store, "\xff", mail, f.do, nil) },
		"no destination": func() (string, error) { return effect.Do(s.ctx, s.store, "k", effect.Request{}, f.do, nil) },
		"no function":    func() (string, error) { return effect.Do[string](s.ctx, s.store, "k", mail, nil, nil) },
		"no store":       func() (string, error) { return effect.Do(s.ctx, nil, "k", mail, f.do, nil) },
		"negative timeout": func() (string, error) {
			return effect.Do(s.ctx, s.store, "k", mail, f.do, &effect.Options[string]{Timeout: -1})
		},
		"its own key": func() (string, error) {
			return effect.Do(s.ctx, s.store, "own", mail, func(ctx context.Context, _ effect.Call) (string, error) {
				_, err := effect.Do(ctx, s.store, "own", mail, f.do, nil)
				return "", effect.NotDone(err)
			}, nil)
		},
	} {
		if _, err := call(); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(f.calls) != 0 {
		t.Error("a function was called")
	}
	// What the store does not take is not begun.
	large := newSite(t, &pawl.Options{Limits: pawl.Limits{Part: 2000}})
	_, err := effect.Do(large.ctx, large.store, "k", effect.Request{Destination: "m", Body: make([]byte, 2000)}, f.do, nil)
	if !errors.Is(err, pawl.ErrTooLarge) || len(f.calls) != 0 || large.state("k") != "" {
		t.Errorf("a large body: %v", err)
	}
	// With another key it may.
	got, err := effect.Do(s.ctx, s.store, "outer", mail, func(ctx context.Context, _ effect.Call) (string, error) {
		return effect.Do(ctx, s.store, "inner", mail, (&answers{result: "in"}).do, nil)
	}, nil)
	if got != "in" || err != nil {
		t.Error(got, err)
	}
	_, err = s.store.Update(s.ctx, "", func(pawl.View) (pawl.Change, error) {
		_, err := effect.Do(s.ctx, s.store, "k", mail, f.do, nil)
		return pawl.Change{}, err
	})
	if err == nil || len(f.calls) != 0 {
		t.Errorf("inside Update: %v", err)
	}
}

// What is certain of an inner effect says nothing of the outer one (R20).
func TestDoNested(t *testing.T) {
	for _, marked := range []error{effect.NotDone(errSaid), effect.Permanent(errSaid)} {
		s := newSite(t, nil)
		_, err := effect.Do(s.ctx, s.store, "outer", mail, func(ctx context.Context, _ effect.Call) (string, error) {
			return effect.Do(ctx, s.store, "inner", mail, (&answers{err: marked}).do, nil)
		}, nil)
		var e *effect.Error
		if !errors.Is(err, effect.ErrUnsettled) || errors.Is(err, effect.ErrNotDone) || errors.Is(err, effect.ErrFailed) || !errors.Is(err, errSaid) || !errors.As(err, &e) || e.Key != "outer" {
			t.Errorf("%v", err)
		}
		if got := s.state("outer"); got != "parked attempt 1 epoch 1" {
			t.Errorf("the outer one is %q", got)
		}
	}
}

// The same key with another request is an error, before, while and after; and changes nothing.
func TestKeyReused(t *testing.T) {
	others := []effect.Request{{Destination: "post", Body: mail.Body}, {Destination: "mail", Body: []byte("other")}, {Destination: "mailh", Body: []byte("ello")}, {Destination: "mail"}}
	for name, f := range map[string]*answers{"parked": {err: errSaid}, "failed": {err: effect.NotDone(errSaid)}, "done": {}, "failed for good": {err: effect.Permanent(errSaid)}} {
		s := newSite(t, nil)
		_, _ = effect.Do(s.ctx, s.store, "k", mail, f.do, nil)
		before := s.store.View().Version()
		g := &answers{}
		for _, r := range others {
			if _, err := effect.Do(s.ctx, s.store, "k", r, g.do, &effect.Options[string]{Idempotent: true}); !errors.Is(err, effect.ErrKeyReused) {
				t.Errorf("%s, %v: %v", name, r, err)
			}
		}
		if len(g.calls) != 0 || s.store.View().Version() != before {
			t.Errorf("%s: something was done", name)
		}
	}
}

// The identity has destination and body in it: two destinations are two effects.
func TestIdentity(t *testing.T) {
	seen := map[string]string{}
	for _, tt := range []struct {
		key string
		r   effect.Request
	}{
		{"k", mail}, {"k", effect.Request{Destination: "post", Body: []byte("hello")}}, {"k", effect.Request{Destination: "mail", Body: []byte("hellp")}},
		{"l", mail}, {"k", effect.Request{Destination: "mailh", Body: []byte("ello")}}, {"km", effect.Request{Destination: "ail", Body: []byte("hello")}},
	} {
		s := newSite(t, nil)
		f := &answers{}
		if _, err := effect.Do(s.ctx, s.store, tt.key, tt.r, f.do, nil); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint(tt)
		if other, ok := seen[f.calls[0].Key]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[f.calls[0].Key] = name
	}
}

// Of several goroutines one carries it out, and the others get its result.
func TestDoTogether(t *testing.T) {
	s := newSite(t, nil)
	var mu sync.Mutex
	calls := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			got, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				calls++
				return fmt.Sprint("call ", calls), nil
			}, nil)
			if got != "call 1" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

// One that waits is told when its context ends, and what it waits for goes on.
func TestDoWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		go func() {
			got, err := effect.Do(s.ctx, s.store, "k", mail, func(context.Context, effect.Call) (string, error) {
				time.Sleep(time.Hour)
				return "late", nil
			}, nil)
			if got != "late" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		defer cancel()
		f := &answers{}
		if _, err := effect.Do(ctx, s.store, "k", mail, f.do, nil); !errors.Is(err, context.DeadlineExceeded) || len(f.calls) != 0 {
			t.Error(err)
		}
		if got, err := effect.Do(s.ctx, s.store, "k", mail, f.do, nil); got != "late" || err != nil || len(f.calls) != 0 {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A result that cannot be recorded is lost, and nothing is done again.
func TestDoResultIsLost(t *testing.T) {
	s := newSite(t, &pawl.Options{Limits: pawl.Limits{Entry: 2000}})
	for key, f := range map[string]effect.Func[any]{
		"not JSON":  func(context.Context, effect.Call) (any, error) { return func() {}, nil },
		"too large": func(context.Context, effect.Call) (any, error) { return strings.Repeat("x", 3000), nil },
	} {
		if _, err := effect.Do(s.ctx, s.store, key, mail, f, nil); !errors.Is(err, effect.ErrUnsettled) {
			t.Errorf("%s: %v", key, err)
		}
		if got := s.state(key); got != "parked attempt 1 epoch 1" {
			t.Errorf("%s: %q", key, got)
		}
	}
	if _, err := effect.Do(s.ctx, s.store, "n", mail, (&answers{result: "text"}).do, nil); err != nil {
		t.Fatal(err)
	}
	n, err := effect.Do(s.ctx, s.store, "n", mail, func(context.Context, effect.Call) (int, error) { return 1, nil }, nil)
	if n != 0 || err == nil || errors.Is(err, effect.ErrUnsettled) {
		t.Errorf("a result of another type: %v, %v", n, err)
	}
}
