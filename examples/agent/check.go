package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/seed-5cdcd42d/pawl"
)

// This file holds what is in the store at the end against a fresh walk of the tree.

// verdict is what check found. A store that is wrong in itself is one thing, a store
// that records another tree than the one that is there now is another.
type verdict struct {
	sum        totals   // of the fresh walk
	inStore    []string // what contradicts itself, or what was acknowledged or settled
	withTree   []string // what differs from the tree
	unreported int      // settles in the audit file that no worker lived to report
}

// check compares all that the store holds with the tree as it is now, with the
// receipts of the acknowledged steps, and with the settles that were reported. Its
// error is for what kept it from looking.
//
// audit names the audit file, and from is how many of its lines are older.
func check(ctx context.Context, j job, acked []pawl.Receipt, settled []message, audit string, from int) (v verdict, err error) {
	store, err := pawl.Open(ctx, j.Dir, j.Trust, &pawl.Options{MustExist: true, LockWait: lockWait})
	if err != nil {
		return v, err
	}
	defer store.Close()
	if rec := store.Recovery(); rec.Unclean || rec.Settled != pawl.SettledNothing {
		v.storef("the last worker did not close the store (settled: %s)", rec.Settled)
	}
	if err := store.Verify(ctx, nil); err != nil {
		v.storef("%v", err)
	}
	view := store.View()
	for _, r := range acked {
		if ok, err := view.Contains(r); err != nil {
			return v, err
		} else if !ok {
			v.storef("step %d was acknowledged with receipt %s, and is not part of the history", r.Revision, r)
		}
	}
	history, err := v.history(view)
	if err != nil {
		return v, err
	}
	if err := v.tree(j, history); err != nil {
		return v, err
	}
	if err := v.state(view, history); err != nil {
		return v, err
	}
	if err := v.audit(view, settled, audit, from); err != nil {
		return v, err
	}
	return v, store.Close()
}

func (r result) String() string {
	return fmt.Sprintf("%d lines, %d bytes, SHA-256 %s", r.Lines, r.Bytes, r.SHA256)
}

func (t totals) String() string {
	return fmt.Sprintf("%d files, %d lines, %d bytes, cursor %q, digest %s", t.Files, t.Lines, t.Bytes, t.Cursor, t.Digest)
}

func (v *verdict) storef(format string, args ...any) {
	v.inStore = append(v.inStore, fmt.Sprintf(format, args...))
}

func (v *verdict) treef(format string, args ...any) {
	v.withTree = append(v.withTree, fmt.Sprintf(format, args...))
}

// history reads all entries. Each must be the one entry of a commit that bears the
// step's id, and step n must be entry n of revision n.
func (v *verdict) history(view pawl.View) (history []step, err error) {
	for e, err := range view.Entries(0) {
		if err != nil {
			return nil, err
		}
		n := len(history) + 1
		var s step
		if err := json.Unmarshal(e.Data, &s); err != nil {
			v.storef("entry %d is not a step: %v", e.Seq, err)
		} else if s.Step != n || int(e.Seq) != n || int(e.Revision) != n {
			v.storef("where step %d should be there is entry %d of revision %d, which records step %d", n, e.Seq, e.Revision, s.Step)
		}
		history = append(history, s)
	}
	commits := 0
	for c, err := range view.Commits(0) {
		if err != nil {
			return nil, err
		}
		commits++
		if c.ID != stepID(commits) || int(c.FirstSeq) != commits || c.LastSeq != c.FirstSeq || !slices.Equal(c.Put, []string{statePart}) || c.Deleted != nil {
			v.storef("commit %d has id %q, entries %d to %d, and replaces %q: that is no step", c.Version.Revision, c.ID, c.FirstSeq, c.LastSeq, c.Put)
		}
	}
	if commits != len(history) {
		v.storef("%d commits, and %d entries", commits, len(history))
	}
	return history, nil
}

