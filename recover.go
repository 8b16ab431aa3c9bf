package pawl

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// found is what the store directory holds.
type found struct {
	info  *vfs.Info // of the bundle; nil when there is none
	raw   []byte    // its bytes, when they could be read
	head  *header   // its header, when that is whole
	state *state    // its state, when all of it is whole
	root  Root      // what a trust record would say of it
	bad   error     // why it is not whole
	other string    // a store file beside a bundle that is not there
}

func (f *found) nothing() bool { return f.info == nil && f.other == "" }

// readStore reads what the store directory holds and checks it as far as it can be
// checked without the trust file. It changes nothing and allocates no more than
// limit. dir may be nil: no directory. An error is one that says nothing about the
// state: the operating system's, or a format that this program does not know.
func readStore(dir vfs.Dir, limit int64) (*found, error) {
	f := &found{}
	if dir == nil {
		return f, nil
	}
	file, err := dir.Open(bundleName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.other, err = firstStoreFile(dir)
		return f, err
	case errors.Is(err, vfs.ErrNotRegular):
		info, e := dir.Lstat(bundleName)
		f.info, f.bad = &info, err
		return f, e
	case err != nil:
		return f, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return f, err
	}
	f.info = &info
	first, err := readFull(file, min(info.Size, headerSize))
	if err != nil {
		return f, err
	}
	h, err := decodeHeader(first)
	if errors.Is(err, ErrVersion) {
		return f, err
	}
	if f.bad = err; err != nil {
		return f, nil
	}
	f.head = &h
	if h.length != uint64(info.Size) {
		f.bad = fmt.Errorf("it has %d bytes, and its header says %d", info.Size, h.length)
		return f, nil
	}
	if info.Size > limit {
		return f, tooLarge("the bundle has %d bytes, and Limits.Bundle is %d", info.Size, limit)
	}
	if f.raw, err = readFull(file, info.Size); err != nil {
		return f, err
	}
	f.root = Root{Revision: h.revision, Epoch: h.epoch, Digest: sha256.Sum256(f.raw)}
	f.state, _, f.bad = decodeBundle(f.raw)
	return f, nil
}

// firstStoreFile returns the name of a store file in dir, or "".
func firstStoreFile(dir vfs.Dir) (string, error) {
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
// history digest is known when it is a confirmed one.
func (f *found) relationTo(id storeID, root Root, history Digest) relation {
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
	case f.root == root:
		return relSame
	case f.root.Revision < root.Revision, f.root.Revision == root.Revision && f.root.Epoch < root.Epoch:
		return relOlder
	}
	at, ok := f.state.historyAt(root.Revision)
	if f.root.Revision > root.Revision && ok && (empty || at == history) {
		return relNewer
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
// what the store directory holds. It reads nothing and changes nothing.
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
//	pending(O, N)   O                             not landed (O may be the empty store)
//	pending(O, N)   nothing, or zero length       ErrMissing
//	pending(O, N)   this store, earlier than O    ErrRolledBack
//	pending(O, N)   anything else                 ErrUnauthorized
//
// After an error with an intent the intent stays, and the next open says the same.
func decide(t *trustRecord, f *found) (verdict, *Error) {
	toOld := f.relationTo(t.store, t.confirmed, t.history)
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
			return refuse(t, f, ErrDamaged, hintDamaged)
		default:
			return refuse(t, f, ErrUnauthorized, hintUnauthorized)
		}
	}
	if f.relationTo(t.store, t.pending, Digest{}) == relSame {
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
		return refuse(t, f, ErrUnauthorized, hintDamaged)
	default:
		return refuse(t, f, ErrUnauthorized, hintUnauthorized)
	}
}

// refuse is the error for a store that is not opened, with the evidence.
func refuse(t *trustRecord, f *found, kind error, hint string) (verdict, *Error) {
	e := &Error{Kind: kind, Trusted: t.confirmed, Pending: t.pending, Found: f.root, Hint: hint, Cause: f.bad}
	if e.Cause == nil && f.info == nil && f.other != "" {
		e.Cause = fmt.Errorf("there is a file %q and no bundle", f.other)
	}
	if t.intent() {
		// The class says that an unresolved intent stays; the cause keeps what is
		// known beyond that.
		switch f.relationTo(t.store, t.confirmed, t.history) {
		case relForeign:
			e.Cause = errors.Join(ErrForeign, e.Cause)
		case relDamaged:
			e.Cause = errors.Join(ErrDamaged, e.Cause)
		}
	}
	return verdictRefuse, e
}
