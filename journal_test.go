package pawl_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
)

// parsedJournal is what a stranger makes of a journal.
type parsedJournal struct {
	StoreID         string
	Length          uint64
	Epoch, Revision uint64
	History, Parent string
	Frames          []parsedFrame
	End             int // the length that a trust record names
}

type parsedFrame struct {
	At, Length int
	Commit     parsedCommit
	Parts      map[string]string
	Digest     string // the disk digest after it
}

// parseJournal reads a journal by the offsets that the format documents and by nothing
// else: it shares no code with the package. It panics on what it does not expect.
func parseJournal(b, bundle []byte) parsedJournal {
	le, table := binary.LittleEndian, crc32.MakeTable(crc32.Castagnoli)
	must := func(ok bool, what string) {
		if !ok {
			panic(what)
		}
	}
	zero := func(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
	must(string(b[0:8]) == "pawljrnl", "magic")
	must(le.Uint32(b[8:]) == 1 && zero(b[12:28]), "version and flags")
	must(le.Uint64(b[28:]) == uint64(len(b)) && len(b)%4096 == 0, "length")
	must(bytes.Equal(b[36:52], bundle[36:52]), "store id")
	must(bytes.Equal(b[52:68], bundle[52:68]), "epoch and revision of the bundle")
	must(bytes.Equal(b[68:100], bundle[68:100]), "history digest of the bundle")
	digest := sha256.Sum256(bundle)
	must([32]byte(b[100:132]) == digest, "disk digest of the bundle")
	must(zero(b[132:252]), "reserved")
	must(le.Uint32(b[252:]) == crc32.Checksum(b[:252], table), "header checksum")
	must(zero(b[256:4096]), "the rest of the first block")
	p := parsedJournal{StoreID: hex.EncodeToString(b[36:52]), Length: le.Uint64(b[28:]), Epoch: le.Uint64(b[52:]), Revision: le.Uint64(b[60:]),
		History: hex.EncodeToString(b[68:100]), Parent: hex.EncodeToString(b[100:132])}
	digest = sha256.Sum256(append(digest[:], b[:256]...))
	history := [32]byte(b[68:100])

	at := 4096
	for at < len(b) {
		n := 0
		if at%4096 <= 4092 {
			n = int(le.Uint32(b[at:]))
		}
		if n == 0 { // the batch ends, or the journal
			end := (at + 4095) / 4096 * 4096
			must(zero(b[at:end]), "the rest of a block")
			if end == at {
				break
			}
			at = end
			continue
		}
		frame := b[at : at+n]
		must(at%8 == 0, "alignment")
		must(le.Uint32(frame[4:]) == crc32.Checksum(frame[8:], table), "frame checksum")
		must([32]byte(frame[8:40]) == digest, "chain")
		digest = sha256.Sum256(append(digest[:], frame...))
		f := parsedFrame{At: at, Length: n, Parts: map[string]string{}, Digest: hex.EncodeToString(digest[:])}

		length := int(le.Uint32(frame[40:]))
		rest, data := frame[44:44+length], frame[44+length:]
		head := rest[:le.Uint32(rest)]
		take := func(n int) []byte { t := rest[:n]; rest = rest[n:]; return t }
		u32 := func() int { return int(le.Uint32(take(4))) }
		u64 := func() uint64 { return le.Uint64(take(8)) }
		str := func() string { return string(take(int(le.Uint16(take(2))))) }
		u32()
		f.Commit = parsedCommit{Revision: u64(), Time: int64(u64()), FirstSeq: u64()}
		entries, sum := u32(), [32]byte(take(32))
		f.Commit.Schema, f.Commit.Program, f.Commit.ID = uint32(u32()), str(), str()
		for range u32() {
			name, size, digest := str(), int(u64()), [32]byte(take(32))
			must(sha256.Sum256(data[:size]) == digest, "part digest")
			f.Commit.Put = append(f.Commit.Put, fmt.Sprintf("%s %d %.8x", name, size, digest[:]))
			f.Parts[name], data = string(data[:size]), data[size:]
		}
		for range u32() {
			f.Commit.Deleted = append(f.Commit.Deleted, str())
		}
		all := sha256.New()
		for range entries {
			f.Commit.Entries = append(f.Commit.Entries, string(take(u32())))
			binary.Write(all, le, uint64(len(lastItem(f.Commit.Entries))))
			all.Write([]byte(lastItem(f.Commit.Entries)))
		}
		must([32]byte(all.Sum(nil)) == sum, "entries digest")
		must(len(rest) == 0 && len(data) == 0, "frame length")
		history = sha256.Sum256(append(history[:], head...))
		p.Frames = append(p.Frames, f)
		at += n
		for ; at%8 != 0; at++ {
			must(b[at] == 0, "after a frame")
		}
	}
	must(zero(b[at:]), "after the last batch")
	if len(p.Frames) > 0 {
		p.End = at
		p.History = hex.EncodeToString(history[:])
	}
	return p
}

// The format as documented is the format as written.
func TestJournalByItsDocumentation(t *testing.T) {
	bundle, trust := readGolden(t, "first.bundle"), string(readGolden(t, "journal.trust"))
	const start = 1764482400_123456789
	ref := func(name, data string) string {
		return fmt.Sprintf("%s %d %.8x", name, len(data), sha256.Sum256([]byte(data)))
	}
	want := parsedJournal{
		StoreID: "3f0c2a9d5e6b47188a90c1d2e3f40516", Length: 20480, Epoch: 1, Revision: 1,
		Parent: fmt.Sprintf("%x", sha256.Sum256(bundle)),
		End:    16384,
		Frames: []parsedFrame{
			// A frame: 44 bytes, and the record: a head of 80 bytes besides its texts.
			{At: 4096, Length: 44 + 80 + len("only-an-id"), Parts: map[string]string{},
				Commit: parsedCommit{Revision: 2, FirstSeq: 4, Time: start + 1e9, ID: "only-an-id"}},
			// In the same batch, at the next multiple of 8.
			{At: 4232, Length: 44 + 80 + (2 + 10 + 8 + 32) + (2 + 16) + (2 + 15) + (4 + 5) + 12, Parts: map[string]string{"state.json": `{"cursor":1}`},
				Commit: parsedCommit{Revision: 3, FirstSeq: 4, Time: start + 1e9, Put: []string{ref("state.json", `{"cursor":1}`)},
					Deleted: []string{"logs/größe.txt", "never/was/there"}, Entries: []string{"a\nb\x00c"}}},
			{At: 8192, Length: 44 + 80 + (2 + 3 + 8 + 32) + (2 + 1 + 8 + 32) + 2, Parts: map[string]string{"a/b": "a", "z": "z"},
				Commit: parsedCommit{Revision: 4, FirstSeq: 5, Time: start + 3e9, Put: []string{ref("a/b", "a"), ref("z", "z")}}},
			{At: 12288, Length: 44 + 80 + 16 + (2 + 10 + 8 + 32) + (2 + 1) + (4 + 4) + (4 + 9) + 12, Parts: map[string]string{"state.json": `{"cursor":2}`},
				Commit: parsedCommit{Revision: 5, FirstSeq: 5, Time: start + 4e9, ID: `call "7" größe`, Put: []string{ref("state.json", `{"cursor":2}`)},
					Deleted: []string{"z"}, Entries: []string{"last", "and least"}}},
		},
	}
	got := parseJournal(readGolden(t, "journal"), bundle)
	for i, f := range got.Frames {
		want.Frames[i].Digest = f.Digest // held against the trust file below
	}
	want.History = got.History
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the journal by its documentation (-want +got):\n%s", diff)
	}
	if line := fmt.Sprintf("\nconfirmed 5 1 16384 sha256:%s\nhistory sha256:%s\n", lastItem(got.Frames).Digest, got.History); strings.Count(trust, line) != 2 {
		t.Errorf("the trust file does not say %q:\n%s", line, trust)
	}
	intent := string(readGolden(t, "journal-intent.trust"))
	for _, line := range []string{"\nconfirmed 4 1 12288 sha256:" + got.Frames[2].Digest + "\n", "\npending 5 1 16384 sha256:" + got.Frames[3].Digest + "\ncommits 1 "} {
		if !strings.Contains(intent, line) {
			t.Errorf("the trust file with an intent does not say %q:\n%s", line, intent)
		}
	}
}

