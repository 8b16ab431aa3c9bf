package pawl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
// only writer until Close, or with Options.Shared one of several. On error nothing was changed, but that an empty store
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
	s := newStore(at, o)
	opened := false
	defer func() {
		if !opened { // Migrate, or a logger, panics
			s.release()
		}
	}()
	err = s.open(ctx)
	if err == nil {
		s.compareProgram()
		err = s.migrate(ctx)
	}
	if err != nil {
		e := fail("open", at.dir, err)
		if err := s.release(); err != nil {
			e.Cause = errors.Join(e.Cause, err)
		}
		opened = true // what there was to release is
		return nil, e
	}
	opened = true
	s.openTime = time.Since(start)
	s.give()
	return s, nil
}

// newStore is a store that nothing was opened of. The caller has the turn.
func newStore(at place, o Options) *Store {
	s := &Store{site: site{at: at, opts: o, counts: new(counts)}, turn: make(chan struct{}, 1)}
	s.queue.hash = sha256.New()
	s.turn <- struct{}{}
	s.lull.Lock()
	return s
}

// open takes what the store needs, in the fixed order trust before store, and
// settles. What it took is released by the caller on error.
func (s *Store) open(ctx context.Context) error {
	deadline := time.Now().Add(s.opts.LockWait)
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
	if s.trustLock, err = s.takeLock(ctx, s.trustDir, s.at.name+lockSuffix, deadline); err != nil {
		var e *Error
		if t := (&trustFile{dir: s.trustDir, name: s.at.name + trustSuffix}); errors.As(err, &e) && t.read() == nil {
			return s.otherStore(t.newest.path, e)
		}
		return err
	}
	s.joined = true
	s.trust = &trustFile{dir: s.trustDir, name: s.at.name + trustSuffix}
	switch err = s.trust.read(); {
	case err == errNoTrust:
		if err = s.create(); err != nil {
			return err
		}
	case err != nil:
		return fail("", s.trust.path(), err)
	}
	if err := s.spelled(s.trust.info); err != nil {
		return err
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
	if s.storeLock, err = s.takeLock(ctx, s.dir, lockName, deadline); err != nil {
		return err
	}
	rec, e := s.settle(opening)
	if e != nil {
		return e
	}
	s.recovery, s.abreast = rec, true
	s.idle = s.at.fsys.AfterFunc(time.Hour, s.onIdle)
	s.idle.Stop()
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
func (s *Store) takeLock(ctx context.Context, d *directory, name string, deadline time.Time) (*lock, error) {
	l, err := takeLock(ctx, d, name, deadline, s.opts.Shared)
	if err == nil && d.system.Class != vfs.Local {
		var excludes bool
		if excludes, err = l.excludes(); err == nil && !excludes {
			err = &Error{Kind: ErrUnsupported, Hint: hintNoLock, Cause: errorString("two openers could both take the lock")}
		}
	}
	if errors.Is(err, vfs.ErrNotRegular) {
		return l, lockTaken(filepath.Join(d.Path(), name), err)
	}
	if err != nil {
		return l, fail("", filepath.Join(d.Path(), name), err)
	}
	return l, nil
}

// lockTaken is the error for something that has the name of a lock file and is none.
func lockTaken(path string, err error) *Error {
	return &Error{Path: path, Kind: ErrUnauthorized, Cause: err, Hint: hintLockTaken}
}

func (t *trustFile) path() string { return filepath.Join(t.dir.Path(), t.name) }
