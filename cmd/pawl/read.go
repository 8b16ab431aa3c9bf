package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// read opens the store for reading, beside whoever writes to it.
func (c *call) read(ctx context.Context, do func(*pawl.Reader) error) error {
	r, err := pawl.OpenReader(ctx, c.store, c.trust, c.options())
	if err != nil {
		return err
	}
	return errors.Join(do(r), r.Close())
}

// span is a range of numbers as it is written: "17", "17-" or "17-20".
type span struct{ first, last uint64 }

func parseSpan(s string) (span, error) {
	bad := usage{fmt.Sprintf("%q is no range: want N, N- or N-M", s)}
	from, to, ranged := strings.Cut(s, "-")
	r := span{last: math.MaxUint64}
	var err error
	if r.first, err = strconv.ParseUint(from, 10, 64); err != nil {
		return r, bad
	}
	switch {
	case !ranged:
		r.last = r.first
	case to != "":
		if r.last, err = strconv.ParseUint(to, 10, 64); err != nil {
			return r, bad
		}
	}
	if r.first > r.last {
		return r, usage{fmt.Sprintf("the range %q ends before it begins", s)}
	}
	return r, nil
}

// spanOf is the range in the arguments: everything, when there is none.
func (c *call) spanOf() (span, error) {
	switch len(c.args) {
	case 0:
		return span{0, math.MaxUint64}, nil
	case 1:
		return parseSpan(c.args[0])
	}
	return span{}, usage{fmt.Sprintf("one range at most, not %d", len(c.args))}
}

// entryLine is an entry in JSON.
type entryLine struct {
	Seq      pawl.Seq      `json:"seq"`
	Revision pawl.Revision `json:"revision"`
	data
}

func logCommand() *command {
	var follow, raw bool
	var last uint64
	return &command{
		name: "log", args: "[RANGE]",
		what: "the entries of history",
		more: `
RANGE is of seqs: 17, 17- or 17-20. On a terminal each entry is one line, its bytes
made harmless; --raw writes the bytes as they are, and nothing else (to a terminal, still
harmless).
-f goes on with each new entry, until it is interrupted.`,
		flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&follow, "f", false, "go on with new entries as they come")
			fs.BoolVar(&raw, "raw", false, "only the bytes of entries, each followed by a line feed")
			fs.Uint64Var(&last, "n", 0, "only the last `count` entries")
		},
		run: func(ctx context.Context, c *call) error {
			r, err := c.spanOf()
			if err != nil {
				return err
			}
			err = c.read(ctx, func(s *pawl.Reader) error {
				next := max(r.first, 1)
				if last > 0 {
					end := uint64(s.View().LastSeq())
					next = max(next, end-min(end, last)+1)
				}
				show := func(v pawl.View) error {
					for e, err := range v.Entries(pawl.Seq(next - 1)) {
						if err != nil {
							return err
						}
						if ctx.Err() != nil {
							return ctx.Err()
						}
						if uint64(e.Seq) > r.last {
							return nil
						}
						if err := c.entry(e, raw); err != nil {
							return err
						}
						next = uint64(e.Seq) + 1
					}
					return nil
				}
				v := s.View()
				if err := show(v); err != nil || !follow || next > r.last {
					return err
				}
				told := false
				for v, err := range s.Watch(ctx, v.Version().Revision) {
					switch {
					case ctx.Err() != nil:
						return nil // that is how it ends
					case errors.Is(err, pawl.ErrUnsettled): // the next writer settles it
						if !told {
							c.fail(err)
						}
						told = true
						continue
					case err == nil:
						err = show(v)
					}
					if err != nil || next > r.last {
						return err
					}
					told = false
				}
				return nil
			})
			if follow && ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil // that is how it ends
			}
			return err
		},
	}
}

func (c *call) entry(e pawl.Entry, raw bool) (err error) {
	switch {
	case raw:
		err = c.bytes(append(e.Data[:len(e.Data):len(e.Data)], '\n'))
	case c.json:
		return c.object(entryLine{e.Seq, e.Revision, dataOf(e.Data)})
	default:
		_, err = fmt.Fprintf(c.out, "%8d  %s\n", e.Seq, safe(strings.TrimSuffix(string(e.Data), "\n")))
	}
	return err
}

// partLine is a part in JSON.
type partLine struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

