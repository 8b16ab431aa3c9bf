package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What an operator decides about a store that pawl by itself does not: Adopt, Restore,
// Quarantine, Remove, Rename. Each holds the locks, names by digest what it is about, is
// refused when that is not there any more, destroys nothing but what it says it does, and
// writes a line into the audit file.

// Decision is what an operator has decided, and why.
type Decision struct {
	// Digest names what the decision is about: of Adopt the disk digest of the state that
	// is to be trusted, of Restore, Remove and Rename that of the state that the trust file
	// confirms (zero: that of a store that nothing was committed to, or of none), of
	// Quarantine the SHA-256 of the file. Where it is not that, nothing is done: ErrStale.
	Digest Digest

	// Reason is for the audit file; it must not be empty.
	Reason string

	// DryRun tells what would be done, and does nothing but settle an intent where Open
	// would. Digest and Reason may be left out.
	DryRun bool
}

// Ruling says what an operator's function has done or, as a dry run, would do.
type Ruling struct {
	Event  string `json:"event"` // "adopt", "restore", "quarantine", "remove", "rename"
	DryRun bool   `json:"dry_run,omitempty"`
	Done   bool   `json:"done,omitempty"` // it had been done before, and nothing was left to do

	Trusted Root    `json:"trusted,omitzero"` // what the trust file confirmed before
	Pending Root    `json:"pending,omitzero"` // its intent, which is given up
	Chosen  Root    `json:"chosen,omitzero"`  // the state that was found or, in a backup, has no root of its own
	From    Version `json:"from,omitzero"`    // its version

	// What is trusted now. Version is that of From when nothing was given up; otherwise
	// that of a new commit, whose id names From and what was given up for it.
	Root    Root    `json:"root,omitzero"`
	Version Version `json:"version,omitzero"`

	// The commits that were trusted, or found, and are no part of the history any more;
	// 0, 0: none. Their numbers are not used again. Gained tells how many there are that the
	// trust file had not confirmed.
	LostFrom Revision `json:"lost_from,omitempty"`
	LostTo   Revision `json:"lost_to,omitempty"`
	Gained   Revision `json:"gained,omitempty"`

	SetAside []string `json:"set_aside,omitempty"` // files that are in quarantine/ now
	Removed  []string `json:"removed,omitempty"`
	Left     []string `json:"left,omitempty"`   // what Remove has left: pawl has not made it
	Damage   []Damage `json:"damage,omitempty"` // what of the chosen state cannot be read
}

// ready checks a decision that is to be carried out.
func (d *Decision) ready() *Error {
	if d.DryRun {
		return nil
	}
	if err := checkText("reason", d.Reason, 1024); err != nil {
		e := fail("", "", err)
		e.Hint = hintReason
		return e
	}
	return nil
}

// desk is a store that an operator's function holds: locked, read, and not settled.
type desk struct {
	*Store
	ctx   context.Context
	found *found
	fresh bool   // it may be made where there is none
	dry   bool   // nothing is to be made
	speak bool   // the trust file is there and whole
	mute  *Error // why it is not, when it is there
	used  []*state
}

// rest closes all files that were read: some systems replace none that is open.
func (d *desk) rest() {
	for _, st := range d.used {
		st.rest()
	}
}

// use has the files of a state closed at the end.
func (d *desk) use(st *state) *state {
	d.used = append(d.used, st)
	return st
}

// hold takes the locks of a store in whatever state it is. What it took is released by
// the caller, on error too.
func hold(ctx context.Context, dir, trustDir string, opts *Options, fresh, dry bool) (*desk, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, err
	}
	at, err := locate(vfs.FromContext(ctx), dir, trustDir, &o)
	if err != nil {
		return nil, err
	}
	d := &desk{Store: newStore(at, o), ctx: ctx, fresh: fresh, dry: dry}
	d.shelf = map[string]*keptFile{}
	if err := d.lock(ctx); err != nil {
		return d, err
	}
	return d, d.read()
}