// rootLine is what a line of a trust file says of a state.
var rootLine = regexp.MustCompile(`\nconfirmed ([0-9]+) ([0-9]+) ([0-9]+) sha256:([0-9a-f]{64})\nhistory sha256:([0-9a-f]{64})\n`)

// confirmed is the newest record of a trust file that has no intent.
func confirmed(t testing.TB, ring []byte) string {
	t.Helper()
	slot := newestSlot(t, ring)
	m := rootLine.FindStringSubmatch(string(ring[slot*4096 : (slot+1)*4096]))
	if m == nil {
		t.Fatalf("no state is confirmed:\n%s", ring[slot*4096:(slot+1)*4096])
	}
	return strings.Join(m[1:], " ")
}

// holds checks, from the files alone, that bundle and journal are what the trust file
// confirms: bundle, header and frames chained, as the documentation has it.
func (b *bench) holds(epoch int) parsedJournal {
	b.t.Helper()
	bundle := read(b.t, b.bundle)
	p := parseJournal(read(b.t, journalOf(b, epoch)), bundle)
	last := lastItem(p.Frames)
	if got, want := confirmed(b.t, read(b.t, b.slots)), fmt.Sprintf("%d %d %d %s %s", last.Commit.Revision, epoch, p.End, last.Digest, p.History); got != want {
		b.t.Errorf("the trust file confirms\n%s, and the files are\n%s", got, want)
	}
	return p
}

