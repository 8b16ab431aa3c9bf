package pawl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Rename gives a store another name: its directory becomes newDir, beside the old one, and
// its trust file is called after newName, by default the last element of newDir. Either
// may stay what it is. The decision's Digest is that of the state that the trust file
// confirms. The order, of which each step is durable before the next:
//
//	N1  the audit line; the trust file says "state renaming": from here on nobody opens it
//	N2  the directory has its new name
//	N3  the trust file under the new name: from here on the store can be opened there
//	N4  the audit file, or its line, under the new name; the old trust file goes
//
// When it returns nil, the store can be opened under the new name, and nothing of it is
// left under the old one but a lock file in the trust directory. Until N3 both names are
// refused (ErrMissing, ErrUntrusted). A call that was cut off is repeated and goes on.
//
// To move a store elsewhere, or to another trust directory, no function is needed: move
// the directory, or both, while it is closed; only their last elements matter.
func Rename(ctx context.Context, dir, trustDir string, opts *Options, newDir, newName string, dec Decision) (*Ruling, error) {
	return operate(ctx, "rename", dir, trustDir, opts, dec, func(d *desk) (*Ruling, error) {
		n, err := d.naming(newDir, newName)
		if err != nil {
			return nil, err
		}
		defer n.release()
		return n.rename(ctx, &dec)
	})
}

// naming is a store that is being renamed.
type naming struct {
	*desk
	to      place      // the new directory and name
	there   *trustFile // under the new name; the store's own, where that stays
	exists  bool       // it is there
	newLock *lock
}

func (d *desk) naming(newDir, newName string) (*naming, error) {
	o := d.opts
	o.Name = newName
	to, err := locate(d.at.fsys, newDir, d.at.trust, &o)
	if err != nil {
		return nil, err
	}
	if filepath.Dir(to.dir) != filepath.Dir(d.at.dir) {
		return nil, badNewName("%s is not beside %s: move the directory there, and give it the name that it has", printable(to.dir), printable(d.at.dir))
	}
	if to.dir == d.at.dir && to.name == d.at.name {
		return nil, badNewName("that is the name that the store has")
	}
	return &naming{desk: d, to: to}, nil
}

// badNewName is the error for a name that a store cannot get.
func badNewName(format string, args ...any) *Error {
	e := invalid(format, args...)
	e.Hint = hintNewName
	return e
}

func (n *naming) release() { _ = n.newLock.release() }

func (n *naming) rename(ctx context.Context, dec *Decision) (*Ruling, error) {
	if err := n.lookThere(ctx); err != nil {
		return nil, err
	}
	r := n.ruling("rename", dec)
	if !n.speak {
		return n.already(r, dec)
	}
	begun := n.trust.newest.ending == stateRenaming
	if n.exists && n.to.name != n.at.name && !(begun && n.there.newest.store == n.trust.newest.store) {
		return nil, badNewName("there is a store of the name %q already", n.to.name)
	}
	if !begun {
		if e := n.settled(); e != nil {
			return nil, e
		}
		if _, e := n.verdict(); e != nil {
			return nil, e
		}
	}
	moved, err := n.moved(begun)
	if err != nil {
		return nil, err
	}
	if e := n.confirms(dec); e != nil {
		return nil, e
	}
	if dec.DryRun {
		return r, nil
	}
	if e := n.flushable(n.dirs()...); e != nil {
		return nil, e
	}
	if err := n.unlikeName(); err != nil {
		return nil, err
	}
	line := n.line("rename", dec)
	line.From, line.To = n.at.name+" at "+n.at.dir, n.to.name+" at "+n.to.dir
	if !begun {
		if err := n.begin(&line); err != nil {
			return nil, err
		}
	}
	if n.to.dir != n.at.dir {
		if err := n.moveDir(moved); err != nil {
			return nil, err
		}
	}
	r.Root = n.trust.newest.confirmed
	return r, n.moveTrust(&line)
}

// lookThere takes the lock of the new name, and looks at its trust file.
func (n *naming) lookThere(ctx context.Context) error {
	if n.trustDir == nil {
		return nil
	}
	n.there = &trustFile{dir: n.trustDir, name: n.to.name + trustSuffix}
	if n.to.name == n.at.name {
		n.there = n.trust
		return nil
	}
	if !n.dry { // it may be a name that nothing will ever have
		var err error
		if n.newLock, err = n.takeLock(ctx, n.trustDir, n.to.name+lockSuffix, time.Now().Add(n.opts.LockWait)); err != nil {
			return err
		}
	}
	switch err := n.there.read(); {
	case err == nil, n.there.newest.ending != "":
		n.exists = true
	case err != errNoTrust:
		return fail("", n.there.path(), err)
	}
	return nil
}

// begin is N1.
func (n *naming) begin(line *auditLine) error {
	next := n.trust.newest
	next.closed, next.ending = false, stateRenaming
	err := n.trust.replace(next, func() error {
		if n.dir != nil {
			if err := n.unchanged(); err != nil {
				return err
			}
		}
		return n.note(line)
	})
	n.trust.disown()
	if err != nil {
		return fail("", n.trust.path(), err)
	}
	return nil
}

