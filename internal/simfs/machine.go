package simfs

import (
	"sync"
	"time"
)

// Machine is a computer: its disks, its page cache, and the processes that run
// on it. Its methods, and those of its processes and handles, may be called
// concurrently.
type Machine struct {
	mu      sync.Mutex
	own     *owner
	profile Profile
	seed    uint64
	mounts  []mount
	nodes   []node // by inode number; 0 is none, 1 the root
	seq     uint64 // of the newest atom
	boots   int    // processes started so far, in the whole history
	calls   int    // made on this machine, by all its processes
	moved   time.Duration
	changes int // grows with each change of anything that a crash can show
	writes  int // grows with each change of what programs see
	handles int
	locks   map[int32]*fileHandle
	scratch func(path string) bool
	unread  func(name string) bool
}

// owner is a token: a node that carries the machine's may be changed in place,
// any other is shared and is copied first. It has a size, so that every token
// has an address of its own.
type owner struct{ _ byte }

type mount struct {
	name string
	root int32
}

// node is one inode: a file or a directory, or nothing (a free number).
type node struct {
	f    *file
	d    *dir
	disk int8 // index into mounts; -1 for the root directory
}

const rootIno = 1

// New returns a machine with one empty disk at each of the given top-level
// paths ("/store"), or with "/" alone one disk that holds everything.
func New(p Profile, mounts ...string) *Machine {
	m := &Machine{own: new(owner), profile: p, seed: 1, locks: map[int32]*fileHandle{}}
	root := newDir(m.own, meta{mode: 0o755})
	m.nodes = []node{{}, {d: root, disk: -1}}
	if len(mounts) == 1 && mounts[0] == "/" {
		m.nodes[rootIno].disk = 0
		m.mounts = []mount{{"", rootIno}}
		return m
	}
	for i, path := range mounts {
		name := mountName(path)
		ino := m.newNode(node{d: newDir(m.own, meta{mode: 0o755}), disk: int8(i)})
		m.mounts = append(m.mounts, mount{name: name, root: ino})
		root.live = with(root.live, entry{name, ino})
	}
	root.flush()
	return m
}

// Profile returns the machine's profile.
func (m *Machine) Profile() Profile { return m.profile }

// Seed sets the seed of the machine's randomness; machines start with seed 1.
func (m *Machine) Seed(seed uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seed = seed
}

// SetScratch names files whose content does not matter after a crash: what is
// written there is durable at once and multiplies no disks.
func (m *Machine) SetScratch(f func(path string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scratch = f
}

// SetUnread names files, by the last element of their path, that nobody reads under
// such a name, and that only the process which made them gives another name:
// temps. Breaking that is a violation. What a crash leaves in a file that has only
// such names is then of no account, and is not explored.
func (m *Machine) SetUnread(f func(name string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread = f
}

// Writes returns a number that has grown if anything was written: syncs do not
// count, nor does what SetScratch named.
func (m *Machine) Writes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// Calls returns the number of calls so far of all processes on this machine: a
// snapshot of it, or what a power cut leaves of it, counts anew.
func (m *Machine) Calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// Advance moves the machine's clock.
func (m *Machine) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moved += d
}

// Snapshot returns the machine as it is after all its processes were killed at
// this instant: page cache, pending and lost atoms stay, handles and locks do
// not. It costs one slice of inodes; nothing else is copied until it changes.
func (m *Machine) Snapshot() *Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshot()
}

func (m *Machine) snapshot() *Machine {
	m.own = new(owner) // from now on all nodes are shared
	return &Machine{
		own: new(owner), profile: m.profile, seed: m.seed, mounts: m.mounts,
		nodes: append(make([]node, 0, len(m.nodes)+8), m.nodes...),
		seq:   m.seq, boots: m.boots, moved: m.moved, changes: m.changes, writes: m.writes, locks: map[int32]*fileHandle{}, scratch: m.scratch, unread: m.unread,
	}
}

