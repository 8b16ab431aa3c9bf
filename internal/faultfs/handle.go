package faultfs

import (
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

type dir struct {
	vfs.Dir
	f *FS
}

func (d *dir) at(name string) string { return filepath.Join(d.Path(), name) }

func (d *dir) Stat() (i vfs.Info, err error) {
	err = d.f.do("Stat", d.Path(), "", func() (err error) { i, err = d.Dir.Stat(); return })
	return i, err
}

func (d *dir) System() (s vfs.FileSystem, err error) {
	err = d.f.do("System", d.Path(), "", func() (err error) { s, err = d.Dir.System(); return })
	return s, err
}

func (d *dir) Identify(name string) (i vfs.Info, err error) {
	err = d.f.do("Identify", d.at(name), "", func() (err error) { i, err = d.Dir.Identify(name); return })
	return
}

func (d *dir) Lstat(name string) (i vfs.Info, err error) {
	err = d.f.do("Lstat", d.at(name), "", func() (err error) { i, err = d.Dir.Lstat(name); return })
	return i, err
}

func (d *dir) Names() (names []string, err error) {
	err = d.f.do("Names", d.Path(), "", func() (err error) { names, err = d.Dir.Names(); return })
	return names, err
}

func (d *dir) Mkdir(name string, perm fs.FileMode) error {
	return d.f.do("Mkdir", d.at(name), "", func() error { return d.Dir.Mkdir(name, perm) })
}

func (d *dir) OpenDir(name string) (vfs.Dir, error) {
	return d.f.openDir(d.at(name), func() (vfs.Dir, error) { return d.Dir.OpenDir(name) })
}

func (d *dir) Open(name string) (vfs.File, error) {
	return d.open("Open", name, func() (vfs.File, error) { return d.Dir.Open(name) })
}

func (d *dir) OpenRW(name string) (vfs.File, error) {
	return d.open("OpenRW", name, func() (vfs.File, error) { return d.Dir.OpenRW(name) })
}

func (d *dir) Create(name string, perm fs.FileMode) (vfs.File, error) {
	return d.open("Create", name, func() (vfs.File, error) { return d.Dir.Create(name, perm) })
}

func (d *dir) OpenLock(name string) (vfs.File, error) {
	return d.open("OpenLock", name, func() (vfs.File, error) { return d.Dir.OpenLock(name) })
}

func (d *dir) open(op, name string, open func() (vfs.File, error)) (vfs.File, error) {
	var h vfs.File
	err := d.f.do(op, d.at(name), "", func() (err error) { h, err = open(); return })
	if err != nil {
		if h != nil {
			_ = h.Close() // opened although an error was injected: nobody holds it
		}
		return nil, err
	}
	return &file{h, d.f, d.at(name)}, nil
}

func (d *dir) Rename(oldname, newname string) error {
	return d.f.do("Rename", d.at(oldname), d.f.show(d.at(newname)), func() error { return d.Dir.Rename(oldname, newname) })
}

func (d *dir) Link(oldname, newname string) error {
	return d.f.do("Link", d.at(oldname), d.f.show(d.at(newname)), func() error { return d.Dir.Link(oldname, newname) })
}

func (d *dir) Remove(name string) error {
	return d.f.do("Remove", d.at(name), "", func() error { return d.Dir.Remove(name) })
}

func (d *dir) Sync() error { return d.f.flush("Sync", d.Path(), d.Dir.Sync) }

func (d *dir) Close() error { return d.f.close(d.Path(), d.Dir.Close) }

// close is done whatever the hook says: a handle is gone after a close that failed,
// too, and one left open here would be no fault of the caller's.
func (f *FS) close(path string, call func() error) error {
	_, a := f.ask("Close", path, "")
	err := call()
	if a.After != nil {
		a.After()
	}
	if a.Err != nil {
		return a.Err
	}
	return err
}

type file struct {
	vfs.File
	f    *FS
	path string
}

func (h *file) Stat() (i vfs.Info, err error) {
	err = h.f.do("Stat", h.path, "", func() (err error) { i, err = h.File.Stat(); return })
	return i, err
}

func (h *file) ReadAt(p []byte, off int64) (int, error) {
	return h.move("ReadAt", p, off, h.File.ReadAt)
}
func (h *file) WriteAt(p []byte, off int64) (int, error) {
	return h.move("WriteAt", p, off, h.File.WriteAt)
}

func (h *file) move(op string, p []byte, off int64, call func([]byte, int64) (int, error)) (n int, err error) {
	_, a := h.f.ask(op, h.path, fmt.Sprintf("%d@%d", len(p), off))
	switch {
	case a.Half:
		n, err = call(p[:len(p)/2], off)
		if err == io.EOF {
			err = nil
		}
	case a.Err == nil || a.Done:
		n, err = call(p, off)
	}
	if a.After != nil {
		a.After()
	}
	if a.Err != nil {
		return n, a.Err
	}
	return n, err
}

func (h *file) Chmod(perm fs.FileMode) error {
	return h.f.do("Chmod", h.path, fmt.Sprintf("%04o", perm), func() error { return h.File.Chmod(perm) })
}

func (h *file) Chgrp(gid int) error {
	return h.f.do("Chgrp", h.path, "", func() error { return h.File.Chgrp(gid) })
}

func (h *file) Sync() error     { return h.f.flush("Sync", h.path, h.File.Sync) }
func (h *file) SyncData() error { return h.f.flush("SyncData", h.path, h.File.SyncData) }

func (h *file) TryLock() (ok bool, err error) {
	err = h.f.do("TryLock", h.path, "", func() (err error) { ok, err = h.File.TryLock(); return })
	return ok && err == nil, err
}

func (h *file) Close() error { return h.f.close(h.path, h.File.Close) }
