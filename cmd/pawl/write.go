package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
)

// writing are the flags of commands that change a store.
type writing struct {
	shared bool
	id     string
	expect string
}

func (w *writing) flags(fs *flag.FlagSet) {
	fs.BoolVar(&w.shared, "shared", false, "the store is open elsewhere with Options.Shared: take turns")
	fs.StringVar(&w.id, "id", "", "the commit `id`; asked for again, the first receipt comes back. With several commits, -1, -2, … are appended")
	fs.StringVar(&w.expect, "expect", "", "the `receipt` of the state that the first commit must find, or fail as stale")
}

// open opens the store for writing.
func (w *writing) open(ctx context.Context, c *call) (*pawl.Store, error) {
	o := c.options()
	o.Shared = w.shared
	return pawl.Open(ctx, c.store, c.trust, o)
}

// version is what --expect asks for.
func (w *writing) version() (*pawl.Version, error) {
	if w.expect == "" {
		return nil, nil
	}
	var r pawl.Receipt
	if err := r.UnmarshalText([]byte(w.expect)); err != nil {
		return nil, usage{"--expect wants the text of a receipt, as commits print it"}
	}
	return &r.Version, nil
}

func initCommand() *command {
	return &command{
		name: "init",
		what: "make an empty store",
		more: `
Both directories are made where they are missing. A store that is there already is left as
it is, and that is no error.`,
		run: func(ctx context.Context, c *call) error {
			o := c.options()
			o.MustExist = false
			s, err := pawl.Open(ctx, c.store, c.trust, o)
			if err != nil {
				return err
			}
			v := s.View().Version()
			if err := s.Close(); err != nil {
				return err
			}
			if c.json {
				return c.object(v)
			}
			if v.Revision == 0 {
				_, err = fmt.Fprintln(c.out, "an empty store is ready")
			} else {
				_, err = fmt.Fprintf(c.out, "there is a store, at revision %d\n", v.Revision)
			}
			return err
		},
	}
}

// input is a line of JSON that append and put read.
type input struct {
	ID     string
	Text   *string
	Base64 *[]byte
	Part   string // put only
}

func (i *input) bytes() ([]byte, error) {
	switch {
	case (i.Text == nil) == (i.Base64 == nil):
		return nil, errors.New(`want one of "text" and "base64"`)
	case i.Text != nil:
		return []byte(*i.Text), nil
	}
	return *i.Base64, nil
}

// doneLine is a commit that is durable, in JSON.
type doneLine struct {
	Revision pawl.Revision `json:"revision"`
	FirstSeq pawl.Seq      `json:"first_seq,omitempty"`
	LastSeq  pawl.Seq      `json:"last_seq,omitempty"`
	ID       string        `json:"id,omitempty"`
	Replayed bool          `json:"replayed,omitempty"`
	Receipt  string        `json:"receipt"`
	Line     int           `json:"line"` // the last line of the input that is in it
}

func appendCommand() *command {
	var w writing
	var whole, lines bool
	batch := 1
	return &command{
		name: "append",
		what: "append entries from standard input",
		more: `
Each line is an entry and a commit of its own; --batch N puts N lines into one commit, and
--whole makes one entry of everything. With --lines, each line is JSON:
{"text": …} or {"base64": …}, and "id" if the commit is to have one.

A line is printed once its commit is on stable storage, and not before: the revision, the
seq and the line. With --id the whole input may be given again: a commit that was made
is not made twice, and its line ends with "again". Without, give only what was not printed.`,
		flags: func(fs *flag.FlagSet) {
			w.flags(fs)
			fs.BoolVar(&whole, "whole", false, "one entry of all bytes")
			fs.BoolVar(&lines, "lines", false, "lines are JSON")
			fs.IntVar(&batch, "batch", 1, "`number` of lines in a commit")
		},
		run: func(ctx context.Context, c *call) error {
			if batch < 1 || whole && (lines || batch > 1) {
				return usage{"--batch is 1 or more, and --whole goes with neither --batch nor --lines"}
			}
			return w.commits(ctx, c, whole, batch, func(line []byte, change *pawl.Change) error {
				if lines {
					in, b, err := parseInput(line)
					if err != nil {
						return err
					}
					if in.ID != "" && change.ID != "" && in.ID != change.ID {
						return errors.New("lines of one commit have different ids")
					}
					if in.ID != "" {
						change.ID = in.ID
					}
					line = b
				}
				change.Entries = append(change.Entries, bytes.Clone(line))
				return nil
			})
		},
	}
}