// already is the end of a rename that was cut off when all was done, and else says that
// there is nothing to rename.
func (n *naming) already(r *Ruling, dec *Decision) (*Ruling, error) {
	_, e := n.verdict()
	if e == nil {
		e = &Error{Kind: ErrNotExist, Path: n.at.dir, Hint: hintNotExist, Cause: errorString("there is no store here")}
	}
	if !n.exists || dec.DryRun || n.there.newest.ending != "" {
		return nil, e
	}
	old := n.at
	n.at.name = n.to.name
	lines, err := n.decided("rename", dec.Digest)
	n.at = old
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		if line.From != old.name+" at "+old.dir || line.To != n.to.name+" at "+n.to.dir {
			continue
		}
		r.Done, r.Root = true, n.there.newest.confirmed
		if err := n.ways(filepath.Dir(n.to.dir)); err != nil {
			return nil, err
		}
		err := n.there.replace(n.there.newest, nil)
		n.there.disown()
		if err != nil {
			return nil, fail("", n.there.path(), err)
		}
		return r, nil
	}
	return nil, e
}

// moved says whether the directory has its new name already, and is the store's.
func (n *naming) moved(begun bool) (bool, error) {
	if n.to.dir == n.at.dir {
		return false, nil
	}
	dir, err := n.openDir(n.to.dir, tempPrefix)
	if err != nil || dir == nil {
		return false, err
	}
	defer func() { errors.Join(dir.segments.close(), dir.parts.close(), dir.aside.close(), dir.Close()) }()
	if n.dir != nil || !begun {
		return false, &Error{Kind: ErrInvalid, Path: n.to.dir, Cause: fs.ErrExist, Hint: hintNewName}
	}
	if n.exists {
		return true, nil // the store may have gone on there
	}
	f, err := readStore(dir, &n.opts.Limits)
	if err != nil {
		return false, err
	}
	defer f.discard(nil)
	if _, e := decide(&n.trust.newest, f); e != nil {
		return false, fail("", n.to.dir, e)
	}
	return true, nil
}

// moveDir renames the directory, and makes that durable, whoever has done it. The trust
// lock keeps others out where it cannot be renamed while it, or the lock in it, is open.
func (n *naming) moveDir(moved bool) error {
	if n.dir == nil && !moved {
		return nil // of a store that nothing was committed to
	}
	above, err := n.at.fsys.OpenDir(filepath.Dir(n.at.dir))
	if err != nil {
		return fail("", filepath.Dir(n.at.dir), err)
	}
	defer above.Close()
	if !moved {
		if err := n.putDir(above); err != nil {
			return err
		}
	}
	if err := above.Sync(); err != nil && !errors.Is(err, vfs.ErrNoDirSync) {
		return fail("", above.Path(), err)
	}
	return nil
}

func (n *naming) putDir(above vfs.Dir) error {
	if err := n.still(); err != nil {
		return err
	}
	if !vfs.ReplacesOpen {
		_ = n.storeLock.release()
		dir := n.dir
		n.desk.rest()
		n.dir = nil
		errors.Join(dir.segments.close(), dir.parts.close(), dir.aside.close(), dir.Close())
	}
	if _, err := above.Lstat(filepath.Base(n.to.dir)); err == nil {
		return &Error{Kind: ErrInvalid, Path: n.to.dir, Cause: fs.ErrExist, Hint: hintNewName}
	}
	if err := above.Rename(filepath.Base(n.at.dir), filepath.Base(n.to.dir)); err != nil {
		return fail("", n.at.dir, err)
	}
	return nil
}

// moveTrust gives the trust file its new name, or the end of its renaming.
func (n *naming) moveTrust(line *auditLine) error {
	next := n.trust.newest
	next.path, next.closed, next.ending = quotePath(n.to.dir), true, ""
	if n.to.name == n.at.name {
		err := n.trust.replace(next, nil)
		n.trust.disown()
		if err != nil {
			return fail("", n.trust.path(), err)
		}
		return nil
	}
	if !n.exists {
		if err := n.there.create(next); err != nil {
			return fail("", n.there.path(), err)
		}
	}
	if err := n.moveAudit(line); err != nil {
		return err
	}
	if err := errors.Join(n.trustDir.Sync(), n.trustDir.Remove(n.trust.name), n.trustDir.Sync()); err != nil {
		return fail("", n.at.trust, err)
	}
	return nil
}

// moveAudit gives the audit file its new name. Where another one has it, that gets the line.
func (n *naming) moveAudit(line *auditLine) error {
	_, err := n.trustDir.Lstat(n.to.name + auditSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = ignoreNotExist(n.trustDir.Rename(n.at.name+auditSuffix, n.to.name+auditSuffix))
	} else if err == nil {
		old := n.at.name
		n.at.name = n.to.name
		err = n.note(line)
		n.at.name = old
	}
	if err != nil {
		return fail("", n.at.trust, fmt.Errorf("the audit file: %w", err))
	}
	return nil
}

// unlikeName refuses a new name that is that of another store but for case.
func (n *naming) unlikeName() error {
	if n.to.name == n.at.name || n.exists {
		return nil
	}
	s := n.site
	s.at.name = n.to.name
	err := s.unlike()
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrInvalid && strings.EqualFold(n.at.name, n.to.name) {
		return badNewName("%q and %q are one name on some file systems: take another one first", n.at.name, n.to.name)
	}
	return err
}
