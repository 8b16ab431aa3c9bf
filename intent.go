package pawl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// trustFile is the trust file of one store, under its lock. What it keeps:
//
//	I1  A record is written in place only into a file that this process made. The
//	    first record that a process writes replaces the file whole, with the newest
//	    record beside it: slots of killed processes that were never flushed would
//	    otherwise use up the ring, and a power cut could fall back to a record that
//	    no longer fits the store.
//	I2  Records are written one at a time, each to the slot after the newest, so
//	    that a torn one falls back to the record before, which authorises what is
//	    on disk.
//	I3  After an error nothing more is written in place: either one abort record
//	    settles it, or the next record replaces the file whole (I1).
//	I4  A confirm may be put without a flush of its own: the record before it is an
//	    intent, and flushed, and the new state that it names is on disk. The flush of
//	    the next intent, or abort record, covers both.
type trustFile struct {
	dir  *directory
	name string // of the file

	newest trustRecord
	ring   []byte         // the file's bytes as last read or written
	info   vfs.Info       // the file's identity
	own    vfs.File       // open for writing in place; nil until this process made the file, and while it rests
	mine   bool           // this process made the file
	broken []int          // slots that were neither blank nor whole when the file was read
	slot   [slotSize]byte // where put makes a record
	seen   [ringSize]byte // where changed reads to
	behind atomic.Bool    // the newest record was not flushed yet
}

// errTrustReplaced says that the name leads to another file than the one in use.
var errTrustReplaced = errorString("the trust file was replaced")

// errTrustChanged says that somebody else wrote to the trust file.
var errTrustChanged = errorString("the trust file was changed")

// errNoTrust says that there is no trust file at all.
var errNoTrust = errorString("there is no trust file")

// read loads the trust file and finds its newest whole record. It changes nothing.
func (t *trustFile) read() error {
	ring, info, err := t.bytes()
	if err != nil {
		return err
	}
	t.ring, t.info = ring, info
	t.newest, t.broken, err = decodeRing(ring)
	if err == nil && t.newest.ending != "" {
		err = ending(t.newest.ending)
	}
	return err
}

// ending is the error for a store that nobody is to use any more, under this name.
func ending(state string) *Error {
	if state == stateRenaming {
		return &Error{Kind: ErrMissing, Hint: hintRenaming, Cause: errorString("somebody has begun to rename this store")}
	}
	return &Error{Kind: ErrMissing, Hint: hintRemoving, Cause: errorString("somebody has begun to remove this store")}
}

