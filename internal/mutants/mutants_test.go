package mutants

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	run  = flag.Bool("mutants", false, "build and test every mutant")
	find = flag.Bool("find", false, "run all tests on every mutant that names none, and write down which fails first")
	part = flag.Int("part", -1, "run only every fifth mutant of the table: 0 to 4")
	only = flag.String("only", "", "regular expression: the mutants to run")
)

const root = "../.."

func load(t *testing.T) []Mutant {
	t.Helper()
	all, err := Load(filepath.Join(root, "testdata", "mutants"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every mutant applies to the source as it is, says what it breaks and what catches
// it, and every contract line has at least two.
func TestMutantsApply(t *testing.T) {
	all := load(t)
	perLine, equivalent := map[int]int{}, 0
	for _, m := range all {
		source, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Apply(string(source)); err != nil {
			t.Error(err)
		}
		if m.Contract < 1 || m.Contract > Contracts || m.Why == "" || m.Old == m.New {
			t.Errorf("%s: contract line %d, why %q", m.Name, m.Contract, m.Why)
		}
		if (m.CaughtBy == "") == (m.Equivalent == "") {
			t.Errorf("%s: want either the test that catches it or why none can", m.Name)
		}
		if m.Equivalent != "" {
			equivalent++
		}
		perLine[m.Contract]++
	}
	for line := 1; line <= Contracts; line++ {
		if perLine[line] < 2 {
			t.Errorf("contract line %d has %d mutants, want 2", line, perLine[line])
		}
	}
	if len(all)-equivalent < 40 || equivalent > 5 {
		t.Errorf("%d mutants, %d of them equivalent; want 40 at least, 5 at most", len(all), equivalent)
	}
}

// Every mutant is caught by the test that it names.
func TestMutantsCaught(t *testing.T) {
	if !*run {
		t.Skip("building every mutant takes minutes: ask for it with -mutants")
	}
	pattern := regexp.MustCompile(*only)
	var mu sync.Mutex
	rows := map[string]string{}
	t.Run("all", func(t *testing.T) {
		for i, m := range load(t) {
			if m.Equivalent != "" || !pattern.MatchString(m.Name) || *part >= 0 && i%5 != *part%5 {
				continue
			}
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				by := m.CaughtBy
				if *find && by == "" {
					by = m.find(t)
				} else {
					m.caught(t)
				}
				mu.Lock()
				defer mu.Unlock()
				rows[m.Name] = fmt.Sprintf("| `%s` | %d | %s | `%s` |", m.Name, m.Contract, m.Why, by)
			})
		}
	})
	fmt.Println("| mutant | contract | what it does wrong | caught by |\n|---|---|---|---|")
	for _, m := range load(t) {
		if row, ok := rows[m.Name]; ok {
			fmt.Println(row)
		} else if m.Equivalent != "" {
			fmt.Printf("| `%s` | %d | %s | equivalent: %s |\n", m.Name, m.Contract, m.Why, m.Equivalent)
		}
	}
}

// caught runs the one test that must fail.
func (m Mutant) caught(t *testing.T) {
	pkg, test, ok := strings.Cut(m.CaughtBy, " ")
	if !ok {
		t.Fatalf("names no test: %q", m.CaughtBy)
	}
	failed, out := m.test(t, pkg, "^"+strings.ReplaceAll(test, "/", "$/^")+"$", "")
	if failed == "" {
		t.Errorf("survived %s in %s:\n%s", test, pkg, tail(out))
	}
}

// find runs tests until one fails and writes its name into the mutant's file.
func (m Mutant) find(t *testing.T) string {
	// Quick tests first: thousands of processes and faults only when they must.
	const slow = "TestFaults|TestKills|TestDoc|TestReadme|TestBadTrust|TestTrustFlip|Fuzz"
	for _, stage := range []struct{ pkg, run, skip string }{{".", "", slow}, {"crashtest", "", ""}, {".", slow, "Fuzz"}} {
		failed, out := m.test(t, stage.pkg, stage.run, stage.skip)
		if failed == "" {
			continue
		}
		by := stage.pkg + " " + failed
		path := filepath.Join(root, "testdata", "mutants", m.Name+".txt")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.Replace(b, []byte("-- old --\n"), []byte("caught by: "+by+"\n-- old --\n"), 1)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", by, tail(out))
		return by
	}
	t.Errorf("survived all tests")
	return ""
}

// test builds the package's tests with the mutant in them and returns the first
// test that failed.
func (m Mutant) test(t *testing.T, pkg, pattern, skip string) (failed, out string) {
	t.Helper()
	return m.runTest(t, m.build(t, pkg, filepath.Join(t.TempDir(), "mutant.test")), pkg, pattern, skip)
}

// build makes the test binary of a package with the mutant in it.
func (m Mutant) build(t *testing.T, pkg, bin string) string {
	t.Helper()
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(dir, m.File))
	if err != nil {
		t.Fatal(err)
	}
	mutated, err := m.Apply(string(source))
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	changed, overlay := filepath.Join(tmp, "mutant.go"), filepath.Join(tmp, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(dir, m.File): changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string][]byte{changed: []byte(mutated), overlay: replace} {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Without inlining and symbols a build takes two thirds of the time.
	build := exec.Command("go", "test", "-c", "-vet=off", "-gcflags=-l", "-ldflags=-s -w", "-overlay", overlay, "-o", bin, "./"+pkg)
	build.Dir = dir
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s does not build: %v\n%s", m.Name, err, b)
	}
	return bin
}

// runTest runs a test binary until the first failure.
func (m Mutant) runTest(t *testing.T, bin, pkg, pattern, skip string, flags ...string) (failed, out string) {
	t.Helper()
	cmd := exec.Command(bin, append([]string{"-test.short", "-test.failfast", "-test.v", "-test.run", pattern, "-test.skip", skip, "-test.timeout", (5 * time.Minute).String()}, flags...)...)
	cmd.Dir = filepath.Join(root, pkg)
	cmd.Env = append(os.Environ(), "PAWL_MUTANT="+m.Name)
	b, err := cmd.CombinedOutput()
	if err == nil {
		if pattern != "" && !bytes.Contains(b, []byte("=== RUN")) {
			t.Fatalf("no test matches %s", pattern)
		}
		return "", string(b)
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name, string(b)
		}
	}
	if bytes.Contains(b, []byte("panic: test timed out")) && pattern != "" {
		t.Fatalf("%s: out of time, and nothing found:\n%s", m.Name, tail(string(b)))
	}
	// A panic: the last test that began.
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "=== RUN   "); ok {
			failed, _, _ = strings.Cut(strings.TrimSpace(name), "/")
		}
	}
	return failed, string(b)
}

func tail(s string) string {
	if len(s) > 3000 {
		s = "…" + s[len(s)-3000:]
	}
	return s
}
