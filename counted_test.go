package pawl

// wide are limits that leave everything in the bundle.
var wide = &Limits{Unsealed: 1 << 30, Inline: 1 << 30, Bundle: 1 << 30}

// counted is the size of the bundle of a state, as commits count it.
func counted(s *state) int64 {
	if s.files() {
		return s.size + s.unsealed
	}
	return s.size + s.unsealed - s.tableSize() // for which they keep room
}
