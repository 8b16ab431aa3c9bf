package pawl_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// smallJournal makes journals of four blocks: the header, and three commits.
var smallJournal = &pawl.Options{Limits: pawl.Limits{Journal: 4 * 4096}}

const journalName = "journal.000000000001"

// journalMoment is a moment with the journal.
type journalMoment struct {
	moment
	journal []byte
}

// journalHistory is a store whose first commit is in the bundle, and the next three in
// the journal.
type journalHistory struct {
	clean [5]journalMoment // closed at that revision
	old   [5]journalMoment // killed with the intent for that revision durable, before the journal was written to
	new   [5]journalMoment // killed before the confirm
	says  [5]string

	later journalMoment // closed at revision 5: 4 published anew, and 5 in its journal
}

func newJournalHistory(seed byte) (*journalHistory, error) {
	root, err := os.MkdirTemp("", "pawl")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	at := ""
	read := func(journal string) (m journalMoment) {
		m.trust, _ = os.ReadFile(filepath.Join(root, at, "trust", "session.trust"))
		m.bundle, _ = os.ReadFile(filepath.Join(root, at, "session", "bundle"))
		m.journal, _ = os.ReadFile(filepath.Join(root, at, "session", journal))
		return m
	}
	h := new(journalHistory)
	r := 0
	visible := func(op, path string) bool {
		return filepath.Base(path) == journalName && (op == "rename" || op == "write")
	}
	tap := &tap{random: rand.NewChaCha8([32]byte{seed})}
	tap.now = func() time.Time { return time.Unix(int64(1e9+int(seed)), 0) }
	tap.before = func(op, path string) error {
		if visible(op, path) {
			h.old[r] = read(journalName)
		}
		return nil
	}
	tap.after = func(op, path string) {
		if visible(op, path) {
			h.new[r] = read(journalName)
		}
	}
	open := func(opts *pawl.Options) (*pawl.Store, error) {
		return pawl.Open(tap.context(), filepath.Join(root, at, "session"), filepath.Join(root, at, "trust"), opts)
	}
	// The limit makes the journal small, and Close would publish it for the same
	// reason. So the store lives on from a copy, under a larger limit.
	at = "first"
	s, err := open(smallJournal)
	if err != nil {
		return nil, err
	}
	for r = 1; r <= 2 && err == nil; r++ {
		_, err = s.Commit(context.Background(), change(r))
		h.says[r] = dump(s.View())
	}
	if err = errors.Join(err, s.Close()); err != nil {
		return nil, err
	}
	at = "second"
	for _, dir := range []string{"session", "trust"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, at, dir), 0o700))
	}
	err = errors.Join(err,
		os.WriteFile(filepath.Join(root, at, "session", "bundle"), h.new[2].bundle, 0o600),
		os.WriteFile(filepath.Join(root, at, "session", journalName), h.new[2].journal, 0o600),
		os.WriteFile(filepath.Join(root, at, "trust", "session.trust"), h.new[2].trust, 0o600))
	for r = 2; r < len(h.clean) && err == nil; r++ {
		made, before := h.new[2], h.old[2]
		if s, err = open(nil); err != nil {
			break
		}
		if r > 2 {
			_, err = s.Commit(context.Background(), change(r))
			h.says[r] = dump(s.View())
		}
		err = errors.Join(err, s.Close())
		h.clean[r], h.new[2], h.old[2] = read(journalName), made, before
	}
	if err != nil {
		return nil, err
	}
	tap.before, tap.after = nil, nil
	if s, err = open(nil); err != nil {
		return nil, err
	}
	if err = s.Checkpoint(context.Background()); err == nil {
		_, err = s.Commit(context.Background(), change(5))
	}
	h.later = read("journal.000000000002")
	return h, errors.Join(err, s.Close())
}

var journalLives = sync.OnceValues(func() ([2]*journalHistory, error) {
	one, err1 := newJournalHistory(11)
	other, err2 := newJournalHistory(12)
	return [2]*journalHistory{one, other}, errors.Join(err1, err2)
})

