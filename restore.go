package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Restore puts the state of a backup in place. It reads the backup twice, from its
// beginning: to its end before anything is written, so that one that is cut off or was
// altered changes nothing (ErrDamaged).
//
// Where there is no store, the restored one is the one that was backed up: same id, same
// version. Where there is one, the decision's Digest names what its trust file confirms,
// and the backup must be of the same store (else ErrForeign). What was trusted, or is
// there, and is not part of the backup's history, is given up as Adopt does it: declared
// by a commit, its numbers never used again, its receipts void, its files in quarantine/.
// Only where neither the trust file nor the lost state tells any more which seqs were used,
// those of the next entries are far higher.
//
// When it returns nil, the state is on stable storage and is the trusted one, and the
// audit file says who decided, and why. After any error the store is what it was, or is
// refused; the same call again goes on. A dry run says what would be lost.
func Restore(ctx context.Context, dir, trustDir string, opts *Options, from io.ReadSeeker, dec Decision) (*Ruling, error) {
	o, err := opts.complete()
	if err == nil && from == nil {
		err = invalid("there is no backup to read")
	}
	if err != nil {
		return nil, fail("restore", dir, err)
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return nil, fail("restore", dir, err)
	}
	b, err := readBackup(ctx, from, &o.Limits, nil)
	if err != nil {
		return nil, fail("restore", dir, err)
	}
	return operate(ctx, "restore", dir, trustDir, opts, dec, func(d *desk) (*Ruling, error) { return d.restore(ctx, from, b, &dec) })
}

func (d *desk) restore(ctx context.Context, from io.ReadSeeker, b *backedUp, dec *Decision) (*Ruling, error) {
	if e := d.settled(); e != nil {
		return nil, e
	}
	// What is in place is not the backup's yet: it is judged by what the backup has.
	chosen, _, err := decodeBundle(b.raw, &directory{})
	if err != nil {
		return nil, err
	}
	b.lay(chosen, from)
	r := d.ruling("restore", dec)
	r.From = chosen.version()
	if done, err := d.done("restore", dec.Digest, &r.From); err != nil || done && !dec.DryRun {
		r.Done, r.Root, r.Version = done, d.trust.newest.confirmed, d.found.state.version()
		if err == nil {
			err = d.firm()
		}
		return r, err
	}
	if e := d.sameStore(chosen.id); e != nil {
		return nil, e
	}
	if e := d.confirms(dec); e != nil {
		return nil, e
	}
	last, any, err := d.lost(chosen)
	if err != nil {
		return nil, err
	}
	r.weigh(d, chosen, last, any)
	if dec.DryRun {
		return r, nil
	}
	if err := d.ways(d.at.trust, d.at.dir); err != nil {
		return nil, err
	}
	if d.dir == nil {
		if d.dir, err = d.makeDir(d.at.dir, tempPrefix); err != nil {
			return nil, err
		}
		if d.storeLock, err = d.lockNow(); err != nil {
			return nil, err
		}
	}
	if chosen, _, err = decodeBundle(b.raw, d.dir); err != nil {
		return nil, err
	}
	d.use(chosen)
	chosen.measure(&d.opts.Limits)
	if e := d.flushable(d.trustDir, d.dir); e != nil {
		return nil, e
	}
	if err := d.unpack(ctx, from, b, chosen, r); err != nil {
		return nil, err
	}
	// A backup is of what was in a bundle and a journal.
	if chosen.unsealed > d.opts.Limits.Unsealed {
		like, err := d.likeBundle()
		if err == nil {
			err = d.seal(chosen, like)
		}
		if err != nil {
			return nil, err
		}
	}
	return d.enact(r, chosen, last, any, dec)
}

// lockNow takes the lock of a store directory that was just made.
func (d *desk) lockNow() (*lock, error) {
	l, owner, err := tryLock(d.dir, lockName, d.opts.Shared)
	if l == nil && err == nil {
		err = &Error{Kind: ErrLocked, Path: filepath.Join(d.dir.Path(), lockName), Hint: hintLocked, Cause: fmt.Errorf("held by %s", owner)}
	}
	return l, err
}

