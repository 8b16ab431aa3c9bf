package crashtest

import "fmt"

// Stats says what an exploration covered.
type Stats struct {
	Calls      int // calls of the workload
	Points     int // instants at which a crash was tried
	Disks      int // disks listed for power cuts, the same ones many times
	Sampled    int // power cuts with more disks than the budget, of which a sample was tried
	Distinct   int // distinct machines after a crash, with what had to hold on them
	Recoveries int // recovery processes run
	Twice      int // second recoveries
	Faults     int // histories in which a call failed
}

func (s *Stats) String() string {
	text := fmt.Sprintf("%d calls, %d crash points, %d disks, %d distinct, %d recoveries", s.Calls, s.Points, s.Disks, s.Distinct, s.Recoveries)
	if s.Twice > 0 {
		text += fmt.Sprintf(", %d second recoveries", s.Twice)
	}
	if s.Faults > 0 {
		text += fmt.Sprintf(", %d faults", s.Faults)
	}
	if s.Sampled == 0 {
		return text + ", exhaustive"
	}
	return text + fmt.Sprintf(", %d power cuts SAMPLED (none, all, prefixes, omit-one, keep-one, random)", s.Sampled)
}