// tree compares the history with a fresh walk: no step lost, none twice, in order,
// and every result the same.
func (v *verdict) tree(j job, history []step) error {
	paths, err := list(j.Tree, j.Files)
	if err != nil {
		return err
	}
	at := map[string]int{} // path → step
	for i, s := range history {
		if first, ok := at[s.Call.Path]; ok {
			v.storef("%q was done twice: steps %d and %d", s.Call.Path, first, i+1)
			continue
		}
		at[s.Call.Path] = i + 1
	}
	for i, path := range paths {
		want := step{Step: i + 1, Call: call{Tool: toolName, Path: path}}
		if want.Result, err = digest(j.Tree, path); err != nil {
			return err
		}
		entry, err := json.Marshal(want)
		if err != nil {
			return err
		}
		v.sum = v.sum.add(want, entry)
		n, ok := at[path]
		delete(at, path)
		switch {
		case !ok:
			v.treef("step %d is lost: nothing records %q", i+1, path)
		case n != i+1:
			v.treef("%q should be step %d, and is step %d", path, i+1, n)
		case history[n-1] != want:
			v.treef("step %d records %q with %v, and the file has %v", n, path, history[n-1].Result, want.Result)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(at)) {
		v.treef("step %d is on %q, which is not among the first %d Go files of the tree", at[path], path, len(paths))
	}
	return nil
}

// state compares state.json with what the history adds up to, and with the walk.
func (v *verdict) state(view pawl.View, history []step) error {
	if parts := slices.Collect(view.Parts()); !slices.Equal(parts, []string{statePart}) {
		v.storef("the store has the parts %q, and should have %q only", parts, statePart)
	}
	got, _, err := pawl.GetJSON[totals](view, statePart)
	if err != nil {
		v.storef("%v", err)
		return nil
	}
	var sum totals
	for _, s := range history {
		entry, err := json.Marshal(s)
		if err != nil {
			return err
		}
		sum = sum.add(s, entry)
	}
	if got != sum {
		v.storef("%s says %v, and the history adds up to %v", statePart, got, sum)
	}
	if got != v.sum {
		v.treef("%s says %v, and a fresh walk of the tree adds up to %v", statePart, got, v.sum)
	}
	return nil
}

// auditLine is what is looked at in a line of the audit file.
type auditLine struct {
	Event   string
	Outcome string
	Pending pawl.Root
	Commits []string
}

// readAudit returns the lines of an audit file. One that a kill tore is none.
func readAudit(name string) (lines []auditLine, err error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range bytes.Lines(b) {
		var l auditLine
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines, err
}

// audit looks for a line for each settle that a worker reported, and at whether the
// lines agree with the history. A worker that was killed while it settled may have
// left a line that nobody was told of; the next one decides the same.
func (v *verdict) audit(view pawl.View, settled []message, name string, from int) error {
	lines, err := readAudit(name)
	if err != nil {
		return err
	}
	ids := map[pawl.Revision]string{}
	for c, err := range view.Commits(0) {
		if err != nil {
			return err
		}
		ids[c.Version.Revision] = c.ID
	}
	outcome := map[pawl.Root]string{}
	recent := map[pawl.Root]bool{}
	for i, l := range lines {
		if l.Event != "settle" {
			continue
		}
		before, again := outcome[l.Pending]
		outcome[l.Pending] = l.Outcome
		if i >= from {
			recent[l.Pending] = true
		}
		switch {
		case again && before != l.Outcome:
			v.storef("the audit file says of revision %d %s both %q and %q", l.Pending.Revision, l.Pending.Digest, before, l.Outcome)
		case !slices.Equal(l.Commits, []string{stepID(int(l.Pending.Revision))}):
			v.storef("the audit file has the commits %q for an intent of revision %d", l.Commits, l.Pending.Revision)
		case l.Outcome == landed && ids[l.Pending.Revision] != l.Commits[0]:
			v.storef("the audit file says that %q landed, and it is not in the history", l.Commits[0])
		}
	}
	for _, m := range settled {
		if got := outcome[*m.Pending]; got != m.Settled {
			v.storef("revision %d was settled as %q, and the audit file says %q", m.Pending.Revision, m.Settled, got)
		}
	}
	v.unreported = len(recent) - len(settled)
	return nil
}

// report puts all that is wrong into words; "" when nothing is.
func (v *verdict) report() string {
	var b strings.Builder
	all := slices.Concat(v.inStore, v.withTree)
	if len(all) == 0 {
		return ""
	}
	fmt.Fprintf(&b, "the store is not what it should be (differences: %d):\n", len(all))
	for _, d := range all[:min(len(all), 10)] {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	if len(all) > 10 {
		fmt.Fprintf(&b, "  … and %d more\n", len(all)-10)
	}
	if len(v.inStore) == 0 {
		b.WriteString("The store is whole and adds up; it records another tree than the one that is there now.\n" +
			"Either the tree has changed since, or -tree or -files is not what it was.\n")
	}
	return b.String()
}
