package crashtest

import (
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

func TestTokenRoundTrip(t *testing.T) {
	for _, token := range []string{
		"posix-minimal/-",
		"posix-minimal/p12.37/k4/-",
		"ext4-ordered,100/!4.eio+k7/-",
		"ordered-torn/k0/!12.revert",
		"posix-minimal/!116.revert+p128.8/!3.short",
	} {
		p, budget, legs, err := parseToken(token)
		if err != nil {
			t.Errorf("%s: %v", token, err)
			continue
		}
		x := &explorer{plan: &plan{}, profile: p, cut: simfs.CutOptions{Budget: budget}}
		var it *item
		for i, l := range legs {
			it = &item{parent: it, fault: l.fault}
			if i > 0 {
				it.step = legs[i-1].step
			}
		}
		if got := x.token(it); got != token {
			t.Errorf("%s became %s", token, got)
		}
	}
	for _, token := range []string{"", "posix-minimal", "nothing/-", "posix-minimal/p1", "posix-minimal/x/-", "posix-minimal/p1.2/p3.4",
		"posix-minimal,x/-", "posix-minimal/!x.eio+k1/-", "posix-minimal/!1+k1/-", "posix-minimal/k1x/-", "posix-minimal//-"} {
		if _, _, _, err := parseToken(token); err == nil {
			t.Errorf("%q was taken for a token", token)
		}
	}
}

// TestReplay: the token of a failure leads to the same failure, and its report says
// what the failure is.
func TestReplay(t *testing.T) {
	for _, m := range toyMutants {
		x := explorerFor(simfs.PosixMinimal, func(c *C) { exploreToy(c, m) })
		f := x.explore()
		if f == nil {
			t.Fatalf("%s: not caught", m)
		}
		report := x.report("TestX", f)
		_, rest, ok := strings.Cut(report, "-crash.replay='")
		token, _, _ := strings.Cut(rest, "'")
		if !ok {
			t.Fatalf("%s: no token in\n%s", m, report)
		}
		p, _, legs, err := parseToken(token)
		if err != nil {
			t.Fatal(err)
		}
		y := explorerFor(p, func(c *C) { exploreToy(c, m) })
		_, broken, err := y.replay(legs)
		if err != nil || broken == nil {
			t.Fatalf("%s: the replay of %s gave %v, %v", m, token, broken, err)
		}
		if !strings.HasPrefix(report, "crashtest: "+broken.Error()) {
			t.Errorf("%s: the replay broke %v, the report says\n%s", m, broken, report)
		}
		if taken(t, y, legs) > taken(t, x, f.item.legs()) {
			t.Errorf("%s: shrinking made the history worse", m)
		}
	}
}

// taken counts what the power cuts of a history took.
func taken(t *testing.T, x *explorer, legs []leg) (n int) {
	t.Helper()
	acts, _, err := x.replay(legs)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range legs[:len(legs)-1] {
		if l.step.disk != killed {
			n += acts[i].run.points[l.step.point].machine.Cut(x.cut).Disk(l.step.disk).Damage()
		}
	}
	return n
}

func TestReplayOfWhatIsNot(t *testing.T) {
	x := explorerFor(simfs.PosixMinimal, func(c *C) { exploreToy(c, "") })
	for _, token := range []string{"posix-minimal/k9999/-", "posix-minimal/p3.9999/-"} {
		_, _, legs, err := parseToken(token)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := x.replay(legs); err == nil {
			t.Errorf("%s was replayed", token)
		}
	}
}