func (d *desk) lock(ctx context.Context) (err error) {
	deadline := time.Now().Add(d.opts.LockWait)
	if err := d.openDirs(); err != nil {
		return err
	}
	if err := d.swapped(); err != nil {
		return err
	}
	if d.trustDir == nil {
		if d.dir == nil && !d.fresh {
			return &Error{Path: d.at.dir, Kind: ErrNotExist, Hint: hintNotExist, Cause: fmt.Errorf("there is no %s", printable(d.at.trustPath()))}
		}
		if d.dry {
			return nil
		}
		if d.trustDir, err = d.makeDir(d.at.trust, d.at.name+"."+tempPrefix); err != nil {
			return err
		}
	}
	if d.trustLock, err = d.takeLock(ctx, d.trustDir, d.at.name+lockSuffix, deadline); err != nil {
		return err
	}
	d.joined = true
	if d.dir == nil { // its owner may have made it while this process waited
		if err := d.openStore(); err != nil {
			return err
		}
	}
	if d.dir != nil {
		if d.storeLock, err = d.takeLock(ctx, d.dir, lockName, deadline); err != nil {
			return err
		}
	}
	return nil
}

// read reads what is there.
func (d *desk) read() (err error) {
	defer func() {
		if d.found != nil && d.found.state != nil {
			d.use(d.found.state)
			d.shelf = d.found.state.keptFiles() // which nothing that fails here may remove
		}
	}()
	if d.trustDir == nil {
		d.found, err = readStore(d.dir, &d.opts.Limits)
		return err
	}
	d.trust = &trustFile{dir: d.trustDir, name: d.at.name + trustSuffix}
	err = d.trust.read()
	var e *Error
	switch {
	case err == nil, d.trust.newest.ending != "":
		d.speak, d.mute = true, nil
		if err := d.spelled(d.trust.info); err != nil {
			return err
		}
		if err := d.ownTrust(d.trust.info, d.trust.path(), "trust file"); err != nil {
			return err
		}
	case err == errNoTrust:
		if err := d.unlike(); err != nil {
			return err
		}
	case errors.As(err, &e) && e.Kind == ErrTrustDamaged:
		d.mute = e
	default:
		return fail("", d.trust.path(), err)
	}
	d.found, err = readStore(d.dir, &d.opts.Limits)
	return err
}

// verdict is what Open would make of the store.
func (d *desk) verdict() (verdict, *Error) {
	switch {
	case d.speak && d.trust.newest.ending != "":
		return verdictRefuse, fail("", d.trust.path(), ending(d.trust.newest.ending))
	case d.speak:
		v, e := decide(&d.trust.newest, d.found)
		if e != nil {
			e = fail("", filepath.Join(d.at.dir, d.found.culprit(&d.trust.newest)), d.otherStore(d.trust.newest.path, e))
		}
		return v, e
	case d.mute != nil:
		return verdictRefuse, fail("", d.trust.path(), d.mute)
	}
	name := d.found.other
	if d.found.info != nil {
		name = bundleName
	}
	if err := d.noTrust(name); err != nil {
		return verdictRefuse, fail("", d.at.dir, err)
	}
	return verdictRefuse, nil
}

// settled settles the store if Open would, so that a decision is about a state that is
// the only one.
func (d *desk) settled() (e *Error) {
	if v, e := d.verdict(); e != nil || v != verdictLanded && v != verdictNotLanded {
		return nil
	}
	if d.recovery, e = d.settle(opening); e != nil {
		return e
	}
	if err := d.log.close(); err != nil {
		return fail("", d.journalPath(), err)
	}
	if err := d.read(); err != nil {
		return fail("", d.at.dir, err)
	}
	return nil
}

// confirms holds a decision against what the trust file confirms.
func (d *desk) confirms(dec *Decision) *Error {
	now := Root{}
	if d.speak {
		now = d.trust.newest.confirmed
	}
	if dec.DryRun || dec.Digest == now.Digest {
		return nil
	}
	if d.mute != nil && dec.Digest == (Digest{}) {
		return nil
	}
	e := &Error{Kind: ErrStale, Path: d.trust.path(), Trusted: now, Hint: hintDecide,
		Cause: fmt.Errorf("the decision is about %s, and the trust file confirms another state", dec.Digest)}
	switch {
	case dec.Digest == (Digest{}):
		e.Cause = errorString("the trust file confirms a state, and the decision names none")
	case now == (Root{}):
		e.Cause = fmt.Errorf("the decision is about %s, and the trust file confirms no state", dec.Digest)
	}
	return e
}

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

