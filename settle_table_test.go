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
	raw    []byte
}

func (g *grown) root() Root {
	if g == nil {
		return Root{}
	}
	return Root{Revision: g.st.version().Revision, Epoch: g.st.epoch, Digest: sha256.Sum256(g.raw)}
}

func (g *grown) descendsFrom(old *grown) bool {
	for g != nil {
		if g = g.parent; g == old {
			return true
		}
	}
	return false
}

// grow makes the state that one more commit makes of g.
func grow(id storeID, g *grown, what string) *grown {
	before, replaced := emptyState(id), Digest{}
	if g != nil {
		before, replaced = g.st, g.root().Digest
	}
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
	// A state and its fork must not share the array that both append to.
	alone := *before
	alone.records = slices.Clip(slices.Clone(before.records))
	st := alone.after(&r, p.data, replaced)
	return &grown{g, st, encodeBundle(st)}
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

	tableStates = []*grown{stateA, state2, stateO, stateN, state5, state7, forkA, forkO, forkN, onForkO}
)

// diskRow is something that may be in the store directory.
type diskRow struct {
	name  string
	whole *grown // a bundle that is whole
	files map[string][]byte
	dirs  []string

	noDir  bool // there is no store directory
	noLock bool // there is no lock file in it
	temps  bool // of killed processes, in both directories, with what only looks like one
}

func flipped(raw []byte, at int) []byte {
	b := bytes.Clone(raw)
	b[(at+len(b))%len(b)] ^= 0x10
	return b
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

// newerBundle is a bundle with a flag that this program does not know.
func newerBundle(raw []byte) []byte {
	b := bytes.Clone(raw)
	b[20] = 1
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
O-and-a-journal   untrusted  trust    behind        clean         unauthorized          not
O-and-temps       untrusted  trust    behind        clean         unauthorized          not
N-and-temps       untrusted  trust    behind        behind        unauthorized          landed
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
			r.pending, r.commits, r.ids = pending.root(), 1, []string{pending.st.records[len(pending.st.records)-1].id}
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
		"no-trust":     {},
		"damaged":      {ring: make([]byte, ringSize)}, // zeros
		"confirmed(0)": col(nil, nil),
		"confirmed(O)": col(stateO, nil),
		"pending(0,A)": col(nil, stateA),
		"pending(O,N)": col(stateO, stateN),
	}
}

const tableTemp = "tmp-0123456789abcdef"

// notTemps only look like temps: too short, too long, upper case, another store's.
var notTemps = []string{"session/tmp-0123456789abcde", "session/tmp-0123456789abcdef0", "session/tmp-FEDCBA9876543210", "session/tmp-",
	"session/session." + tableTemp, "trust/" + tableTemp, "trust/other." + tableTemp, "trust/session.tmp-0123456789abcdeg", "session/tmp-00000000000000ff/file"}

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
		write("trust/session."+tableTemp, nil)
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
func TestSettleTable(t *testing.T) {
	rows := map[string]diskRow{}
	for _, d := range diskRows() {
		rows[d.name] = d
	}
	columns := trustColumns()
	lines := slices.DeleteFunc(strings.Split(settleTable, "\n"), func(l string) bool { return l == "" })
	head := strings.Fields(lines[0])[1:]
	if len(head) != len(columns) || len(lines)-1 != len(rows) {
		t.Fatalf("the table has %d columns and %d rows; there are %d and %d", len(head), len(lines)-1, len(columns), len(rows))
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
		wantRec.Count, wantRec.Commits = 1, []string{c.pending.st.records[len(c.pending.st.records)-1].id}
	}
	if d.temps {
		wantRec.Swept = []string{tableTemp, "session." + tableTemp}
	}
	if diff := cmp.Diff(wantRec, rec); diff != "" {
		t.Errorf("Recovery (-want +got): %s", diff)
	}

	// Exactly these files, and nothing else changed.
	files := map[string][]byte{"session/lock": nil, "trust/session.lock": nil, "trust/session.trust": nil}
	for name, b := range d.files {
		files["session/"+name] = b
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
	case c.intent && now != nil:
		anew = []string{"bundle", "session.audit", "session.trust"}
	case c.intent:
		anew = []string{"session.audit", "session.trust"}
	}
	if d.temps {
		anew = append(anew, tableTemp, "session."+tableTemp)
		slices.Sort(anew)
	}
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
		if now != nil {
			confirm.history = now.st.version().Digest
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
	for _, d := range diskRows() {
		if d.name == "newer-format" {
			continue // readStore has an error for it, and decide is not asked
		}
		r := newRig(t)
		r.lay(d, trustColumn{})
		var dir vfs.Dir
		if !d.noDir {
			opened, err := vfs.OS().OpenDir(r.dir)
			if err != nil {
				t.Fatal(err)
			}
			dir = opened
		}
		f, err := readStore(dir, 1<<20)
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
	for _, v := range []string{"clean", "landed", "not", "missing", "older", "behind", "foreign", "damaged", "unauthorized", "unauthorized+foreign", "unauthorized+damaged"} {
		if count[v] == 0 {
			t.Errorf("nothing came to %q", v)
		}
	}
	t.Logf("%v", count)
}

// judge is the table of recover.go once more, by who descends from whom.
func judge(confirmed, pending *grown, d diskRow) string {
	bundle, isFile := d.files[bundleName]
	_, journal := d.files["journal.000000000003"]
	foreign := strings.HasPrefix(d.name, "foreign")
	nothing := !isFile && len(d.dirs) == 0
	intent := pending != nil
	damaged := func(what string) string {
		if intent {
			return "unauthorized+" + what
		}
		return what
	}
	switch {
	case intent && d.whole == pending:
		return "landed"
	case nothing && confirmed == nil && journal:
		return "unauthorized"
	case nothing && confirmed != nil, isFile && len(bundle) == 0 && confirmed != nil:
		return "missing"
	case !nothing && foreign:
		return damaged("foreign")
	case !nothing && !isFile:
		return "unauthorized"
	case !nothing && d.whole == nil:
		return damaged("damaged")
	case d.whole == confirmed && intent:
		return "not"
	case d.whole == confirmed:
		return "clean"
	case confirmed != nil && d.whole.st.version().Revision < confirmed.st.version().Revision:
		return "older"
	case d.whole.descendsFrom(confirmed) && !intent:
		return "behind"
	}
	return "unauthorized"
}