// Flush makes everything durable that programs see, as a shutdown in good order
// does. Lost atoms are forgotten.
func (m *Machine) Flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ino := range m.nodes {
		switch n := m.nodes[ino]; {
		case n.f != nil && !n.f.settled():
			m.fileRW(int32(ino)).flush()
		case n.d != nil && len(n.d.atoms) > 0:
			m.dirRW(int32(ino)).flush()
		}
	}
	m.changes++
}

func (m *Machine) fileRW(ino int32) *file {
	n := &m.nodes[ino]
	if n.f.own != m.own {
		n.f = n.f.clone(m.own)
	}
	return n.f
}

func (m *Machine) dirRW(ino int32) *dir {
	n := &m.nodes[ino]
	if n.d.own != m.own {
		n.d = n.d.clone(m.own)
	}
	return n.d
}

func (m *Machine) newNode(n node) int32 {
	m.nodes = append(m.nodes, n)
	return int32(len(m.nodes) - 1)
}

// setNames makes one atom, or one for each name where the profile splits a
// rename.
func (m *Machine) setNames(ino int32, at CallID, rename bool, sets ...entry) {
	d := m.dirRW(ino)
	atom := func(es ...entry) {
		m.seq++
		a := nameAtom{n: len(es), seq: m.seq, at: at}
		copy(a.sets[:], es)
		d.add(a)
	}
	if rename && m.profile.GapRename && d.lookup(sets[0].name) != 0 {
		atom(entry{sets[0].name, 0})
	}
	if m.profile.SplitRename {
		for _, e := range sets {
			atom(e)
		}
	} else {
		atom(sets...)
	}
	if rename && m.profile.DurableRename {
		m.forceNames(ino, m.seq)
	}
	m.changes++
	m.writes++
}

// forceNames forces the names of a directory up to seq, and where names are
// ordered everything older on its disk.
func (m *Machine) forceNames(ino int32, seq uint64) {
	for _, i := range m.covered(ino) {
		m.dirRW(i).force(seq)
	}
	m.changes++
}

// syncDir is a Dir.Sync that succeeds.
func (m *Machine) syncDir(ino int32) {
	if seq := m.nodes[ino].d.newestPending(); seq > 0 && !m.profile.NoDirSync {
		m.forceNames(ino, seq)
	}
}

// failDirSync is one that fails. Where it would have forced nothing, it loses nothing.
func (m *Machine) failDirSync(ino int32, revert bool) {
	if seq := m.nodes[ino].d.newestPending(); seq > 0 && !m.profile.NoDirSync {
		for _, i := range m.covered(ino) {
			m.dirRW(i).lose(seq, revert)
		}
		m.changes++
	}
}

// covered lists the directories that a sync of one acts on.
func (m *Machine) covered(ino int32) []int32 {
	if !m.profile.OrderedNames {
		return []int32{ino}
	}
	var all []int32
	for i, n := range m.nodes {
		if n.d != nil && len(n.d.atoms) > 0 && n.disk == m.nodes[ino].disk {
			all = append(all, int32(i))
		}
	}
	return all
}

// collect frees the inodes that no name, forced, pending or seen, leads to. It
// must not run while handles are open.
func (m *Machine) collect() {
	keep := make([]bool, len(m.nodes))
	var walk func(ino int32)
	walk = func(ino int32) {
		if ino == 0 || keep[ino] {
			return
		}
		keep[ino] = true
		d := m.nodes[ino].d
		if d == nil {
			return
		}
		for _, e := range d.base {
			walk(e.ino)
		}
		for _, e := range d.live {
			walk(e.ino)
		}
		for _, a := range d.atoms {
			for _, e := range a.names() {
				walk(e.ino)
			}
		}
	}
	walk(rootIno)
	for i := range m.nodes {
		if !keep[i] {
			m.nodes[i] = node{}
		}
	}
	for len(m.nodes) > 0 && !keep[len(m.nodes)-1] {
		m.nodes = m.nodes[:len(m.nodes)-1]
	}
}
