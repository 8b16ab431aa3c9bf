package effect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/seed-5cdcd42d/pawl"
)

// Errors for errors.Is. Each comes as an *Error, which says which effect it is about. An
// error of the store itself is wrapped as it is: pawl.ErrLocked, pawl.ErrInDoubt and the
// others match.
var (
	// ErrUnsettled: the effect was begun and nobody knows whether it happened. It is in
	// the store and was not repeated. Parked, it waits for Settle, for Release, Resolve or
	// Cancel; where Idempotent allows it, the next call carries it out again.
	ErrUnsettled = errors.New("it was begun, and whether it happened is not known")

	// ErrResult: the effect happened, and its recorded result cannot be read as what is
	// asked for: another type was recorded, or a handler or an operator gave one that is no
	// JSON. Events has its bytes.
	ErrResult = errors.New("it is done, and its recorded result is not of the type that is asked for")

	// ErrNotDone: the attempt certainly had no effect, and neither had one before. It is
	// in the store, and the next call of Do makes the next attempt.
	ErrNotDone = errors.New("it certainly did not happen")

	// ErrFailed: the effect certainly did not happen and is not tried any more. That is
	// recorded, and every later call of Do says the same.
	ErrFailed = errors.New("it failed for good")

	// ErrCancelled: somebody decided that the effect is not to be carried out any more.
	// That is recorded, and every later call of Do says the same.
	ErrCancelled = errors.New("it was cancelled")

	// ErrKeyReused: an effect with this key and another destination or body is known.
	// Nothing was changed, and nothing carried out.
	ErrKeyReused = errors.New("the key belongs to another request")

	// ErrUnknown: what is recorded of the effect is not whole, contradicts itself or the
	// history, or is of a scheme that this program does not know. It is kept as it is, and
	// nothing is done with it.
	ErrUnknown = errors.New("its record is not understood")

	// ErrNotFound: no unsettled effect has this digest.
	ErrNotFound = errors.New("there is no such unsettled effect")

	// ErrRefused: the effect is not in a state, or not at the epoch, in which an operator
	// may do that. Nothing was changed.
	ErrRefused = errors.New("refused")
)

// Error is the type of every error that this package returns.
type Error struct {
	Op          string // "do", "enqueue", "release", …
	Key         string
	Destination string
	Digest      pawl.Digest // the identity; zero when not known
	State       State       // what is recorded now; "" when not known
	Attempt     int         // the last one that was begun
	Epoch       uint64
	Kind        error // one of the errors above; nil for an error of the store alone
	Cause       error // what the function, or the store, said; may be nil
}

// Error is text on one line, in which nothing that came from outside can act on a
// terminal.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "effect: %s", e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %q", e.Key)
	}
	if e.Destination != "" {
		fmt.Fprintf(&b, " to %q", e.Destination)
	}
	if e.Digest != (pawl.Digest{}) {
		fmt.Fprintf(&b, " (%.19s…)", e.Digest.String())
	}
	if e.Kind != nil {
		fmt.Fprintf(&b, ": %v", e.Kind)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %s", oneLine(e.Cause.Error()))
	}
	if hint := e.Hint(); hint != "" {
		fmt.Fprintf(&b, ". %s", hint)
	}
	return b.String()
}

// Hint says what to do about it; "" where the error says so.
func (e *Error) Hint() string {
	switch {
	case e.Kind == ErrUnsettled && e.State == Parked:
		return "Find out whether it happened; then release, resolve or cancel it: pawl effects shows how it is called"
	case e.Kind == ErrUnsettled:
		return "Do the same again: it is decided then, or parked"
	case e.Kind == ErrResult:
		return "Ask for the type that was recorded: pawl effects show has the result"
	case e.Kind == ErrNotDone:
		return "Do the same again, when the cause is gone"
	case e.Kind == ErrKeyReused:
		return "Use a new key for a new request"
	case e.Kind == ErrUnknown:
		return "Nothing was done with it: pawl effects and pawl cat show what there is"
	case e.Kind == ErrNotFound || e.Kind == ErrRefused:
		return "Look at it again: pawl effects"
	}
	return ""
}

func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Cause != nil {
		errs = append(errs, contained{e.Cause})
	}
	return errs
}

// contained keeps what is said of one effect from being taken for another: a function that
// returns the error of another Do has not said with it that it did nothing itself.
type contained struct{ err error }

var kinds = []error{ErrUnsettled, ErrResult, ErrNotDone, ErrFailed, ErrCancelled, ErrKeyReused, ErrUnknown, ErrNotFound, ErrRefused, pawl.ErrForgotten}

func (c contained) Error() string { return c.err.Error() }

func (c contained) Is(target error) bool {
	return !slices.Contains(kinds, target) && errors.Is(c.err, target)
}

func (c contained) As(target any) bool { return errors.As(c.err, target) }

// oneLine makes text harmless: it is shown to people, and may come from anywhere.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || unicode.Is(unicode.Cf, r) || r != ' ' && unicode.IsSpace(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(strings.ReplaceAll(s, "\n", "; "), string(unicode.ReplacementChar)))
}

// mostError is how much of an error's text is recorded.
const mostError = 1000

// recorded is the text of an error as it is kept in the store.
func recorded(err error) string {
	if err == nil {
		return ""
	}
	s := strings.ToValidUTF8(err.Error(), string(unicode.ReplacementChar))
	if len(s) > mostError {
		s = strings.ToValidUTF8(s[:mostError], "") + "…"
	}
	return s
}

// failure is an error of which it is known what it says about the effect.
type failure struct {
	err       error
	permanent bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// NotDone marks an error of a function, or the answer of a Settle: it certainly did not
// happen, and nothing that is still under way can make it happen. So it may be tried
// again. A connection that was refused is such an error; a time-out is not. err may be
// nil. The mark may be wrapped; of several errors in one, as by errors.Join, each needs one.
//
// Without such a mark every error leaves it open whether it happened.
func NotDone(err error) error { return mark(err, false) }

// Permanent is NotDone for an effect that is not to be tried again: the other side has
// refused it. It has failed for good.
func Permanent(err error) error { return mark(err, true) }

func mark(err error, permanent bool) error {
	if err == nil {
		err = errors.New("no reason was given") // and not ErrNotDone, which Do may not agree with
	}
	return &failure{err, permanent}
}
