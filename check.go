package pawl

import (
	"context"
	"encoding/binary"
	"fmt"
)

// check reads a whole segment and checks everything: each chunk, each record and its
// place in the chain, and that tables and filter are those that the records make. told,
// if not nil, hears how far it is. The error names all that is damaged.
func (g *segment) check(ctx context.Context, told func(n int64)) error {
	e := g.remake(ctx, told)
	if e == nil || e.Kind != ErrDamaged {
		return plainNil(e)
	}
	if _, err := g.layout(); err != nil {
		return e
	}
	return g.allDamage(ctx, e)
}

// plainNil keeps a nil *Error from being an error.
func plainNil(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}

// remake makes the segment once more of what is read of it, and compares the digests.
func (g *segment) remake(ctx context.Context, told func(n int64)) *Error {
	l, e := g.layout()
	if e != nil {
		return e
	}
	first, e := g.read(0, headerSize, nil)
	if e != nil {
		return e
	}
	if err := checkSegmentHeader(first, g.store); err != nil {
		return g.file.damaged(err, g.whole(0, headerSize))
	}
	w := newSegmentWriter(g.store, g.from, nil)
	if g.forgotten() {
		e = g.remakeIDs(l, w)
	} else {
		e = g.remakeCommits(ctx, w, told)
	}
	if e != nil {
		return e
	}
	if r, err := w.finish(); err != nil || r != g.row {
		return g.file.damaged(errorString("its tables are not those of its records"), g.whole(0, g.size))
	}
	return nil
}

func (g *segment) remakeCommits(ctx context.Context, w *segmentWriter, told func(n int64)) *Error {
	history, at := g.from, int64(headerSize)
	for c := g.cursor(at, g.from.revision); ; at = c.at {
		if ctx.Err() != nil {
			return &Error{Cause: ctxError(ctx)}
		}
		raw, e := c.next()
		if raw == nil || e != nil {
			return e
		}
		r, err := parseRecord(raw)
		if err == nil {
			err = r.check(history.history)
		}
		if err == nil && (r.revision != history.revision+1 || r.firstSeq != history.nextSeq) {
			err = fmt.Errorf("revision %d does not follow revision %d", r.revision, history.revision)
		}
		if err == nil {
			err = w.add(r, keptWhole)
		}
		if err != nil {
			d := g.whole(at, c.at-at)
			d.First, d.Last = c.done, c.done
			return g.file.damaged(err, d)
		}
		history = w.row.end
		if told != nil {
			told(c.at)
		}
	}
}

func (g *segment) remakeIDs(l *layout, w *segmentWriter) *Error {
	b, e := g.read(l.ids, l.filter-l.ids, nil)
	if e != nil {
		return e
	}
	for ; len(b) > 0; b = b[idRow:] {
		w.ids = append(w.ids, sealedID{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])})
	}
	w.row.end, w.row.flags = g.end, rowForgotten|g.flags&rowGivenUp
	return nil
}

// allDamage finds all chunks that are not as they were written.
func (g *segment) allDamage(ctx context.Context, e *Error) error {
	l, _ := g.layout()
	all := *e
	all.Damage = nil
	var room []byte
	for at := int64(0); at < l.end; {
		if ctx.Err() != nil {
			return &Error{Cause: ctxError(ctx)}
		}
		b, bad, err := g.readChunks(l, at, min(at+largeSpan, l.end), room)
		if err != nil {
			return e
		}
		if room = b; bad < 0 {
			at += int64(len(b))
			continue
		}
		at += int64(bad) * chunkSize
		n := min(chunkSize, l.end-at)
		one := g.narrow(g.file.damaged(fmt.Errorf("bytes %d to %d do not have the digest that its footer names", at, at+n-1), g.whole(at, n)))
		all.Damage = append(all.Damage, one.Damage...)
		at += n
	}
	if len(all.Damage) == 0 {
		return e // the records say that something is wrong, and the digests do not
	}
	return &all
}
