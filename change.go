package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Change is what one commit does: any number of entries appended and parts replaced
// or removed, together. The bytes are copied; the caller may use them again as soon
// as the call returns.
type Change struct {
	// ID names the commit, at most 255 bytes of UTF-8 without control characters.
	// The same id with the same content again returns the first receipt, so a caller
	// that lost an acknowledgement can simply ask again. (By ids such as "adopt 3 sha256:… over
	// 6 sha256:…", with whole digests, decisions say what was given up. They are refused here.)
	ID string

	// Expect makes the commit fail with ErrStale unless the state is exactly this.
	Expect *Version

	Entries [][]byte          // appended to the history, in order
	Put     map[string][]byte // parts to replace; nil bytes make an empty part
	Delete  []string          // parts to remove; one that is not there is no error

	err     error
	schema  uint32 // of the Store that makes it
	program string

	declares bool // it is one of a decision
}

// SetJSON puts a part that holds v as JSON. An error of encoding is kept, and
// Commit returns it.
func (c *Change) SetJSON(part string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		if c.err == nil {
			c.err = fmt.Errorf("part %q does not encode: %w", part, err)
		}
		return
	}
	if c.Put == nil {
		c.Put = map[string][]byte{}
	}
	c.Put[part] = b
}

// prepared is a change that was checked and copied, and needs only its place in the
// history.
type prepared struct {
	record record
	data   [][]byte // of the parts that the record puts, in its order
	expect *Version
	empty  bool

	// What segments know of its id; unsure is why they cannot tell.
	past   past
	unsure error
	asked  []*segment // which segments that is about
}

// declares says whether an id is one by which a decision goes on.
func declares(id string) bool {
	words := strings.Split(id, " ")
	if len(words) != 6 || words[0] != "adopt" && words[0] != "restore" || words[3] != "over" {
		return false
	}
	var d Digest
	return d.UnmarshalText([]byte(words[2])) == nil && d.UnmarshalText([]byte(words[5])) == nil
}

// prepare checks a change and copies what it holds. It needs no lock, so callers do
// their hashing side by side.
func (c *Change) prepare(l *Limits) (*prepared, error) {
	if c.err != nil {
		return nil, &Error{Kind: ErrInvalid, Cause: contained{c.err}}
	}
	p := &prepared{}
	p.empty = c.ID == "" && len(c.Entries)+len(c.Put)+len(c.Delete) == 0
	if c.Expect != nil {
		v := *c.Expect
		p.expect = &v
	}
	if c.ID != "" {
		if err := checkID(c.ID); err != nil {
			return nil, err
		}
		if !c.declares && declares(c.ID) {
			return nil, invalid("id %q is one by which pawl says that history was given up", c.ID)
		}
	}
	total := int64(0)
	for i, e := range c.Entries {
		if int64(len(e)) > l.Entry {
			return nil, tooLarge("entry %d has %d bytes, and Limits.Entry is %d", i, len(e), l.Entry)
		}
		total += 4 + int64(len(e))
	}
	for name, b := range c.Put {
		if err := checkPart(name); err != nil {
			return nil, err
		}
		if int64(len(b)) > l.Part {
			return nil, tooLarge("part %q has %d bytes, and Limits.Part is %d", name, len(b), l.Part)
		}
		total += int64(len(name) + len(b))
	}
	for _, name := range c.Delete {
		total += int64(len(name))
	}
	if total > l.Commit {
		return nil, tooLarge("the change has %d bytes, and Limits.Commit is %d", total, l.Commit)
	}
	r := &p.record
	r.id, r.schema, r.program = c.ID, c.schema, c.program
	for _, name := range c.Delete {
		if err := checkPart(name); err != nil {
			return nil, err
		}
		if _, ok := c.Put[name]; ok {
			return nil, invalid("part %q is both put and deleted", name)
		}
	}
	r.deleted = slices.Compact(slices.Sorted(slices.Values(c.Delete)))
	for _, name := range slices.Sorted(maps.Keys(c.Put)) {
		b := bytes.Clone(c.Put[name])
		p.data = append(p.data, b)
		r.put = append(r.put, partRef{name, uint64(len(b)), sha256.Sum256(b)})
	}
	r.entries = c.Entries
	r.encode()
	// Digested is the copy: the caller may change what it was made from.
	r.entriesDigest = digestEntries(r.entries)
	copy(r.raw[atEntriesDigest:], r.entriesDigest[:])
	return p, nil
}
