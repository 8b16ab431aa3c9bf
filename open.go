package pawl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

func (id storeID) String() string { return hex.EncodeToString(id[:]) }

// Open opens the store in dir whose trust file is in trustDir, and makes both when
// there is neither. nil options are safe defaults.
//
// When it returns nil, the state is one that the trust file authorises, an intent
// that a killed process left is settled (see Store.Recovery), and the caller is the
// only writer until Close. On error nothing was changed, but that an empty store
// may have been made, or an intent settled, when a later step failed; a retry is
// always safe. errors.Is tells the class: see the variables of this package.
//
// ctx bounds the wait for the locks.
func Open(ctx context.Context, dir, trustDir string, opts *Options) (*Store, error) {
	start := time.Now()
	o, err := opts.complete()
	if err != nil {
		return nil, fail("open", dir, err)
	}
	at, err := locate(vfs.FromContext(ctx), dir, trustDir, &o)
	if err != nil {
		return nil, fail("open", dir, err)
	}
	s := &Store{at: at, opts: o, counts: new(counts), turn: make(chan struct{}, 1)}
	s.queue.hash = sha256.New()
	s.lull.Lock()
	if err := s.open(ctx); err != nil {
		e := fail("open", at.dir, err)
		if err := s.release(); err != nil {
			e.Cause = errors.Join(e.Cause, err)
		}
		return nil, e
	}
	s.openTime = time.Since(start)
	return s, nil
}

// open takes what the store needs, in the fixed order trust before store, and
// settles. What it took is released by the caller on error.
func (s *Store) open(ctx context.Context) error {
	if err := s.openDirs(); err != nil {
		return err
	}
	if err := s.beforeLocks(); err != nil {
		return err
	}
	var err error
	if s.trustDir == nil {
		if s.trustDir, err = s.makeDir(s.at.trust, s.at.name+"."+tempPrefix); err != nil {
			return err
		}
	}
	if s.trustLock, err = s.takeLock(ctx, s.trustDir, s.at.name+lockSuffix); err != nil {
		return err
	}
	s.trust = &trustFile{dir: s.trustDir, name: s.at.name + trustSuffix}
	switch err = s.trust.read(); {
	case err == errNoTrust:
		if err = s.create(); err != nil {
			return err
		}
	case err != nil:
		return fail("", s.trust.path(), err)
	}
	if err := s.ownTrust(s.trust.info, s.trust.path(), "trust file"); err != nil {
		return err
	}
	if s.dir == nil {
		// The holder of the trust lock may have made it while this process waited.
		if s.dir, err = s.openDir(s.at.dir, tempPrefix); err != nil {
			return err
		}
	}
	if s.trust.newest.confirmed == (Root{}) {
		// A process that was killed while it made the directories may have left them
		// without their entries being durable.
		d, err := s.makeDir(s.at.dir, tempPrefix)
		if err != nil {
			return err
		}
		s.dir = d
	} else if s.dir == nil {
		_, e := refuse(&s.trust.newest, &found{}, ErrMissing, hintMissing)
		return fail("", s.bundlePath(), s.otherStore(s.trust.newest.path, e))
	}
	if s.storeLock, err = s.takeLock(ctx, s.dir, lockName); err != nil {
		return err
	}
	rec, e := s.settle(true)
	if e != nil {
		return e
	}
	s.recovery = rec
	s.idle = s.at.fsys.AfterFunc(time.Hour, s.onIdle)
	s.idle.Stop()
	return nil
}

// openDirs opens the two directories as far as they exist.
func (s *Store) openDirs() (err error) {
	if s.dir, err = s.openDir(s.at.dir, tempPrefix); err != nil {
		return err
	}
	s.trustDir, err = s.openDir(s.at.trust, s.at.name+"."+tempPrefix)
	return err
}

// openDir opens a directory and looks at what it is on and who may write to it,
// before anything is done in it. It returns nil when there is none.
func (s *Store) openDir(path, temp string) (*directory, error) {
	d, err := s.at.fsys.OpenDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail("", path, err)
	}
	dir := &directory{Dir: d, fsys: s.at.fsys, temp: temp, counts: s.counts}
	if err := s.inspectDir(dir); err != nil {
		d.Close()
		return nil, fail("", path, err)
	}
	return dir, nil
}

func (s *Store) inspectDir(d *directory) (err error) {
	if d.info, err = d.Stat(); err != nil {
		return err
	}
	// Between the path's being resolved and opened it may have come to lead elsewhere.
	if err := d.moved(); err != nil {
		return err
	}
	if d.system, err = d.System(); err != nil {
		return err
	}
	if d.system.Class == vfs.Network && s.opts.Allow&NetworkFS == 0 {
		return &Error{Kind: ErrUnsupported, Hint: hintNetwork, Cause: fmt.Errorf("it is on a network file system (%s)", d.system.Type)}
	}
	if d.Path() != s.at.trust {
		return nil
	}
	return s.ownTrust(d.info, d.Path(), "trust directory")
}

