package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
)

// Whatever comes from a store may be meant to harm the terminal that it is shown on, or
// the person in front of it. So text goes out through safe, and bytes only where they were
// asked for as bytes, and not to a terminal.

// safe shows text on one line, without control characters: with any, it is quoted.
func safe(s string) string {
	if s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, unsafeRune) && !strings.HasPrefix(s, `"`) {
		return s
	}
	return strconv.QuoteToGraphic(s)
}

// unsafeRune tells what a terminal may take for more than a letter, and what reorders or
// hides other letters.
func unsafeRune(r rune) bool {
	return !unicode.IsGraphic(r) || unicode.Is(unicode.Cf, r) || r != ' ' && unicode.IsSpace(r)
}

// clip shortens what is shown on one line.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// object writes one object on a line of its own.
func (c *call) object(v any) error { return writeObject(c.out, v) }

// writeObject escapes what JSON would leave as it is and a terminal might not.
func writeObject(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	var text strings.Builder
	for _, r := range b.String() {
		if r >= 0x7f && unsafeRune(r) {
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&text, `\u%04x`, u)
			}
		} else {
			text.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// data is bytes in JSON: text as it is, what is no text in base64.
type data struct {
	Text   *string `json:"text,omitempty"`
	Base64 []byte  `json:"base64,omitempty"`
}

func dataOf(b []byte) data {
	if utf8.Valid(b) {
		s := string(b)
		return data{Text: &s}
	}
	return data{Base64: b}
}

// problem is an error in JSON.
type problem struct {
	Error   string        `json:"error"` // the class: see docs/cli.md
	Text    string        `json:"text"`
	Hint    string        `json:"hint,omitempty"`
	Path    string        `json:"path,omitempty"`
	Outcome string        `json:"outcome,omitempty"` // of a change: "not committed" or "in doubt"
	Trusted *pawl.Root    `json:"trusted,omitempty"`
	Pending *pawl.Root    `json:"pending,omitempty"`
	Found   *pawl.Root    `json:"found,omitempty"`
	Damage  []pawl.Damage `json:"damage,omitempty"`
}

func problemOf(err error) problem {
	p := problem{Error: className(err), Text: err.Error()}
	var e *pawl.Error
	if errors.As(err, &e) {
		p.Hint, p.Path, p.Damage = e.Hint, e.Path, e.Damage
		if e.Outcome != nil {
			p.Outcome = e.Outcome.Error()
		}
		for _, r := range []struct {
			from pawl.Root
			to   **pawl.Root
		}{{e.Trusted, &p.Trusted}, {e.Pending, &p.Pending}, {e.Found, &p.Found}} {
			if r.from != (pawl.Root{}) {
				*r.to = &r.from
			}
		}
	}
	return p
}

// fail shows an error: what happened, what was seen, what to do.
func (c *call) fail(err error) {
	var n no
	if errors.As(err, &n) {
		if !c.json && n.text != "" {
			fmt.Fprintln(c.err, n.text)
		}
		return
	}
	if errors.As(err, new(shown)) {
		return
	}
	if errors.As(err, new(unfit)) {
		if !c.json {
			fmt.Fprintln(c.err, err)
		}
		return
	}
	if c.json {
		_ = writeObject(c.err, problemOf(err))
		return
	}
	text := err.Error()
	var e *pawl.Error
	if errors.As(err, &e) && e.Hint != "" {
		text = strings.TrimSuffix(text, ". "+e.Hint)
	}
	fmt.Fprintln(c.err, wrap(safe(text)))
	if e == nil {
		return
	}
	for i, d := range e.Damage {
		if i == 10 {
			fmt.Fprintf(c.err, "  and %d more\n", len(e.Damage)-i)
			break
		}
		fmt.Fprintf(c.err, "  %s\n", damageLine(d))
	}
	if e.Hint != "" {
		fmt.Fprintln(c.err, wrap("what to do: "+e.Hint+"."))
	}
}

func damageLine(d pawl.Damage) string {
	text := fmt.Sprintf("%s, bytes %d to %d", safe(d.Path), d.Offset, d.Offset+d.Length-1)
	switch {
	case d.Part != "":
		text += ": part " + safe(d.Part)
	case d.First != 0:
		text += fmt.Sprintf(": commits %d to %d", d.First, d.Last)
		if d.LastSeq >= d.FirstSeq {
			text += fmt.Sprintf(", entries %d to %d", d.FirstSeq, d.LastSeq)
		}
	}
	return text
}

// number is so many of something.
func number(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// output is where answers go. What could not be written is remembered: an answer that
// nobody got is none.
type output struct {
	to  io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.to.Write(b)
	if err != nil {
		o.err = unwritten{err}
	}
	return n, o.err
}

// unwritten is an error of the output, which is none of the store: a full disk there is
// no full disk here.
type unwritten struct{ cause error }

func (u unwritten) Error() string { return "the output could not be written: " + u.cause.Error() }

const columns = 80

// wrap breaks text between words, so that it fits on a terminal.
func wrap(text string) string { return wrapAt(text, columns, "") }

// wrapAt makes lines of so many columns, with an indent before all but the first.
func wrapAt(text string, columns int, indent string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case width+1+n > columns:
			b.WriteString("\n" + indent)
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += n
	}
	return b.String()
}

// size shows a number of bytes.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	if u == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}

// bytes writes bytes that were asked for as bytes. A terminal gets them line by line, each
// made harmless.
func (c *call) bytes(b []byte) error {
	if !c.screen {
		_, err := c.out.Write(b)
		return err
	}
	for line := range bytes.Lines(b) {
		if _, err := fmt.Fprintln(c.out, safe(string(bytes.TrimSuffix(line, []byte("\n"))))); err != nil {
			return err
		}
	}
	return nil
}
