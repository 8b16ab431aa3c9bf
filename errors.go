package pawl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unicode"
)

// sentinel is a class of error. Where the standard library has a name for the
// same thing, a sentinel matches that too.
type sentinel struct {
	text string
	also error
}

func (s *sentinel) Error() string { return s.text }
func (s *sentinel) Unwrap() error { return s.also }

// Errors of Open and Inspect. Each says why the store is not served; none of
// them changed anything on disk.
var (
	// ErrNotExist: there is no store here, and Options.MustExist asks for one.
	// Matches fs.ErrNotExist.
	ErrNotExist error = &sentinel{"store does not exist", fs.ErrNotExist}

	// ErrLocked: another open of the store, in this process or another, holds its
	// lock and did not give it up within Options.LockWait. With Options.Shared, changes,
	// Lookup, Checkpoint, Verify and Recover say so too.
	ErrLocked error = &sentinel{"store is locked", nil}

	// ErrUntrusted: there are store files, but no trust file that speaks for them.
	ErrUntrusted error = &sentinel{"store files without a trust file", nil}

	// ErrTrustDamaged: there is a trust file, but no record in it is whole.
	ErrTrustDamaged error = &sentinel{"trust file is damaged", nil}

	// ErrTrustBehind: the store descends from the trusted state: the trust file is
	// an older copy of itself.
	ErrTrustBehind error = &sentinel{"trust file is older than the store", nil}

	// ErrMissing: trust names a committed state, and its file is gone or empty.
	ErrMissing error = &sentinel{"committed state is missing", nil}

	// ErrRolledBack: the store directory holds an earlier state of this store than
	// the trusted one.
	ErrRolledBack error = &sentinel{"store was rolled back", nil}

	// ErrForeign: the store directory holds another store's files.
	ErrForeign error = &sentinel{"files belong to another store", nil}

	// ErrUnauthorized: the store directory holds something that no trust record
	// names.
	ErrUnauthorized error = &sentinel{"state is not authorised by the trust file", nil}

	// ErrDamaged: the bytes are not those that were written.
	ErrDamaged error = &sentinel{"store file is damaged", nil}

	// ErrVersion: a file was written by a newer pawl and uses something that this
	// one does not know.
	ErrVersion error = &sentinel{"format is newer than this program", nil}

	// ErrSchema: the state has another schema than Options.Schema: a higher one, or a
	// lower one that nothing here can migrate.
	ErrSchema error = &sentinel{"schema does not fit", nil}

	// ErrUnsettled: a commit was begun, and nobody is there to finish it. Only a Reader,
	// and Watch of a shared Store, say so, which may not settle it: the old state may be behind what was
	// acknowledged, the new one may not be durable.
	ErrUnsettled error = &sentinel{"a commit is not settled", nil}

	// ErrUnsupported: the platform or the file system cannot do what pawl needs.
	// Matches errors.ErrUnsupported.
	ErrUnsupported error = &sentinel{"not supported here", errors.ErrUnsupported}

	// ErrInsecure: the trust directory could not be trusted: others can write to
	// it, or it is the store directory, inside it or above it.
	ErrInsecure error = &sentinel{"trust directory is not safe", nil}
)

// Errors of a change. Every error of Commit and Update matches exactly one of
// ErrNotCommitted and ErrInDoubt; the others say why.
var (
	// ErrNotCommitted: the change certainly did not happen, now or later.
	ErrNotCommitted error = &sentinel{"not committed", nil}

	// ErrInDoubt: the change may or may not have happened. The store takes no
	// commits until Recover, or a new Open, has settled it; Lookup then tells.
	ErrInDoubt error = &sentinel{"in doubt", nil}

	// ErrStale: the state is not the one that Change.Expect names, or the files
	// are no longer those that this Store opened: another writer is ahead.
	ErrStale error = &sentinel{"state has moved on", nil}

	// ErrIDReused: a commit with the same id and other content exists.
	ErrIDReused error = &sentinel{"commit id was used for other content", nil}

	// ErrForgotten: retention has dropped what was asked for (Store.Compact). Of Commit
	// and Update it says that a commit of this id was made long ago; it is not made
	// again, and its receipt is gone.
	ErrForgotten error = &sentinel{"retention has dropped it", nil}

	// ErrTooLarge: a limit of Options.Limits, or of the format, is exceeded.
	ErrTooLarge error = &sentinel{"too large", nil}

	// ErrInvalid: an argument was refused. Matches fs.ErrInvalid.
	ErrInvalid error = &sentinel{"invalid argument", fs.ErrInvalid}

	// ErrClosed: the Store is closed. Matches os.ErrClosed.
	ErrClosed error = &sentinel{"store is closed", os.ErrClosed}
)

