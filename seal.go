package pawl

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What a bundle does not hold goes into files before the bundle is published: history
// beyond Limits.Unsealed into a segment, each part beyond Limits.Inline into a file of
// its own. The order, within P2 and P7 of a publish:
//
//	F0  of an empty store the trust file, anew
//	F1  the directory of such files, made anew unless the present bundle names one in
//	    it, and its name durable
//	F2  the file's bytes into a temp, durable; rename; fsync the directory
//	F3  read a segment back from disk, whole, and check it
//	    … the intent, the bundle that names the files, the confirm: P3 to P6 …
//	F4  memory moves; files that the bundle does not name any more are removed
//
// So whoever finds a bundle finds its files, and a file that nobody finds a bundle for is
// swept. One that is there is never taken for written unless the present bundle names it:
// after a failed flush it may be in the page cache and nowhere else.

const (
	// mergeAt segments in a row that are of one level become one of the next, so that the
	// table of them stays short: for a gigabyte of history about fifty. A level is mergeAt
	// times larger than the one below; levels 0 and 1 are merged. So each byte of history
	// is written three or four times: to the journal, and to two or three segments.
	mergeAt = 8
	// Segments of level 2 are from smallSegment to mostSegment units large.
	smallSegment = mergeAt
	mostSegment  = mergeAt * mergeAt

	// sealAtClose: Close seals more than this part of Limits.Unsealed, but no less than so
	// many bytes, so that the next open has little to read.
	sealAtClose = 16
	leastSealed = 16 << 10
)

// unit is what sizes of segments are measured by.
func (l *Limits) unit() int64 { return max(l.Unsealed, 4<<10) }

// kept is what is kept of a commit when it is sealed.
type kept int

const (
	keptWhole kept = iota
	keptHead       // all but its entries
	keptID
)

// sealer makes segments of the commits of a trail.
type sealer struct {
	ctx   context.Context
	dir   *directory // the store directory
	write bool       // else what it makes is only measured
	like  *vfs.Info
	most  int64
	store storeID
	from  origin // where the next segment begins
	keep  func(*record) kept
	trail *trail

	history Digest  // after ahead
	ahead   *record // the next commit; nil after the last
	as      kept
	made    []*segment
}

