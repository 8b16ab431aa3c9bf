package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// verifyLine is the result of verify, in JSON.
type verifyLine struct {
	Revision pawl.Revision `json:"revision"`
	Digest   pawl.Digest   `json:"digest"`
	Bytes    int64         `json:"bytes"`
	Seconds  float64       `json:"seconds"`
}

func verifyCommand() *command {
	return &command{
		name: "verify",
		what: "read everything and hold it against every digest",
		more: `
It takes no lock and writes nothing, so it can be run beside a live writer. On a terminal
it shows how far it is. All damage is told, and the exit code is that of the error.`,
		run: func(ctx context.Context, c *call) (err error) {
			s, err := pawl.OpenReader(ctx, c.store, c.trust, c.options())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			p := progress{c: c, what: "verified"}
			err = s.Verify(ctx, p.report)
			p.end()
			if err != nil {
				return err
			}
			took := time.Since(p.start).Seconds()
			v := s.View().Version()
			if c.json {
				return c.object(verifyLine{v.Revision, v.Digest, p.total, took})
			}
			_, err = fmt.Fprintf(c.out, "all is well up to revision %d: %s in %.1f s\n", v.Revision, size(p.total), took)
			return err
		},
	}
}

// progress shows on a terminal how far a long piece of work is.
type progress struct {
	c           *call
	what        string
	unit        func(int64) string // nil: bytes
	start, last time.Time
	total       int64
	drawn       bool
}

func (p *progress) report(done, total int64) {
	now := time.Now()
	if p.start.IsZero() {
		p.start, p.last = now, now
	}
	p.total = total
	if !p.c.terminal || p.c.json || now.Sub(p.last) < 200*time.Millisecond {
		return
	}
	p.last, p.drawn = now, true
	unit := p.unit
	if unit == nil {
		unit = size
	}
	text := fmt.Sprintf("%s %s of %s, %d%%", p.what, unit(done), unit(total), 100*done/max(total, 1))
	if took := now.Sub(p.start).Seconds(); done > 0 && took > 0 {
		rate := float64(done) / took
		left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
		text += fmt.Sprintf(", %s/s, %v left", unit(int64(rate)), left)
	}
	fmt.Fprintf(p.c.err, "\r\x1b[K%s", text)
}

func (p *progress) end() {
	if p.start.IsZero() {
		p.start = time.Now()
	}
	if p.drawn {
		fmt.Fprint(p.c.err, "\r\x1b[K")
	}
}
