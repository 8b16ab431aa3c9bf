package simfs

import (
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Image is the content of disks as programs see it: absolute paths with what
// stands there.
type Image map[string]Item

// Item is one file or directory of an Image.
type Item struct {
	Dir  bool
	Mode fs.FileMode
	Data string
	Same string // the first path of this file, when this is another of its names
}

// Image returns what programs see on all disks, without the disks' own roots.
func (m *Machine) Image() Image {
	m.mu.Lock()
	defer m.mu.Unlock()
	im := Image{}
	first := map[int32]string{}
	var walk func(dir string, ino int32)
	walk = func(dir string, ino int32) {
		for _, e := range m.nodes[ino].d.live {
			name, n := path.Join(dir, e.name), m.nodes[e.ino]
			if n.d != nil {
				im[name] = Item{Dir: true, Mode: n.d.meta.mode}
				walk(name, e.ino)
				continue
			}
			b := make([]byte, n.f.size)
			n.f.readAt(b, 0)
			im[name] = Item{Mode: n.f.meta.mode, Data: string(b), Same: first[e.ino]}
			if first[e.ino] == "" {
				first[e.ino] = name
			}
		}
	}
	for _, mt := range m.mounts {
		walk("/"+mt.name, mt.root)
	}
	return im
}

// Install replaces what is on the disks of the machine by an image, durably;
// every name becomes a file of its own. It panics when the image has a path outside the disks, and must not be called
// while handles are open.
func (m *Machine) Install(im Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, len(m.mounts))
	for i, mt := range m.mounts {
		names[i] = "/" + mt.name
	}
	blank := New(m.profile, names...)
	m.own, m.nodes, m.mounts = blank.own, blank.nodes, blank.mounts
	dirs := map[string]int32{}
	for i, mt := range m.mounts {
		dirs[names[i]] = mt.root
	}
	for _, name := range slices.Sorted(maps.Keys(im)) {
		parent, ok := dirs[path.Dir(name)]
		if !ok {
			panic(fmt.Sprintf("simfs: image has %s, but not the directory it is in", name))
		}
		item, n := im[name], node{disk: m.nodes[parent].disk}
		if item.Dir {
			n.d = newDir(m.own, meta{mode: item.Mode, gid: simGID})
		} else {
			n.f = newFile(m.own, item.Mode, simGID, m.clock(m.boots))
			n.f.write([]byte(item.Data), 0, false, CallID{}, &m.seq, func() *file { return n.f })
			n.f.flush()
		}
		ino := m.newNode(n)
		if item.Dir {
			dirs[name] = ino
		}
		d := m.dirRW(parent)
		d.live = with(d.live, entry{path.Base(name), ino})
		d.flush()
	}
	m.changes++
}

// Under returns the part of the image at and below a path.
func (im Image) Under(dir string) Image {
	out := Image{}
	for name, item := range im {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			out[name] = item
		}
	}
	return out
}

// String lists the image for a person: sizes, beginnings and
// checksums of files.
func (im Image) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(im)) {
		item := im[name]
		if item.Dir {
			fmt.Fprintf(&b, "%s/\n", name)
			continue
		}
		fmt.Fprintf(&b, "%s %d %.60q %08x", name, len(item.Data), item.Data, crc32.ChecksumIEEE([]byte(item.Data)))
		if item.Same != "" {
			fmt.Fprintf(&b, " is %s", item.Same)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
