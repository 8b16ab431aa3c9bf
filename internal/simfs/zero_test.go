package simfs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// zeroFile makes a durable file of n zero bytes, and returns it.
func (s *script) zeroFile(n int) vfs.File {
	s.t.Helper()
	f := s.create(s.b, "f", zeros(n))
	s.ok(f.Sync())
	s.ok(s.b.Sync())
	return f
}

func zeros(n int) string { return strings.Repeat("\x00", n) }

// TestZeroBlocks: a block of zeros that is overwritten by one of which a single
// sector holds anything leaves the disks that the write of this sector alone does,
// whatever else the file holds and however it came to be.
func TestZeroBlocks(t *testing.T) {
	const block = 8 * Sector
	data := strings.Repeat("x", Sector)
	want := map[string]int{"posix-minimal": 3, "ext4-ordered": 2, "ordered-torn": 3, "ntfs-like": 3, "ntfs-durable-rename": 3, "posix-split-rename": 3}
	for _, p := range Profiles() {
		for _, later := range []bool{false, true} { // a later block holds something
			for _, cut := range []bool{false, true} { // the power was cut before
				for at := range 8 {
					run := func(write string, off int) []string {
						s := newScript(t, p)
						f := s.zeroFile(2 * block)
						if later {
							s.write(f, data, block+3*Sector)
							s.ok(f.Sync())
						}
						if s.m.Flush(); cut {
							s.write(f, data, block)
							s.m = s.m.Cut(CutOptions{}).Disk(0).Machine()
							f = must(must(s.m.Start().OpenDir("/b"))(t).OpenRW("f"))(t)
						}
						s.write(f, write, int64(off))
						return disks(t, s.m, CutOptions{})
					}
					whole := run(zeros(at*Sector)+data+zeros(block-(at+1)*Sector), 0)
					if one := run(data, at*Sector); !slices.Equal(whole, one) || len(one) != want[p.Name] {
						t.Errorf("%s, later=%v, cut=%v, sector %d: the block leaves %d disks, its sector %d, want %d",
							p.Name, later, cut, at, len(whole), len(one), want[p.Name])
					}
				}
			}
		}
	}
}

// TestZerosThatMatter: zeros over anything but durable zeros are a change like any
// other.
func TestZerosThatMatter(t *testing.T) {
	for _, k := range []struct {
		name        string
		before      func(s *script, f vfs.File)
		want, after int // disks before the zeros are written, and after
	}{
		{"over zeros", func(*script, vfs.File) {}, 1, 1},
		{"over durable data", func(s *script, f vfs.File) { s.write(f, "data", 0); s.ok(f.Sync()) }, 1, 3},
		{"over pending data", func(s *script, f vfs.File) { s.write(f, "data", 0) }, 3, 4}, // and zeros torn over it
		{"over pending zeros", func(s *script, f vfs.File) { s.write(f, "data", 0); s.write(f, zeros(Sector), 0) }, 4, 4},
		{"over lost data", func(s *script, f vfs.File) { lose(s, f, false) }, 3, 4},
		{"over lost data that nobody sees", func(s *script, f vfs.File) { lose(s, f, true) }, 3, 4},
	} {
		s := newScript(t, PosixMinimal)
		f := s.zeroFile(2 * Sector)
		k.before(s, f)
		s.wantDisks(k.name, k.want)
		s.write(f, zeros(2*Sector), 0)
		s.wantDisks(k.name+", then zeros", k.after)
		s.ok(f.Sync())
		s.wantDisks(k.name+", then zeros, synced", 1)
	}
}

// lose writes data whose sync fails.
func lose(s *script, f vfs.File, revert bool) {
	s.t.Helper()
	s.write(f, "data", 0)
	s.failNext(OpSync, Fault{Revert: revert})
	if f.Sync() == nil {
		s.t.Error("the sync did not fail")
	}
}

// TestUnchangedRuns: a run of sectors that a write would not change is spoilt once,
// whether there are zeros in it or at its ends.
func TestUnchangedRuns(t *testing.T) {
	x, o := strings.Repeat("x", Sector), zeros(Sector)
	for _, k := range []struct {
		held string
		want int
	}{{o + o, 1}, {x + x, 2}, {x + o + x, 2}, {o + x, 2}, {o + x + o + x + o, 2}} {
		s := newScript(t, PosixMinimal)
		f := s.create(s.b, "f", k.held)
		s.m.Flush()
		s.write(f, k.held, 0)
		s.wantDisks(fmt.Sprintf("%q again", strings.NewReplacer(x, "x", o, "0").Replace(k.held)), k.want)
	}
}

// TestZeroPagesAreSpoilt: where a disk's blocks are large, what is beside a write is
// spoilt whether it holds anything or not.
func TestZeroPagesAreSpoilt(t *testing.T) {
	for _, held := range []string{zeros(4096), strings.Repeat("1", 4096)} {
		s := newScript(t, TornBlock)
		besides(s, held)
		s.wantDisks(fmt.Sprintf("beside %.1q", held), 2*3*2)
	}
}
