package crashtest

import (
	"fmt"
	"testing"
)

// act is one process of a replayed history.
type act struct {
	item *item
	run  *run
}

// replay runs the processes of legs one after the other; the error is that of the
// first broken check. It fails when a crash that legs name does not exist.
func (x *explorer) replay(legs []leg) (acts []act, broken error, err error) {
	it, f := x.prepare()
	if f != nil {
		return nil, f.err, nil
	}
	for i, l := range legs {
		it.fault, it.limit = l.fault, len(legs)-1
		r := x.run(it, start{record: true, log: true})
		acts = append(acts, act{it, r})
		if broken := x.check(it, r); broken != nil || i == len(legs)-1 {
			return acts, broken, nil
		}
		if it, err = x.crashed(it, r, l.step); err != nil {
			return acts, nil, err
		}
	}
	return acts, nil, nil
}

// crashed is the item that one crash of a run makes.
func (x *explorer) crashed(it *item, r *run, s step) (*item, error) {
	if s.point >= len(r.points) {
		return nil, fmt.Errorf("crashtest: there is no crash point %d, only %d: the history is not the recorded one", s.point, len(r.points))
	}
	pt := r.points[s.point]
	child := &item{parent: it, step: s, depth: it.depth + 1, machine: pt.machine, claims: pt.claims}
	if s.disk != killed {
		d := pt.machine.Cut(x.cut).Disk(s.disk)
		if d == nil {
			return nil, fmt.Errorf("crashtest: crash point %d has no disk %d", s.point, s.disk)
		}
		child.machine = d.Machine()
	}
	return child, nil
}

func replayToken(t testing.TB, pl *plan, token string) {
	t.Helper()
	profile, budget, legs, err := parseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	x := newExplorer(pl, profile)
	x.cut.Budget = budget
	acts, broken, err := x.replay(legs)
	if err != nil {
		t.Fatal(err)
	}
	if broken == nil {
		t.Logf("crashtest: every check holds in this history\n%s", x.story(acts))
		return
	}
	t.Fatalf("crashtest: %v\n\n%s", broken, x.story(acts))
}

// legs are those of an item's history.
func (it *item) legs() []leg {
	var legs []leg
	var s step
	for ; it != nil; it = it.parent {
		legs = append(legs, leg{it.fault, s})
		s = it.step
	}
	for i, j := 0, len(legs)-1; i < j; i, j = i+1, j-1 {
		legs[i], legs[j] = legs[j], legs[i]
	}
	return legs
}
