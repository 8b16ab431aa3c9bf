//go:build unix || windows

package pawl_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The documents are held against the code, so that they cannot fall behind it
// unnoticed. R3: what is claimed names what shows it, and that has to exist.

// documents are README.md, its neighbours, and docs/*.md.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			docs[filepath.ToSlash(path)] = readDoc(t, path)
		}
	}
	for _, want := range []string{"README.md", "docs/protocol.md", "docs/format.md", "docs/guarantees.md", "docs/operating.md"} {
		if docs[want] == "" {
			t.Errorf("%s is missing or empty", want)
		}
	}
	return docs
}

func readDoc(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

var (
	testNamed    = regexp.MustCompile(`\b(?:Test|Fuzz|Example)[A-Z]\w*`)
	testDeclared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)[A-Z]\w*)\(`)
)

// declaredTests are the names of all tests of the tree, of every platform.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testDeclared.FindAllStringSubmatch(readDoc(t, path), -1) {
				names[m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestDocsNameTestsThatExist(t *testing.T) {
	declared := declaredTests(t)
	for path, text := range documents(t) {
		if path != "README.md" && !strings.HasPrefix(path, "docs/") {
			continue // others show how to run tests by a pattern
		}
		for _, name := range testNamed.FindAllString(text, -1) {
			if !declared[name] {
				t.Errorf("%s names %s, and there is no such test", path, name)
			}
		}
	}
}

// Each line of the contract names a test, on the first page and in its own place.
func TestDocsShowEachGuarantee(t *testing.T) {
	const lines = 13
	guarantees := sections(readDoc(t, "docs/guarantees.md"), "### ")
	readme := readDoc(t, "README.md")
	for n := 1; n <= lines; n++ {
		g := "G" + strconv.Itoa(n)
		i := slices.IndexFunc(guarantees, func(s string) bool { return strings.HasPrefix(s, g+".") })
		if i < 0 || !testNamed.MatchString(guarantees[i]) {
			t.Errorf("docs/guarantees.md has no section %s that names a test", g)
		}
		row := regexp.MustCompile(`(?m)^\| ` + g + ` \|.*$`).FindString(readme)
		if !testNamed.MatchString(row) {
			t.Errorf("the table of guarantees in README.md has no row %s that names a test", g)
		}
	}
}

// sections splits a document at its headings of one depth.
func sections(text, heading string) []string {
	return strings.Split("\n"+text, "\n"+heading)[1:]
}

var (
	link       = regexp.MustCompile(`!?\[[^\]]*\]\(([^)\s]+)\)`)
	codeBlock  = regexp.MustCompile("(?ms)^```.*?^```$")
	headline   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors are the anchors of a document's headings, as they are made where the
// documents are shown.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range headline.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		slug := notInSlugs.ReplaceAllString(strings.ToLower(m[1]), "")
		found[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return found
}

func TestDocsLinksLead(t *testing.T) {
	docs := documents(t)
	pictures := map[string]bool{}
	for path, text := range docs {
		for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			if to = filepath.ToSlash(filepath.Join(filepath.Dir(path), to)); m[1][0] == '#' {
				to = path
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
				continue
			}
			if anchor != "" && strings.HasSuffix(to, ".md") && !anchors(docs[to])[anchor] {
				t.Errorf("%s links to %s, and there is no such heading", path, m[1])
			}
			pictures[to] = true
		}
	}
	drawn, err := filepath.Glob("docs/img/*.svg")
	if err != nil || len(drawn) < 3 {
		t.Fatalf("pictures: %v, %v", drawn, err)
	}
	for _, path := range drawn {
		if path = filepath.ToSlash(path); !pictures[path] {
			t.Errorf("no document shows %s", path)
		}
		checkPicture(t, path)
	}
}

// checkPicture wants well-formed XML that says what it shows, to those who do not see
// it, and that can be seen on a light and on a dark page.
func checkPicture(t *testing.T, path string) {
	t.Helper()
	text := readDoc(t, path)
	said := map[string]string{}
	var within []string
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		switch token := token.(type) {
		case xml.StartElement:
			within = append(within, token.Name.Local)
		case xml.EndElement:
			within = within[:len(within)-1]
		case xml.CharData:
			if len(within) > 0 {
				said[within[len(within)-1]] += strings.TrimSpace(string(token))
			}
		}
	}
	if said["title"] == "" || said["desc"] == "" {
		t.Errorf("%s has no <title> or no <desc>", path)
	}
	if !strings.Contains(said["style"], "prefers-color-scheme: dark") {
		t.Errorf("%s has no colours for a dark page", path)
	}
}

// sentinels are the names of the errors that errors.go exports.
func sentinels(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if strings.HasPrefix(name.Name, "Err") {
					names = append(names, name.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// R10: whoever meets an error finds what it means and what to do.
func TestDocsOperatingHasEachError(t *testing.T) {
	var described []string
	for _, m := range regexp.MustCompile("(?m)^### `(Err\\w+)`$").FindAllStringSubmatch(readDoc(t, "docs/operating.md"), -1) {
		described = append(described, m[1])
	}
	slices.Sort(described)
	want := sentinels(t)
	if diff := cmp.Diff(want, described); diff != "" {
		t.Errorf("errors.go (-) against the sections of docs/operating.md (+):\n%s", diff)
	}
	readme := readDoc(t, "README.md")
	for _, name := range want {
		if !strings.Contains(readme, "`"+name+"`") {
			t.Errorf("README.md does not name %s", name)
		}
	}
}

// The hints are quoted in the documents as the code has them.
func TestDocsQuoteEachHint(t *testing.T) {
	quoted := map[string]bool{}
	for _, line := range strings.Split(readDoc(t, "docs/operating.md"), "\n") {
		if q, ok := strings.CutPrefix(line, "> "); ok {
			quoted[q] = true
		}
	}
	var hints []string
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			hints = append(hints, hintsIn(t, path)...)
		}
	}
	if len(hints) < 20 {
		t.Fatalf("found only %d hints in the code: %q", len(hints), hints)
	}
	for _, hint := range hints {
		if !quoted[hint] {
			t.Errorf("docs/operating.md does not quote the hint %q", hint)
		}
		delete(quoted, hint)
	}
	for hint := range quoted {
		t.Errorf("docs/operating.md quotes a hint that the code does not have: %q", hint)
	}
}

// Each section about a class of error says all that somebody who meets it has to know.
func TestDocsSayWhatToDo(t *testing.T) {
	sections := strings.Split(readDoc(t, "docs/operating.md"), "\n### `Err")[1:]
	if len(sections) < 23 {
		t.Fatalf("%d sections", len(sections))
	}
	for _, s := range sections {
		s, _, _ = strings.Cut(s, "\n## ")
		line := regexp.MustCompile(`(?m)^\*Touched:\* .+\. \*Look:\* .+\. \*Choices:\* .+\. \*Command:\* .+\.$`)
		if name, _, _ := strings.Cut(s, "`"); len(line.FindAllString(s, -1)) != 1 {
			t.Errorf("the section about Err%s does not say what was touched, how to look, the choices and the command", name)
		}
	}
}

