package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// This file is the agent: what a program that keeps its state with pawl looks like.
// It knows nothing of being killed. Whenever it is started, it opens the store and
// goes on after the last step that the store knows.

// step is what the history keeps of one step, as JSON: a tool call and its result.
type step struct {
	Step   int    `json:"step"` // from 1
	Call   call   `json:"call"`
	Result result `json:"result"`
}

type call struct {
	Tool string `json:"tool"`
	Path string `json:"path"` // relative to the tree, with slashes
}

type result struct {
	SHA256 string `json:"sha256"`
	Lines  int64  `json:"lines"`
	Bytes  int64  `json:"bytes"`
}

// totals is the part state.json: how far the agent is, and its sums so far.
type totals struct {
	Cursor string `json:"cursor"` // the file of the last step
	Files  int    `json:"files"`  // so many steps are done
	Lines  int64  `json:"lines"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"` // SHA-256 over the one before and the step's entry
}

const (
	statePart = "state.json"
	toolName  = "digest"

	// lockWait: a process that was killed may take a moment to be gone.
	lockWait = 10 * time.Second
)

// add returns the totals after one more step, whose entry in the history is given.
func (t totals) add(s step, entry []byte) totals {
	chain := sha256.Sum256(append([]byte(t.Digest), entry...))
	return totals{
		Cursor: s.Call.Path,
		Files:  t.Files + 1,
		Lines:  t.Lines + s.Result.Lines,
		Bytes:  t.Bytes + s.Result.Bytes,
		Digest: hex.EncodeToString(chain[:]),
	}
}

// job is what the agent is started with.
type job struct {
	Dir   string       `json:"dir"`   // the store directory
	Trust string       `json:"trust"` // the trust directory
	Tree  string       `json:"tree"`
	Files int          `json:"files"` // at most so many
	Kept  pawl.Receipt `json:"kept"`  // of the last step that somebody was told of

	Errands *errandJob `json:"errands,omitempty"` // not nil: these, and nothing else
}

// run does the job.
func (j job) run(ctx context.Context, tell func(message)) error {
	switch {
	case j.Errands == nil:
		return work(ctx, j, tell)
	case j.Errands.Usual != "":
		return runErrandsAsUsual(ctx, j.Errands, tell)
	}
	return runErrands(ctx, j.Errands, tell)
}

// message is what the agent reports, as a line of JSON.
type message struct {
	Event string `json:"event"` // "opened", "step", "done", "failed"

	// opened: where the store is, and what Open found.
	Revision  pawl.Revision `json:"revision,omitempty"`
	Settled   string        `json:"settled,omitempty"`
	Unclean   bool          `json:"unclean,omitempty"`
	Pending   *pawl.Root    `json:"pending,omitempty"`
	Swept     int           `json:"swept,omitempty"`
	AuditLost string        `json:"audit_lost,omitempty"`

	// step: the proof of one.
	Receipt *pawl.Receipt `json:"receipt,omitempty"`

	Error string `json:"error,omitempty"`
}

// work does the job, from wherever the store says that it was left.
func work(ctx context.Context, j job, tell func(message)) error {
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{LockWait: lockWait})
	if err != nil {
		return err
	}
	defer store.Close()
	view := store.View()

	// Somebody else kept the receipt of the last step that was acknowledged. If this
	// history holds it, it also holds all that came before.
	if j.Kept != (pawl.Receipt{}) {
		switch ok, err := view.Contains(j.Kept); {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("step %d was acknowledged, and is not in the store, which is at revision %d", j.Kept.Revision, view.Version().Revision)
		}
	}
	done, _, err := pawl.GetJSON[totals](view, statePart)
	if err != nil {
		return err
	}
	tell(opened(store))

	files, err := list(j.Tree, j.Files)
	if err != nil {
		return err
	}
	if n := done.Files; n > len(files) {
		return fmt.Errorf("the store has %d steps, and there are only %d files to work on: either the tree has changed since, or -tree or -files is not what it was", n, len(files))
	} else if n > 0 && files[n-1] != done.Cursor {
		return fmt.Errorf("step %d was on %q, and file %d of the tree is %q: either the tree has changed since, or -tree is not what it was", n, done.Cursor, n, files[n-1])
	}
	for i := done.Files; i < len(files); i++ {
		s := step{Step: i + 1, Call: call{Tool: toolName, Path: files[i]}}
		if s.Result, err = digest(j.Tree, s.Call.Path); err != nil {
			return err
		}
		receipt, err := commit(ctx, store, s)
		if err != nil {
			return err
		}
		tell(message{Event: "step", Receipt: &receipt})
	}
	return store.Close()
}

