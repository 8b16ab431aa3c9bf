package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// This file is the same agent the usual way, to compare: a journal of JSON lines, each flushed
// before the agent goes on. What has no result in it "may be tried again", and is.

// usualLine is a line of the journal: a call that begins, or its result.
type usualLine struct {
	Errand int     `json:"errand"`
	Result *string `json:"result,omitempty"` // nil: it begins
}

func runErrandsAsUsual(ctx context.Context, j *errandJob, tell func(message)) error {
	done, err := readUsual(j.Usual)
	if err != nil {
		return err
	}
	journal, err := os.OpenFile(j.Usual, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer journal.Close()
	note := func(l usualLine) error {
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		if _, err := journal.Write(append(b, '\n')); err != nil {
			return err
		}
		return journal.Sync()
	}
	tell(message{Event: "opened"})
	for n := 1; n <= j.Count; n++ {
		if !done[n] {
			e, tool := errandOf(n)
			if err := note(usualLine{Errand: n}); err != nil {
				return err
			}
			result, err := tools[tool].call(ctx, j, e, fmt.Sprintf("errand-%06d", n))
			if err != nil {
				return err
			}
			if err := note(usualLine{n, &result}); err != nil {
				return err
			}
		}
		tell(message{Event: "step"})
	}
	return nil
}

// readUsual returns the errands that have a result.
func readUsual(name string) (done map[int]bool, err error) {
	done = map[int]bool{}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return done, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var l usualLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, err
		}
		if l.Result != nil {
			done[l.Errand] = true
		}
	}
	return done, lines.Err()
}
