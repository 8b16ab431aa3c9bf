package pawl

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Adopt makes a state that is in the store directory, and that Open refuses, the trusted
// one: exactly that whose disk digest the decision names. It is for what only a person can
// know: that the older copy is all there is, or that the trust file is lost.
//
// A dry run, with Ruling, says what that would lose and gain; without a Digest it is about
// the newest state that is whole. The state may be one that the journal went through: the
// bundle's, or that after any of its commits that are whole.
//
// What was trusted, or found, and is not part of the adopted history, is given up: the
// history goes on with a commit that says so, after their numbers, so that no revision and
// no seq is used again, and View.Contains tells that their receipts are void. Bundle,
// journal, trust file, and files that are not needed any more, are in quarantine/ first.
// All files that the state names are written anew.
//
// When it returns nil, the state is on stable storage and is the trusted one, and the
// audit file says who decided, and why. After any error the store is what it was, or is
// still refused; the same call again goes on. A store that opens has nothing to adopt:
// ErrInvalid.
func Adopt(ctx context.Context, dir, trustDir string, opts *Options, dec Decision) (*Ruling, error) {
	return operate(ctx, "adopt", dir, trustDir, opts, dec, func(d *desk) (*Ruling, error) { return d.adopt(ctx, &dec) })
}

func (d *desk) adopt(ctx context.Context, dec *Decision) (*Ruling, error) {
	r := d.ruling("adopt", dec)
	f := d.found
	v, refusal := d.verdict()
	if refusal == nil && !dec.DryRun { // what is pending may be this decision
		if e := d.settled(); e != nil {
			return nil, e
		}
		f = d.found
		v, refusal = d.verdict()
	}
	if refusal == nil {
		if v == verdictRefuse {
			return nil, &Error{Kind: ErrNotExist, Path: d.at.dir, Hint: hintNotExist, Cause: errorString("there is no store here, and nothing to adopt")}
		}
		done, err := d.done("adopt", dec.Digest, nil)
		if v == verdictClean && f.state != nil && !dec.DryRun && (done || d.trust.newest.confirmed.Digest == dec.Digest) {
			r.Done, r.Root, r.Version = true, d.trust.newest.confirmed, f.stateAt(len(f.walk.steps)).version()
			return r, d.firm()
		}
		e := invalid("the store can be opened: there is nothing to adopt")
		e.Path, e.Hint, e.Cause = d.at.dir, hintAdoptNothing, errors.Join(e.Cause, err)
		return nil, e
	}
	if d.speak && d.trust.newest.ending != "" {
		return nil, refusal // some of it may be gone already
	}
	if f.state == nil || f.bad != nil {
		e := *refusal
		e.Cause, e.Hint = errors.Join(errorString("there is no whole state here that could be adopted"), e.Cause), hintNoState
		return nil, &e
	}
	n, err := d.choose(dec)
	if err != nil {
		return nil, err
	}
	chosen := f.stateAt(n)
	r.Chosen, r.From = f.root, chosen.version()
	if n > 0 {
		r.Chosen = f.walk.steps[n-1].root
	}
	chosen.measure(&d.opts.Limits)
	last, any, err := d.lost(chosen)
	if err != nil {
		return nil, err
	}
	r.weigh(d, chosen, last, any)
	if dec.DryRun {
		r.Damage, err = d.damage(chosen)
		return r, err
	}
	if err := d.unchanged(); err != nil {
		return nil, err
	}
	if err := d.ways(d.at.trust, d.at.dir); err != nil {
		return nil, err
	}
	if e := d.flushable(d.trustDir, d.dir); e != nil {
		return nil, e
	}
	d.rest()
	if r.Damage, err = d.anewFiles(ctx, chosen); err != nil {
		return nil, err
	}
	next := *chosen
	if err := d.spill(&next, f.info); err != nil {
		return nil, err
	}
	return d.enact(r, &next, last, any, dec)
}

// enact carries out what was decided about a state whose files are there.
func (d *desk) enact(r *Ruling, next *state, last top, any bool, dec *Decision) (*Ruling, error) {
	if any {
		var err error
		if next, err = d.goOn(next, r.Event, last); err != nil {
			return nil, err
		}
	}
	line := d.line(r.Event, dec)
	line.Store, line.LostFrom, line.LostTo, line.Chosen = next.id.String(), r.LostFrom, r.LostTo, &r.From
	aside, err := d.previous(next)
	if r.SetAside = append(r.SetAside, aside...); err != nil {
		return nil, err
	}
	line.SetAside = r.SetAside
	root, e := d.authorise(next, dec.Digest, line)
	if e != nil {
		return nil, e
	}
	r.Root, r.Version = root, next.version()
	return r, nil
}

