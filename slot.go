package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// The trust file is a ring of four slots of 4 KiB, plain text, so that a person
// can read it. The record with the highest sequence number among the whole ones
// counts; it stands in slot (sequence mod 4). A slot looks like this, padded with
// spaces and one line feed at its end:
//
//	pawl-trust 1 0 0 0
//	store 3f0c2a9d5e6b47188a90c1d2e3f40516
//	sequence 42
//	confirmed 17 17 0 sha256:…
//	history sha256:…
//	pending 18 18 0 sha256:…
//	commits 1 "fetch-18"
//	state open
//	path "/home/ada/agent/session"
//	sum sha256:…
//
// The first line is the format version and three sets of flags: compatible,
// read-only-compatible, incompatible. "confirmed" and "pending" say revision,
// epoch, journal length in bytes and disk digest; "confirmed 0" alone is the empty
// store, which has no "history" line. "history" is the history digest of the
// confirmed state. "pending" and "commits" (how many the intent holds, and the ids
// that fit) are there only while an intent is. "state closed" means that the last
// writer closed the store. "path" is where the store was created, for messages
// only. "sum" is the SHA-256 of all lines above it; the first line and this one
// keep their meaning in every version.
const (
	slotSize  = 4096
	slotCount = 4
	ringSize  = slotSize * slotCount

	trustMagic  = "pawl-trust"
	maxPathText = 1200 // quoted bytes of the path
	maxIDsText  = 1500 // quoted bytes of the ids of a pending commit
)

// trustRecord is what one slot says.
type trustRecord struct {
	compatible uint32 // flags that this program may not know
	store      storeID
	sequence   uint64
	confirmed  Root
	history    Digest // of the confirmed state; zero with the empty one
	pending    Root   // zero: no intent
	commits    int    // how many the intent holds
	ids        []string
	closed     bool
	path       string // quoted
}

func (r *trustRecord) intent() bool { return r.pending != Root{} }

// quotePath makes a path fit for a slot: printable, and not too long.
func quotePath(path string) string {
	q := strconv.QuoteToASCII(path)
	for n := len(path); len(q) > maxPathText; n -= 1 + n/16 {
		q = strconv.QuoteToASCII(path[:n] + "…")
	}
	return q
}

// quoteIDs returns the quoted ids that fit in a slot, each with a space before it.
func quoteIDs(ids []string) string {
	var b strings.Builder
	for _, id := range ids {
		q := " " + strconv.QuoteToASCII(id)
		if b.Len()+len(q) > maxIDsText {
			break
		}
		b.WriteString(q)
	}
	return b.String()
}

func (r Root) line() string {
	if r == (Root{}) {
		return "0"
	}
	return fmt.Sprintf("%d %d %d %s", r.Revision, r.Epoch, r.Journal, r.Digest)
}

// encode returns the slot that says r.
func (r *trustRecord) encode() []byte {
	b := bytes.NewBuffer(make([]byte, 0, slotSize))
	fmt.Fprintf(b, "%s %d %d 0 0\n", trustMagic, formatVersion, r.compatible)
	fmt.Fprintf(b, "store %x\n", r.store[:])
	fmt.Fprintf(b, "sequence %d\n", r.sequence)
	fmt.Fprintf(b, "confirmed %s\n", r.confirmed.line())
	if r.confirmed != (Root{}) {
		fmt.Fprintf(b, "history %s\n", r.history)
	}
	if r.intent() {
		fmt.Fprintf(b, "pending %s\n", r.pending.line())
		fmt.Fprintf(b, "commits %d%s\n", r.commits, quoteIDs(r.ids))
	}
	b.WriteString("state " + map[bool]string{false: "open", true: "closed"}[r.closed] + "\n")
	b.WriteString("path " + r.path + "\n")
	fmt.Fprintf(b, "sum %s\n", Digest(sha256.Sum256(b.Bytes())))
	b.Write(blankSlot[min(b.Len(), slotSize):])
	return b.Bytes()
}

// blankSlot is a slot that nothing was written to.
var blankSlot = append(bytes.Repeat([]byte{' '}, slotSize-1), '\n')

// decodeSlot reads one slot and refuses what would not be written the same again.
func decodeSlot(b []byte) (trustRecord, error) {
	var r trustRecord
	text, sum, ok := strings.Cut(string(b), "\nsum ")
	if !ok || !strings.HasPrefix(text, trustMagic+" ") {
		return r, errorString("it is not a trust record")
	}
	text += "\n"
	var want Digest
	line, _, _ := strings.Cut(sum, "\n")
	if want.UnmarshalText([]byte(line)) != nil || want != sha256.Sum256([]byte(text)) {
		return r, errorString("its checksum does not match")
	}
	var version, readonly, incompatible uint32
	first, text, _ := strings.Cut(text, "\n")
	if n, err := fmt.Sscanf(first, trustMagic+" %d %d %d %d", &version, &r.compatible, &readonly, &incompatible); n != 4 || err != nil {
		return r, errorString("its first line is not that of a trust record")
	}
	if version != formatVersion || readonly|incompatible != 0 {
		return r, newerFormat("trust file", version, readonly, incompatible)
	}
	for text != "" {
		line, text, _ = strings.Cut(text, "\n")
		if err := r.decodeLine(line); err != nil {
			return r, fmt.Errorf("line %q: %w", clip(line, 80), err)
		}
	}
	if !bytes.Equal(r.encode(), b) {
		return r, errorString("it is not written as a trust record is")
	}
	return r, nil
}

func (r *trustRecord) decodeLine(line string) error {
	key, value, _ := strings.Cut(line, " ")
	switch key {
	case "store":
		id, err := hex.DecodeString(value)
		if err != nil || copy(r.store[:], id) != len(r.store) {
			return errorString("not a store id")
		}
		return nil
	case "sequence":
		var err error
		r.sequence, err = strconv.ParseUint(value, 10, 64)
		return err
	case "confirmed":
		if value == "0" {
			return nil
		}
		return r.confirmed.scan(value)
	case "history":
		return r.history.UnmarshalText([]byte(value))
	case "pending":
		return r.pending.scan(value)
	case "commits":
		return r.scanIDs(value)
	case "state":
		r.closed = value == "closed"
		return nil
	case "path":
		r.path = value
		path, err := strconv.Unquote(value)
		if err == nil && strconv.QuoteToASCII(path) != value {
			err = errorString("not quoted as a path is")
		}
		return err
	}
	return errorString("unknown")
}

func (r *Root) scan(s string) error {
	var digest string
	if _, err := fmt.Sscanf(s, "%d %d %d %s", &r.Revision, &r.Epoch, &r.Journal, &digest); err != nil {
		return err
	}
	return r.Digest.UnmarshalText([]byte(digest))
}

func (r *trustRecord) scanIDs(s string) error {
	count, rest, _ := strings.Cut(s, " ")
	var err error
	if r.commits, err = strconv.Atoi(count); err != nil {
		return err
	}
	for rest != "" {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return err
		}
		id, err := strconv.Unquote(quoted)
		if err != nil {
			return err
		}
		if err := checkID(id); err != nil {
			return plain(err)
		}
		r.ids = append(r.ids, id)
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	return nil
}
