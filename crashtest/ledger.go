package crashtest

import (
	"fmt"
	"slices"
	"strings"
)

// ledger is what a history has claimed. It is never changed, only replaced, so
// that every crash point can keep its own.
type ledger struct {
	// open lists the states that may be found: the newest acknowledged or observed
	// one, and those begun after it that may have happened.
	open  []string
	doubt bool  // an End was in doubt, and nothing was observed since
	past  *mark // all that was claimed, newest first; for messages only
}

type mark struct {
	text   string
	label  string
	before *mark
}

// none is the label of "nothing yet": what may be observed when Setup made no
// claim.
const none = ""

var emptyLedger = &ledger{open: []string{none}}

func (l *ledger) note(label, format string, args ...any) *mark {
	return &mark{fmt.Sprintf(format, args...), label, l.past}
}

func (l *ledger) begin(label string) (*ledger, error) {
	n := &ledger{open: append(l.open[:len(l.open):len(l.open)], label), doubt: l.doubt, past: l.note(label, "begin %s", label)}
	for m := l.past; m != nil; m = m.before {
		if m.label == label {
			return n, fmt.Errorf("the test began %q twice: every change needs a label of its own", label)
		}
	}
	return n, nil
}

func (l *ledger) end(label string, err error, certain bool) (*ledger, error) {
	i := slices.Index(l.open, label)
	if i < 0 {
		return l, fmt.Errorf("the test ended %q, which is not open", label)
	}
	switch {
	case err == nil && l.doubt:
		return l, fmt.Errorf("K10: %q succeeded while an earlier change was in doubt", label)
	case err == nil:
		return &ledger{open: []string{label}, past: l.note(label, "acknowledged %s", label)}, nil
	case certain:
		return &ledger{open: slices.Delete(slices.Clone(l.open), i, i+1), doubt: l.doubt, past: l.note(label, "certainly not %s (%v)", label, err)}, nil
	}
	return &ledger{open: l.open, doubt: true, past: l.note(label, "in doubt about %s (%v)", label, err)}, nil
}

func (l *ledger) observe(label string) (*ledger, error) {
	n := &ledger{open: []string{label}, past: l.note(label, "observed %s", label)}
	if slices.Contains(l.open, label) {
		return n, nil
	}
	may := fmt.Sprintf("%q", l.open)
	if label == none {
		return n, fmt.Errorf("K1: found nothing, where there may be one of %s", may)
	}
	for m := l.past; m != nil; m = m.before {
		if m.label != label {
			continue
		}
		if strings.HasPrefix(m.text, "begin") || strings.HasPrefix(m.text, "certainly") || strings.HasPrefix(m.text, "in doubt") {
			return n, fmt.Errorf("K4: found %q, which an earlier recovery, or an error, had ruled out; it may be one of %s", label, may)
		}
		return n, fmt.Errorf("K1: found %q, which newer states had replaced; it may be one of %s", label, may)
	}
	return n, fmt.Errorf("K2: found %q, which nobody ever submitted; it may be one of %s", label, may)
}

// sum covers what the rest of an exploration depends on.
func (l *ledger) sum() uint64 {
	h := uint64(14695981039346656037)
	add := func(b byte) { h = (h ^ uint64(b)) * 1099511628211 }
	for _, s := range l.open {
		for i := 0; i < len(s); i++ {
			add(s[i])
		}
		add(0)
	}
	if l.doubt {
		add(1)
	}
	return h
}

func (l *ledger) history() (lines []string) {
	for m := l.past; m != nil; m = m.before {
		lines = append(lines, m.text)
	}
	slices.Reverse(lines)
	return lines
}
