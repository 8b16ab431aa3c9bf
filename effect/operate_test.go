package effect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// brought makes an effect in each unsettled state.
var brought = map[effect.State]func(s *site, key string){
	effect.Queued: func(s *site, key string) {
		if err := s.enqueue(effect.NewOutbox(s.store, nil), key); err != nil {
			s.t.Fatal(err)
		}
	},
	effect.Started: func(s *site, key string) { s.dies(key, requestOf(key), nil) },
	effect.Failed:  func(s *site, key string) { s.tries(key, effect.NotDone(errSaid)) },
	effect.Parked:  func(s *site, key string) { s.tries(key, errSaid) },
	effect.Released: func(s *site, key string) {
		s.tries(key, errSaid)
		if err := effect.Release(s.ctx, s.store, effect.Decision{Digest: s.digest(key), Epoch: 1, By: "me", Reason: "x"}); err != nil {
			s.t.Fatal(err)
		}
	},
}

func requestOf(key string) effect.Request {
	destination, _, _ := strings.Cut(key, " ")
	return effect.Request{Destination: destination, Body: []byte(key)}
}

func (s *site) tries(key string, answer error) {
	s.t.Helper()
	if _, err := effect.Do(s.ctx, s.store, key, requestOf(key), (&answers{err: answer}).do, nil); err == nil {
		s.t.Fatal("it went well")
	}
}

// What an operator may do to an effect in each state, and what becomes of it.
func TestOperators(t *testing.T) {
	ops := map[string]func(context.Context, *pawl.Store, effect.Decision) error{
		"release": effect.Release,
		"resolve": func(ctx context.Context, s *pawl.Store, d effect.Decision) error {
			return effect.Resolve(ctx, s, d, []byte(`"by hand"`))
		},
		"cancel": effect.Cancel,
	}
	allowed := map[string]string{
		"started release": "released attempt 1 epoch 2", "parked release": "released attempt 1 epoch 2",
		"started resolve": "settled", "parked resolve": "settled",
		"queued cancel": "settled", "started cancel": "settled", "failed cancel": "settled", "parked cancel": "settled", "released cancel": "settled",
	}
	for state, bring := range brought {
		for op, f := range ops {
			s := newSite(t, nil)
			bring(s, "m k")
			digest, before := s.digest("m k"), s.state("m k")
			epoch := uint64(1)
			if state == effect.Released {
				epoch = 2
			}
			was := s.store.View().Version()
			err := f(s.ctx, s.store, effect.Decision{Digest: digest, Epoch: epoch, By: "me", Reason: "because\x1b"})
			want, ok := allowed[string(state)+" "+op]
			if !ok {
				if want = before; !errors.Is(err, effect.ErrRefused) || s.store.View().Version() != was {
					t.Errorf("%s of one that is %s: %v", op, state, err)
				}
			} else if err != nil {
				t.Errorf("%s of one that is %s: %v", op, state, err)
			}
			if got := s.state("m k"); got != want {
				t.Errorf("%s of one that was %s: %q, want %q", op, state, got, want)
			}
			if !ok {
				continue
			}
			// It is in the history who did it, when and why, and that is inert.
			var last effect.Event
			for e, err := range effect.Events(s.store.View(), digest) {
				if last = e; err != nil {
					t.Fatal(err)
				}
			}
			if last.Transition != op || last.By != "me" || !strings.HasPrefix(last.Reason, "because") || strings.Contains(last.Reason, "\x1b") || last.Time.IsZero() || last.Key != "m k" {
				t.Errorf("%+v", last)
			}
			a := &answers{result: "second"}
			got, err := effect.Do(s.ctx, s.store, "m k", requestOf("m k"), a.do, nil)
			switch op {
			case "release":
				if got != "second" || err != nil || len(a.calls) != 1 || a.calls[0].Attempt != 2 {
					t.Errorf("after a release: %q, %v, %v", got, err, a.calls)
				}
			case "resolve":
				if got != "by hand" || err != nil || len(a.calls) != 0 {
					t.Errorf("after a resolve: %q, %v", got, err)
				}
			case "cancel":
				if !errors.Is(err, effect.ErrCancelled) || len(a.calls) != 0 {
					t.Errorf("after a cancel: %v", err)
				}
			}
		}
	}
}

