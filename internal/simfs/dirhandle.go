package simfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// handle is what an open file and an open directory have in common.
type handle struct {
	p      *Process
	ino    int32
	path   string // by which it was opened
	closed bool
}

type dirHandle struct{ handle }

var _ vfs.Dir = (*dirHandle)(nil)

// errNotEmpty matches fs.ErrExist, as ENOTEMPTY does.
var errNotEmpty = fmt.Errorf("directory not empty (%w)", fs.ErrExist)

var errReadOnly = errors.New("the root directory of a simulated machine holds only its disks")

func (p *Process) dirHandle(ino int32, path string) *dirHandle {
	p.open++
	p.m.handles++
	return &dirHandle{handle{p: p, ino: ino, path: path}}
}

func (h *handle) close() error {
	return h.p.do(Call{Op: OpClose, Path: h.path}, h, func(*Call) error {
		h.forget()
		return nil
	})
}

func (h *handle) forget() {
	h.closed = true
	if h.p.dead { // its handles went with it
		return
	}
	h.p.open--
	h.p.m.handles--
}

func (h *handle) stat() (info vfs.Info, err error) {
	err = h.p.do(Call{Op: OpStat, Path: h.path}, h, func(*Call) error {
		info = h.p.m.info(h.ino)
		return nil
	})
	return info, err
}

func (d *dirHandle) Path() string            { return d.path }
func (d *dirHandle) Close() error            { return d.close() }
func (d *dirHandle) Stat() (vfs.Info, error) { return d.stat() }
func (d *dirHandle) node() *dir              { return d.p.m.nodes[d.ino].d }
func (d *dirHandle) member(name string) Call { return Call{Path: path.Join(d.path, name)} }
func (d *dirHandle) System() (vfs.FileSystem, error) {
	return vfs.FileSystem{Type: "simfs", Class: vfs.Local}, d.p.do(Call{Op: OpSystem, Path: d.path}, &d.handle, func(*Call) error { return nil })
}

// do runs a call on a name of the directory. f gets the inode that the name has
// now, 0 for none; its error is wrapped.
func (d *dirHandle) do(op Op, name string, f func(c *Call, ino int32) error) error {
	c := d.member(name)
	c.Op = op
	return d.run(c, name, f)
}

func (d *dirHandle) run(c Call, name string, f func(c *Call, ino int32) error) error {
	return d.p.do(c, &d.handle, func(c *Call) error {
		names := []string{name}
		if c.To != "" {
			names = append(names, c.To)
		}
		for _, name := range names {
			sub, rest, two := strings.Cut(name, "/")
			if !two || c.Op != OpLink {
				rest = sub
			}
			for _, name := range []string{sub, rest} {
				if err := badName(name); err != nil {
					return d.p.violate(c, "%w", err)
				}
				if len(name) > 255 {
					return pathError(c, syscall.ENAMETOOLONG)
				}
			}
			if sub != rest && d.p.m.nodes[d.node().lookup(sub)].d == nil {
				return pathError(c, syscall.ENOENT)
			}
		}
		if err := d.p.unreadRule(c, name); err != nil {
			return d.p.violate(c, "%w", err)
		}
		in, last := d.below(name)
		if err := f(c, d.p.m.nodes[in].d.lookup(last)); err != nil {
			return pathError(c, err)
		}
		return nil
	})
}

// below finds the directory that a name is in, and its last element there.
func (d *dirHandle) below(name string) (ino int32, last string) {
	if sub, rest, two := strings.Cut(name, "/"); two {
		return d.node().lookup(sub), rest
	}
	return d.ino, name
}

// unreadRule keeps what SetUnread promises.
func (p *Process) unreadRule(c *Call, name string) error {
	if p.m.unread == nil || !p.m.unread(name) {
		return nil
	}
	switch c.Op {
	case OpOpen, OpOpenRW, OpOpenLock, OpRename, OpLink:
		if !p.made[c.Path] {
			return errors.New("the test said that nobody uses a file of that name that another process left")
		}
	}
	return nil
}

func (p *Process) noteMade(path string) {
	if p.m.unread != nil {
		if p.made == nil {
			p.made = map[string]bool{}
		}
		p.made[path] = true
	}
}

func badName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return fmt.Errorf("%q is not a bare name (%w)", name, fs.ErrInvalid)
	}
	return nil
}

// toName keeps an empty name visible to the check of names.
func toName(name string) string {
	if name == "" {
		return "."
	}
	return name
}

// mayAdd says why no name can be added or removed here.
func (d *dirHandle) mayAdd() error {
	switch {
	case d.p.m.nodes[d.ino].disk < 0:
		return errReadOnly
	case d.node().gone:
		return syscall.ENOENT
	}
	return nil
}

func (d *dirHandle) Identify(name string) (vfs.Info, error) { return d.Lstat(name) }

func (d *dirHandle) Lstat(name string) (info vfs.Info, err error) {
	err = d.do(OpLstat, name, func(_ *Call, ino int32) error {
		if ino == 0 {
			return syscall.ENOENT
		}
		info = d.p.m.info(ino)
		return nil
	})
	return info, err
}