// epoch is one that no bundle or journal here has had.
func (d *desk) epoch() (uint64, error) {
	most := d.found.root.Epoch
	if d.found.head != nil {
		most = max(most, d.found.head.epoch)
	}
	if d.speak {
		most = max(most, d.trust.newest.confirmed.Epoch, d.trust.newest.pending.Epoch)
	}
	names, err := d.dir.Names()
	if err != nil {
		return 0, fail("", d.at.dir, err)
	}
	for _, name := range names {
		if n, ok := journalEpoch(name); ok {
			most = max(most, n)
		}
	}
	return most + 1, nil
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
	c := Change{ID: fmt.Sprintf("%s %d %s over %d %s", event, v.Revision, v.Digest, last.root.Revision, last.root.Digest)}
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
	}}, func() string { return r.name(from) })
	if err != nil {
		return nil, err
	}
	g := newSegment(st.id, from, r, d.dir)
	return g, g.check(context.Background(), nil)
}

// authorise makes next, whose files are there, the trusted state. Until its last step the
// verdict about the store is what it was, or a refusal; after it, it is clean:
//
//	O1  what is to go is in quarantine; the files that the new bundle names are durable
//	O2  the audit line: it may be there twice, or of a decision that was cut off here, and
//	    is never missing
//	O3  intent {confirmed: what was, pending: new}     (with a trust file of this store)
//	O4  the new bundle, in place of what was there
//	O5  the trust file that confirms the new state
//	O6  both are read back
//
// Without a trust file of this store, whatever comes before O5 is refused.
func (d *desk) authorise(next *state, replaced Digest, audit auditLine) (Root, *Error) {
	epoch, err := d.epoch()
	if err != nil {
		return Root{}, fail("", d.at.dir, err)
	}
	next.epoch, next.replaced = epoch, replaced
	next.measure(&d.opts.Limits)
	raw := encodeBundle(next)
	if int64(len(raw)) > d.opts.Limits.Bundle {
		return Root{}, overLimit(tooLarge("the bundle would have %d bytes, and Limits.Bundle is %d", len(raw), d.opts.Limits.Bundle))
	}
	d.use(next)
	got, _, err := decodeBundle(raw, d.dir)
	if err != nil || got.version() != next.version() {
		return Root{}, &Error{Kind: ErrDamaged, Hint: hintMemory, Cause: errors.Join(errorString("the new bundle does not read back"), err)}
	}
	root := Root{Revision: next.version().Revision, Epoch: epoch, Digest: sha256.Sum256(raw)}
	if err := d.ctx.Err(); err != nil { // from here on it runs to its end
		return Root{}, fail("", d.at.dir, ctxError(d.ctx))
	}
	last := trustRecord{store: next.id, confirmed: root, history: next.version().Digest, next: next.nextSeq(), path: quotePath(d.at.dir), closed: true}
	own := d.speak && d.trust.newest.store == next.id
	audit.Pending = &root
	if err := d.note(&audit); err != nil {
		return Root{}, fail("", "", err)
	}
	if own {
		intent := d.trust.newest
		intent.next = max(intent.next, next.nextSeq())
		intent.pending, intent.commits, intent.ids, intent.closed, intent.ending = root, 0, nil, false, ""
		if err := d.trust.replace(intent, d.unchanged); err != nil {
			return Root{}, fail("", d.trust.path(), err)
		}
	}
	d.trust.disown() // an open file is not replaced everywhere
	if _, err := d.dir.install(bundleName, content{b: raw}, d.still); err != nil {
		return Root{}, fail("", d.bundlePath(), err)
	}
	switch {
	case own:
		err = d.trust.replace(last, d.still)
	case d.speak || d.mute != nil:
		last.sequence = 1
		_, err = d.trustDir.install(d.trust.name, content{b: makeRing(last)}, d.still)
	default:
		err = d.trust.create(last)
	}
	d.trust.disown()
	if err != nil {
		return Root{}, fail("", d.trust.path(), err)
	}
	if err := d.read(); err != nil {
		return Root{}, fail("", d.at.dir, err)
	}
	if v, e := d.verdict(); e != nil || v != verdictClean || d.trust.newest.confirmed != root {
		return Root{}, &Error{Kind: ErrStale, Path: d.bundlePath(), Hint: hintDecide, Cause: errors.Join(errorString("what was put in place is not what is there now"), plainNil(e))}
	}
	return root, nil
}

