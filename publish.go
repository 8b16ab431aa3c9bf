package pawl

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The order of a commit that publishes the bundle:
//
//	P1  re-check that locks, directories, trust file, bundle and journal are still ours
//	P2  read the journal back; make the files that the bundle is to name (seal.go);
//	    encode the new state, read it back, check that it extends the old one
//	P3  intent {confirmed: old, pending: new} into the trust file, durable
//	P4  the bundle's bytes into a temp, durable; re-check as in P1
//	P5  rename over "bundle"; fsync the store directory     ← committed
//	P6  confirm {confirmed: new}, durable
//	P7  memory moves; remove the journal that the bundle has replaced, and files that it
//	    does not name any more; acknowledge
//
// Nothing of the new state can be seen before its intent is durable (P3 before P5),
// so whoever finds the new state also finds what authorises it. Until P5 is done a
// reader finds the old state, whole, and afterwards the new one, whole. The confirm
// comes last: from P3 to P6 both states are authorised, and either is accepted. The
// old journal goes when no record names it any more.

// publish makes st, with the given new records, the state of the store, in a bundle.
// The error has an Outcome.
func (s *Store) publish(st *state, added []*record) *Error {
	return s.publishSealing(st, added, s.opts.Limits.Unsealed)
}

// publishSealing is publish for a bundle that holds no more than so much history.
func (s *Store) publishSealing(st *state, added []*record, most int64) *Error {
	if err := s.recheck(); err != nil {
		return outcome(ErrNotCommitted, err)
	}
	if err := s.readBack(); err != nil {
		return outcome(ErrNotCommitted, fail("", s.journalPath(), err))
	}
	packed, err := s.pack(st, most)
	var e *Error
	if err == nil {
		e = s.publishPacked(packed, added)
	} else if !errors.As(err, &e) || e.Outcome != ErrInDoubt {
		e = outcome(ErrNotCommitted, fail("", "", err))
	}
	switch {
	case e == nil:
	case e.Outcome == ErrNotCommitted:
		s.unpack(packed)
	default: // it may be found again; what it has open, nobody else has
		for name, file := range packed.keptFiles() {
			if s.shelf[name] == nil {
				file.rest()
			}
		}
	}
	return e
}

// publishPacked is publish for a state whose files, besides the bundle, are there. They
// are the caller's to remove when it did certainly not happen.
func (s *Store) publishPacked(packed *state, added []*record) *Error {
	next := packed.published(s.root.Digest)
	raw := encodeBundle(next)
	if int64(len(raw)) > s.opts.Limits.Bundle {
		return outcome(ErrNotCommitted, tooLarge("the bundle would have %d bytes, and Limits.Bundle is %d", len(raw), s.opts.Limits.Bundle))
	}
	if err := checkExtends(s.state.Load(), next, raw, s.dir); err != nil {
		return outcome(ErrNotCommitted, &Error{Kind: ErrDamaged, Cause: err,
			Hint: hintMemory})
	}
	root := Root{Revision: next.version().Revision, Epoch: next.epoch, Digest: sha256.Sum256(raw)}
	if e := s.declare(root, added); e != nil {
		return e
	}
	info, e := s.put(bundleName, content{b: raw})
	if e != nil {
		return e
	}
	// Committed: the new state is on stable storage, and so is its intent.
	if err := s.trust.write(s.confirmation(root, next)); err != nil {
		return s.inDoubt(err)
	}
	used := s.root.Journal
	s.adopt(root, next, &info)
	s.counts.publishes.Add(1)
	s.discardJournal(used)
	if s.opts.Shared {
		_ = next.pin() // the others may remove what it names
	}
	s.retire(next.keptFiles())
	return nil
}

// declare writes the intent, durably.
func (s *Store) declare(root Root, added []*record) *Error {
	intent := s.trustRecord()
	intent.pending, intent.commits = root, len(added)
	if n := len(added); n > 0 {
		intent.next = added[n-1].nextSeq()
	}
	for _, r := range added {
		if r.id != "" {
			intent.ids = append(intent.ids, r.id)
		}
	}
	var lost *Error
	err := s.trust.writeAfter(intent, func() error {
		// Replacing the trust file cannot be taken back either, and takes its time. Whatever
		// somebody else does to the store is in it, so it is looked at last once more.
		if lost = s.recheck(); lost == nil {
			if err := s.trust.changed(); err != nil {
				lost = s.stale(err)
			}
		}
		if lost != nil {
			return lost
		}
		return nil
	})
	switch {
	case err == nil:
		return nil
	case lost != nil:
		return outcome(ErrNotCommitted, lost)
	case errors.As(err, new(notYet)):
		return s.certain(err)
	case errors.As(err, new(slotUnsure)):
		return s.abort(err)
	}
	return s.inDoubt(err)
}

// put installs a file of the new state, whose intent is durable.
func (s *Store) put(name string, c content) (vfs.Info, *Error) {
	var lost *Error
	info, err := s.dir.install(name, c, func() error {
		// The rename cannot be taken back, and writing the temp took its time.
		if lost = s.recheck(); lost != nil {
			return lost
		}
		return nil
	})
	switch {
	case err == nil:
		return info, nil
	case lost != nil && (s.held() != nil || s.trust.changed() != nil):
		// The trust file is not ours to take the intent back in. Whoever is ahead
		// settles it, or has done so already.
		return info, s.inDoubt(lost.Cause)
	case lost != nil:
		return info, s.abort(lost)
	case errors.As(err, new(notYet)):
		return info, s.abort(err)
	}
	return info, s.inDoubt(err)
}

