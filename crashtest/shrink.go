package crashtest

import (
	"slices"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// shrinkTries bounds the histories that shrink runs.
const shrinkTries = 400

// shrink looks for a simpler history that breaks a check: one in which a power cut
// took less. It returns the legs of the simplest that it found.
func (x *explorer) shrink(legs []leg) []leg {
	tries := 0
	for i := len(legs) - 2; i >= 0; i-- {
		if legs[i].step.disk == killed {
			continue
		}
		acts, _, err := x.replay(legs[:i+1])
		if err != nil || len(acts) <= i {
			return legs
		}
		for _, disk := range x.milder(acts[i].run.points[legs[i].step.point].machine, legs[i].step.disk) {
			if tries++; tries > shrinkTries {
				return legs
			}
			next := slices.Clone(legs)
			next[i].step.disk = disk
			if acts, broken, err := x.replay(next); err == nil && broken != nil && len(acts) == len(next) {
				legs = next
				break
			}
		}
	}
	return legs
}

// milder lists the disks of a power cut that lack less than the given one, mildest
// first.
func (x *explorer) milder(m *simfs.Machine, than int) []int {
	type candidate struct{ disk, damage int }
	var all []candidate
	limit := -1
	m.Cut(x.cut).Disks(func(d *simfs.Disk) bool {
		damage := d.Damage()
		if d.Index == than {
			limit = damage
		}
		all = append(all, candidate{d.Index, damage})
		return len(all) < 5000
	})
	slices.SortStableFunc(all, func(a, b candidate) int { return a.damage - b.damage })
	var disks []int
	for _, c := range all {
		if limit < 0 || c.damage < limit {
			disks = append(disks, c.disk)
		}
	}
	return disks
}
