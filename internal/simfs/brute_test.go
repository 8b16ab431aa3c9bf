package simfs

import (
	"slices"
	"testing"
)

// bruteForce lists the legal disks by the definition itself: every set of atoms, and
// every way of tearing it, that the edges of the profile allow.
func bruteForce(m *Machine) (sums []uint64) {
	c := m.Cut(CutOptions{})
	all := m.atoms()
	edges := m.edges(all)
	closed := func(in []bool) bool {
		for a := range in {
			for _, anyOf := range edges[a] {
				if in[a] && !slices.ContainsFunc(anyOf, func(b int) bool { return in[b] }) {
					return false
				}
			}
		}
		return true
	}
	bits := func(n int) []bool {
		out := make([]bool, len(all))
		for i := range all {
			out[i] = n>>i&1 == 1
		}
		return out
	}
	d := &Disk{cut: c}
	for set := range 1 << len(all) {
		in := bits(set)
		if !closed(in) {
			continue
		}
		for t := range 1 << len(all) {
			torn := bits(t)
			if t&^set != 0 || t != 0 && !m.profile.Torn {
				continue
			}
			if slices.ContainsFunc(all, func(a atomRef) bool {
				return a.kind != dataAtoms && torn[slices.IndexFunc(all, func(b atomRef) bool { return b.seq == a.seq })]
			}) {
				continue
			}
			c.fill(d, all, &atomSet{in, torn})
			sums = append(sums, d.Sum)
		}
	}
	slices.Sort(sums)
	return slices.Compact(sums)
}

// TestExhaustiveEqualsBruteForce: the enumeration by trees, files and sectors lists
// just the sets of atoms that the definition allows.
func TestExhaustiveEqualsBruteForce(t *testing.T) {
	for _, p := range Profiles() {
		checked := 0
		for seed := range uint64(150) {
			s := newScript(t, p)
			failing := seed%3 == 0 // some of the atoms are lost ones
			randomCalls(seed, 8, func(c randomCall) {
				if failing {
					s.failNext(map[bool]Op{true: OpSync, false: OpSyncDir}[c.n%2 == 0], Fault{Revert: c.n%3 == 0})
				}
				c.run(s.a, s.b)
			})
			if n := len(s.m.atoms()); n == 0 || n > 8 {
				continue
			}
			checked++
			var got []uint64
			s.m.Cut(CutOptions{}).Disks(func(d *Disk) bool {
				got = append(got, d.Sum)
				return true
			})
			slices.Sort(got)
			if want := bruteForce(s.m); !slices.Equal(slices.Compact(got), want) {
				t.Fatalf("%s, seed %d: %d disks, by the definition %d", p.Name, seed, len(slices.Compact(got)), len(want))
			}
		}
		if checked < 30 {
			t.Errorf("%s: only %d histories were small enough", p.Name, checked)
		}
	}
}
