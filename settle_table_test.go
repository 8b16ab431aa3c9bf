//go:build unix || windows

package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// grown is a state with the one that it grew from; nil is the empty store. What is
// whose ancestor is known from here, and not from any digest.
type grown struct {
	parent *grown
	st     *state
	raw    []byte // the bundle that it was published in; nil when it was not

	// For a state that is in a journal.
	base   *grown // whose bundle the journal goes with
	file   []byte // the journal, as far as it belongs to the state
	at     int64  // where its frame begins
	end    int64  // where its frame ends
	digest Digest
}

func (g *grown) root() Root {
	switch {
	case g == nil:
		return Root{}
	case g.base != nil:
		return Root{Revision: g.st.version().Revision, Epoch: g.base.st.epoch, Journal: int64(len(g.file)), Digest: g.digest}
	}
	return Root{Revision: g.st.version().Revision, Epoch: g.st.epoch, Digest: sha256.Sum256(g.raw)}
}

// bundle is the state in the bundle on disk when g is the newest one.
func (g *grown) bundle() *grown {
	if g.base != nil {
		return g.base
	}
	return g
}

// descendsFrom says whether the commits that made g begin with those that made old. A
// state that was published anew is later than it was before.
func (g *grown) descendsFrom(old *grown) bool {
	is, was := idsSince(nil, g), []string(nil)
	if old != nil {
		was = idsSince(nil, old)
	}
	if len(is) == len(was) {
		return slices.Equal(is, was) && g.root().Epoch > old.root().Epoch
	}
	return len(is) > len(was) && slices.Equal(is[:len(was)], was)
}

// grow makes the state that one more commit makes of g, published.
func grow(id storeID, g *grown, what string) *grown {
	before, replaced := emptyState(id, wide), Digest{}
	if g != nil {
		before, replaced = g.st, g.root().Digest
	}
	r, data := commitOn(before, what)
	st := after(apart(before), r, data, replaced)
	return &grown{parent: g, st: st, raw: encodeBundle(st)}
}

// checkpointed is the state g in a bundle of its own.
func checkpointed(g *grown) *grown {
	st := apart(g.st).published(g.root().Digest)
	return &grown{parent: g, st: st, raw: encodeBundle(st)}
}

// tableJournal is the size of the journals here.
const tableJournal = 5 * blockSize

// extended makes the state that one more commit makes of g, in the journal: in a batch
// of its own, or in that of g.
func extended(g *grown, what string, sameBatch bool) *grown {
	base, before := g.bundle(), g.digest
	file := slices.Clip(g.file)
	switch {
	case g.base == nil:
		header := journalHeader(g.st.id, g.root(), g.st.end(), tableJournal)
		before = extendDigest(sha256.New(), g.root().Digest, header)
		file = append(header, make([]byte, blockSize-len(header))...)
	case sameBatch:
		file = bytes.Clone(file[:g.end])
	}
	r, data := commitOn(g.st, what)
	n := &grown{parent: g, base: base, at: roundUp(int64(len(file)), frameAlign)}
	next := apart(g.st).grow()
	next.add(r, data)
	n.st = &next.state
	n.file, n.digest = appendFrame(file, sha256.New(), before, r, data)
	n.end = int64(len(n.file))
	n.file = append(n.file, make([]byte, roundUp(n.end, blockSize)-n.end)...)
	return n
}

// whole is the journal file of g.
func (g *grown) whole() []byte {
	return append(bytes.Clone(g.file), make([]byte, tableJournal-len(g.file))...)
}

func commitOn(before *state, what string) (*record, [][]byte) {
	c := Change{ID: what, Entries: [][]byte{[]byte(what)}, Put: map[string][]byte{"state": []byte(what)}}
	p, err := c.prepare(&Limits{Entry: 1 << 20, Part: 1 << 20, Commit: 1 << 20})
	if err != nil {
		panic(err)
	}
	r := p.record
	r.revision = before.version().Revision + 1
	r.firstSeq = before.nextSeq()
	r.time = goldenTime.UnixNano()
	r.seal(before.version().Digest)
	return &r, p.data
}

// apart is a copy of a state that does not share the array which both the state and a
// fork of it would append to.
func apart(s *state) *state {
	c := *s
	c.records = slices.Clip(slices.Clone(s.records))
	return &c
}

// The states that the table is about. O is the old one and N the new one of a commit
// in the middle of a history, A the new one of a first commit.
var (
	tableID, foreignID = storeID{1, 2, 3}, storeID{9, 9, 9}

	stateA  = grow(tableID, nil, "one")
	state2  = grow(tableID, stateA, "two")
	stateO  = grow(tableID, state2, "three")
	stateN  = grow(tableID, stateO, "four")
	state5  = grow(tableID, stateN, "five")
	state7  = grow(tableID, grow(tableID, state5, "six"), "seven")
	forkA   = grow(tableID, nil, "one, otherwise")
	forkO   = grow(tableID, state2, "three, otherwise")
	forkN   = grow(tableID, stateO, "four, otherwise")
	onForkO = grow(tableID, forkO, "four")

	foreignA = grow(foreignID, nil, "one")
	foreignO = grow(foreignID, grow(foreignID, foreignA, "two"), "three")
	foreignN = grow(foreignID, foreignO, "four")

	// The same in a journal beside the bundle of 2: jO and jN are the states of three
	// and four commits, pN is four on top of jO, published, and cO is jO, published.
	jO       = extended(state2, "three", false)
	jN       = extended(jO, "four", false)
	jN2      = extended(jO, "four", true) // in one batch with three
	j5       = extended(jN, "five", false)
	jForkO   = extended(state2, "three, otherwise", false)
	jForkN   = extended(jO, "four, otherwise", false)
	pN       = grow(tableID, jO, "four")
	cO       = checkpointed(jO)
	jA       = extended(stateA, "two", false)
	jOn3     = extended(stateO, "four", false)
	foreign2 = grow(foreignID, foreignA, "two")
	jForeign = extended(foreign2, "three", false)

	tableStates = []*grown{stateA, state2, stateO, stateN, state5, state7, forkA, forkO, forkN, onForkO,
		jO, jN, jN2, j5, jForkO, jForkN, pN, cO, jA}
)

// diskRow is something that may be in the store directory.
type diskRow struct {
	name  string
	whole *grown // the newest state that is whole
	files map[string][]byte
	dirs  []string
	tail  tail // what is to be said of the journal that goes with the bundle

	noDir  bool // there is no store directory
	noLock bool // there is no lock file in it
	temps  bool // of killed processes, in both directories, with what only looks like one
}

