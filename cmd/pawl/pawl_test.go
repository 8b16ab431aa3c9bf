package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/seed-5cdcd42d/pawl"
)

// place is a pair of directories that commands are run on.
type place struct {
	t            *testing.T
	store, trust string
}

func newPlace(t *testing.T) *place {
	root := t.TempDir()
	return &place{t, filepath.Join(root, "session"), filepath.Join(root, "trust")}
}

// run runs pawl with an input, and returns what it wrote and the exit code.
func (p *place) run(in string, args ...string) (out, err string, code int) {
	p.t.Helper()
	return p.runIn(p.t.Context(), strings.NewReader(in), args...)
}

func (p *place) runIn(ctx context.Context, in io.Reader, args ...string) (string, string, int) {
	var out, err bytes.Buffer
	code := p.call(in, &out, &err).main(ctx, args)
	return out.String(), err.String(), code
}

func (p *place) call(in io.Reader, out, err io.Writer) *call {
	env := map[string]string{"PAWL_STORE": p.store, "PAWL_TRUST": p.trust}
	return &call{in: in, out: out, err: err, env: func(k string) string { return env[k] }}
}

// must is run for a command that has to go well and say nothing on the side.
func (p *place) must(in string, args ...string) string {
	p.t.Helper()
	out, err, code := p.run(in, args...)
	if code != 0 || err != "" {
		p.t.Fatalf("pawl %s: exit code %d\n%s", strings.Join(args, " "), code, err)
	}
	return out
}