// commit records a step and moves the totals on, both or neither. The step's id
// makes sure that it happens once, however often commit is called.
func commit(ctx context.Context, store *pawl.Store, s step) (pawl.Receipt, error) {
	id := stepID(s.Step)
	for try := 1; ; try++ {
		receipt, err := store.Update(ctx, id, func(v pawl.View) (pawl.Change, error) {
			var c pawl.Change
			now, _, err := pawl.GetJSON[totals](v, statePart)
			if err != nil {
				return c, err
			}
			if now.Files != s.Step-1 {
				return c, fmt.Errorf("step %d cannot follow step %d", s.Step, now.Files)
			}
			entry, err := json.Marshal(s)
			if err != nil {
				return c, err
			}
			c.Entries = [][]byte{entry}
			c.SetJSON(statePart, now.add(s, entry))
			return c, nil
		})
		if !errors.Is(err, pawl.ErrInDoubt) {
			return receipt, err // done, or certainly not
		}
		// Something failed at a moment after which nobody can know. Trying again could
		// do the step twice, and giving up could lose it: settle first, then ask.
		if _, err := store.Recover(ctx); err != nil {
			return receipt, err
		}
		receipt, outcome, e := store.Lookup(ctx, id)
		if e != nil || outcome == pawl.OutcomeCommitted {
			return receipt, e
		}
		if try == 3 {
			return receipt, err
		}
	}
}

func stepID(n int) string { return fmt.Sprintf("step-%06d", n) }

// opened reports what Open found.
func opened(store *pawl.Store) message {
	rec := store.Recovery()
	m := message{
		Event: "opened", Revision: store.View().Version().Revision,
		Settled: rec.Settled.String(), Unclean: rec.Unclean, Swept: len(rec.Swept),
	}
	if rec.Settled != pawl.SettledNothing {
		m.Pending = &rec.Pending
	}
	if rec.Audit != nil {
		m.AuditLost = rec.Audit.Error()
	}
	return m
}

// list returns the first most Go files of a tree, in the order of a walk. Where the
// tree is a Go toolchain, those are in src.
func list(tree string, most int) ([]string, error) {
	fsys, top := os.DirFS(tree), "."
	if info, err := fs.Stat(fsys, "src"); err == nil && info.IsDir() {
		top = "src"
	}
	// src may be a link, and a walk does not go through one.
	root, err := filepath.EvalSymlinks(filepath.Join(tree, top))
	if err != nil {
		return nil, err
	}
	var files []string
	err = fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case len(files) == most:
			return fs.SkipAll
		case d.Type().IsRegular() && strings.HasSuffix(path, ".go"):
			if top != "." {
				path = top + "/" + path
			}
			files = append(files, path)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no Go files below %s; -tree names another tree", root)
	}
	return files, err
}

// digest is the agent's tool. Reading a file again after a kill does no harm; tools with
// effects are in errands.go.
func digest(tree, path string) (result, error) {
	b, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(path)))
	if err != nil {
		return result{}, err
	}
	sum := sha256.Sum256(b)
	r := result{SHA256: hex.EncodeToString(sum[:]), Lines: int64(bytes.Count(b, []byte("\n"))), Bytes: int64(len(b))}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		r.Lines++
	}
	return r, nil
}