// Error is the type of every error that pawl returns. errors.Is finds its Kind,
// its Outcome, and whatever Cause wraps, the operating system's error included.
type Error struct {
	Op   string // "open", "commit", …
	Path string // the file or directory that it is about
	Kind error  // a sentinel of this package; nil for a plain error of the operating system

	// Outcome is ErrNotCommitted or ErrInDoubt in errors of Commit and Update, and
	// nil in all others.
	Outcome error

	Trusted Root // what the trust file names as confirmed; zero when not known
	Pending Root // what it names as pending; zero when nothing is
	Found   Root // what the store directory holds; zero when that could not be told

	Damage []Damage // what cannot be read: of ErrDamaged from a View, and of all that Verify found

	Cause error  // what was seen; may be nil
	Hint  string // what to do next, for a person
}

// Damage is a piece of a file that is not as it was written, and what is lost with it.
type Damage struct {
	Path     string   `json:"path"`
	Offset   int64    `json:"offset"` // of the piece in the file
	Length   int64    `json:"length"`
	Part     string   `json:"part,omitempty"`           // the part whose bytes the file holds
	First    Revision `json:"first_revision,omitempty"` // the commits that the piece is about; 0: none
	Last     Revision `json:"last_revision,omitempty"`
	FirstSeq Seq      `json:"first_seq,omitempty"` // their entries; LastSeq less than FirstSeq: none
	LastSeq  Seq      `json:"last_seq,omitempty"`
	Problem  string   `json:"problem"` // what was seen
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("pawl: ")
	b.WriteString(e.Op)
	if e.Path != "" {
		b.WriteString(" " + printable(e.Path))
	}
	b.WriteString(e.what())
	var evidence []string
	for _, r := range []struct {
		label string
		root  Root
	}{{"trusted", e.Trusted}, {"pending", e.Pending}, {"found", e.Found}} {
		if r.root != (Root{}) {
			evidence = append(evidence, r.label+" "+r.root.short())
		}
	}
	if evidence != nil {
		b.WriteString(" (" + strings.Join(evidence, ", ") + ")")
	}
	if e.Hint != "" {
		b.WriteString(". " + e.Hint)
	}
	return b.String()
}

// what says what happened, in one line: an error within this one adds only what it
// knows, and control characters from names do not reach a terminal.
func (e *Error) what() string {
	var b strings.Builder
	for _, err := range []error{e.Outcome, e.Kind} {
		if err != nil {
			b.WriteString(": " + err.Error())
		}
	}
	if e.Cause != nil {
		b.WriteString(": " + strings.TrimPrefix(oneLine(e.Cause), ": "))
	}
	return b.String()
}

func oneLine(err error) string {
	switch e := err.(type) {
	case *Error:
		return e.what()
	case notYet:
		return oneLine(e.err)
	case slotUnsure:
		return oneLine(e.err)
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\n", "; "), string(unicode.ReplacementChar)))
}

func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Outcome, e.Kind, e.Cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// contained is an error from outside, the caller's function for one. It keeps
// such an error from deciding whether this store's commit happened: another
// store's ErrInDoubt says nothing about this one.
type contained struct{ err error }

func (c contained) Error() string { return c.err.Error() }

func (c contained) Is(target error) bool {
	return target != ErrInDoubt && target != ErrNotCommitted && errors.Is(c.err, target)
}

func (c contained) As(target any) bool {
	if _, ok := target.(**Error); ok {
		return false
	}
	return errors.As(c.err, target)
}

// invalid is an argument that was refused; its message names the argument.
func invalid(format string, args ...any) *Error {
	return &Error{Kind: ErrInvalid, Cause: fmt.Errorf(format, args...)}
}

func tooLarge(format string, args ...any) *Error {
	return &Error{Kind: ErrTooLarge, Cause: fmt.Errorf(format, args...)}
}

// overLimit is the error for a file that is not read because of its size.
func overLimit(e *Error) *Error {
	e.Hint = hintLimit
	return e
}

// fail fills in what the caller of an operation needs to know of an error: which
// operation and file, and, when it is the operating system's, what to try.
func fail(op, path string, err error) *Error {
	e, ok := err.(*Error)
	if !ok {
		e = &Error{Cause: err, Hint: hintOS(err)}
		if errors.Is(err, errors.ErrUnsupported) {
			e.Kind = ErrUnsupported
		}
	}
	if e.Op == "" {
		e.Op = op
	}
	if e.Path == "" {
		e.Path = path
	}
	return e
}

// outcome marks an error with whether the commit happened.
func outcome(which error, e *Error) *Error {
	e.Outcome = which
	if which == ErrInDoubt && e.Hint == "" {
		e.Hint = "Call Recover, or open the store again; then Lookup tells whether the commit happened"
	}
	return e
}
