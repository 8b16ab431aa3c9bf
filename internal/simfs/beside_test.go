package simfs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// locker opens a lock file of its own and another one, and takes the first.
func locker(t *testing.T, p *Process, name string) (own, other vfs.File) {
	t.Helper()
	d := must(p.OpenDir("/a"))(t)
	own, other = must(d.OpenLock(name))(t), must(d.OpenLock("other"))(t)
	if !must(own.TryLock())(t) {
		t.Fatal("a free lock was not to be had")
	}
	return own, other
}

// TestKillOfOneOfTwo: only what was the killed one's goes, whichever of the two it is.
func TestKillOfOneOfTwo(t *testing.T) {
	for victim := range 2 {
		m := New(PosixMinimal, "/a")
		ps := []*Process{m.Start(), m.Start()}
		var own, other []vfs.File
		for i, p := range ps {
			o, x := locker(t, p, string(rune('p'+i)))
			own, other = append(own, o), append(other, x)
		}
		if !must(other[victim].TryLock())(t) || must(other[1-victim].TryLock())(t) {
			t.Fatal("the lock that both want has not one holder")
		}
		ps[victim].Kill()
		ps[victim].Kill() // a second time is nothing
		if !ps[victim].Killed() || ps[1-victim].Killed() {
			t.Error("the other one was killed")
		}
		if m.handles != 3 || ps[1-victim].Open() != 3 || ps[victim].Open() != 0 {
			t.Errorf("%d handles on the machine, %d of the one that lives", m.handles, ps[1-victim].Open())
		}
		if err := own[victim].Close(); !errors.Is(err, ErrKilled) || m.handles != 3 {
			t.Errorf("a close after the kill: %v, %d handles", err, m.handles)
		}
		d := must(m.Start().OpenDir("/a"))(t)
		for i, want := range []bool{victim == 0, victim == 1} {
			if got := must(must(d.OpenLock(string(rune('p' + i))))(t).TryLock())(t); got != want {
				t.Errorf("killed %d, the lock of %d is to be had: %v", victim, i, got)
			}
		}
		if !must(other[1-victim].TryLock())(t) {
			t.Error("what the killed one held is not to be had")
		}
	}
}

// TestStartBeside: a process that starts frees nothing that another one has open, and
// moves nobody's clock.
func TestStartBeside(t *testing.T) {
	m := New(PosixMinimal, "/a")
	p := m.Start()
	d := must(p.OpenDir("/a"))(t)
	f := must(d.Create("f", 0o600))(t)
	if err := errors.Join(d.Sync(), d.Remove("f"), d.Sync()); err != nil {
		t.Fatal(err)
	}
	before := p.Now()
	due := p.AfterFunc(0, func() {}).(*timer)
	q := m.Start()
	if p.Now() != before || q.Now().Sub(before) != time.Minute {
		t.Errorf("%v before, then %v, and %v in the other", before, p.Now(), q.Now())
	}
	if due.Reset(0); due.due != before {
		t.Errorf("due at %v, it is %v", due.due, before)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if info := must(f.Stat())(t); info.ModTime != before || info.Size != 1 {
		t.Errorf("%+v", info)
	}
	q.Kill() // with it the count of handles stays: the next start frees nothing either
	m.Start()
	if b := make([]byte, 1); must(f.ReadAt(b, 0))(t) != 1 || b[0] != 'x' {
		t.Error("an open file was freed")
	}
	if m.Advance(time.Hour); p.Now() != before.Add(time.Hour) {
		t.Error("the machine's clock does not count")
	}
}

// TestKillAt: the call at which a process is killed does not happen, those before it do,
// and the log has it.
func TestKillAt(t *testing.T) {
	create := func(d vfs.Dir, name string) error {
		_, err := d.Create(name, 0o600)
		return err
	}
	for n := range 4 {
		m := New(PosixMinimal, "/a")
		p := m.Start()
		p.KeepLog()
		d := must(p.OpenDir("/a"))(t)
		if err := create(d, "0"); err != nil {
			t.Fatal(err)
		}
		p.KillAt(2)
		p.KillAt(n)
		hooked := 0
		p.SetHook(func(c *Call) Fault { hooked++; return Fault{} })
		var failed []bool
		for _, name := range []string{"1", "2", "3"} {
			_, e := d.Names() // counts as none
			err := create(d, name)
			failed = append(failed, errors.Is(err, ErrKilled))
			if errors.Is(e, ErrKilled) != (len(failed) > 1 && failed[len(failed)-2]) {
				t.Errorf("killed at %d: %v", n, e)
			}
		}
		made := 3
		if n > 0 {
			made = n - 1
		}
		if want := []bool{made < 1, made < 2, made < 3}; !slices.Equal(failed, want) || p.Mutations() != 1+made || p.Killed() != (n > 0) {
			t.Errorf("killed at %d: failed %v, %d mutations", n, failed, p.Mutations())
		}
		if got := len(m.Image()); got != 1+made { // with 0
			t.Errorf("killed at %d: %v", n, m.Image())
		}
		if want := 2*made + min(n, 1); hooked != want {
			t.Errorf("killed at %d: %d calls hooked, want %d", n, hooked, want)
		}
		log := p.Log()
		if len(log) != 1+made+min(n, 1) || n > 0 && !errors.Is(log[len(log)-1].Err, ErrKilled) {
			t.Errorf("killed at %d: %v", n, log)
		}
	}
}

// TestTurns: calls are numbered across processes, and anew on a snapshot.
func TestTurns(t *testing.T) {
	m := New(PosixMinimal, "/a")
	var turns []int
	start := func(m *Machine) *Process {
		p := m.Start()
		p.SetHook(func(c *Call) Fault { turns = append(turns, c.Turn); return Fault{} })
		return p
	}
	p, q := start(m), start(m)
	for _, who := range []*Process{p, q, q, p} {
		must(who.OpenDir("/a"))(t)
	}
	if m.Calls() != 4 || p.Calls() != 2 {
		t.Errorf("%d calls, %d of the first", m.Calls(), p.Calls())
	}
	must(start(m.Snapshot()).OpenDir("/a"))(t)
	m.Cut(CutOptions{}).Disks(func(d *Disk) bool {
		must(start(d.Machine()).OpenDir("/a"))(t)
		return true
	})
	if !slices.Equal(turns, []int{1, 2, 3, 4, 1, 1}) {
		t.Errorf("turns: %v", turns)
	}
}
