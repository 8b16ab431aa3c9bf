package pawl

import (
	"context"
	"errors"
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
//	N1  the audit line
//	N2  the directory has its new name
//	N3  the trust file under the new name: from here on the store can be opened there
//	N4  the audit file under the new name; the old trust file goes
//
// When it returns nil, the store can be opened under the new name, and nothing of it is
// left under the old one but a lock file in the trust directory. In between, both names are
// refused (ErrMissing, ErrUntrusted), or the new one opens. A call that was cut off is
// repeated and goes on.
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
	to      place // the new directory and name
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
		return nil, invalid("%s is not beside %s: move the directory there, and give it the name that it has", printable(to.dir), printable(d.at.dir))
	}
	if to.dir == d.at.dir && to.name == d.at.name {
		return nil, invalid("that is the name that the store has")
	}
	return &naming{desk: d, to: to}, nil
}

func (n *naming) release() { _ = n.newLock.release() }

func (n *naming) rename(ctx context.Context, dec *Decision) (*Ruling, error) {
	deadline := time.Now().Add(n.opts.LockWait)
	if n.to.name != n.at.name && n.trustDir != nil {
		l, err := n.takeLock(ctx, n.trustDir, n.to.name+lockSuffix, deadline)
		if err != nil {
			return nil, err
		}
		n.newLock = l
	}
	r := n.ruling("rename", dec)
	there := &trustFile{dir: n.trustDir, name: n.to.name + trustSuffix}
	exists := false
	if n.to.name != n.at.name && n.trustDir != nil {
		switch err := there.read(); {
		case err == nil:
			exists = true
		case err != errNoTrust:
			return nil, fail("", there.path(), err)
		}
	}
	if !n.speak {
		return n.already(r, there, exists)
	}
	if exists && there.newest.store != n.trust.newest.store {
		return nil, fail("", there.path(), invalid("there is a store of the name %q already", n.to.name))
	}
	if e := n.settled(); e != nil {
		return nil, e
	}
	moved, err := n.moved()
	if err != nil {
		return nil, err
	}
	if _, e := n.verdict(); e != nil && !moved {
		return nil, e
	}
	if e := n.confirms(dec); e != nil {
		return nil, e
	}
	if dec.DryRun {
		return r, nil
	}
	if !moved && !exists {
		line := n.line("rename", dec)
		line.From, line.To = n.at.name+" at "+n.at.dir, n.to.name+" at "+n.to.dir
		if err := n.note(&line); err != nil {
			return nil, err
		}
	}
	if n.to.dir != n.at.dir {
		if err := n.moveDir(moved); err != nil {
			return nil, err
		}
	}
	if err := n.moveTrust(there, exists); err != nil {
		return nil, err
	}
	r.Root = n.trust.newest.confirmed
	return r, nil
}

// already is the end of a rename that was cut off when all was done, and else says that
// there is nothing to rename.
func (n *naming) already(r *Ruling, there *trustFile, exists bool) (*Ruling, error) {
	if exists && n.dir == nil {
		r.Done, r.Root = true, there.newest.confirmed
		return r, nil
	}
	_, e := n.verdict()
	if e == nil {
		e = &Error{Kind: ErrNotExist, Path: n.at.dir, Hint: hintNotExist, Cause: errorString("there is no store here")}
	}
	return nil, e
}

// moved says whether the directory has its new name already, and is the store's.
func (n *naming) moved() (bool, error) {
	if n.to.dir == n.at.dir {
		return false, nil
	}
	dir, err := n.openDir(n.to.dir, tempPrefix)
	if err != nil || dir == nil {
		return false, err
	}
	defer func() { errors.Join(dir.segments.close(), dir.parts.close(), dir.aside.close(), dir.Close()) }()
	if n.dir != nil {
		return false, &Error{Kind: ErrInvalid, Path: n.to.dir, Cause: fs.ErrExist}
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
		for _, st := range n.used {
			st.rest()
		}
		n.dir = nil
		errors.Join(dir.segments.close(), dir.parts.close(), dir.aside.close(), dir.Close())
	}
	if _, err := above.Lstat(filepath.Base(n.to.dir)); err == nil {
		return &Error{Kind: ErrInvalid, Path: n.to.dir, Cause: fs.ErrExist}
	}
	if err := above.Rename(filepath.Base(n.at.dir), filepath.Base(n.to.dir)); err != nil {
		return fail("", n.at.dir, err)
	}
	return nil
}

// moveTrust gives the trust file its new name.
func (n *naming) moveTrust(there *trustFile, exists bool) error {
	next := n.trust.newest
	next.path = quotePath(n.to.dir)
	if n.to.name == n.at.name {
		if err := n.trust.replace(next, nil); err != nil {
			return fail("", n.trust.path(), err)
		}
		n.trust.disown()
		return nil
	}
	if !exists {
		if err := n.unlikeName(); err != nil {
			return err
		}
		if err := there.create(next); err != nil {
			return fail("", there.path(), err)
		}
	}
	_, err := n.trustDir.Lstat(n.to.name + auditSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = ignoreNotExist(n.trustDir.Rename(n.at.name+auditSuffix, n.to.name+auditSuffix))
	}
	if err == nil {
		err = n.trustDir.Sync()
	}
	if err == nil {
		err = errors.Join(n.trustDir.Remove(n.trust.name), n.trustDir.Sync())
	}
	if err != nil {
		return fail("", n.at.trust, err)
	}
	return nil
}

// unlikeName refuses a new name that is that of another store but for case.
func (n *naming) unlikeName() error {
	s := n.site
	s.at.name = n.to.name
	err := s.unlike()
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrInvalid && strings.EqualFold(n.at.name, n.to.name) {
		return invalid("%q and %q are one name on some file systems: take another one first", n.at.name, n.to.name)
	}
	return err
}