// tail describes a journal, or something in its place.
type tail struct {
	steps     []*grown // whole, from the bundle on
	flaw      int64    // where something is wrong; 0: nowhere, or it is all wrong
	wrong     bool     // something is, at flaw
	used      int64    // where the last byte that is not zero ends
	there     bool
	empty     bool // it is a file of no bytes
	irregular bool // it is no file
	apart     bool // it goes with another bundle of the store
	foreign   bool // it is another store's
	later     bool // there is also one of a later epoch
}

func bundleRow(name string, raw []byte) diskRow {
	return diskRow{name: name, files: map[string][]byte{bundleName: raw}}
}

func wholeRow(name string, g *grown) diskRow {
	d := bundleRow(name, g.raw)
	d.whole = g
	return d
}

func diskRows() []diskRow {
	withJournal := wholeRow("O-and-a-journal", stateO)
	withJournal.files["journal.000000000003"] = []byte("pawljrnl")
	withJournal.tail = tail{there: true, wrong: true, used: 8}
	oTemps, nTemps := wholeRow("O-and-temps", stateO), wholeRow("N-and-temps", stateN)
	oTemps.temps, nTemps.temps = true, true
	return []diskRow{
		{name: "nothing"},
		{name: "no-directory", noDir: true},
		{name: "no-lock-file", noLock: true},
		{name: "temps", temps: true},
		bundleRow("zero-length", nil),
		wholeRow("A", stateA),
		wholeRow("fork-of-A", forkA),
		wholeRow("2", state2),
		wholeRow("O", stateO),
		wholeRow("fork-of-O", forkO),
		wholeRow("N", stateN),
		wholeRow("fork-of-N", forkN),
		wholeRow("on-fork-of-O", onForkO),
		wholeRow("5", state5),
		wholeRow("7", state7),
		wholeRow("foreign-A", foreignA),
		wholeRow("foreign-O", foreignO),
		wholeRow("foreign-N", foreignN),
		bundleRow("O-flipped", flipped(stateO.raw, headerSize+30)),
		bundleRow("O-sum-flipped", flipped(stateO.raw, -1)),
		bundleRow("O-header-flipped", flipped(stateO.raw, 60)),
		bundleRow("O-cut", stateO.raw[:len(stateO.raw)-1]),
		bundleRow("O-cut-to-header", stateO.raw[:headerSize]),
		bundleRow("O-cut-in-header", stateO.raw[:headerSize-1]),
		bundleRow("O-and-a-byte", append(bytes.Clone(stateO.raw), 0)),
		bundleRow("N-flipped", flipped(stateN.raw, headerSize+30)),
		bundleRow("N-cut", stateN.raw[:len(stateN.raw)/2+headerSize/2]),
		bundleRow("foreign-flipped", flipped(foreignO.raw, headerSize+30)),
		bundleRow("zeros", make([]byte, 4096)),
		bundleRow("text", []byte("{}\n")),
		bundleRow("newer-format", newerBundle(stateO.raw)),
		{name: "directory", dirs: []string{bundleName}},
		{name: "journal", files: map[string][]byte{"journal.000000000003": []byte("pawljrnl")}},
		withJournal, oTemps, nTemps,
	}
}

// journalRow is the bundle of 2 with that file beside it.
func journalRow(name string, file []byte, steps ...*grown) diskRow {
	d := wholeRow(name, state2)
	d.files["journal.000000000002"] = file
	d.tail = tail{there: true, empty: len(file) == 0, steps: steps, used: usedBytes(file)}
	if len(steps) > 0 {
		d.whole = lastOf(steps)
	}
	return d
}

// wrongRow is one with a flaw in the journal.
func wrongRow(name string, file []byte, flaw int64, steps ...*grown) diskRow {
	d := journalRow(name, file, steps...)
	d.tail.wrong, d.tail.flaw = true, flaw
	return d
}

// with is the row with another file in the store directory.
func (d diskRow) with(name string, b []byte) diskRow {
	d.files = maps.Clone(d.files)
	d.files[name] = b
	return d
}

func journalRows() []diskRow {
	ones := bytes.Repeat([]byte{0xff}, blockSize)
	half := jN.at + (jN.end-jN.at)/2 // of the frame of N
	later := journalRow("jO-and-a-later", jO.whole(), jO).with("journal.000000000003", jOn3.whole())
	later.tail.later = true
	onlyLater := wholeRow("only-a-later", state2).with("journal.000000000003", jOn3.whole())
	onlyLater.tail.later = true
	dir := wholeRow("directory", state2)
	dir.dirs = []string{"journal.000000000002"}
	dir.tail = tail{there: true, irregular: true}
	of := func(d diskRow, set func(*tail)) diskRow {
		set(&d.tail)
		return d
	}
	others, foreign := func(t *tail) { t.apart = true }, func(t *tail) { t.foreign = true }
	return []diskRow{
		wholeRow("none", state2),
		journalRow("jO", jO.whole(), jO),
		journalRow("jN", jN.whole(), jO, jN),
		journalRow("j5", j5.whole(), jO, jN, j5),
		journalRow("fork-of-jO", jForkO.whole(), jForkO),
		journalRow("fork-of-jN", jForkN.whole(), jO, jForkN),
		wholeRow("pN", pN),
		wholeRow("pN-and-jO", pN).with("journal.000000000002", jO.whole()),
		wholeRow("cO", cO),
		wholeRow("cO-and-jO", cO).with("journal.000000000002", jO.whole()),
		wholeRow("A", stateA),
		of(wholeRow("A-and-jO", stateA).with("journal.000000000002", jO.whole()), func(t *tail) { t.later = true }),
		wrongRow("torn-jN", patched(jN.whole(), int(half), make([]byte, blockSize)...), jN.at, jO),
		wrongRow("ones-for-jN", patched(jO.whole(), 8192, ones...), 8192, jO),
		wrongRow("end-of-jN's-block", patched(jO.whole(), 12287, 1), 8192, jO),
		wrongRow("byte-after-jN's-block", patched(jO.whole(), 12288, 1), 8192, jO),
		wrongRow("jN-and-a-byte", patched(jN.whole(), 12288, 1), 12288, jO, jN),
		wrongRow("padding", patched(jO.whole(), 8191, 1), roundUp(jO.end, frameAlign), jO),
		wrongRow("padding-begins", patched(jO.whole(), int(jO.end), 1), jO.end, jO),
		journalRow("frame-in-padding", jN2.whole(), jO, jN2),
		wrongRow("jO-flipped", flipped(jO.whole(), 4096+60), 4096),
		wrongRow("jO-length-flipped", flipped(jO.whole(), 4096), 4096),
		wrongRow("header-flipped", flipped(jO.whole(), 60), 0),
		wrongRow("after-header", patched(jO.whole(), 256, 1), 0),
		wrongRow("before-frames", patched(jO.whole(), 4095, 1), 0),
		wrongRow("zeros", make([]byte, tableJournal), 0),
		wrongRow("empty", []byte{}, 0),
		journalRow("header-and-zeros", patched(jO.whole(), 4096, make([]byte, 4096)...)),
		wrongRow("hole", patched(jN.whole(), 4096, make([]byte, 4096)...), 4096),
		wrongRow("cut-to-jO", jO.file, 0),
		wrongRow("cut-in-header", jO.file[:100], 0),
		wrongRow("a-block-more", append(jO.whole(), make([]byte, blockSize)...), 0),
		wrongRow("a-byte-more", append(jO.whole(), 0), 0),
		of(wrongRow("other-bundle's", jA.whole(), 0), others),
		of(wrongRow("other-epoch's", jOn3.whole(), 0), others),
		of(wrongRow("other-store's", jForeign.whole(), 0), foreign),
		later, onlyLater,
		journalRow("jO-and-an-earlier", jO.whole(), jO).with("journal.000000000001", jA.whole()),
		journalRow("jO-and-other-names", jO.whole(), jO).with("journal.1", nil).with("journal.bak", nil),
		dir,
		{name: "newer-format", files: map[string][]byte{bundleName: state2.raw, "journal.000000000002": newerJournal(jO.whole())}},
		bundleRow("2-flipped-and-jO", flipped(state2.raw, headerSize+30)).with("journal.000000000002", jO.whole()),
		bundleRow("zero-length-and-jO", nil).with("journal.000000000002", jO.whole()),
		{name: "jO-and-no-bundle", files: map[string][]byte{"journal.000000000002": jO.whole()}},
	}
}

