package pawl

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// folder is a directory within the store directory whose files the bundle names:
// segments, or parts. Its files are made once, never changed, and found by name. It is
// opened when it is needed, and again after it was closed, because a View may outlive
// its Store.
type folder struct {
	in   *directory // the store directory, which has it
	name string
	ours func(name string) bool // whether pawl makes such names

	mu     sync.Mutex
	dir    *directory // nil while it is not open
	firm   bool       // its own name is known to be durable
	named  bool       // likewise, because the bundle names a file in it
	closed bool       // it is not kept open any more
	puts   int        // how many are writing a file in it
}

func (f *folder) path() string { return filepath.Join(f.in.Path(), f.name) }

// open opens a file for reading, and tells whether it may stay open.
func (f *folder) open(name string) (file vfs.File, stay bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.hold()
	if err != nil {
		return nil, false, err
	}
	if f.closed {
		defer f.rest()
	}
	file, err = d.Open(name)
	return file, !f.closed, err
}

// hold opens the folder, unless it is open. Another process may have made it anew.
func (f *folder) hold() (*directory, error) {
	if f.dir != nil {
		err := f.dir.moved()
		switch {
		case err == nil:
			return f.dir, nil
		case f.puts > 0: // it stays open until they have found out for themselves
			return nil, err
		}
		f.firm = false
		_ = f.rest()
	}
	store := f.in.Dir
	if f.closed { // and so is the store directory
		var err error
		if store, err = f.in.fsys.OpenDir(f.in.Path()); err != nil {
			return nil, err
		}
		defer store.Close()
	}
	sub, err := store.OpenDir(f.name)
	if err != nil {
		return nil, err
	}
	info, err := sub.Stat()
	if err != nil {
		sub.Close()
		return nil, err
	}
	f.dir = &directory{Dir: sub, fsys: f.in.fsys, info: info, temp: tempPrefix, counts: f.in.counts}
	f.dir.noSync.Store(f.in.noSync.Load())
	return f.dir, nil
}

// make opens the folder for writing, and makes it where there is none. When it returns
// nil, the folder's own name is durable. That it is there says little: the flush of its
// name may have failed, and then a second one means nothing. So one in which the bundle
// names no file is made anew. (One in which somebody else has put something is not.)
func (f *folder) make() (*directory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made()
}

func (f *folder) made() (*directory, error) {
	d, err := f.hold()
	if err == nil && !f.firm && !f.named {
		var names []string
		if names, err = d.Names(); err == nil && len(names) == 0 {
			_ = f.rest()
			if err = f.in.Remove(f.name); err == nil {
				err = fs.ErrNotExist
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = f.in.Mkdir(f.name, f.in.info.Mode.Perm()|0o700); err == nil || errors.Is(err, fs.ErrExist) {
			d, err = f.hold()
		}
	}
	if notDir(err) {
		return nil, &Error{Path: f.path(), Kind: ErrUnauthorized, Cause: err, Hint: hintFolderTaken}
	}
	if err != nil {
		return nil, err
	}
	d.noSync.Store(f.in.noSync.Load())
	if err := d.moved(); err != nil {
		return nil, err
	}
	if !f.firm {
		if err := f.in.Sync(); err != nil {
			return nil, err
		}
		f.firm = true
	}
	return d, nil
}

// vouch says whether the bundle names a file in the folder: then its name was durable
// before the bundle was there.
func (f *folder) vouch(files map[string]*keptFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named = false
	for name := range files {
		f.named = f.named || f.ours(name)
	}
}

// put makes a new file with this content and makes it durable, name included. named
// tells the name once all is written, and may look into the folder.
func (f *folder) put(b content, named func(d *directory) (string, error)) (string, error) {
	f.mu.Lock()
	d, err := f.made()
	f.puts++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.puts--
		f.mu.Unlock()
	}()
	if err != nil {
		return "", err
	}
	temp, info, err := d.writeTemp(b, b.like)
	if err != nil {
		return "", err
	}
	name, err := named(d)
	var old *vfs.Info
	if err == nil {
		old, err = d.present(name)
	}
	if err == nil && old != nil && !old.Mode.IsRegular() {
		err = &Error{Path: filepath.Join(d.Path(), name), Cause: vfs.ErrNotRegular}
	}
	if err != nil {
		return name, errors.Join(err, ignoreNotExist(d.Remove(temp)))
	}
	if _, err := d.place(temp, info, name, old, d.moved); err != nil {
		return name, err
	}
	return name, nil
}

// remove takes the names of files away. What cannot be removed stays for the sweep of
// the next open, and so does one that a power cut brings back.
func (f *folder) remove(names ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.hold()
	if err != nil {
		return ignoreNotExist(err)
	}
	var errs []error
	for _, name := range names {
		info, err := d.Lstat(name)
		if err == nil && info.Mode.IsRegular() { // else pawl has not made it
			err = d.Remove(name)
		}
		errs = append(errs, ignoreNotExist(err))
	}
	return errors.Join(errs...)
}

// sweep removes temps, and files that pawl has made and no state names.
func (f *folder) sweep(wanted map[string]bool) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, err := f.list()
	if err != nil || len(names) == 0 {
		return nil, err
	}
	stray := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return wanted[name] || !f.ours(name) })
	d := f.dir
	swept, err := d.sweep(stray...)
	for i, name := range swept {
		swept[i] = f.name + "/" + name
	}
	return swept, err
}

// notDir reports that there is something else where a directory should be.
func notDir(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// names lists what is in the folder; nothing, where there is none.
func (f *folder) names() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list()
}

func (f *folder) list() ([]string, error) {
	d, err := f.hold()
	if errors.Is(err, fs.ErrNotExist) || notDir(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.closed {
		defer f.rest()
	}
	return d.Names()
}

// close lets the folder go. Files in it can still be opened.
func (f *folder) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.rest()
}

func (f *folder) rest() error {
	if f.dir == nil {
		return nil
	}
	err := f.dir.Close()
	f.dir = nil
	return err
}