// run makes as many segments as it takes.
func (b *sealer) run() error {
	b.history = b.from.history
	if err := b.advance(); err != nil {
		return err
	}
	for b.ahead != nil {
		var r row
		from := b.from
		write := func(f vfs.File) (n int64, err error) {
			r, n, err = b.one(f)
			return n, err
		}
		var err error
		if b.write {
			_, err = b.dir.segments.put(content{write: write, like: b.like}, func(*directory) (string, error) { return r.name(from), nil })
		} else {
			_, err = write(nil)
		}
		if err != nil {
			return err
		}
		g := newSegment(b.store, from, r, b.dir)
		b.made, b.from = append(b.made, g), r.end
		if b.write {
			b.dir.counts.seals.Add(1)
			if err := g.check(b.ctx, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// one writes one segment.
func (b *sealer) one(f vfs.File) (row, int64, error) {
	w := newSegmentWriter(b.store, b.from, f)
	forgotten := b.as == keptID
	for n := 0; b.ahead != nil && (b.as == keptID) == forgotten && (n == 0 || w.size()+int64(len(w.ids)*idRow) < b.most); n++ {
		if err := w.add(b.ahead, b.as); err != nil {
			return row{}, w.at, err
		}
		if err := b.advance(); err != nil {
			return row{}, w.at, err
		}
	}
	r, err := w.finish()
	return r, w.at, err
}

// advance looks at the next commit.
func (b *sealer) advance() error {
	if b.ctx.Err() != nil {
		return ctxError(b.ctx)
	}
	b.ahead = nil
	raw, e := b.trail.next()
	if e != nil {
		return unread{e}
	}
	if raw == nil {
		return nil
	}
	r, err := parseRecord(raw)
	if err != nil {
		return err
	}
	b.history = chain(b.history, r.head())
	r.history = b.history
	b.ahead, b.as = r, b.keep(r)
	return nil
}

// unread marks an error about an older file, which could not be read.
type unread struct{ err *Error }

func (u unread) Error() string { return u.err.Error() }
func (u unread) Unwrap() error { return u.err }

// pack makes of a state the one that its bundle holds. When it returns nil, the files
// that this bundle names are on stable storage, and so are their names. History of more
// than most bytes is sealed.
func (s *Store) pack(st *state, most int64) (*state, error) {
	s.vouch()
	next := *st
	like, err := s.dir.present(bundleName) // its mode may have been changed since
	if err != nil {
		return &next, err
	}
	if err := s.spill(&next, like); err != nil {
		return &next, err
	}
	if next.unsealed > most {
		if err := s.ground(); err != nil {
			return &next, err
		}
		if err := s.seal(&next, like); err != nil {
			return &next, err
		}
	}
	next.measure(&s.opts.Limits)
	return &next, nil
}

// ground makes the trust file of an empty store anew, before the first file comes into
// the store directory: of one that was there, the flush of its name may have failed, and
// files without a trust file are not opened. Both say the same, so a commit that fails
// here did not happen. An operator's function, which has no state, authorises what it
// makes with its last step.
func (s *Store) ground() error {
	if s.root != (Root{}) || s.trust.own != nil || s.state.Load() == nil {
		return nil
	}
	err := s.trust.replace(s.trustRecord(), func() error {
		if e := s.recheck(); e != nil {
			return e
		}
		return nil
	})
	if err != nil && !errors.As(err, new(notYet)) {
		return s.inDoubt(err) // it is not known which of the two is there
	}
	return err
}

// vouch tells the folders what the bundle names.
func (s *Store) vouch() {
	s.dir.segments.vouch(s.shelf)
	s.dir.parts.vouch(s.shelf)
}

// spill writes the parts that are too large for the bundle. One whose bytes are in a file
// that the present bundle names is not written again, if that is whole; and a View that has
// the file goes on to have it.
func (s *Store) spill(next *state, like *vfs.Info) error {
	cloned := false
	files := next.keptFiles() // parts of the same bytes share one
	maps.Copy(files, s.shelf)
	maps.Copy(files, s.retired)
	for _, name := range next.partNames() {
		p := next.parts[name]
		if p.file != nil || int64(len(p.data)) <= s.opts.Limits.Inline {
			continue
		}
		if err := s.ground(); err != nil {
			return err
		}
		if !cloned {
			next.parts, cloned = maps.Clone(next.parts), true
		}
		now := part{file: newPartFile(p.ref.digest, s.dir), ref: p.ref}
		same := files[now.file.name]
		if same != nil {
			now.file = same
		}
		if same == nil || now.read(context.Background(), func([]byte) {}) != nil {
			now.file.rest() // what is open may not be replaced everywhere
			if _, err := s.dir.parts.put(content{b: p.data, like: like}, func(*directory) (string, error) { return now.file.name, nil }); err != nil {
				return fail("", now.file.path(), err)
			}
		}
		files[now.file.name], next.parts[name] = now.file, now
	}
	return nil
}

// seal puts all history that is in memory into segments. Small ones before it become
// part of the new one.
func (s *Store) seal(next *state, like *vfs.Info) error {
	n := len(next.sealed)
	keep := mergeFrom(next.sealed, next.unsealed, s.opts.Limits.unit())
	made, at, err := s.sealFrom(next, keep, like)
	for errors.As(err, new(unread)) && keep < n {
		// A damaged segment stays as it is, and stops no commit: those after it are merged.
		s.opts.Logger.Error("pawl: segments are not merged", "store", s.at.dir, "error", err)
		s.drop(made)
		keep = at + 1 + mergeFrom(next.sealed[at+1:], next.unsealed, s.opts.Limits.unit())
		made, at, err = s.sealFrom(next, keep, like)
	}
	if err != nil {
		s.drop(made)
		return fail("", s.dir.segments.path(), err)
	}
	next.replaceHistory(append(next.sealed[:keep:keep], made...), next.end(), nil, &s.opts.Limits)
	return nil
}

// mergeFrom tells from which segment on all are to become one with a new one.
func mergeFrom(sealed []*segment, size, unit int64) int {
	level := func(size int64) (n int) {
		for ; size >= unit; size /= mergeAt {
			n++
		}
		return n
	}
	keep := len(sealed)
	for level(size) < 2 {
		i, sum := keep, size
		for i > 0 && !sealed[i-1].forgotten() && level(sealed[i-1].size) <= level(size) {
			i--
			sum += sealed[i].size
		}
		if keep-i < mergeAt-1 {
			break
		}
		keep, size = i, sum
	}
	return keep
}

// sealFrom also tells which segment could not be read, if that is the error.
func (s *Store) sealFrom(st *state, keep int, like *vfs.Info) ([]*segment, int, error) {
	b := sealer{ctx: context.Background(), dir: s.dir, write: true, like: like, most: mostSegment * s.opts.Limits.unit(),
		store: st.id, keep: func(*record) kept { return keptWhole }, from: st.base, trail: &trail{s: st, segment: keep}}
	if keep < len(st.sealed) {
		b.from = st.sealed[keep].from
	}
	err := b.run()
	return b.made, b.trail.segment, err
}

// replaceHistory makes the state have its history elsewhere.
func (s *state) replaceHistory(sealed []*segment, base origin, records []*record, l *Limits) {
	s.sealed, s.base, s.records = sealed, base, records
	s.measure(l)
}

// keptFiles are the files that a bundle names, by name.
func (s *state) keptFiles() map[string]*keptFile {
	files := map[string]*keptFile{}
	for _, g := range s.sealed {
		files[g.file.name] = &g.file
	}
	for _, p := range s.parts {
		if p.file != nil {
			files[p.file.name] = p.file
		}
	}
	return files
}

// retire removes the files that only the bundle before needed. They stay open for Views
// that read them; where an open file cannot be removed, that is left to Close.
func (s *Store) retire(now map[string]*keptFile) {
	old := s.shelf
	s.shelf = now
	if !vfs.ReplacesOpen {
		if s.retired == nil {
			s.retired = map[string]*keptFile{}
		}
		maps.Copy(s.retired, old)
		maps.DeleteFunc(s.retired, func(name string, _ *keptFile) bool { return now[name] != nil })
		return
	}
	defer s.reclaim()
	for _, name := range slices.Sorted(maps.Keys(old)) {
		file := old[name]
		if now[name] != nil {
			continue
		}
		err := file.open()
		if err == nil {
			s.counts.retired.Add(1)
			runtime.AddCleanup(file, func(c *counts) { c.retired.Add(-1) }, s.counts)
		}
		if err == nil || errors.Is(err, vfs.ErrNotRegular) || ignoreNotExist(err) == nil {
			err = file.in.remove(name)
		}
		if err != nil {
			s.opts.Logger.Warn("pawl: a file is left for the next open", "file", file.path(), "error", err)
		}
	}
}

// reclaim asks for the files of Views that are gone when there are many: each holds a
// descriptor until the garbage collector comes, which knows nothing of descriptors.
func (s *Store) reclaim() {
	const few = 64
	n := s.counts.retired.Load()
	// What Views keep stays when the collector has come, and must not call it each time.
	if s.lasting = min(s.lasting, n); n > max(few, 2*s.lasting) {
		runtime.GC()
		s.lasting = n
	}
}

// removeRetired removes what retire has left.
func (s *Store) removeRetired() {
	for _, name := range slices.Sorted(maps.Keys(s.retired)) {
		file := s.retired[name]
		file.rest()
		_ = file.in.remove(name) // somebody else may have it open; the next open sweeps it
	}
	s.retired = nil
}

// unpack removes the files that a state which did not come to be was to have. If the
// store is not this process's any more, they may be somebody else's by now.
func (s *Store) unpack(next *state) {
	if next == nil {
		return
	}
	ours := s.held() == nil && s.trust.changed() == nil
	files := next.keptFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if s.shelf[name] == nil {
			files[name].rest()
			if ours {
				_ = files[name].in.remove(name) // the next open sweeps it
			}
		}
	}
}

func (s *Store) drop(made []*segment) { s.unpack(&state{sealed: made}) }
