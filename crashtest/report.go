package crashtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// report is the text for a failure: what broke, the shrunk history, and how to
// replay it.
func (x *explorer) report(test string, f *failure) string {
	if f.setup {
		return fmt.Sprintf("crashtest: %v", f.err)
	}
	legs := x.shrink(f.item.legs())
	acts, broken, err := x.replay(legs)
	if err != nil || broken == nil {
		return fmt.Sprintf("crashtest: %v\n\nThis history gave another result when it was replayed: a Func does not do the same thing each time (%v).\ntoken: %s",
			f.err, err, x.token(f.item))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "crashtest: %v\n\nunder %s, after %s:\n\n%s", broken, x.profile.Name, plural(len(acts)-1, "crash", "crashes"), x.story(acts))
	fmt.Fprintf(&b, "\nreplay: go test -run '^%s$' -crash.replay='%s'\n(found with %s)", test, x.token(acts[len(acts)-1].item), &x.stats)
	return b.String()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// story tells a history call by call, each with what became of what it wrote.
func (x *explorer) story(acts []act) string {
	var b strings.Builder
	for i, a := range acts {
		what := "recovery"
		if a.item.parent == nil {
			what = "the workload"
		}
		fmt.Fprintf(&b, "%s, %s\n", a.run.who(), what)
		if i == len(acts)-1 {
			x.tell(&b, a.run, nil, nil)
			continue
		}
		pt := a.run.points[acts[i+1].item.step.point]
		if disk := acts[i+1].item.step.disk; disk != killed {
			x.tell(&b, a.run, &pt, pt.machine.Cut(x.cut).Disk(disk).Fates())
			fmt.Fprintf(&b, "  ==== power cut\n")
		} else {
			x.tell(&b, a.run, &pt, nil)
			fmt.Fprintf(&b, "  ==== killed\n")
		}
	}
	last := acts[len(acts)-1]
	for _, line := range last.run.ledger().history() {
		fmt.Fprintf(&b, "  claim: %s\n", line)
	}
	if last.run.err != nil {
		fmt.Fprintf(&b, "  returned: %v\n", last.run.err)
	}
	fmt.Fprintf(&b, "the last process began with\n%s", indent(last.item.machine.Image().String()))
	return b.String()
}

// who names the processes of a run.
func (r *run) who() string {
	var numbers []string
	for _, p := range r.processes {
		numbers = append(numbers, fmt.Sprint(p.Number()))
	}
	if len(numbers) == 1 {
		return "process " + numbers[0]
	}
	return "processes " + strings.Join(numbers, " and ")
}

func (r *run) has(process int32) bool {
	return slices.ContainsFunc(r.processes, func(p *Process) bool { return int32(p.Number()) == process })
}

// tell lists the calls of one run up to a crash point.
func (x *explorer) tell(b *strings.Builder, r *run, until *point, fates []simfs.Fate) {
	byCall := map[simfs.CallID][]simfs.Fate{}
	for _, f := range fates {
		byCall[f.At] = append(byCall[f.At], f)
	}
	for _, f := range fates {
		if !r.has(f.At.Process) && len(byCall[f.At]) > 0 {
			fmt.Fprintf(b, "  left by %d.%d%s\n", f.At.Process, f.At.N, fateText(byCall[f.At]))
			delete(byCall, f.At)
		}
	}
	for i := range r.log {
		c := &r.log[i]
		if until != nil && (c.Turn > until.turn || c.Turn == until.turn && until.part == 0) {
			break
		}
		cut := ""
		if until != nil && c.Turn == until.turn {
			cut = fmt.Sprintf(" (crashed at its part %d)", until.part)
		}
		fmt.Fprintf(b, "  %s%s%s\n", c, cut, fateText(byCall[c.ID]))
	}
}

func fateText(fates []simfs.Fate) string {
	var parts []string
	for _, f := range fates {
		s := f.What + " " + f.State.String()
		if f.Lost {
			s += " (its sync failed)"
		}
		parts = append(parts, s)
	}
	if len(parts) == 0 {
		return ""
	}
	return "   [" + strings.Join(parts, "; ") + "]"
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ") + "\n"
}
