package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
)

// An interrupt ends a command that waits for input. What was printed is committed.
func TestInterruptedInput(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, feed := io.Pipe()
	out, shown := io.Pipe()
	var errs bytes.Buffer
	ended := make(chan int)
	go func() {
		ended <- p.call(in, shown, &errs).main(ctx, []string{"append"})
		shown.Close()
	}()
	if _, err := feed.Write([]byte("one\ntw")); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != "1\t1\tone\n" {
		t.Fatalf("%q, %v", line[:n], err)
	}
	cancel()
	if code := <-ended; code != 130 || !strings.Contains(errs.String(), "context canceled") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if out := p.must("", "log"); out != "       1  one\n" {
		t.Error(out)
	}
}

// R22: bytes are bytes in a file or a pipe, and harmless on a terminal.
func TestBytesOnATerminal(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	const harm = "\x1b]0;owned\a\nplain\n\x9b31m"
	p.must(harm, "put", "p")
	p.must(harm, "append", "--whole")
	for _, args := range [][]string{{"cat", "p"}, {"log", "--raw"}} {
		var out, errs bytes.Buffer
		c := p.call(strings.NewReader(""), &out, &errs)
		if code := c.main(t.Context(), args); code != 0 || strings.TrimSuffix(out.String(), "\n") != harm {
			t.Errorf("%v: %q, %d", args, out.String(), code)
		}
		out.Reset()
		c.screen = true
		if code := c.main(t.Context(), args); code != 0 || strings.ContainsAny(out.String(), "\x1b\a") || !utf8.ValidString(out.String()) || !strings.Contains(out.String(), "\nplain\n") {
			t.Errorf("%v on a terminal: %q, %d", args, out.String(), code)
		}
	}
	var out, errs bytes.Buffer
	c := p.call(strings.NewReader(""), &out, &errs)
	c.screen = true
	if code := c.main(t.Context(), []string{"backup", "-"}); code != exitUsage || out.Len() > 0 {
		t.Errorf("a backup was written to a terminal: exit code %d, %d bytes", code, out.Len())
	}
}

// A backup goes through a pipe.
func TestBackupThroughAPipe(t *testing.T) {
	p, other := newPlace(t), newPlace(t)
	p.must("", "init")
	p.must("one\ntwo\n", "append")
	tar := p.must("", "backup", "-")
	if out, errs, code := other.run(tar, "restore", "--verify", "-"); code != 0 || !strings.Contains(out, "the backup is whole") {
		t.Fatalf("%d: %s%s", code, out, errs)
	}
	if out, errs, code := other.run(tar, "restore", "-", "--reason", "moved"); code != 0 {
		t.Fatalf("%d: %s%s", code, out, errs)
	}
	if a, b := p.must("", "log"), other.must("", "log"); a != b || a == "" {
		t.Errorf("%q, restored %q", a, b)
	}
	if _, _, code := other.run(tar[:len(tar)/2], "restore", "--verify", "-"); code != 19 {
		t.Errorf("half a backup: exit code %d", code)
	}
}

// How it was called is told in JSON too.
func TestUsageJSON(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	for _, args := range [][]string{{"--json", "frob"}, {"frob", "--json"}, {"log", "--json", "--frob"}, {"log", "--json", "x-y"}, {"--json", "cat"}} {
		out, errs, code := p.run("", args...)
		var e problem
		if err := json.Unmarshal([]byte(errs), &e); err != nil || e.Error != "invalid" || e.Text == "" || out != "" || code != exitUsage {
			t.Errorf("%v: %q, %q, %d, %v", args, out, errs, code, err)
		}
	}
}

