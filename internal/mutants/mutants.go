// Package mutants holds the tests against pawl with one step broken at a time. Each
// file in testdata/mutants names a contract line, a source file, the text to
// replace there and what it becomes; the build takes it as an overlay, so the core
// carries no hooks for it. A mutant says which test catches it.
//
//	go test ./internal/mutants                  do all mutants still apply?
//	go test ./internal/mutants -mutants         is each caught? prints the table
//	go test ./internal/mutants -mutants -find   which test catches each? (slow)
//	go test ./internal/mutants -strategies      how hard must one look? (slow)
package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Contracts is how many lines the contract has; see docs/guarantees.md.
const Contracts = 13

// Mutant is one step of the protocol done wrong.
type Mutant struct {
	Name       string
	Contract   int    // the line that it breaks
	File       string // in the root of the module
	Why        string // what goes wrong
	CaughtBy   string // package and test, "crashtest TestX"; "." is the root
	Equivalent string // why no test can catch it
	Old, New   string
}

// Load reads all mutants in dir, sorted by name.
func Load(dir string) ([]Mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.ReplaceAll(string(b), "\r\n", "\n"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		m.Name = strings.TrimSuffix(filepath.Base(path), ".txt")
		all = append(all, m)
	}
	return all, nil
}

func parse(text string) (Mutant, error) {
	var m Mutant
	head, rest, ok1 := strings.Cut(text, "-- old --\n")
	old, replacement, ok2 := strings.Cut(rest, "\n-- new --\n")
	if !ok1 || !ok2 {
		return m, fmt.Errorf("want the sections old and new")
	}
	m.Old, m.New = old, strings.TrimSuffix(replacement, "\n")
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "contract":
			n, err := strconv.Atoi(value)
			if err != nil {
				return m, err
			}
			m.Contract = n
		case "file":
			m.File = value
		case "why":
			m.Why = value
		case "caught by":
			m.CaughtBy = value
		case "equivalent":
			m.Equivalent = value
		default:
			return m, fmt.Errorf("unknown line %q", line)
		}
	}
	return m, nil
}

// Apply returns the source with the mutant in it.
func (m Mutant) Apply(source string) (string, error) {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	if n := strings.Count(source, m.Old); n != 1 {
		return "", fmt.Errorf("%s: the text to replace is in %s %d times, not once", m.Name, m.File, n)
	}
	return strings.Replace(source, m.Old, m.New, 1), nil
}
