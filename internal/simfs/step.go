package simfs

import (
	"io/fs"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Stepper is a process that can be stopped between any two of its calls. A WriteAt is
// made in pieces, one for each sector, as programs beside it may see it happen. So the
// rules of a policy about whole writes do not hold for it.
type Stepper struct {
	*Process
	Step  func() // called before each call and each piece, with nothing locked: it may make calls of other processes
	Reads bool   // ReadAt is made in pieces too: it may see what no instant ever had

	// Told leaves out the steps before calls of which no other process can tell: looks,
	// flushes, closes but those of lock files, and what is done to files that SetUnread
	// names. Beside one that only looks, nothing more can be seen without it.
	Told bool
}

var _ vfs.FS = (*Stepper)(nil)

type stepDir struct {
	s *Stepper
	d vfs.Dir
}

type stepFile struct {
	s    *Stepper
	f    vfs.File
	lock bool // opened as a lock file
	own  bool // opened by a name that nobody else reads
}

// step comes before a call, of which another process can tell or not.
func (s *Stepper) step(told bool) {
	if told || !s.Told {
		s.Step()
	}
}

// Resolve is Process.Resolve, after a step.
func (s *Stepper) Resolve(name string) (string, error) {
	s.step(false)
	return s.Process.Resolve(name)
}

// Lstat is Process.Lstat, after a step.
func (s *Stepper) Lstat(name string) (vfs.Info, error) {
	s.step(false)
	return s.Process.Lstat(name)
}

// OpenDir is Process.OpenDir, after a step.
func (s *Stepper) OpenDir(name string) (vfs.Dir, error) {
	s.step(false)
	return s.dir(s.Process.OpenDir(name))
}

func (s *Stepper) dir(d vfs.Dir, err error) (vfs.Dir, error) {
	if err != nil {
		return nil, err
	}
	return &stepDir{s, d}, nil
}

func (s *Stepper) file(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &stepFile{s: s, f: f, own: s.own(name)}, nil
}

func (s *Stepper) own(name string) bool { return s.m.unread != nil && s.m.unread(name) }

func (d *stepDir) Path() string { return d.d.Path() }

func (d *stepDir) Stat() (vfs.Info, error) {
	d.s.step(false)
	return d.d.Stat()
}

func (d *stepDir) System() (vfs.FileSystem, error) {
	d.s.step(false)
	return d.d.System()
}

func (d *stepDir) Lstat(name string) (vfs.Info, error) {
	d.s.step(false)
	return d.d.Lstat(name)
}

func (d *stepDir) Identify(name string) (vfs.Info, error) {
	d.s.step(false)
	return d.d.Identify(name)
}

func (d *stepDir) Names() ([]string, error) {
	d.s.step(false)
	return d.d.Names()
}

func (d *stepDir) Mkdir(name string, perm fs.FileMode) error {
	d.s.step(true)
	return d.d.Mkdir(name, perm)
}

func (d *stepDir) OpenDir(name string) (vfs.Dir, error) {
	d.s.step(false)
	return d.s.dir(d.d.OpenDir(name))
}

func (d *stepDir) Open(name string) (vfs.File, error) {
	d.s.step(false)
	f, err := d.d.Open(name)
	return d.s.file(name, f, err)
}

func (d *stepDir) OpenRW(name string) (vfs.File, error) {
	d.s.step(false)
	f, err := d.d.OpenRW(name)
	return d.s.file(name, f, err)
}

func (d *stepDir) Create(name string, perm fs.FileMode) (vfs.File, error) {
	d.s.step(!d.s.own(name))
	f, err := d.d.Create(name, perm)
	return d.s.file(name, f, err)
}

func (d *stepDir) OpenLock(name string) (vfs.File, error) {
	d.s.step(true)
	f, err := d.d.OpenLock(name)
	if err != nil {
		return nil, err
	}
	return &stepFile{s: d.s, f: f, lock: true}, nil
}

func (d *stepDir) Rename(oldname, newname string) error {
	d.s.step(true)
	return d.d.Rename(oldname, newname)
}

func (d *stepDir) Link(oldname, newname string) error {
	d.s.step(true)
	return d.d.Link(oldname, newname)
}

func (d *stepDir) Remove(name string) error {
	d.s.step(!d.s.own(name))
	return d.d.Remove(name)
}

func (d *stepDir) Sync() error {
	d.s.step(false)
	return d.d.Sync()
}

func (d *stepDir) Close() error {
	d.s.step(false)
	return d.d.Close()
}

func (f *stepFile) Stat() (vfs.Info, error) {
	f.s.step(false)
	return f.f.Stat()
}

func (f *stepFile) ReadAt(b []byte, off int64) (int, error) {
	if f.s.Reads {
		return f.s.pieces(b, off, false, f.f.ReadAt)
	}
	f.s.step(false)
	return f.f.ReadAt(b, off)
}

func (f *stepFile) WriteAt(b []byte, off int64) (int, error) {
	if f.own && f.s.Told {
		return f.f.WriteAt(b, off)
	}
	return f.s.pieces(b, off, true, f.f.WriteAt)
}

// pieces moves bytes sector by sector, with a step before each, up to the first error.
func (s *Stepper) pieces(b []byte, off int64, told bool, move func([]byte, int64) (int, error)) (n int, err error) {
	for first := true; first || n < len(b) && err == nil; first = false {
		piece, at, k := b[n:], off+int64(n), 0
		if at >= 0 { // what is before the beginning is refused, and needs no pieces
			piece = piece[:min(len(piece), Sector-int(at%Sector))]
		}
		s.step(told)
		k, err = move(piece, at)
		n += k
	}
	return n, err
}

func (f *stepFile) Chmod(perm fs.FileMode) error {
	f.s.step(!f.own)
	return f.f.Chmod(perm)
}

func (f *stepFile) Chgrp(gid int) error {
	f.s.step(!f.own)
	return f.f.Chgrp(gid)
}

func (f *stepFile) Sync() error {
	f.s.step(false)
	return f.f.Sync()
}

func (f *stepFile) SyncData() error {
	f.s.step(false)
	return f.f.SyncData()
}

func (f *stepFile) TryLock() (bool, error) {
	f.s.step(true)
	return f.f.TryLock()
}

func (f *stepFile) Close() error {
	f.s.step(f.lock)
	return f.f.Close()
}
