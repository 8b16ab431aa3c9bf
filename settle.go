package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Settlement is what became of an intent that was found.
type Settlement int

const (
	// SettledNothing: there was no intent to settle.
	SettledNothing Settlement = iota
	// SettledLanded: the pending state was there, whole. Its commits happened.
	SettledLanded
	// SettledNotLanded: the old state was there, whole. The pending commits did not
	// happen, and never will.
	SettledNotLanded
)

func (s Settlement) String() string {
	return [...]string{"nothing to settle", "landed", "not landed"}[s]
}

// Recovery says what opening a store, or Recover, found and did.
type Recovery struct {
	Settled   Settlement
	Unclean   bool     // the last writer did not get to Close; with Options.Shared, only when it left an intent
	Confirmed Root     // the state that the store goes on from
	Pending   Root     // what the intent named; zero when there was none
	Count     int      // how many commits the intent holds
	Commits   []string // their ids, as far as the trust file has room for them

	// Sweeping up after killed processes: temps removed, and old journals, segments and
	// files of parts that nothing names; and slots of the trust file that were torn. None
	// has any part in the state.
	Swept       []string
	BrokenSlots int

	// What the state was made with before, where that differs from the Options.
	Migrated    bool   // Migrate's change was committed
	SchemaFrom  int    // the schema before it
	ProgramFrom string // the program that made the newest commit; "" when it was Options.Program, or not said

	// Audit is why the audit file does not have a line about this; nil when it has
	// one, or none was due. It never keeps a store from opening.
	Audit error
}

// clone keeps the caller's changes to a Recovery away from the next caller's.
func (r Recovery) clone() Recovery {
	r.Commits, r.Swept = slices.Clone(r.Commits), slices.Clone(r.Swept)
	return r
}

// occasion is why a store settles.
type occasion int

const (
	opening    occasion = iota // it is being opened
	recovering                 // it is in doubt
	joining                    // another process has been at it: Options.Shared
)

// settle reads both directories, decides, and carries the decision out. Open, Recover
// and a shared store are the same code. When it returns nil, the state in memory is on stable
// storage and confirmed, and the intent, if there was one, is gone.
//
// It trusts no byte and no name that it has not itself written to a new file,
// synced, renamed and synced by directory: after a failed flush the page cache may
// show what the disk does not have, and a second flush reports success. So the
// state that an intent is settled on is installed anew, from the bytes that were
// read, by the same install as in a commit. The order:
//
//	S1  read the trust file, read the store, decide; on any error stop here
//	S2  install anew the file that the intent is about: the bundle, or the journal
//	    as far as it belongs to the state             (only with an intent)
//	S3  make the trust file that confirms, as a temp  (with an intent, and in Recover)
//	S4  audit line                                    (with an intent, or an open after an unclean end)
//	S5  rename the trust file into place: confirmed   (with an intent, and in Recover)
//	S6  sweep temps, and journals that a later bundle has replaced or that are empty
//	                                                  (not when joining, without an intent)
//
// Until S5 is durable the intent stays, so being killed or losing power anywhere,
// any number of times, leads back to S1 with the same decision. The audit line comes
// when nothing more can fail for want of space, and before the intent goes: it is
// never missing, and may be there twice when recovery was cut short.
func (s *Store) settle(why occasion) (Recovery, *Error) {
	var rec Recovery
	if e := s.held(); e != nil {
		return rec, e
	}
	s.trust.disown()
	if err := s.log.close(); err != nil {
		return rec, fail("", s.journalPath(), err)
	}
	if err := s.trust.read(); err != nil {
		return rec, fail("", s.trust.path(), err)
	}
	f, err := readStore(s.dir, &s.opts.Limits)
	if err != nil {
		return rec, fail("", s.at.dir, err)
	}
	t := s.trust.newest
	v, e := decide(&t, f)
	if e != nil {
		f.discard(s.state.Load())
		return rec, fail("", filepath.Join(s.at.dir, f.culprit(&t)), s.otherStore(t.path, e))
	}
	root := t.confirmed
	if v == verdictLanded {
		root = t.pending
	}
	f.share(s.shelf)
	f.prepare(s.state.Load(), &s.opts.Limits)
	st := emptyState(t.store, &s.opts.Limits)
	if root != (Root{}) {
		n, _ := f.at(root)
		st = f.stateAt(n)
	}
	if e := s.relapse(st, &t, f); e != nil {
		return rec, e
	}
	if e := s.knownSchema(st); e != nil {
		return rec, e
	}
	if why != joining {
		if e := s.flushable(s.trustDir, s.dir); e != nil {
			return rec, e
		}
	}
	s.storeLock.sign(s.at.fsys.Owner())
	s.trustLock.sign(s.at.fsys.Owner())

	rec = Recovery{Confirmed: root, Pending: t.pending,
		Count: t.commits, Commits: t.ids, BrokenSlots: len(s.trust.broken)}
	// Those who share a store may be at it at this moment, and well.
	rec.Unclean = why == opening && !t.closed && (t.intent() || !s.opts.Shared)
	switch v {
	case verdictLanded:
		rec.Settled = SettledLanded
	case verdictNotLanded:
		rec.Settled = SettledNotLanded
	}
	old := s.shelf
	s.shelf = map[string]*keptFile{}
	if f.state != nil {
		s.shelf = f.state.keptFiles()
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if s.shelf[name] == nil {
			_ = old[name].open() // it may be swept, and a View may need it
		}
	}
	if rec.Settled != SettledNothing {
		if e := s.anew(&t, f, root); e != nil {
			return rec, e
		}
	}
	audit := func() error {
		if rec.Settled != SettledNothing {
			rec.Audit = s.audit(&rec, t.store)
		}
		return nil
	}
	switch {
	case rec.Settled != SettledNothing, why == recovering:
		// In doubt without an intent, it is the record that may not be on disk.
		if err := s.trust.replace(s.confirmation(rec.Confirmed, st), audit); err != nil {
			return rec, fail("", s.trust.path(), err)
		}
	case rec.Unclean:
		rec.Audit = s.audit(&rec, t.store)
	}
	if why != joining || rec.Settled != SettledNothing {
		if e := s.sweep(&rec, f); e != nil {
			return rec, e
		}
	}
	size := min(journalLeast, s.opts.Limits.Journal)
	if why == joining {
		// What the others made of the size that this process knows is not known: as if
		// its own commits had filled the journal, or had not.
		if s.root.Journal > s.log.size/2 {
			s.log.wanted = s.log.size + 1
		}
		size = s.log.nextSize(s.root.Journal, s.opts.Limits.Journal)
	}
	if s.opts.Shared {
		// The others may remove what it names.
		if err := st.pin(); exhausted(err) {
			st.rest()
			return rec, fail("", s.at.dir, err)
		}
	}
	s.adoptAnew(root, st, f.info)
	if err := s.holdJournal(f, size); err != nil {
		return rec, fail("", s.journalPath(), err)
	}
	s.startOver()
	s.report(&rec)
	return rec, nil
}

