package effect

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// What a Run knows of the effects of its store. It follows the commits, so that it reads a
// record once for each transition, however many others there are.

// item is an unsettled effect.
type item struct {
	part string
	*record
	due     time.Time // not before
	asks    int       // how often Settle was asked, or the store said no, in a row
	turn    int
	running bool
}

// lane is what waits for one destination, in the order in which it came: enqueued for the
// first time, or back from an attempt that has not settled it.
type lane struct {
	slots int // that are free
	items []*item
	turn  int // of those that come now
}

// refresh brings the items up to a view, or to what the store itself has seen by now.
func (r *runner) refresh(v pawl.View) {
	if own := r.o.store.View(); own.Version().Revision > v.Version().Revision {
		v = own
	}
	at := v.Version().Revision
	if r.whole && at <= r.seen {
		return
	}
	changed, ok := r.changed(v)
	if !ok {
		changed = map[string]bool{}
		for part := range r.items {
			changed[part] = true
		}
		for part := range v.Parts() {
			if strings.HasPrefix(part, partPrefix) {
				changed[part] = true
			}
		}
	}
	r.seen, r.whole = at, true
	for part := range changed {
		r.reload(part, v)
	}
}

// changed are the parts of effects that changed since the last time; false where that cannot
// be told.
func (r *runner) changed(v pawl.View) (map[string]bool, bool) {
	if !r.whole {
		return nil, false
	}
	parts, next := map[string]bool{}, r.seen+1
	for c, err := range v.Commits(r.seen) {
		if err != nil || c.Version.Revision != next {
			return nil, false
		}
		next++
		for _, names := range [][]string{c.Put, c.Deleted} {
			for _, name := range names {
				if strings.HasPrefix(name, partPrefix) {
					parts[name] = true
				}
			}
		}
	}
	return parts, next == v.Version().Revision+1
}

// reload reads one part.
func (r *runner) reload(part string, v pawl.View) {
	old := r.items[part]
	delete(r.again, part)
	b, ok, err := v.Get(part)
	var rec *record
	if err != nil {
		r.tell("unread "+part, "effect: a record cannot be read now", "part", oneLine(part), "error", oneLine(err.Error()))
		r.again[part] = r.at.Add(leastBackoff)
	} else if ok {
		rec, err = decodeRecord(part, b)
	}
	if err != nil && r.again[part].IsZero() {
		r.tell("unknown "+part, "effect: a record is not understood, and is left as it is", "part", oneLine(part), "error", oneLine(err.Error()))
	}
	if rec == nil {
		r.remove(old)
		return
	}
	if old != nil && old.Attempt == rec.Attempt && old.State == rec.State && old.Epoch == rec.Epoch && old.Runner == rec.Runner {
		return
	}
	it := &item{part: part, record: rec}
	if l := r.lanes[rec.Destination]; l != nil {
		it.turn = l.turn
	}
	if old != nil {
		if old.running { // finish reads it again; until then the lane knows it by what it was
			return
		}
		r.remove(old)
	}
	if r.carriers[rec.Destination] == nil {
		r.tell("destination "+rec.Destination, "effect: no handler for a destination, whose effects stay as they are", "destination", oneLine(rec.Destination))
		return
	}
	r.insert(it)
}

// insert puts an item where it waits, and remove takes it away.
func (r *runner) insert(it *item) {
	r.items[it.part] = it
	c := r.carriers[it.Destination]
	if it.State == Parked && c.settle == nil && !c.mayRepeat(it.record) {
		return // until somebody decides
	}
	it.due = it.when(r.at)
	l := r.lanes[it.Destination]
	at, _ := slices.BinarySearchFunc(l.items, it, inOrder)
	l.items = slices.Insert(l.items, at, it)
}

// when is when an effect is due; the zero time: now.
func (r *record) when(at time.Time) time.Time {
	switch {
	case r.owned() && !r.ahead(at):
		return r.Lease
	case !r.owned() && r.waits(at):
		return r.NotBefore
	}
	return time.Time{}
}

func (r *runner) remove(it *item) {
	if it == nil {
		return
	}
	delete(r.items, it.part)
	l := r.lanes[it.Destination]
	if at, ok := slices.BinarySearchFunc(l.items, it, inOrder); ok {
		l.items = slices.Delete(l.items, at, at+1)
	}
}

func inOrder(a, b *item) int {
	return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.Order, b.Order), strings.Compare(a.part, b.part))
}
