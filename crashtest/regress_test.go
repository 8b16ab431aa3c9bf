package crashtest

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// What an exploration found once is kept under testdata/regress and played for ever.
// A token would not last: the numbers in it move with every change of the protocol.
// So a case is a script, one process a line, that names calls:
//
//	# why
//	scenario two commits
//	profile ext4-ordered                   — posix-minimal when there is no such line
//	fault sync /trust/t/s.tmp-* 1 revert   — the process of the next line meets it
//	kill rename /store/s/tmp-* 1           — killed just before its first such call
//	cut syncdata /trust/t/s.trust 2        — power cut there, every disk that it can leave
//	end kill | end cut                     — killed, or power cut, when it has done all
//
// A last recovery follows, on every machine that the script leads to. All checks of
// an exploration hold for each process.
type regressLine struct {
	verb     string // kill, cut
	at       place
	fault    place
	kind     faultKind
	atTheEnd bool
}

// place is the nth call of one kind on a path.
type place struct {
	op, pattern string
	n           int
}

func (pl place) is(c *simfs.Call) bool {
	ok, err := path.Match(pl.pattern, c.Path)
	return err == nil && ok && c.Op.String() == pl.op && c.Part == 0
}

func parsePlace(words []string) (pl place, err error) {
	if len(words) < 3 {
		return pl, fmt.Errorf("a place is a call, a path and a number: %q", words)
	}
	n, err := strconv.Atoi(words[2])
	return place{words[0], words[1], n}, err
}

// regressCase is what a script says.
type regressCase struct {
	sc      *scenario
	profile simfs.Profile
	lines   []regressLine
}

func parseRegress(text string) (*regressCase, error) {
	rc := &regressCase{profile: simfs.PosixMinimal}
	var next regressLine
	var err error
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		switch verb := words[0]; {
		case verb == "scenario":
			rc.sc = scenarioNamed(strings.Join(words[1:], " "))
		case verb == "profile" && len(words) == 2:
			var ok bool
			if rc.profile, ok = simfs.ProfileByName(words[1]); !ok {
				return nil, fmt.Errorf("no profile: %q", line)
			}
		case verb == "fault" && len(words) == 5:
			next.kind = faultKind(words[4])
			next.fault, err = parsePlace(words[1:])
		case verb == "end" && len(words) == 2:
			next.verb, next.atTheEnd = words[1], true
			rc.lines, next = append(rc.lines, next), regressLine{}
		case verb == "kill" || verb == "cut":
			next.verb = verb
			next.at, err = parsePlace(words[1:])
			rc.lines, next = append(rc.lines, next), regressLine{}
		default:
			return nil, fmt.Errorf("not a line of a case: %q", line)
		}
		if err != nil {
			return nil, err
		}
	}
	if rc.sc == nil || len(rc.lines) == 0 {
		return nil, fmt.Errorf("no scenario, or no processes")
	}
	return rc, nil
}

func TestRegress(t *testing.T) {
	files, err := filepath.Glob("../testdata/regress/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("cases: %q, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			rc, err := parseRegress(string(text))
			if err != nil {
				t.Fatal(err)
			}
			rc.replay(t)
		})
	}
}

func (rc *regressCase) replay(t *testing.T) {
	x := explorerFor(rc.profile, func(c *C) {
		rc.sc.plan(c)
		c.recover = with(rc.sc.opts, stubborn("commit commit"))
		if rc.lines[0].kind != "" {
			c.do = with(rc.sc.opts, stubborn("commit commit"))
		}
		c.swallow = swallowable
	})
	root, f := x.prepare()
	if f != nil {
		t.Fatal(f.err)
	}
	level := []*item{root}
	for i, l := range rc.lines {
		var next []*item
		for _, it := range level {
			next = append(next, x.lead(t, it, l)...)
		}
		if len(next) == 0 {
			t.Fatalf("process %d never comes to %+v: the case is of no use any more", i+1, l.at)
		}
		level = next
	}
	for _, it := range level {
		it.limit = it.depth
		if err := x.check(it, x.run(it, start{})); err != nil {
			t.Fatal(x.report(t.Name(), &failure{item: it, err: err}))
		}
	}
	t.Logf("%d machines at the end", len(level))
}

// lead runs an item and returns what the crash of its line leaves.
func (x *explorer) lead(t *testing.T, it *item, l regressLine) (next []*item) {
	it.limit = it.depth + 1
	if l.kind != "" {
		n := 0
		for _, c := range x.run(it, start{ops: true}).ops {
			if l.fault.is(&c) {
				if n++; n == l.fault.n {
					it.fault = &fault{c.Turn, l.kind}
				}
			}
		}
		if it.fault == nil {
			return nil
		}
	}
	r := x.run(it, start{record: true, ops: true})
	if err := x.check(it, r); err != nil {
		t.Fatal(x.report(t.Name(), &failure{item: it, err: err}))
	}
	at := len(r.points) - 1
	if !l.atTheEnd {
		at = -1
		n := 0
		for i := range r.ops {
			if !l.at.is(&r.ops[i]) {
				continue
			}
			if n++; n == l.at.n {
				// The last point that is not after the call: where nothing moved, there is none.
				for j, pt := range r.points {
					if pt.turn <= r.ops[i].Turn && pt.part == 0 {
						at = j
					}
				}
			}
		}
		if at < 0 {
			return nil
		}
	}
	pt := r.points[at]
	add := func(disk int, m *simfs.Machine) {
		next = append(next, &item{parent: it, step: step{at, disk}, depth: it.depth + 1, machine: m, claims: pt.claims})
	}
	if l.verb == "kill" {
		add(killed, pt.machine)
		return next
	}
	seen := map[uint64]bool{}
	pt.machine.Cut(x.cut).Disks(func(d *simfs.Disk) bool {
		if !seen[d.Sum] {
			seen[d.Sum] = true
			add(d.Index, d.Machine())
		}
		return true
	})
	return next
}
