package effect

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
)

var (
	post   = Request{"post", []byte("a letter")}
	moment = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

// sample is a record of each state.
func sample(s State) *record {
	id, _ := identify(scheme, "k", post)
	r := &record{Type: recordType, Scheme: scheme, Digest: id, Key: "k", Destination: post.Destination, Body: post.Body, Order: 7, State: s, Attempt: 2, Epoch: 1, Since: moment, Error: "said <b>so</b>"}
	switch s {
	case Queued:
		r.Attempt, r.Error = 0, ""
	case Started:
		r.Runner, r.Lease, r.Doubt = "0123456789abcdef", moment.Add(time.Minute), true
	case Failed:
		r.NotBefore = moment.Add(time.Hour)
	case Released:
		r.Epoch, r.Doubt = 2, true
	}
	return r
}

var unsettledStates = []State{Queued, Started, Failed, Parked, Released}

func encodedSample(t *testing.T, s State) []byte {
	t.Helper()
	b, err := sample(s).encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRecord(t *testing.T) {
	for _, s := range unsettledStates {
		r, err := decodeRecord(partOf("k"), encodedSample(t, s))
		if err != nil || r.State != s || r.Key != "k" {
			t.Errorf("%s: %+v, %v", s, r, err)
		}
	}
}

// The bytes of the first version: they are on people's disks.
func TestRecordIsFrozen(t *testing.T) {
	b := encodedSample(t, Failed)
	const want = `{"type":"pawl.effect","scheme":"pawl-effect-1","digest":"sha256:55f92549a62c52a55e5e164d4289b4c953d0d1e83c18d7f1746c45e90ba4b870","key":"k","destination":"post","body":"YSBsZXR0ZXI=","order":7,"state":"failed","attempt":2,"epoch":1,"since":"2026-11-30T12:00:00Z","not_before":"2026-11-30T13:00:00Z","error":"said \u003cb\u003eso\u003c/b\u003e","sum":"sha256:96f3da6d94d088e719ba9dd9333f79b2d2661e3caf12a3cf545dc86d7849f7e1"}`
	if string(b) != want {
		t.Errorf("got\n%s", b)
	}
	e, err := json.Marshal(&Event{eventType, scheme, sample(Parked).Digest, "k", "post", "done", Started, Done, true, 2, 1, moment, "me", "why", "", []byte("r")})
	const event = `{"type":"pawl.effect.event","scheme":"pawl-effect-1","digest":"sha256:55f92549a62c52a55e5e164d4289b4c953d0d1e83c18d7f1746c45e90ba4b870","key":"k","destination":"post","transition":"done","from":"started","to":"done","settled":true,"attempt":2,"epoch":1,"time":"2026-11-30T12:00:00Z","by":"me","reason":"why","result":"cg=="}`
	if string(e) != event || err != nil {
		t.Errorf("got\n%s, %v", e, err)
	}
	const id = "effect/2a5e53c2e80405aad28f879dcfa57b296160e299128b47c7eb068112af26d1f3/"
	for _, tr := range transitions {
		want := map[string]string{"enqueue": "", "begin": id + "start/3", "start": id + "start/3", "again": id + "start/3", "fail": id + "fail/3", "unsure": id + "unsure/3", "park": id + "park/3", "release": id + "release/1"}[tr.name]
		if tr.ends {
			want = id + "end"
		}
		if got := moveID(tr, "k", 3, 2); got != want {
			t.Errorf("%s has the id %q, want %q", tr.name, got, want)
		}
	}
	const part = "effects/2a5e53c2e80405aad28f879dcfa57b296160e299128b47c7eb068112af26d1f3"
	if got := partOf("k"); got != part {
		t.Errorf("got %s", got)
	}
}

// No byte of a record can be changed, left out or added without notice (R21).
func TestRecordFlip(t *testing.T) {
	part := partOf("k")
	for _, s := range unsettledStates {
		b := encodedSample(t, s)
		bad := func(what string, at int, b []byte) {
			if r, err := decodeRecord(part, b); err == nil {
				t.Errorf("%s, %s at %d is accepted: %+v", s, what, at, r)
			}
		}
		for i := range b {
			for _, x := range []byte{1, 2, 4, 8, 16, 32, 64, 128} {
				c := bytes.Clone(b)
				c[i] ^= x
				bad("a flip", i, c)
			}
			bad("a cut", i, b[:i])
			bad("a hole", i, slices.Delete(bytes.Clone(b), i, i+1))
			bad("a blank", i, slices.Insert(bytes.Clone(b), i, ' '))
		}
		bad("twice", 0, append(bytes.Clone(b), b...))
		if _, err := decodeRecord(partOf("other"), b); err == nil {
			t.Errorf("%s is accepted as another's", s)
		}
	}
}

// summed is JSON with the right sum, whatever it says.
func summed(t *testing.T, fields map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if json.Unmarshal(b, &r) != nil {
		return b
	}
	again, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	var sum struct{ Sum string }
	if err := json.Unmarshal(again, &sum); err != nil {
		t.Fatal(err)
	}
	if _, ok := fields["more"]; ok {
		return append(again[:len(again)-1], `,"more":1}`...)
	}
	return again
}

// A record that contradicts itself is none, though its sum is right (R21).
func TestRecordContradictions(t *testing.T) {
	good := func(s State) map[string]any {
		var m map[string]any
		if err := json.Unmarshal(encodedSample(t, s), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	if _, err := decodeRecord(partOf("k"), summed(t, good(Parked))); err != nil {
		t.Fatal(err)
	}
	other, _ := identify(scheme, "k", Request{"other", post.Body})
	for _, tt := range []struct {
		name  string
		state State
		set   map[string]any
	}{
		{"no fields", "", nil},
		{"another type", Parked, map[string]any{"type": "effect"}},
		{"an unknown scheme", Parked, map[string]any{"scheme": "pawl-effect-9"}},
		{"no scheme", Parked, map[string]any{"scheme": ""}},
		{"the digest of another destination", Parked, map[string]any{"digest": other.String()}},
		{"another key", Parked, map[string]any{"key": "l"}},
		{"another destination", Parked, map[string]any{"destination": "x"}},
		{"another body", Parked, map[string]any{"body": ""}},
		{"no body", Parked, map[string]any{"body": nil}},
		{"a foreign field", Parked, map[string]any{"more": 1}},
		{"a state that ends", Parked, map[string]any{"state": "done"}},
		{"an unknown state", Parked, map[string]any{"state": "ready"}},
		{"no state", Parked, map[string]any{"state": ""}},
		{"an attempt, though queued", Queued, map[string]any{"attempt": 1}},
		{"an error, though queued", Queued, map[string]any{"error": "x"}},
		{"no attempt, though started", Started, map[string]any{"attempt": 0}},
		{"a negative attempt", Parked, map[string]any{"attempt": -1}},
		{"a lease for nobody", Started, map[string]any{"runner": ""}},
		{"a runner that waits", Started, map[string]any{"not_before": moment}},
		{"a runner, though parked", Parked, map[string]any{"runner": "x"}},
		{"a lease, though failed", Failed, map[string]any{"lease": moment}},
		{"in doubt, though failed", Failed, map[string]any{"doubt": true}},
		{"in doubt before the first", Started, map[string]any{"attempt": 1}},
		{"no epoch", Parked, map[string]any{"epoch": 0}},
		{"more releases than attempts", Parked, map[string]any{"epoch": 4}},
		{"released, and the first epoch", Released, map[string]any{"epoch": 1}},
		{"no time", Parked, map[string]any{"since": time.Time{}}},
		{"a time elsewhere", Parked, map[string]any{"since": "2026-11-30T12:00:00+01:00"}},
		{"a time too fine", Parked, map[string]any{"since": "2026-11-30T12:00:00.0001Z"}},
	} {
		fields := map[string]any{}
		if tt.state != "" {
			fields = good(tt.state)
		}
		maps.Copy(fields, tt.set)
		if r, err := decodeRecord(partOf("k"), summed(t, fields)); err == nil {
			t.Errorf("%s: accepted: %+v", tt.name, r)
		}
	}
	for _, text := range []string{"", "null", "{}", "[]", "0", `"x"`, "\x00", strings.Repeat("[", 10000)} {
		if r, err := decodeRecord(partOf("k"), []byte(text)); err == nil {
			t.Errorf("%.20q: accepted: %+v", text, r)
		}
	}
}

// The default back-off rises, and has an end.
func TestBackoff(t *testing.T) {
	for attempt, base := range map[int]time.Duration{0: leastBackoff, 1: leastBackoff, 2: 2 * leastBackoff, 5: 16 * leastBackoff, 20: mostBackoff, 1 << 30: mostBackoff} {
		for range 100 {
			if d := backoff(attempt); d < base/2 || d > base+base/2 {
				t.Errorf("after attempt %d: %v", attempt, d)
			}
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, s := range unsettledStates {
		b, err := sample(s).encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(partOf("k"), b)
		if err != nil {
			return
		}
		if again, err := r.encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("accepted, and written as %s, %v", again, err)
		}
	})
}

func FuzzDecodeEvent(f *testing.F) {
	b, err := json.Marshal(&Event{Type: eventType, Scheme: scheme, Key: "k", Destination: "d", Transition: "done", From: Started, To: Done, Settled: true, Attempt: 1, Epoch: 1, Time: moment, By: "me", Result: []byte("r")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEvent(b)
		if err != nil {
			return
		}
		if again, err := json.Marshal(e); err != nil || !bytes.Equal(again, b) {
			t.Errorf("accepted, and written as %s, %v", again, err)
		}
	})
}

// A record that is not understood blocks itself, and nothing else; and it is kept.
func TestUnknownRecordBlocksItself(t *testing.T) {
	ctx := context.Background()
	s := crashtest.NewStore(t, nil)
	calls := 0
	do := func(key string) error {
		_, err := Do(ctx, s, key, post, func(context.Context, Call) (int, error) { calls++; return 0, nil }, &Options[int]{
			Idempotent: true,
			Settle:     func(context.Context, Call) (int, error) { calls++; return 0, NotDone(nil) },
		})
		return err
	}
	bad := encodedSample(t, Parked)
	bad[len(bad)/2] ^= 1
	if _, err := s.Commit(ctx, pawl.Change{Put: map[string][]byte{partOf("k"): bad}}); err != nil {
		t.Fatal(err)
	}
	if err := do("k"); !errors.Is(err, ErrUnknown) || calls != 0 {
		t.Errorf("%v, after %d calls", err, calls)
	}
	box := NewOutbox(s, nil)
	_, err := s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
		var c pawl.Change
		err := box.Enqueue(ctx, v, &c, "k", post)
		return c, err
	})
	if !errors.Is(err, ErrUnknown) {
		t.Errorf("Enqueue: %v", err)
	}
	if err := do("l"); err != nil || calls != 1 {
		t.Errorf("another one: %v, %d calls", err, calls)
	}
	listed := 0
	for e := range Unsettled(s.View()) {
		if listed++; e.Problem == "" || e.Part != partOf("k") {
			t.Errorf("%+v", e)
		}
	}
	if b, _, err := s.View().Get(partOf("k")); listed != 1 || err != nil || !bytes.Equal(b, bad) {
		t.Errorf("%d are listed, and it is %s", listed, b)
	}
}

// A record that was put back, or taken away, does not make anything happen a second time.
func TestOldRecordPutBack(t *testing.T) {
	ctx := context.Background()
	s := crashtest.NewStore(t, nil)
	calls := 0
	do := func() error {
		_, err := Do(ctx, s, "k", post, func(context.Context, Call) (int, error) { calls++; return 0, errors.New("unknown") }, nil)
		return err
	}
	if err := do(); !errors.Is(err, ErrUnsettled) {
		t.Fatal(err)
	}
	parked, _, err := s.View().Get(partOf("k"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) {
		c := pawl.Change{Put: map[string][]byte{partOf("k"): b}}
		if b == nil {
			c = pawl.Change{Delete: []string{partOf("k")}}
		}
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	put(nil)
	if err := do(); !errors.Is(err, ErrUnknown) || calls != 1 {
		t.Errorf("taken away: %v, %d calls", err, calls)
	}
	// An outbox leaves such a record alone, and says so once.
	queued, err := sample(Queued).encode()
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	box := NewOutbox(s, &OutboxOptions{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	put(queued)
	running, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	err = box.Run(running, map[string]Handler{"post": {Run: func(context.Context, Call) ([]byte, error) { calls++; return nil, nil }, Backoff: func(int) time.Duration { return 0 }}})
	if n := strings.Count(logged.String(), "left as it is"); err != nil || calls != 1 || n != 1 {
		t.Errorf("put back, and queued: %v, %d calls, logged %d times", err, calls, n)
	}
	put(parked)
	r, err := decodeRecord(partOf("k"), parked)
	if err != nil {
		t.Fatal(err)
	}
	d := Decision{r.Digest, 1, "me", "looked"}
	if err := Release(ctx, s, d); err != nil {
		t.Fatal(err)
	}
	put(parked)
	if err := Release(ctx, s, d); !errors.Is(err, ErrUnknown) {
		t.Errorf("put back and released again: %v", err)
	}
	if err := Cancel(ctx, s, d); err != nil {
		t.Fatal(err)
	}
	put(parked)
	if err := Resolve(ctx, s, d, []byte("0")); !errors.Is(err, ErrUnknown) {
		t.Errorf("put back and resolved: %v", err)
	}
	running, stop = context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	err = box.Run(running, map[string]Handler{"post": {Run: func(context.Context, Call) ([]byte, error) { calls++; return nil, nil }, Idempotent: true}})
	if err != nil || calls != 1 {
		t.Errorf("settled, put back, and idempotent: %v, %d calls", err, calls)
	}
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

// Under a new scheme, an effect keeps the identity that it was begun with.
func TestOldScheme(t *testing.T) {
	ctx := context.Background()
	s := crashtest.NewStore(t, nil)
	box := NewOutbox(s, nil)
	keys := map[string]string{}
	do := func(key string, r Request, answer error) error {
		_, err := Do(ctx, s, key, r, func(_ context.Context, c Call) (int, error) {
			if old, ok := keys[key]; ok && old != c.Key {
				t.Errorf("%s: the idempotency key was %s, and is %s", key, old, c.Key)
			}
			keys[key] = c.Key
			return 1, answer
		}, &Options[int]{Idempotent: true})
		return err
	}
	if err := do("done", post, nil); err != nil {
		t.Fatal(err)
	}
	if err := do("open", post, errors.New("unknown")); !errors.Is(err, ErrUnsettled) {
		t.Fatal(err)
	}
	enqueue := func(key string, r Request) error {
		_, err := s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
			var c pawl.Change
			err := box.Enqueue(ctx, v, &c, key, r)
			return c, err
		})
		return err
	}
	first, old := scheme, schemes
	defer func() { scheme, schemes = first, old }()
	schemes = maps.Clone(old)
	schemes["test-2"] = func(key string, r Request) pawl.Digest {
		d := old[first](key, r)
		d[0] ^= 0xff
		return d
	}
	scheme = "test-2"
	if err := do("done", post, nil); err != nil {
		t.Errorf("a settled one: %v", err)
	}
	if err := enqueue("done", post); err != nil {
		t.Errorf("a settled one: %v", err)
	}
	other := Request{"other", nil}
	for _, key := range []string{"done", "open"} {
		if err := do(key, other, nil); !errors.Is(err, ErrKeyReused) {
			t.Errorf("%s with another request: %v", key, err)
		}
	}
	if err := do("open", post, nil); err != nil {
		t.Errorf("an unsettled one: %v", err)
	}
	if err := do("new", post, nil); err != nil {
		t.Fatal(err)
	}
	if d, _ := identify("test-2", "new", post); keys["new"] != hex.EncodeToString(d[:]) {
		t.Errorf("a new one has the key %s", keys["new"])
	}
	// One whose scheme is not there any more is unknown, and blocks itself.
	if err := enqueue("later", post); err != nil {
		t.Fatal(err)
	}
	scheme, schemes = first, old
	for _, key := range []string{"new", "later"} {
		if err := do(key, post, nil); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s under a scheme that nobody knows: %v", key, err)
		}
	}
}

// docs/effects.md has the table that the code follows.
func TestTableInDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/effects.md")
	if err != nil {
		t.Fatal(err)
	}
	name := func(s State) string {
		if s == none {
			return "none"
		}
		return string(s)
	}
	var rows []string
	for _, tr := range transitions {
		var from []string
		for _, s := range tr.from {
			from = append(from, name(s))
		}
		to := name(tr.to)
		if tr.ends {
			to += ", settled"
		}
		rows = append(rows, "| "+strings.Join([]string{"`" + tr.name + "`", strings.Join(from, ", "), to, tr.when}, " | ")+" |")
	}
	shown := regexp.MustCompile("(?m)^\\| `[a-z ]+` \\| (?:none|queued|started|failed|parked|released).*\\|$").FindAllString(string(b), -1)
	if !slices.Equal(rows, shown) {
		t.Errorf("docs/effects.md has\n%s\nand the code\n%s", strings.Join(shown, "\n"), strings.Join(rows, "\n"))
	}
	for _, s := range []State{Queued, Started, Done, Failed, Parked, Released, Cancelled} {
		if !strings.Contains(string(b), "| **"+string(s)+"** |") {
			t.Errorf("docs/effects.md does not say what %s is", s)
		}
	}
}

// The table is closed: what is settled is not moved again, and every state can be left.
func TestTable(t *testing.T) {
	ends := map[State]bool{Done: true, Cancelled: true}
	for _, tr := range transitions {
		for _, from := range tr.from {
			if ends[from] {
				t.Errorf("%s moves what is %s", tr.name, from)
			}
		}
		if ends[tr.to] != tr.ends && tr.to != Failed {
			t.Errorf("%s: %s, settled: %v", tr.name, tr.to, tr.ends)
		}
	}
	for _, s := range unsettledStates {
		settles := slices.ContainsFunc(transitions, func(tr transition) bool { return tr.ends && slices.Contains(tr.from, s) })
		if !settles {
			t.Errorf("nothing settles what is %s", s)
		}
	}
	// A transition that is not in it is not made.
	ctx := context.Background()
	s := crashtest.NewStore(t, nil)
	for _, state := range append([]State{none}, unsettledStates...) {
		for _, tr := range transitions {
			r := sample(Queued)
			r.Key, r.Digest = string(state)+tr.name, pawl.Digest{}
			r.Digest, _ = identify(scheme, r.Key, r.request())
			var before []byte
			if state != none {
				r = sample(state)
				r.Key = string(state) + tr.name
				r.Digest, _ = identify(scheme, r.Key, r.request())
				var err error
				if before, err = r.encode(); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Commit(ctx, pawl.Change{Put: map[string][]byte{partOf(r.Key): before}}); err != nil {
					t.Fatal(err)
				}
			}
			at := s.View().Version()
			_, err := transit(ctx, s, r.Key, func(look) (*move, error) { return &move{name: tr.name, next: *r, by: "me"}, nil })
			if !slices.Contains(tr.from, state) && (err == nil || s.View().Version() != at) {
				t.Errorf("%s from %q: %v", tr.name, state, err)
			}
		}
	}
}