// decided finds, in the audit file, the states that a decision has led to: which was the
// pending one, and what was chosen. It is in the trust directory, so it says truly what was
// decided under these locks; what the store directory says of itself proves nothing.
func (d *desk) decided(event string, digest Digest) (lines []auditLine, err error) {
	if d.trustDir == nil {
		return nil, nil
	}
	const most = 4 << 20 // of the end of the file
	f, err := d.trustDir.Open(d.at.name + auditSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail("", filepath.Join(d.at.trust, d.at.name+auditSuffix), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(info.Size, most))
	if err := readAt(f, b, info.Size-int64(len(b))); err != nil {
		return nil, err
	}
	for text := range bytes.Lines(b) {
		var line auditLine
		if json.Unmarshal(text, &line) == nil && line.Event == event && line.Digest != nil && *line.Digest == digest {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// done reports whether the store holds what a decision has led to.
func (d *desk) done(event string, digest Digest, chosen *Version) (bool, error) {
	if v, e := d.verdict(); e != nil || v != verdictClean {
		return false, nil
	}
	lines, err := d.decided(event, digest)
	for _, line := range lines {
		if line.Pending != nil && *line.Pending == d.trust.newest.confirmed && (chosen == nil || line.Chosen != nil && *line.Chosen == *chosen) {
			return true, err
		}
	}
	return false, err
}

// firm makes sure that what is there is durable, before somebody hears that a decision was
// carried out: whoever did so may not have come to that.
func (d *desk) firm() error {
	if err := d.trust.replace(d.trust.newest, d.still); err != nil {
		return fail("", d.trust.path(), err)
	}
	d.trust.disown()
	return d.read()
}

// ways makes the directories, or makes the names on the way to them durable: whoever made
// them may not have come to that.
func (d *desk) ways(dirs ...string) error {
	for _, dir := range dirs {
		if err := makeAll(d.at.fsys, dir); err != nil {
			return fail("", dir, err)
		}
	}
	return nil
}

// unchanged says that locks, trust file and bundle are what they were when they were read.
func (d *desk) unchanged() error {
	if err := d.still(); err != nil {
		return err
	}
	now, err := d.dir.Lstat(bundleName)
	switch {
	case err == nil && d.found.info == nil, err == nil && !unchanged(now, *d.found.info), errors.Is(err, fs.ErrNotExist) && d.found.info != nil:
		return &Error{Kind: ErrStale, Path: d.bundlePath(), Hint: hintDecide, Cause: errorString("the bundle was replaced or changed meanwhile")}
	}
	return ignoreNotExist(err)
}

// still says that the locks are those that the next opener will find.
func (d *desk) still() error {
	if e := d.held(); e != nil {
		return e
	}
	return nil
}

// note writes the audit line. Unlike a settlement, no decision is carried out without one.
func (d *desk) note(line *auditLine) error {
	line.Time, line.Process = d.at.fsys.Now().UTC(), d.at.fsys.Owner()
	if err := appendAudit(d.trustDir, d.at.name+auditSuffix, *line); err != nil {
		return fail("", filepath.Join(d.at.trust, d.at.name+auditSuffix), err)
	}
	return nil
}

// operate runs an operator's function under the locks of a store.
func operate(ctx context.Context, op, dir, trustDir string, opts *Options, dec Decision, do func(*desk) (*Ruling, error)) (r *Ruling, err error) {
	if e := dec.ready(); e != nil {
		return nil, fail(op, dir, e)
	}
	if ctx.Err() != nil {
		return nil, fail(op, dir, ctxError(ctx))
	}
	d, err := hold(ctx, dir, trustDir, opts, op == "restore", dec.DryRun)
	if err == nil {
		r, err = do(d)
	}
	if d != nil {
		d.rest()
		err = errors.Join(err, d.release())
	}
	if err != nil {
		return nil, fail(op, dir, withoutOutcome(unjoined(err)))
	}
	return r, nil
}

// ruling is what there is to say before anything is done.
func (d *desk) ruling(event string, dec *Decision) *Ruling {
	r := &Ruling{Event: event, DryRun: dec.DryRun}
	if d.speak {
		r.Trusted, r.Pending = d.trust.newest.confirmed, d.trust.newest.pending
	}
	return r
}

// line begins an audit line about a decision.
func (d *desk) line(event string, dec *Decision) auditLine {
	line := auditLine{Event: event, Reason: dec.Reason, Digest: &dec.Digest}
	if d.speak {
		line.Store, line.Confirmed = d.trust.newest.store.String(), d.trust.newest.confirmed
	}
	return line
}
