package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
)

func statusCommand() *command {
	return &command{
		name: "status",
		what: "what trust says, what is there, and what Open would do",
		more: `
It takes no lock and writes nothing, so it works beside a live writer and on any damage.
The exit code is 0 when Open would serve or make the store, and else that of its error.`,
		run: func(ctx context.Context, c *call) error {
			o := c.options()
			o.MustExist = false
			r, err := pawl.Inspect(ctx, c.store, c.trust, o)
			if err != nil {
				return err
			}
			if c.json {
				if err := c.object(r); err != nil {
					return err
				}
			} else {
				c.status(r)
			}
			if r.Err != nil {
				return shown{r.Err}
			}
			return nil
		},
	}
}

// shown is an error that was shown already; only its exit code is left to give.
type shown struct{ err error }

// shownAlready is for where another thing is called shown.
func shownAlready(err error) error { return shown{err} }

func (s shown) Error() string { return s.err.Error() }
func (s shown) Unwrap() error { return s.err }

func (c *call) status(r *pawl.Report) {
	line := func(what, format string, args ...any) {
		fmt.Fprintf(c.out, "%-11s%s\n", what, fmt.Sprintf(format, args...))
	}
	line("store", "%s", safe(r.Dir))
	line("trust", "%s", safe(r.Trust))
	verdicts := map[string]string{
		"create": "there is no store; Open would make one", "clean": "good: Open serves the confirmed state",
		"landed":     "a commit is on its way, or was cut off; it is there whole, and Open keeps it",
		"not landed": "a commit is on its way, or was cut off; it is not there, and Open goes on without it",
		"refuse":     "Open refuses", "changing": "a writer is at work; ask again",
	}
	line("verdict", "%s", wrapAt(verdicts[r.Verdict], columns-11, strings.Repeat(" ", 11)))
	if r.StoreID != "" {
		line("id", "%s", r.StoreID)
		line("confirmed", "%s", rootLine(r.Confirmed))
	}
	if r.Pending != (pawl.Root{}) {
		line("pending", "%s", rootLine(r.Pending))
		if len(r.Commits) > 0 {
			var ids []string
			for _, id := range r.Commits {
				ids = append(ids, safe(id))
			}
			line("", "commits %s", clip(strings.Join(ids, ", "), columns-19))
		}
	}
	if r.Found != r.Confirmed || r.Err != nil {
		line("found", "%s", rootLine(r.Found))
	}
	if r.Verdict == "clean" || r.Verdict == "landed" || r.Verdict == "not landed" {
		closed := "no: in use, or its process was killed"
		if r.Closed {
			closed = "yes"
		}
		line("closed", "%s", closed)
	}
	if r.Bytes > 0 {
		line("entries", "%d", r.Entries)
		line("parts", "%d", len(r.Parts))
		space := []string{"bundle " + size(r.Bytes)}
		if r.Journal > 0 {
			space = append(space, "journal "+size(r.Journal))
		}
		if r.Segments > 0 {
			space = append(space, number(r.Segments, "segment"))
		}
		if r.PartFiles > 0 {
			space = append(space, number(r.PartFiles, "file")+" of parts")
		}
		if r.FileBytes > 0 {
			space = append(space, size(r.FileBytes)+" in these")
		}
		line("space", "%s", wrapAt(strings.Join(space, ", "), columns-11, strings.Repeat(" ", 11)))
	}
	if r.Schema != 0 || r.Program != "" {
		line("program", "%s, schema %d", safe(r.Program), r.Schema)
	}
	for _, list := range []struct {
		what, say string
		names     []string
	}{
		{"missing", "named by the bundle, and not there", r.Missing},
		{"leftovers", "of killed processes; Open sweeps them", r.Temps},
		{"quarantine", "set aside, left alone", r.Aside},
		{"unknown", "not made by pawl, left alone", r.Unknown},
	} {
		if len(list.names) == 0 {
			continue
		}
		line(list.what, "%s", list.say)
		for i, name := range list.names {
			if i == 10 {
				line("", "and %d more", len(list.names)-i)
				break
			}
			if text := shownName(name); utf8.RuneCountInString(text) > columns-11 {
				fmt.Fprintf(c.out, "%*s\n", columns, text)
			} else {
				line("", "%s", text)
			}
		}
	}
	if r.Broken > 0 {
		line("torn", "%d records of the trust file, which is normal after a power cut", r.Broken)
	}
	if r.Err != nil {
		fmt.Fprintln(c.out)
		c2 := *c
		c2.err = c.out
		c2.fail(r.Err)
	}
}

// shownName shows a name of a Report, which is quoted there where it has to be.
func shownName(name string) string {
	if s, err := strconv.Unquote(name); err == nil && strconv.QuoteToGraphic(s) == name {
		return name
	}
	return safe(name)
}

func rootLine(r pawl.Root) string {
	if r == (pawl.Root{}) {
		return "nothing"
	}
	at := fmt.Sprintf("bundle %d", r.Epoch)
	if r.Journal > 0 {
		at += fmt.Sprintf(" and %s of its journal", size(r.Journal))
	}
	return fmt.Sprintf("revision %d, %s\n%s", r.Revision, at, digestLine(r.Digest))
}

// digestLine is a digest on a line of its own, which it fills.
func digestLine(d pawl.Digest) string {
	return fmt.Sprintf("%*s", columns, d.String())
}