// A release is for exactly one attempt of exactly that effect at exactly that epoch.
func TestReleaseOnce(t *testing.T) {
	s := newSite(t, nil)
	s.tries("m k", errSaid)
	s.tries("n k", errSaid)
	d := effect.Decision{Digest: s.digest("m k"), Epoch: 1, By: "me", Reason: "asked them"}
	for _, bad := range []effect.Decision{{Digest: d.Digest, By: "me", Reason: "x"}, {Digest: d.Digest, Epoch: 1, By: "me"}, {Digest: d.Digest, Epoch: 1, Reason: "x"}} {
		if err := effect.Release(s.ctx, s.store, bad); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	wrong := d
	wrong.Epoch = 2
	if err := effect.Release(s.ctx, s.store, wrong); !errors.Is(err, effect.ErrRefused) {
		t.Errorf("another epoch: %v", err)
	}
	wrong = d
	wrong.Digest[31] ^= 1
	if err := effect.Release(s.ctx, s.store, wrong); !errors.Is(err, effect.ErrNotFound) {
		t.Errorf("another digest: %v", err)
	}
	if err := effect.Release(s.ctx, s.store, d); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := effect.Release(s.ctx, s.store, d); !errors.Is(err, effect.ErrRefused) {
			t.Errorf("a second release: %v", err)
		}
		s.restart()
	}
	a := &answers{err: errSaid}
	for range 3 {
		if _, err := effect.Do(s.ctx, s.store, "m k", requestOf("m k"), a.do, nil); !errors.Is(err, effect.ErrUnsettled) {
			t.Fatal(err)
		}
	}
	if len(a.calls) != 1 || s.state("m k") != "parked attempt 2 epoch 2" {
		t.Errorf("%v, and it is %q", a.calls, s.state("m k"))
	}
	if err := effect.Release(s.ctx, s.store, d); !errors.Is(err, effect.ErrRefused) {
		t.Errorf("the same epoch, after the attempt: %v", err)
	}
	if got := s.state("n k"); got != "parked attempt 1 epoch 1" {
		t.Errorf("the other one is %q", got)
	}
	// That the released attempt had no effect says nothing of the first.
	d.Epoch = 2
	if err := effect.Release(s.ctx, s.store, d); err != nil {
		t.Fatal(err)
	}
	a = &answers{err: effect.NotDone(errSaid)}
	for range 3 {
		if _, err := effect.Do(s.ctx, s.store, "m k", requestOf("m k"), a.do, nil); !errors.Is(err, effect.ErrUnsettled) {
			t.Fatal(err)
		}
	}
	if len(a.calls) != 1 || s.state("m k") != "parked attempt 3 epoch 3" {
		t.Errorf("%v, and it is %q", a.calls, s.state("m k"))
	}
	if got := s.story(d.Digest); got != "begin, park, release, start, park, release, start, park" {
		t.Error(got)
	}
}

