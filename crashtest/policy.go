package crashtest

import (
	"fmt"
	"path"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// policy is what Removable and Immutable forbid, nil when they were not called.
func (pl *plan) policy() simfs.Policy {
	if pl.removable == nil && pl.immutable == nil {
		return nil
	}
	return func(c *simfs.Call) error {
		switch {
		case c.Op == simfs.OpRemove && pl.removable != nil && !matchAny(pl.removable, c.Path):
			return fmt.Errorf("the test did not say that %s may be removed", c.Path)
		case c.Op == simfs.OpWriteAt && matchAny(pl.immutable, c.Path):
			// A file is known by the name it was opened by: a new one is written under
			// its temporary name.
			return fmt.Errorf("the test said that %s is immutable", c.Path)
		}
		return nil
	}
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return false
}
