package crashtest

import (
	"io"
	"path"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// FS reaches files on the simulated disks by absolute paths. Each method is one
// step that a crash can come before, and makes nothing durable but by Sync and
// SyncDir.
type FS struct{ sys vfs.FS }

func (f *FS) dir(dir string, do func(d vfs.Dir) error) error {
	d, err := f.sys.OpenDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(d)
}

func (f *FS) in(name string, do func(d vfs.Dir, base string) error) error {
	return f.dir(path.Dir(name), func(d vfs.Dir) error { return do(d, path.Base(name)) })
}

func (f *FS) rw(name string, do func(vfs.File) error) error {
	return f.in(name, func(d vfs.Dir, base string) error {
		file, err := d.OpenRW(base)
		if err != nil {
			return err
		}
		defer file.Close()
		return do(file)
	})
}

// ReadFile returns the content of a file.
func (f *FS) ReadFile(name string) (data []byte, err error) {
	err = f.in(name, func(d vfs.Dir, base string) error {
		file, err := d.Open(base)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		data = make([]byte, info.Size)
		if n, err := file.ReadAt(data, 0); err != nil && (err != io.EOF || n < len(data)) {
			return err
		}
		return nil
	})
	return data, err
}

// Create makes a new file with the given content; it fails with fs.ErrExist when
// there is one.
func (f *FS) Create(name string, data []byte) error {
	return f.in(name, func(d vfs.Dir, base string) error {
		file, err := d.Create(base, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		if len(data) == 0 {
			return nil
		}
		_, err = file.WriteAt(data, 0)
		return err
	})
}

// WriteAt changes a file in place.
func (f *FS) WriteAt(name string, data []byte, off int64) error {
	return f.rw(name, func(file vfs.File) error {
		_, err := file.WriteAt(data, off)
		return err
	})
}

// Sync makes the content of a file durable.
func (f *FS) Sync(name string) error {
	return f.rw(name, func(file vfs.File) error { return file.Sync() })
}

// SyncDir makes the names in a directory durable.
func (f *FS) SyncDir(dir string) error {
	return f.dir(dir, func(d vfs.Dir) error { return d.Sync() })
}

// Rename gives a file another name in the same directory.
func (f *FS) Rename(oldname, newname string) error {
	return f.in(oldname, func(d vfs.Dir, base string) error { return d.Rename(base, path.Base(newname)) })
}

// Remove removes a file, or an empty directory.
func (f *FS) Remove(name string) error {
	return f.in(name, func(d vfs.Dir, base string) error { return d.Remove(base) })
}

// Mkdir makes a directory.
func (f *FS) Mkdir(name string) error {
	return f.in(name, func(d vfs.Dir, base string) error { return d.Mkdir(base, 0o700) })
}

// ReadDir returns the sorted names in a directory.
func (f *FS) ReadDir(dir string) (names []string, err error) {
	err = f.dir(dir, func(d vfs.Dir) error {
		names, err = d.Names()
		return err
	})
	return names, err
}