// Sizes are told of parts that cannot be read.
func TestPartsBesideDamage(t *testing.T) {
	p := newPlace(t)
	s, err := pawl.Open(t.Context(), p.store, p.trust, &pawl.Options{Limits: pawl.Limits{Inline: 1}, CheckpointEvery: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), pawl.Change{Put: map[string][]byte{"large": make([]byte, 2000), "small": {1}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(p.store, "parts", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Truncate(files[0], 10); err != nil {
		t.Fatal(err)
	}
	if out := p.must("", "--json", "parts"); out != "{\"name\":\"large\",\"size\":2000}\n{\"name\":\"small\",\"size\":1}\n" {
		t.Error(out)
	}
	if _, errs, code := p.run("", "cat", "large"); code != 19 {
		t.Errorf("%d: %s", code, errs)
	}
}

// full takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// An answer that could not be written is no success, and no full disk of the store.
func TestUnwritten(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	for _, args := range []string{"status", "append", "log", "history", "verify", "recover", "audit", "doctor", "help", "help log", "version", "lookup x", "remove", "--json status", "--json remove"} {
		var errs bytes.Buffer
		code := p.call(strings.NewReader("x\n"), full{}, &errs).main(t.Context(), strings.Fields(args))
		if code != exitOther || !strings.Contains(strings.Join(strings.Fields(errs.String()), " "), "output could not be written") {
			t.Errorf("pawl %s: exit code %d, %s", args, code, errs.String())
		}
		if args == "append" && !strings.Contains(errs.String(), "revision 1 is on stable storage") {
			t.Error(errs.String())
		}
	}
}

// R22: what is in the audit file is made harmless like all else, and each line is an object.
func TestAuditInert(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(p.store, "stray"), []byte("x"), 0o600))
	sum := sha256.Sum256([]byte("x"))
	p.must("", "quarantine", "--digest", pawl.Digest(sum).String(), "--reason", "bidi \u202e", "stray")
	f, err := os.OpenFile(filepath.Join(p.trust, "session.audit"), os.O_APPEND|os.O_WRONLY, 0)
	must(err)
	_, err = f.WriteString("{\"event\":\"\x9b31m\",\"reason\":\"\u009b\"}\n" + `{"event":"` + strings.Repeat("long", 1<<19) + "\"}\n{\"event\":\"cut \x1b]0;owned\a")
	must(errors.Join(err, f.Close()))
	for _, args := range [][]string{{"audit"}, {"--json", "audit"}} {
		out := p.must("", args...)
		if n := strings.Count(out, "\n"); args[0] == "--json" && n != 4 {
			t.Errorf("%d lines", n)
		}
		for line := range strings.Lines(out) {
			if strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\x00\x1b\a\u009b\u202e") || !utf8.ValidString(line) {
				t.Errorf("%v: %.200q", args, line)
			}
			if args[0] == "--json" && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %.200q", line)
			}
		}
	}
}