// newerJournal is a journal with a flag that this program does not know.
func newerJournal(raw []byte) []byte {
	b := bytes.Clone(raw)
	b[20] = 2
	binary.LittleEndian.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli))
	return b
}

// newerBundle is a bundle with a flag that this program does not know.
func newerBundle(raw []byte) []byte {
	b := bytes.Clone(raw)
	b[20] = 4
	for _, end := range []int{headerSize - 4, len(b) - 4} {
		binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
	}
	return b
}

// The table. What stands in it is what Open does: "create", "clean", "landed", "not"
// (not landed), or the classes that its error matches, and no others.
//
// An empty file is never a fresh one (R5, 2); one that pawl did not write is never
// touched (12); an unresolved intent stays (contract 4).
const settleTable = `
disk              no-trust   damaged  confirmed(0)  confirmed(O)  pending(0,A)          pending(O,N)

nothing           create     trust    clean         missing       not                   missing
no-directory      create     trust    clean         missing       not                   missing
no-lock-file      create     trust    clean         missing       not                   missing
temps             create     trust    clean         missing       not                   missing
zero-length       untrusted  trust    damaged       missing       unauthorized+damaged  missing
A                 untrusted  trust    behind        older         landed                older
fork-of-A         untrusted  trust    behind        older         unauthorized          older
2                 untrusted  trust    behind        older         unauthorized          older
O                 untrusted  trust    behind        clean         unauthorized          not
fork-of-O         untrusted  trust    behind        unauthorized  unauthorized          unauthorized
N                 untrusted  trust    behind        behind        unauthorized          landed
fork-of-N         untrusted  trust    behind        behind        unauthorized          unauthorized
on-fork-of-O      untrusted  trust    behind        unauthorized  unauthorized          unauthorized
5                 untrusted  trust    behind        behind        unauthorized          unauthorized
7                 untrusted  trust    behind        behind        unauthorized          unauthorized
foreign-A         untrusted  trust    foreign       foreign       unauthorized+foreign  unauthorized+foreign
foreign-O         untrusted  trust    foreign       foreign       unauthorized+foreign  unauthorized+foreign
foreign-N         untrusted  trust    foreign       foreign       unauthorized+foreign  unauthorized+foreign
O-flipped         untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
O-sum-flipped     untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
O-header-flipped  untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
O-cut             untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
O-cut-to-header   untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
O-cut-in-header   untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
O-and-a-byte      untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
N-flipped         untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
N-cut             untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
foreign-flipped   untrusted  trust    foreign       foreign       unauthorized+foreign  unauthorized+foreign
zeros             untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
text              untrusted  trust    damaged       damaged       unauthorized+damaged  unauthorized+damaged
newer-format      untrusted  trust    version       version       version               version
directory         untrusted  trust    unauthorized  unauthorized  unauthorized          unauthorized
journal           untrusted  trust    unauthorized  missing       unauthorized          missing
O-and-a-journal   untrusted  trust    behind        unauthorized  unauthorized          unauthorized
O-and-temps       untrusted  trust    behind        clean         unauthorized          not
N-and-temps       untrusted  trust    behind        behind        unauthorized          landed
`

