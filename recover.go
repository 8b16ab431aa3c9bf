package pawl

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// found is what the store directory holds.
type found struct {
	// The bundle.
	info  *vfs.Info // nil when there is none
	raw   []byte    // its bytes, when they could be read
	head  *header   // its header, when that is whole
	state *state    // its state, when all of it is whole
	root  Root      // what a trust record would say of it alone
	bad   error     // why it is not whole
	other string    // a store file beside a bundle that is not there

	// The journal that goes with it.
	journal *vfs.Info // nil when there is none
	tail    []byte    // its bytes, when they could be read
	walk    walked

	older []string // journals of earlier epochs
	later string   // one of a later epoch
}

func (f *found) nothing() bool { return f.info == nil && f.other == "" }

// readStore reads what the store directory holds and checks it as far as it can be
// checked without the trust file. It changes nothing and allocates no more than the
// limits. dir may be nil: no directory. An error is one that says nothing about the
// state: the operating system's, or a format that this program does not know.
func readStore(dir *directory, l *Limits) (*found, error) {
	f := &found{}
	if dir == nil {
		return f, nil
	}
	if err := f.readBundle(dir, l.Bundle); err != nil {
		return f, fail("", filepath.Join(dir.Path(), bundleName), err)
	}
	if f.state == nil {
		return f, nil
	}
	name := journalName(f.root.Epoch)
	if err := f.readJournal(dir, name, l.Journal); err != nil {
		return f, fail("", filepath.Join(dir.Path(), name), err)
	}
	return f, f.listJournals(dir)
}

func (f *found) readBundle(dir *directory, limit int64) error {
	file, err := dir.Open(bundleName)
	if errors.Is(err, fs.ErrNotExist) {
		f.other, err = firstStoreFile(dir)
		if err != nil || f.other != bundleName {
			return err
		}
		f.other = "" // it was made between two looks, by a writer that a reader is beside
		file, err = dir.Open(bundleName)
	}
	switch {
	case errors.Is(err, vfs.ErrNotRegular):
		info, e := dir.Lstat(bundleName)
		f.info, f.bad = &info, err
		return e
	case err != nil:
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	f.info = &info
	first, err := readFull(file, min(info.Size, headerSize))
	if err != nil {
		return err
	}
	h, err := decodeHeader(first, bundleMagic, "bundle")
	if errors.Is(err, ErrVersion) {
		return err
	}
	if f.bad = err; err != nil {
		return nil
	}
	f.head = &h
	if h.length != uint64(info.Size) {
		f.bad = fmt.Errorf("it has %d bytes, and its header says %d", info.Size, h.length)
		return nil
	}
	if info.Size > limit {
		return overLimit(tooLarge("the bundle has %d bytes, and Limits.Bundle is %d", info.Size, limit))
	}
	if f.raw, err = readFull(file, info.Size); err != nil {
		return err
	}
	f.root = Root{Revision: h.revision, Epoch: h.epoch, Digest: sha256.Sum256(f.raw)}
	f.state, _, f.bad = decodeBundle(f.raw, dir)
	return nil
}

// readJournal reads the journal that goes with a bundle that is whole.
func (f *found) readJournal(dir vfs.Dir, name string, limit int64) error {
	file, err := dir.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, vfs.ErrNotRegular):
		info, e := dir.Lstat(name)
		f.journal, f.walk.bad = &info, err
		return e
	case err != nil:
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	f.journal = &info
	if info.Size > limit {
		return overLimit(tooLarge("the journal has %d bytes, and Limits.Journal is %d", info.Size, limit))
	}
	if f.tail, err = readFull(file, info.Size); err != nil {
		return err
	}
	f.walk, err = walkJournal(f.tail, f.root, f.state)
	return err
}

// listJournals finds the journals that go with other bundles.
func (f *found) listJournals(dir vfs.Dir) error {
	names, err := dir.Names()
	if err != nil {
		return fail("", dir.Path(), err)
	}
	for _, name := range names {
		switch epoch, ok := journalEpoch(name); {
		case ok && epoch < f.root.Epoch:
			f.older = append(f.older, name)
		case ok && epoch > f.root.Epoch:
			f.later = name
		}
	}
	return nil
}

