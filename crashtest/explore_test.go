package crashtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

func explorerFor(profile simfs.Profile, build func(c *C)) *explorer {
	c := newC()
	build(c)
	return newExplorer(&c.plan, profile)
}

// TestToyIsSound: the protocol that the mutants are made from has no hole, so a
// caught mutant is caught for what was changed.
func TestToyIsSound(t *testing.T) {
	Run(t, func(c *C) {
		exploreToy(c, "")
		c.Profiles("posix-minimal", "ordered-torn", "ext4-ordered")
		c.RecoverTwice()
	})
}

// strategies are ways of looking for holes, each stronger than the one before.
var strategies = []struct {
	name  string
	set   func(c *C)
	least int // of the eight mutants; exact, so that the table in the docs stays true
}{
	{"kill only", func(c *C) { c.kinds, c.depth = kill, 2 }, 0},
	{"drop all unsynced", func(c *C) { c.kinds, c.depth, c.strategy = power, 1, simfs.DropUnsynced }, 3},
	{"prefixes, omit-one", func(c *C) { c.kinds, c.depth, c.strategy = power, 1, simfs.Alice }, 5},
	{"all states, depth 1", func(c *C) { c.kinds, c.depth = power, 1 }, 6},
	{"all states, depth 2", func(c *C) { c.kinds, c.depth = power, 2 }, 7},
	{"with kills, depth 2", func(c *C) { c.depth = 2 }, 8},
}

func TestToyMutants(t *testing.T) {
	var table strings.Builder
	for _, s := range strategies {
		fmt.Fprintf(&table, "%-20s", s.name)
		caught := 0
		for _, m := range toyMutants {
			x := explorerFor(simfs.PosixMinimal, func(c *C) {
				exploreToy(c, m)
				s.set(c)
			})
			mark := " ."
			if x.explore() != nil {
				caught++
				mark = " X"
			}
			table.WriteString(mark)
		}
		fmt.Fprintf(&table, "  %d/%d\n", caught, len(toyMutants))
		if caught != s.least {
			t.Errorf("%s catches %d mutants, want %d", s.name, caught, s.least)
		}
	}
	for i, m := range toyMutants {
		fmt.Fprintf(&table, "%d %s\n", i+1, m)
	}
	t.Logf("\n%s", &table)
}
