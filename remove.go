package pawl

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Remove takes a store away: everything that pawl has made in its directory, and then its
// trust file. The decision's Digest is that of the state that the trust file confirms. The
// order, of which each step is durable before the next:
//
//	D1  the audit line; the trust file says "state removing": from here on nobody opens it
//	D2  journals, segments, parts, temps, and last the bundle
//	D3  the store's lock and its directory, if nothing is left in it
//	D4  the trust file
//
// When it returns nil, there is no store of that name any more. What pawl did not make
// stays, and so does quarantine/; Ruling.Left names it. The audit file and the lock file in
// the trust directory stay too. A call that was cut off is repeated with the same decision
// and goes on; until then Open says ErrMissing.
//
// A store is removed that could be opened, or of which nothing is left but the trust file.
// In any other state its error comes back, and something in it may be all that is left of
// a state: decide that first, with Adopt, Restore or Quarantine.
func Remove(ctx context.Context, dir, trustDir string, opts *Options, dec Decision) (*Ruling, error) {
	return operate(ctx, "remove", dir, trustDir, opts, dec, func(d *desk) (*Ruling, error) { return d.remove(&dec) })
}

func (d *desk) remove(dec *Decision) (*Ruling, error) {
	if e := d.settled(); e != nil {
		return nil, e
	}
	v, e := d.verdict()
	switch {
	case !d.speak && e == nil:
		if lines, err := d.decided("remove", dec.Digest); err == nil && len(lines) > 0 && !dec.DryRun {
			r := d.ruling("remove", dec)
			r.Done = true
			return r, d.trustDir.Sync()
		}
		return nil, &Error{Kind: ErrNotExist, Path: d.at.dir, Hint: hintNotExist, Cause: errorString("there is no store here")}
	case e != nil && d.speak && d.trust.newest.ending == stateRemoving:
		if h := d.found.head; h != nil && h.store != d.trust.newest.store {
			return nil, &Error{Kind: ErrForeign, Path: d.bundlePath(), Hint: hintForeign, Cause: errorString("another store was made here since its removal was begun")}
		}
	case e != nil && d.speak && d.trust.newest.ending == "" && d.found.nothing():
		if d.dir == nil {
			break
		}
		// Segments without a bundle may be all that is left of a history.
		if file, err := firstKeptFile(d.dir); err != nil || file != "" {
			e.Cause = errors.Join(e.Cause, fmt.Errorf("there is %q", file), err)
			return nil, e
		}
	case e != nil:
		return nil, e
	}
	r := d.ruling("remove", dec)
	if e := d.confirms(dec); e != nil {
		return nil, e
	}
	if dec.DryRun {
		return r, nil
	}
	if e := d.flushable(d.dirs()...); e != nil {
		return nil, e
	}
	last := d.trust.newest
	last.pending, last.commits, last.ids, last.closed, last.ending = Root{}, 0, nil, false, stateRemoving
	line := d.line("remove", dec)
	if d.trust.newest.ending == "" {
		clean := e == nil && v == verdictClean
		if err := d.trust.replace(last, func() error {
			if clean && d.dir != nil {
				if err := d.unchanged(); err != nil {
					return err
				}
			}
			return d.note(&line)
		}); err != nil {
			return nil, fail("", d.trust.path(), err)
		}
	}
	d.trust.disown()
	if d.dir != nil {
		if err := d.clearOut(r); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(d.trustDir.Remove(d.trust.name), d.trustDir.Sync()); err != nil {
		return nil, fail("", d.trust.path(), err)
	}
	r.Removed = append(r.Removed, d.trust.name)
	return r, nil
}

func (d *desk) dirs() []*directory {
	if d.dir == nil {
		return []*directory{d.trustDir}
	}
	return []*directory{d.trustDir, d.dir}
}

// clearOut removes what pawl has made in the store directory, and the directory if that
// was all.
func (d *desk) clearOut(r *Ruling) error {
	d.rest()
	for _, in := range []*folder{&d.dir.segments, &d.dir.parts} {
		swept, err := in.sweep(nil)
		if err != nil {
			return fail("", in.path(), err)
		}
		r.Removed = append(r.Removed, swept...)
		// Where something else is in it, it stays.
		if in.close(); d.dir.Remove(in.name) == nil {
			r.Removed = append(r.Removed, in.name)
		}
	}
	names, err := d.dir.Names()
	if err != nil {
		return fail("", d.at.dir, err)
	}
	var journals []string
	for _, name := range names {
		if _, ok := journalEpoch(name); ok {
			journals = append(journals, name)
		}
	}
	for _, these := range [][]string{journals, {bundleName}} { // the bundle last
		swept, err := d.dir.sweep(these...)
		if err == nil && swept == nil {
			err = d.dir.Sync()
		}
		if err != nil {
			return fail("", d.at.dir, err)
		}
		r.Removed = append(r.Removed, swept...)
	}
	d.dir.aside.close()
	_ = d.dir.Remove(asideName) // if it is empty
	if names, err = d.dir.Names(); err != nil {
		return fail("", d.at.dir, err)
	}
	for _, name := range names {
		if info, err := d.dir.Lstat(name); isStoreFile(name) && (err != nil || info.Mode.IsRegular()) {
			if err == nil {
				err = d.dir.Remove(name) // says why it could not be
			}
			if err != nil {
				return fail("", filepath.Join(d.at.dir, name), err)
			}
			r.Removed = append(r.Removed, name)
			continue
		}
		if name != lockName {
			r.Left = append(r.Left, name)
		}
	}
	if file, err := firstKeptFile(d.dir); err != nil || file != "" {
		return fail("", filepath.Join(d.at.dir, filepath.FromSlash(file)), errors.Join(errorString("it could not be removed"), err))
	}
	if len(r.Left) > 0 {
		return nil
	}
	if !vfs.ReplacesOpen { // what is open cannot be removed there; the trust lock is held
		_ = d.storeLock.release()
	}
	if err := ignoreNotExist(d.dir.Remove(lockName)); err != nil {
		return fail("", filepath.Join(d.at.dir, lockName), err)
	}
	return d.removeDir(r)
}

// removeDir removes the empty store directory.
func (d *desk) removeDir(r *Ruling) error {
	above, err := d.at.fsys.OpenDir(filepath.Dir(d.at.dir))
	if err != nil {
		return nil // it may not be read: the directory stays, empty
	}
	defer above.Close()
	dir := d.dir
	if err := dir.moved(); err != nil {
		return fail("", d.at.dir, err)
	}
	if !vfs.ReplacesOpen {
		d.dir = nil
		dir.Close()
	}
	if above.Remove(filepath.Base(d.at.dir)) != nil {
		return nil // somebody has put something in it, or it is not ours to remove
	}
	r.Removed = append(r.Removed, d.at.dir)
	if err := above.Sync(); err != nil && !errors.Is(err, vfs.ErrNoDirSync) {
		return fail("", above.Path(), err)
	}
	return nil
}