// An entry that reads like a transition is none: only a commit that moved an effect is.
func TestForgedEvent(t *testing.T) {
	s := newSite(t, nil)
	s.tries("m k", errSaid)
	d := s.digest("m k")
	if err := effect.Release(s.ctx, s.store, effect.Decision{Digest: d, Epoch: 1, By: "me", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	var forged [][]byte
	for e, err := range s.store.View().Entries(0) {
		if err != nil {
			t.Fatal(err)
		}
		forged = append(forged, e.Data)
	}
	want := s.story(d)
	for _, c := range []pawl.Change{{Entries: forged}, {ID: "mine", Entries: forged, Put: map[string][]byte{"x": nil}}} {
		if _, err := s.store.Commit(s.ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.story(d); got != want || want != "begin, park, release" {
		t.Errorf("%s, want %s", got, want)
	}
	for e, err := range effect.Settled(s.store.View()) {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := effect.Do(s.ctx, s.store, "m k", requestOf("m k"), (&answers{}).do, nil); err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range effect.Settled(s.store.View()) {
		if n++; err != nil || e.Digest != d || e.To != effect.Done {
			t.Errorf("%+v, %v", e, err)
		}
	}
	if n != 1 {
		t.Errorf("%d are settled", n)
	}
}

func TestParseDigest(t *testing.T) {
	s := newSite(t, nil)
	s.tries("m k", errSaid)
	d := s.digest("m k")
	for _, text := range []string{d.String(), strings.TrimPrefix(d.String(), "sha256:")} {
		if got, err := effect.ParseDigest(text); got != d || err != nil {
			t.Error(got, err)
		}
	}
	for _, text := range []string{"", "sha256:", "x", d.String()[:70], d.String() + "00", strings.ToUpper(d.String()), "sha256:sha256:"} {
		if _, err := effect.ParseDigest(text); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
	e, ok := effect.Find(s.store.View(), d)
	if !ok || e.Key != "m k" || string(e.Body) != "m k" {
		t.Errorf("%+v, %v", e, ok)
	}
	if e, ok := effect.Find(s.store.View(), pawl.Digest{}); ok {
		t.Errorf("%+v", e)
	}
}

// Retention drops what is settled, and says so when it is asked for again; what is not
// settled stays, and goes on.
func TestRetention(t *testing.T) {
	for _, forget := range []bool{false, true} {
		s := newSite(t, nil)
		for _, key := range []string{"m done", "m kept"} {
			if _, err := effect.Do(s.ctx, s.store, key, requestOf(key), (&answers{result: "first"}).do, nil); err != nil {
				t.Fatal(err)
			}
			if key == "m done" {
				for state, bring := range brought {
					bring(s, string(state)+" k")
				}
			}
		}
		p := pawl.Policy{KeepLast: 1}
		if forget {
			p.ForgetBefore = s.store.View().Version().Revision
		}
		if _, err := s.store.Compact(s.ctx, p); err != nil {
			t.Fatal(err)
		}
		s.restart()
		a := &answers{}
		if _, err := effect.Do(s.ctx, s.store, "m done", requestOf("m done"), a.do, nil); !errors.Is(err, pawl.ErrForgotten) || len(a.calls) != 0 {
			t.Errorf("a result that was dropped: %v, %d calls", err, len(a.calls))
		}
		if err := s.enqueue(effect.NewOutbox(s.store, nil), "m done"); !errors.Is(err, pawl.ErrForgotten) {
			t.Errorf("Enqueue of one that was dropped: %v", err)
		}
		if got, err := effect.Do(s.ctx, s.store, "m kept", requestOf("m kept"), a.do, nil); got != "first" || err != nil || len(a.calls) != 0 {
			t.Errorf("a result that was kept: %q, %v", got, err)
		}
		for state := range brought {
			key := string(state) + " k"
			if got := s.state(key); !strings.HasPrefix(got, string(state)) {
				t.Errorf("one that was %s is %q", state, got)
			}
			// Another request under its key is seen, though its beginning is gone.
			r := effect.Request{Destination: "other"}
			if _, err := effect.Do(s.ctx, s.store, key, r, a.do, nil); !errors.Is(err, effect.ErrKeyReused) {
				t.Errorf("%s: %v", state, err)
			}
			a := &answers{result: "late"}
			got, err := effect.Do(s.ctx, s.store, key, requestOf(key), a.do, nil)
			if stuck := state == effect.Parked || state == effect.Started; stuck != errors.Is(err, effect.ErrUnsettled) || !stuck && (got != "late" || err != nil) {
				t.Errorf("%s: %q, %v", state, got, err)
			}
		}
	}
}

// A part that cannot be read blocks its own effect, and no other one (R17).
func TestDamagedPartBlocksItself(t *testing.T) {
	root := t.TempDir()
	dir, trust := filepath.Join(root, "session"), filepath.Join(root, "trust")
	s := &site{t: t, ctx: t.Context()}
	open := func() {
		var err error
		if s.store, err = pawl.Open(s.ctx, dir, trust, &pawl.Options{Limits: pawl.Limits{Inline: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	open()
	defer func() { s.store.Close() }()
	s.tries("m bad", errSaid)
	s.tries("m good", errSaid)
	if err := s.enqueue(effect.NewOutbox(s.store, nil), "n queued"); err != nil {
		t.Fatal(err)
	}
	if err := s.store.Checkpoint(s.ctx); err != nil {
		t.Fatal(err)
	}
	bad := s.digest("m bad")
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "parts", "*"))
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(b, []byte("m bad")); i >= 0 {
			b[i] ^= 1
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	open()
	problems := 0
	for e := range effect.Unsettled(s.store.View()) {
		if e.Problem != "" {
			problems++
		}
	}
	if problems != 1 {
		t.Errorf("%d are unknown", problems)
	}
	a := &answers{}
	if _, err := effect.Do(s.ctx, s.store, "m bad", requestOf("m bad"), a.do, &effect.Options[string]{Idempotent: true}); !errors.Is(err, pawl.ErrDamaged) || len(a.calls) != 0 {
		t.Errorf("the damaged one: %v", err)
	}
	d := effect.Decision{Digest: bad, Epoch: 1, By: "me", Reason: "x"}
	if err := effect.Release(s.ctx, s.store, d); !errors.Is(err, effect.ErrUnknown) {
		t.Errorf("the damaged one: %v", err)
	}
	d.Digest = s.digest("m good")
	if err := effect.Release(s.ctx, s.store, d); err != nil {
		t.Errorf("another one: %v", err)
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	ran := make(chan string, 9)
	run := func(_ context.Context, c effect.Call) ([]byte, error) { ran <- c.Name; return nil, nil }
	ended := make(chan error)
	go func() {
		ended <- effect.NewOutbox(s.store, nil).Run(ctx, map[string]effect.Handler{"m": {Run: run}, "n": {Run: run}})
	}()
	names := []string{<-ran, <-ran}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	slices.Sort(names)
	if fmt.Sprint(names) != "[m good n queued]" {
		t.Errorf("%q", names)
	}
}
