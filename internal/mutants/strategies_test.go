package mutants

import (
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

var strategies = flag.Bool("strategies", false, "how hard must the explorer look to catch each mutant? (-only chooses them)")

// ways of looking, the ones that see less first. A way that includes another catches
// at least as much, so it runs only on what the other let pass.
var ways = []struct {
	name, strategy, depth string
	includes              int // index of the way it includes, or -1
}{
	{"kills only, two deep", "kill", "2", -1},
	{"a power loss takes all that was not flushed", "drop", "1", -1},
	{"prefixes, omit-one", "prefixes", "1", -1},
	{"all disks, one power cut", "power", "1", -1},
	{"all disks, two power cuts", "power", "2", 3},
	{"with kills between, two deep", "all", "2", 4},
	{"with kills between, three deep", "all", "3", 5},
}

// TestStrategies prints how many of the chosen mutants each way of looking catches,
// by the exploration of pawl alone.
func TestStrategies(t *testing.T) {
	if !*strategies {
		t.Skip("explores every mutant in seven ways, which takes long: ask for it with -strategies")
	}
	pattern := regexp.MustCompile(*only)
	var mu sync.Mutex
	caught, names := make([][]string, len(ways)), 0
	t.Run("all", func(t *testing.T) {
		for _, m := range load(t) {
			if m.Equivalent != "" || !pattern.MatchString(m.Name) {
				continue
			}
			names++
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				bin := m.build(t, "crashtest", filepath.Join(t.TempDir(), "mutant.test"))
				was := make([]bool, len(ways))
				for i, w := range ways {
					was[i] = w.includes >= 0 && was[w.includes]
					if !was[i] {
						failed, _ := m.runTest(t, bin, "crashtest", "^TestPawl$", "", "-crash.strategy="+w.strategy, "-crash.depth="+w.depth)
						was[i] = failed != ""
					}
					if was[i] {
						mu.Lock()
						caught[i] = append(caught[i], m.Name)
						mu.Unlock()
					}
				}
			})
		}
	})
	fmt.Println("| way of looking | caught |\n|---|---|")
	for i, w := range ways {
		fmt.Printf("| %s | %d of %d |\n", w.name, len(caught[i]), names)
	}
	for i, w := range ways {
		t.Logf("%s: %v", w.name, caught[i])
	}
}
