package pawl

import (
	"fmt"
	"path/filepath"
	"time"
)

// look is one attempt of a Reader to find the newest state. The order:
//
//	L1  read the trust file: the newest record says what is confirmed
//	L2  an intent there: wait, until it is confirmed or another takes its place
//	L3  read the store, as far as it is not known: what is accepted has the disk digest
//	    that the record names, and nothing else is
//	L4  none has: read the trust file again. Another record: a writer went by; once more.
//	    The same: it is for the store to explain, by the table of decide
//
// Of an intent {confirmed: old, pending: new} alone a reader cannot tell whether new was
// acknowledged and only the record of it lost, in a power cut. But a record that was
// written after the look began has a living writer, who had not acknowledged anything
// newer than old when it wrote it: so old was the newest state at that moment.
type look struct {
	r        *Reader
	deadline time.Time
	tries    int
	tried    *state // what was read last, with what it has open
	afresh   bool   // nothing that is known counts
	first    uint64 // the sequence number of the intent that was found first
}

// once looks once. It reports false when it has to be done again.
func (l *look) once() (bool, error) {
	r := l.r
	l.tries++
	if err := r.reopenDirs(); err != nil {
		return false, err
	}
	if r.trustDir == nil {
		return false, r.beforeLocks()
	}
	seen := &trustFile{dir: r.trustDir, name: r.at.name + trustSuffix}
	if err := seen.read(); err == errNoTrust {
		return false, r.beforeLocks()
	} else if err != nil {
		return false, fail("", seen.path(), err)
	}
	r.seen = seen
	t := &seen.newest
	if r.known.state == nil {
		if err := r.spelled(seen.info); err != nil {
			return false, err
		}
	}
	if err := r.ownTrust(r.seen.info, r.seen.path(), "trust file"); err != nil {
		return false, err
	}
	if st := r.known.state; st != nil && st.id != t.store {
		return false, &Error{Path: r.seen.path(), Kind: ErrForeign, Trusted: t.confirmed, Hint: hintForeign,
			Cause: errorString("the trust file speaks for another store than before")}
	}
	if t.intent() && l.first == 0 {
		l.first = t.sequence
	}
	if r.dir == nil {
		// The trust file is made before the store directory, and looked at after it.
		if err := r.openStore(); err != nil {
			return false, err
		}
	}
	if t.intent() && l.first == t.sequence {
		if time.Now().Before(l.deadline) {
			return false, nil
		}
		return l.unsettled()
	}
	if st := r.follow(t.confirmed); st != nil && !l.afresh {
		return true, r.show(st, false)
	}
	return l.whole()
}

// again says that the store changed while it was read, unless it does so for too long.
func (l *look) again() (bool, error) {
	if l.tries < inspectTries || time.Now().Before(l.deadline) {
		return false, nil
	}
	t := &l.r.seen.newest
	return false, &Error{Kind: ErrUnsettled, Trusted: t.confirmed, Pending: t.pending, Hint: hintChanging,
		Cause: fmt.Errorf("it changed each of the %d times that it was read", l.tries)}
}

// whole reads the store from the beginning.
func (l *look) whole() (bool, error) {
	r, t := l.r, &l.r.seen.newest
	f, err := readStore(r.dir, &r.opts.Limits)
	if l.tried == nil {
		l.tried = r.known.state
	}
	if f.prepare(l.tried, &r.opts.Limits); f.state != nil {
		l.tried = f.state
	}
	st, changed := f.confirmed(t, &r.opts.Limits), l.changed()
	switch _, e := decide(t, f); {
	case changed && st == nil:
		return l.again()
	case !changed && err != nil:
		return false, fail("", r.at.dir, err)
	case !changed && e != nil:
		return false, l.refused(f, e)
	case st != nil:
		switch err := st.pin(); {
		case exhausted(err):
			return false, fail("", r.at.dir, err)
		case err != nil && l.changed():
			return l.again() // a file that was not needed any more was removed
		}
		r.keep(f, t.confirmed, st)
		return true, r.show(st, false)
	}
	l.first = t.sequence // a living writer has the new state in place, and has still to say so
	return l.again()
}

// unsettled is the end of a look at an intent that nobody goes on with.
func (l *look) unsettled() (bool, error) {
	r, t := l.r, &l.r.seen.newest
	f, err := readStore(r.dir, &r.opts.Limits)
	f.prepare(r.known.state, &r.opts.Limits)
	if l.changed() {
		return l.again()
	}
	if err != nil {
		return false, fail("", r.at.dir, err)
	}
	v, e := decide(t, f)
	if e != nil {
		return false, l.refused(f, e)
	}
	if r.opts.Allow&Unsettled == 0 {
		return false, &Error{Kind: ErrUnsettled, Trusted: t.confirmed, Pending: t.pending, Found: f.newest(), Hint: hintUnsettled,
			Cause: fmt.Errorf("nobody went on with it for %v", r.opts.LockWait)}
	}
	root, st := t.confirmed, emptyState(t.store, &r.opts.Limits)
	if v == verdictLanded {
		root = t.pending
	}
	if root != (Root{}) {
		n, _ := f.at(root)
		st = f.stateAt(n)
	}
	if st.pin() != nil && l.changed() {
		return l.again() // as in whole
	}
	r.opts.Logger.Warn("pawl: a state is read that is not settled", "store", r.at.dir, "would be", v == verdictLanded, "state", root.short())
	r.keep(f, root, st)
	return true, r.show(st, true)
}

func (l *look) refused(f *found, e *Error) error {
	f.discard(l.r.known.state)
	t := &l.r.seen.newest
	return fail("", filepath.Join(l.r.at.dir, f.culprit(t)), l.r.otherStore(t.path, e))
}

// changed reports whether the trust file has changed since it was read.
func (l *look) changed() bool { return l.r.seen.changed() != nil }

// confirmed is the state that a record names as confirmed, if it was found.
func (f *found) confirmed(t *trustRecord, l *Limits) *state {
	if t.confirmed == (Root{}) {
		if f.nothing() {
			return emptyState(t.store, l)
		}
		return nil
	}
	n, ok := f.at(t.confirmed)
	if !ok || f.state == nil || f.bad != nil || f.state.id != t.store {
		return nil
	}
	return f.stateAt(n)
}

// follow is the state of a root that trust names, when it can be had from what is known
// and what was appended since.
func (r *Reader) follow(to Root) *state {
	if r.known.state == nil {
		return nil
	}
	if r.known.root == to {
		return r.known.state
	}
	if r.bundle == nil || r.dir == nil {
		return nil
	}
	now, err := r.dir.Lstat(bundleName)
	if err != nil || !unchanged(now, *r.bundle) {
		return nil
	}
	steps, ok := r.known.follow(r.dir, r.opts.Limits.Journal, to)
	if !ok {
		return nil
	}
	r.known.state, r.known.root = r.known.state.with(steps), to
	return r.known.state
}

// keep makes what was found what is known.
func (r *Reader) keep(f *found, root Root, st *state) {
	r.known, r.bundle = known{state: st, root: root, bundle: f.root}, f.info
}

// reopenDirs opens the directories that were not there, or are others by now.
func (r *Reader) reopenDirs() error {
	for _, d := range []*directory{r.dir, r.trustDir} {
		if d == nil || d.moved() != nil {
			err := r.closeDirs()
			if r.dir, r.trustDir = nil, nil; err != nil {
				return err
			}
			if err := r.openDirs(); err != nil {
				_ = r.closeDirs()
				r.dir, r.trustDir = nil, nil
				return err
			}
			return r.swapped()
		}
	}
	return nil
}