// hintsIn are the texts of hints in a file: constants called hint…, what hintOS
// returns, and what is assigned to a field Hint.
func hintsIn(t *testing.T, path string) (hints []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(e ast.Expr) {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return
		}
		if s, err := strconv.Unquote(lit.Value); err == nil && s != "" {
			hints = append(hints, s)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if strings.HasPrefix(name.Name, "hint") && i < len(n.Values) {
					keep(n.Values[i])
				}
			}
		case *ast.FuncDecl:
			if n.Name.Name == "hintOS" {
				ast.Inspect(n, func(n ast.Node) bool {
					if r, ok := n.(*ast.ReturnStmt); ok {
						for _, e := range r.Results {
							keep(e)
						}
					}
					return true
				})
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Hint" {
				keep(n.Value)
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if field, ok := to.(*ast.SelectorExpr); ok && field.Sel.Name == "Hint" && i < len(n.Rhs) {
					keep(n.Rhs[i])
				}
			}
		}
		return true
	})
	return hints
}

// The quickstart of the README is code that runs: the body of ExampleOpen.
func TestDocsQuickstartRuns(t *testing.T) {
	code := readmeCode(t, "Quickstart")
	// The first line of the example keeps it from leaving anything behind.
	want, ok := strings.CutPrefix(body(t, "example_test.go", "func ExampleOpen() {"), "defer scratch()()\n\n")
	if !ok {
		t.Error("ExampleOpen does not begin with a scratch directory")
	}
	if code != want {
		t.Errorf("the quickstart is not the body of ExampleOpen (-README +example):\n%s", cmp.Diff(code, want))
	}
	if n := strings.Count(code, "\n") + 1; n != 12 {
		t.Errorf("the quickstart has %d lines, not twelve", n)
	}
}

