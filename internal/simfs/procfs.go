package simfs

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// epoch is when a machine was switched on for the first time.
var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// Now is the machine's clock. It stands still within a process, so that what a
// process writes does not depend on how often it asked, nor on which others were
// started meanwhile; and each process starts a minute after the one before.
func (p *Process) Now() (t time.Time) {
	p.locked(func() { t = p.now() })
	return t
}

func (p *Process) now() time.Time { return p.m.clock(int(p.id)) }

// clock is what process n sees.
func (m *Machine) clock(n int) time.Time { return epoch.Add(time.Duration(n)*time.Minute + m.moved) }

// Random fills b from a stream that depends on the machine's seed, the process's
// number and what was taken before, and on nothing else.
func (p *Process) Random(b []byte) {
	p.locked(func() {
		for len(b) > 0 {
			p.random++
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], mix(mix(mix(p.m.seed, uint64(p.id)), p.random), zeroSum))
			b = b[copy(b, w[:]):]
		}
	})
}

// Owner names the process.
func (p *Process) Owner() string { return fmt.Sprintf("pid %d on a simulated machine", 1000+p.id) }

// Resolve cleans path. There are no symbolic links, and no working directory: a
// relative path starts at the root.
func (p *Process) Resolve(name string) (string, error) {
	c := Call{Op: OpResolve, Path: name}
	return clean(name), p.do(c, nil, func(*Call) error { return nil })
}

func clean(name string) string {
	return path.Join("/", filepath.ToSlash(strings.TrimPrefix(name, filepath.VolumeName(name))))
}

// mountName is the name of a top-level path in the root directory.
func mountName(p string) string {
	name := strings.TrimPrefix(clean(p), "/")
	if name == "" || strings.Contains(name, "/") {
		panic(fmt.Sprintf("simfs: a disk is mounted at a top-level path, not at %q", p))
	}
	return name
}

// walk finds the inode that an absolute path names.
func (m *Machine) walk(name string) (int32, error) {
	ino := int32(rootIno)
	for rest := strings.TrimPrefix(clean(name), "/"); rest != ""; {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		d := m.nodes[ino].d
		if d == nil {
			return 0, syscall.ENOTDIR
		}
		if ino = d.lookup(elem); ino == 0 {
			return 0, syscall.ENOENT
		}
	}
	return ino, nil
}

// Lstat describes what an absolute path names.
func (p *Process) Lstat(name string) (info vfs.Info, err error) {
	c := Call{Op: OpLstat, Path: clean(name)}
	err = p.do(c, nil, func(c *Call) error {
		ino, err := p.m.walk(name)
		if err != nil {
			return pathError(c, err)
		}
		info = p.m.info(ino)
		return nil
	})
	return info, err
}

// OpenDir opens the directory at an absolute path.
func (p *Process) OpenDir(name string) (vfs.Dir, error) {
	c := Call{Op: OpOpenDir, Path: clean(name)}
	var d *dirHandle
	err := p.do(c, nil, func(c *Call) error {
		ino, err := p.m.walk(name)
		if err == nil && p.m.nodes[ino].d == nil {
			err = syscall.ENOTDIR
		}
		if err != nil {
			return pathError(c, err)
		}
		d = p.dirHandle(ino, c.Path)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// OthersCanWrite judges a directory by its mode: a process runs as user 1000 in
// group 1000.
func (p *Process) OthersCanWrite(dir vfs.Info) string {
	switch {
	case dir.Mode&0o002 != 0:
		return "everyone can write"
	case dir.Mode&0o020 != 0 && dir.GID != simGID:
		return fmt.Sprintf("group %d can write", dir.GID)
	}
	return ""
}

const (
	simUID, simGID = 1000, 1000
	simDev         = 1 << 63 // no device of a real machine
)

func (m *Machine) info(ino int32) vfs.Info {
	n := m.nodes[ino]
	info := vfs.Info{UID: simUID, GID: simGID, Dev: simDev + uint64(n.disk), Ino: uint64(ino)}
	if n.d != nil {
		info.Mode, info.GID, info.ModTime = n.d.meta.mode|fs.ModeDir, n.d.meta.gid, epoch
		return info
	}
	info.Mode, info.GID, info.ModTime, info.Size = n.f.meta.mode, n.f.meta.gid, n.f.modTime, n.f.size
	for _, o := range m.nodes {
		if o.d == nil {
			continue
		}
		for _, e := range o.d.live {
			if e.ino == ino {
				info.Links++
			}
		}
	}
	return info
}