// The table of what may stand in the place of the journal. Trust names the bundle of 2
// alone, or jO in the journal beside it; what is pending makes the journal (jO),
// extends it (jN), or publishes (pN, cO).
//
// Up to the length that trust names every byte counts, padding included. From there
// to the length of what is pending, under the same bundle, anything may be: what an
// append leaves that is cut off. Beyond that nothing may be. Zeros from a frame's
// beginning on are an older copy; a file that is not there, where trust names one, is
// that too, and missing. Where trust names none, a file of no bytes is none.
const journalTable = `
disk                   confirmed(2)  confirmed(jO)  pending(2,jO)  pending(jO,jN)        pending(jO,pN)        pending(jO,cO)

none                   clean         missing+older  not            missing+older         missing+older         missing+older
jO                     behind        clean          landed         not                   not                   not
jN                     behind        behind         unauthorized   landed                unauthorized          unauthorized
j5                     behind        behind         unauthorized   unauthorized          unauthorized          unauthorized
fork-of-jO             behind        unauthorized   unauthorized   unauthorized          unauthorized          unauthorized
fork-of-jN             behind        behind         unauthorized   not                   unauthorized          unauthorized
pN                     behind        behind         unauthorized   unauthorized          landed                unauthorized
pN-and-jO              behind        behind         unauthorized   unauthorized          landed                unauthorized
cO                     behind        behind         unauthorized   unauthorized          unauthorized          landed
cO-and-jO              behind        behind         unauthorized   unauthorized          unauthorized          landed
A                      older         older          older          older                 older                 older
A-and-jO               older         older          older          older                 older                 older
torn-jN                behind        unauthorized   unauthorized   not                   unauthorized          unauthorized
ones-for-jN            behind        unauthorized   unauthorized   not                   unauthorized          unauthorized
end-of-jN's-block      behind        unauthorized   unauthorized   not                   unauthorized          unauthorized
byte-after-jN's-block  behind        unauthorized   unauthorized   unauthorized          unauthorized          unauthorized
jN-and-a-byte          behind        behind         unauthorized   unauthorized          unauthorized          unauthorized
padding                behind        damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
padding-begins         behind        damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
frame-in-padding       behind        damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
jO-flipped             unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
jO-length-flipped      unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
header-flipped         unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
after-header           unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
before-frames          unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
zeros                  unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
empty                  clean         damaged        not            unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
header-and-zeros       unauthorized  older          unauthorized   older                 older                 older
hole                   unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
cut-to-jO              unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
cut-in-header          unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
a-block-more           unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
a-byte-more            unauthorized  damaged        unauthorized   unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
other-bundle's         unauthorized  unauthorized   unauthorized   unauthorized          unauthorized          unauthorized
other-epoch's          unauthorized  unauthorized   unauthorized   unauthorized          unauthorized          unauthorized
other-store's          foreign       foreign        unauthorized+foreign  unauthorized+foreign  unauthorized+foreign  unauthorized+foreign
jO-and-a-later         unauthorized  unauthorized   unauthorized   unauthorized          unauthorized          unauthorized
only-a-later           unauthorized  missing+older  unauthorized   missing+older         missing+older         missing+older
jO-and-an-earlier      behind        clean          landed         not                   not                   not
jO-and-other-names     behind        clean          landed         not                   not                   not
directory              unauthorized  unauthorized   unauthorized   unauthorized          unauthorized          unauthorized
newer-format           version       version        version        version               version               version
2-flipped-and-jO       damaged       damaged        unauthorized+damaged  unauthorized+damaged  unauthorized+damaged  unauthorized+damaged
zero-length-and-jO     missing       missing        missing        missing               missing               missing
jO-and-no-bundle       missing       missing        missing        missing               missing               missing
`

// outcomeClasses are the names of the table for the classes of errors.
var outcomeClasses = []struct {
	name string
	err  error
}{
	{"untrusted", ErrUntrusted}, {"trust", ErrTrustDamaged}, {"missing", ErrMissing}, {"older", ErrRolledBack},
	{"behind", ErrTrustBehind}, {"unauthorized", ErrUnauthorized}, {"foreign", ErrForeign}, {"damaged", ErrDamaged},
	{"version", ErrVersion}, {"not exist", ErrNotExist}, {"locked", ErrLocked}, {"unsupported", ErrUnsupported}, {"insecure", ErrInsecure},
	{"not committed", ErrNotCommitted}, {"in doubt", ErrInDoubt}, {"stale", ErrStale}, {"too large", ErrTooLarge}, {"invalid", ErrInvalid}, {"closed", ErrClosed},
}

func classesOf(err error) string {
	var classes []string
	for _, c := range outcomeClasses {
		if errors.Is(err, c.err) {
			classes = append(classes, c.name)
		}
	}
	if classes == nil {
		return fmt.Sprint("error: ", err)
	}
	return strings.Join(classes, "+")
}

// trustColumn is what the trust file may say.
type trustColumn struct {
	ring               []byte // nil: there is no trust file
	confirmed, pending *grown
	intent, closed     bool
}

func trustColumns() map[string]trustColumn {
	record := func(seq uint64, confirmed, pending *grown) trustRecord {
		r := trustRecord{store: tableID, sequence: seq, confirmed: confirmed.root(), path: quotePath("/where/it/was")}
		if confirmed != nil {
			r.history = confirmed.st.version().Digest
		}
		if pending != nil {
			r.pending = pending.root()
			r.ids = idsSince(confirmed, pending)
			r.commits = len(r.ids)
		} else {
			r.closed = true
		}
		return r
	}
	col := func(confirmed, pending *grown) trustColumn {
		rs := []trustRecord{record(41, confirmed, nil)}
		if pending != nil {
			rs = append(rs, record(42, confirmed, pending))
		}
		return trustColumn{ring: makeRing(rs...), confirmed: confirmed, pending: pending, intent: pending != nil, closed: pending == nil}
	}
	return map[string]trustColumn{
		"confirmed(2)":   col(state2, nil),
		"confirmed(jO)":  col(jO, nil),
		"pending(2,jO)":  col(state2, jO),
		"pending(jO,jN)": col(jO, jN),
		"pending(jO,pN)": col(jO, pN),
		"pending(jO,cO)": col(jO, cO),
		"pending(2,jN2)": col(state2, jN2),

		"no-trust":     {},
		"damaged":      {ring: make([]byte, ringSize)}, // zeros
		"confirmed(0)": col(nil, nil),
		"confirmed(O)": col(stateO, nil),
		"pending(0,A)": col(nil, stateA),
		"pending(O,N)": col(stateO, stateN),
	}
}

// idsSince are the ids of the commits that make pending of confirmed.
func idsSince(confirmed, pending *grown) (ids []string) {
	n := 0
	if confirmed != nil {
		n = len(confirmed.st.records)
	}
	for _, r := range pending.st.records[n:] {
		ids = append(ids, r.id)
	}
	return ids
}

const tableTemp = "tmp-0123456789abcdef"

// trustTemp is the one that the trust directory may hold for the store.
const trustTemp = "session.tmp-0000000000000000"

// notTemps only look like temps: too short, too long, upper case, another store's.
var notTemps = []string{"session/tmp-0123456789abcde", "session/tmp-0123456789abcdef0", "session/tmp-FEDCBA9876543210", "session/tmp-",
	"session/session." + tableTemp, "trust/" + tableTemp, "trust/other." + tableTemp, "trust/session." + tableTemp, "trust/session.tmp-0123456789abcdeg", "session/tmp-00000000000000ff/file"}

