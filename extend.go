package pawl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The order of commits that extend the journal, one or many at a time:
//
//	E1  re-check as in P1
//	E2  intent {confirmed: old, pending: new} into the trust file, durable
//	E3  re-check that the trust file is still ours; the frames into blocks that hold
//	    zeros; fdatasync                                    ← committed
//	E4  re-check as in E3; confirm {confirmed: new}, not flushed
//	E5  memory moves; acknowledge
//
// The two flushes are the least that can be: what is pending must not be found before
// what authorises it (E2 before E3), nor confirmed before it is there (E3 before E4).
// The confirm is written before anybody hears of the commit, so that a killed process
// leaves it; its flush comes with the next intent, or when the store is idle. Until
// then a power cut goes back to the intent, and the new state is found, and kept.
//
// Whoever else gets at the store replaces the trust file before anything else, so that
// is what is looked at once more on the way.
//
// The first batch after a publish makes the journal file: E3 is then as P4 and P5,
// with the whole file, the zeros that later batches are written over included. It
// never changes its size, nor comes to be without an intent: a file that did could be
// taken away by a power cut with acknowledged commits in it.

// confirmDelay is how long a store is left alone before a confirm is flushed for its
// own sake. A caller that commits in a loop is back before.
const confirmDelay = time.Millisecond

// journalGrowth is by how much the size of a journal differs from that of the one
// before it, when it does.
const journalGrowth = 4

// journal is the writer's hold on the journal file.
type journal struct {
	name   string
	header []byte // what it begins with, or will begin with
	size   int64  // of the file, or of the one to be made
	wanted int64  // what would have fitted the batch that did not fit
	file   vfs.File
	info   vfs.Info // which file it is; the file is nil while there is none

	bundle Root   // what it goes with
	before *state // the state of that bundle, as far as frames are checked against it
}

// extend makes a batch the state of the store, in the journal. The error has an
// Outcome.
func (s *Store) extend(b *batch) *Error {
	if e := s.recheck(); e != nil {
		return outcome(ErrNotCommitted, e)
	}
	if e := s.declare(b.root, b.records()); e != nil {
		return e
	}
	write, written := s.appendFrames, int64(len(b.frames))
	if s.log.file == nil {
		write, written = s.makeJournal, s.log.size
	}
	if e := write(b.root, b.frames); e != nil {
		return e
	}
	s.counts.blocks.Add(written - b.length)
	// Committed, as in publish.
	next := &b.next.state
	if err := s.trust.put(s.confirmation(b.root, next)); err != nil {
		return s.inDoubt(err)
	}
	if s.opts.SyncConfirm {
		if e := s.flushConfirm(); e != nil {
			return e
		}
	}
	s.adopt(b.root, next, s.bundle)
	s.counts.batches.Add(1)
	return nil
}

// makeJournal makes the journal file with its first frames.
func (s *Store) makeJournal(root Root, frames []byte) *Error {
	like, err := s.dir.Lstat(bundleName) // its mode may have been changed since
	if err != nil {
		return s.abort(err)
	}
	b := append(bytes.Clone(s.log.header), zeros[len(s.log.header):]...)
	_, e := s.put(s.log.name, content{b: append(b, frames...), size: s.log.size, like: &like})
	if e != nil {
		return e
	}
	if err := s.log.open(s.dir); err != nil {
		return s.inDoubt(err)
	}
	return nil
}

// appendFrames writes frames after those that are there.
func (s *Store) appendFrames(root Root, frames []byte) *Error {
	if err := s.trust.replaced(); err != nil {
		// Another writer has gone ahead, and has settled the intent or will. What it
		// writes to the journal must not be written over.
		return s.inDoubt(err)
	}
	if err := writeFull(s.log.file, frames, s.root.Journal); err != nil {
		return s.undo(root, err)
	}
	s.counts.bytes.Add(int64(len(frames)))
	s.counts.fileSyncs.Add(1)
	err := s.log.file.SyncData()
	if err == nil {
		err = s.trust.replaced()
	}
	if err != nil {
		return s.inDoubt(err)
	}
	return nil
}

// undo takes frames back that were not all written, and then the intent: in this
// order, or the abort record would stand over bytes that nothing explains.
func (s *Store) undo(root Root, cause error) *Error {
	if err := s.trust.replaced(); err != nil {
		return s.inDoubt(errors.Join(cause, err))
	}
	err := writeFull(s.log.file, make([]byte, root.Journal-s.root.Journal), s.root.Journal)
	if err == nil {
		s.counts.fileSyncs.Add(1)
		err = s.log.file.SyncData()
	}
	if err != nil {
		return s.inDoubt(errors.Join(cause, err))
	}
	return s.abort(cause)
}

