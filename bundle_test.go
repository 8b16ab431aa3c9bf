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
	Schema          uint32
	Program         string
	Parts           map[string]string
	Commits         []parsedCommit
}

type parsedCommit struct {
	Revision, FirstSeq uint64
	Time               int64
	Schema             uint32
	Program, ID        string
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
	must(bytes.Count(b[136:252], []byte{0}) == 116, "reserved")
	must(le.Uint32(b[252:]) == crc32.Checksum(b[:252], table), "header checksum")
	must(le.Uint32(b[len(b)-4:]) == crc32.Checksum(b[:len(b)-4], table), "checksum")
	p := parsed{StoreID: hex.EncodeToString(b[36:52]), Epoch: le.Uint64(b[52:]), Revision: le.Uint64(b[60:]),
		History: hex.EncodeToString(b[68:100]), Parent: hex.EncodeToString(b[100:132]), Schema: le.Uint32(b[132:]), Parts: map[string]string{}}

	rest := b[256 : len(b)-4]
	take := func(n int) []byte { t := rest[:n]; rest = rest[n:]; return t }
	u32 := func() int { return int(le.Uint32(take(4))) }
	u64 := func() uint64 { return le.Uint64(take(8)) }
	str := func() string { return string(take(int(le.Uint16(take(2))))) }
	p.Program = str()
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
	schema, program := uint32(0), ""
	for range u32() {
		length := u32()
		after, head := rest[length:], rest[:le.Uint32(rest)]
		must(u32() == len(head), "head length")
		c := parsedCommit{Revision: u64(), Time: int64(u64()), FirstSeq: u64()}
		entries, sum := u32(), [32]byte(take(32))
		c.Schema, c.Program, c.ID = uint32(u32()), str(), str()
		if c.Schema != 0 {
			schema = c.Schema
		}
		if c.Program != "" {
			program = c.Program
		}
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
	must(schema == p.Schema && program == p.Program, "schema and program are the last that a commit says")
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

// What commits say of their schema and program is where the format has it, and so is
// what the state says.
func TestSchemaByItsDocumentation(t *testing.T) {
	const start = 1764482400_123456789
	bundle := readGolden(t, "schema.bundle")
	b := parseBundle(bundle)
	if b.Schema != 2 || b.Program != "agent 2.0 (größe)" || len(b.Commits) != 4 {
		t.Errorf("%+v", b)
	}
	j := parseJournal(readGolden(t, "schema.journal"), bundle)
	var got []parsedCommit
	got = append(got, b.Commits...)
	for _, f := range j.Frames {
		got = append(got, f.Commit)
	}
	for i, want := range []parsedCommit{
		{ID: "before any"},
		{Schema: 1, Program: "agent 1.0"},
		{},
		{ID: "migrate", Schema: 2, Program: "agent 2.0 (größe)"},
		{Program: `agent "2.1"`},
		{ID: "migrate again", Schema: 1<<31 - 1},
	} {
		c := got[i]
		if c.ID != want.ID || c.Schema != want.Schema || c.Program != want.Program || c.Revision != uint64(i+1) || c.Time != start+int64(i)*1e9 {
			t.Errorf("commit %d is %+v, want %+v", i+1, c, want)
		}
	}
	if line := fmt.Sprintf("\nconfirmed 6 4 12288 sha256:%s\nhistory sha256:%s\nstate closed\n", lastItem(j.Frames).Digest, j.History); !strings.Contains(string(readGolden(t, "schema.trust")), line) {
		t.Errorf("the trust file does not say %q", line)
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