// lay puts a row's files and a column's trust file in place.
func (r *rig) lay(d diskRow, c trustColumn) {
	r.t.Helper()
	write := func(path string, b []byte) {
		path = filepath.Join(r.base, filepath.FromSlash(path))
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	owner := append(bytes.Repeat([]byte{' '}, ownerSize-1), '\n')
	write("trust/session.lock", owner)
	if c.ring != nil {
		write("trust/session.trust", c.ring)
	}
	if d.noDir {
		return
	}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	if !d.noLock {
		write("session/lock", owner)
	}
	for name, b := range d.files {
		write("session/"+name, b)
	}
	for _, name := range d.dirs {
		write("session/"+name+"/file", []byte("text"))
	}
	if d.temps {
		write("session/"+tableTemp, stateN.raw[:100])
		write("trust/"+trustTemp, nil)
		for _, name := range notTemps {
			write(name, []byte("not a temp"))
		}
	}
}

// identities tells a file that was written anew, or to, from one that was left alone.
func (r *rig) identities() map[string]fs.FileInfo {
	r.t.Helper()
	all := map[string]fs.FileInfo{}
	for _, dir := range []string{r.dir, r.trust} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && filepath.Base(path) != lockName && filepath.Ext(path) != lockSuffix {
				all[path], err = os.Lstat(path)
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			r.t.Fatal(err)
		}
	}
	return all
}

func touched(before, after map[string]fs.FileInfo) (names []string) {
	for path, b := range before {
		a, ok := after[path]
		if !ok || !os.SameFile(a, b) || !a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size() {
			names = append(names, filepath.Base(path))
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			names = append(names, filepath.Base(path))
		}
	}
	slices.Sort(names)
	return names
}

// TestSettleTable opens every combination of a trust file and a store directory.
func TestSettleTable(t *testing.T) { checkTable(t, settleTable, diskRows()) }

// TestSettleJournalTable does so with a journal beside the bundle.
func TestSettleJournalTable(t *testing.T) { checkTable(t, journalTable, journalRows()) }

// TestSettleBatch: the commits of a batch land together, or none of them does.
func TestSettleBatch(t *testing.T) {
	c := trustColumns()["pending(2,jN2)"]
	torn := patched(jN2.whole(), int(jN2.at)+50, make([]byte, 100)...)
	for _, tt := range []struct {
		d    diskRow
		want string
	}{
		{journalRow("both", jN2.whole(), jO, jN2), "landed"},
		{journalRow("the first", jO.whole(), jO), "unauthorized"},
		{wrongRow("the second torn", torn, jN2.at, jO), "unauthorized"},
		{wrongRow("the first torn", patched(jN2.whole(), 4096+50, 0, 0, 0, 0, 0, 0, 0), 4096), "unauthorized"},
		{wrongRow("the second alone", patched(jN2.whole(), 4096, make([]byte, jN2.at-4096)...), 4096), "unauthorized"},
		{journalRow("none", patched(jN2.whole(), 4096, make([]byte, 4096)...)), "unauthorized"},
		{journalRow("in two batches", jN.whole(), jO, jN), "unauthorized"},
	} {
		t.Run(tt.d.name, func(t *testing.T) { openCell(t, tt.d, c, tt.want) })
	}
}

func checkTable(t *testing.T, table string, disks []diskRow) {
	rows := map[string]diskRow{}
	for _, d := range disks {
		rows[d.name] = d
	}
	columns := trustColumns()
	lines := slices.DeleteFunc(strings.Split(table, "\n"), func(l string) bool { return l == "" })
	head := strings.Fields(lines[0])[1:]
	if len(head) != 6 || len(lines)-1 != len(rows) || len(rows) != len(disks) {
		t.Fatalf("the table has %d columns and %d rows; there are %d rows", len(head), len(lines)-1, len(rows))
	}
	for row, line := range lines[1:] {
		cells := strings.Fields(line)
		d, ok := rows[cells[0]]
		if !ok || len(cells) != len(head)+1 {
			t.Fatalf("no row: %q", line)
		}
		for i, name := range head {
			c, ok := columns[name]
			if !ok {
				t.Fatalf("no column: %q", name)
			}
			if onWindows && testing.Short() && (row+i)%4 != 0 {
				continue // a cell takes long under Wine, and what is tested is the same code
			}
			t.Run(cells[0]+"/"+name, func(t *testing.T) { openCell(t, d, c, cells[1+i]) })
		}
	}
}

