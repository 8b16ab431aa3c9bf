package simfs

import "fmt"

// Fate says what became of one atom in a power cut.
type Fate struct {
	At    CallID // the call that made it
	What  string
	State State
	Lost  bool // it was covered by a failed sync
}

// State is how an atom fared.
type State uint8

// The states. An atom is Replaced when a newer one in its place is on the disk.
const (
	Persisted State = iota
	Missing
	Torn
	Replaced
)

var stateNames = [...]string{"persisted", "lost", "TORN", "replaced"}

func (s State) String() string { return stateNames[s] }

// Fates lists what became of every atom that was not forced, oldest first. An
// atom of a file that no name leads to, or only unread ones, is Missing.
func (d *Disk) Fates() (fates []Fate) {
	m := d.cut.m
	applied := d.appliedNames()
	pick := map[int32]filePick{}
	for i, ino := range d.ns.files {
		pick[ino] = d.picks[i]
	}
	for _, a := range m.atoms() {
		fate := Fate{At: a.at, State: Missing, Lost: a.lost}
		k, reachable := pick[a.ino]
		switch a.kind {
		case nameAtoms:
			fate.What = nameText(&m.nodes[a.ino].d.atoms[a.i])
			if applied[a.seq] {
				fate.State = Persisted
			}
		case sizeAtoms:
			fate.What = fmt.Sprintf("size %d", m.nodes[a.ino].f.sizes[a.i].size)
			if reachable {
				fate.State = sizeState(k.size-1, a.i)
			}
		case dataAtoms:
			fate.What = fmt.Sprintf("sector %d", m.nodes[a.ino].f.chains[a.i].sector)
			if reachable {
				fate.State = dataState(int(k.vers[a.i]), a.j)
			}
		}
		fates = append(fates, fate)
	}
	return fates
}

// Damage counts the atoms that are missing or torn: how far the disk is from what
// programs saw.
func (d *Disk) Damage() (n int) {
	for _, f := range d.Fates() {
		if f.State == Missing || f.State == Torn {
			n++
		}
	}
	return n
}

func (d *Disk) appliedNames() map[uint64]bool {
	applied := map[uint64]bool{}
	if d.set != nil {
		for i, a := range d.cut.m.atoms() {
			applied[a.seq] = d.set.in[i]
		}
		return applied
	}
	for i, g := range d.cut.groups {
		out := g.outs[d.ns.outs[i]]
		for k, a := range g.atoms {
			applied[a.seq] = out.applied[k]
		}
	}
	return applied
}

func sizeState(chosen, i int) State {
	switch {
	case i == chosen:
		return Persisted
	case i < chosen:
		return Replaced
	}
	return Missing
}

// dataState is the state of version j when v was chosen, in filePick's numbers.
func dataState(v, j int) State {
	switch {
	case v == 2*j+1:
		return Persisted
	case v == 2*j+2:
		return Torn
	case v > 2*j+2:
		return Replaced
	}
	return Missing
}

func nameText(a *nameAtom) string {
	s := ""
	for i, e := range a.names() {
		if i > 0 {
			s += ", "
		}
		if e.ino == 0 {
			s += fmt.Sprintf("name %s gone", e.name)
		} else {
			s += fmt.Sprintf("name %s = inode %d", e.name, e.ino)
		}
	}
	return s
}
