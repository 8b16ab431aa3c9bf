package simfs

import (
	"slices"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// script is a litmus: what is durable before it, and calls on two directories
// of two disks. A failing call fails the test.
type script struct {
	t    *testing.T
	m    *Machine
	p    *Process
	a, b vfs.Dir
}

func newScript(t *testing.T, profile Profile) *script {
	t.Helper()
	m := New(profile, "/a", "/b")
	m.Install(Image{"/a/data": {Mode: 0o600, Data: "old"}})
	p := m.Start()
	s := &script{t: t, m: m, p: p}
	s.a, s.b = must(p.OpenDir("/a"))(t), must(p.OpenDir("/b"))(t)
	t.Cleanup(func() {
		for _, err := range p.Violations() {
			t.Error(err)
		}
	})
	return s
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (s *script) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) create(d vfs.Dir, name, data string) vfs.File {
	s.t.Helper()
	f := must(d.Create(name, 0o600))(s.t)
	s.write(f, data, 0)
	return f
}

func (s *script) write(f vfs.File, data string, off int64) {
	s.t.Helper()
	if data != "" {
		must(f.WriteAt([]byte(data), off))(s.t)
	}
}

// disks lists the distinct disks that a power cut leaves now, as text.
func disks(t *testing.T, m *Machine, opt CutOptions) []string {
	t.Helper()
	c := m.Cut(opt)
	var out []string
	seen := map[uint64]bool{}
	c.Disks(func(d *Disk) bool {
		if !seen[d.Sum] {
			seen[d.Sum] = true
			n := d.Machine()
			if n.Sum() != d.Sum {
				t.Errorf("disk %d: sum %x, its machine's %x", d.Index, d.Sum, n.Sum())
			}
			out = append(out, n.Image().String())
		}
		return true
	})
	slices.Sort(out)
	if k := len(slices.Compact(slices.Clone(out))); k != len(out) {
		t.Errorf("%d distinct sums for %d distinct images", len(out), k)
	}
	return out
}

func replace(s *script, sync, syncDir bool) {
	f := s.create(s.a, "tmp", "new")
	if sync {
		s.ok(f.Sync())
	}
	s.ok(f.Close())
	s.ok(s.a.Rename("tmp", "data"))
	if syncDir {
		s.ok(s.a.Sync())
	}
}

func TestLitmusCounts(t *testing.T) {
	full := strings.Repeat("x", Sector)
	for _, l := range []struct {
		name string
		run  func(s *script)
		want map[string]int // by profile
	}{
		{"nothing", func(s *script) {}, all(1)},
		{"create; write; rename over", func(s *script) { replace(s, false, false) },
			map[string]int{
				"posix-minimal": 9, // 1 + 2 trees with 4 contents: empty, zeros, torn, whole
				"ext4-ordered":  5, // 1 + 2 trees with 2 contents: empty, whole
				"ordered-torn":  9, "ntfs-like": 9,
				"ntfs-durable-rename": 4,  // the tree is certain, the content is not
				"posix-split-rename":  13, // and a tree with both names
			}},
		{"with the sync first", func(s *script) { replace(s, true, false) },
			map[string]int{"posix-minimal": 3, "ext4-ordered": 3, "ordered-torn": 3, "ntfs-like": 3, "ntfs-durable-rename": 1, "posix-split-rename": 4}},
		{"and the directory synced", func(s *script) { replace(s, true, true) },
			map[string]int{"posix-minimal": 1, "ext4-ordered": 1, "ordered-torn": 1, "ntfs-like": 3, "ntfs-durable-rename": 1, "posix-split-rename": 1}},
		{"directory synced, file not", func(s *script) { replace(s, false, true) },
			map[string]int{"posix-minimal": 4, "ext4-ordered": 2, "ordered-torn": 4, "ntfs-like": 9, "ntfs-durable-rename": 4, "posix-split-rename": 4}},
		{"two creates", func(s *script) { s.create(s.a, "x", ""); s.create(s.a, "y", "") },
			map[string]int{"posix-minimal": 4, "ext4-ordered": 3, "ordered-torn": 3, "ntfs-like": 3, "ntfs-durable-rename": 3, "posix-split-rename": 4}},
		{"two creates on two disks", func(s *script) { s.create(s.a, "x", ""); s.create(s.b, "y", "") }, all(4)},
		{"two sectors over two", func(s *script) {
			f := s.create(s.b, "f", full+full)
			s.ok(f.Sync())
			s.ok(s.b.Sync())
			s.m.Flush()
			s.write(f, strings.Repeat("y", 2*Sector), 0)
		}, map[string]int{"posix-minimal": 9, "ext4-ordered": 4, "ordered-torn": 9, "ntfs-like": 9, "ntfs-durable-rename": 9, "posix-split-rename": 9}},
		{"three versions of a sector", func(s *script) {
			f := s.create(s.b, "f", full)
			s.m.Flush()
			for _, c := range []string{"1", "2", "3"} {
				s.write(f, strings.Repeat(c, Sector), 0)
			}
		}, map[string]int{"posix-minimal": 7, "ext4-ordered": 4, "ordered-torn": 7, "ntfs-like": 7, "ntfs-durable-rename": 7, "posix-split-rename": 7}},
		{"growth by two sectors", func(s *script) {
			f := s.create(s.b, "f", "")
			s.m.Flush()
			s.write(f, full+full, 0)
		}, map[string]int{
			"posix-minimal": 1 + 3 + 9, // sizes 0, 1 and 2 sectors
			"ext4-ordered":  3, "ordered-torn": 13, "ntfs-like": 13, "ntfs-durable-rename": 13, "posix-split-rename": 13}},
		{"zeros where nothing was change no disk", func(s *script) {
			f := s.create(s.b, "f", full)
			s.write(f, "\x00", 3*Sector-1)
			s.write(f, strings.Repeat("\x00", Sector), Sector)
			s.ok(f.Sync())
			s.ok(s.b.Sync())
			s.m.Flush()
		}, all(1)},
		{"the same bytes again", func(s *script) {
			f := s.create(s.b, "f", full)
			s.m.Flush()
			s.write(f, full, 0)
		}, map[string]int{ // the sector may be spoilt
			"posix-minimal": 2, "ext4-ordered": 1, "ordered-torn": 2, "ntfs-like": 2, "ntfs-durable-rename": 2, "posix-split-rename": 2}},
		{"growth by two sectors of zeros", func(s *script) {
			f := s.create(s.b, "f", "")
			s.m.Flush()
			s.write(f, strings.Repeat("\x00", 2*Sector), 0)
		}, all(3)}, // three sizes
		{"close forces nothing", func(s *script) {
			f := s.create(s.b, "f", "")
			s.m.Flush()
			s.write(f, "x", 0)
			s.ok(f.Close())
		}, map[string]int{"posix-minimal": 4, "ext4-ordered": 2, "ordered-torn": 4, "ntfs-like": 4, "ntfs-durable-rename": 4, "posix-split-rename": 4}},
		{"name before content", func(s *script) { s.create(s.b, "f", ""); s.ok(s.b.Sync()) },
			map[string]int{"posix-minimal": 1, "ext4-ordered": 1, "ordered-torn": 1, "ntfs-like": 2, "ntfs-durable-rename": 2, "posix-split-rename": 1}},
		{"file in a directory whose name is not synced", func(s *script) {
			s.ok(s.a.Mkdir("d", 0o700))
			d := must(s.a.OpenDir("d"))(s.t)
			s.create(d, "f", "")
			s.ok(d.Sync())
		}, map[string]int{"posix-minimal": 2, "ext4-ordered": 1, "ordered-torn": 1, "ntfs-like": 3, "ntfs-durable-rename": 3, "posix-split-rename": 2}},
		{"link, then remove the first name", func(s *script) {
			s.ok(s.a.Link("data", "two"))
			s.ok(s.a.Remove("data"))
		}, map[string]int{"posix-minimal": 4, "ext4-ordered": 3, "ordered-torn": 3, "ntfs-like": 3, "ntfs-durable-rename": 3, "posix-split-rename": 4}},
	} {
		for _, p := range Profiles() {
			s := newScript(t, p)
			l.run(s)
			if got := disks(t, s.m, CutOptions{}); len(got) != l.want[p.Name] {
				t.Errorf("%s under %s: %d disks, want %d\n%s", l.name, p.Name, len(got), l.want[p.Name], strings.Join(got, "\n"))
			}
		}
	}
}

func all(n int) map[string]int {
	m := map[string]int{}
	for _, p := range Profiles() {
		m[p.Name] = n
	}
	return m
}

// TestBrokenDisks: what a disk that breaks an assumption may leave.
func TestBrokenDisks(t *testing.T) {
	one := strings.Repeat("1", 4096)
	for _, l := range []struct {
		name string
		p    Profile
		run  func(s *script)
		want int
	}{
		{"names cannot be synced", NoDirSync, func(s *script) { replace(s, true, true) }, 3},
		{"a rename that can be cut in two", GapRename, func(s *script) { replace(s, true, false) }, 5}, // 3, and the old name gone, with the temp and without
		{"nothing can be synced", LyingSync, func(s *script) { replace(s, true, true) }, 9},
		{"nothing can be synced, honestly", PosixMinimal, func(s *script) { replace(s, true, true) }, 1},
		{"a page beside the written one", TornBlock, func(s *script) { besides(s, one) }, 2 * 3 * 2},
		{"the same, honestly", PosixMinimal, func(s *script) { besides(s, one) }, 3},
	} {
		s := newScript(t, l.p)
		l.run(s)
		if got := disks(t, s.m, CutOptions{}); len(got) != l.want {
			t.Errorf("%s: %d disks, want %d", l.name, len(got), l.want)
		}
	}
}

// besides writes a byte into the second of two pages that are durable.
func besides(s *script, page string) {
	f := s.create(s.a, "f", page+page)
	s.ok(f.Sync())
	s.ok(s.a.Sync())
	s.write(f, "2", 4096)
}

// small keeps random histories to those with few disks; larger ones show no more,
// slowly.
var small = CutOptions{Budget: 600}

// TestStrongerIsSubset: what a profile promises more only takes disks away.
func TestStrongerIsSubset(t *testing.T) {
	for _, pair := range [][2]Profile{{Ext4Ordered, PosixMinimal}, {OrderedTorn, PosixMinimal}, {Ext4Ordered, OrderedTorn},
		{OrderedTorn, NTFSLike}, {NTFSDurable, NTFSLike}, {PosixMinimal, PosixSplit}, {PosixMinimal, NoDirSync}} {
		fewer := 0
		for seed := range uint64(200) {
			strong, weak := newScript(t, pair[0]), newScript(t, pair[1])
			randomCalls(seed, 7, func(c randomCall) {
				c.run(strong.a, strong.b)
				c.run(weak.a, weak.b)
			})
			if !strong.m.Cut(small).Exhaustive() || !weak.m.Cut(small).Exhaustive() {
				continue
			}
			s, w := disks(t, strong.m, small), disks(t, weak.m, small)
			if len(s) < len(w) {
				fewer++
			}
			for _, d := range s {
				if _, ok := slices.BinarySearch(w, d); !ok {
					t.Fatalf("seed %d: %s allows a disk that %s does not:\n%s", seed, pair[0].Name, pair[1].Name, d)
				}
			}
		}
		if fewer < 10 {
			t.Errorf("%s differs from %s in %d of 200 histories only", pair[0].Name, pair[1].Name, fewer)
		}
	}
}

// TestCutContainsLiveAndForced: the disk with everything pending is one of the
// legal ones, and so is the one with nothing pending.
func TestCutContainsLiveAndForced(t *testing.T) {
	for seed := range uint64(200) {
		s := newScript(t, PosixMinimal)
		randomCalls(seed, 10, func(c randomCall) { c.run(s.a, s.b) })
		if !s.m.Cut(small).Exhaustive() {
			continue
		}
		got := disks(t, s.m, small)
		live := s.m.Image().String()
		if !slices.Contains(got, live) {
			t.Fatalf("seed %d: not a legal disk:\n%s", seed, live)
		}
		none := disks(t, s.m, CutOptions{Strategy: DropUnsynced})
		if len(none) != 1 || !slices.Contains(got, none[0]) {
			t.Fatalf("seed %d: not a legal disk: %q", seed, none)
		}
	}
}

// TestSampleIsSubset: a sample never lists a disk that is not legal, and finds
// all of a small history's.
func TestSampleIsSubset(t *testing.T) {
	for _, p := range []Profile{PosixMinimal, Ext4Ordered, OrderedTorn, PosixSplit} {
		full := 0
		for seed := range uint64(100) {
			s := newScript(t, p)
			randomCalls(seed, 6, func(c randomCall) { c.run(s.a, s.b) })
			if !s.m.Cut(small).Exhaustive() {
				continue
			}
			exact := disks(t, s.m, small)
			sample := disks(t, s.m, CutOptions{Budget: -1})
			for _, d := range sample {
				if _, ok := slices.BinarySearch(exact, d); !ok {
					t.Fatalf("%s, seed %d: sampled a disk that is not legal:\n%s", p.Name, seed, d)
				}
			}
			if len(sample) == len(exact) {
				full++
			}
		}
		if full < 60 {
			t.Errorf("%s: the sample was complete for %d of 100 histories", p.Name, full)
		}
	}
}