// sweep removes what killed processes left in the two directories.
func (s *Store) sweep(rec *Recovery, f *found) *Error {
	swept, err := s.dir.sweep(f.spent()...)
	if err != nil {
		return fail("", s.at.dir, err)
	}
	wanted := map[string]bool{}
	for name := range s.shelf {
		wanted[name] = true
	}
	for _, folder := range []*folder{&s.dir.segments, &s.dir.parts} {
		more, err := folder.sweep(wanted)
		if err != nil {
			return fail("", folder.path(), err)
		}
		swept = append(swept, more...)
	}
	left, err := s.trustDir.sweepTemp()
	if err != nil {
		return fail("", s.at.trust, err)
	}
	rec.Swept = append(swept, left...)
	return nil
}

// anew installs the file that an intent is about, as the state has it that the intent
// is settled on. What was durable before the intent was written, it has not touched.
func (s *Store) anew(t *trustRecord, f *found, root Root) *Error {
	name := journalName(t.pending.Epoch)
	path := filepath.Join(s.at.dir, name)
	switch {
	case t.pending.Epoch == t.confirmed.Epoch && root.Journal > 0:
		if _, err := s.dir.install(name, content{b: f.tail[:root.Journal], size: int64(len(f.tail))}, nil); err != nil {
			return fail("", path, err)
		}
	case t.pending.Epoch == t.confirmed.Epoch:
		// The journal was being made. There may be none to be seen, and one on the disk.
		if err := s.dir.clear(name); err != nil {
			return fail("", path, err)
		}
	case f.info != nil:
		info, err := s.dir.install(bundleName, content{b: f.raw}, nil)
		if err != nil {
			return fail("", s.bundlePath(), err)
		}
		f.info = &info
	}
	return nil
}

// holdJournal takes hold of the journal that was found, or makes ready for one of that
// size.
func (s *Store) holdJournal(f *found, size int64) error {
	if s.root.Journal == 0 {
		s.planJournal(size)
		return nil
	}
	s.log = journal{name: journalName(f.root.Epoch), header: f.tail[:headerSize], size: int64(len(f.tail)), bundle: f.root,
		before: &state{id: f.state.id, base: f.state.end()}}
	return s.log.open(s.dir)
}

