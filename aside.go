package pawl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What must go, and may be all that is left of something, goes to quarantine/ in the store
// directory. pawl never reads it and never removes anything from it.

// previous sets aside whatever a state that is put in place would replace, or the next
// open sweep: bundle, journals, the trust file, and files that the new bundle does not
// name. They keep their own names too, until they are replaced.
func (d *desk) previous(next *state) ([]string, error) {
	var set []string
	names, err := d.dir.Names()
	if err != nil {
		return nil, fail("", d.at.dir, err)
	}
	for _, name := range names {
		if _, journal := journalEpoch(name); name != bundleName && !journal {
			continue
		}
		info, err := d.dir.Lstat(name)
		var as string
		switch {
		case err != nil:
		case !info.Mode.IsRegular():
			if as, err = d.moveAside(name); err == nil && name == bundleName {
				d.found.info = nil
			}
		case info.Size == 0:
			continue
		default: // a journal may yet be written to, and a link would see that
			as, err = d.copyAside(d.dir, name)
		}
		if err != nil {
			return set, fail("", filepath.Join(d.at.dir, name), err)
		}
		set = append(set, as)
	}
	wanted := next.keptFiles()
	for _, in := range []*folder{&d.dir.segments, &d.dir.parts} {
		names, err := in.names()
		if err != nil {
			return set, fail("", in.path(), err)
		}
		for _, name := range names {
			if wanted[name] != nil || !in.ours(name) {
				continue
			}
			as, err := d.linkAside(in, name)
			if err != nil {
				return set, fail("", filepath.Join(in.path(), name), err)
			}
			set = append(set, as)
		}
	}
	if d.speak || d.mute != nil {
		as, err := d.trustAside()
		if err != nil {
			return set, fail("", d.trust.path(), err)
		}
		set = append(set, as)
	}
	return set, nil
}

// trustAside sets the trust file aside; what is no regular file gets another name where it
// is.
func (d *desk) trustAside() (string, error) {
	info, err := d.trustDir.Lstat(d.trust.name)
	if err != nil {
		return "", err
	}
	if info.Mode.IsRegular() {
		return d.copyAside(d.trustDir, d.trust.name)
	}
	for try := 1; ; try++ {
		as := numbered(cut(d.trust.name, maxName-20)+"-aside", try)
		if _, err := d.trustDir.Lstat(as); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		err := d.trustDir.Rename(d.trust.name, as)
		d.mute = nil // there is none any more
		return as, errors.Join(err, d.trustDir.Sync())
	}
}

// makeAside opens quarantine/, or makes it.
func (d *desk) makeAside() (*directory, error) {
	q, err := d.dir.aside.make()
	var e *Error
	if errors.As(err, &e) && e.Hint == hintFolderTaken {
		e.Hint = hintAsideTaken
	}
	return q, err
}

// copyAside puts a copy of a regular file into quarantine, durably, under its name and the
// beginning of its SHA-256: a second time it is the same file.
func (d *desk) copyAside(from *directory, name string) (string, error) {
	f, err := from.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if _, err := d.makeAside(); err != nil {
		return "", err
	}
	hash := sha256.New()
	as, err := d.dir.aside.put(content{write: func(to vfs.File) (int64, error) {
		return info.Size, pieces(context.Background(), f, info.Size, func(b []byte, at int64) error {
			hash.Write(b)
			return writeFull(to, b, at)
		})
	}}, func(q *directory) (string, error) {
		sum := Digest(hash.Sum(nil))
		return q.free(cut(name, maxName-17)+"-"+hex.EncodeToString(sum[:8]), sum)
	})
	return asideName + "/" + as, err
}

// free is a name in quarantine under which there is nothing, or the same bytes.
func (d *directory) free(name string, sum Digest) (string, error) {
	for try := 1; ; try++ {
		as := numbered(name, try)
		info, err := d.Lstat(as)
		if errors.Is(err, fs.ErrNotExist) {
			return as, nil
		}
		if err != nil {
			return "", err
		}
		if !info.Mode.IsRegular() {
			continue
		}
		have, err := sumOf(d, as, info)
		if err != nil {
			return "", err
		}
		if have == sum {
			return as, nil
		}
	}
}