// ownTrust refuses a trust directory, or a trust file, that others can write to.
func (s *Store) ownTrust(info vfs.Info, path, what string) error {
	why := s.at.fsys.OthersCanWrite(info)
	if why == "" {
		return nil
	}
	if s.opts.Allow&SharedTrust == 0 {
		return &Error{Path: path, Kind: ErrInsecure, Hint: hintShared, Cause: errorString("it is " + why)}
	}
	s.opts.Logger.Warn("pawl: others can write to the "+what, "path", path, "why", why)
	return nil
}

// swapped refuses a trust directory that is somebody's store directory.
func (s *Store) swapped() error {
	if s.trustDir == nil {
		return nil
	}
	_, err := s.trustDir.Lstat(bundleName)
	if err == nil {
		return &Error{Path: s.at.trust, Kind: ErrInsecure, Hint: hintSwapped, Cause: errorString("the trust directory holds a bundle")}
	}
	if err = ignoreNotExist(err); err != nil {
		return fail("", s.at.trust, err)
	}
	return nil
}

// beforeLocks finds the errors that are certain without a lock, so that not even a
// lock file is made where there is nothing to lock.
func (s *Store) beforeLocks() error {
	if err := s.swapped(); err != nil {
		return err
	}
	// The store is looked at before the trust file, because they are made in the
	// other order: once a store file is there, so is the trust file.
	file := ""
	if s.dir != nil {
		var err error
		if file, err = firstStoreFile(s.dir); err != nil {
			return fail("", s.at.dir, err)
		}
	}
	if s.trustDir != nil {
		_, err := s.trustDir.Lstat(s.at.name + trustSuffix)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fail("", s.at.trust, err)
		}
	}
	return s.noTrust(file)
}

// noTrust is the verdict on a store without a trust file.
func (s *Store) noTrust(file string) error {
	if file != "" {
		return &Error{Path: s.at.dir, Kind: ErrUntrusted, Hint: hintUntrusted,
			Cause: fmt.Errorf("there is %q, and no %s", file, printable(s.at.trustPath()))}
	}
	if s.opts.MustExist {
		return &Error{Path: s.at.dir, Kind: ErrNotExist, Hint: hintNotExist,
			Cause: fmt.Errorf("there is no %s", printable(s.at.trustPath()))}
	}
	return nil
}

// create makes the trust file of a new store, durable, before the store directory
// exists: whatever is found in the store directory later, trust has an answer.
func (s *Store) create() error {
	if err := s.beforeLocks(); err != nil {
		return err
	}
	// The way to the trust directory is made durable first; it may have been made by
	// a process that was killed before it came to that.
	d, err := s.makeDir(s.at.trust, "")
	if err != nil {
		return err
	}
	d.Close()
	if e := s.flushable(s.trustDir); e != nil {
		return e
	}
	first := trustRecord{path: quotePath(s.at.dir), closed: true}
	s.at.fsys.Random(first.store[:])
	if err := s.trust.create(first); err != nil {
		return fail("", s.trust.path(), err)
	}
	return nil
}

// makeDir opens the directory at path, makes what is missing of it, and makes the
// entries of the whole way durable, by whomever they were made.
func (s *Store) makeDir(path, temp string) (*directory, error) {
	if err := makeAll(s.at.fsys, path); err != nil {
		return nil, fail("", path, err)
	}
	if s.dir != nil && path == s.at.dir {
		return s.dir, nil
	}
	d, err := s.openDir(path, temp)
	if d == nil && err == nil {
		err = fail("", path, fs.ErrNotExist)
	}
	return d, err
}

// makeAll makes the directory at path and its missing parents, and flushes every
// directory above it, root last. One that may not be read holds nothing that this
// process could have made.
func makeAll(fsys vfs.FS, path string) error {
	_, err := fsys.Lstat(path)
	if ignoreNotExist(err) != nil {
		return err
	}
	above := filepath.Dir(path)
	if above == path {
		return nil
	}
	exists := err == nil
	parent, err := fsys.OpenDir(above)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeAll(fsys, above); err != nil {
			return err
		}
		parent, err = fsys.OpenDir(above)
	}
	if errors.Is(err, fs.ErrPermission) && exists {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	if !exists {
		if err := parent.Mkdir(filepath.Base(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// What the store's own directories can do is asked later, and answered for; one
	// that cannot be written to has nothing to flush.
	err = parent.Sync()
	if err != nil && !errors.Is(err, vfs.ErrNoDirSync) && !errors.Is(err, syscall.EROFS) {
		return err
	}
	return makeAll(fsys, above)
}

// takeLock takes one of the two locks and, where nothing is known of the file
// system, makes sure that it keeps others out.
func (s *Store) takeLock(ctx context.Context, d *directory, name string) (*lock, error) {
	l, err := takeLock(ctx, d, name, s.opts.LockWait)
	if err == nil && d.system.Class != vfs.Local {
		var excludes bool
		if excludes, err = l.excludes(); err == nil && !excludes {
			err = &Error{Kind: ErrUnsupported, Hint: hintNoLock, Cause: errorString("two openers could both take the lock")}
		}
	}
	if err != nil {
		return l, fail("", filepath.Join(d.Path(), name), err)
	}
	return l, nil
}

func (t *trustFile) path() string { return filepath.Join(t.dir.Path(), t.name) }

func (s *Store) bundlePath() string { return filepath.Join(s.at.dir, bundleName) }
