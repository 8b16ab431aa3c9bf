package pawl

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// verifyStep is how much is read between two looks at the context.
const verifyStep = 1 << 20

// Verify reads the store back from disk and checks everything: the trust file
// against what was written to it, bundle and journal against the digest that trust
// names, segments and files of parts against those that the bundle names, and each commit
// record, entry and part against its digest and the chain. It changes nothing, and a
// change may be made meanwhile. In memory it has the bundle, the journal and one part at
// a time, and of a segment 60 bytes for each commit.
//
// Of segments and parts it tells all that is damaged, not only the first: Error.Damage
// says which piece of which file, and which commits and entries it is about.
//
// progress, if not nil, is told how many of how many bytes were read. When Verify
// returns nil, what is on disk is the state that View returned when its turn came,
// before it began to read.
func (s *Store) Verify(ctx context.Context, progress func(done, total int64)) error {
	if err := s.verify(ctx, progress); err != nil {
		return fail("verify", s.at.dir, err)
	}
	return nil
}

// evidence is what Verify holds the disk against: taken at one moment.
type evidence struct {
	root    Root
	state   *state
	bundle  vfs.File // nil when the store is empty
	journal vfs.File // nil when there is none
	log     journal

	segments []*segment // the files that the bundle names, opened for this
	parts    []part
}

func (s *Store) verify(ctx context.Context, progress func(done, total int64)) error {
	// The turn is held only until the files are open: a bundle is never written to, a
	// journal never where it belongs to a state, and the open ones stay what they were
	// while commits put new ones in their place.
	if err := s.take(ctx); err != nil {
		return err
	}
	var ev evidence
	err := s.join(ctx)
	if err == nil {
		ev, err = s.openForVerify()
	}
	s.give()
	defer ev.close()
	if err != nil || ev.bundle == nil {
		return err
	}
	info, err := ev.bundle.Stat()
	if err != nil {
		return fail("", s.bundlePath(), err)
	}
	if info.Size > s.opts.Limits.Bundle {
		return fail("", s.bundlePath(), tooLarge("the bundle has %d bytes, and Limits.Bundle is %d", info.Size, s.opts.Limits.Bundle))
	}
	total := info.Size + ev.root.Journal + ev.filesSize()
	raw, err := s.readSteps(ctx, ev.bundle, info.Size, func(n int64) { report(progress, n, total) })
	if err != nil {
		return ev.damage(s.bundlePath(), err)
	}
	digest := Digest(sha256.Sum256(raw))
	got, _, err := decodeBundle(raw, s.dir)
	if err == nil && ev.journal == nil && got.version() != ev.state.version() {
		err = fmt.Errorf("it holds %s, and memory %s", got.version(), ev.state.version())
	}
	if err == nil && digest != ev.log.bundle.Digest {
		err = fmt.Errorf("its digest is %s, and trust names %s", digest, ev.log.bundle.Digest)
	}
	if err != nil {
		return ev.damage(s.bundlePath(), err)
	}
	if ev.journal != nil {
		path := filepath.Join(s.at.dir, journalName(ev.root.Epoch))
		raw, err = s.readSteps(ctx, ev.journal, ev.root.Journal, func(n int64) { report(progress, info.Size+n, total) })
		if err == nil {
			// What comes after may be a commit that is being made.
			raw = append(raw, make([]byte, ev.log.size-ev.root.Journal)...)
			err = ev.log.check(raw, ev.root)
		}
		if err != nil {
			return ev.damage(path, err)
		}
	}
	return ev.verifyFiles(ctx, info.Size+ev.root.Journal, total, progress)
}

// verifyFiles checks the files that the bundle names. All that is damaged is told, in one
// error.
func (ev *evidence) verifyFiles(ctx context.Context, done, total int64, progress func(done, total int64)) error {
	var all *Error
	add := func(err error) error {
		var e *Error
		if !errors.As(err, &e) {
			return err
		}
		if e.Kind != ErrDamaged { // it ends here; what was found until then is told
			if all != nil && ctx.Err() == nil {
				e.Damage = all.Damage
			}
			return e
		}
		if all == nil {
			all = e
		} else {
			all.Damage = append(all.Damage, e.Damage...)
			all.Cause = several{fmt.Sprintf("%d pieces of files are damaged, the first: %s", len(all.Damage), all.Damage[0].Problem), all.Cause, e.Cause}
		}
		return nil
	}
	for _, g := range ev.segments {
		if err := add(g.check(ctx, func(n int64) { report(progress, done+n, total) })); err != nil {
			return err
		}
		done += g.size
		report(progress, done, total)
	}
	for _, p := range ev.parts {
		begin := done
		e := p.read(ctx, func(b []byte) {
			done += int64(len(b))
			report(progress, done, total)
		})
		if e != nil {
			if err := add(e); err != nil {
				return err
			}
		}
		if end := begin + int64(p.ref.size); done < end {
			done = end
			report(progress, done, total)
		}
	}
	if all != nil {
		all.Trusted = ev.root
		return all
	}
	return nil
}