// pieces reads the first n bytes of a file piece by piece.
func pieces(ctx context.Context, f vfs.File, n int64, each func(b []byte, at int64) error) error {
	room := make([]byte, min(verifyStep, n))
	for at := int64(0); at < n; at += int64(len(room)) {
		if ctx.Err() != nil {
			return ctxError(ctx)
		}
		room = room[:min(int64(len(room)), n-at)]
		if err := readAt(f, room, at); err != nil {
			return err
		}
		if err := each(room, at); err != nil {
			return err
		}
	}
	return nil
}

// linkAside gives a regular file that is never written to again a second name in
// quarantine, durably; where there are no hard links, a copy. in is nil for a file in the
// store directory itself.
func (d *desk) linkAside(in *folder, name string) (string, error) {
	q, err := d.makeAside()
	if err != nil {
		return "", err
	}
	from, source := d.dir, name
	if in != nil {
		if from, err = in.make(); err != nil {
			return "", err
		}
		source = in.name + "/" + name
	}
	info, err := from.Lstat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode.IsRegular() {
		return "", vfs.ErrNotRegular
	}
	for try := 1; ; try++ {
		// One from a run that was cut off says nothing: the flush of its name may have failed.
		as := numbered(name, try)
		err := d.dir.Link(source, asideName+"/"+as)
		if errors.Is(err, errors.ErrUnsupported) {
			return d.copyAside(from, name)
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = q.Sync()
		}
		if err == nil {
			err = d.sameAs(q, as, info)
		}
		return path.Join(asideName, as), err
	}
}

// numbered is one of the names that a file may get in quarantine.
func numbered(name string, try int) string {
	if try == 1 {
		return name
	}
	return fmt.Sprintf("%s.%d", cut(name, maxName-10), try)
}

// moveAside moves whatever has a name in the store directory to quarantine: what is no
// regular file, or has to go where there are no hard links.
func (d *desk) moveAside(name string) (string, error) {
	q, err := d.makeAside()
	if err != nil {
		return "", err
	}
	for try := 1; ; try++ {
		as := numbered(name, try)
		if _, err := q.Lstat(as); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		err := d.dir.Rename(name, asideName+"/"+as)
		if err == nil {
			err = errors.Join(q.Sync(), d.dir.Sync())
		}
		return path.Join(asideName, as), err
	}
}

// Quarantine moves one file out of the way, into quarantine/ in the store directory, where
// pawl leaves it alone: one that pawl did not make, or one that no trust record names. name
// is relative to the store directory and may be in segments/ or parts/.
//
// The decision's Digest is the SHA-256 of the file; that of something that is no regular
// file is zero. A file that the trusted state needs is refused (ErrInvalid), and so are
// locks. When it returns nil, the file has its new name, durably, and the audit file says
// so. It may be called again after a crash, and goes on.
func Quarantine(ctx context.Context, dir, trustDir string, opts *Options, name string, dec Decision) (*Ruling, error) {
	return operate(ctx, "quarantine", dir, trustDir, opts, dec, func(d *desk) (*Ruling, error) { return d.quarantine(name, &dec) })
}

func (d *desk) quarantine(name string, dec *Decision) (*Ruling, error) {
	r := d.ruling("quarantine", dec)
	if d.dir == nil {
		return nil, &Error{Kind: ErrNotExist, Path: d.at.dir, Hint: hintNotExist, Cause: fs.ErrNotExist}
	}
	from, in, base, err := d.locate(name)
	if err != nil {
		return nil, err
	}
	if err := d.dispensable(in, base); err != nil {
		return nil, err
	}
	path := filepath.Join(from.Path(), base)
	info, err := from.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		lines, e := d.decided("quarantine", dec.Digest)
		for _, line := range lines {
			if len(line.SetAside) == 1 && line.SetAside[0] == name && !dec.DryRun {
				r.Done = true
				return r, errors.Join(e, from.Sync())
			}
		}
		return nil, &Error{Kind: ErrNotExist, Path: path, Cause: err, Hint: hintQuarantine}
	}
	if err != nil {
		return nil, fail("", path, err)
	}
	var sum Digest
	if info.Mode.IsRegular() {
		if sum, err = sumOf(from, base, info); err != nil {
			return nil, fail("", path, err)
		}
	} else if in != nil {
		return nil, fail("", path, notToBeMoved("what is no regular file can only be set aside from the store directory itself"))
	}
	r.Chosen.Digest = sum
	if dec.DryRun {
		return r, nil
	}
	if sum != dec.Digest {
		return nil, &Error{Kind: ErrStale, Path: path, Hint: hintDecide, Cause: fmt.Errorf("the decision is about a file of %s, and this one has %s", dec.Digest, sum)}
	}
	if e := d.flushable(d.dirs()...); e != nil {
		return nil, e
	}
	// The line comes first: a file that is gone without one could not be accounted for.
	line := d.line("quarantine", dec)
	line.SetAside = []string{name}
	if err := d.note(&line); err != nil {
		return nil, err
	}
	var as string
	if info.Mode.IsRegular() {
		as, err = d.linkAside(in, base)
		if err == nil {
			if err = d.sameAs(from, base, info); err == nil {
				err = errors.Join(from.Remove(base), from.Sync())
			}
		}
	} else if err = d.sameAs(from, base, info); err == nil {
		as, err = d.moveAside(base)
	}
	if err != nil {
		return nil, fail("", path, err)
	}
	r.SetAside = []string{as}
	return r, nil
}

