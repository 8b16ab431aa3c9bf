package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// verifyStep is how much is read between two looks at the context.
const verifyStep = 1 << 20

// Verify reads the store back from disk and checks everything: the trust file
// against what was written to it, the bundle against the digest that trust names,
// and each commit record, entry and part against its digest and the chain. It
// changes nothing, and a change may be made meanwhile.
//
// progress, if not nil, is told how many of how many bytes were read. When Verify
// returns nil, what is on disk is the state that View returned when it began.
func (s *Store) Verify(ctx context.Context, progress func(done, total int64)) error {
	if err := s.verify(ctx, progress); err != nil {
		return fail("verify", s.at.dir, err)
	}
	return nil
}

func (s *Store) verify(ctx context.Context, progress func(done, total int64)) error {
	// The turn is held only until the bundle is open: a bundle is never written to,
	// so the open one stays what it was while commits put new ones in its place.
	if err := s.take(ctx); err != nil {
		return err
	}
	root, st, file, err := s.openForVerify()
	s.give()
	if err != nil || file == nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fail("", s.bundlePath(), err)
	}
	if info.Size > s.opts.Limits.Bundle {
		return fail("", s.bundlePath(), tooLarge("the bundle has %d bytes, and Limits.Bundle is %d", info.Size, s.opts.Limits.Bundle))
	}
	var raw bytes.Buffer
	for at := int64(0); at < info.Size; {
		if ctx.Err() != nil {
			return ctxError(ctx)
		}
		step := make([]byte, min(verifyStep, info.Size-at))
		n, err := file.ReadAt(step, at)
		if n == 0 && errors.Is(err, io.EOF) {
			return &Error{Path: s.bundlePath(), Kind: ErrDamaged, Trusted: root, Hint: hintDamaged,
				Cause: fmt.Errorf("it ends at byte %d of %d", at, info.Size)}
		}
		if n == 0 && err == nil {
			err = io.ErrNoProgress
		}
		if n == 0 {
			return fail("", s.bundlePath(), err)
		}
		raw.Write(step[:n])
		at += int64(n)
		if progress != nil {
			progress(at, info.Size)
		}
	}
	got, _, err := decodeBundle(raw.Bytes())
	if err == nil && got.version() != st.version() {
		err = fmt.Errorf("it holds %s, and memory %s", got.version(), st.version())
	}
	if digest := Digest(sha256.Sum256(raw.Bytes())); err == nil && digest != root.Digest {
		err = fmt.Errorf("its digest is %s, and trust names %s", digest, root.Digest)
	}
	if err != nil {
		return &Error{Path: s.bundlePath(), Kind: ErrDamaged, Trusted: root, Cause: err, Hint: hintDamaged}
	}
	return nil
}

// openForVerify checks the trust file and opens the bundle that goes with the state
// in memory; no file when the store is empty.
func (s *Store) openForVerify() (Root, *state, vfs.File, error) {
	if e := s.usable(context.Background()); e != nil {
		return Root{}, nil, nil, &Error{Kind: ErrInDoubt, Cause: e.Cause, Hint: e.Hint}
	}
	if e := s.held(); e != nil {
		return Root{}, nil, nil, e
	}
	if err := s.trust.changed(); err != nil {
		if e := s.stale(err); e.Kind == nil || err == errTrustReplaced {
			return Root{}, nil, nil, fail("", s.trust.path(), e)
		}
		return Root{}, nil, nil, &Error{Path: s.trust.path(), Kind: ErrTrustDamaged, Cause: err, Hint: hintTrustDamaged}
	}
	if s.root == (Root{}) {
		return s.root, nil, nil, nil
	}
	f, err := s.dir.Open(bundleName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = &Error{Path: s.bundlePath(), Kind: ErrMissing, Trusted: s.root, Cause: err, Hint: hintMissing}
	case errors.Is(err, vfs.ErrNotRegular):
		err = &Error{Path: s.bundlePath(), Kind: ErrUnauthorized, Trusted: s.root, Cause: err, Hint: hintUnauthorized}
	case err != nil:
		err = fail("", s.bundlePath(), err)
	}
	return s.root, s.state.Load(), f, err
}
