//go:build unix || windows

package main

import (
	"bytes"
	"fmt"
	"html"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// still is a machine whose clock and random numbers are always the same.
type still struct {
	vfs.FS
	random *rand.ChaCha8
}

func (s still) Now() time.Time  { return time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC) }
func (s still) Random(p []byte) { _, _ = s.random.Read(p) }
func (s still) Owner() string   { return "pid 4711 on ada" }

// TestPicture runs what the README shows as a picture, and holds it against that: a copy
// of yesterday was put back over a store, pawl refuses it, and an operator decides. With
// -update it draws the picture.
func TestPicture(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what is shown is that of a file system where a file can be replaced while it is open")
	}
	ctx := vfs.NewContext(t.Context(), still{vfs.OS(), rand.NewChaCha8([32]byte{})})
	p := newPlace(t)
	aside := regexp.MustCompile(`(quarantine/\S+)-[0-9a-f]{16}`)
	problem := regexp.MustCompile(`(?m)^pawl: [^$]*?\n(what to do)`)
	short := regexp.MustCompile(`sha256:([0-9a-f]{8})[0-9a-f]{56}`)
	var shown strings.Builder
	run := func(show bool, in string, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		p.call(strings.NewReader(in), &out, &out).main(ctx, args)
		for line := range strings.Lines(strings.ReplaceAll(strings.ReplaceAll(out.String(), p.store, "session"), p.trust, "trust")) {
			// What is to be typed again stays in one piece.
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns && !strings.HasPrefix(line, "  pawl ") {
				t.Errorf("%s: a line of %d columns: %s", args[0], n, line)
			}
		}
		if show {
			text := strings.Join(args, " ")
			for _, arg := range args {
				if strings.Contains(arg, " ") {
					text = strings.ReplaceAll(text, arg, "'"+arg+"'")
				}
			}
			if in != "" {
				text = "… | pawl " + text
			} else {
				text = "pawl " + text
			}
			text = strings.ReplaceAll(strings.ReplaceAll(text+"\n"+out.String(), p.store, "session"), p.trust, "trust")
			text = short.ReplaceAllString(strings.TrimRight(text, "\n")+"\n", "sha256:$1…")
			text = aside.ReplaceAllString(text, "$1-…")
			// Where a line was broken depends on the path that stood there.
			text = problem.ReplaceAllStringFunc(text, func(s string) string {
				return wrap(strings.TrimSuffix(s, "what to do")) + "\nwhat to do"
			})
			fmt.Fprintf(&shown, "$ %s\n", text)
		}
		return out.String()
	}
	run(false, "", "init")
	run(false, "read config.yaml\nwrite report.md\n", "append")
	yesterday := filesOf(t, p.store)
	run(false, "mail the report\ncharge the card\n", "append")
	(&ruin{place: p}).putBack(yesterday, p.store)
	run(true, "tidy up\n", "append")
	_, line, _ := strings.Cut(run(true, "", "adopt"), "--digest ")
	digest, _, _ := strings.Cut(line, " ")
	run(true, "", "adopt", "--digest", digest, "--reason", "the newer copy is lost")
	run(true, "tidy up\n", "append")
	run(true, "", "history")
	for _, command := range []string{"status", "audit", "parts", "log", "verify", "recover"} {
		run(false, "", command)
	}

	svg := drawTerminal(shown.String())
	path := filepath.Join("..", "..", "docs", "img", "recovery.svg")
	if *update {
		if err := os.WriteFile(path, []byte(svg), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(have), "\r\n", "\n") != svg {
		t.Errorf("docs/img/recovery.svg does not show what the commands say now; go test ./cmd/pawl -run TestPicture -update draws it anew. They say:\n%s", &shown)
	}
}

// drawTerminal draws what was typed and answered.
func drawTerminal(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var b strings.Builder
	const step, left, top = 18, 24, 58
	height := top + step*len(lines) + 8
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 %d" width="780" height="%d" role="img" aria-labelledby="title desc" font-family="ui-monospace, 'SFMono-Regular', Consolas, 'DejaVu Sans Mono', monospace" font-size="13">
  <title id="title">An older copy was put back, and what an operator does</title>
  <desc id="desc">A terminal. pawl append is refused, because the store was rolled back from revision 4 to revision 2. pawl adopt shows that revisions 3 and 4 would be lost, and the command to type. With a digest and a reason it makes revision 2 the trusted state, declared by revision 5, and sets the files aside. The next append is revision 6.</desc>
  <style>
    .bg { fill: #f6f8fa; stroke: #d1d9e0; }
    .dot { fill: #d1d9e0; }
    .out { fill: #59636e; }
    .cmd { fill: #1f2328; font-weight: 600; }
    .bad { fill: #cf222e; }
    .good { fill: #1a7f37; }
    @media (prefers-color-scheme: dark) {
      .bg { fill: #0d1117; stroke: #3d444d; }
      .dot { fill: #3d444d; }
      .out { fill: #9198a1; }
      .cmd { fill: #e6edf3; }
      .bad { fill: #f85149; }
      .good { fill: #3fb950; }
    }
  </style>
  <rect class="bg" x="0.5" y="0.5" width="779" height="%d" rx="8"/>
  <circle class="dot" cx="24" cy="22" r="6"/><circle class="dot" cx="44" cy="22" r="6"/><circle class="dot" cx="64" cy="22" r="6"/>
`, height, height, height-1)
	for i, line := range lines {
		class := "out"
		switch {
		case strings.HasPrefix(line, "$ "):
			class = "cmd"
		case strings.HasPrefix(line, "pawl: "), strings.HasPrefix(line, "lost "):
			class = "bad"
		case strings.HasPrefix(line, "now "), strings.HasPrefix(line, "what to do: "):
			class = "good"
		}
		if utf8.RuneCountInString(line) > columns+15 {
			line = clip(line, columns+15)
		}
		if line != "" {
			fmt.Fprintf(&b, "  <text class=\"%s\" x=\"%d\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", class, left, top+step*i, html.EscapeString(line))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}
