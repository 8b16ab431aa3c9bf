package pawl

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// top is a state that was trusted, or is there.
type top struct {
	root Root
	seq  Seq // the next one after it; 0: not known
}

// lost finds the states that were trusted, or are there, and are not part of another
// one's history; the latest of them comes back, and which seq was used for certain.
func (d *desk) lost(chosen *state) (last top, any bool, err error) {
	f := d.found
	var tops []top
	if d.speak && d.trust.newest.store == chosen.id {
		t := &d.trust.newest
		if t.confirmed != (Root{}) {
			ok, err := chosen.holds(Version{t.confirmed.Revision, t.history})
			// What retention has dropped is not lost, if it is earlier; what cannot be told is.
			if !ok && !(errors.Is(err, ErrForgotten) && t.confirmed.Revision <= chosen.version().Revision) {
				tops = append(tops, top{t.confirmed, t.next})
			}
		}
		// Where a decision was cut off, its intent is in the place of one that may have been
		// acknowledged, and has a higher number.
		if t.pending.Revision > chosen.version().Revision {
			tops = append(tops, top{t.pending, t.next})
		}
	}
	if f.state != nil && f.state.id == chosen.id {
		st := f.stateAt(len(f.walk.steps))
		if ok, err := chosen.holds(st.version()); !ok && !(errors.Is(err, ErrForgotten) && st.version().Revision <= chosen.version().Revision) {
			tops = append(tops, top{f.newest(), st.nextSeq()})
		}
	}
	for _, t := range tops {
		if t.seq == 0 {
			t.seq = beyondAll(chosen.end(), t.root.Revision)
		}
		if t.root.Revision > mostNumber || t.seq > mostNumber {
			return last, false, &Error{Kind: ErrUnauthorized, Path: d.bundlePath(), Found: f.newest(), Hint: hintNumbers,
				Cause: errorString("it claims revisions or seqs that no store comes to")}
		}
		t.seq = max(t.seq, last.seq, chosen.nextSeq())
		if !any || t.root.Revision > last.root.Revision {
			last.root = t.root
		}
		last.seq, any = t.seq, true
	}
	return last, any, nil
}

// mostEntries is more than one commit can append: the format holds their bytes in 31
// bits, and each takes four more.
const mostEntries = math.MaxInt32/4 + 1

// mostNumber is a revision or a seq that no store comes to. Beyond it a file that nobody has
// authorised could use up the numbers.
const mostNumber = 1 << 56

// beyondAll is a seq that no commit up to a revision has used, though nobody can read
// them any more.
func beyondAll(from origin, to Revision) Seq {
	if to > mostNumber/mostEntries {
		return mostNumber + 1
	}
	if to > from.revision {
		return from.nextSeq + Seq(to-from.revision)*mostEntries
	}
	return from.nextSeq + Seq(to)*mostEntries // a fork: it is not known from where
}

// goOn makes of a chosen state the one that goes on after what was lost: by a commit of
// its own, whose id says so, after a gap where the numbers of the lost ones were. The
// files that it needs are made.
func (d *desk) goOn(chosen *state, event string, last top) (*state, error) {
	next := *chosen
	like, err := d.likeBundle()
	if err != nil {
		return nil, err
	}
	from := next.end()
	if last.root.Revision > from.revision || last.seq > from.nextSeq {
		if len(next.records) > 0 {
			if err := d.seal(&next, like); err != nil {
				return nil, err
			}
		}
		gap, err := d.gap(&next, last, like)
		if err != nil {
			return nil, fail("", d.dir.segments.path(), err)
		}
		next.replaceHistory(append(next.sealed[:len(next.sealed):len(next.sealed)], gap), gap.end, nil, &d.opts.Limits)
	}
	v := chosen.version()
	c := Change{declares: true, ID: fmt.Sprintf("%s %d %s over %d %s", event, v.Revision, v.Digest, last.root.Revision, last.root.Digest)}
	p, err := c.prepare(&d.opts.Limits)
	if err != nil {
		return nil, err
	}
	r := &p.record
	end := next.end()
	r.revision, r.time, r.firstSeq = end.revision+1, d.at.fsys.Now().UnixNano(), end.nextSeq
	r.place(end.history)
	g := next.grow()
	g.records = append([]*record(nil), next.records...)
	g.add(r, nil)
	return &g.state, nil
}

// likeBundle is the file whose mode and group new files get, if there is one.
func (d *desk) likeBundle() (*vfs.Info, error) {
	like, err := d.dir.present(bundleName)
	if like != nil && !like.Mode.IsRegular() {
		like = nil
	}
	return like, err
}

// gap makes the segment that stands for revisions that were given up: it has none of
// them, and the history after it is another than theirs.
func (d *desk) gap(st *state, last top, like *vfs.Info) (*segment, error) {
	from := st.end()
	end := origin{revision: max(last.root.Revision, from.revision+1), nextSeq: max(last.seq, from.nextSeq)}
	w := writer{}
	w.bytes([]byte("pawl history given up 1\n"))
	w.u64(uint64(end.revision))
	w.u64(uint64(end.nextSeq))
	w.bytes(last.root.Digest[:])
	end.history = chain(from.history, w.b)
	var r row
	_, err := d.dir.segments.put(content{like: like, write: func(f vfs.File) (int64, error) {
		w := newSegmentWriter(st.id, from, f)
		w.row.end, w.row.flags = end, rowForgotten|rowGivenUp
		var err error
		r, err = w.finish()
		return w.at, err
	}}, func(*directory) (string, error) { return r.name(from), nil })
	if err != nil {
		return nil, err
	}
	g := newSegment(st.id, from, r, d.dir)
	return g, g.check(context.Background(), nil)
}