func partsCommand() *command {
	return &command{
		name: "parts",
		what: "the parts of the state, with their sizes",
		run: func(ctx context.Context, c *call) error {
			return c.read(ctx, func(s *pawl.Reader) error {
				v := s.View()
				for name := range v.Parts() {
					n, _ := v.Size(name)
					var err error
					if c.json {
						err = c.object(partLine{name, n})
					} else {
						_, err = fmt.Fprintf(c.out, "%12s  %s\n", size(n), safe(name))
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

func catCommand() *command {
	return &command{
		name: "cat", args: "PART",
		what: "the bytes of a part, as they are",
		more: `
A terminal gets them line by line, each made harmless; a file or a pipe as they are. The
exit code is 3 when there is no such part.`,
		run: func(ctx context.Context, c *call) error {
			return c.read(ctx, func(s *pawl.Reader) error {
				b, ok, err := s.View().Get(c.args[0])
				switch {
				case err != nil:
					return err
				case !ok:
					return no{"there is no part " + safe(c.args[0])}
				case c.json:
					return c.object(dataOf(b))
				}
				return c.bytes(b)
			})
		},
	}
}

// commitLine is a commit in JSON.
type commitLine struct {
	Revision pawl.Revision `json:"revision"`
	Digest   pawl.Digest   `json:"digest"`
	ID       string        `json:"id,omitempty"`
	Time     time.Time     `json:"time"`
	FirstSeq pawl.Seq      `json:"first_seq,omitempty"`
	LastSeq  pawl.Seq      `json:"last_seq,omitempty"`
	Put      []string      `json:"put,omitempty"`
	Deleted  []string      `json:"deleted,omitempty"`
	Schema   int           `json:"schema,omitempty"`
	Program  string        `json:"program,omitempty"`
	Dropped  bool          `json:"dropped,omitempty"`
	Receipt  string        `json:"receipt"`
}

func commitLineOf(i pawl.CommitInfo) commitLine {
	r := pawl.Receipt{Version: i.Version, FirstSeq: i.FirstSeq, LastSeq: i.LastSeq}
	return commitLine{i.Version.Revision, i.Version.Digest, i.ID, i.Time, i.FirstSeq, i.LastSeq, i.Put, i.Deleted, i.Schema, i.Program, i.Dropped, r.String()}
}

func historyCommand() *command {
	return &command{
		name: "history", args: "[RANGE]",
		what: "the commits: revision, time, entries, id, parts, digest",
		more: `
RANGE is of revisions: 17, 17- or 17-20. + is a part that was put, - one that was
deleted, and * says that retention has dropped the entries. The digest is the history
digest after the commit, shortened; --json has it whole, and the receipt.`,
		run: func(ctx context.Context, c *call) error {
			r, err := c.spanOf()
			if err != nil {
				return err
			}
			return c.read(ctx, func(s *pawl.Reader) error {
				for i, err := range s.View().Commits(pawl.Revision(max(r.first, 1) - 1)) {
					if err != nil {
						return err
					}
					if ctx.Err() != nil {
						return ctx.Err()
					}
					if uint64(i.Version.Revision) > r.last {
						return nil
					}
					if c.json {
						err = c.object(commitLineOf(i))
					} else {
						err = c.commit(i)
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

func (c *call) commit(i pawl.CommitInfo) error {
	entries := "no entries"
	switch n := i.LastSeq - i.FirstSeq + 1; {
	case i.LastSeq == 0:
	case n == 1:
		entries = fmt.Sprintf("entry %d", i.FirstSeq)
	default:
		entries = fmt.Sprintf("entries %d-%d", i.FirstSeq, i.LastSeq)
	}
	if i.Dropped {
		entries += "*"
	}
	text := fmt.Sprintf("%8d  %s  %.8x  %s", i.Version.Revision, i.Time.Format("2006-01-02 15:04:05Z"), i.Version.Digest[:], entries)
	switch m := declared.FindStringSubmatch(i.ID); {
	case m != nil:
		text += fmt.Sprintf("  %s %s over %s", m[1], m[2], m[3])
	case i.ID != "":
		text += "  " + safe(i.ID)
	}
	for _, name := range i.Put {
		text += " +" + safe(name)
	}
	for _, name := range i.Deleted {
		text += " -" + safe(name)
	}
	_, err := fmt.Fprintln(c.out, text)
	return err
}

// declared is the id of a commit by which pawl goes back: docs/format.md.
var declared = regexp.MustCompile(`^(adopt|restore) (\d+) sha256:[0-9a-f]{64} over (\d+) sha256:[0-9a-f]{64}$`)

// lookupLine is what lookup says, in JSON.
type lookupLine struct {
	ID      string      `json:"id"`
	Outcome string      `json:"outcome"` // committed, not committed, unknown, forgotten
	Commit  *commitLine `json:"commit,omitempty"`
}

func lookupCommand() *command {
	return &command{
		name: "lookup", args: "ID",
		what: "what became of the commit with an id",
		more: `
It says committed, not committed, unknown (it is being made, or was cut off) or forgotten
(retention has dropped it). The exit code is 0 when it was committed, and else 3.`,
		run: func(ctx context.Context, c *call) error {
			return c.read(ctx, func(s *pawl.Reader) error {
				r, outcome, err := s.Lookup(ctx, c.args[0])
				if err != nil {
					return err
				}
				line := lookupLine{ID: c.args[0], Outcome: outcome.String()}
				if outcome == pawl.OutcomeCommitted {
					for i, err := range s.View().Commits(r.Revision - 1) {
						if err != nil {
							return err
						}
						commit := commitLineOf(i)
						line.Commit = &commit
						break
					}
				}
				if c.json {
					err = c.object(line)
				} else if outcome == pawl.OutcomeCommitted {
					_, err = fmt.Fprintf(c.out, "committed: revision %d\n%s\n", r.Revision, r)
				} else {
					_, err = fmt.Fprintln(c.out, outcome)
				}
				if err == nil && outcome != pawl.OutcomeCommitted {
					err = no{}
				}
				return err
			})
		},
	}
}