func putCommand() *command {
	var w writing
	var lines, remove bool
	return &command{
		name: "put", args: "[PART]",
		what: "replace a part with standard input",
		more: `
All of the input becomes the bytes of PART. With --lines there is no PART, and each line is
JSON and a commit of its own: {"part": …, "text": …} or "base64", and "id" if the commit
is to have one. --delete removes PART instead, and reads nothing.`,
		flags: func(fs *flag.FlagSet) {
			w.flags(fs)
			fs.BoolVar(&lines, "lines", false, "lines are JSON")
			fs.BoolVar(&remove, "delete", false, "remove the part")
		},
		run: func(ctx context.Context, c *call) error {
			if lines == (len(c.args) == 1) || len(c.args) > 1 || lines && remove {
				return usage{"put takes a part, or --lines"}
			}
			if remove {
				c.in = bytes.NewReader(nil)
			}
			return w.commits(ctx, c, !lines, 1, func(line []byte, change *pawl.Change) error {
				name := ""
				if lines {
					in, b, err := parseInput(line)
					if err != nil {
						return err
					}
					if in.ID != "" {
						change.ID = in.ID
					}
					name, line = in.Part, b
				} else {
					name = c.args[0]
				}
				if remove {
					change.Delete = []string{name}
				} else {
					change.Put = map[string][]byte{name: bytes.Clone(line)}
				}
				return nil
			})
		},
	}
}

// parseInput reads an object, and nothing that encoding/json would silently mend: a name
// that is there twice, and text that is none.
func parseInput(line []byte) (in input, b []byte, err error) {
	if !utf8.Valid(line) {
		return in, nil, errors.New("it is not UTF-8; bytes that are no text go into \"base64\"")
	}
	if loneSurrogate(line) {
		return in, nil, errors.New("it has half a surrogate pair, which is no text; bytes that are none go into \"base64\"")
	}
	fields := map[string]any{"id": &in.ID, "text": &in.Text, "base64": &in.Base64, "part": &in.Part}
	d := json.NewDecoder(bytes.NewReader(line))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return in, nil, errors.New("it is no object of JSON")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return in, nil, errors.New("it is no object of JSON")
		}
		to := fields[name.(string)]
		if to == nil {
			return in, nil, fmt.Errorf("the field %q is there twice, or unknown", name)
		}
		delete(fields, name.(string))
		if err := d.Decode(to); err != nil {
			return in, nil, fmt.Errorf("the field %q has to be a string, and \"base64\" one of whole base64", name)
		}
	}
	if _, err := d.Token(); err != nil {
		return in, nil, errors.New("the object does not end")
	}
	if _, err := d.Token(); err != io.EOF {
		return in, nil, errors.New("there is more on the line than one object")
	}
	b, err = in.bytes()
	return in, b, err
}

// loneSurrogate finds an escape that stands for no character.
func loneSurrogate(line []byte) bool {
	unit := func(at int) rune {
		if at+6 > len(line) || line[at] != '\\' || line[at+1] != 'u' {
			return 0
		}
		n, err := strconv.ParseUint(string(line[at+2:at+6]), 16, 16)
		if err != nil {
			return 0
		}
		return rune(n)
	}
	for i := 0; i < len(line); i++ {
		if line[i] != '\\' {
			continue
		}
		if r := unit(i); utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, unit(i+6)) == utf8.RuneError {
				return true
			}
			i += 6
		}
		i++
	}
	return false
}