// several is the cause of an error about several pieces: errors.Is finds what each was.
type several struct {
	text        string
	first, rest error
}

func (s several) Error() string   { return s.text }
func (s several) Unwrap() []error { return []error{s.first, s.rest} }

func (ev *evidence) filesSize() (n int64) {
	for _, g := range ev.segments {
		n += g.size
	}
	for _, p := range ev.parts {
		n += int64(p.ref.size)
	}
	return n
}

// openFiles opens the files that the state names once more, by their names. An error
// comes again when the file is read.
func (ev *evidence) openFiles(dir *directory) (err error) {
	for _, g := range ev.state.sealed {
		g = newSegment(g.store, g.from, g.row, dir)
		err = cmp.Or(g.file.open(), err)
		ev.segments = append(ev.segments, g)
	}
	for _, name := range ev.state.partNames() {
		if p := ev.state.parts[name]; p.file != nil {
			p.file = newPartFile(p.ref.digest, dir)
			err = cmp.Or(p.file.open(), err)
			ev.parts = append(ev.parts, p)
		}
	}
	return err
}

func (ev *evidence) close() {
	for _, f := range []vfs.File{ev.bundle, ev.journal} {
		if f != nil {
			f.Close()
		}
	}
	for _, g := range ev.segments {
		g.file.rest()
	}
	for _, p := range ev.parts {
		p.file.rest()
	}
}

func report(progress func(done, total int64), done, total int64) {
	if progress != nil {
		progress(done, total)
	}
}

// damage is the error for a file that is not what it must be; one of the operating
// system, or of the context, is passed on.
func (ev *evidence) damage(path string, err error) error {
	var e *Error
	var c contained
	switch {
	case err == nil:
		return nil
	case errors.As(err, &c):
		return err
	case errors.As(err, &e):
		return fail("", path, e)
	case errors.As(err, new(*fs.PathError)):
		return fail("", path, err)
	}
	hint := hintDamaged
	switch {
	case filepath.Base(path) != bundleName:
		hint = hintJournal
	case ev.root.Journal > 0:
		hint = hintWhole
	}
	return &Error{Path: path, Kind: ErrDamaged, Trusted: ev.root, Cause: err, Hint: hint}
}

// readSteps reads the first n bytes of a file, with a look at the context in between.
func (s *Store) readSteps(ctx context.Context, file vfs.File, n int64, progress func(done int64)) ([]byte, error) {
	var raw bytes.Buffer
	for at := int64(0); at < n; {
		if ctx.Err() != nil {
			return nil, ctxError(ctx)
		}
		step := make([]byte, min(verifyStep, n-at))
		got, err := file.ReadAt(step, at)
		if got == 0 && errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("it ends at byte %d of %d", at, n)
		}
		if got == 0 && err == nil {
			err = io.ErrNoProgress
		}
		if got == 0 {
			return nil, fail("", "", err)
		}
		raw.Write(step[:got])
		at += int64(got)
		progress(at)
	}
	return raw.Bytes(), nil
}

// openForVerify checks the trust file and opens the files that go with the state in
// memory.
func (s *Store) openForVerify() (ev evidence, err error) {
	if err := s.refusal(); err != nil {
		var e *Error
		if errors.As(err, &e) && e.Outcome == ErrInDoubt {
			return ev, &Error{Kind: ErrInDoubt, Cause: e.Cause, Hint: e.Hint}
		}
		return ev, err
	}
	if e := s.held(); e != nil {
		return ev, e
	}
	if err := s.trust.changed(); err != nil {
		if e := s.stale(err); e.Kind == nil || err == errTrustReplaced {
			return ev, fail("", s.trust.path(), e)
		}
		return ev, &Error{Path: s.trust.path(), Kind: ErrTrustDamaged, Cause: err, Hint: hintTrustDamaged}
	}
	ev.root, ev.state, ev.log = s.root, s.state.Load(), s.log
	if s.root == (Root{}) {
		return ev, nil
	}
	if ev.bundle, err = s.openFor(bundleName); err == nil && s.root.Journal > 0 {
		ev.journal, err = s.openFor(journalName(s.root.Epoch))
	}
	if e := ev.openFiles(s.dir); err == nil && exhausted(e) {
		err = fail("", s.at.dir, e)
	}
	return ev, err
}

func (s *Store) openFor(name string) (vfs.File, error) {
	path := filepath.Join(s.at.dir, name)
	f, err := s.dir.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Error{Path: path, Kind: ErrMissing, Trusted: s.root, Cause: err, Hint: hintMissing}
	case errors.Is(err, vfs.ErrNotRegular):
		return nil, &Error{Path: path, Kind: ErrUnauthorized, Trusted: s.root, Cause: err, Hint: hintUnauthorized}
	case err != nil:
		return nil, fail("", path, err)
	}
	return f, nil
}
