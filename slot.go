package pawl

import (
	"bytes"
	"cmp"
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
//	next 212
//	state open
//	path "/home/ada/agent/session"
//	sum sha256:…
//
// The first line is the format version and three sets of flags: compatible,
// read-only-compatible, incompatible. "confirmed" and "pending" say revision,
// epoch, journal length in bytes and disk digest; "confirmed 0" alone is the empty
// store, which has no "history" line. "history" is the history digest of the
// confirmed state. "pending" and "commits" (how many the intent holds, and the ids
// that fit) are there only while an intent is. "next" is the next seq after the newest
// state that the record names: whoever gives that state up goes on from there, though
// nobody can read it any more. Records of the empty store, and old ones, are without. "state closed" means that the last
// writer closed the store, "state removing" and "state renaming" that somebody has begun to. "path" is where the store was created, for messages
// only. "sum" is the SHA-256 of all lines above it; the first line and this one
// keep their meaning in every version.
const (
	slotSize  = 4096
	slotCount = 4
	ringSize  = slotSize * slotCount

	trustMagic    = "pawl-trust"
	stateRemoving = "removing"
	stateRenaming = "renaming"

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
	next       Seq // after the newest state that is named; 0: not said
	closed     bool
	ending     string // "removing" or "renaming": somebody has begun to, and nobody else is to use the store
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

// appendLine appends a root as it stands in a slot.
func (r Root) appendLine(b []byte) []byte {
	if r == (Root{}) {
		return append(b, '0')
	}
	b = append(strconv.AppendUint(b, uint64(r.Revision), 10), ' ')
	b = append(strconv.AppendUint(b, r.Epoch, 10), ' ')
	b = append(strconv.AppendInt(b, r.Journal, 10), ' ')
	return r.Digest.append(b)
}

// encode returns the slot that says r.
func (r *trustRecord) encode() []byte { return r.appendSlot(make([]byte, 0, slotSize)) }

// appendSlot appends the slot that says r to no bytes. Each commit does so twice, hence
// without package fmt.
func (r *trustRecord) appendSlot(b []byte) []byte {
	b = append(append(b, trustMagic...), ' ')
	b = append(strconv.AppendUint(b, formatVersion, 10), ' ')
	b = append(strconv.AppendUint(b, uint64(r.compatible), 10), " 0 0\n"...)
	b = append(hex.AppendEncode(append(b, "store "...), r.store[:]), '\n')
	b = append(strconv.AppendUint(append(b, "sequence "...), r.sequence, 10), '\n')
	b = append(r.confirmed.appendLine(append(b, "confirmed "...)), '\n')
	if r.confirmed != (Root{}) {
		b = append(r.history.append(append(b, "history "...)), '\n')
	}
	if r.intent() {
		b = append(r.pending.appendLine(append(b, "pending "...)), '\n')
		b = strconv.AppendInt(append(b, "commits "...), int64(r.commits), 10)
		b = append(append(b, quoteIDs(r.ids)...), '\n')
	}
	if r.next != 0 {
		b = append(strconv.AppendUint(append(b, "next "...), uint64(r.next), 10), '\n')
	}
	state := "open"
	if r.closed {
		state = "closed"
	}
	if r.ending != "" {
		state = r.ending
	}
	b = append(append(append(b, "state "...), state...), '\n')
	b = append(append(append(b, "path "...), r.path...), '\n')
	sum := Digest(sha256.Sum256(b))
	b = append(sum.append(append(b, "sum "...)), '\n')
	return append(b, blankSlot[min(len(b), slotSize):]...)
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
	f := strings.Split(first, " ")[1:]
	ok = len(f) == 4
	for i, n := range []*uint32{&version, &r.compatible, &readonly, &incompatible} {
		if ok {
			v, err := strconv.ParseUint(f[i], 10, 32)
			*n, ok = uint32(v), err == nil
		}
	}
	if !ok {
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
	case "next":
		n, err := strconv.ParseUint(value, 10, 64)
		r.next = Seq(n)
		return err
	case "state":
		switch value {
		case "closed":
			r.closed = true
		case stateRemoving, stateRenaming:
			r.ending = value
		}
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
	f := strings.Split(s, " ")
	if len(f) != 4 {
		return errorString("not revision, epoch, length and digest")
	}
	revision, err1 := strconv.ParseUint(f[0], 10, 64)
	epoch, err2 := strconv.ParseUint(f[1], 10, 64)
	journal, err3 := strconv.ParseInt(f[2], 10, 64)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return err
	}
	if journal < 0 {
		return errorString("a negative length")
	}
	r.Revision, r.Epoch, r.Journal = Revision(revision), epoch, journal
	return r.Digest.UnmarshalText([]byte(f[3]))
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
