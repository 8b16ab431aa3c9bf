package crashtest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// journal runs f on a file of four blocks, of which the second holds data, and says
// which rule was broken. The file was made as a temp, and file is open since then.
func journal(t *testing.T, build func(c *C), f func(dir vfs.Dir, file vfs.File) error) error {
	t.Helper()
	x := explorerFor(simfs.PosixMinimal, func(c *C) {
		build(c)
		c.Disks("/store")
		c.Depth(1)
		c.kinds = 0
		c.Do(func(ctx context.Context, _ *Process) error {
			dir, err := vfs.FromContext(ctx).OpenDir("/store")
			if err != nil {
				return err
			}
			defer dir.Close()
			file, err := dir.Create("tmp", 0o600)
			if err != nil {
				return err
			}
			defer file.Close()
			data := make([]byte, 4*freshBlock)
			data[freshBlock+100] = 1
			// Under its temp's name a file may be written in any way.
			if err := errors.Join(writeAt(file, data[:100], 0), writeAt(file, data[50:], 50), dir.Rename("tmp", "journal")); err != nil {
				return err
			}
			return f(dir, file)
		})
	})
	if failure := x.explore(); failure != nil {
		return failure.err
	}
	return nil
}

func writeAt(f vfs.File, data []byte, off int64) error {
	_, err := f.WriteAt(data, off)
	return err
}

// wantBroken compares what was found with what is in the message that is wanted, or
// "" for none.
func wantBroken(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err == nil {
		return
	}
	if err == nil || want == "" || !errors.Is(err, simfs.ErrViolation) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestFreshBlocks(t *testing.T) {
	zero, data := make([]byte, freshBlock), bytes.Repeat([]byte{7}, freshBlock)
	last := append(bytes.Clone(zero[1:]), 7)
	const over, blocks = "is not written over: the block at 4096", "in blocks of 4096"
	for _, k := range []struct {
		what string
		data []byte
		off  int64
		want string
	}{
		{"data over zeros", data, 0, ""},
		{"data over zeros, two blocks", append(data, data...), 2 * freshBlock, ""},
		{"data over data", data, freshBlock, over},
		{"a last byte over data", last, freshBlock, over},
		{"data over zeros and data", append(data, data...), 0, over},
		{"zeros over data", zero, freshBlock, ""},
		{"data, zeros over data, data", append(append(bytes.Clone(data), zero...), data...), 0, ""},
		{"zeros over zeros", zero, 0, ""},
		{"nothing", nil, 0, ""},
		{"beyond the end", data, 4 * freshBlock, ""},
		{"half a block", data[:freshBlock/2], 0, blocks},
		{"one byte too many", append(bytes.Clone(data), 7), 2 * freshBlock, blocks},
		{"between blocks", data, 2*freshBlock + 512, blocks},
		{"zeros between blocks", zero, 512, blocks},
	} {
		build := func(c *C) { c.FreshBlocks("/store/other", "/store/jour*") }
		wantBroken(t, k.what, journal(t, build, func(dir vfs.Dir, _ vfs.File) error {
			file, err := dir.OpenRW("journal")
			if err != nil {
				return err
			}
			defer file.Close()
			return writeAt(file, k.data, k.off)
		}), k.want)
		wantBroken(t, k.what+", by the handle of the temp", journal(t, build, func(_ vfs.Dir, file vfs.File) error {
			return writeAt(file, k.data, k.off)
		}), k.want)
		wantBroken(t, k.what+", in another file", journal(t, func(c *C) { c.FreshBlocks("/store/other") },
			func(_ vfs.Dir, file vfs.File) error { return writeAt(file, k.data, k.off) }), "")
	}
}

// TestFreshBlockTwice: a block is fresh once, and again when it was given zeros.
func TestFreshBlockTwice(t *testing.T) {
	zero, data := make([]byte, freshBlock), bytes.Repeat([]byte{7}, freshBlock)
	fresh := func(c *C) { c.FreshBlocks("/store/journal"); c.FixedSize("/store/journal") }
	wantBroken(t, "twice", journal(t, fresh, func(_ vfs.Dir, file vfs.File) error {
		return errors.Join(writeAt(file, data, 0), writeAt(file, data, 0))
	}), "the block at 0")
	wantBroken(t, "zeros between", journal(t, fresh, func(_ vfs.Dir, file vfs.File) error {
		return errors.Join(writeAt(file, data, 0), writeAt(file, zero, 0), writeAt(file, data, 0))
	}), "")
}

func TestFixedSize(t *testing.T) {
	fixed := func(c *C) { c.FixedSize("/store/journal") }
	for _, k := range []struct {
		what string
		n    int
		off  int64
		want string
	}{
		{"to the end", 10, 4*freshBlock - 10, ""},
		{"one byte beyond", 11, 4*freshBlock - 10, "keeps its size: it has 16384 bytes, and would have 16385"},
		{"far beyond", 1, 1 << 20, "keeps its size"},
	} {
		for _, reopened := range []bool{false, true} {
			wantBroken(t, k.what, journal(t, fixed, func(dir vfs.Dir, file vfs.File) error {
				if reopened {
					var err error
					if file, err = dir.OpenRW("journal"); err != nil {
						return err
					}
					defer file.Close()
				}
				return writeAt(file, make([]byte, k.n), k.off)
			}), k.want)
		}
	}
	wantBroken(t, "another file", journal(t, fixed, func(dir vfs.Dir, _ vfs.File) error {
		file, err := dir.Create("tmp", 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		return errors.Join(writeAt(file, make([]byte, 10), 0), dir.Rename("tmp", "journal"))
	}), "")
}

// TestImmutableByTheTempsHandle: a file that got its name may not be written by a
// handle that is older than the name.
func TestImmutableByTheTempsHandle(t *testing.T) {
	wantBroken(t, "a write", journal(t, func(c *C) { c.Immutable("/store/journal") },
		func(_ vfs.Dir, file vfs.File) error { return writeAt(file, []byte{1}, 0) }), "is immutable")
}

// TestPolicyLeavesToTheDisk: what the disk refuses by itself is no broken rule.
func TestPolicyLeavesToTheDisk(t *testing.T) {
	rules := func(c *C) { c.FreshBlocks("/store/journal"); c.FixedSize("/store/journal") }
	wantBroken(t, "before the beginning", journal(t, rules, func(_ vfs.Dir, file vfs.File) error {
		if err := writeAt(file, make([]byte, 100), -freshBlock); !errors.Is(err, fs.ErrInvalid) {
			t.Error(err)
		}
		return nil
	}), "")
}
