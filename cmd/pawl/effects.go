package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

func effectsCommand() *command {
	var settled bool
	return &command{
		name: "effects", args: "[show DIGEST]", nowhere: true, over: true, // what comes after show may name the store
		what: "effects outside of the store that are not settled",
		more: `
An effect is what a program does outside of the store, with package effect: parked is one
of which nobody knows whether it happened. Its digest names it; effects show DIGEST has its
body and its history. A record that is not understood is listed as unknown, with its part.

pawl release, resolve and cancel decide about one; pawl effects release and so on are the
same. show also finds what is settled, as long as the history has it.`,
		flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&settled, "settled", false, "those that are settled, from the history, oldest first")
		},
		run: func(ctx context.Context, c *call) error {
			if len(c.args) > 0 {
				if cmd := underEffects(c.args[0]); cmd != nil {
					return c.sub(ctx, cmd, c.args[1:])
				}
				return usage{fmt.Sprintf("effects has no %q; pawl help effects", c.args[0])}
			}
			if c.store == "" || c.trust == "" {
				return usage{"effects needs --store and --trust, or PAWL_STORE and PAWL_TRUST"}
			}
			return c.read(ctx, func(s *pawl.Reader) error {
				if settled {
					return c.settled(s.View())
				}
				for e := range effect.Unsettled(s.View()) {
					var err error
					if c.json {
						err = c.object(e)
					} else {
						err = c.effect(e)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// underEffects is a command that is named after effects.
func underEffects(name string) *command {
	for _, cmd := range []*command{showCommand(), releaseCommand(), resolveCommand(), cancelCommand()} {
		if cmd.name == name {
			return cmd
		}
	}
	return nil
}

// sub runs a command that is named after another one, with the flags of both.
func (c *call) sub(ctx context.Context, cmd *command, args []string) error {
	given := []string{"--store=" + c.store, "--trust=" + c.trust, "--name=" + c.name, "--wait=" + c.wait.String(), fmt.Sprintf("--json=%v", c.json)}
	fs := c.flagSet(cmd)
	fs.SetOutput(io.Discard)
	switch err := parseAll(fs, slices.Concat(given, args), &c.args, false); {
	case errors.Is(err, flag.ErrHelp):
		return c.helpUnder(cmd)
	case err != nil:
		return usage{fmt.Sprintf("%v; pawl help effects", err)}
	}
	if c.store == "" || c.trust == "" {
		return usage{"effects needs --store and --trust, or PAWL_STORE and PAWL_TRUST"}
	}
	if want := len(strings.Fields(cmd.args)); len(c.args) != want {
		return usage{fmt.Sprintf("effects %s takes %s, not %d", cmd.name, number(want, "argument"), len(c.args))}
	}
	return cmd.run(ctx, c)
}

// effect shows an unsettled effect in a few lines.
func (c *call) effect(e effect.Effect) error {
	if e.Problem != "" {
		_, err := fmt.Fprintf(c.out, "%-9s %s\n%9s%s\n", "unknown", safe(e.Part), "", safe(e.Problem))
		return err
	}
	_, err := fmt.Fprintf(c.out, "%-9s attempt %d  epoch %d  %s  %s\n%9s%s\n", safe(string(e.State)), e.Attempt, e.Epoch, safe(e.Destination), safe(e.Key), "", e.Digest)
	if err == nil && e.Error != "" {
		_, err = fmt.Fprintf(c.out, "%9s%s\n", "", safe(clip(e.Error, 200)))
	}
	return err
}

// eventLine is a transition in JSON.
type eventLine struct {
	Transition string       `json:"transition"`
	From       effect.State `json:"from,omitempty"`
	To         effect.State `json:"to"`
	Settled    bool         `json:"settled,omitempty"`
	Attempt    int          `json:"attempt"`
	Epoch      uint64       `json:"epoch"`
	Time       time.Time    `json:"time"`
	By         string       `json:"by"`
	Reason     string       `json:"reason,omitempty"`
	Error      string       `json:"error,omitempty"`
	Result     *data        `json:"result,omitempty"`
}

func eventLineOf(e effect.Event) eventLine {
	l := eventLine{e.Transition, e.From, e.To, e.Settled, e.Attempt, e.Epoch, e.Time, e.By, e.Reason, e.Error, nil}
	if e.To == effect.Done {
		d := dataOf(e.Result)
		l.Result = &d
	}
	return l
}

// settledLine is an effect that is settled, in JSON.
type settledLine struct {
	Digest      pawl.Digest `json:"digest"`
	Key         string      `json:"key"`
	Destination string      `json:"destination"`
	eventLine
}

// settled shows what the history has of effects that are settled.
func (c *call) settled(v pawl.View) error {
	for e, err := range effect.Settled(v) {
		if err != nil {
			return err
		}
		if c.json {
			err = c.object(settledLine{e.Digest, e.Key, e.Destination, eventLineOf(e)})
		} else {
			_, err = fmt.Fprintf(c.out, "%-9s attempt %d  epoch %d  %s  %s\n%9s%s\n", safe(string(e.To)), e.Attempt, e.Epoch, safe(e.Destination), safe(e.Key), "", e.Digest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shownEffect is what show says, in JSON.
type shownEffect struct {
	effect.Effect
	KeySent string      `json:"idempotency_key"`
	Body    *data       `json:"body,omitempty"` // not of one that is settled
	Events  []eventLine `json:"events"`
}

func showCommand() *command {
	return &command{
		name: "show", args: "DIGEST",
		what: "all that there is of one effect",
		run: func(ctx context.Context, c *call) error {
			digest, err := effect.ParseDigest(c.args[0])
			if err != nil {
				return usage{err.Error()}
			}
			return c.read(ctx, func(s *pawl.Reader) error {
				v := s.View()
				e, open := effect.Find(v, digest)
				shown, part := shownEffect{Effect: e, Events: []eventLine{}}, ""
				for event, err := range effect.Events(v, digest) {
					if err != nil {
						return err
					}
					shown.Events = append(shown.Events, eventLineOf(event))
					if part = event.Part(); !open {
						shown.Effect = effect.Effect{Digest: digest, Scheme: event.Scheme, Key: event.Key, Destination: event.Destination, State: event.To, Attempt: event.Attempt, Epoch: event.Epoch, Since: event.Time, Error: event.Error}
					}
				}
				if open {
					d := dataOf(e.Body)
					shown.Body = &d
				} else if len(shown.Events) == 0 {
					return no{"there is no effect with this digest, or retention has dropped it"}
				} else if last := shown.Events[len(shown.Events)-1]; !last.Settled {
					shown.Part, shown.Problem = part, "there is no record of it any more"
					for e := range effect.Unsettled(v) {
						if e.Part == part {
							shown.Problem = e.Problem
						}
					}
				}
				shown.KeySent = shown.IdempotencyKey()
				if c.json {
					err = c.object(shown)
				} else {
					err = c.shown(shown)
				}
				if err == nil && shown.Problem != "" {
					err = shownAlready(&effect.Error{Op: "show", Key: shown.Key, Kind: effect.ErrUnknown})
				}
				return err
			})
		},
	}
}

func (c *call) shown(s shownEffect) error {
	lines := [][2]string{
		{"digest", s.Digest.String()}, {"scheme", s.Scheme}, {"key", s.Key}, {"destination", s.Destination}, {"key sent", s.IdempotencyKey()},
		{"state", fmt.Sprintf("%s since %s", s.State, s.Since.Format(time.RFC3339))},
		{"attempt", fmt.Sprint(s.Attempt)}, {"epoch", fmt.Sprint(s.Epoch)},
	}
	if s.Problem != "" {
		lines[5][1] = "unknown; the history says " + lines[5][1]
		lines = append(lines, [2]string{"part", s.Part}, [2]string{"problem", s.Problem})
	}
	if s.Doubt {
		lines = append(lines, [2]string{"doubt", "an attempt before this one may have had the effect"})
	}
	for _, l := range [][2]string{{"runner", s.Runner}, {"error", s.Error}} {
		if l[1] != "" {
			lines = append(lines, l)
		}
	}
	if !s.Lease.IsZero() {
		lines = append(lines, [2]string{"lease", s.Lease.Format(time.RFC3339)})
	}
	if !s.NotBefore.IsZero() {
		lines = append(lines, [2]string{"not before", s.NotBefore.Format(time.RFC3339)})
	}
	if s.Body != nil {
		lines = append(lines, [2]string{"body", s.Body.shown()})
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(c.out, "%-12s %s\n", l[0], safe(l[1])); err != nil {
			return err
		}
	}
	for _, e := range s.Events {
		text := fmt.Sprintf("%s  %-8s attempt %d  epoch %d  by %s", e.Time.Format(time.RFC3339), safe(e.Transition), e.Attempt, e.Epoch, safe(e.By))
		for _, l := range [][2]string{{"reason", e.Reason}, {"error", e.Error}} {
			if l[1] != "" {
				text += fmt.Sprintf("\n%22s%s: %s", "", l[0], safe(l[1]))
			}
		}
		if e.Result != nil {
			text += fmt.Sprintf("\n%22sresult: %s", "", safe(e.Result.shown()))
		}
		if _, err := fmt.Fprintln(c.out, text); err != nil {
			return err
		}
	}
	return nil
}

// shown is data as it may go through safe.
func (d data) shown() string {
	if d.Text != nil {
		return *d.Text
	}
	return string(d.Base64)
}

// effectDecision is the flags of commands that decide about an effect.
type effectDecision struct {
	writing
	digest, reason string
	epoch          uint64
}

func (d *effectDecision) flags(fs *flag.FlagSet) {
	fs.BoolVar(&d.shared, "shared", false, "the store is open elsewhere with Options.Shared: take turns")
	fs.StringVar(&d.digest, "digest", "", "the `digest` of the effect, as pawl effects shows it")
	fs.Uint64Var(&d.epoch, "epoch", 0, "the `epoch` at which you looked at it; with another one by now it is refused")
	fs.StringVar(&d.reason, "reason", "", "why, as `text` for the history")
}

// effectDecisionLine is what was decided, in JSON.
type effectDecisionLine struct {
	Decision string      `json:"decision"` // release, resolve, cancel
	Digest   pawl.Digest `json:"digest"`
	By       string      `json:"by"`
	Reason   string      `json:"reason"`
}

func (d *effectDecision) run(ctx context.Context, c *call, name, done string, do func(*pawl.Store, effect.Decision) error) error {
	digest, err := effect.ParseDigest(d.digest)
	switch {
	case err != nil:
		return usage{name + " needs --digest: " + err.Error()}
	case d.reason == "":
		return usage{name + " needs --reason: it is kept in the history"}
	}
	s, err := d.open(ctx, c)
	if err != nil {
		return err
	}
	by := who()
	err = do(s, effect.Decision{Digest: digest, Epoch: d.epoch, By: by, Reason: d.reason})
	if err := errors.Join(err, s.Close()); errors.Is(err, effect.ErrNotFound) {
		return no{"there is no unsettled effect with this digest"}
	} else if err != nil {
		return err
	}
	if c.json {
		return c.object(effectDecisionLine{name, digest, by, d.reason})
	}
	_, err = fmt.Fprintln(c.out, done)
	return err
}

// who is the one who decides, as the environment names him. (os/user would bring cgo.)
func who() string {
	name, host := fmt.Sprintf("uid %d", os.Getuid()), "unknown"
	for _, v := range []string{"USER", "LOGNAME", "USERNAME"} {
		if s := os.Getenv(v); s != "" {
			name = s
			break
		}
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return clip(name+"@"+host, 200)
}

func releaseCommand() *command {
	var d effectDecision
	return &command{
		name: "release",
		what: "allow one more attempt of a parked effect",
		more: `
For one of which you know that it did not happen, or may happen twice. It is for exactly one
attempt, of exactly this effect: a second release at the same --epoch is refused. Whoever
runs the program makes the attempt.`,
		flags: d.flags,
		run: func(ctx context.Context, c *call) error {
			if d.epoch == 0 {
				return usage{"release needs --epoch, as pawl effects shows it"}
			}
			return d.run(ctx, c, "release", fmt.Sprintf("released for one attempt, now at epoch %d", d.epoch+1), func(s *pawl.Store, to effect.Decision) error {
				return effect.Release(ctx, s, to)
			})
		},
	}
}

func resolveCommand() *command {
	var d effectDecision
	var result *string
	return &command{
		name: "resolve",
		what: "say what the result of a parked effect was",
		more: `
For one of which you know that it happened. The program gets the result as if the effect had
returned it; what effect.Do returns is JSON, and text that is none becomes a string.
--result - reads it from standard input.`,
		flags: func(fs *flag.FlagSet) {
			d.flags(fs)
			result = nil
			fs.Func("result", "the result, as `text`", func(s string) error { result = &s; return nil })
		},
		run: func(ctx context.Context, c *call) error {
			if result == nil {
				return usage{"resolve needs --result"}
			}
			b := []byte(*result)
			if *result == "-" {
				var err error
				if b, err = io.ReadAll(io.LimitReader(c.in, longest)); err != nil {
					return err
				}
			}
			if !json.Valid(b) && utf8.Valid(b) { // what Do could not read
				b, _ = json.Marshal(string(b))
			}
			return d.run(ctx, c, "resolve", "resolved: it is done", func(s *pawl.Store, to effect.Decision) error {
				return effect.Resolve(ctx, s, to, b)
			})
		},
	}
}

func cancelCommand() *command {
	var d effectDecision
	return &command{
		name: "cancel",
		what: "end an effect that is not to be carried out any more",
		more: `
For one that is queued, waits for its next attempt, is parked or released. One that is parked
may have happened all the same.`,
		flags: d.flags,
		run: func(ctx context.Context, c *call) error {
			return d.run(ctx, c, "cancel", "cancelled", func(s *pawl.Store, to effect.Decision) error {
				return effect.Cancel(ctx, s, to)
			})
		},
	}
}