// startOver lets the commits that wait go on from the state that was settled on.
func (s *Store) startOver() {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tip = s.tip()
	if q.open != nil {
		q.open.stale = true
	}
}

// relapse refuses, in Recover, a state that does not hold what this process has
// shown: an older copy of both directories was put back meanwhile.
func (s *Store) relapse(st *state, t *trustRecord, f *found) *Error {
	shown := s.state.Load()
	if shown == nil {
		return nil
	}
	v := shown.version()
	if ok, err := st.holds(v); ok || s.beyond(st, v, err) {
		return nil
	} else if err != nil {
		return fail("", s.at.dir, err)
	}
	return &Error{Path: s.at.dir, Kind: ErrRolledBack, Trusted: t.confirmed, Pending: t.pending, Found: f.root,
		Cause: fmt.Errorf("this process has seen %s", v), Hint: st.relapseHint(v)}
}

// Recover settles a store that is in doubt, in place, under the locks that it holds or,
// with Options.Shared, takes, by the same code as Open. When it returns nil, the store takes commits again, and
// Lookup tells what became of the commit that was in doubt. A store that is not in
// doubt is left as it is.
func (s *Store) Recover(ctx context.Context) (Recovery, error) {
	if err := s.take(ctx); err != nil {
		return Recovery{}, fail("recover", s.at.dir, err)
	}
	defer s.give()
	if err := s.join(ctx); err != nil {
		return Recovery{}, fail("recover", s.at.dir, err)
	}
	s.mu.RLock()
	doubt := s.doubt
	s.mu.RUnlock()
	if doubt == nil {
		return Recovery{Confirmed: s.root}, nil
	}
	rec, e := s.settle(recovering)
	if e != nil {
		return Recovery{}, fail("recover", s.at.dir, e)
	}
	s.abreast = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt, s.recovery = nil, rec
	s.untold.Store(false)
	return rec.clone(), nil
}

// flushable makes sure that names in the directories can be made durable, or that
// the caller knows they cannot.
func (s *Store) flushable(dirs ...*directory) *Error {
	for _, d := range dirs {
		err := d.Sync()
		if errors.Is(err, vfs.ErrNoDirSync) {
			if s.opts.Allow&NoDirSync == 0 {
				return &Error{Path: d.Path(), Kind: ErrUnsupported, Cause: err, Hint: hintNoDirSync}
			}
			d.noSync.Store(true)
			s.opts.Logger.Warn("pawl: directories cannot be flushed here; a power cut may undo acknowledged commits", "dir", d.Path())
			continue
		}
		if err != nil {
			return fail("", d.Path(), err)
		}
	}
	return nil
}

func (s *Store) audit(rec *Recovery, id storeID) error {
	line := auditLine{
		Time: s.at.fsys.Now().UTC(), Event: "unclean", Store: id.String(),
		Process: s.at.fsys.Owner(), Confirmed: rec.Confirmed,
	}
	if rec.Settled != SettledNothing {
		line.Event, line.Outcome = "settle", rec.Settled.String()
		line.Pending, line.Commits = &rec.Pending, rec.Commits
	}
	return appendAudit(s.trustDir, s.at.name+auditSuffix, line)
}

// auditChange is the audit line about the caller's program, or its schema.
func (s *Store) auditChange(event, from, to string) error {
	return appendAudit(s.trustDir, s.at.name+auditSuffix, auditLine{
		Time: s.at.fsys.Now().UTC(), Event: event, Store: s.state.Load().id.String(),
		Process: s.at.fsys.Owner(), Confirmed: s.root, From: from, To: to,
	})
}

// report logs what was not ordinary.
func (s *Store) report(rec *Recovery) {
	log := s.opts.Logger.With("store", s.at.dir)
	if rec.Settled != SettledNothing {
		log.Warn("pawl: settled an intent", "outcome", rec.Settled.String(), "commits", rec.Commits,
			"pending", rec.Pending.short(), "confirmed", rec.Confirmed.short())
	} else if rec.Unclean {
		log.Info("pawl: the last writer did not close the store", "confirmed", rec.Confirmed.short())
	}
	if rec.BrokenSlots > 0 {
		log.Warn("pawl: the trust file had torn records", "slots", rec.BrokenSlots)
	}
	if rec.Audit != nil {
		log.Error("pawl: no audit line was written", "error", rec.Audit)
	}
}