// sameStore refuses a backup of another store.
func (d *desk) sameStore(id storeID) *Error {
	other := storeID{}
	switch {
	case d.speak && d.trust.newest.confirmed != (Root{}):
		other = d.trust.newest.store
	case !d.speak && d.found.head != nil:
		other = d.found.head.store
	}
	if other == (storeID{}) || other == id {
		return nil
	}
	return &Error{Kind: ErrForeign, Path: d.at.dir, Hint: hintOtherBackup, Cause: fmt.Errorf("the backup is of store %s, and this is store %s", id, other)}
}

// unpack puts the files of a backup in place, durably, and checks them there. What has one
// of their names and is not the same is set aside first.
func (d *desk) unpack(ctx context.Context, from io.ReadSeeker, b *backedUp, chosen *state, r *Ruling) error {
	d.rest()
	changing := &Error{Kind: ErrDamaged, Hint: hintBackup, Cause: errorString("the backup was changed while it was read")}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return fail("", "", err)
	}
	again, err := readBackup(ctx, from, &d.opts.Limits, func(name string, size int64, body io.Reader) error {
		sub, base := path.Split(name)
		in := &d.dir.parts
		if sub == segmentsName+"/" {
			in = &d.dir.segments
		}
		if err := d.yield(in, base, b.files[name].Digest, r); err != nil {
			return fail("", filepath.Join(in.path(), base), err)
		}
		_, err := in.put(content{like: d.found.info, write: func(f vfs.File) (int64, error) {
			sum := sha256.New()
			err := copyTo(f, io.TeeReader(body, sum))
			if err == nil && Digest(sum.Sum(nil)) != b.files[name].Digest {
				err = changing
			}
			return size, err
		}}, func(*directory) (string, error) { return base, nil })
		if err != nil {
			return fail("", filepath.Join(in.path(), base), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if again.info.Digest != b.info.Digest || !bytes.Equal(again.raw, b.raw) {
		return changing
	}
	for _, g := range chosen.sealed {
		if err := g.check(ctx, nil); err != nil {
			return err
		}
		g.file.rest() // there may be many
	}
	for _, name := range chosen.partNames() {
		if p := chosen.parts[name]; p.file != nil {
			if e := p.read(ctx, func([]byte) {}); e != nil {
				return e
			}
			p.file.rest()
		}
	}
	maps.Copy(d.shelf, chosen.keptFiles())
	return nil
}

// lay makes the files that a state names those in its backup, so that its history can be
// read before anything is written.
func (b *backedUp) lay(st *state, from io.ReadSeeker) {
	for _, g := range st.sealed {
		name := segmentsName + "/" + g.file.name
		g.file.f = &tarred{from: from, at: b.places[name], size: b.files[name].Size}
	}
}

// tarred is a file in a backup.
type tarred struct {
	vfs.File
	from     io.ReadSeeker
	at, size int64
}

func (t *tarred) Stat() (vfs.Info, error) { return vfs.Info{Size: t.size}, nil }
func (t *tarred) Close() error            { return nil }

func (t *tarred) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > t.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), t.size-off)
	if _, err := t.from.Seek(t.at+off, io.SeekStart); err != nil {
		return 0, err
	}
	got, err := io.ReadFull(t.from, p[:n])
	if err == nil && n < int64(len(p)) {
		err = io.EOF
	}
	return got, err
}

// yield sets a file aside whose name another one is to get.
func (d *desk) yield(in *folder, name string, digest Digest, r *Ruling) error {
	dir, err := in.make()
	if err != nil {
		return err
	}
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode.IsRegular() {
		return errors.Join(err, vfs.ErrNotRegular)
	}
	if sum, err := sumOf(dir, name, info); err == nil && sum == digest {
		return nil
	}
	as, err := d.linkAside(in, name)
	if err == nil {
		r.SetAside = append(r.SetAside, as)
	}
	return err
}

// copyTo writes all of a stream into a file.
func copyTo(f vfs.File, from io.Reader) error {
	room := make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := io.ReadFull(from, room)
		if n > 0 {
			if err := writeFull(f, room[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n < len(room) {
			return nil // whether all came is found out by digest
		}
		if err != nil {
			return err
		}
	}
}