func (d *dirHandle) Names() (names []string, err error) {
	err = d.p.do(Call{Op: OpNames, Path: d.path}, &d.handle, func(*Call) error {
		for _, e := range d.node().live {
			names = append(names, e.name)
		}
		return nil
	})
	return names, err
}

func (d *dirHandle) Mkdir(name string, perm fs.FileMode) error {
	return d.do(OpMkdir, name, func(c *Call, ino int32) error {
		if err := d.mayAdd(); err != nil {
			return err
		}
		if ino != 0 {
			return syscall.EEXIST
		}
		m := d.p.m
		ino = m.newNode(node{d: newDir(m.own, meta{mode: perm.Perm(), gid: simGID}), disk: m.nodes[d.ino].disk})
		m.setNames(d.ino, c.ID, false, entry{name, ino})
		return nil
	})
}

func (d *dirHandle) OpenDir(name string) (vfs.Dir, error) {
	var h *dirHandle
	err := d.do(OpOpenDir, name, func(c *Call, ino int32) error {
		switch {
		case ino == 0:
			return syscall.ENOENT
		case d.p.m.nodes[ino].d == nil:
			return syscall.ENOTDIR
		}
		h = d.p.dirHandle(ino, c.Path)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (d *dirHandle) Open(name string) (vfs.File, error)   { return d.open(OpOpen, name, 0) }
func (d *dirHandle) OpenRW(name string) (vfs.File, error) { return d.open(OpOpenRW, name, 0) }

func (d *dirHandle) Create(name string, perm fs.FileMode) (vfs.File, error) {
	return d.open(OpCreate, name, perm)
}

func (d *dirHandle) OpenLock(name string) (vfs.File, error) { return d.open(OpOpenLock, name, 0o600) }

func (d *dirHandle) open(op Op, name string, perm fs.FileMode) (vfs.File, error) {
	var h *fileHandle
	err := d.do(op, name, func(c *Call, ino int32) error {
		m := d.p.m
		switch {
		case ino == 0 && op.Mutates():
			if err := d.mayAdd(); err != nil {
				return err
			}
			ino = m.newNode(node{f: newFile(m.own, perm, simGID, d.p.now()), disk: m.nodes[d.ino].disk})
			m.setNames(d.ino, c.ID, false, entry{name, ino})
			d.p.noteMade(c.Path)
		case ino == 0:
			return syscall.ENOENT
		case op == OpCreate:
			return syscall.EEXIST
		case m.nodes[ino].f == nil:
			return vfs.ErrNotRegular
		}
		h = d.p.fileHandle(ino, c.Path, op)
		return nil
	})
	if err != nil {
		if h != nil { // the call was applied and failed: nobody holds the handle
			d.p.locked(h.forget)
		}
		return nil, err
	}
	return h, nil
}

func (d *dirHandle) Link(oldname, newname string) error {
	c := d.member(oldname)
	c.Op, c.To = OpLink, toName(newname)
	return d.run(c, oldname, func(c *Call, ino int32) error {
		m := d.p.m
		in, last := d.below(newname)
		switch err := d.mayAdd(); {
		case ino == 0:
			return syscall.ENOENT
		case err != nil:
			return err
		case m.nodes[in].d.lookup(last) != 0:
			return syscall.EEXIST
		case m.nodes[ino].f == nil:
			return fs.ErrPermission
		}
		m.setNames(in, c.ID, false, entry{last, ino})
		return nil
	})
}

func (d *dirHandle) Rename(oldname, newname string) error {
	c := d.member(oldname)
	c.Op, c.To = OpRename, toName(newname)
	return d.run(c, oldname, func(c *Call, ino int32) error {
		m := d.p.m
		switch err := d.mayAdd(); {
		case ino == 0:
			return syscall.ENOENT
		case err != nil:
			return err
		}
		switch there := d.node().lookup(newname); {
		case there != 0 && m.nodes[there].d != nil: // package os refuses it too
			return fs.ErrExist
		case there == ino: // two names of one file: POSIX does nothing
			return nil
		case there != 0 && m.nodes[ino].d != nil:
			return syscall.ENOTDIR
		}
		m.setNames(d.ino, c.ID, true, entry{newname, ino}, entry{oldname, 0})
		return nil
	})
}

func (d *dirHandle) Remove(name string) error {
	return d.do(OpRemove, name, func(c *Call, ino int32) error {
		m := d.p.m
		if ino == 0 {
			return syscall.ENOENT
		}
		if err := d.mayAdd(); err != nil {
			return err
		}
		if n := m.nodes[ino]; n.d != nil {
			if len(n.d.live) > 0 {
				return errNotEmpty
			}
			m.dirRW(ino).gone = true
		}
		m.setNames(d.ino, c.ID, false, entry{name, 0})
		return nil
	})
}

func (d *dirHandle) Sync() error {
	return d.p.sync(Call{Op: OpSyncDir, Path: d.path}, &d.handle, func() { d.p.m.syncDir(d.ino) },
		func(revert bool) { d.p.m.failDirSync(d.ino, revert) })
}