// trustRecord is a record that names the present state and nothing else.
func (s *Store) trustRecord() trustRecord { return s.confirmation(s.root, s.state.Load()) }

// confirmation is a record that names a state as the only one.
func (s *Store) confirmation(root Root, st *state) trustRecord {
	r := trustRecord{store: st.id, confirmed: root, path: s.trust.newest.path}
	if s.trust.newest.confirmed == (Root{}) {
		r.path = quotePath(s.at.dir) // whoever commits first makes the store
	}
	if root != (Root{}) {
		r.history, r.next = st.version().Digest, st.nextSeq()
	}
	return r
}

// adopt makes st, which is durable and confirmed, the state in memory.
func (s *Store) adopt(root Root, st *state, bundle *vfs.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.state.Load()
	added := st.records
	if st.base == old.base {
		added = added[len(old.records):]
	} else {
		s.ids = map[string]*record{} // segments have those before
	}
	for _, r := range added {
		if r.id != "" {
			s.ids[r.id] = r
		}
	}
	s.root, s.bundle = root, bundle
	s.state.Store(st)
	s.tell()
}

// adoptAnew is adopt after settling: whatever memory held, the disk has spoken.
func (s *Store) adoptAnew(root Root, st *state, bundle *vfs.Info) {
	ids := map[string]*record{}
	for _, r := range st.records {
		if r.id != "" {
			ids[r.id] = r
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids, s.root, s.bundle = ids, root, bundle
	s.state.Store(st)
	s.tell()
}

// abort takes an intent back: the old state is whole and stays the only one.
func (s *Store) abort(cause error) *Error {
	err := s.trust.write(s.trustRecord())
	if err == nil {
		// A slot that failed to be written holds one thing or another by now.
		ring, info, e := s.trust.bytes()
		if err = e; err == nil && !info.Same(s.trust.info) {
			err = errTrustReplaced
		}
		if err == nil {
			s.trust.ring = ring
		}
	}
	if err != nil {
		return s.inDoubt(errors.Join(cause, err))
	}
	return s.certain(cause)
}

func (s *Store) certain(cause error) *Error {
	return outcome(ErrNotCommitted, fail("", "", cause))
}

// inDoubt stops the store: it takes no commits until it has settled.
func (s *Store) inDoubt(cause error) *Error {
	e := s.setDoubt(cause)
	s.opts.Logger.Error("pawl: in doubt", "store", s.at.dir, "error", cause)
	return e
}

func (s *Store) setDoubt(cause error) *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubt == nil { // the first reason is the one to tell
		s.doubt = outcome(ErrInDoubt, &Error{Cause: cause})
	}
	s.trust.behind.Store(false) // nothing is flushed any more
	return s.doubt
}

// recheck finds out, before anything is written, whether another writer has been at
// the store: what this process holds must be what the names lead to.
func (s *Store) recheck() *Error {
	if e := s.held(); e != nil {
		return e
	}
	if err := s.trust.changed(); err != nil {
		return s.stale(err)
	}
	if t := &s.trust.newest; t.confirmed != s.root || s.root != (Root{}) && t.history != s.state.Load().version().Digest {
		return &Error{Kind: ErrDamaged, Trusted: t.confirmed, Found: s.root, Hint: hintMemory,
			Cause: errorString("memory does not hold the state that trust names")}
	}
	now, err := s.dir.Lstat(bundleName)
	switch {
	case err == nil && s.bundle == nil:
		err = errorString("there is a bundle, and this process made none")
	case err == nil && !unchanged(now, *s.bundle):
		err = errorString("the bundle was replaced or changed")
	}
	if ignoreNotExist(err) == nil && s.bundle == nil {
		return nil
	}
	if err == nil {
		err = s.log.changed(s.dir)
	}
	if err != nil {
		return s.stale(err)
	}
	return nil
}

// held finds out whether the locks and directories that this process holds are
// still those that the next opener will find.
func (s *Store) held() *Error {
	for _, l := range []*lock{s.trustLock, s.storeLock} {
		if err := l.lost(); err != nil {
			return s.stale(err)
		}
	}
	for _, d := range []*directory{s.trustDir, s.dir} {
		if err := d.moved(); err != nil {
			return s.stale(err)
		}
	}
	return nil
}

// stale is the error for files that are no longer ours; an error of the operating
// system on the way there says nothing of the kind.
func (s *Store) stale(err error) *Error {
	var text errorString
	if errors.As(err, &text) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrTrustDamaged) {
		return &Error{Kind: ErrStale, Cause: err, Hint: hintStale}
	}
	return fail("", "", err)
}

// checkExtends reads a new bundle back from its bytes and checks that its history
// continues the old one.
func checkExtends(old, next *state, raw []byte, dir *directory) error {
	got, _, err := decodeBundle(raw, dir)
	if err != nil {
		return fmt.Errorf("the new bundle does not read back: %w", err)
	}
	v := old.version()
	got.inherit(next)
	ok, err := got.holds(v)
	if err != nil {
		return err
	}
	if got.id != old.id || !ok || got.version() != next.version() {
		return fmt.Errorf("the new history (%s) does not continue the old one (%s)", got.version(), v)
	}
	return nil
}
