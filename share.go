package pawl

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Processes that share a store (Options.Shared) take turns: each holds the two locks,
// trust before store, while it changes something, and not a moment longer. Who has
// taken them looks first whether the trust file is the one that it knows, byte for
// byte. If so, nobody was here, and it goes on as if it had never let go. If not, it
// catches up:
//
//	H1  drop the handle on the trust file, so that the first record replaces the file
//	    (I1); read it
//	H2  an intent there: settle it, as Open does
//	H3  none, and the bundle is the one that memory knows: read what was appended to the
//	    journal since, up to the disk digest that trust names
//	H4  anything else: read the store whole, as Open does
//
// A confirm that was not flushed is safe in another's hands: its first record is written
// into a new trust file together with the newest one, and flushed (I1), and until then
// the intent before it is on the disk, and the new state too (I4). The flush that its
// writer still makes goes to the file of its own.

// yieldFor is how long a process that has just given the locks up, and saw that somebody
// waits for them, keeps out of the way. Whoever waits looks more often than that.
const yieldFor = 2 * sharedPause

// join takes the locks of a shared store, and catches up with what others did to it.
// Whoever calls it has the turn; give leaves again.
func (s *Store) join(ctx context.Context) error {
	if s.joined {
		return nil
	}
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	if s.sought {
		s.sought = false
		if !pause(ctx, yieldFor+rand.N(sharedPause)) {
			return ctxError(ctx)
		}
	}
	deadline := time.Now().Add(s.opts.LockWait)
	var err error
	if s.trustLock, err = s.takeLock(ctx, s.trustDir, s.at.name+lockSuffix, deadline); err == nil {
		s.storeLock, err = s.takeLock(ctx, s.dir, lockName, deadline)
	}
	s.joined = true
	if err != nil && (s.trustDir.moved() != nil || s.dir.moved() != nil) {
		err = s.stale(errors.Join(errorString("a directory is not the one that was opened"), err))
	}
	if err == nil && !s.doubtful() && (!s.abreast || s.trust.changed() != nil || s.wake() != nil) {
		s.abreast = false
		if err = s.catchUp(); err == nil {
			s.abreast = true
		}
	}
	if err != nil {
		s.leave()
	}
	return err
}

// leave gives up the locks, in the reverse order.
func (s *Store) leave() error {
	s.joined = false
	if s.opts.Shared && !vfs.ReplacesOpen {
		s.rest()
	}
	s.sought = s.opts.Shared && s.trustLock.sought()
	return errors.Join(s.storeLock.release(), s.trustLock.release())
}

// rest closes what another process may have to replace, and could not while it is open
// here. Then nobody is left to flush a confirm later, so it is done now.
func (s *Store) rest() {
	if s.trust == nil {
		return
	}
	if s.trust.own != nil && s.refusal() == nil && s.flushConfirm() != nil {
		s.untold.Store(true)
	}
	s.trust.rest()
	if err := s.log.close(); err != nil {
		s.abreast = false
	}
}

// wake opens again what rest has closed.
func (s *Store) wake() error {
	if err := s.trust.wake(); err != nil {
		return err
	}
	if s.root.Journal == 0 || s.log.file != nil {
		return nil
	}
	return s.log.open(s.dir)
}

func (s *Store) doubtful() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.doubt != nil
}

// catchUp makes memory what the disk is.
func (s *Store) catchUp() error {
	if e := s.held(); e != nil {
		return e
	}
	s.trust.disown()
	if err := s.trust.read(); err != nil {
		return fail("", s.trust.path(), s.stale(err))
	}
	ok, err := s.followTrust()
	if err != nil || ok {
		return err
	}
	rec, e := s.settle(joining)
	if e != nil {
		return e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := &s.recovery; rec.Settled != SettledNothing {
		rec.Migrated, rec.SchemaFrom, rec.ProgramFrom = old.Migrated, old.SchemaFrom, old.ProgramFrom
		s.recovery = rec
	}
	return nil
}

// followTrust is H3. It reports false where the store has to be read whole.
func (s *Store) followTrust() (bool, error) {
	t := &s.trust.newest
	now, err := s.dir.Lstat(bundleName)
	if err != nil || s.bundle == nil || !unchanged(now, *s.bundle) || t.intent() || t.store != s.state.Load().id {
		return false, nil
	}
	from := known{state: s.state.Load(), root: s.root, bundle: s.log.bundle}
	steps, ok := from.follow(s.dir, s.opts.Limits.Journal, t.confirmed)
	if !ok {
		return false, nil
	}
	if err := s.adoptSteps(t.confirmed, steps); err != nil {
		return false, err
	}
	return true, s.reopenJournal()
}

// adoptSteps is adopt for what others did, as far as the caller's schema lets it. No
// commit may be placed meanwhile: it would take the same place in the history.
func (s *Store) adoptSteps(root Root, steps []appended) error {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open != nil {
		q.open.stale = true
	}
	st := s.state.Load().with(steps)
	if e := s.knownSchema(st); e != nil {
		return e
	}
	s.adopt(root, st, s.bundle)
	// Whoever enters from here on is placed on what was adopted: a record placed on the
	// state before would be written over it in memory. Where frames go, startOver says.
	q.tip = tip{state: st, root: root}
	return nil
}

// reopenJournal takes hold of the journal that others may have made, or made anew.
func (s *Store) reopenJournal() error {
	if s.root.Journal > 0 && (s.log.file == nil || s.log.changed(s.dir) != nil) {
		err := s.log.close()
		var info vfs.Info
		if err == nil {
			info, err = s.dir.Identify(s.log.name)
		}
		if err == nil {
			s.log.size = info.Size
			err = s.log.open(s.dir)
		}
		if err != nil {
			return fail("", s.journalPath(), err)
		}
	}
	s.startOver()
	return nil
}

// Shared reports whether the store was opened with Options.Shared: then others may change it
// between two calls.
func (s *Store) Shared() bool { return s.opts.Shared }

// Limits returns the limits in force: Options.Limits, with the defaults filled in.
func (s *Store) Limits() Limits { return s.opts.Limits }
