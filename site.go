package pawl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// site is where a store is, and how the caller wants it treated: what whoever writes,
// reads or only looks needs alike.
type site struct {
	at            place
	opts          Options
	counts        *counts
	dir, trustDir *directory // nil while there is none
}

// openDirs opens the two directories as far as they exist.
func (s *site) openDirs() (err error) {
	if err = s.openStore(); err != nil {
		return err
	}
	s.trustDir, err = s.openDir(s.at.trust, s.at.name+"."+tempPrefix)
	return err
}

func (s *site) openStore() (err error) {
	s.dir, err = s.openDir(s.at.dir, tempPrefix)
	return err
}

// openDir opens a directory and looks at what it is on and who may write to it,
// before anything is done in it. It returns nil when there is none.
func (s *site) openDir(path, temp string) (*directory, error) {
	d, err := s.at.fsys.OpenDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail("", path, err)
	}
	dir := &directory{Dir: d, fsys: s.at.fsys, temp: temp, alone: temp != tempPrefix, counts: s.counts}
	dir.segments = folder{in: dir, name: segmentsName, ours: isSegment}
	dir.parts = folder{in: dir, name: partsName, ours: isPartFile}
	dir.aside = folder{in: dir, name: asideName, ours: func(string) bool { return false }}
	if err := s.inspectDir(dir); err != nil {
		d.Close()
		return nil, fail("", path, err)
	}
	return dir, nil
}

func (s *site) inspectDir(d *directory) (err error) {
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
func (s *site) ownTrust(info vfs.Info, path, what string) error {
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
func (s *site) swapped() error {
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
func (s *site) beforeLocks() error {
	if err := s.swapped(); err != nil {
		return err
	}
	// The store is looked at before the trust file, because they are made in the
	// other order: once a store file is there, so is the trust file.
	file := ""
	if s.dir != nil {
		var err error
		if file, err = firstStoreFile(s.dir); err == nil && file == "" {
			file, err = firstKeptFile(s.dir)
		}
		if err != nil {
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
	if err := s.unlike(); err != nil {
		return err
	}
	if file == "" {
		if err := s.insideOut(); err != nil {
			return err
		}
	}
	return s.noTrust(file)
}

// insideOut refuses a store directory that is somebody's trust directory.
func (s *site) insideOut() error {
	if s.dir == nil {
		return nil
	}
	names, err := s.dir.Names()
	if err != nil {
		return fail("", s.at.dir, err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, trustSuffix) {
			continue
		}
		if t := (&trustFile{dir: s.dir, name: name}); t.read() == nil {
			return &Error{Path: s.at.dir, Kind: ErrInsecure, Hint: hintSwapped, Cause: fmt.Errorf("the store directory holds the trust file %s", printable(name))}
		}
	}
	return nil
}

// noTrust is the verdict on a store without a trust file.
func (s *site) noTrust(file string) error {
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

// beyond reports whether a state that trust names is later than a version of which it
// cannot be told any more whether the state has it: retention has dropped it, or the
// segment that would tell is damaged, which must not keep anybody from going on.
func (s *site) beyond(st *state, v Version, err error) bool {
	if st.version().Revision <= v.Revision {
		return false
	}
	if errors.Is(err, ErrDamaged) {
		s.opts.Logger.Error("pawl: whether history holds an earlier version cannot be told", "store", s.at.dir, "version", v.String(), "error", err)
		return true
	}
	return errors.Is(err, ErrForgotten)
}

func (s *site) bundlePath() string { return filepath.Join(s.at.dir, bundleName) }

// closeDirs lets go of the directories.
func (s *site) closeDirs() error {
	var errs []error
	if s.dir != nil {
		errs = append(errs, s.dir.segments.close(), s.dir.parts.close(), s.dir.aside.close())
	}
	for _, d := range []*directory{s.dir, s.trustDir} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// otherStore adds to an error what it may come from: two stores under one name in
// one trust directory.
func (s *site) otherStore(made string, e *Error) *Error {
	if (e.Kind == ErrMissing || e.Kind == ErrForeign || e.Kind == ErrLocked) && made != quotePath(s.at.dir) {
		e.Cause = errors.Join(e.Cause, fmt.Errorf("the trust file was made for the store at %s; another store beside it needs another Options.Name", made))
	}
	return e
}