// spent lists the journals that hold nothing any more.
func (f *found) spent() []string {
	names := f.older
	if f.journal != nil && f.journal.Mode.IsRegular() && f.journal.Size == 0 {
		names = append(names, journalName(f.root.Epoch))
	}
	return names
}

// newest is what a trust record would say of all that was found.
func (f *found) newest() Root {
	if n := len(f.walk.steps); n > 0 {
		return f.walk.steps[n-1].root
	}
	return f.root
}

// at finds a root in what was found: how many commits of the journal belong to it.
func (f *found) at(root Root) (steps int, ok bool) {
	if root == f.root {
		return 0, true
	}
	for i, s := range f.walk.steps {
		if s.root == root {
			return i + 1, true
		}
	}
	return 0, false
}

// prepare makes what was found use what a state before has open, and measures it.
func (f *found) prepare(before *state, l *Limits) {
	if f.state != nil {
		f.state.inherit(before)
		f.state.measure(l)
	}
}

// share makes the state that was found use files that are open already.
func (f *found) share(open map[string]*keptFile) {
	if f.state == nil {
		return
	}
	for name, p := range f.state.parts {
		if p.file != nil && open[p.file.name] != nil {
			p.file = open[p.file.name]
			f.state.parts[name] = p
		}
	}
}

// discard closes what deciding has opened, unless a state before shares it.
func (f *found) discard(before *state) {
	if f.state != nil && before == nil {
		f.state.rest()
	}
}

// stateAt is the state with the given number of commits of the journal.
func (f *found) stateAt(steps int) *state {
	return f.state.with(f.walk.steps[:steps])
}

// firstStoreFile returns the name of a store file in dir, or "".
func firstStoreFile(dir *directory) (string, error) {
	names, err := dir.Names()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if isStoreFile(name) {
			return name, nil
		}
	}
	return "", nil
}

// firstKeptFile is firstStoreFile for the files that a bundle names. Where there is none,
// they prove nothing to whoever has the trust file: they are made before it.
func firstKeptFile(dir *directory) (string, error) {
	for _, f := range []*folder{&dir.segments, &dir.parts} {
		names, err := f.names()
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(names, f.ours); i >= 0 {
			return f.name + "/" + names[i], nil
		}
	}
	return "", nil
}

// relation is how what was found stands to a state that trust names.
type relation int

const (
	relUnknown relation = iota // whole, and not explained by the state
	relSame                    // the state itself
	relGone                    // nothing, or a file of no bytes, where a state was committed
	relOlder                   // this store, earlier
	relNewer                   // this store, later, and a descendant of the state
	relForeign                 // another store
	relDamaged                 // not whole
)

// relationTo says how what was found stands to a root of the given store, whose
// history digest is known when it is a confirmed one. The bytes of the journal up to
// residue are what an append left that was cut off; they may be anything.
func (f *found) relationTo(id storeID, root Root, history Digest, residue int64) relation {
	empty := root == Root{}
	switch {
	case f.nothing() && empty:
		return relSame
	case !empty && (f.info == nil || f.info.Mode.IsRegular() && f.info.Size == 0):
		return relGone
	case f.info == nil:
		return relUnknown
	case f.head != nil && f.head.store != id:
		return relForeign
	case !f.info.Mode.IsRegular():
		return relUnknown
	case f.state == nil || f.bad != nil:
		return relDamaged
	}
	if n, ok := f.at(root); ok {
		switch {
		case f.later != "" || f.journal != nil && !f.journal.Mode.IsRegular():
			return relUnknown
		case f.inPadding(root) != nil:
			return relDamaged
		case f.walk.used <= max(root.Journal, residue) && (f.journal == nil || f.journal.Size == 0 || root.Journal > 0):
			return relSame
		case len(f.walk.steps) > n:
			return relNewer
		case f.walk.head != nil && f.walk.head.store != id:
			return relForeign
		}
		return relUnknown
	}
	if f.root.Epoch == root.Epoch && root.Journal > 0 {
		return f.journalTo(id, root)
	}
	if f.root.Revision < root.Revision || f.root.Revision == root.Revision && f.root.Epoch < root.Epoch {
		return relOlder
	}
	// Not earlier, so later, if it is of the same history: a bundle of the same revision
	// may have been published after it.
	at, ok, _ := f.state.historyAt(root.Revision)
	if (f.root.Revision > root.Revision || f.root.Epoch > root.Epoch) && ok && (empty || at == history) {
		return relNewer
	}
	return relUnknown
}

