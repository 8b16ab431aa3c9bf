package crashtest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

// A token names one history: the profile, the budget of the enumeration when it is
// not the default, and for each process the fault that it met and the crash that
// ended it.
//
//	posix-minimal/p12.37/!4.eio+k7/-
//
// is: the workload, power cut at crash point 12, disk 37; a recovery whose call 4
// failed, killed at its crash point 7; a second recovery, which broke a check.
func (x *explorer) token(it *item) string {
	var parts []string
	crash := ""
	for ; it != nil; it = it.parent {
		parts = append(parts, segment(it.fault, crash))
		crash = it.step.String()
	}
	head := x.profile.Name
	if x.cut.Budget != 0 {
		head += "," + strconv.Itoa(x.cut.Budget)
	}
	parts = append(parts, head)
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Join(parts, "/")
}

func segment(f *fault, crash string) string {
	switch {
	case f == nil && crash == "":
		return "-"
	case f == nil || crash == "":
		return f.String() + crash
	}
	return f.String() + "+" + crash
}

func (s step) String() string {
	if s.disk == killed {
		return fmt.Sprintf("k%d", s.point)
	}
	return fmt.Sprintf("p%d.%d", s.point, s.disk)
}

// leg is one process of a token.
type leg struct {
	fault *fault
	step  step // of the crash that ended it; not of the last leg
}

func parseToken(token string) (p simfs.Profile, budget int, legs []leg, err error) {
	bad := func(what string) error { return fmt.Errorf("crashtest: %q is no token: %s", token, what) }
	parts := strings.Split(token, "/")
	name, b, ok := strings.Cut(parts[0], ",")
	if ok {
		if budget, err = strconv.Atoi(b); err != nil {
			return p, 0, nil, bad(b)
		}
	}
	if p, ok = simfs.ProfileByName(name); !ok {
		return p, 0, nil, bad("no profile " + name)
	}
	for i, part := range parts[1:] {
		var l leg
		f, crash, both := strings.Cut(part, "+")
		if !both && !strings.HasPrefix(part, "!") {
			f, crash = "", part
		}
		if f != "" {
			if l.fault, err = parseFault(f); err != nil {
				return p, 0, nil, bad(err.Error())
			}
		}
		if last := i == len(parts)-2; !last || crash != "" && crash != "-" {
			if l.step, ok = parseStep(crash); !ok || last {
				return p, 0, nil, bad(part)
			}
		}
		legs = append(legs, l)
	}
	if len(legs) == 0 {
		return p, 0, nil, bad("no processes")
	}
	return p, budget, legs, nil
}

func parseStep(s string) (step, bool) {
	var st step
	if n, err := fmt.Sscanf(s, "p%d.%d", &st.point, &st.disk); n == 2 && err == nil && st.String() == s {
		return st, true
	}
	st = step{disk: killed}
	n, err := fmt.Sscanf(s, "k%d", &st.point)
	return st, n == 1 && err == nil && st.String() == s
}