// commitOnce is the code that the README gives for a commit that fails.
func commitOnce(ctx context.Context, s *pawl.Store, c pawl.Change) (pawl.Receipt, error) {
	r, err := s.Commit(ctx, c) // c.ID names this commit and no other
	if !errors.Is(err, pawl.ErrInDoubt) {
		return r, err // nil: it is durable. Else it did not happen, and err says why
	}
	if _, err := s.Recover(ctx); err != nil {
		return r, err // still in doubt: call Recover again, or open the store again
	}
	if r, outcome, err := s.Lookup(ctx, c.ID); err != nil || outcome == pawl.OutcomeCommitted {
		return r, err
	}
	return s.Commit(ctx, c) // it did not happen, and cannot any more
}

// What the README says of a failed commit holds, whichever call fails, applied or
// not: no error but a certain one comes out, and the change is made once.
// Lessons: 33.
func TestDocsFailedCommit(t *testing.T) {
	const signature = "func commitOnce(ctx context.Context, s *pawl.Store, c pawl.Change) (pawl.Receipt, error) {"
	want := signature + "\n\t" + strings.ReplaceAll(body(t, "docs_test.go", signature), "\n", "\n\t") + "\n}"
	if code := readmeCode(t, "When a commit fails"); code != want {
		t.Errorf("the code for a failed commit is not that of commitOnce (-README +here):\n%s", cmp.Diff(code, want))
	}
	settled, step := 0, 1
	if testing.Short() {
		step = 3 // a store takes half a second under Wine
	}
	for _, done := range []bool{false, true} {
		for n := 1; ; n += step {
			plan := &faultfs.Plan{N: n, Only: faultfs.Call.Mutates, Action: faultfs.Action{Err: syscall.EIO, Done: done}}
			recovered := commitWithFault(t, plan)
			if t.Failed() {
				t.Fatalf("call %d failed, done %v: %v", n, done, plan.Fired())
			}
			if recovered {
				settled++
			}
			if plan.Fired() == nil {
				break
			}
		}
	}
	if settled == 0 {
		t.Error("no fault left the store in doubt")
	}
}

