package simfs

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// fired makes timers that write down their names.
type fired struct {
	p     *Process
	names []string
}

func (r *fired) after(d time.Duration, name string) vfs.Timer {
	return r.p.AfterFunc(d, func() { r.names = append(r.names, name) })
}

// idle is Idle, and which timers it fired.
func (r *fired) idle(t *testing.T, want ...string) {
	t.Helper()
	r.names = nil
	r.p.Idle()
	if !slices.Equal(r.names, want) {
		t.Errorf("fired %q, want %q", r.names, want)
	}
}

// TestIdleOrder: timers fire in the order in which they are due, then in that of
// their making, once.
func TestIdleOrder(t *testing.T) {
	r := &fired{p: New(PosixMinimal, "/a").Start()}
	r.idle(t)
	r.after(math.MaxInt64, "last")
	r.after(time.Minute, "minute")
	second := r.after(time.Second, "second")
	r.after(0, "zero")
	r.after(time.Second, "second, made later")
	r.after(-time.Hour, "past")
	r.p.m.Advance(time.Second)
	r.after(0, "in one second")
	if len(r.names) > 0 {
		t.Errorf("fired by themselves: %q", r.names)
	}
	second.Reset(0) // due at the same moment as before
	r.idle(t, "past", "zero", "second", "second, made later", "in one second", "minute", "last")
	r.idle(t)
}

// TestTimerResetAndStop: what they return, and what fires then.
func TestTimerResetAndStop(t *testing.T) {
	r := &fired{p: New(PosixMinimal, "/a").Start()}
	want := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	x := r.after(time.Second, "x")
	want("Reset of an armed timer", x.Reset(time.Second), true)
	r.idle(t, "x")
	want("Stop after it fired", x.Stop(), false)
	want("Reset after it fired", x.Reset(0), false)
	want("Stop of an armed timer", x.Stop(), true)
	want("Stop of a stopped timer", x.Stop(), false)
	r.idle(t)
	want("Reset of a stopped timer", x.Reset(time.Hour), false)
	r.after(time.Minute, "y")
	r.idle(t, "y", "x")
}

// TestIdleFunctions: they make calls, and arm and stop timers.
func TestIdleFunctions(t *testing.T) {
	r := &fired{p: New(PosixMinimal, "/a").Start()}
	late := r.after(time.Hour, "late")
	stopped := r.after(time.Hour, "stopped")
	var self vfs.Timer
	self = r.p.AfterFunc(0, func() {
		r.names = append(r.names, "self")
		if self.Stop() {
			t.Error("armed while its function runs")
		}
		d := must(r.p.OpenDir("/a"))(t)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		self.Reset(0)
		stopped.Stop()
		late.Reset(2 * time.Hour)
		r.after(0, "new")
	})
	r.idle(t, "self", "late")
	r.idle(t, "self", "new")
}

// TestIdleAfterKill: a killed process runs nothing, nor does one that is killed by
// the function of one of its timers, and another process has timers of its own.
func TestIdleAfterKill(t *testing.T) {
	m := New(PosixMinimal, "/a")
	r, other := &fired{p: m.Start()}, &fired{p: m.Start()}
	r.p.AfterFunc(0, r.p.Kill)
	x := r.after(time.Second, "x")
	other.after(0, "other")
	r.idle(t)
	if x.Stop() || x.Reset(0) {
		t.Error("armed in a process that was killed")
	}
	r.after(0, "made after the kill")
	r.idle(t)
	other.idle(t, "other")
}