// commits makes a commit of so many lines of the input at a time. add adds a line to a
// change. A line that cannot be read ends it; what came before is committed, and printed.
func (w *writing) commits(ctx context.Context, c *call, whole bool, batch int, add func([]byte, *pawl.Change) error) error {
	expect, err := w.version()
	if err != nil {
		return err
	}
	s, err := w.open(ctx, c)
	if err != nil {
		return err
	}
	err = w.stream(ctx, c, s, expect, whole, batch, add)
	return errors.Join(err, s.Close())
}

func (w *writing) stream(ctx context.Context, c *call, s *pawl.Store, expect *pawl.Version, whole bool, batch int, add func([]byte, *pawl.Change) error) error {
	in := bufio.NewReaderSize(c.in, 1<<16)
	number, made := 0, 0
	for {
		change := pawl.Change{Expect: expect}
		var last []byte
		n := 0
		var end, bad error
		for n < batch && end == nil {
			var line []byte
			if whole {
				line, end = io.ReadAll(io.LimitReader(in, longest+1))
				if end == nil {
					end = io.EOF
				}
			} else if line, end = readLine(in); end == io.EOF && len(line) == 0 {
				break
			}
			if len(line) > longest {
				bad = fmt.Errorf("line %d has more than %s: %w", number+1, size(longest), pawl.ErrTooLarge)
				break
			}
			if end != nil && end != io.EOF {
				bad = end
				break
			}
			number++
			if !whole {
				line = bytes.TrimSuffix(line, []byte("\n"))
			}
			if err := add(line, &change); err != nil {
				bad = usage{fmt.Sprintf("line %d: %v", number, err)}
				number--
				break
			}
			last = line
			n++
		}
		// A commit whose id is of its place is made whole or not at all: the same input again,
		// once it is mended, has the same commits.
		placed := w.id != "" && change.ID == "" && !whole
		if n == 0 || bad != nil && (placed || errors.Is(bad, context.Canceled)) {
			return bad
		}
		made++
		if change.ID == "" && w.id != "" {
			change.ID = w.id
			if !whole {
				change.ID = fmt.Sprintf("%s-%d", w.id, made)
			}
		}
		r, err := s.Commit(ctx, change)
		if err != nil {
			return err
		}
		expect = nil
		if err := c.done(r, change, number, last, whole); err != nil {
			return err
		}
		if bad != nil || end != nil {
			return bad
		}
	}
}

// longest is what is read of a line, or of all of the input: more than any entry or part
// may have, also in base64.
const longest = 128 << 20

// readLine reads a line with its line feed, or the beginning of one that is too long.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for len(line) <= longest {
		piece, err := in.ReadSlice('\n')
		line = append(line, piece...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
	return line, nil
}

// done prints a commit that is on stable storage.
func (c *call) done(r pawl.Receipt, change pawl.Change, number int, last []byte, whole bool) error {
	if c.json {
		if err := c.object(doneLine{r.Revision, r.FirstSeq, r.LastSeq, change.ID, r.Replayed, r.String(), number}); err != nil {
			return fmt.Errorf("revision %d is on stable storage, and was not printed: %w", r.Revision, err)
		}
		return nil
	}
	text := ""
	switch {
	case whole || len(change.Entries) == 0:
		text = r.String()
	case len(change.Entries) > 1:
		text = fmt.Sprintf("%d lines, to line %d", len(change.Entries), number)
	default:
		text = safe(string(last))
	}
	if r.Replayed {
		text += "\tagain"
	}
	if _, err := fmt.Fprintf(c.out, "%d\t%d\t%s\n", r.Revision, r.LastSeq, text); err != nil {
		return fmt.Errorf("revision %d is on stable storage, and was not printed: %w", r.Revision, err)
	}
	return nil
}
