package effect

import "slices"

// State is where an effect is on its way.
type State string

const (
	Queued    State = "queued"    // recorded, and not begun
	Started   State = "started"   // an attempt was begun, and its outcome is not recorded
	Done      State = "done"      // it happened, and the result is recorded
	Failed    State = "failed"    // it certainly did not happen: to be tried again, or for good
	Parked    State = "parked"    // nobody knows whether it happened: waits for somebody who does
	Released  State = "released"  // parked, and somebody allowed one more attempt
	Cancelled State = "cancelled" // somebody decided that it is not to be carried out any more

	none State = "" // nobody asked for it yet
)

// transition is a row of the table. Nothing but these moves an effect, and each of them is
// one commit.
type transition struct {
	name string
	from []State
	to   State
	ends bool // settled: the part goes, and the entry stays
	said bool // an attempt has ended with an error
	when string
}

// transitions is the table; docs/effects.md shows the same one.
var transitions = []transition{
	{"enqueue", []State{none}, Queued, false, false, "`Outbox.Enqueue`, in the caller's commit"},
	{"begin", []State{none}, Started, false, false, "`Do`: recorded and begun in one commit"},
	{"start", []State{Queued, Failed, Released}, Started, false, false, "the next attempt begins"},
	{"again", []State{Started, Parked}, Started, false, false, "the next attempt begins though the outcome of the last is not known: only where `Idempotent` says so"},
	{"done", []State{Started, Parked, Released, Failed}, Done, true, false, "the function returned a result, or `Settle` knows it; also that of a slow attempt that was given up"},
	{"fail", []State{Started, Parked}, Failed, false, true, "it certainly did not happen (`NotDone`), and may be tried again"},
	{"give up", []State{Started, Parked}, Failed, true, true, "it certainly did not happen and will not (`Permanent`), or was tried as often as the handler allows"},
	{"unsure", []State{Started}, Started, false, true, "the attempt ended and its outcome is not known; `Idempotent` lets it be tried again"},
	{"park", []State{Started}, Parked, false, true, "the attempt ended, or its process did, and its outcome is not known"},
	{"release", []State{Parked}, Released, false, false, "an operator allows one more attempt"},
	{"resolve", []State{Parked}, Done, true, false, "an operator says what the result was"},
	{"cancel", []State{Queued, Failed, Parked, Released}, Cancelled, true, false, "an operator decides that it is not to be carried out any more"},
}

// row finds the row that a transition is, and reports whether the table has it.
func row(name string, from State) (transition, bool) {
	for _, t := range transitions {
		if t.name == name && slices.Contains(t.from, from) {
			return t, true
		}
	}
	return transition{}, false
}
