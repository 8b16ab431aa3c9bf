package pawl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// desk is a store that an operator's function holds: locked, read, and not settled.
type desk struct {
	*Store
	ctx   context.Context
	found *found
	fresh bool   // it may be made where there is none
	dry   bool   // nothing is to be made
	speak bool   // the trust file is there and whole
	mute  *Error // why it is not, when it is there
	used  []*state
}

// rest closes all files that were read: some systems replace none that is open.
func (d *desk) rest() {
	for _, st := range d.used {
		st.rest()
	}
}

// use has the files of a state closed at the end.
func (d *desk) use(st *state) *state {
	d.used = append(d.used, st)
	return st
}

// hold takes the locks of a store in whatever state it is. What it took is released by
// the caller, on error too.
func hold(ctx context.Context, dir, trustDir string, opts *Options, fresh, dry bool) (*desk, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, err
	}
	at, err := locate(vfs.FromContext(ctx), dir, trustDir, &o)
	if err != nil {
		return nil, err
	}
	d := &desk{Store: newStore(at, o), ctx: ctx, fresh: fresh, dry: dry}
	d.shelf = map[string]*keptFile{}
	if err := d.lock(ctx); err != nil {
		return d, err
	}
	return d, d.read()
}

func (d *desk) lock(ctx context.Context) (err error) {
	deadline := time.Now().Add(d.opts.LockWait)
	if err := d.openDirs(); err != nil {
		return err
	}
	if err := d.swapped(); err != nil {
		return err
	}
	if d.trustDir == nil {
		if d.dir == nil && !d.fresh {
			return &Error{Path: d.at.dir, Kind: ErrNotExist, Hint: hintNotExist, Cause: fmt.Errorf("there is no %s", printable(d.at.trustPath()))}
		}
		if d.dry {
			return nil
		}
		if d.trustDir, err = d.makeDir(d.at.trust, d.at.name+"."+tempPrefix); err != nil {
			return err
		}
	}
	if d.trustLock, err = d.takeLock(ctx, d.trustDir, d.at.name+lockSuffix, deadline); err != nil {
		return err
	}
	d.joined = true
	if d.dir == nil { // its owner may have made it while this process waited
		if err := d.openStore(); err != nil {
			return err
		}
	}
	if d.dir != nil {
		if d.storeLock, err = d.takeLock(ctx, d.dir, lockName, deadline); err != nil {
			return err
		}
	}
	return nil
}

// read reads what is there.
func (d *desk) read() (err error) {
	defer func() {
		if d.found != nil && d.found.state != nil {
			d.use(d.found.state)
			d.shelf = d.found.state.keptFiles() // which nothing that fails here may remove
		}
	}()
	if d.trustDir == nil {
		d.found, err = readStore(d.dir, &d.opts.Limits)
		return err
	}
	d.trust = &trustFile{dir: d.trustDir, name: d.at.name + trustSuffix}
	err = d.trust.read()
	var e *Error
	switch {
	case err == nil, d.trust.newest.ending != "":
		d.speak, d.mute = true, nil
		if err := d.spelled(d.trust.info); err != nil {
			return err
		}
		if err := d.ownTrust(d.trust.info, d.trust.path(), "trust file"); err != nil {
			return err
		}
	case err == errNoTrust:
		if err := d.unlike(); err != nil {
			return err
		}
	case errors.As(err, &e) && e.Kind == ErrTrustDamaged:
		d.mute = e
	default:
		return fail("", d.trust.path(), err)
	}
	d.found, err = readStore(d.dir, &d.opts.Limits)
	return err
}

// verdict is what Open would make of the store.
func (d *desk) verdict() (verdict, *Error) {
	switch {
	case d.speak && d.trust.newest.ending != "":
		return verdictRefuse, fail("", d.trust.path(), ending(d.trust.newest.ending))
	case d.speak:
		v, e := decide(&d.trust.newest, d.found)
		if e != nil {
			e = fail("", filepath.Join(d.at.dir, d.found.culprit(&d.trust.newest)), d.otherStore(d.trust.newest.path, e))
		}
		return v, e
	case d.mute != nil:
		return verdictRefuse, fail("", d.trust.path(), d.mute)
	}
	name := d.found.other
	if d.found.info != nil {
		name = bundleName
	}
	if err := d.noTrust(name); err != nil {
		return verdictRefuse, fail("", d.at.dir, err)
	}
	return verdictRefuse, nil
}

// settled settles the store if Open would, so that a decision is about a state that is
// the only one.
func (d *desk) settled() (e *Error) {
	if v, e := d.verdict(); e != nil || v != verdictLanded && v != verdictNotLanded {
		return nil
	}
	if d.recovery, e = d.settle(opening); e != nil {
		return e
	}
	if err := d.log.close(); err != nil {
		return fail("", d.journalPath(), err)
	}
	if err := d.read(); err != nil {
		return fail("", d.at.dir, err)
	}
	return nil
}

// confirms holds a decision against what the trust file confirms.
func (d *desk) confirms(dec *Decision) *Error {
	now := Root{}
	if d.speak {
		now = d.trust.newest.confirmed
	}
	if dec.DryRun || dec.Digest == now.Digest {
		return nil
	}
	if d.mute != nil && dec.Digest == (Digest{}) {
		return nil
	}
	e := &Error{Kind: ErrStale, Path: d.trust.path(), Trusted: now, Hint: hintDecide,
		Cause: fmt.Errorf("the decision is about %s, and the trust file confirms another state", dec.Digest)}
	switch {
	case dec.Digest == (Digest{}):
		e.Cause = errorString("the trust file confirms a state, and the decision names none")
	case now == (Root{}):
		e.Cause = fmt.Errorf("the decision is about %s, and the trust file confirms no state", dec.Digest)
	}
	return e
}

// firm makes sure that what is there is durable, before somebody hears that a decision was
// carried out: whoever did so may not have come to that.
func (d *desk) firm() error {
	if err := d.trust.replace(d.trust.newest, d.still); err != nil {
		return fail("", d.trust.path(), err)
	}
	d.trust.disown()
	return d.read()
}

// ways makes the directories, or makes the names on the way to them durable: whoever made
// them may not have come to that.
func (d *desk) ways(dirs ...string) error {
	for _, dir := range dirs {
		if err := makeAll(d.at.fsys, dir); err != nil {
			return fail("", dir, err)
		}
	}
	return nil
}

// unchanged says that locks, trust file and bundle are what they were when they were read.
func (d *desk) unchanged() error {
	if err := d.still(); err != nil {
		return err
	}
	now, err := d.dir.Lstat(bundleName)
	switch {
	case err == nil && d.found.info == nil, err == nil && !unchanged(now, *d.found.info), errors.Is(err, fs.ErrNotExist) && d.found.info != nil:
		return &Error{Kind: ErrStale, Path: d.bundlePath(), Hint: hintDecide, Cause: errorString("the bundle was replaced or changed meanwhile")}
	}
	return ignoreNotExist(err)
}

// still says that the locks are those that the next opener will find.
func (d *desk) still() error {
	if e := d.held(); e != nil {
		return e
	}
	return nil
}