// The file is found where the trust file is, whatever the directory is called.
func TestAuditPlace(t *testing.T) {
	p := newPlace(t)
	if _, _, code := p.run("", "audit"); code != 10 {
		t.Errorf("without a store: exit code %d", code)
	}
	p.must("", "init")
	if out := p.must("", "audit"); !strings.Contains(out, "no audit file") {
		t.Error(out)
	}
	if err := os.WriteFile(filepath.Join(p.trust, "session.audit"), []byte("{\"event\":\"settle\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, code := p.run("", "audit", "--name", "../../x"); code != exitUsage {
		t.Errorf("a name that leads elsewhere: exit code %d", code)
	}
	if runtime.GOOS == "windows" {
		t.Skip("a link to a directory needs rights there, and Wine makes some that lead nowhere")
	}
	link := filepath.Join(filepath.Dir(p.store), "link")
	if err := os.Symlink(p.store, link); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	if out := p.must("", "audit", "--store", link); !strings.Contains(out, "settle") {
		t.Error(out)
	}
}

// What is printed to be typed does what was shown, to the store that it was shown of.
func TestCommandToType(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash to type it into")
	}
	p := newPlace(t)
	p.must("", "init")
	p.must("one\n", "append")
	other := filepath.Join(filepath.Dir(p.store), "it's another")
	trust := filepath.Join(filepath.Dir(p.store), "its trust")
	for from, to := range map[string]string{p.store: other, p.trust: trust} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(to, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	typed := func(text string) []string {
		t.Helper()
		_, command, ok := strings.Cut(text, "To do it:\n  ")
		if !ok {
			t.Fatalf("no command: %s", text)
		}
		out, err := exec.Command(shell, "-c", "pawl() { printf '%s\\0' \"$@\"; }; "+strings.Replace(command, "WHY", "tested", 1)).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	}
	at := []string{"--store", other, "--trust", trust, "--name", "session"}
	names := []string{"-dash", "sp ace", "it's", "$(touch pwned)", "back\\slash", "new\nline", "\x1b[31m", "\u202e", "\xff", "`x`'\x01", "é"}
	if runtime.GOOS != "linux" {
		names = []string{"-dash", "sp ace", "it's"} // the others are no names everywhere
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(other, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		_, text, code := p.run("", slices.Concat([]string{"quarantine"}, at, []string{"--", name})...)
		if code != exitNot {
			t.Fatalf("%q: exit code %d, %s", name, code, text)
		}
		if strings.ContainsAny(text, "\x1b\u202e\x01") || !utf8.ValidString(text) {
			t.Errorf("%q: %q", name, text)
		}
		p.must("", typed(text)...)
		if b, err := os.ReadFile(filepath.Join(other, "quarantine", name)); err != nil || string(b) != name {
			t.Errorf("%q is not in quarantine: %v", name, err)
		}
	}
	// As status shows a name, it may be given.
	if runtime.GOOS == "linux" {
		name := "\x1b[2J\xfe"
		if err := os.WriteFile(filepath.Join(other, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		quoted := strconv.QuoteToGraphic(name)
		if out := p.must("", slices.Concat([]string{"status"}, at)...); !strings.Contains(out, quoted) {
			t.Errorf("%s is not in %s", quoted, out)
		}
		if _, text, code := p.run("", slices.Concat([]string{"quarantine"}, at, []string{quoted})...); code != exitNot {
			t.Errorf("%d: %s", code, text)
		}
	}
	// The store in the environment is another one, and stays.
	out, text, _ := p.run("", slices.Concat([]string{"remove", "--json"}, at)...)
	var line rulingLine
	if err := json.Unmarshal([]byte(out), &line); err != nil || !strings.Contains(line.Command, "WHY") || !strings.HasSuffix(text, line.Command+"\n") && text != "" {
		t.Errorf("%v: %s %s", err, out, text)
	}
	_, text, _ = p.run("", slices.Concat([]string{"remove"}, at)...)
	p.must("", typed(text)...)
	if r := p.must("", "history"); strings.Count(r, "\n") != 1 {
		t.Error(r)
	}
	if r, err := pawl.Inspect(t.Context(), other, trust, &pawl.Options{Name: "session"}); err != nil || r.Verdict != "create" {
		t.Errorf("%v, %+v", err, r)
	}
}

// Flags are read wherever they are.
func TestFlagsBehind(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	p.must("P", "put", "p", "--shared")
	p.must("D", "put", "--", "--json")
	for _, args := range [][]string{{"cat", "p", "--json"}, {"--json", "cat", "p"}, {"cat", "--json", "--", "p"}} {
		if out := p.must("", args...); out != "{\"text\":\"P\"}\n" {
			t.Errorf("%v: %q", args, out)
		}
	}
	if out := p.must("", "cat", "--", "--json"); out != "D" {
		t.Errorf("%q", out)
	}
}

// A batch that a bad line cuts off is committed, but not under an id that is for all of it:
// the whole input, mended, is then committed once.
func TestBatchCutOff(t *testing.T) {
	p := newPlace(t)
	p.must("", "init")
	var lines []string
	for i := range 7 {
		lines = append(lines, `{"text":"`+strconv.Itoa(i)+`"}`)
	}
	good := strings.Join(lines, "\n") + "\n"
	bad := strings.Replace(good, `"4"`, "4", 1)
	for _, args := range [][]string{{"append", "--lines", "--batch", "3", "--id", "import"}, {"append", "--lines", "--batch", "3"}} {
		before := strings.Count(p.must("", "log"), "\n")
		out, _, code := p.run(bad, args...)
		log := strings.Count(p.must("", "log"), "\n") - before
		if want := map[bool]int{true: 3, false: 4}[len(args) > 4]; code != exitUsage || log != want {
			t.Errorf("%v: exit code %d, %d entries, %s", args, code, log, out)
		}
		if len(args) > 4 {
			p.must(good, args...)
			if log := p.must("", "log", "--raw"); log != "0\n1\n2\n3\n4\n5\n6\n" {
				t.Errorf("the mended input again: %q", log)
			}
		}
	}
}