// sameAs says whether a name still leads to what was looked at.
func (d *desk) sameAs(in *directory, name string, info vfs.Info) error {
	now, err := in.Lstat(name)
	if err == nil && (!now.Same(info) || now.Mode.IsRegular() && (now.Size != info.Size || !now.ModTime.Equal(info.ModTime))) {
		err = &Error{Kind: ErrStale, Hint: hintDecide, Cause: errorString("it was replaced or changed meanwhile")}
	}
	return err
}

func sumOf(in *directory, name string, info vfs.Info) (Digest, error) {
	f, err := in.Open(name)
	if err != nil {
		return Digest{}, err
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return Digest{}, err
	}
	if !now.Same(info) {
		return Digest{}, errorString("it was replaced meanwhile")
	}
	hash := sha256.New()
	err = pieces(context.Background(), f, now.Size, func(b []byte, _ int64) error {
		hash.Write(b)
		return nil
	})
	return Digest(hash.Sum(nil)), err
}

// locate finds the directory of a name that is relative to the store directory.
func (d *desk) locate(name string) (from *directory, in *folder, base string, err error) {
	sub, base := path.Split(name)
	switch sub {
	case "":
		from = d.dir
	case segmentsName + "/":
		in = &d.dir.segments
	case partsName + "/":
		in = &d.dir.parts
	default:
		return nil, nil, "", notToBeMoved("%q is not in the store directory, its segments or its parts", name)
	}
	if base == "" || base == "." || base == ".." {
		return nil, nil, "", notToBeMoved("%q names no file in the store directory", name)
	}
	if in != nil {
		in.mu.Lock()
		defer in.mu.Unlock()
		if from, err = in.hold(); err != nil {
			return nil, nil, "", fail("", in.path(), err)
		}
	}
	return from, in, base, nil
}

// dispensable refuses a file that the store needs.
func (d *desk) dispensable(in *folder, name string) error {
	info, err := d.dir.Lstat(name)
	kept := in == nil && name == lockName || in == nil && name == asideName && err == nil && info.Mode.IsDir()
	if in == nil && (name == segmentsName || name == partsName) {
		kept = err == nil && info.Mode.IsDir()
	}
	if in == nil && kept {
		return notToBeMoved("%q is the store's own, and is never in the way", name)
	}
	if v, e := d.verdict(); e == nil && v == verdictRefuse || e != nil && !d.whole() {
		return nil
	}
	needed := in == nil && name == bundleName
	if st := d.found.state; st != nil && in != nil {
		needed = st.keptFiles()[name] != nil
	}
	if _, journal := journalEpoch(name); in == nil && journal {
		needed = name == journalName(d.found.root.Epoch) && (d.trust.newest.confirmed.Journal > 0 || d.trust.newest.pending.Journal > 0)
	}
	if needed {
		return notToBeMoved("%q is part of the trusted state", name)
	}
	return nil
}

// whole says whether the confirmed state is there, beside what the store is refused for.
func (d *desk) whole() bool {
	return d.speak && d.trust.newest.ending == "" && d.found.holds(d.trust.newest.confirmed)
}

// cut shortens a name to so many bytes, between letters.
func cut(name string, n int) string {
	for len(name) > n {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

// notToBeMoved is the error for a name that Quarantine refuses.
func notToBeMoved(format string, args ...any) *Error {
	e := invalid(format, args...)
	e.Hint = hintQuarantine
	return e
}