// choose finds the state that a decision names: how many commits of the journal it has.
func (d *desk) choose(dec *Decision) (int, error) {
	f := d.found
	if dec.DryRun && dec.Digest == (Digest{}) {
		return len(f.walk.steps), nil
	}
	if f.root.Digest == dec.Digest {
		return 0, nil
	}
	for i, s := range f.walk.steps {
		if s.root.Digest == dec.Digest {
			return i + 1, nil
		}
	}
	lines, err := d.decided("adopt", dec.Digest)
	if err != nil {
		return 0, err
	}
	for _, line := range lines {
		if line.Pending != nil && *line.Pending == f.root && len(f.walk.steps) == 0 {
			return 0, nil // this decision was cut off just before its last step
		}
	}
	return 0, &Error{Kind: ErrStale, Found: f.newest(), Hint: hintDecide, Cause: fmt.Errorf("no state of %s is here", dec.Digest)}
}

// weigh says what a chosen state loses and gains.
func (r *Ruling) weigh(d *desk, chosen *state, last top, any bool) {
	v := chosen.version()
	r.Store = chosen.id.String()
	if any {
		r.LostFrom, r.LostTo = min(v.Revision+1, last.root.Revision), last.root.Revision
		if f := d.found; last.root.Revision <= v.Revision && f.state != nil && f.state.id == chosen.id {
			r.LostFrom = common(f.stateAt(len(f.walk.steps)), chosen) + 1
		}
	}
	if d.speak && d.trust.newest.store == chosen.id && v.Revision > r.Trusted.Revision {
		if ok, err := chosen.holds(Version{r.Trusted.Revision, d.trust.newest.history}); ok && err == nil || r.Trusted == (Root{}) {
			r.Gained = v.Revision - r.Trusted.Revision
		}
	}
	if d.speak && d.trust.newest.store != chosen.id { // none of what that store had was ever in this one
		t := &d.trust.newest
		r.TrustedStore, r.LostFrom, r.LostTo = t.store.String(), 0, max(t.confirmed.Revision, t.pending.Revision)
		if r.LostTo > 0 {
			r.LostFrom = 1
		}
	}
}

// common is the last revision up to which two histories are the same, as far as can be told.
func common(a, b *state) Revision {
	n := sort.Search(int(min(a.version().Revision, b.version().Revision)), func(i int) bool {
		x, okX, errX := a.historyAt(Revision(i) + 1)
		y, okY, errY := b.historyAt(Revision(i) + 1)
		return errX == nil && errY == nil && (okX != okY || x != y)
	})
	return Revision(n)
}

// damage tells what cannot be read of the files that a state names.
func (d *desk) damage(st *state) (damage []Damage, err error) {
	ev := evidence{state: st}
	defer ev.close()
	if err := ev.openFiles(d.dir); exhausted(err) {
		return nil, fail("", d.at.dir, err)
	}
	err = ev.verifyFiles(d.ctx, 0, ev.filesSize(), nil)
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrDamaged {
		return e.Damage, nil
	}
	return nil, err
}

// anewFiles writes the files that a state names anew: whoever put them there may not have
// made them durable. One that is damaged or missing is told of, and left as it is.
func (d *desk) anewFiles(ctx context.Context, st *state) (damage []Damage, err error) {
	again := func(k *keptFile, size int64, check func() error) error {
		err := check()
		k.rest() // what is open is not replaced everywhere
		if err == nil {
			_, err = k.in.put(content{like: d.found.info, write: func(to vfs.File) (int64, error) {
				from, _, err := k.in.open(k.name)
				if err != nil {
					return 0, err
				}
				defer from.Close()
				return size, pieces(ctx, from, size, func(b []byte, at int64) error { return writeFull(to, b, at) })
			}}, func(*directory) (string, error) { return k.name, nil })
			if err == nil {
				err = check()
			}
		}
		k.rest() // there may be many
		var e *Error
		if errors.As(err, &e) && e.Kind == ErrDamaged {
			damage = append(damage, e.Damage...)
			return nil
		}
		if err != nil {
			return fail("", k.path(), err)
		}
		return nil
	}
	for _, g := range st.sealed {
		if err := again(&g.file, g.size, func() error { return g.check(ctx, nil) }); err != nil {
			return damage, err
		}
	}
	done := map[string]bool{}
	for _, name := range st.partNames() {
		p := st.parts[name]
		if p.file == nil || done[p.file.name] {
			continue
		}
		done[p.file.name] = true
		check := func() error { return plainNil(p.read(ctx, func([]byte) {})) }
		if err := again(p.file, int64(p.ref.size), check); err != nil {
			return damage, err
		}
	}
	return damage, nil
}