func openCell(t *testing.T, d diskRow, c trustColumn, want string) {
	r := newRig(t)
	r.lay(d, c)
	defer func() { // some of what was laid looks like temps left behind
		if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(r.trust)); err != nil {
			t.Error(err)
		}
	}()
	before, identities := testkit.Snapshot(t, r.dir, r.trust), r.identities()

	// Inspect says beforehand what Open will do, and touches nothing.
	report, err := Inspect(r.ctx(), r.dir, r.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	said := report.Verdict
	switch said {
	case "not landed":
		said = "not"
	case "refuse":
		said = classesOf(report.Err)
	}
	if said != want {
		t.Errorf("Inspect: %s, want %s", said, want)
	}
	if calls := r.fs.Mutating(); len(calls) > 0 {
		t.Errorf("Inspect: %v", calls)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, r.dir, r.trust)); diff != "" {
		t.Errorf("Inspect changed something: %s", diff)
	}

	r.fs.Set(nil)
	s, err := r.open()
	if err == nil {
		r.checkSettled(d, c, s, identities, want)
		return
	}
	if got := classesOf(err); got != want {
		t.Errorf("Open: %s (%v), want %s", got, err, want)
	}
	var e, inspected *Error
	if !errors.As(err, &e) || e.Op != "open" || e.Hint == "" || !strings.HasPrefix(e.Path, r.base) || e.Outcome != nil {
		t.Errorf("no error of pawl, or without a hint: %#v", err)
	}
	if !errors.As(report.Err, &inspected) || inspected.Kind != e.Kind || inspected.Hint != e.Hint || fmt.Sprint(inspected.Cause) != fmt.Sprint(e.Cause) ||
		inspected.Trusted != e.Trusted || inspected.Pending != e.Pending || inspected.Found != e.Found {
		t.Errorf("Inspect and Open differ:\n%v\n%v", report.Err, err)
	}
	// The evidence: what trust says, and what is there.
	if c.ring != nil && want != "trust" && want != "version" {
		found := Root{}
		if d.whole != nil {
			found = d.whole.root()
		}
		if e.Trusted != c.confirmed.root() || e.Pending != c.pending.root() || d.whole != nil && e.Found != found {
			t.Errorf("evidence: %+v", e)
		}
	}
	if d.tail.wrong && !d.tail.apart && !d.tail.foreign && strings.Contains(want, "damaged") {
		says := fmt.Sprintf("journal.000000000002, at byte %d: ", d.tail.flaw)
		if !strings.Contains(err.Error(), says) || filepath.Base(e.Path) != "journal.000000000002" {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	after := testkit.Snapshot(t, r.dir, r.trust)
	if d.noLock {
		delete(after, filepath.Join(r.dir, lockName)) // it proves nothing
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("refused, and something changed: %s", diff)
	}
	if names := touched(identities, r.identities()); names != nil {
		t.Errorf("refused, and touched: %v", names)
	}
	for _, call := range r.fs.Mutating() {
		if call.Op != "OpenLock" && call.Op != "Sync" {
			t.Errorf("refused, and called %s", call)
		}
	}
	if _, again := r.open(); again == nil || again.Error() != err.Error() {
		t.Errorf("refused, and the next Open says another thing: %v", again)
	}
}

// checkSettled checks what an Open has made of what it found: the files, to the
// byte, and what the next one makes of that.
func (r *rig) checkSettled(d diskRow, c trustColumn, s *Store, identities map[string]fs.FileInfo, want string) {
	t := r.t
	t.Helper()
	rec := s.Recovery()
	got := map[Settlement]string{SettledNothing: "clean", SettledLanded: "landed", SettledNotLanded: "not"}[rec.Settled]
	if c.ring == nil {
		got = "create"
	}
	now := c.confirmed
	if want == "landed" {
		now = c.pending
	}
	id, version := s.state.Load().id, Version{Digest: genesis(s.state.Load().id)}
	if now != nil {
		version = now.st.version()
	}
	if got != want || s.View().Version() != version || c.ring != nil && id != tableID {
		t.Errorf("opened: %s at %s, want %s at %s", got, s.View().Version(), want, version)
	}
	wantRec := Recovery{Settled: rec.Settled, Confirmed: now.root(), Unclean: c.intent, Pending: c.pending.root()}
	if c.intent {
		wantRec.Commits = idsSince(c.confirmed, c.pending)
		wantRec.Count = len(wantRec.Commits)
	}
	if d.temps {
		wantRec.Swept = []string{tableTemp, trustTemp}
		if c.intent || c.ring == nil { // the trust file that was made has taken the name
			wantRec.Swept = []string{tableTemp}
		}
	}
	var older []string // journals of bundles that are gone, or empty
	for name, b := range d.files {
		epoch, ok := journalEpoch(name)
		if ok && now != nil && (epoch < now.root().Epoch || epoch == now.root().Epoch && len(b) == 0 && !c.intent) {
			older = append(older, name)
		}
	}
	wantRec.Swept = append(wantRec.Swept, older...)
	if diff := cmp.Diff(wantRec, rec); diff != "" {
		t.Errorf("Recovery (-want +got): %s", diff)
	}

	// Exactly these files, and nothing else changed.
	files := map[string][]byte{"session/lock": nil, "trust/session.lock": nil, "trust/session.trust": nil}
	for name, b := range d.files {
		files["session/"+name] = b
	}
	for _, name := range older {
		delete(files, "session/"+name)
	}
	inJournal := c.intent && now != nil && c.pending.root().Epoch == c.confirmed.root().Epoch
	journal := journalName(now.root().Epoch)
	journalThere := d.tail.there
	if inJournal && now.base != nil {
		file := bytes.Clone(now.file)
		files["session/"+journal] = append(file, make([]byte, len(d.files[journal])-len(file))...)
	} else if inJournal {
		delete(files, "session/"+journal)
	}
	if d.temps {
		for _, name := range notTemps {
			files[name] = []byte("not a temp")
		}
	}
	if c.intent {
		files["trust/session.audit"] = nil
	}
	for path, b := range r.read() {
		w, ok := files[path]
		if !ok || w != nil && !bytes.Equal(w, b) {
			t.Errorf("%s is there, with %d bytes; it should have %d", path, len(b), len(w))
		}
		delete(files, path)
	}
	for path := range files {
		t.Errorf("%s is not there", path)
	}
	var anew []string
	switch {
	case c.ring == nil:
		anew = []string{"session.trust"}
	case inJournal && (now.base != nil || journalThere):
		anew = []string{journal, "session.audit", "session.trust"}
	case inJournal:
		anew = []string{"session.audit", "session.trust"}
	case c.intent && now != nil:
		anew = []string{"bundle", "session.audit", "session.trust"}
	case c.intent:
		anew = []string{"session.audit", "session.trust"}
	}
	if d.temps {
		anew = append(anew, tableTemp, trustTemp)
	}
	anew = append(anew, older...)
	slices.Sort(anew)
	if diff := cmp.Diff(anew, touched(identities, r.identities())); diff != "" {
		t.Errorf("made or written anew (-want +got): %s", diff)
	}
	r.checkTrust(c, now)

	// K7: a settled store is not settled again. The next Open after an end without
	// Close adds a line to the audit file, and one after Close not even that.
	for _, closed := range []bool{false, true} {
		was := r.identities()
		if closed {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			was = r.identities()
		} else if err := s.release(); err != nil {
			t.Fatal(err)
		}
		r.fs.Set(nil)
		var err error
		if s, err = r.open(); err != nil {
			t.Fatalf("the next Open: %v", err)
		}
		unclean := !closed && c.intent
		if rec := s.Recovery(); rec.Settled != SettledNothing || rec.Unclean != unclean || rec.Swept != nil || rec.Audit != nil || s.View().Version() != version {
			t.Errorf("the next Open (closed: %v): %+v", closed, rec)
		}
		names := touched(was, r.identities())
		if !unclean && names != nil || unclean && !slices.Equal(names, []string{"session.audit"}) {
			t.Errorf("the next Open (closed: %v) touched %v", closed, names)
		}
		for _, call := range r.fs.Mutating() {
			if call.Op != "OpenLock" && call.Op != "Sync" && filepath.Base(call.Path) != lockName && !strings.HasSuffix(call.Path, lockSuffix) &&
				!strings.HasSuffix(call.Path, auditSuffix) {
				t.Errorf("the next Open (closed: %v) called %s", closed, call)
			}
		}
	}
	if err := errors.Join(s.Verify(r.ctx(), nil), s.Close()); err != nil {
		t.Error(err)
	}
}

// read returns all files in the two directories.
func (r *rig) read() map[string][]byte {
	r.t.Helper()
	files := map[string][]byte{}
	for _, dir := range []string{r.dir, r.trust} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				rel, _ := filepath.Rel(r.base, path)
				files[filepath.ToSlash(rel)], err = os.ReadFile(path)
			}
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return files
}

