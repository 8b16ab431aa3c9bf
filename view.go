package pawl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"time"
)

// View is an immutable snapshot of a store's state. It costs nothing to take, is
// safe for concurrent use, and stays as it is whatever happens to the store. The
// zero View is empty.
type View struct{ s *state }

var noState = &state{}

func (v View) state() *state {
	if v.s == nil {
		return noState
	}
	return v.s
}

// Version returns the revision and the history digest of the state.
func (v View) Version() Version { return v.state().version() }

// Get returns a copy of a part's bytes, and whether there is such a part. A part of
// no bytes is there.
func (v View) Get(part string) ([]byte, bool, error) {
	p, ok := v.state().parts[part]
	if !ok {
		return nil, false, nil
	}
	return append([]byte{}, p.data...), true, nil
}

// Parts yields the names of all parts, sorted.
func (v View) Parts() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range v.state().partNames() {
			if !yield(name) {
				return
			}
		}
	}
}

// Entries yields the entries with a seq greater than after, in order: Entries(0) is
// all of them. It never ends early without an error.
func (v View) Entries(after Seq) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, r := range v.state().records {
			if r.nextSeq() <= after+1 && after+1 != 0 {
				continue
			}
			for i, data := range r.entries {
				e := Entry{Seq: r.firstSeq + Seq(i), Revision: r.revision}
				if e.Seq <= after {
					continue
				}
				e.Data = bytes.Clone(data)
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// Commits yields the commits with a revision greater than after, in order. It never
// ends early without an error.
func (v View) Commits(after Revision) iter.Seq2[CommitInfo, error] {
	return func(yield func(CommitInfo, error) bool) {
		for _, r := range v.state().records {
			if r.revision > after && !yield(r.commitInfo(), nil) {
				return
			}
		}
	}
}

func (r *record) commitInfo() CommitInfo {
	c := CommitInfo{Version: r.version(), ID: r.id, Time: time.Unix(0, r.time).UTC(), Schema: int(r.schema), Program: r.program}
	c.FirstSeq, c.LastSeq = r.seqs()
	for _, p := range r.put {
		c.Put = append(c.Put, p.name)
	}
	c.Deleted = append(c.Deleted, r.deleted...)
	return c
}

// Contains reports whether the commit of an earlier receipt is part of this
// history. A receipt of a commit that was undone by putting an older copy of both
// directories back is not, so a caller who keeps receipts elsewhere can tell.
func (v View) Contains(r Receipt) (bool, error) {
	history, ok := v.state().historyAt(r.Revision)
	if !ok || history != r.Digest {
		return false, nil
	}
	// The digest has decided; what is left is a receipt that somebody edited. One
	// without entries is also what an empty change returns.
	i := v.state().index(r.Revision)
	if i < 0 || r.FirstSeq == 0 && r.LastSeq == 0 {
		return r.FirstSeq == 0 && r.LastSeq == 0, nil
	}
	first, last := v.state().records[i].seqs()
	return r.FirstSeq == first && r.LastSeq == last, nil
}

// GetJSON decodes a part that holds JSON. It reports false when there is no such
// part; an error names the part.
func GetJSON[T any](v View, part string) (T, bool, error) {
	var t T
	b, ok, err := v.Get(part)
	if err != nil || !ok {
		return t, ok, err
	}
	if err := json.Unmarshal(b, &t); err != nil {
		var zero T
		return zero, true, &Error{Op: "get", Path: part, Cause: fmt.Errorf("part does not decode: %w", err)}
	}
	return t, true, nil
}