// commitWithFault makes a second commit under the plan, again where it is certain that
// it did not happen, and looks at what there is in the end.
func commitWithFault(t *testing.T, plan *faultfs.Plan) (recovered bool) {
	dir, trust := testkit.Dirs(t)
	machine := faultfs.New(vfs.OS(), filepath.Dir(dir))
	machine.NoFlush = true
	ctx := machine.Context(context.Background())
	s, err := pawl.Open(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Commit(ctx, pawl.Change{ID: "one", Entries: [][]byte{[]byte("1")}}); err != nil {
		t.Fatal(err)
	}
	machine.Set(plan.Hook)
	change := pawl.Change{ID: "two", Entries: [][]byte{[]byte("2")}}
	_, err = commitOnce(ctx, s, change)
	if err != nil {
		if !errors.Is(err, pawl.ErrNotCommitted) {
			t.Errorf("a failed commit is not certain: %v", err)
		}
		_, err = commitOnce(ctx, s, change)
	}
	if err != nil {
		t.Errorf("the second time too: %v", err)
	}
	machine.Set(nil)
	recovered = s.Stats().InDoubt > 0
	// What failed may be the flush of a confirm, when the machine is slow enough for the
	// store to be idle meanwhile: then Close says so, and nothing is lost.
	if err := s.Close(); err != nil && !errors.Is(err, pawl.ErrInDoubt) {
		t.Error(err)
	}
	again, err := pawl.Open(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for e, err := range again.View().Entries(0) {
		if err != nil || string(e.Data) != strconv.Itoa(int(e.Seq)) || e.Revision != pawl.Revision(e.Seq) {
			t.Errorf("entry %d of revision %d is %q, %v", e.Seq, e.Revision, e.Data, err)
		}
	}
	if v := again.View().Version(); v.Revision != 2 {
		t.Errorf("the store is at revision %d, not 2", v.Revision)
	}
	return recovered
}

// readmeCode is the first block of Go in a section of the README.
func readmeCode(t *testing.T, section string) string {
	t.Helper()
	_, text, found := strings.Cut(readDoc(t, "README.md"), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, code, ok := strings.Cut(text, "```go\n")
	code, _, closed := strings.Cut(code, "\n```\n")
	if !found || !ok || !closed {
		t.Fatalf("README.md has no section %q with a block of Go", section)
	}
	return code
}

// body is what a function of a file does, without its outer indent, and without the
// output of an example.
func body(t *testing.T, path, signature string) string {
	t.Helper()
	_, text, ok := strings.Cut(readDoc(t, path), "\n"+signature+"\n")
	text, _, closed := strings.Cut(text, "\n}\n")
	if !ok || !closed {
		t.Fatalf("%s has no %s", path, signature)
	}
	text, _, _ = strings.Cut(text, "\n\t// Output:")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "\t")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// The dumps in docs/format.md are of the golden files that are linked above them, byte
// for byte, plain.bundle whole, and the trust records shown there are whole.
func TestDocsFormatShowsGoldenFiles(t *testing.T) {
	const golden = "testdata/golden/v1/"
	text := readDoc(t, "docs/format.md")
	shown, file := map[string]int{}, ""
	for _, m := range regexp.MustCompile(`(?m)\]\(\.\./`+golden+`([\w.-]+)\)|^([0-9a-f]{8}): ((?:[0-9a-f]{2} )+)`).FindAllStringSubmatch(text, -1) {
		if m[1] != "" {
			file = m[1]
			continue
		}
		at, err := strconv.ParseInt(m[2], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		line, err := hex.DecodeString(strings.ReplaceAll(m[3], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		all, err := os.ReadFile(golden + file)
		if err != nil {
			t.Fatal(err)
		}
		if at > int64(len(all)) || !bytes.HasPrefix(all[at:], line) {
			t.Errorf("docs/format.md shows % x at %#x of %s, and that is something else", line, at, file)
		}
		shown[file] += len(line)
	}
	want, err := os.ReadFile(golden + "plain.bundle")
	if err != nil {
		t.Fatal(err)
	}
	if shown["plain.bundle"] != len(want) {
		t.Errorf("docs/format.md shows %d of the %d bytes of plain.bundle", shown["plain.bundle"], len(want))
	}
	for file, slot := range map[string]int{"intent.trust": 2, "plain.trust": 3, "journal.trust": 1} {
		ring, err := os.ReadFile(golden + file)
		if err != nil {
			t.Fatal(err)
		}
		if len(ring) != 4*4096 {
			t.Fatalf("%s has %d bytes", file, len(ring))
		}
		record := strings.TrimRight(string(ring[slot*4096:(slot+1)*4096]), " \n")
		if !strings.Contains(text, "```\n"+record+"\n```\n") {
			t.Errorf("docs/format.md does not show slot %d of %s:\n%s", slot, file, record)
		}
	}
}