// inOneBatch makes commits in one batch.
func inOneBatch(t *testing.T, s *pawl.Store, changes ...pawl.Change) {
	t.Helper()
	errs := make(chan error, len(changes))
	_, err := s.Update(context.Background(), "", func(pawl.View) (pawl.Change, error) {
		for i, c := range changes[1:] {
			go func() { _, err := s.Commit(context.Background(), c); errs <- err }()
			for s.Stats().Waiting != int64(i+1) {
				time.Sleep(100 * time.Microsecond)
			}
		}
		return changes[0], nil
	})
	for range changes[1:] {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestJournalChain: through the public API, the digest in the trust file is the chain
// over bundle, header and frames, at every commit, whatever its shape.
func TestJournalChain(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	entry := func(n int) pawl.Change { return pawl.Change{Entries: [][]byte{bytes.Repeat([]byte{'e'}, n)}} }
	frames := 0
	for i, batch := range [][]pawl.Change{
		{change(2)}, {change(3), change(4), change(5)}, {{ID: "only an id"}}, {entry(0)}, {entry(1), entry(9000), entry(2)},
		{{Put: map[string][]byte{"a": nil, "b": make([]byte, 5000)}}, {Delete: []string{"a", "b", "never there"}}}, {entry(7)},
	} {
		batches := s.Stats().Batches
		inOneBatch(t, s, batch...)
		frames += len(batch)
		p := b.holds(1)
		if len(p.Frames) != frames || s.Stats().Batches != batches+1 || s.Stats().Publishes != 1 {
			t.Fatalf("batch %d: %d frames, want %d; %+v", i, len(p.Frames), frames, s.Stats())
		}
		if first := p.Frames[frames-len(batch)]; first.At%4096 != 0 {
			t.Errorf("batch %d begins at %d", i, first.At)
		}
		v := s.View().Version()
		if got := fmt.Sprintf("sha256:%s", p.History); got != v.Digest.String() || lastItem(p.Frames).Commit.Revision != uint64(v.Revision) {
			t.Errorf("batch %d: the history ends at %s, the view at %s", i, got, v)
		}
	}
	says := dump(s.View())
	if err := s.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.holds(1)
	b.opens(says)
}

// TestJournalBlocks: batches that end at the end of a block, or just before or after
// it; with one frame or several, in one block or over many.
func TestJournalBlocks(t *testing.T) {
	// A frame with one entry of no bytes and nothing else: 44 bytes, a head of 80, and
	// the length of the entry.
	const overhead = 44 + 80 + 4
	fill := func(size int) pawl.Change {
		return pawl.Change{Entries: [][]byte{bytes.Repeat([]byte{'x'}, size-overhead)}}
	}
	for _, tt := range []struct {
		name  string
		sizes []int // of the frames of one batch
		ends  int   // blocks that it takes
	}{
		{"a block", []int{4096}, 1},
		{"a block but for a byte", []int{4095}, 1},
		{"a block but for eight bytes", []int{4088}, 1},
		{"a block but for four bytes", []int{4092}, 1},
		{"a block and a byte", []int{4097}, 2},
		{"two blocks", []int{8192}, 2},
		{"three blocks and a byte", []int{3*4096 + 1}, 4},
		{"two frames in a block", []int{2048, 2048}, 1},
		{"two frames, the second in the next block", []int{4096, 200}, 2},
		{"two frames, the second from seven bytes before the end", []int{4089, 200}, 2},
		{"two frames, the second from eight bytes before the end", []int{4088, 200}, 2},
		{"two frames, the second to the end", []int{201, 4096 - 208}, 1},
		{"two frames, the second a byte beyond the end", []int{201, 4096 - 207}, 2},
		{"three frames over three blocks", []int{4000, 5000, 3000}, 3},
		{"many small frames", slices.Repeat([]int{overhead}, 40), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, s := quickStore(t, new(tap), nil)
			var batch []pawl.Change
			for _, n := range tt.sizes {
				batch = append(batch, fill(n))
			}
			// As the first batch of a journal, and after others.
			end := 4096
			for range 2 {
				inOneBatch(t, s, batch...)
				p := b.holds(1)
				if p.End != end+4096*tt.ends {
					t.Fatalf("the batch ends at %d, want %d", p.End, end+4096*tt.ends)
				}
				at := end
				for i, f := range p.Frames[len(p.Frames)-len(batch):] {
					if f.At != at || f.Length != tt.sizes[i] {
						t.Errorf("frame %d is at %d with %d bytes, want %d with %d", i, f.At, f.Length, at, tt.sizes[i])
					}
					at = (f.At + f.Length + 7) / 8 * 8
				}
				end = p.End
			}
			says := dump(s.View())
			if err := errors.Join(s.Verify(context.Background(), nil), s.Close()); err != nil {
				t.Fatal(err)
			}
			b.opens(says)
		})
	}
}

// TestJournalFull: batches up to the last block of the journal, and the one after them
// publishes. The next journal is of the next epoch, and larger.
func TestJournalFull(t *testing.T) {
	b, s := quickStore(t, new(tap), &pawl.Options{Limits: pawl.Limits{Journal: 16 * 4096}})
	block := pawl.Change{Entries: [][]byte{[]byte("x")}}
	for epoch := 1; epoch <= 3; epoch++ {
		for i := range 15 {
			if _, err := s.Commit(context.Background(), block); err != nil {
				t.Fatal(err)
			}
			if p := b.holds(epoch); p.End != 4096*(i+2) || len(p.Frames) != i+1 || p.Length != 16*4096 {
				t.Fatalf("epoch %d, commit %d: %d frames up to %d of %d", epoch, i, len(p.Frames), p.End, p.Length)
			}
		}
		v := s.View().Version()
		if _, err := s.Commit(context.Background(), block); err != nil {
			t.Fatal(err)
		}
		bundle := read(t, b.bundle)
		if got, want := confirmed(t, read(t, b.slots)), fmt.Sprintf("%d %d 0 %x", v.Revision+1, epoch+1, sha256.Sum256(bundle)); !strings.HasPrefix(got, want) {
			t.Errorf("the trust file confirms %s, want %s", got, want)
		}
		if names, err := filepath.Glob(filepath.Join(b.dir, "journal.*")); err != nil || names != nil {
			t.Errorf("after publishing there are %q, %v", names, err)
		}
	}
	says := dump(s.View())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.opens(says)
}

// TestCheckpointTellsTheSame: the state is the same in bundle and journal as it is in
// the bundle that takes their place, in memory, on disk and when it is opened again.
func TestCheckpointTellsTheSame(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	for _, batch := range [][]pawl.Change{{change(2), change(3)}, {{Delete: []string{"state"}, Put: map[string][]byte{"other": {}}}}, {change(5)}} {
		inOneBatch(t, s, batch...)
	}
	says, inJournal := dump(s.View()), b.holds(1)
	if err := s.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		bundle := read(t, b.bundle)
		p := parseBundle(bundle)
		if p.Revision != 5 || p.Epoch != 2 || p.History != inJournal.History || p.Parent != lastItem(inJournal.Frames).Digest {
			t.Errorf("the bundle: %+v; the journal was %+v", p, inJournal)
		}
		for i, f := range inJournal.Frames {
			if diff := cmp.Diff(f.Commit, p.Commits[i+1]); diff != "" {
				t.Errorf("commit %d (-journal +bundle):\n%s", i, diff)
			}
		}
		if diff := cmp.Diff(map[string]string{"state": "state 5", "other": ""}, p.Parts); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
		if got, want := confirmed(t, read(t, b.slots)), fmt.Sprintf("5 2 0 %x %s", sha256.Sum256(bundle), p.History); got != want {
			t.Errorf("the trust file confirms\n%s, want\n%s", got, want)
		}
		if _, err := os.Lstat(journalOf(b, 1)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the journal: %v", err)
		}
	}
	check()
	if got := dump(s.View()); got != says {
		t.Errorf("the view changed:\n%s", cmp.Diff(says, got))
	}
	// A second one has nothing to do.
	if err := s.Checkpoint(context.Background()); err != nil || s.Stats().Publishes != 2 {
		t.Errorf("again: %v, %d publishes", err, s.Stats().Publishes)
	}
	if err := errors.Join(s.Verify(context.Background(), nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	check()
	b.opens(says)
}
