package crashtest

import (
	"bytes"
	"fmt"
	"path"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// freshBlock is the unit of FreshBlocks.
const freshBlock = 4096

// policy is what Removable and its neighbours forbid, nil when none was called.
func (pl *plan) policy() simfs.Policy {
	if pl.removable == nil && pl.immutable == nil && pl.fresh == nil && pl.fixed == nil {
		return nil
	}
	return func(c *simfs.Call) error {
		switch {
		case c.Op == simfs.OpRemove && pl.removable != nil && !matchAny(pl.removable, c.Path):
			return fmt.Errorf("the test did not say that %s may be removed", c.Path)
		case c.Op == simfs.OpWriteAt:
			return pl.mayWrite(c)
		}
		return nil
	}
}

// mayWrite judges a write by all names of the file: it may have been opened when it
// was still a temp.
func (pl *plan) mayWrite(c *simfs.Call) error {
	is := func(patterns []string) bool {
		return patterns != nil && c.Named(func(name string) bool { return matchAny(patterns, name) })
	}
	if c.Off < 0 {
		return nil // which the disk refuses
	}
	if is(pl.immutable) {
		return fmt.Errorf("the test said that %s is immutable", c.Path)
	}
	if size, end := c.Size(), c.Off+int64(c.Len); end > size && is(pl.fixed) {
		return fmt.Errorf("the test said that %s keeps its size: it has %d bytes, and would have %d", c.Path, size, end)
	}
	if is(pl.fresh) {
		return intoFresh(c)
	}
	return nil
}

// intoFresh is the rule of FreshBlocks.
func intoFresh(c *simfs.Call) error {
	if c.Off%freshBlock != 0 || c.Len%freshBlock != 0 {
		return fmt.Errorf("the test said that %s is written in blocks of %d", c.Path, freshBlock)
	}
	var zero, held [freshBlock]byte
	for data, off := c.Data(), c.Off; len(data) > 0; data, off = data[freshBlock:], off+freshBlock {
		if bytes.Equal(data[:freshBlock], zero[:]) {
			continue
		}
		if c.Held(held[:], off); held != zero {
			return fmt.Errorf("the test said that data in %s is not written over: the block at %d holds some", c.Path, off)
		}
	}
	return nil
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return false
}