// flushConfirm makes the newest confirm durable.
func (s *Store) flushConfirm() *Error {
	if !s.trust.behind.Load() {
		return nil
	}
	s.counts.confirmSyncs.Add(1)
	if err := s.trust.flush(); err != nil {
		return s.inDoubt(fmt.Errorf("the confirm of revision %d was not flushed: %w", s.trust.newest.confirmed.Revision, err))
	}
	return nil
}

// onIdle is called when nobody has changed the store for a while. It takes the turn
// for its flush, so that no intent is written meanwhile and one of the two would hear
// of an error that belongs to both.
func (s *Store) onIdle() {
	select {
	case s.turn <- struct{}{}:
		defer s.give()
	default:
		if !s.lull.TryLock() {
			return // who has the turn winds the timer up again, if need be
		}
		defer s.lull.Unlock()
	}
	if s.refusal() == nil && s.flushConfirm() != nil {
		s.untold.Store(true)
	}
}

// planJournal makes ready for the journal of the present bundle, which is not there.
func (s *Store) planJournal(size int64) {
	st := s.state.Load()
	s.log = journal{name: journalName(s.root.Epoch), size: size, bundle: s.root, before: &state{id: st.id, base: st.end()}}
	s.log.header = journalHeader(st.id, s.root, st.end(), size)
}

// nextSize is how large the journal after this one is made, when this one holds used
// bytes: larger when something did not fit, smaller when most of it was not used.
func (j *journal) nextSize(used, limit int64) int64 {
	size := j.size
	switch {
	case j.wanted > size:
		size *= journalGrowth
		for size < j.wanted && size < limit {
			size *= journalGrowth
		}
	case used < size/journalGrowth/journalGrowth:
		size /= journalGrowth
	}
	return min(max(size, journalLeast), limit)
}

// readBack reads the journal from disk and compares it with what was written to it,
// before a bundle takes its place. It may be the only copy of what memory holds.
func (s *Store) readBack() error {
	if s.log.file == nil {
		return nil
	}
	raw, err := readFull(s.log.file, s.log.size)
	if err != nil {
		return err
	}
	return s.log.check(raw, s.root)
}

// check holds the bytes of the journal against what they must be.
func (j *journal) check(raw []byte, root Root) error {
	w, err := walkJournal(raw, j.bundle, j.before)
	switch {
	case err != nil:
		return err
	case w.bad != nil:
		err = fmt.Errorf("at byte %d: %w", w.stop, w.bad)
	case len(w.steps) == 0 || w.steps[len(w.steps)-1].root != root:
		err = errorString("it does not hold the state that trust names")
	default:
		return nil
	}
	return &Error{Kind: ErrDamaged, Trusted: root, Cause: err, Hint: hintJournal}
}

// discardJournal removes the journal that the bundle has replaced, which held used
// bytes. One that cannot be removed, or that a power cut brings back, is swept by the
// next open.
func (s *Store) discardJournal(used int64) {
	old := s.log
	s.planJournal(old.nextSize(used, s.opts.Limits.Journal)) // before anything is logged: a logger may panic
	if old.file != nil {
		if err := errors.Join(old.close(), s.dir.Remove(old.name)); err != nil {
			s.opts.Logger.Warn("pawl: an old journal is left for the next open", "file", old.name, "error", err)
		}
	}
}

// open opens the journal file for writing in place.
func (j *journal) open(dir *directory) (err error) {
	if j.file, err = dir.OpenRW(j.name); err != nil {
		j.file = nil
		return err
	}
	if j.info, err = j.file.Stat(); err == nil {
		err = j.changed(dir)
	}
	return err
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// changed says whether the name leads to another file than the one in use, and if so,
// why. What is in the file is read back before a bundle takes its place.
func (j *journal) changed(dir *directory) error {
	now, err := dir.Identify(j.name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && j.file == nil:
		return nil
	case err != nil:
		return err
	case j.file == nil && now.Mode.IsRegular() && now.Size == 0:
		return nil // one that holds nothing, and could not be swept
	case j.file == nil:
		return errorString("there is a journal, and this process made none")
	case !now.Same(j.info) || now.Size != j.size:
		return errorString("the journal was replaced")
	}
	return nil
}

func (s *Store) journalPath() string {
	return filepath.Join(s.at.dir, s.log.name)
}