func journalHistories(t testing.TB) (one, other *journalHistory) {
	t.Helper()
	h, err := journalLives()
	if err != nil {
		t.Fatal(err)
	}
	for r := 2; r < len(h[0].clean); r++ {
		if len(h[0].clean[r].journal) != 4*4096 || h[0].new[r].trust == nil {
			t.Fatalf("revision %d: a journal of %d bytes", r, len(h[0].clean[r].journal))
		}
	}
	return h[0], h[1]
}

// journalPath is where the journal of these histories is.
func (b *bench) journalPath() string { return filepath.Join(b.dir, journalName) }

// layJournal is lay for a moment with the journal.
func (b *bench) layJournal(m journalMoment) {
	b.t.Helper()
	b.lay(m.moment)
	names, err := filepath.Glob(filepath.Join(b.dir, "journal.*"))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, path := range names {
		if info, err := os.Lstat(path); m.journal == nil || path != b.journalPath() || err != nil || !info.Mode().IsRegular() {
			if err := os.RemoveAll(path); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	if m.journal != nil {
		overwrite(b.t, b.journalPath(), m.journal)
	}
}

// journalSituation is a moment in which a journal may be damaged. Up to trusted every
// byte of the journal counts; from there up to pending anything may be.
type journalSituation struct {
	name             string
	m                journalMoment
	says             string // what the store opens with when nothing is done to it
	old              string // what it opens with when what is pending is not whole; "" without an intent
	trusted, pending int
}

func journalSituations(t testing.TB) []journalSituation {
	one, _ := journalHistories(t)
	return []journalSituation{
		{"clean", one.clean[3], one.says[3], "", 12288, 12288},
		{"pending, new there", one.new[3], one.says[3], one.says[2], 8192, 12288},
		{"pending, old there", one.old[3], one.says[2], one.says[2], 8192, 12288},
		{"pending, the journal made", one.new[2], one.says[2], one.says[1], 0, 8192},
	}
}

// refusal is what is wanted of Open when the class is that after a clean close. With
// an intent it stays, and the class is the cause (see decide in recover.go); of an older copy
// that is said either way.
func (s *journalSituation) refusal(class ...error) []error {
	if s.old == "" || class[0] == pawl.ErrRolledBack || class[0] == pawl.ErrVersion || class[0] == pawl.ErrTooLarge || class[0] == pawl.ErrUnauthorized {
		return class
	}
	if class[0] == pawl.ErrTrustBehind {
		return []error{pawl.ErrUnauthorized}
	}
	return append([]error{pawl.ErrUnauthorized}, class...)
}

// changedJournal puts a journal in place and wants it to be refused with the given
// classes, or, when there are none, the store to open with says. Inspect must say the
// same beforehand, and nothing may have changed after an error.
func (b *bench) changedJournal(s *journalSituation, file []byte, says string, want ...error) {
	b.t.Helper()
	m := s.m
	m.journal = file
	b.layJournal(m)
	r, err := pawl.Inspect(quick(), b.dir, b.trust, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	store, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if want == nil {
		if err != nil {
			b.t.Errorf("does not open: %v", err)
			return
		}
		if got := dump(store.View()); got != says {
			b.t.Errorf("opens with another state (-want +got):\n%s", cmp.Diff(says, got))
		}
		if verdict := map[pawl.Settlement]string{pawl.SettledNothing: "clean", pawl.SettledLanded: "landed", pawl.SettledNotLanded: "not landed"}[store.Recovery().Settled]; r.Verdict != verdict {
			b.t.Errorf("Inspect: %s, Open: %s", r.Verdict, verdict)
		}
		if err := store.Close(); err != nil {
			b.t.Error(err)
		}
		return
	}
	if err == nil {
		b.t.Errorf("opens at %s, want an error: %v", store.View().Version(), want)
		store.Close()
		return
	}
	e := typed(b.t, err, "open", want...)
	if r.Verdict != "refuse" {
		b.t.Errorf("Inspect: %s; Open: %v", r.Verdict, err)
	} else if i := typed(b.t, r.Err, "open", want...); i.Error() != e.Error() {
		b.t.Errorf("Inspect: %v\nOpen: %v", i, e)
	}
	for path, was := range map[string][]byte{b.bundle: m.bundle, b.slots: m.trust, b.journalPath(): file} {
		if was != nil && !bytes.Equal(was, read(b.t, path)) {
			b.t.Errorf("%s changed", path)
		}
	}
	entries, err := os.ReadDir(b.dir)
	if n := map[bool]int{true: 2, false: 3}[file == nil]; err != nil || len(entries) != n {
		b.t.Errorf("names: %v, %v", entries, err)
	}
	if entries, err := os.ReadDir(b.trust); err != nil || len(entries) != 2 {
		b.t.Errorf("names: %v, %v", entries, err)
	}
}

// frameAt is where the frame of a journal at an offset ends.
func frameAt(journal []byte, at int) (end int) {
	return at + int(binary.LittleEndian.Uint32(journal[at:]))
}

// lastByte is where the last byte that is not zero ends.
func lastByte(b []byte) int { return len(bytes.TrimRight(b, "\x00")) }

// TestJournalFlip: any single bit flipped. Below what trust knows it is damage,
// padding included; beyond what any record explains it is refused; and what is
// pending is not landed when it is not whole (contracts 1, 4 and 6).
func TestJournalFlip(t *testing.T) {
	b := newBench(t)
	for _, s := range journalSituations(t) {
		for at := 0; at < len(s.m.journal); at++ {
			used := at < 256 || at >= 4096 && at%4096 < 512 || at%4096 > 4000
			if stride := map[bool]int{true: stride(5), false: 7 * stride(5)}[used]; at%stride != 0 {
				continue
			}
			name := fmt.Sprintf("%s, byte %d", s.name, at)
			file := flip(s.m.journal, 8*at+at%8)
			switch {
			case at < s.trusted:
				b.changedJournal(&s, file, "", s.refusal(pawl.ErrDamaged)...)
			case at < s.pending && s.trusted > 0:
				b.changedJournal(&s, file, s.old)
			default:
				b.changedJournal(&s, file, "", pawl.ErrUnauthorized)
			}
			if t.Failed() {
				t.Fatal(name)
			}
		}
		b.layJournal(s.m)
		b.opens(s.says)
	}
}

// TestJournalCut: cut at any byte, and zero from any byte on. From the beginning of a
// frame on, zeros are an older copy; everywhere else before what trust knows, damage.
func TestJournalCut(t *testing.T) {
	b := newBench(t)
	for _, s := range journalSituations(t) {
		head, used := lastByte(s.m.journal[:4096]), lastByte(s.m.journal)
		for n := 0; n < len(s.m.journal); n++ {
			if edge := n%4096 < 300 || n%4096 > 4090; !edge && n%(17*stride(5)) != 0 || edge && n%stride(5) != 0 {
				continue
			}
			name := fmt.Sprintf("%s, at byte %d", s.name, n)
			torn := append(slices.Clone(s.m.journal[:n]), make([]byte, len(s.m.journal)-n)...)
			older := n >= head && n <= 4096 || n > 4096 && n <= 8192 && n >= frameAt(s.m.journal, 4096) && s.trusted > 8192
			switch {
			case n >= used: // nothing is taken away
				b.changedJournal(&s, torn, s.says)
			case n < s.trusted && older:
				b.changedJournal(&s, torn, "", s.refusal(pawl.ErrRolledBack)...)
			case lastByte(torn) < min(used, s.trusted) && n < s.trusted && !(n >= frameAt(s.m.journal, 4096)):
				b.changedJournal(&s, torn, "", s.refusal(pawl.ErrDamaged)...)
			case n < s.trusted && s.trusted > 8192:
				b.changedJournal(&s, torn, "", s.refusal(pawl.ErrDamaged)...)
			case s.trusted == 0: // a journal has its name only when it is whole
				b.changedJournal(&s, torn, "", pawl.ErrUnauthorized)
			default: // what is pending, and not landed
				b.changedJournal(&s, torn, s.old)
			}
			if t.Failed() {
				t.Fatal(name, ": zero from there on")
			}
			switch {
			case s.trusted > 0:
				b.changedJournal(&s, s.m.journal[:n], "", s.refusal(pawl.ErrDamaged)...)
			case n > 0:
				b.changedJournal(&s, s.m.journal[:n], "", pawl.ErrUnauthorized)
			default:
				b.changedJournal(&s, nil, s.old)
			}
			if t.Failed() {
				t.Fatal(name, ": cut")
			}
		}
		b.layJournal(s.m)
		b.opens(s.says)
	}
}

// withJournalHeader sets a 32-bit word of a journal's header, and its checksum right.
func withJournalHeader(b []byte, at int, v uint32) []byte {
	b = slices.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], v)
	binary.LittleEndian.PutUint32(b[252:], crc32.Checksum(b[:252], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// withFrame sets bytes in the frame at an offset, and its checksum right, as long as
// its length says that it is.
func withFrame(b []byte, at, in int, put ...byte) []byte {
	b = withBytes(b, at+in, put...)
	if end := frameAt(b, at); end > at+8 && end <= len(b) {
		binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+8:end], crc32.MakeTable(crc32.Castagnoli)))
	}
	return b
}

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// TestBadJournal: whatever takes the place of the journal is told apart, typed, and
// left as it is; with the right file put back nothing was lost (contracts 1, 4, 6, 8
// and 11).
func TestBadJournal(t *testing.T) {
	one, other := journalHistories(t)
	huge := u32(1<<32 - 1)
	for _, s := range journalSituations(t) {
		j := s.m.journal
		if s.name == "pending, old there" {
			continue // the same but for what is pending, which is not there to be damaged
		}
		name := func(what string) string { return s.name + "/" + what }
		for _, tt := range []struct {
			name    string
			journal []byte
			want    []error
		}{
			{"absent", nil, []error{pawl.ErrRolledBack, pawl.ErrMissing}},
			{"empty", []byte{}, []error{pawl.ErrDamaged}},
			{"zeroed", make([]byte, len(j)), []error{pawl.ErrDamaged}},
			{"all ones", bytes.Repeat([]byte{0xff}, len(j)), []error{pawl.ErrDamaged}},
			{"one byte", j[:1], []error{pawl.ErrDamaged}},
			{"a byte too many", append(slices.Clone(j), 0), []error{pawl.ErrDamaged}},
			{"a block too many", append(slices.Clone(j), make([]byte, 4096)...), []error{pawl.ErrDamaged}},
			{"twice", append(slices.Clone(j), j...), []error{pawl.ErrDamaged}},
			{"the bundle", s.m.bundle, []error{pawl.ErrDamaged}},
			{"the trust file", s.m.trust, []error{pawl.ErrDamaged}},
			{"text", []byte("pawljrnl\n"), []error{pawl.ErrDamaged}},
			{"of another store", other.clean[3].journal, []error{pawl.ErrForeign}},
			{"of another bundle", one.later.journal, []error{pawl.ErrUnauthorized}},
			{"version 2", withJournalHeader(j, 8, 2), []error{pawl.ErrVersion}},
			{"version 4294967295", withJournalHeader(j, 8, 1<<32-1), []error{pawl.ErrVersion}},
			{"an unknown read-only-compatible flag", withJournalHeader(j, 16, 1<<31), []error{pawl.ErrVersion}},
			{"an unknown incompatible flag", withJournalHeader(j, 20, 1), []error{pawl.ErrVersion}},
			{"an unknown compatible flag", withJournalHeader(j, 12, 1), []error{pawl.ErrDamaged}},
			{"a reserved word set", withJournalHeader(j, 24, 1), []error{pawl.ErrDamaged}},
			{"a reserved byte set", withJournalHeader(j, 248, 1), []error{pawl.ErrDamaged}},
			{"a length that lies", withJournalHeader(j, 28, uint32(len(j)-4096)), []error{pawl.ErrDamaged}},
			{"a huge length", withJournalHeader(j, 32, 1<<31), []error{pawl.ErrDamaged}},
			{"of another epoch", withJournalHeader(j, 52, 2), []error{pawl.ErrUnauthorized}},
			{"of another revision", withJournalHeader(j, 60, 2), []error{pawl.ErrUnauthorized}},
			{"of another history", withJournalHeader(j, 68, 0), []error{pawl.ErrUnauthorized}},
			{"of another bundle's digest", withJournalHeader(j, 100, 0), []error{pawl.ErrUnauthorized}},
			{"a huge frame", withFrame(j, 4096, 0, huge...), []error{pawl.ErrDamaged}},
			{"a frame to the end", withFrame(j, 4096, 0, u32(uint32(len(j)-4096))...), []error{pawl.ErrDamaged}},
			{"a frame beyond the end", withFrame(j, 4096, 0, u32(uint32(len(j)-4096+1))...), []error{pawl.ErrDamaged}},
			{"a short frame", withFrame(j, 4096, 0, u32(43)...), []error{pawl.ErrDamaged}},
			{"a frame of one byte", withFrame(j, 4096, 0, u32(1)...), []error{pawl.ErrDamaged}},
			{"a frame of no record", withFrame(j, 4096, 0, u32(44)...), []error{pawl.ErrDamaged}},
			{"a frame that continues another", withFrame(j, 4096, 8, 0, 0, 0, 0), []error{pawl.ErrDamaged}},
			{"a huge record", withFrame(j, 4096, 40, huge...), []error{pawl.ErrDamaged}},
			{"a record of no bytes", withFrame(j, 4096, 40, 0, 0, 0, 0), []error{pawl.ErrDamaged}},
			{"a huge head", withFrame(j, 4096, 44, huge...), []error{pawl.ErrDamaged}},
			{"another revision", withFrame(j, 4096, 44+4, 9), []error{pawl.ErrDamaged}},
			{"a huge revision", withFrame(j, 4096, 44+4, bytes.Repeat([]byte{0xff}, 8)...), []error{pawl.ErrDamaged}},
			{"another seq", withFrame(j, 4096, 44+20, 9), []error{pawl.ErrDamaged}},
			{"a huge number of entries", withFrame(j, 4096, 44+28, huge...), []error{pawl.ErrDamaged}},
			// The digest of the frame is another, and nothing before it looks at the time.
			{"another time", withFrame(j, 4096, 44+12, 9), []error{pawl.ErrUnauthorized}},
		} {
			t.Run(name(tt.name), func(t *testing.T) {
				b := newBench(t)
				m := s.m
				m.journal = tt.journal
				b.layJournal(m)
				want := s.refusal(tt.want...)
				switch {
				case s.trusted == 0 && len(tt.journal) == 0:
					// What clear leaves for a moment.
					b.changedJournal(&s, tt.journal, s.old)
				case s.trusted == 0 && want[0] != pawl.ErrVersion:
					b.refused(nil, nil, pawl.ErrUnauthorized)
				case tt.name == "another time" && s.trusted > 8192:
					// The next frame does not continue it.
					b.refused(nil, nil, s.refusal(pawl.ErrDamaged)...)
				default:
					b.refused(nil, nil, want...)
				}
				b.layJournal(s.m)
				b.opens(s.says)
			})
		}
	}
}

// TestJournalOfAnotherMoment: an older and a newer journal, and journals of other
// bundles, beside a bundle and a trust file that are right.
func TestJournalOfAnotherMoment(t *testing.T) {
	one, _ := journalHistories(t)
	b := newBench(t)
	for _, tt := range []struct {
		name    string
		trust   journalMoment
		journal []byte
		says    string
		want    []error
	}{
		{"older by one", one.clean[3], one.clean[2].journal, "", []error{pawl.ErrRolledBack}},
		{"older by two", one.clean[4], one.clean[2].journal, "", []error{pawl.ErrRolledBack}},
		{"newer by one", one.clean[2], one.clean[3].journal, "", []error{pawl.ErrTrustBehind}},
		{"newer by two", one.clean[2], one.clean[4].journal, "", []error{pawl.ErrTrustBehind}},
		{"none was trusted", one.clean1(), one.clean[2].journal, "", []error{pawl.ErrTrustBehind}},
		{"none was trusted, zeros", one.clean1(), make([]byte, 4*4096), "", []error{pawl.ErrUnauthorized}},
		{"none was trusted, empty", one.clean1(), []byte{}, one.says[1], nil},
		{"pending, older", one.old[4], one.clean[2].journal, "", []error{pawl.ErrRolledBack}},
		{"pending, newer", one.old[3], one.clean[4].journal, "", []error{pawl.ErrUnauthorized}},
		{"pending, the new one", one.old[3], one.clean[3].journal, one.says[3], nil},
		{"pending, the old one", one.new[3], one.clean[2].journal, one.says[2], nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := journalSituation{name: tt.name, m: tt.trust}
			b.t = t
			b.changedJournal(&s, tt.journal, tt.says, tt.want...)
		})
	}
	b.t = t
	for _, tt := range []struct {
		name, file string
		m          journalMoment
		want       error
		says       string
	}{
		{"a later journal beside it", "journal.000000000002", one.clean[3], pawl.ErrUnauthorized, ""},
		{"a later journal under a long name", "journal.1000000000000", one.clean[3], pawl.ErrUnauthorized, ""},
		{"an earlier journal beside it", "journal.000000000000", one.clean[3], nil, one.says[3]},
		{"a name like one", "journal.2", one.clean[3], nil, one.says[3]},
		{"another name like one", "journal.000000000002~", one.clean[3], nil, one.says[3]},
		{"a huge number", "journal.99999999999999999999999", one.clean[3], nil, one.says[3]},
		{"a negative number", "journal.-00000000002", one.clean[3], nil, one.says[3]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.layJournal(tt.m)
			path := filepath.Join(b.dir, tt.file)
			write(t, path, string(one.later.journal))
			if tt.want != nil {
				b.refused(nil, nil, tt.want)
				return
			}
			rec := b.opens(tt.says)
			_, err := os.Lstat(path)
			if swept := tt.file == "journal.000000000000"; swept != errors.Is(err, os.ErrNotExist) || swept != slices.Equal(rec.Swept, []string{tt.file}) {
				t.Errorf("%v; swept: %q", err, rec.Swept)
			}
		})
	}
}

