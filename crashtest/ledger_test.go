package crashtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestLedger runs scripts of claims: "b" begins a label, "a" acknowledges it, "d"
// ends it in doubt, "n" ends it as certainly not done, "o" observes it.
func TestLedger(t *testing.T) {
	for _, l := range []struct{ script, want string }{
		{"o", ""},
		{"b1 a1 o1", ""},
		{"b1 a1 b2 o1", ""},
		{"b1 a1 b2 o2", ""},
		{"b1 a1 b2 d2 o1 b3 a3 o3", ""},
		{"b1 a1 b2 d2 o2 o2", ""},
		{"b1 a1 b2 n2 o1", ""},
		{"b1 a1 b2 d2 b3 d3 o3", ""},
		{"b1 a1 o", "K1"},            // the acknowledged state is gone
		{"b1 a1 b2 a2 o1", "K1"},     // relapse behind an acknowledgement
		{"b1 a1 b2 o2 o1", "K1"},     // relapse behind an observation
		{"b1 a1 b2 o1 o2", "K4"},     // a recovery had ruled it out
		{"b1 a1 b2 n2 o2", "K4"},     // an error had ruled it out
		{"b1 a1 o9", "K2"},           // from nowhere
		{"b1 a1 b2 d2 b3 a3", "K10"}, // success in doubt
		{"b1 b1", "twice"},
		{"a1", "not open"},
	} {
		led, first := emptyLedger, error(nil)
		for _, word := range strings.Fields(l.script) {
			var err error
			switch label := word[1:]; word[0] {
			case 'b':
				led, err = led.begin(label)
			case 'a':
				led, err = led.end(label, nil, false)
			case 'd':
				led, err = led.end(label, errors.New("unknown"), false)
			case 'n':
				led, err = led.end(label, errors.New("no"), true)
			case 'o':
				led, err = led.observe(label)
			}
			if first == nil {
				first = err
			}
		}
		if got := fmt.Sprint(first); (first == nil) != (l.want == "") || !strings.Contains(got, l.want) {
			t.Errorf("%s: %v, want %q", l.script, first, l.want)
		}
	}
}

func TestLedgerSum(t *testing.T) {
	a, _ := emptyLedger.begin("x")
	b, _ := emptyLedger.begin("y")
	c, _ := a.end("x", nil, false)
	d, _ := a.observe("x")
	e, _ := a.end("x", errors.New("?"), false)
	if a.sum() == b.sum() || a.sum() == c.sum() || a.sum() == e.sum() {
		t.Error("ledgers that allow different things have one sum")
	}
	if c.sum() != d.sum() {
		t.Error("ledgers that allow the same have different sums")
	}
}
