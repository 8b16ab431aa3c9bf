package pawl

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
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

	// The ids of the stores: that of the chosen state and, if it is another, that of which
	// the trust file speaks.
	Store        string `json:"store,omitempty"`
	TrustedStore string `json:"trusted_store,omitempty"`

	// What is trusted now. Version is that of From when nothing was given up; otherwise
	// that of a new commit, whose id names From and what was given up for it.
	Root    Root    `json:"root,omitzero"`
	Version Version `json:"version,omitzero"`

	// The commits that were trusted, or found, and are no part of the history any more;
	// 0, 0: none. With a TrustedStore they are those of that store; else their numbers are
	// not used again. Gained tells how many there are that the trust file had not confirmed.
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
	err := checkText("reason", d.Reason, 1024)
	if err == nil && strings.TrimSpace(d.Reason) == "" {
		err = invalid("the reason says nothing")
	}
	if err != nil {
		e := fail("", "", err)
		e.Hint = hintReason
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