var changing = []*regexp.Regexp{
	regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z`),
	regexp.MustCompile(`\b[0-9a-f]{16,64}\b`),
	regexp.MustCompile(`\bin \d+\.\d s\b`),
	regexp.MustCompile(`"seconds":[0-9.e-]+`),
	regexp.MustCompile(`\b(\d+ B|[0-9.]+ [KMGT]iB)`),
	regexp.MustCompile(`"(entry_)?bytes":\d+|"bytes_(before|after)":\d+`),
}

// same makes what differs from run to run the same.
func (p *place) same(s string) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, p.store, "STORE"), p.trust, "TRUST")
	for _, r := range changing {
		s = r.ReplaceAllString(s, "…")
	}
	return s
}

// Each command once, as a person sees it.
func TestCommands(t *testing.T) {
	p := newPlace(t)
	for _, step := range []struct {
		args, in, want string
		code           int
	}{
		{"status", "", "store      STORE\ntrust      TRUST" + string(filepath.Separator) + "session.trust\nverdict    there is no store; Open would make one\n", 0},
		{"init", "", "an empty store is ready\n", 0},
		{"init", "", "an empty store is ready\n", 0},
		{"append --id a", "one\ntwo\nlast without a line feed", "1\t1\tone\n2\t2\ttwo\n3\t3\tlast without a line feed\n", 0},
		{"append --id a", "one\ntwo\n", "1\t1\tone\tagain\n2\t2\ttwo\tagain\n", 0}, // not committed twice
		{"append --batch 2", "x\ny\nz\n", "4\t5\t2 lines, to line 2\n5\t6\tz\n", 0},
		{"append --whole --id w", "a\nb\n", "6\t7\tpawl1.6.7.7.…\n", 0},
		{"append --lines", `{"id":"j","text":"json"}` + "\n" + `{"base64":"AP8="}` + "\n", `7	8	{"id":"j","text":"json"}` + "\n" + `8	9	{"base64":"AP8="}` + "\n", 0},
		{"append", "", "", 0},
		{"put state.json", `{"n":1}`, "9\t0\tpawl1.9.0.0.…\n", 0},
		{"put --lines", `{"part":"b","text":"B","id":"pb"}` + "\n", "10\t0\tpawl1.10.0.0.…\n", 0},
		{"put --delete b", "", "11\t0\tpawl1.11.0.0.…\n", 0},
		{"parts", "", "         …  state.json\n", 0},
		{"cat state.json", "", `{"n":1}`, 0},
		{"cat nothing", "", "", 3},
		{"log", "", "       1  one\n       2  two\n       3  last without a line feed\n       4  x\n       5  y\n       6  z\n" +
			"       7  \"a\\nb\"\n       8  json\n       9  \"\\x00\\xff\"\n", 0},
		{"log 2-3", "", "       2  two\n       3  last without a line feed\n", 0},
		{"log -n 1", "", "       9  \"\\x00\\xff\"\n", 0},
		{"log 8-", "", "       8  json\n       9  \"\\x00\\xff\"\n", 0},
		{"log --raw 7", "", "a\nb\n\n", 0},
		{"history 1-4", "", "       1  …  …  entry 1  a-1\n       2  …  …  entry 2  a-2\n       3  …  …  entry 3  a-3\n       4  …  …  entries 4-5\n", 0},
		{"history 10-", "", "      10  …  …  no entries  pb +b\n      11  …  …  no entries -b\n", 0},
		{"lookup a-2", "", "committed: revision 2\npawl1.2.2.2.…\n", 0},
		{"lookup never", "", "not committed\n", 3},
		{"verify", "", "all is well up to revision 11: … …\n", 0},
		{"compact --keep-last 2 --dry-run", "", "would drop 7 entries (…) of 6 commits, seqs 1 to 7\n2 entries are left\nspace … before, … after\n", 0},
		{"compact --keep-last 2", "", "dropped 7 entries (…) of 6 commits, seqs 1 to 7\n2 entries are left\nspace … before, … after\n", 0},
		{"log", "", "       8  json\n       9  \"\\x00\\xff\"\n", 0},
		{"history 1-2", "", "       1  …  …  entry 1*  a-1\n       2  …  …  entry 2*  a-2\n", 0},
		{"compact --keep-last 2 --forget-before 3", "", "dropped 0 entries (…) of 0 commits\n2 entries are left; 2 commits forgotten, to revision 2\nspace … before, … after\n", 0},
		{"lookup a-2", "", "forgotten\n", 3},
		{"recover", "", "there was nothing to settle\nthe store is at revision 11\n", 0},
		{"audit", "", "there is no audit file: nothing was settled yet\n", 0},
		{"init", "", "there is a store, at revision 11\n", 0},
	} {
		out, err, code := p.run(step.in, strings.Fields(step.args)...)
		if diff := cmp.Diff(step.want, p.same(out)); diff != "" || code != step.code || code == 0 && err != "" {
			t.Errorf("pawl %s: exit code %d, want %d (-want +got):\n%s%s", step.args, code, step.code, diff, err)
		}
	}
	status := p.same(p.must("", "status"))
	for _, want := range []string{"verdict    good: Open serves the confirmed state", "closed     yes", "entries    9\n", "parts      1\n", ", 2 segments"} {
		if !strings.Contains(status, want) {
			t.Errorf("status does not say %q:\n%s", want, status)
		}
	}
}

// The names of the fields are a promise to programs.
func TestJSON(t *testing.T) {
	p := newPlace(t)
	steps := []struct{ args, in, want string }{
		{"init", "", `{"revision":0,"digest":"sha256:…"}`},
		{"append --id a", "one\n", `{"revision":1,"first_seq":1,"last_seq":1,"id":"a-1","receipt":"pawl1.1.1.1.…","line":1}`},
		{"append --id a", "one\n", `{"revision":1,"first_seq":1,"last_seq":1,"id":"a-1","replayed":true,"receipt":"pawl1.1.1.1.…","line":1}`},
		{"append --whole", "\xff", `{"revision":2,"first_seq":2,"last_seq":2,"receipt":"pawl1.2.2.2.…","line":1}`},
		{"put p", "P", `{"revision":3,"receipt":"pawl1.3.0.0.…","line":1}`},
		{"log", "", `{"seq":1,"revision":1,"text":"one"}` + "\n" + `{"seq":2,"revision":2,"base64":"/w=="}`},
		{"parts", "", `{"name":"p","size":1}`},
		{"cat p", "", `{"text":"P"}`},
		{"history 1-1", "", `{"revision":1,"digest":"sha256:…","id":"a-1","time":"…","first_seq":1,"last_seq":1,"receipt":"pawl1.1.1.1.…"}`},
		{"history 3", "", `{"revision":3,"digest":"sha256:…","time":"…","put":["p"],"receipt":"pawl1.3.0.0.…"}`},
		{"lookup a-1", "", `{"id":"a-1","outcome":"committed","commit":{"revision":1,"digest":"sha256:…","id":"a-1","time":"…","first_seq":1,"last_seq":1,"receipt":"pawl1.1.1.1.…"}}`},
		{"verify", "", `{"revision":3,"digest":"sha256:…",…,…}`},
		{"compact --keep-last 1 --dry-run", "", `{"dry_run":true,"entries":1,…,"first_seq":1,"last_seq":1,"commits":1,"kept":1,"forgotten":0,"forgotten_to":0,"files_made":1,"files_removed":0,…,…}`},
		{"recover", "", `{"settled":"nothing to settle","unclean":false,"state":{"revision":3,"epoch":1,"journal":12288,"digest":"sha256:…"}}`},
	}
	for _, step := range steps {
		out := p.must(step.in, append([]string{"--json"}, strings.Fields(step.args)...)...)
		for line := range strings.Lines(out) {
			if !json.Valid([]byte(line)) {
				t.Errorf("pawl --json %s: no JSON: %s", step.args, line)
			}
		}
		if diff := cmp.Diff(step.want+"\n", p.same(out)); diff != "" {
			t.Errorf("pawl --json %s (-want +got):\n%s", step.args, diff)
		}
	}
	var r pawl.Report
	if err := json.Unmarshal([]byte(p.must("", "status", "--json")), &r); err != nil || r.Verdict != "clean" || r.Found.Revision != 3 {
		t.Errorf("%v: %+v", err, r)
	}
	out, text, code := p.run("", "--json", "lookup", "never")
	if out != `{"id":"never","outcome":"not committed"}`+"\n" || text != "" || code != exitNot {
		t.Errorf("%q, %q, %d", out, text, code)
	}
}

// Each class of error has an exit code of its own, in JSON a name, and a place in the docs.
func TestExitCodes(t *testing.T) {
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]string{}
	for _, c := range codes {
		if other, ok := seen[c.code]; ok && other != c.name {
			t.Errorf("%q and %q have the exit code %d", c.name, other, c.code)
		}
		seen[c.code] = c.name
		for _, err := range []error{c.class, &pawl.Error{Op: "x", Kind: c.class}} {
			if exitCode(err) != c.code || className(err) != c.name {
				t.Errorf("%v: exit code %d, %q", err, exitCode(err), className(err))
			}
		}
		if row := fmt.Sprintf("| %d | `%s` |", c.code, c.name); !strings.Contains(string(docs), row) {
			t.Errorf("docs/cli.md does not have %q", row)
		}
	}
	if exitCode(errors.New("x")) != exitOther {
		t.Error("an error of no class")
	}
	for _, cmd := range commands {
		if !strings.Contains(string(docs), "pawl "+cmd.name) {
			t.Errorf("docs/cli.md does not tell of %q", cmd.name)
		}
	}
}

// A store that is not as it should be: what a person and a script see.
func TestTrouble(t *testing.T) {
	p := newPlace(t)
	p.must("one\ntwo\n", "init")
	p.must("one\ntwo\n", "append")
	older := map[string][]byte{}
	keep := func(to map[string][]byte) {
		entries, err := os.ReadDir(p.store)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if b, err := os.ReadFile(filepath.Join(p.store, e.Name())); err == nil {
				to[e.Name()] = b
			}
		}
	}
	keep(older)
	p.must("three\n", "append")
	newest := map[string][]byte{}
	keep(newest)
	trust, err := os.ReadFile(filepath.Join(p.trust, "session.trust"))
	if err != nil {
		t.Fatal(err)
	}
	lay := func(files map[string][]byte) {
		for name, b := range files {
			if err := os.WriteFile(filepath.Join(p.store, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name string
		code int
		do   func()
	}{
		{"rolled back", 16, func() { lay(older) }},
		{"damaged", 19, func() { lay(map[string][]byte{"bundle": bytes.Repeat([]byte("x"), 400)}) }},
		{"missing", 15, func() { os.Remove(filepath.Join(p.store, "bundle")) }},
		{"untrusted", 12, func() { os.Remove(filepath.Join(p.trust, "session.trust")) }},
		{"trust damaged", 13, func() { os.Truncate(filepath.Join(p.trust, "session.trust"), 100) }},
	} {
		lay(newest)
		tt.do()
		out, _, code := p.run("", "status")
		if code != tt.code || !strings.Contains(out, "Open refuses") || !strings.Contains(out, "what to do: ") {
			t.Errorf("%s: status says, with exit code %d:\n%s", tt.name, code, out)
		}
		for _, args := range []string{"log", "verify", "recover", "append"} {
			out, text, code := p.run("x\n", args)
			if code != tt.code || out != "" || !strings.Contains(text, "what to do: ") {
				t.Errorf("%s: %s says, with exit code %d: %s%s", tt.name, args, code, out, text)
			}
			_, text, code = p.run("x\n", args, "--json")
			var got problem
			if err := json.Unmarshal([]byte(text), &got); err != nil || code != tt.code || got.Error != tt.name || got.Hint == "" || got.Path == "" {
				t.Errorf("%s: %s --json says, with exit code %d: %s", tt.name, args, code, text)
			}
		}
		if err := os.WriteFile(filepath.Join(p.trust, "session.trust"), trust, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lay(newest)
	p.must("", "verify")

	s, err := pawl.Open(t.Context(), p.store, p.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, text, code := p.run("x\n", "append"); code != 11 || !strings.Contains(text, "locked") {
		t.Errorf("beside a writer: %d, %s", code, text)
	}
	p.must("", "log") // which needs no lock
	p.must("", "status")
}

// Damage in old history is told with what is lost.
func TestDamageIsTold(t *testing.T) {
	p := newPlace(t)
	s, err := pawl.Open(t.Context(), p.store, p.trust, &pawl.Options{Limits: pawl.Limits{Unsealed: 1}, CheckpointEvery: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := s.Commit(t.Context(), pawl.Change{Entries: [][]byte{fmt.Append(nil, "entry ", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(p.store, "segments", "*"))
	if err != nil || len(segments) != 3 {
		t.Fatal(segments, err)
	}
	if err := os.WriteFile(segments[1], bytes.Repeat([]byte{0}, 500), 0o600); err != nil {
		t.Fatal(err)
	}
	_, text, code := p.run("", "verify")
	if code != 19 || !strings.Contains(text, "commits 2 to 2, entries 2 to 2") || !strings.Contains(text, filepath.Base(segments[1])) {
		t.Errorf("%d: %s", code, text)
	}
	out, _, code := p.run("", "log")
	if code != 19 || out != "       1  entry 0\n" {
		t.Errorf("%d: %s", code, out)
	}
	if out := p.must("", "log", "3-"); out != "       3  entry 2\n" {
		t.Error(out)
	}
}

// What a store holds cannot harm a terminal (R22).
func TestInert(t *testing.T) {
	p := newPlace(t)
	s, err := pawl.Open(t.Context(), p.store, p.trust, &pawl.Options{Program: "agent\u202e"})
	if err != nil {
		t.Fatal(err)
	}
	evil := "\x1b]0;owned\a\x1b[2J\r\b\x00\u009b31m\u202egnp\u2066\u200b\n"
	_, err = s.Commit(t.Context(), pawl.Change{
		ID: "id\u202e\u200f", Entries: [][]byte{[]byte(evil), []byte("\xff\xfe\x9b")},
		Put: map[string][]byte{"part\u202e/\u2028x": []byte(evil)},
	})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"log", "history", "parts", "status", "lookup id\u202e\u200f", "lookup \x1b[31m", "cat \x1b[31m", "frob\x1b", "log \x1b", "recover", "compact",
		"--json log", "--json history", "--json parts", "--json status", "--json lookup id\u202e\u200f", "--json cat part\u202e/\u2028x", "--json frob\x1b"} {
		out, text, _ := p.run(evil, strings.Split(args, " ")...)
		for _, r := range out + text {
			if r != '\n' && r != '\t' && r < ' ' || r >= 0x7f && r < 0xa0 {
				t.Errorf("%q prints %U: %q", args, r, out+text)
				break
			}
			if strings.ContainsRune("\u202e\u2066\u200b\u200f\u2028", r) {
				t.Errorf("%q prints %U: %q", args, r, out+text)
				break
			}
		}
	}
	if out := p.must("", "cat", "part\u202e/\u2028x"); out != evil {
		t.Errorf("cat changes the bytes: %q", out)
	}
}

// A line comes back when its commit is durable, and at once: a pipeline can rely on it.
func TestAppendAnswersEachLine(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	in, feed := io.Pipe()
	answers, out := io.Pipe()
	code := make(chan int)
	go func() {
		c := p.call(in, out, io.Discard)
		code <- c.main(context.Background(), []string{"append"})
		out.Close()
	}()
	lines := bufio.NewScanner(answers)
	for i := 1; i <= 5; i++ {
		if _, err := fmt.Fprintf(feed, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != fmt.Sprintf("%d\t%d\tline %d", i, i, i) {
			t.Fatalf("line %d is answered with %q", i, lines.Text())
		}
		r, err := pawl.Inspect(t.Context(), p.store, p.trust, nil)
		if err != nil || r.Confirmed.Revision != pawl.Revision(i) || r.Verdict != "clean" {
			t.Fatalf("line %d was answered, and the store is at %+v: %v", i, r.Confirmed, err)
		}
	}
	feed.Close()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
}

// What is wrong with the input ends it; what came before is committed, and was printed.
func TestBadInput(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	for _, bad := range []string{"{", "{}", `{"text":"a","base64":"YQ=="}`, `{"text":"a"} {}`, `{"text":"a"}}`, `{"text":"a"}]`, "{\"text\":\"\xff\"}", `{"txt":"a"}`, `{"base64":"*"}`, "", "1", "null", "[]",
		`{"text":"a","text":"b"}`, `{"text":"\ud800"}`, `{"text":"\udc00\ud800"}`, `{"text":"\\\ud83dx"}`, `{"text":7}`, `{"text":"a"`, `{"text":"a","id":["x"]}`} {
		before := strings.Count(p.must("", "log"), "\n")
		out, text, code := p.run(`{"text":"good"}`+"\n"+bad+"\n"+`{"text":"never"}`+"\n", "append", "--lines")
		if code != exitUsage || strings.Count(out, "\n") != 1 || !strings.Contains(text, "line 2") {
			t.Errorf("%q: exit code %d, %q, %q", bad, code, out, text)
		}
		if after := strings.Count(p.must("", "log"), "\n"); after != before+1 {
			t.Errorf("%q: %d entries more", bad, after-before)
		}
	}
	for _, args := range []string{"append --batch 0", "append --whole --lines", "put", "put a b", "put --lines a", "log 3-2", "log x", "log 1 2", "cat", "lookup", "append --expect x",
		"compact", "doctor one", "log --frob", "help frob"} {
		if _, text, code := p.run("", strings.Fields(args)...); code != exitUsage || text == "" {
			t.Errorf("pawl %s: exit code %d, %s", args, code, text)
		}
	}
	// So it is in a batch, and what only looks like half a character is none.
	before := strings.Count(p.must("", "log"), "\n")
	out, _, code := p.run(`{"text":"\\ud800"}`+"\n"+`{"text":"\ud83d\ude00"}`+"\nbad\n", "append", "--lines", "--batch", "3")
	if log := p.must("", "log", "--raw"); code != exitUsage || strings.Count(out, "\n") != 1 || strings.Count(log, "\n") != before+2 || !strings.HasSuffix(log, "\\ud800\n😀\n") {
		t.Errorf("exit code %d, %q\n%s", code, out, log)
	}
	// A store and its state are asked for, and not found.
	receipt := strings.Split(strings.TrimSpace(p.must("x", "append", "--whole")), "\t")[2]
	p.must("y", "append", "--whole", "--expect", receipt)
	if _, _, code := p.run("z", "append", "--whole", "--expect", receipt); code != 32 {
		t.Errorf("a stale state: exit code %d", code)
	}
	if _, _, code := p.run("other\n", "append", "--id", "again"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, _, code := p.run("another\n", "append", "--id", "again"); code != 33 {
		t.Errorf("an id for something else: exit code %d", code)
	}
	for _, env := range []string{"PAWL_STORE", "PAWL_TRUST"} {
		c := p.call(nil, io.Discard, io.Discard)
		all := c.env
		c.env = func(k string) string {
			if k == env {
				return ""
			}
			return all(k)
		}
		if code := c.main(t.Context(), []string{"log"}); code != exitUsage {
			t.Errorf("without %s: exit code %d", env, code)
		}
	}
}

func TestFollow(t *testing.T) {
	p := newPlace(t)
	s, err := pawl.Open(t.Context(), p.store, p.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit := func(text string) {
		if _, err := s.Commit(t.Context(), pawl.Change{Entries: [][]byte{[]byte(text)}}); err != nil {
			t.Fatal(err)
		}
	}
	commit("first")
	ctx, stop := context.WithCancel(t.Context())
	got, out := io.Pipe()
	code := make(chan int)
	go func() {
		code <- p.call(nil, out, io.Discard).main(ctx, []string{"log", "-f"})
		out.Close()
	}()
	lines := bufio.NewScanner(got)
	for i, text := range []string{"first", "second", "third"} {
		if i > 0 {
			commit(text)
		}
		if !lines.Scan() || strings.TrimSpace(lines.Text()) != fmt.Sprintf("%d  %s", i+1, text) {
			t.Fatalf("%q, want %s", lines.Text(), text)
		}
	}
	stop()
	go io.Copy(io.Discard, got)
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
}

// Help fits in 80 columns and names every flag.
func TestHelp(t *testing.T) {
	p := newPlace(t)
	all := p.must("", "help")
	for _, args := range [][]string{{}, {"-h"}, {"--help"}} {
		if out := p.must("", args...); out != all {
			t.Errorf("pawl %v says\n%s", args, out)
		}
	}
	for _, cmd := range commands {
		if !strings.Contains(all, "  "+cmd.name+" ") {
			t.Errorf("help does not list %s", cmd.name)
		}
		out := p.must("", "help", cmd.name)
		if again := p.must("", cmd.name, "--help"); again != out {
			t.Errorf("pawl %s --help says\n%s", cmd.name, again)
		}
		all += out
	}
	for line := range strings.Lines(all) {
		if utf8.RuneCountInString(line) > columns+1 {
			t.Errorf("more than %d columns: %s", columns, line)
		}
	}
}

func TestDoctor(t *testing.T) {
	p := newPlace(t)
	before, err := os.ReadDir(filepath.Dir(p.store))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, text, code := p.run("", "--json", "doctor", p.store, p.trust)
		if code != 0 {
			t.Fatalf("exit code %d\n%s%s", code, out, text)
		}
		checks := map[string]int{}
		for line := range strings.Lines(out) {
			var f finding
			if err := json.Unmarshal([]byte(line), &f); err != nil || f.Result != "pass" && f.Result != "warn" || f.Reason == "" {
				t.Errorf("%v: %s", err, line)
			}
			checks[f.Check]++
		}
		for _, check := range []string{"path", "file system", "permissions", "free space", "mounted files", "making files", "flush of a file", "flush of a directory",
			"replacing by rename", "no replacing by link", "locks", "case of names"} {
			if checks[check] != 2 {
				t.Errorf("%q is checked %d times", check, checks[check])
			}
		}
		if after, err := os.ReadDir(filepath.Dir(p.store)); err != nil || len(after) != len(before) {
			t.Errorf("doctor leaves %v", after)
		}
		p.must("", "init")
		before, _ = os.ReadDir(filepath.Dir(p.store))
	}
	if _, _, code := p.run("", "doctor", p.store, p.store); code != exitUnfit {
		t.Errorf("one directory twice: exit code %d", code)
	}
	if _, _, code := p.run("", "doctor", p.store, filepath.Join(p.trust, "session.trust")); code != exitUnfit {
		t.Errorf("a file: exit code %d", code)
	}
	if runtime.GOOS == "windows" {
		return // modes say nothing there
	}
	if err := os.Chmod(p.trust, 0o777); err != nil {
		t.Fatal(err)
	}
	if out, _, code := p.run("", "doctor"); code != exitUnfit || !strings.Contains(out, "fail  trust  permissions") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// A long piece of work is shown on a terminal and nowhere else.
func TestProgress(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		var err bytes.Buffer
		p := progress{c: &call{err: &err, terminal: terminal}, what: "verified"}
		p.report(0, 100<<20)
		p.last = p.last.Add(-1e9)
		p.start = p.start.Add(-2e9)
		p.report(50<<20, 100<<20)
		p.end()
		if terminal != strings.Contains(err.String(), "verified 50.0 MiB of 100.0 MiB, 50%, ") || !terminal && err.Len() > 0 {
			t.Errorf("terminal %v: %q", terminal, err.String())
		}
	}
}

func TestVersion(t *testing.T) {
	p := newPlace(t)
	if out := p.must("", "version"); !strings.HasPrefix(out, "pawl ") || !strings.Contains(out, "format 1, go") {
		t.Error(out)
	}
}
