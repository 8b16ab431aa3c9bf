package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
)

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
			if most = max(most, n); n > mostNumber {
				return 0, &Error{Kind: ErrUnauthorized, Path: filepath.Join(d.at.dir, name), Hint: hintNumbers, Cause: errorString("it claims an epoch that no store comes to")}
			}
		}
	}
	if most > mostNumber {
		return 0, &Error{Kind: ErrUnauthorized, Path: d.bundlePath(), Hint: hintNumbers, Cause: errorString("it claims an epoch that no store comes to")}
	}
	return most + 1, nil
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
