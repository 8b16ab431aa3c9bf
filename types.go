package pawl

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Revision is the number of the commit that made a state. 0 is the empty store;
// numbers rise by one and are never used again.
type Revision uint64

// Seq numbers the entries of a store's history from 1. Numbers rise by one and
// are never used again.
type Seq uint64

// Digest is a SHA-256. It prints as "sha256:" and 64 hexadecimal digits.
type Digest [sha256.Size]byte

const digestPrefix = "sha256:"

func (d Digest) String() string { return string(d.append(nil)) }

func (d Digest) append(b []byte) []byte { return hex.AppendEncode(append(b, digestPrefix...), d[:]) }

// MarshalText implements encoding.TextMarshaler in the form of String.
func (d Digest) MarshalText() ([]byte, error) { return d.append(nil), nil }

// UnmarshalText accepts exactly what MarshalText makes.
func (d *Digest) UnmarshalText(text []byte) error {
	var got Digest
	h, ok := strings.CutPrefix(string(text), digestPrefix)
	if !ok || len(h) != 2*len(got) || strings.ToLower(h) != h {
		return parseError("digest %q: want sha256: and 64 lower-case hexadecimal digits", clip(string(text), 80))
	}
	if _, err := hex.Decode(got[:], []byte(h)); err != nil {
		return parseError("digest %q: %v", clip(string(text), 80), err)
	}
	*d = got
	return nil
}

// Version names a state: the commit that made it, and the digest of all history
// up to it. Two states with equal versions have the same history and, commit for
// commit, the same parts. Publishing a store anew does not change its version.
type Version struct {
	Revision Revision `json:"revision"`
	Digest   Digest   `json:"digest"` // history digest
}

func (v Version) String() string { return fmt.Sprintf("%d %s", v.Revision, v.Digest) }

// Receipt is the proof of one commit. It marshals to text, so that a caller can
// keep it elsewhere and later ask View.Contains whether the commit is still part
// of the history; Replayed is not part of that text.
type Receipt struct {
	Version                // the state that the commit made
	FirstSeq, LastSeq Seq  // its entries; both 0 when it has none
	Replayed          bool // an earlier commit with the same id is acknowledged again
}

const receiptPrefix = "pawl1"

// String returns the text of MarshalText.
func (r Receipt) String() string {
	return fmt.Sprintf("%s.%d.%d.%d.%x", receiptPrefix, r.Revision, r.FirstSeq, r.LastSeq, r.Digest[:])
}

// MarshalText implements encoding.TextMarshaler: "pawl1", revision, first and
// last seq and the history digest in hexadecimal, joined by dots.
func (r Receipt) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText accepts exactly what MarshalText makes.
func (r *Receipt) UnmarshalText(text []byte) error {
	var got Receipt
	f := strings.Split(string(text), ".")
	ok := len(f) == 5 && f[0] == receiptPrefix
	var n [3]uint64
	for i := 0; ok && i < len(n); i++ {
		var err error
		n[i], err = strconv.ParseUint(f[i+1], 10, 64)
		ok = err == nil
	}
	if ok {
		got.Revision, got.FirstSeq, got.LastSeq = Revision(n[0]), Seq(n[1]), Seq(n[2])
		d, err := hex.DecodeString(f[4])
		ok = err == nil && copy(got.Digest[:], d) == len(got.Digest)
	}
	if !ok || got.String() != string(text) {
		return parseError("receipt %q is not the text of one", clip(string(text), 120))
	}
	*r = got
	return nil
}

// Root is what a trust record says of one state: which commit made it, how many
// times the bundle had been published, how much of the journal belongs to it, and
// the disk digest. With no journal, Digest is what sha256sum prints for the file
// "bundle". The zero Root is the empty store.
type Root struct {
	Revision Revision `json:"revision"`
	Epoch    uint64   `json:"epoch"`
	Journal  int64    `json:"journal"` // bytes
	Digest   Digest   `json:"digest"`  // disk digest
}

func (r Root) short() string {
	return fmt.Sprintf("revision %d %.15s…", r.Revision, r.Digest.String())
}

// Entry is one record of history.
type Entry struct {
	Seq      Seq
	Revision Revision // of the commit that appended it
	Data     []byte   // the caller's to keep
}

// CommitInfo describes one commit of the history.
type CommitInfo struct {
	Version           Version // the state that the commit made
	ID                string
	Time              time.Time // by the writer's clock; nothing is decided by it
	FirstSeq, LastSeq Seq       // both 0 when it has no entries
	Put               []string  // parts replaced, sorted
	Deleted           []string  // parts removed, sorted
	Schema            int       // Options.Schema of who made it; 0 when not said
	Program           string    // Options.Program likewise; "" when not said
	Dropped           bool      // retention has dropped its entries
}

// Outcome is what Lookup can say of a commit.
type Outcome int

const (
	// OutcomeUnknown: the commit is being made, or the store is in doubt, and the
	// commit may be what it is in doubt about.
	OutcomeUnknown Outcome = iota
	// OutcomeCommitted: the commit is part of the history.
	OutcomeCommitted
	// OutcomeNotCommitted: no commit with that id is part of the history, and none
	// that was begun can come to be.
	OutcomeNotCommitted
	// OutcomeForgotten: there was a commit with that id, and retention has dropped all
	// but that (Policy.ForgetBefore). There is no receipt.
	OutcomeForgotten
)

func (o Outcome) String() string {
	switch o {
	case OutcomeUnknown:
		return "unknown"
	case OutcomeCommitted:
		return "committed"
	case OutcomeNotCommitted:
		return "not committed"
	case OutcomeForgotten:
		return "forgotten"
	}
	return "outcome " + strconv.Itoa(int(o))
}

func parseError(format string, args ...any) error {
	e := invalid(format, args...)
	e.Op = "parse"
	return e
}

// clip shortens text that came from outside before it goes into a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}