// clean1 is the store closed at revision 1, before there was a journal: what a commit
// that did not come to make one goes back to.
func (h *journalHistory) clean1() journalMoment {
	m := h.old[2]
	m.trust = withoutIntent(m.trust)
	return m
}

// withoutIntent takes the records with an intent out of a trust file.
func withoutIntent(ring []byte) []byte {
	ring = slices.Clone(ring)
	for slot := range 4 {
		if own := ring[slot*4096 : (slot+1)*4096]; bytes.Contains(own, []byte("\npending ")) {
			copy(own, append(bytes.Repeat([]byte{' '}, 4095), '\n'))
		}
	}
	return ring
}

// TestJournalIsNotAFile: nothing that is not a regular file is opened, followed,
// waited for or removed.
func TestJournalIsNotAFile(t *testing.T) {
	for _, s := range journalSituations(t) {
		for _, i := range impostors {
			t.Run(s.name+"/journal is "+i.name, func(t *testing.T) {
				b := newBench(t)
				m := s.m
				m.journal = nil
				b.layJournal(m)
				elsewhere := filepath.Join(filepath.Dir(b.dir), "elsewhere")
				i.make(t, b.journalPath(), elsewhere, s.m.journal)
				b.refused(nil, []string{elsewhere}, pawl.ErrUnauthorized)
				b.layJournal(s.m)
				b.opens(s.says)
			})
		}
	}
	// That of an earlier bundle would be swept, if it were one.
	for _, i := range impostors {
		t.Run("an earlier journal is "+i.name, func(t *testing.T) {
			one, _ := journalHistories(t)
			b := newBench(t)
			b.layJournal(one.clean[3])
			path, elsewhere := filepath.Join(b.dir, "journal.000000000000"), filepath.Join(filepath.Dir(b.dir), "elsewhere")
			i.make(t, path, elsewhere, one.clean[2].journal)
			before := testkit.Snapshot(t, path, elsewhere)
			b.opens(one.says[3])
			if diff := cmp.Diff(before, testkit.Snapshot(t, path, elsewhere)); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestJournalOverTheLimit: a journal that is larger than allowed, right or not, is
// neither read nor given memory, nor changed (contract 11).
func TestJournalOverTheLimit(t *testing.T) {
	for _, s := range journalSituations(t) {
		t.Run(s.name, func(t *testing.T) {
			b := newBench(t)
			b.layJournal(s.m)
			before := testkit.Snapshot(t, b.dir, b.trust)
			small := &pawl.Options{Limits: pawl.Limits{Journal: int64(len(s.m.journal)) - 1}}
			_, err := pawl.Open(quick(), b.dir, b.trust, small)
			typed(t, err, "open", pawl.ErrTooLarge)
			if r, err := pawl.Inspect(quick(), b.dir, b.trust, small); err != nil || !errors.Is(r.Err, pawl.ErrTooLarge) {
				t.Errorf("Inspect: %+v, %v", r, err)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
			store, err := pawl.Open(quick(), b.dir, b.trust, smallJournal)
			if err != nil {
				t.Fatalf("at the limit: %v", err)
			}
			if got := dump(store.View()); got != s.says {
				t.Errorf("at the limit: opens with\n%s", got)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
			if runtime.GOOS == "windows" {
				return // files are not sparse there unless asked to be
			}
			for _, file := range [][]byte{{}, s.m.journal, withJournalHeader(s.m.journal, 32, 1<<8)} {
				m := s.m
				m.journal = file
				b.layJournal(m)
				if err := os.Truncate(b.journalPath(), 1<<40); err != nil {
					t.Skipf("the file system has no file of 1 TiB: %v", err)
				}
				b.refusedHuge(pawl.ErrTooLarge)
			}
		})
	}
}

// TestJournalChangedWhileOpen: another writer was at the journal. The commit of the
// stale one is refused before it has written anything, publishing too, and with the
// file back in place the store goes on.
func TestJournalChangedWhileOpen(t *testing.T) {
	one, other := journalHistories(t)
	open := func(t *testing.T) (*bench, *pawl.Store) {
		b := newBench(t)
		b.layJournal(one.clean[2])
		s, err := pawl.Open(quick(), b.dir, b.trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		if _, err := s.Commit(context.Background(), change(3)); err != nil {
			t.Fatal(err)
		}
		return b, s
	}
	copyOf := func(b []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { write(t, path, string(b)) }
	}
	for _, tt := range []struct {
		name string
		put  func(t *testing.T, path string)
	}{
		{"removed", nil},
		{"replaced by a copy", copyOf(one.clean[3].journal)},
		{"replaced by an older one", copyOf(one.clean[2].journal)},
		{"replaced by a newer one", copyOf(one.clean[4].journal)},
		{"replaced by another store's", copyOf(other.clean[3].journal)},
		{"emptied", copyOf([]byte{})},
		{"replaced by a directory", func(t *testing.T, path string) { mkdir(t, path) }},
		{"replaced by a symlink to it", func(t *testing.T, path string) { symlink(t, path+"-aside", path) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, s := open(t)
			path := b.journalPath()
			if err := os.Rename(path, path+"-aside"); err != nil {
				t.Skipf("an open file cannot be moved here: %v", err)
			}
			if tt.put != nil {
				tt.put(t, path)
			}
			b.stale(s)
			if err := s.Checkpoint(context.Background()); !errors.Is(err, pawl.ErrStale) {
				t.Errorf("Checkpoint: %v", err)
			}
			if err := errors.Join(os.RemoveAll(path), os.Rename(path+"-aside", path)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(context.Background(), change(4)); err != nil {
				t.Errorf("with the file back in place: %v", err)
			}
			want := dump(s.View())
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			b.opens(want)
		})
	}
	for _, tt := range []struct {
		name string
		edit func(was []byte) []byte
	}{
		{"cut", func(was []byte) []byte { return was[:len(was)-1] }},
		{"appended to", func(was []byte) []byte { return append(was, 0) }},
	} {
		t.Run(tt.name+", in place", func(t *testing.T) {
			b, s := open(t)
			path := b.journalPath()
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, path, tt.edit(read(t, path)))
			// The clock of some file systems is too coarse to tell.
			if err := os.Chtimes(path, time.Time{}, info.ModTime().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			before := testkit.Snapshot(t, b.dir, b.trust)
			b.stale(s)
			if err := s.Close(); !errors.Is(err, pawl.ErrStale) {
				t.Errorf("Close: %v, want %v", err, pawl.ErrStale)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
			b.refusedLike(pawl.ErrDamaged, pawl.ErrUnauthorized)
		})
	}
	// Other damage in place does not show in what a commit looks at. It is found before
	// a bundle takes the journal's place, and nothing is published of it.
	for _, tt := range []struct {
		name string
		edit func(was []byte) []byte
		want error // of the next Open
	}{
		{"a bit flipped", func(was []byte) []byte { return flip(was, 8*4200) }, pawl.ErrDamaged},
		{"a bit of the header flipped", func(was []byte) []byte { return flip(was, 8*60) }, pawl.ErrDamaged},
		{"a bit flipped where no frame is", func(was []byte) []byte { return flip(was, 8*12288) }, pawl.ErrUnauthorized},
		{"zeroed", func(was []byte) []byte { return make([]byte, len(was)) }, pawl.ErrDamaged},
		{"as it was before", func([]byte) []byte { return one.clean[2].journal }, pawl.ErrRolledBack},
		{"of another store", func([]byte) []byte { return other.clean[3].journal }, pawl.ErrForeign},
	} {
		t.Run(tt.name+", unseen", func(t *testing.T) {
			b, s := open(t)
			overwrite(t, b.journalPath(), tt.edit(read(t, b.journalPath())))
			before, says := testkit.Snapshot(t, b.dir, b.trust), dump(s.View())
			for range 2 {
				if err := s.Checkpoint(context.Background()); !errors.Is(err, pawl.ErrDamaged) || errors.Is(err, pawl.ErrInDoubt) {
					t.Errorf("Checkpoint: %v, want %v", err, pawl.ErrDamaged)
				}
			}
			// One too large for the journal would be published.
			_, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{make([]byte, 5000)}})
			exactly(t, err, pawl.ErrNotCommitted, pawl.ErrDamaged)
			if err := s.Verify(context.Background(), nil); !errors.Is(err, pawl.ErrDamaged) && tt.want != pawl.ErrUnauthorized {
				t.Errorf("Verify: %v, want %v", err, pawl.ErrDamaged)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
			if got := dump(s.View()); got != says {
				t.Errorf("the view changed:\n%s", got)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			b.refused(nil, nil, tt.want)
		})
	}
}

// refusedLike wants Open to fail with one of the classes.
func (b *bench) refusedLike(classes ...error) {
	b.t.Helper()
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err == nil {
		b.t.Errorf("opens at %s", s.View().Version())
		s.Close()
		return
	}
	if !slices.ContainsFunc(classes, func(c error) bool { return errors.Is(err, c) }) {
		b.t.Errorf("%v; want one of: %v", err, classes)
	}
}

// TestEmptyJournalAppears: a file of no bytes where there is no journal is what a
// recovery that was killed leaves. The store goes on, and the next commit makes the
// journal in its place.
func TestEmptyJournalAppears(t *testing.T) {
	one, _ := journalHistories(t)
	b := newBench(t)
	b.layJournal(one.clean1())
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, b.journalPath(), "")
	for r := 2; r <= 3; r++ {
		if _, err := s.Commit(context.Background(), change(r)); err != nil {
			t.Fatal(err)
		}
	}
	says := dump(s.View())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.opens(says)
}

// TestJournalAppears: a store without a journal, and somebody put one there.
func TestJournalAppears(t *testing.T) {
	one, _ := journalHistories(t)
	b := newBench(t)
	b.layJournal(one.clean1())
	b.opens(one.says[1])
	b.layJournal(one.clean1())
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, b.journalPath(), string(one.clean[2].journal))
	b.stale(s)
	if err := s.Close(); !errors.Is(err, pawl.ErrStale) && err != nil {
		t.Error(err)
	}
	b.refused(nil, nil, pawl.ErrTrustBehind)
}
