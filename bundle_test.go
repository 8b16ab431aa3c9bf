package pawl_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parsed is what a stranger makes of a bundle.
type parsed struct {
	StoreID         string
	Epoch, Revision uint64
	History, Parent string
	Parts           map[string]string
	Commits         []parsedCommit
}

type parsedCommit struct {
	Revision, FirstSeq uint64
	Time               int64
	ID                 string
	Put, Deleted       []string
	Entries            []string
}

// parseBundle reads a bundle by the offsets that the format documents and by
// nothing else: it shares no code with the package. It panics on what it does not
// expect.
func parseBundle(b []byte) parsed {
	le, table := binary.LittleEndian, crc32.MakeTable(crc32.Castagnoli)
	must := func(ok bool, what string) {
		if !ok {
			panic(what)
		}
	}
	must(string(b[0:8]) == "pawlbndl", "magic")
	must(le.Uint32(b[8:]) == 1 && bytes.Count(b[12:28], []byte{0}) == 16, "version and flags")
	must(le.Uint64(b[28:]) == uint64(len(b)), "length")
	must(bytes.Count(b[132:252], []byte{0}) == 120, "reserved")
	must(le.Uint32(b[252:]) == crc32.Checksum(b[:252], table), "header checksum")
	must(le.Uint32(b[len(b)-4:]) == crc32.Checksum(b[:len(b)-4], table), "checksum")
	p := parsed{StoreID: hex.EncodeToString(b[36:52]), Epoch: le.Uint64(b[52:]), Revision: le.Uint64(b[60:]),
		History: hex.EncodeToString(b[68:100]), Parent: hex.EncodeToString(b[100:132]), Parts: map[string]string{}}

	rest := b[256 : len(b)-4]
	take := func(n int) []byte { t := rest[:n]; rest = rest[n:]; return t }
	u32 := func() int { return int(le.Uint32(take(4))) }
	u64 := func() uint64 { return le.Uint64(take(8)) }
	str := func() string { return string(take(int(le.Uint16(take(2))))) }
	must(str() == "", "program")
	for range u32() {
		name := str()
		must(take(1)[0] == 0, "part kind")
		size, sum := u64(), [32]byte(take(32))
		p.Parts[name] = string(take(int(size)))
		must(sha256.Sum256([]byte(p.Parts[name])) == sum, "part digest")
	}
	revision, seq, history := u64(), u64(), [32]byte(take(32))
	must(revision == 0 && seq == 1, "base")
	must(history == sha256.Sum256(append([]byte("pawl history 1\n"), b[36:52]...)), "first history digest")
	for range u32() {
		length := u32()
		after, head := rest[length:], rest[:le.Uint32(rest)]
		must(u32() == len(head), "head length")
		c := parsedCommit{Revision: u64(), Time: int64(u64()), FirstSeq: u64()}
		entries, sum := u32(), [32]byte(take(32))
		must(u32() == 0 && str() == "", "schema and program")
		c.ID = str()
		for range u32() {
			c.Put = append(c.Put, fmt.Sprintf("%s %d %.8x", str(), u64(), take(32)))
		}
		for range u32() {
			c.Deleted = append(c.Deleted, str())
		}
		history = sha256.Sum256(append(history[:], head...))
		all := sha256.New()
		for range entries {
			c.Entries = append(c.Entries, string(take(u32())))
			binary.Write(all, le, uint64(len(lastItem(c.Entries))))
			all.Write([]byte(lastItem(c.Entries)))
		}
		must([32]byte(all.Sum(nil)) == sum, "entries digest")
		must(len(rest) == len(after), "record length")
		revision, seq = revision+1, seq+uint64(entries)
		must(c.Revision == revision && c.FirstSeq == seq-uint64(entries), "numbers")
		p.Commits = append(p.Commits, c)
	}
	must(len(rest) == 0 && revision == p.Revision && hex.EncodeToString(history[:]) == p.History, "end")
	return p
}

func lastItem[T any](s []T) T { return s[len(s)-1] }

