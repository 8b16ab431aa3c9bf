package pawl

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"
)

// View is an immutable snapshot of a store's state. It costs nothing to take, is
// safe for concurrent use, and stays as it is whatever happens to the store. The
// zero View is empty.
//
// Old history and large parts are read from the store's files when they are asked for,
// and held against the digest that the trust file pins: ErrDamaged says that a file is
// not as it was written, and Error.Damage what is lost. A file that the Store no longer
// needs stays readable through the Views that need it, on Windows until the Store is
// closed. After Close such files are opened when they are read, and are there as long as
// the store is, and nobody has compacted it or replaced the part.
type View struct{ s *state }

var noState = &state{base: origin{nextSeq: 1}}

func (v View) state() *state {
	if v.s == nil {
		return noState
	}
	return v.s
}

// Version returns the revision and the history digest of the state.
func (v View) Version() Version { return v.state().version() }

// Get returns a copy of a part's bytes, and whether there is such a part. A part of
// no bytes is there. What it returns has the digest that history names.
func (v View) Get(part string) ([]byte, bool, error) {
	p, ok := v.state().parts[part]
	if !ok {
		return nil, false, nil
	}
	b, err := p.bytes()
	if err != nil {
		return nil, true, fail("get", part, err)
	}
	return b, true, nil
}

// Size returns how many bytes a part has, and whether there is such a part. It reads
// nothing, and needs no file that Get needs.
func (v View) Size(part string) (int64, bool) {
	p, ok := v.state().parts[part]
	return int64(p.ref.size), ok
}

// LastSeq returns the seq of the newest entry that was ever appended; 0: there is none.
func (v View) LastSeq() Seq { return v.state().nextSeq() - 1 }

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
// all of them. It never ends early without an error. What retention has dropped is not
// there, which the seq of the next one shows.
func (v View) Entries(after Seq) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if after+1 == 0 {
			return
		}
		t, e := v.state().sinceSeq(after + 1)
		for e == nil {
			var raw coded
			if raw, e = t.next(); raw == nil {
				break
			}
			entry := Entry{Seq: raw.firstSeq(), Revision: raw.revision()}
			b, count := raw.entries()
			d, own := reader{b: b}, copied{of: b}
			for ; count > 0; count-- {
				n := int(d.u32())
				at := d.at
				if d.bytes(uint64(n)); d.err != nil {
					e = &Error{Kind: ErrDamaged, Cause: fmt.Errorf("revision %d: %w", entry.Revision, d.err), Hint: hintSealed}
					break
				}
				if entry.Seq > after {
					if entry.Data = own.bytes(at, n); !yield(entry, nil) {
						return
					}
				}
				entry.Seq++
			}
		}
		if e != nil {
			yield(Entry{}, fail("entries", "", e))
		}
	}
}

// Commits yields the commits with a revision greater than after, in order. It never
// ends early without an error. Those that retention has forgotten are not there.
func (v View) Commits(after Revision) iter.Seq2[CommitInfo, error] {
	return func(yield func(CommitInfo, error) bool) {
		s := v.state()
		t, e := s.since(after)
		var history Digest
		last := Revision(0)
		for e == nil {
			var raw coded
			if raw, e = t.next(); raw == nil {
				break
			}
			if rev := raw.revision(); last == 0 || rev != last+1 {
				var err error
				if history, _, err = s.historyAt(rev - 1); err != nil {
					e = fail("", "", err)
					break
				}
			}
			r, err := parseRecord(raw)
			if err != nil {
				e = &Error{Kind: ErrDamaged, Cause: fmt.Errorf("revision %d: %w", raw.revision(), err), Hint: hintSealed}
				break
			}
			history, last = chain(history, r.head()), r.revision
			r.history = history
			if !yield(r.commitInfo(), nil) {
				return
			}
		}
		if e != nil {
			yield(CommitInfo{}, fail("commits", "", e))
		}
	}
}

// copied makes copies of pieces of a slice, small ones of which share an array: one copy
// of many entries costs less than many copies.
type copied struct {
	of, own []byte
	at      int // where own begins
}

// together is how much of such an array a caller who keeps one piece keeps at most.
const together = 16 << 10

func (c *copied) bytes(at, n int) []byte {
	if c.own == nil || at+n > c.at+len(c.own) {
		end := max(at+n, min(at+together, len(c.of)))
		c.own, c.at = append([]byte{}, c.of[at:end]...), at
	}
	return c.own[at-c.at : at-c.at+n : at-c.at+n]
}

func (r *record) commitInfo() CommitInfo {
	c := CommitInfo{Version: r.version(), ID: r.id, Time: time.Unix(0, r.time).UTC(), Schema: int(r.schema), Program: r.program}
	c.FirstSeq, c.LastSeq = r.seqs()
	for _, p := range r.put {
		c.Put = append(c.Put, p.name)
	}
	c.Deleted = append(c.Deleted, r.deleted...)
	c.Dropped = r.dropped()
	return c
}

// Contains reports whether the commit of an earlier receipt is part of this
// history. A receipt of a commit that was undone by putting an older copy of both
// directories back is not, so a caller who keeps receipts elsewhere can tell.
// ErrForgotten says that retention has dropped the commit of that revision, whichever
// it was.
func (v View) Contains(r Receipt) (bool, error) {
	s := v.state()
	ok, err := s.holds(r.Version)
	if err != nil {
		return false, fail("contains", "", err)
	}
	// The digest has decided; what is left is a receipt that somebody edited. One
	// without entries is also what an empty change returns.
	if !ok || r.FirstSeq == 0 && r.LastSeq == 0 {
		return ok, nil
	}
	if r.Revision == 0 {
		return false, nil
	}
	c, err := s.recordOf(r.Revision)
	if errors.Is(err, ErrForgotten) {
		return true, nil // the last one of those that were dropped; its digest is kept
	}
	if err != nil {
		return false, fail("contains", "", err)
	}
	first, last := c.seqs()
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