// inPadding is what is wrong in the journal before the end of a root that it holds:
// after the last frame, where all is zero, and which no digest covers.
func (f *found) inPadding(root Root) error {
	n, ok := f.at(root)
	switch {
	case !ok:
		return nil
	case n < len(f.walk.steps) && f.walk.steps[n].at < root.Journal:
		return fmt.Errorf("%s, at byte %d: a frame in the rest of a block", journalName(f.root.Epoch), f.walk.steps[n].at)
	case f.walk.bad != nil && f.walk.stop < root.Journal:
		return fmt.Errorf("%s, at byte %d: %w", journalName(f.root.Epoch), f.walk.stop, f.walk.bad)
	}
	return nil
}

// journalTo says how the journal stands to a root of the bundle's epoch that it does
// not hold.
func (f *found) journalTo(id storeID, root Root) relation {
	switch {
	case f.journal == nil:
		return relOlder
	case !f.journal.Mode.IsRegular():
		return relUnknown
	case f.walk.head != nil && f.walk.head.store != id:
		return relForeign
	case f.walk.apart:
		return relUnknown
	case f.walk.bad != nil && f.walk.stop < root.Journal:
		return relDamaged
	case f.newest().Revision < root.Revision:
		return relOlder
	}
	return relUnknown
}

// verdict is what settling will do.
type verdict int

const (
	verdictRefuse    verdict = iota // nothing: the error says why
	verdictClean                    // the confirmed state is there
	verdictLanded                   // the pending state is there: confirm it
	verdictNotLanded                // the old state is there: confirm that
)

// decide is the whole of recovery's judgement: what the trust file says against
// what the store directory holds. It changes nothing, and reads nothing but, from a
// segment, the history digest at a revision that trust names.
//
//	trust says      on disk                       verdict
//	confirmed(S)    S                             clean (S may be the empty store)
//	confirmed(S)    nothing, or zero length       ErrMissing
//	confirmed(S)    this store, earlier           ErrRolledBack
//	confirmed(S)    a descendant of S             ErrTrustBehind
//	confirmed(S)    another store                 ErrForeign
//	confirmed(S)    not whole                     ErrDamaged
//	confirmed(S)    anything else                 ErrUnauthorized
//	pending(O, N)   N                             landed
//	pending(O, N)   O, with or without residue    not landed (O may be the empty store)
//	pending(O, N)   nothing, or zero length       ErrMissing
//	pending(O, N)   this store, earlier than O    ErrRolledBack
//	pending(O, N)   anything else                 ErrUnauthorized
//
// A journal of no bytes beside a state that has none is what clear leaves for a moment,
// and is no journal.
//
// Residue is what stands in the journal after the length of O, up to that of N, when
// both go with the same bundle: what was left of an append that a crash cut off.
//
// After an error with an intent the intent stays, and the next open says the same.
func decide(t *trustRecord, f *found) (verdict, *Error) {
	toOld := f.relationTo(t.store, t.confirmed, t.history, t.residue())
	if !t.intent() {
		switch toOld {
		case relSame:
			return verdictClean, nil
		case relGone:
			return refuse(t, f, ErrMissing, hintMissing)
		case relOlder:
			return refuse(t, f, ErrRolledBack, hintRolledBack)
		case relNewer:
			return refuse(t, f, ErrTrustBehind, hintTrustBehind)
		case relForeign:
			return refuse(t, f, ErrForeign, hintForeign)
		case relDamaged:
			return refuse(t, f, ErrDamaged, f.damageHint(t))
		default:
			return refuse(t, f, ErrUnauthorized, f.strangerHint(t))
		}
	}
	if f.relationTo(t.store, t.pending, Digest{}, 0) == relSame {
		return verdictLanded, nil
	}
	switch toOld {
	case relSame:
		return verdictNotLanded, nil
	case relGone:
		return refuse(t, f, ErrMissing, hintMissing)
	case relOlder:
		return refuse(t, f, ErrRolledBack, hintRolledBack)
	case relForeign:
		return refuse(t, f, ErrUnauthorized, hintForeign)
	case relDamaged:
		return refuse(t, f, ErrUnauthorized, f.damageHint(t))
	default:
		return refuse(t, f, ErrUnauthorized, f.strangerHint(t))
	}
}