func readGolden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "golden", "v1", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The format as documented is the format as written: somebody who has only the
// documentation reads the golden bundle.
func TestBundleByItsDocumentation(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	const start = 1764482400_123456789
	ref := func(name, data string) string {
		return fmt.Sprintf("%s %d %.8x", name, len(data), sha256.Sum256([]byte(data)))
	}
	want := parsed{
		StoreID:  "3f0c2a9d5e6b47188a90c1d2e3f40516",
		Epoch:    5,
		Revision: 5,
		Parent:   fmt.Sprintf("%x", sha256.Sum256(readGolden(t, "before.bundle"))),
		Parts:    map[string]string{"state.json": `{"cursor":2}`, "empty": "", "a/b": "a"},
		Commits: []parsedCommit{
			{Revision: 1, FirstSeq: 1, Time: start, ID: "begin",
				Put:     []string{ref("empty", ""), ref("logs/größe.txt", "line\r\n\x00"), ref("state.json", `{"cursor":0}`)},
				Entries: []string{"hello", "", string(all)}},
			{Revision: 2, FirstSeq: 4, Time: start + 1e9, ID: "only-an-id"},
			{Revision: 3, FirstSeq: 4, Time: start + 2e9, Put: []string{ref("state.json", `{"cursor":1}`)},
				Deleted: []string{"logs/größe.txt", "never/was/there"}, Entries: []string{"a\nb\x00c"}},
			{Revision: 4, FirstSeq: 5, Time: start + 3e9, Put: []string{ref("a/b", "a"), ref("z", "z")}},
			{Revision: 5, FirstSeq: 5, Time: start + 4e9, ID: `call "7" größe`, Put: []string{ref("state.json", `{"cursor":2}`)},
				Deleted: []string{"z"}, Entries: []string{"last", "and least"}},
		},
	}
	got := parseBundle(readGolden(t, "full.bundle"))
	// The trust file names the same history digest.
	trust := string(readGolden(t, "clean.trust"))
	if !strings.Contains(trust, "\nconfirmed 5 5 0 ") || !strings.Contains(trust, "\nhistory sha256:"+got.History+"\n") {
		t.Errorf("history %s is not that of the trust file:\n%s", got.History, trust)
	}
	want.History = got.History
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the bundle by its documentation (-want +got):\n%s", diff)
	}
	if plain := parseBundle(readGolden(t, "plain.bundle")); plain.Revision != 1 || len(plain.Parts) != 0 ||
		!cmp.Equal(plain.Commits, []parsedCommit{{Revision: 1, FirstSeq: 1, Time: start, ID: "nothing-else"}}) {
		t.Errorf("plain.bundle reads %+v", plain)
	}
}

// Each slot of a trust file is text that a stranger can check: the sum line is the
// SHA-256 of what stands above it.
func TestTrustByItsDocumentation(t *testing.T) {
	slot := regexp.MustCompile(`\A(pawl-trust 1 0 0 0
store [0-9a-f]{32}
sequence ([0-9]+)
confirmed (?:0|[1-9][0-9]* [1-9][0-9]* 0 sha256:[0-9a-f]{64}
history sha256:[0-9a-f]{64})
(?:pending [1-9][0-9]* [1-9][0-9]* 0 sha256:[0-9a-f]{64}
commits 1(?: "[ -~]*")*
)?state (?:open|closed)
path "[ -~]*"
)sum sha256:([0-9a-f]{64})
 +
\z`)
	for _, name := range []string{"clean.trust", "intent.trust", "plain.trust", "fresh.trust"} {
		b := readGolden(t, name)
		if len(b) != 4*4096 {
			t.Fatalf("%s has %d bytes", name, len(b))
		}
		records := 0
		for i := range 4 {
			text := string(b[i*4096 : (i+1)*4096])
			if text == strings.Repeat(" ", 4095)+"\n" {
				continue
			}
			records++
			m := slot.FindStringSubmatch(text)
			if m == nil {
				t.Errorf("%s, slot %d is not as documented:\n%s", name, i, text)
				continue
			}
			if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(m[1]))); sum != m[3] {
				t.Errorf("%s, slot %d: sum %s, want %s", name, i, m[3], sum)
			}
			var sequence int
			if fmt.Sscan(m[2], &sequence); sequence%4 != i {
				t.Errorf("%s, slot %d holds sequence %d", name, i, sequence)
			}
		}
		if records == 0 {
			t.Errorf("%s has no record", name)
		}
	}
}
