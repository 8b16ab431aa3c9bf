package pawl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// keptFile is a file that the bundle names. It is opened when it is first read and stays
// open until Close, so what a View reads is there when its name is gone. After Close it is
// opened again when a View asks for it, and so is one that was found damaged: an undamaged
// one may have its name by then. One whose name is gone is closed by the garbage collector,
// with the last View that needs it.
type keptFile struct {
	in   *folder
	name string

	mu  sync.RWMutex
	f   vfs.File
	bad bool // it was not what the bundle names: somebody may put another in its place
}

func (k *keptFile) path() string { return filepath.Join(k.in.path(), k.name) }

// open opens the file, unless it is open.
func (k *keptFile) open() error { return k.use(func(vfs.File) error { return nil }) }

// use calls do with the open file.
func (k *keptFile) use(do func(vfs.File) error) error {
	k.mu.RLock()
	if k.f != nil && !k.bad {
		defer k.mu.RUnlock()
		return do(k.f)
	}
	k.mu.RUnlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.f != nil && !k.bad {
		return do(k.f)
	}
	f, stay, err := k.in.open(k.name)
	switch {
	case err != nil && k.f != nil: // its name is gone, or another thing has it
		return do(k.f)
	case err != nil:
		return err
	case k.f != nil:
		k.f.Close()
		k.f = nil
	}
	k.bad = false
	if stay {
		k.f = f
	} else {
		defer f.Close()
	}
	return do(f)
}

// rest closes the file until it is read again.
func (k *keptFile) rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.f != nil {
		k.f.Close()
		k.f = nil
	}
}

// damaged is the error for a file that is not what the bundle names. One of the
// operating system that says nothing of the kind is passed on.
func (k *keptFile) damaged(err error, d Damage) *Error {
	e := &Error{Path: k.path(), Kind: ErrDamaged, Cause: err, Hint: hintSealed}
	var inner *Error
	switch {
	case errors.As(err, &inner):
		return fail("", k.path(), inner)
	case notDir(err):
		e.Cause, e.Hint = errors.Join(ErrMissing, err), hintFolderTaken
	case errors.Is(err, fs.ErrNotExist):
		e.Cause = errors.Join(ErrMissing, err)
	case errors.Is(err, vfs.ErrNotRegular):
	case errors.As(err, new(*fs.PathError)):
		return fail("", k.path(), err)
	}
	d.Path, d.Problem = k.path(), oneLine(e.Cause)
	e.Damage = []Damage{d}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bad = true
	return e
}

// A part that is larger than Limits.Inline is a file of its own in a published state: its
// bytes and nothing else, named by their SHA-256.

func newPartFile(d Digest, dir *directory) *keptFile {
	return &keptFile{in: &dir.parts, name: hex.EncodeToString(d[:])}
}

// partFiles tells how many files of parts the state has, and what they take; parts that
// are not in files, and are larger than inline, as if they were.
func (s *state) partFiles(inline int64) (n int, size int64) {
	seen := map[Digest]bool{}
	for _, p := range s.parts {
		if (p.file != nil || int64(p.ref.size) > inline) && !seen[p.ref.digest] {
			seen[p.ref.digest] = true
			n++
			size += int64(p.ref.size)
		}
	}
	return n, size
}

// isPartFile reports whether name is one that newPartFile makes.
func isPartFile(name string) bool {
	var d Digest
	n, err := hex.Decode(d[:], []byte(clip(name, 2*len(d))))
	return err == nil && n == len(d) && hex.EncodeToString(d[:]) == name
}

// bytes returns a copy of a part's bytes, held against its digest.
func (p *part) bytes() ([]byte, *Error) {
	if p.file == nil {
		return append([]byte{}, p.data...), nil
	}
	var b []byte
	e := p.read(context.Background(), func(piece []byte) {
		if b == nil { // the file is as large as it must be
			b = make([]byte, 0, p.ref.size)
		}
		b = append(b, piece...)
	})
	if e != nil {
		return nil, e
	}
	if b == nil {
		b = []byte{}
	}
	return b, nil
}

// read reads the file of a part piece by piece, and holds it against its digest.
func (p *part) read(ctx context.Context, piece func([]byte)) *Error {
	hash := sha256.New()
	err := p.file.use(func(f vfs.File) error {
		info, err := f.Stat()
		if err == nil && uint64(info.Size) != p.ref.size {
			err = fmt.Errorf("it has %d bytes, and part %q has %d", info.Size, p.ref.name, p.ref.size)
		}
		if err != nil {
			return err
		}
		room := make([]byte, min(verifyStep, int64(p.ref.size)))
		for at := int64(0); err == nil && at < int64(p.ref.size); at += int64(len(room)) {
			if ctx.Err() != nil {
				return &Error{Cause: ctxError(ctx)}
			}
			room = room[:min(int64(len(room)), int64(p.ref.size)-at)]
			if err = readAt(f, room, at); err == nil {
				hash.Write(room)
				piece(room)
			}
		}
		return err
	})
	if err == nil && Digest(hash.Sum(nil)) != p.ref.digest {
		err = fmt.Errorf("its bytes are not those of part %q", p.ref.name)
	}
	if err != nil {
		return p.file.damaged(err, p.whole())
	}
	return nil
}

func (p *part) whole() Damage { return Damage{Length: int64(p.ref.size), Part: p.ref.name} }

// inherit makes the state use what another one has open and has read of the same files.
func (s *state) inherit(old *state) {
	if old == nil || old.id != s.id {
		return
	}
	same := len(s.sealed) == len(old.sealed)
	have := map[Digest]*segment{}
	for _, g := range old.sealed {
		have[g.digest] = g
	}
	sealed := make([]*segment, len(s.sealed))
	for i, g := range s.sealed {
		if sealed[i] = g; have[g.digest] != nil && have[g.digest].row == g.row && have[g.digest].from == g.from {
			sealed[i] = have[g.digest]
		}
		same = same && sealed[i] == old.sealed[i]
	}
	if s.sealed = sealed; same {
		s.sealed = old.sealed
	}
	files := map[string]*keptFile{}
	for _, p := range old.parts {
		if p.file != nil {
			files[p.file.name] = p.file
		}
	}
	for name, p := range s.parts {
		if p.file != nil && files[p.file.name] != nil {
			p.file = files[p.file.name]
			s.parts[name] = p
		}
	}
}

// pin opens all files that the state names, before somebody else may remove them. What
// cannot be opened is told of when it is read.
func (s *state) pin() (err error) {
	files := s.keptFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if e := files[name].open(); e != nil {
			err = e
		}
	}
	return err
}

// exhausted reports that no more files can be opened.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// rest closes all files that the state names.
func (s *state) rest() {
	for _, f := range s.keptFiles() {
		f.rest()
	}
}
