package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// withEffects makes a store with effects in it: one parked, one queued, one done and one whose
// record is not understood; and returns the digest of the parked one.
func (p *place) withEffects() string {
	p.t.Helper()
	ctx := p.t.Context()
	s, err := pawl.Open(ctx, p.store, p.trust, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Close()
	bank := effect.Request{Destination: "bank", Body: []byte(`{"amount":17}`)}
	_, err = effect.Do(ctx, s, "charge", bank, func(context.Context, effect.Call) (int, error) { return 0, errors.New("cut off") }, nil)
	if !errors.Is(err, effect.ErrUnsettled) {
		p.t.Fatal(err)
	}
	if _, err = effect.Do(ctx, s, "done", bank, func(context.Context, effect.Call) (int, error) { return 4711, nil }, nil); err != nil {
		p.t.Fatal(err)
	}
	_, err = s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
		c := pawl.Change{Put: map[string][]byte{"effects/zz": []byte("{}")}}
		err := effect.NewOutbox(s, nil).Enqueue(ctx, v, &c, "letter", effect.Request{Destination: "mail", Body: []byte{0xff}})
		return c, err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for e := range effect.Unsettled(s.View()) {
		if e.Key == "charge" {
			return e.Digest.String()
		}
	}
	p.t.Fatal("it is not parked")
	return ""
}

// What operators see and do.
func TestEffects(t *testing.T) {
	p := newPlace(t)
	digest := p.withEffects()
	list := `parked    attempt 1  epoch 1  bank  charge
         sha256:…
         cut off
queued    attempt 0  epoch 1  mail  letter
         sha256:…
unknown   effects/zz
         it is not as it was written
`
	for _, step := range []struct {
		args, want string
		code       int
	}{
		{"effects", list, 0},
		{"effects --settled", "done      attempt 1  epoch 1  bank  done\n         sha256:…\n", 0},
		{"effects show " + digest, `digest       sha256:…
scheme       pawl-effect-1
key          charge
destination  bank
key sent     …
state        parked since …
attempt      1
epoch        1
error        cut off
body         {"amount":17}
…  begin    attempt 1  epoch 1  by …
…  park     attempt 1  epoch 1  by …
                      error: cut off
`, 0},
		{"effects show " + strings.Repeat("0", 64), "", exitNot},
		{"release --digest " + digest + " --epoch 2 --reason later", "", 36},
		{"release --digest " + strings.Repeat("0", 64) + " --epoch 1 --reason x", "", exitNot},
		{"release --digest " + digest + " --epoch 1 --reason asked", "released for one attempt, now at epoch 2\n", 0},
		{"release --digest " + digest + " --epoch 1 --reason asked", "", 36}, // a second time
		{"resolve --digest " + digest + " --result 17 --reason x", "", 36},   // it is released
		{"effects release --digest " + digest + " --epoch 2 --reason asked", "", 36},
		{"cancel --digest " + digest + " --epoch 1 --reason x", "", 36}, // at another epoch
		{"effects cancel --digest " + strings.TrimPrefix(digest, "sha256:") + " --reason unwanted", "cancelled\n", 0},
		{"cancel --digest " + digest + " --reason x", "", exitNot},
		{"effects --settled", "done      attempt 1  epoch 1  bank  done\n         sha256:…\ncancelled attempt 1  epoch 2  bank  charge\n         sha256:…\n", 0},
		{"effects", strings.Replace(list, "parked    attempt 1  epoch 1  bank  charge\n         sha256:…\n         cut off\n", "", 1), 0},
	} {
		out, err, code := p.run("", strings.Fields(step.args)...)
		if diff := cmp.Diff(step.want, p.same(out)); diff != "" || code != step.code || code == 0 && err != "" {
			t.Errorf("pawl %s: exit code %d, want %d (-want +got):\n%s%s", step.args, code, step.code, diff, err)
		}
	}
	// Who, when and why.
	var shown shownEffect
	if err := json.Unmarshal([]byte(p.must("", "--json", "effects", "show", digest)), &shown); err != nil {
		t.Fatal(err)
	}
	last := shown.Events[len(shown.Events)-1]
	if shown.State != "cancelled" || last.Transition != "cancel" || last.Reason != "unwanted" || last.By != who() || last.Time.IsZero() || last.Epoch != 2 {
		t.Errorf("%+v", shown)
	}
}

// A result that an operator gives is what the program gets.
func TestResolve(t *testing.T) {
	for _, from := range []string{"argument", "input"} {
		p := newPlace(t)
		digest := p.withEffects()
		args := []string{"resolve", "--digest", digest, "--reason", "they have it", "--result", "4711"}
		in := ""
		if from == "input" {
			args[len(args)-1], in = "-", "4711"
		}
		if got := p.must(in, args...); got != "resolved: it is done\n" {
			t.Error(got)
		}
		s, err := pawl.Open(t.Context(), p.store, p.trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		n, err := effect.Do(t.Context(), s, "charge", effect.Request{Destination: "bank", Body: []byte(`{"amount":17}`)},
			func(context.Context, effect.Call) (int, error) { return 0, errors.New("it is carried out again") }, nil)
		if n != 4711 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
}

// The names of the fields are a promise to programs.
func TestEffectsJSON(t *testing.T) {
	p := newPlace(t)
	digest := p.withEffects()
	for _, step := range []struct{ args, want string }{
		{"effects", `{"part":"effects/…","digest":"sha256:…","scheme":"pawl-effect-1","key":"charge","destination":"bank","state":"parked","attempt":1,"epoch":1,"since":"…","error":"cut off"}
{"part":"effects/…","digest":"sha256:…","scheme":"pawl-effect-1","key":"letter","destination":"mail","state":"queued","attempt":0,"epoch":1,"since":"…"}
{"part":"effects/zz","problem":"it is not as it was written","attempt":0,"epoch":0}
`},
		{"effects --settled", `{"digest":"sha256:…","key":"done","destination":"bank","transition":"done","from":"started","to":"done","settled":true,"attempt":1,"epoch":1,"time":"…","by":"…","result":{"text":"4711"}}
`},
		{"effects show " + digest, `{"part":"effects/…","digest":"sha256:…","scheme":"pawl-effect-1","key":"charge","destination":"bank","state":"parked","attempt":1,"epoch":1,"since":"…","error":"cut off","idempotency_key":"…","body":{"text":"{\"amount\":17}"},"events":[{"transition":"begin","to":"started","attempt":1,"epoch":1,"time":"…","by":"…"},{"transition":"park","from":"started","to":"parked","attempt":1,"epoch":1,"time":"…","by":"…","error":"cut off"}]}
`},
		{"release --epoch 1 --reason r --digest " + digest, fmt.Sprintf(`{"decision":"release","digest":"sha256:…","by":%q,"reason":"r"}`, who()) + "\n"},
	} {
		out := p.must("", append([]string{"--json"}, strings.Fields(step.args)...)...)
		if diff := cmp.Diff(step.want, p.same(out)); diff != "" {
			t.Errorf("pawl --json %s (-want +got):\n%s", step.args, diff)
		}
	}
	_, text, code := p.run("", "--json", "release", "--epoch", "1", "--reason", "r", "--digest", digest)
	if code != 36 || !strings.HasPrefix(text, `{"error":"refused","text":"effect: release`) {
		t.Errorf("%d %s", code, text)
	}
}

func TestEffectsUsage(t *testing.T) {
	p := newPlace(t)
	digest := p.withEffects()
	for _, args := range []string{
		"effects nothing", "effects show", "effects show x", "effects show " + digest + " more", "effects release", "effects show --nothing " + digest,
		"release", "release --digest " + digest + " --reason r", "release --digest " + digest + " --epoch 1", "release --digest sha256:12 --epoch 1 --reason r",
		"resolve --digest " + digest + " --reason r", "cancel --digest " + digest, "cancel --reason r", "release --digest " + digest + " --epoch -1 --reason r",
	} {
		if out, _, code := p.run("", strings.Fields(args)...); code != exitUsage || out != "" {
			t.Errorf("pawl %s: exit code %d, %q", args, code, out)
		}
	}
	if !strings.Contains(p.must("", "effects", "release", "-h"), "--epoch") {
		t.Error("no help for effects release")
	}
}

// R22: what effects say cannot act on a terminal, in lists, errors or JSON.
func TestEffectsInert(t *testing.T) {
	p := newPlace(t)
	ctx := t.Context()
	s, err := pawl.Open(ctx, p.store, p.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	const evil = "\x1b]0;x\x07\x1b[2J\r\nparked\u202e\u0085"
	key := "key\u202e\u200b"
	r := effect.Request{Destination: "dest\u2066", Body: []byte(evil)}
	_, err = effect.Do(ctx, s, key, r, func(context.Context, effect.Call) (string, error) { return "", errors.New(evil) }, nil)
	if !errors.Is(err, effect.ErrUnsettled) {
		t.Fatal(err)
	}
	told := err.Error()
	if _, err := s.Commit(ctx, pawl.Change{Put: map[string][]byte{"effects/\u202e": []byte(`{"` + evil + `":1}`)}}); err != nil {
		t.Fatal(err)
	}
	digest := ""
	for e := range effect.Unsettled(s.View()) {
		if e.Problem == "" {
			digest = e.Digest.String()
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	all := []string{told}
	for _, args := range [][]string{
		{"effects"}, {"--json", "effects"}, {"effects", "show", digest}, {"--json", "effects", "show", digest},
		{"release", "--digest", digest, "--epoch", "7", "--reason", evil}, {"--json", "release", "--digest", digest, "--epoch", "7", "--reason", evil},
		{"resolve", "--digest", digest, "--reason", evil, "--result", evil}, {"effects", "--settled"}, {"--json", "effects", "--settled"},
		{"effects", "show", digest}, {"--json", "effects", "show", digest},
	} {
		out, text, _ := p.run("", args...)
		all = append(all, out, text)
	}
	for _, text := range all {
		for _, r := range text {
			if r != '\n' && unsafeRune(r) {
				t.Errorf("%U in %q", r, text)
				break
			}
		}
	}
}

// R21: an effect whose record somebody has changed is unknown, whoever asks for it.
func TestEffectsUnknown(t *testing.T) {
	p := newPlace(t)
	digest := p.withEffects()
	var part string
	for line := range strings.Lines(p.must("", "--json", "effects")) {
		var e effect.Effect
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Key == "charge" {
			part = e.Part
		}
	}
	record := p.must("", "cat", part)
	for _, change := range []func(){
		func() { p.must(strings.Replace(record, "parked", "failed", 1), "put", part) },
		func() { p.must("", "put", "--delete", part) },
	} {
		change()
		out, _, code := p.run("", "effects", "show", digest)
		if code != 37 || !strings.Contains(out, "unknown; the history says parked") || !strings.Contains(out, part) {
			t.Errorf("show: %d, %s", code, out)
		}
		var shown shownEffect
		out, _, code = p.run("", "--json", "effects", "show", digest)
		if err := json.Unmarshal([]byte(out), &shown); err != nil || code != 37 || shown.Part != part || shown.Problem == "" {
			t.Errorf("show --json: %d, %v, %s", code, err, out)
		}
		for _, decision := range []string{"release", "cancel"} {
			if _, errs, code := p.run("", decision, "--digest", digest, "--epoch", "1", "--reason", "x"); code != 37 {
				t.Errorf("%s: %d, %s", decision, code, errs)
			}
		}
	}
}

// What is decided about an effect that is not settled is kept when old entries go.
func TestCompactKeepsUnsettled(t *testing.T) {
	p := newPlace(t)
	digest := p.withEffects()
	p.must("", "release", "--digest", digest, "--epoch", "1", "--reason", "they never got it")
	p.must("other\n", "append")
	p.must("", "compact", "--keep-last", "1")
	if out := p.must("", "effects", "show", digest); !strings.Contains(out, "they never got it") {
		t.Error(out)
	}
	if out := p.must("", "effects", "--settled"); out != "" {
		t.Errorf("what is settled is kept too: %s", out)
	}
	if out, _, code := p.run("", "effects", "show", "-h"); code != 0 || !strings.HasPrefix(out, "usage: pawl effects show [flags] DIGEST") {
		t.Error(out)
	}
	if out, _, code := p.run("", "help", "effects", "release"); code != 0 || !strings.HasPrefix(out, "usage: pawl effects release") {
		t.Error(out)
	}
}