// checkTrust checks the trust file and the audit file after a settle.
func (r *rig) checkTrust(c trustColumn, now *grown) {
	t := r.t
	t.Helper()
	files := r.read()
	ring := files["trust/session.trust"]
	newest, broken, err := decodeRing(ring)
	if err != nil || broken != nil {
		t.Fatalf("the trust file: %v, broken slots %v", err, broken)
	}
	switch {
	case c.ring == nil:
		if newest.confirmed != (Root{}) || newest.intent() || newest.sequence != 1 || !newest.closed || newest.path != quotePath(r.dir) {
			t.Errorf("the new trust file: %+v", newest)
		}
	case !c.intent:
		if !bytes.Equal(ring, c.ring) {
			t.Error("clean, and the trust file changed")
		}
	default:
		// The confirm, and the intent beside it for the case that it is torn.
		before, _, err := decodeRing(c.ring)
		if err != nil {
			t.Fatal(err)
		}
		confirm := trustRecord{store: tableID, sequence: before.sequence + 1, confirmed: now.root(), path: before.path}
		if before.confirmed == (Root{}) {
			confirm.path = quotePath(r.dir)
		}
		if now != nil {
			confirm.history, confirm.next = now.st.version().Digest, now.st.nextSeq()
		}
		if !bytes.Equal(ring, makeRing(before, confirm)) {
			t.Errorf("the trust file holds %+v", newest)
		}
		var line auditLine
		if err := json.Unmarshal(files["trust/session.audit"], &line); err != nil {
			t.Fatal(err)
		}
		want := auditLine{Time: line.Time, Event: "settle", Store: tableID.String(), Process: line.Process, Outcome: "not landed",
			Confirmed: now.root(), Pending: &before.pending, Commits: before.ids}
		if now == c.pending {
			want.Outcome = "landed"
		}
		if diff := cmp.Diff(want, line); diff != "" || line.Process == "" || time.Since(line.Time).Abs() > time.Hour {
			t.Errorf("audit line (-want +got): %s", diff)
		}
	}
}

// TestTrustWithoutARecord: no valid slot is never a fresh store, whatever else there
// is; nothing is touched (contract 5, 34).
func TestTrustWithoutARecord(t *testing.T) {
	whole := trustColumns()["confirmed(O)"].ring
	broken := trustColumns()["pending(O,N)"].ring
	for i := range slotCount {
		broken[i*slotSize+20] ^= 1
	}
	other := trustRecord{store: foreignID, sequence: 42, path: quotePath("/elsewhere")}
	mixed := bytes.Clone(whole)
	copy(mixed[slotSize*(42%slotCount):], other.encode())
	for name, ring := range map[string][]byte{
		"empty":              {},
		"one byte":           {'p'},
		"cut":                whole[:ringSize-1],
		"one slot":           whole[slotSize : 2*slotSize],
		"longer":             append(bytes.Clone(whole), 0),
		"zeros":              make([]byte, ringSize),
		"blank":              makeRing(),
		"all broken":         broken,
		"in the wrong slots": append(bytes.Clone(whole[slotSize:]), whole[:slotSize]...),
		"of two stores":      mixed,
	} {
		for _, d := range []diskRow{{name: "nothing"}, {name: "no directory", noDir: true}, wholeRow("O", stateO), wholeRow("N", stateN), bundleRow("zero length", nil)} {
			t.Run(name+"/"+d.name, func(t *testing.T) { openCell(t, d, trustColumn{ring: ring}, "trust") })
		}
	}
}

// TestTornSlot: a newest slot that is torn falls back to the record before it, which
// by construction authorises what is there.
func TestTornSlot(t *testing.T) {
	columns := trustColumns()
	for _, tt := range []struct {
		name string
		torn trustColumn
		says string // what is left says this
		disk diskRow
		want string
	}{
		{name: "intent", torn: columns["pending(O,N)"], says: "confirmed(O)", disk: wholeRow("O", stateO), want: "clean"},
		{name: "intent of the first", torn: columns["pending(0,A)"], says: "confirmed(0)", disk: diskRow{name: "nothing"}, want: "clean"},
		{name: "confirm", torn: confirming(columns["pending(O,N)"], stateN), says: "pending(O,N)", disk: wholeRow("N", stateN), want: "landed"},
		{name: "abort", torn: confirming(columns["pending(O,N)"], stateO), says: "pending(O,N)", disk: wholeRow("O", stateO), want: "not"},
		{name: "confirm of the first", torn: confirming(columns["pending(0,A)"], stateA), says: "pending(0,A)", disk: wholeRow("A", stateA), want: "landed"},
	} {
		newest, _, err := decodeRing(tt.torn.ring)
		if err != nil {
			t.Fatal(err)
		}
		slot := int(newest.sequence%slotCount) * slotSize
		for _, keep := range []int{0, 1, 512, 600, 1024, slotSize - 1} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, keep), func(t *testing.T) {
				c := columns[tt.says]
				c.ring = bytes.Clone(tt.torn.ring)
				for i := keep; i < slotSize; i++ {
					c.ring[slot+i] = 0
				}
				r := newRig(t)
				r.lay(tt.disk, c)
				s, err := r.open()
				if err != nil {
					t.Fatal(err)
				}
				got := map[Settlement]string{SettledNothing: "clean", SettledLanded: "landed", SettledNotLanded: "not"}[s.Recovery().Settled]
				if got != tt.want || s.Recovery().BrokenSlots != 1 {
					t.Errorf("opened: %s, want %s; %+v", got, tt.want, s.Recovery())
				}
				// Then it goes on for longer than the ring is, and none is taken for newest.
				n := int(s.View().Version().Revision)
				for i := range 5 {
					if r, err := s.Commit(r.ctx(), Change{Entries: [][]byte{{1}}}); err != nil || int(r.Revision) != n+1+i {
						t.Fatal(r, err)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = r.open(); err != nil {
					t.Fatal(err)
				}
				if rec := s.Recovery(); rec.BrokenSlots != 0 || rec.Unclean || int(s.View().Version().Revision) != n+5 {
					t.Errorf("afterwards: %+v", rec)
				}
				s.Close()
			})
		}
	}
}