// bytes reads the file, whatever is in it, if it is a file of the right size.
func (t *trustFile) bytes() ([]byte, vfs.Info, error) {
	f, err := t.dir.Open(t.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, vfs.Info{}, errNoTrust
	case errors.Is(err, vfs.ErrNotRegular):
		return nil, vfs.Info{}, &Error{Kind: ErrTrustDamaged, Cause: err, Hint: hintTrustDamaged}
	case err != nil:
		return nil, vfs.Info{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, info, err
	}
	if info.Size != ringSize {
		return nil, info, &Error{Kind: ErrTrustDamaged, Hint: hintTrustDamaged,
			Cause: fmt.Errorf("it has %d bytes, not %d", info.Size, ringSize)}
	}
	ring, err := readFull(f, ringSize)
	return ring, info, err
}

// decodeRing finds the newest whole record of a trust file.
func decodeRing(ring []byte) (newest trustRecord, broken []int, err error) {
	var why error
	for i := range slotCount {
		slot := ring[i*slotSize : (i+1)*slotSize]
		if bytes.Equal(slot, blankSlot) {
			continue
		}
		r, err := decodeSlot(slot)
		if err == nil && r.sequence%slotCount != uint64(i) {
			err = fmt.Errorf("sequence %d does not belong here", r.sequence)
		}
		switch {
		case errors.Is(err, ErrVersion):
			return newest, nil, err
		case err != nil:
			broken = append(broken, i)
			why = errors.Join(why, fmt.Errorf("slot %d: %w", i, err))
		case newest.sequence != 0 && newest.store != r.store:
			return newest, nil, &Error{Kind: ErrTrustDamaged, Hint: hintTrustDamaged,
				Cause: errorString("its records speak for different stores")}
		case r.sequence > newest.sequence:
			newest = r
		}
	}
	if newest.sequence == 0 {
		if why == nil {
			why = errorString("all its slots are blank")
		}
		return newest, nil, &Error{Kind: ErrTrustDamaged, Cause: why, Hint: hintTrustDamaged}
	}
	return newest, broken, nil
}

// create makes the trust file of a new store, which must not exist. When it
// returns nil the file and its name are durable.
//
//	create temp; write; fsync; close
//	link temp → name (fails rather than replace); remove temp
//	fsync trust directory
func (t *trustFile) create(first trustRecord) error {
	first.sequence = 1
	temp, _, err := t.dir.writeTemp(content{b: makeRing(first)}, nil)
	if err != nil {
		return err
	}
	err = t.dir.Link(temp, t.name)
	if errors.Is(err, errors.ErrUnsupported) {
		// No hard links here. Under the lock nobody else creates the file, so a look
		// before the rename is as good.
		if _, err = t.dir.Lstat(t.name); errors.Is(err, fs.ErrNotExist) {
			err = t.dir.Rename(temp, t.name)
		} else if err == nil {
			err = fs.ErrExist
		}
	} else if err == nil {
		err = t.dir.Remove(temp)
	}
	if err != nil {
		return errors.Join(err, ignoreNotExist(t.dir.Remove(temp)))
	}
	if err := t.dir.Sync(); err != nil {
		return err
	}
	return t.read()
}

// makeRing is the content of a trust file with these records in it.
func makeRing(records ...trustRecord) []byte {
	ring := bytes.Repeat(blankSlot, slotCount)
	for _, r := range records {
		copy(ring[slotSize*(r.sequence%slotCount):], r.encode())
	}
	return ring
}

// write makes r the newest record, durably. An error that is notYet left the file
// as it was; after any other, r may or may not be what the next reader sees.
func (t *trustFile) write(r trustRecord) error { return t.writeAfter(r, nil) }

// writeAfter is write; where the file is replaced, ready is that of install.
func (t *trustFile) writeAfter(r trustRecord, ready func() error) error {
	if t.own == nil {
		return t.replace(r, ready)
	}
	if err := t.put(r); err != nil {
		return err
	}
	return t.flush()
}

// put makes r the newest record in a file that this process made, and leaves the
// flush to whoever comes next.
func (t *trustFile) put(r trustRecord) error {
	r.sequence = t.newest.sequence + 1
	slot := r.appendSlot(t.slot[:0])
	at := int64(slotSize * (r.sequence % slotCount))
	// Taken even when the write fails: the slot may hold r by now.
	t.newest = r
	if err := writeFull(t.own, slot, at); err != nil {
		return slotUnsure{err}
	}
	copy(t.ring[at:], slot)
	t.dir.counts.bytes.Add(slotSize)
	t.dir.counts.blocks.Add(slotSize)
	t.behind.Store(true)
	return nil
}

// flush makes what was put durable. It is tried once.
func (t *trustFile) flush() error {
	t.dir.counts.fileSyncs.Add(1)
	err := t.own.SyncData()
	t.behind.Store(false) // after an error too: there will be no other flush
	return err
}

// slotUnsure marks a write in place that failed before it was flushed. One abort
// record in the next slot settles it: nothing was made durable in between.
type slotUnsure struct{ err error }

func (s slotUnsure) Error() string { return s.err.Error() }
func (s slotUnsure) Unwrap() error { return s.err }

// replace installs a file with the newest record and r in it, and keeps it open.
// ready is that of install.
func (t *trustFile) replace(r trustRecord, ready func() error) error {
	// The new file gets the mode of this one, and must be open for writing at the end:
	// better to learn now that it cannot be.
	f, err := t.dir.OpenRW(t.name)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return notYet{err}
	}
	r.sequence = t.newest.sequence + 1
	ring := makeRing(t.newest, r)
	t.dir.counts.blocks.Add(ringSize)
	info, err := t.dir.install(t.name, content{b: ring}, ready)
	if err != nil {
		return err
	}
	own, err := t.dir.OpenRW(t.name)
	if err != nil {
		return err
	}
	t.disown()
	t.own, t.mine, t.ring, t.info, t.newest, t.broken = own, true, ring, info, r, nil
	t.behind.Store(false)
	return nil
}

// disown gives up the handle, so that the next record replaces the file (I1).
func (t *trustFile) disown() {
	t.rest()
	t.mine = false
	t.behind.Store(false)
}

// rest closes the file until wake.
func (t *trustFile) rest() {
	if t.own != nil {
		t.own.Close()
		t.own = nil
	}
}

// wake opens the file again for writing in place, if it is the one that this process made.
func (t *trustFile) wake() (err error) {
	if !t.mine || t.own != nil {
		return nil
	}
	if t.own, err = t.dir.OpenRW(t.name); err != nil {
		t.own = nil
		return err
	}
	info, err := t.own.Stat()
	if err == nil && !info.Same(t.info) {
		err = errTrustReplaced
	}
	return err
}

// replaced says whether the name leads to another file by now.
func (t *trustFile) replaced() error {
	now, err := t.dir.Identify(t.name)
	if err == nil && !now.Same(t.info) {
		err = errTrustReplaced
	}
	return err
}

// changed says whether the file is still the one, byte for byte, that this process
// read or wrote last, and if not, why not.
func (t *trustFile) changed() error {
	if t.own == nil {
		ring, info, err := t.bytes()
		switch {
		case err != nil:
			return err
		case !info.Same(t.info):
			return errTrustReplaced
		case !bytes.Equal(ring, t.ring):
			return errTrustChanged
		}
		return nil
	}
	now, err := t.dir.Identify(t.name)
	switch {
	case err != nil:
		return err
	case !now.Same(t.info):
		return errTrustReplaced
	case now.Size != ringSize:
		return errTrustChanged
	}
	if err := readInto(t.own, t.seen[:]); err != nil {
		return err
	}
	if !bytes.Equal(t.seen[:], t.ring) {
		return errTrustChanged
	}
	return nil
}