// residue is up to where the journal may hold what was left of an append. There is none
// where the journal was being made: that file is whole before it has its name.
func (r *trustRecord) residue() int64 {
	if r.intent() && r.pending.Epoch == r.confirmed.Epoch && r.confirmed.Journal > 0 {
		return r.pending.Journal
	}
	return 0
}

// refuse is the error for a store that is not opened, with the evidence.
func refuse(t *trustRecord, f *found, kind error, hint string) (verdict, *Error) {
	e := &Error{Kind: kind, Trusted: t.confirmed, Pending: t.pending, Found: f.newest(), Hint: hint, Cause: f.because(t)}
	if t.intent() {
		// The class says that an unresolved intent stays; the cause keeps what is
		// known beyond that.
		switch f.relationTo(t.store, t.confirmed, t.history, t.residue()) {
		case relForeign:
			e.Cause = errors.Join(ErrForeign, e.Cause)
		case relDamaged:
			e.Cause = errors.Join(ErrDamaged, e.Cause)
		}
	}
	return verdictRefuse, e
}

func (f *found) damageHint(t *trustRecord) string {
	switch {
	case f.bad == nil:
		return hintJournal
	case t.confirmed.Journal > 0:
		return hintWhole
	}
	return hintDamaged
}

// strangerHint is for a state that nothing explains. Where the confirmed one is there
// beside what is not authorised, nothing need be lost.
func (f *found) strangerHint(t *trustRecord) string {
	switch {
	case !f.holds(t.confirmed):
		return hintUnauthorized
	case f.culprit(t) == f.later, f.culprit(t) != bundleName && t.confirmed.Journal == 0 && t.pending.Journal == 0:
		return hintBeside
	}
	return hintBeyond // that file cannot be moved away: it has, or may have, what was acknowledged
}

// holds says whether a state is there, whatever else is.
func (f *found) holds(root Root) bool {
	if f.state == nil || f.bad != nil {
		return false
	}
	_, ok := f.at(root)
	return ok
}

// culprit is the file that a refusal is about.
func (f *found) culprit(t *trustRecord) string {
	switch {
	case f.state == nil || f.bad != nil || f.because(t) == nil:
		return bundleName
	case f.later != "" && f.walk.bad == nil && f.inPadding(t.confirmed) == nil && (f.journal == nil || f.journal.Mode.IsRegular()):
		return f.later
	}
	return journalName(f.root.Epoch)
}

// because is what was seen that may explain a refusal; nil when the roots say it.
func (f *found) because(t *trustRecord) error {
	name := journalName(f.root.Epoch)
	switch {
	case f.bad != nil:
		return f.bad
	case f.info == nil && f.other != "":
		return fmt.Errorf("there is a file %q and no bundle", f.other)
	case f.state == nil:
		return nil
	case f.journal == nil && f.state.id == t.store && t.confirmed.Epoch == f.root.Epoch && t.confirmed.Journal > 0:
		return errors.Join(ErrMissing, fmt.Errorf("there is no %s", name))
	case f.journal != nil && !f.journal.Mode.IsRegular():
		return fmt.Errorf("%s: %w", name, f.walk.bad)
	case f.inPadding(t.confirmed) != nil:
		return f.inPadding(t.confirmed)
	case f.walk.bad != nil:
		return fmt.Errorf("%s, at byte %d: %w", name, f.walk.stop, f.walk.bad)
	case f.later != "":
		return fmt.Errorf("there is a file %q, which goes with a later bundle", f.later)
	case f.journal != nil && t.confirmed.Epoch == f.root.Epoch && f.walk.used > max(t.confirmed.Journal, t.residue()):
		return fmt.Errorf("%s goes on to byte %d, and trust knows it up to byte %d", name, f.walk.used, max(t.confirmed.Journal, t.residue()))
	}
	return nil
}