// confirming adds to an intent the record that confirms one of its states.
func confirming(c trustColumn, now *grown) trustColumn {
	before, _, err := decodeRing(c.ring)
	if err != nil {
		panic(err)
	}
	c.ring = makeRing(before, trustRecord{store: tableID, sequence: before.sequence + 1, confirmed: now.root(),
		history: now.st.version().Digest, path: before.path})
	return c
}

// TestDecide holds decide against a judgement that knows the states' ancestors and
// no digests, for every pair of states that a trust record could name and everything
// that could be found.
func TestDecide(t *testing.T) {
	type seen struct {
		d diskRow
		f *found
	}
	var disks []seen
	for _, d := range append(diskRows(), journalRows()...) {
		if d.name == "newer-format" {
			continue // readStore has an error for it, and decide is not asked
		}
		r := newRig(t)
		r.lay(d, trustColumn{})
		var dir *directory
		if !d.noDir {
			opened, err := vfs.OS().OpenDir(r.dir)
			if err != nil {
				t.Fatal(err)
			}
			dir = &directory{Dir: opened}
		}
		f, err := readStore(dir, &Limits{Bundle: 1 << 20, Journal: 1 << 20})
		if err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		if dir != nil {
			dir.Close()
		}
		disks = append(disks, seen{d, f})
		if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(r.trust)); err != nil {
			t.Fatal(err)
		}
	}
	states := append([]*grown{nil}, tableStates...)
	count := map[string]int{}
	for _, confirmed := range states {
		for _, pending := range states {
			rec := trustRecord{store: tableID, sequence: 7, confirmed: confirmed.root(), pending: pending.root(), path: `""`}
			if confirmed != nil {
				rec.history = confirmed.st.version().Digest
			}
			for _, disk := range disks {
				was := rec
				v, e := decide(&rec, disk.f)
				got := map[verdict]string{verdictClean: "clean", verdictLanded: "landed", verdictNotLanded: "not", verdictRefuse: "refuse"}[v]
				if e != nil {
					got = classesOf(e)
				}
				if want := judge(confirmed, pending, disk.d); got != want || (v == verdictRefuse) != (e != nil) {
					t.Errorf("trust says confirmed %s, pending %s, and there is %s: %s, want %s", confirmed.root().short(), pending.root().short(), disk.d.name, got, want)
				}
				if diff := cmp.Diff(was, rec, cmp.AllowUnexported(trustRecord{})); diff != "" {
					t.Fatalf("decide changed the record: %s", diff)
				}
				count[got]++
			}
		}
	}
	for _, v := range []string{"clean", "landed", "not", "missing", "missing+older", "older", "behind", "foreign", "damaged", "unauthorized", "unauthorized+foreign", "unauthorized+damaged"} {
		if count[v] == 0 {
			t.Errorf("nothing came to %q", v)
		}
	}
	t.Logf("%v", count)
}

// judge is the table of recover.go once more, by who descends from whom.
func judge(confirmed, pending *grown, d diskRow) string {
	bundle, isFile := d.files[bundleName]
	foreign := strings.HasPrefix(d.name, "foreign")
	nothing := !isFile && !slices.Contains(d.dirs, bundleName)
	journal := nothing && len(d.files) > 0
	intent := pending != nil
	refused := func(what string) string {
		if intent {
			return "unauthorized+" + what
		}
		return what
	}
	switch {
	case nothing && confirmed == nil && journal:
		return "unauthorized"
	case nothing && confirmed != nil, isFile && len(bundle) == 0 && confirmed != nil:
		return "missing"
	case nothing && intent:
		return "not"
	case nothing:
		return "clean"
	case foreign:
		return refused("foreign")
	case !isFile:
		return "unauthorized"
	case d.whole == nil:
		return refused("damaged")
	case intent && d.standing(pending, 0) == "same":
		return "landed"
	}
	residue := 0
	if intent && pending.root().Epoch == confirmed.root().Epoch {
		residue = int(pending.root().Journal)
	}
	switch is := d.standing(confirmed, int64(residue)); is {
	case "same":
		if intent {
			return "not"
		}
		return "clean"
	case "behind":
		if intent {
			return "unauthorized"
		}
		return is
	case "damaged", "foreign":
		return refused(is)
	default:
		return is
	}
}

// standing is how a row with a bundle that is whole stands to a state, when what is in
// the journal up to residue may be anything.
func (d *diskRow) standing(g *grown, residue int64) string {
	j, bundle := &d.tail, d.whole.bundle()
	length := g.root().Journal
	steps := -1 // those that belong to g
	if g == bundle {
		steps = 0
	}
	for i, s := range j.steps {
		if s == g {
			steps = i + 1
		}
	}
	odd := j.irregular || j.later
	switch {
	case steps >= 0 && odd:
		return "unauthorized"
	case steps >= 0 && j.wrong && j.flaw < length, steps >= 0 && steps < len(j.steps) && j.steps[steps].at < length:
		return "damaged"
	case steps >= 0 && j.used <= max(length, residue) && (!j.there || j.empty || length > 0):
		return "same"
	case steps >= 0 && len(j.steps) > steps:
		return "behind"
	case steps >= 0 && j.foreign:
		return "foreign"
	case steps >= 0:
		return "unauthorized"
	case g != nil && g.base != nil && g.base.root().Epoch == bundle.st.epoch:
		// Of this bundle's journal, or of that of a fork.
		switch {
		case !j.there:
			return "missing+older"
		case j.irregular || j.apart:
			return "unauthorized"
		case j.foreign:
			return "foreign"
		case j.wrong && j.flaw < length:
			return "damaged"
		case d.whole.st.version().Revision < g.st.version().Revision:
			return "older"
		}
		return "unauthorized"
	case g != nil && bundle.st.version().Revision < g.st.version().Revision,
		g != nil && bundle.st.version().Revision == g.st.version().Revision && bundle.st.epoch < g.root().Epoch:
		return "older"
	case bundle.descendsFrom(g):
		return "behind"
	}
	return "unauthorized"
}
