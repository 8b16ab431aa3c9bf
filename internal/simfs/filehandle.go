package simfs

import (
	"io"
	"io/fs"
	"syscall"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

type fileHandle struct {
	handle
	op Op // by which it was opened
}

var _ vfs.File = (*fileHandle)(nil)

func (p *Process) fileHandle(ino int32, path string, op Op) *fileHandle {
	p.open++
	p.m.handles++
	return &fileHandle{handle{p: p, ino: ino, path: path}, op}
}

func (h *fileHandle) Stat() (vfs.Info, error) { return h.stat() }

func (h *fileHandle) Close() error {
	err := h.close()
	h.p.locked(func() {
		if h.p.m.locks[h.ino] == h && h.closed {
			delete(h.p.m.locks, h.ino)
		}
	})
	return err
}

func (h *fileHandle) ReadAt(b []byte, off int64) (int, error) {
	n := 0
	c := Call{Op: OpReadAt, Path: h.path, Off: off, Len: len(b)}
	err := h.data(c, b, func(_ *Call, b []byte) { n = h.p.m.nodes[h.ino].f.readAt(b, off) })
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

func (h *fileHandle) WriteAt(b []byte, off int64) (int, error) {
	n := 0
	c := Call{Op: OpWriteAt, Path: h.path, Off: off, Len: len(b), ino: h.ino, data: b}
	err := h.data(c, b, func(c *Call, b []byte) {
		m := h.p.m
		f := m.fileRW(h.ino)
		f.modTime = h.p.now()
		part := *c
		wide, from := m.widen(f, b, off)
		f.write(wide, from, m.profile.TornBlock > 0, c.ID, &m.seq, func() *file {
			m.changes++
			if h.p.hook != nil {
				part.Part++
				h.p.hook(&part)
			}
			return m.fileRW(h.ino)
		})
		if m.scratch != nil && m.scratch(h.path) {
			m.fileRW(h.ino).flush()
		} else {
			m.writes++
		}
		m.changes++
		n = len(b)
	})
	return n, err
}

// widen is a write as the disk does it, where its blocks are larger than a sector:
// the whole blocks, as far as the file goes, with what they held around the change.
func (m *Machine) widen(f *file, b []byte, off int64) ([]byte, int64) {
	size := int64(m.profile.TornBlock)
	if size == 0 || len(b) == 0 {
		return b, off
	}
	end := off + int64(len(b))
	from := off - off%size
	to := max(min((end+size-1)/size*size, f.size), end)
	wide := make([]byte, to-from)
	f.readAt(wide, from)
	copy(wide[off-from:], b)
	return wide, from
}

// data runs a call that moves bytes, of which a fault may let only some through.
func (h *fileHandle) data(c Call, b []byte, f func(c *Call, b []byte)) error {
	h.p.m.mu.Lock()
	defer h.p.m.mu.Unlock()
	fault, err := h.p.enter(&c, &h.handle)
	switch {
	case err != nil:
	case c.Off < 0 || c.Op == OpWriteAt && h.op == OpOpen:
		err = pathError(&c, fs.ErrInvalid)
	case fault.Err == nil:
		f(&c, b)
	case fault.Applied:
		f(&c, b)
		err = pathError(&c, fault.Err)
	default:
		if n := min(fault.Short, len(b)); n > 0 {
			f(&c, b[:n])
		}
		err = pathError(&c, fault.Err)
	}
	h.p.leave(&c, fault, err)
	return err
}

func (h *fileHandle) Chmod(perm fs.FileMode) error {
	return h.setMeta(OpChmod, func(f *file) { f.meta.mode = perm.Perm() })
}

func (h *fileHandle) Chgrp(gid int) error {
	return h.setMeta(OpChgrp, func(f *file) { f.meta.gid = gid })
}

func (h *fileHandle) setMeta(op Op, set func(f *file)) error {
	return h.p.do(Call{Op: op, Path: h.path}, &h.handle, func(*Call) error {
		f := h.p.m.fileRW(h.ino)
		set(f)
		f.changed()
		h.p.m.changes++
		h.p.m.writes++
		return nil
	})
}

func (h *fileHandle) Sync() error     { return h.sync(OpSync) }
func (h *fileHandle) SyncData() error { return h.sync(OpSyncData) }

func (h *fileHandle) sync(op Op) error {
	m := h.p.m
	return h.p.sync(Call{Op: op, Path: h.path}, &h.handle,
		func() {
			if !m.profile.LyingSync && !m.nodes[h.ino].f.settled() {
				m.fileRW(h.ino).sync()
				m.changes++
			}
		},
		func(revert bool) {
			m.fileRW(h.ino).failSync(revert)
			m.changes++
		})
}

// sync runs a call that makes something durable. One that fails without being
// applied loses what it covered.
func (p *Process) sync(c Call, h *handle, force func(), lose func(revert bool)) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	fault, err := p.enter(&c, h)
	switch {
	case err != nil:
	case fault.Err == nil:
		force()
	case fault.Applied:
		force()
		err = pathError(&c, fault.Err)
	default:
		lose(fault.Revert)
		err = pathError(&c, fault.Err)
	}
	p.leave(&c, fault, err)
	return err
}

func (h *fileHandle) TryLock() (bool, error) {
	got := false
	err := h.p.do(Call{Op: OpTryLock, Path: h.path}, &h.handle, func(c *Call) error {
		if h.op != OpOpenLock {
			return pathError(c, syscall.EINVAL)
		}
		holder := h.p.m.locks[h.ino]
		if got = holder == nil || holder == h; got {
			h.p.m.locks[h.ino] = h
		}
		return nil
	})
	return got && err == nil, err
}
