package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// This file is the agent at work outside of its store: tools that write files and call a
// server. What they do stays done when the agent is killed, and no commit takes it back. Each
// call is an effect, which is carried across crashes by effect.Do.

// errand is one call of a tool that has an effect outside.
type errand struct {
	Number int    `json:"number"` // from 1
	Tool   string `json:"tool"`
}

// tools are the tools with effects, and whether a second call under the same key changes
// nothing.
var tools = []struct {
	name       string
	idempotent bool
	call       func(ctx context.Context, j *errandJob, e errand, key string) (string, error)
}{
	{"save", true, save},      // a file of its own, replaced whole
	{"notify", true, notify},  // a call that the server knows by its key
	{"log", false, appendLog}, // a line at the end of a file
	{"charge", false, charge}, // a call that the server counts
}

// errandOf is what the agent wants done, in this order.
func errandOf(n int) (e errand, tool int) {
	tool = n % len(tools)
	return errand{n, tools[tool].name}, tool
}

// errandJob is what a worker is started with that does errands.
type errandJob struct {
	Dir    string `json:"dir"` // the store directory
	Trust  string `json:"trust"`
	Usual  string `json:"usual,omitempty"` // not empty: the usual way, with a journal of this name
	Out    string `json:"out"`             // the directory of the tools' files
	Server string `json:"server"`          // the URL of the tools' server
	Count  int    `json:"count"`
}

// runErrands does all errands, from wherever the store says that they were left. One of which
// nobody knows whether it was done is parked, and does not hold up the others.
func runErrands(ctx context.Context, j *errandJob, tell func(message)) error {
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{LockWait: lockWait})
	if err != nil {
		return err
	}
	defer store.Close()
	tell(opened(store))
	for n := 1; n <= j.Count; n++ {
		e, tool := errandOf(n)
		if err := runErrand(ctx, store, j, e, tool); err != nil && !errors.Is(err, effect.ErrUnsettled) {
			return err
		}
		tell(message{Event: "step"})
	}
	return store.Close()
}

// runErrand does one, however often it is called: once.
func runErrand(ctx context.Context, store *pawl.Store, j *errandJob, e errand, tool int) error {
	request := effect.Request{Destination: e.Tool}
	var err error
	if request.Body, err = json.Marshal(e); err != nil {
		return err
	}
	_, err = effect.Do(ctx, store, fmt.Sprintf("errand-%06d", e.Number), request,
		func(ctx context.Context, c effect.Call) (string, error) { return tools[tool].call(ctx, j, e, c.Key) },
		&effect.Options[string]{Idempotent: tools[tool].idempotent})
	return err
}

// save writes a file that is named by the key. A second time it writes the same.
func save(_ context.Context, j *errandJob, e errand, key string) (string, error) {
	name := filepath.Join(j.Out, key+".txt")
	temp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.WriteFile(temp, fmt.Appendln(nil, e.Number), 0o600); err != nil {
		return "", effect.NotDone(err)
	}
	return filepath.Base(name), os.Rename(temp, name)
}

// appendLog appends a line to a file, each time that it is called.
func appendLog(_ context.Context, j *errandJob, e errand, _ string) (string, error) {
	f, err := os.OpenFile(filepath.Join(j.Out, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", effect.NotDone(err)
	}
	_, err = fmt.Fprintln(f, e.Number)
	return "", errors.Join(err, f.Close())
}

const logName = "log"

func notify(ctx context.Context, j *errandJob, e errand, key string) (string, error) {
	return post(ctx, j, "/notify", e, key)
}

func charge(ctx context.Context, j *errandJob, e errand, _ string) (string, error) {
	return post(ctx, j, "/charge", e, "")
}

// post calls the server. What its answer, or the lack of one, says of the effect is the point
// of it: where there was no connection nothing was done, and neither where the server refuses;
// after any other error nobody knows.
func post(ctx context.Context, j *errandJob, path string, e errand, key string) (string, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return "", effect.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, j.Server+path, bytes.NewReader(body))
	if err != nil {
		return "", effect.Permanent(err)
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	answer, err := http.DefaultClient.Do(r)
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return "", effect.NotDone(err)
	case err != nil:
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	switch {
	case err != nil:
		return "", err
	case answer.StatusCode/100 == 4:
		return "", effect.Permanent(errors.New(answer.Status))
	case answer.StatusCode != http.StatusOK:
		return "", errors.New(answer.Status)
	}
	return string(text), nil
}
