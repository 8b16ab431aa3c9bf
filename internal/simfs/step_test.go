package simfs

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// TestStepperIsTheProcess: random calls do the same through a Stepper that does
// nothing, and the step comes before each of them.
func TestStepperIsTheProcess(t *testing.T) {
	for seed := range uint64(50) {
		plain, stepped := newScript(t, PosixMinimal), New(PosixMinimal, "/a", "/b")
		stepped.Install(Image{"/a/data": {Mode: 0o600, Data: "old"}})
		s := &Stepper{Process: stepped.Start()}
		steps := 0
		s.Step = func() {
			if steps++; steps != s.Calls()+1 {
				t.Fatalf("step %d, call %d", steps, s.Calls()+1)
			}
		}
		a, b := must(s.OpenDir("/a"))(t), must(s.OpenDir("/b"))(t)
		randomCalls(seed, 40, func(c randomCall) {
			c.run(plain.a, plain.b)
			c.run(a, b)
		})
		if steps != s.Calls() {
			t.Errorf("seed %d: %d steps, %d calls", seed, steps, s.Calls())
		}
		if got, want := stepped.Image().String(), plain.m.Image().String(); got != want {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, got, want)
		}
	}
}

// TestStepperStepsOnce: there is one step before each kind of call, and what is no call
// has none.
func TestStepperStepsOnce(t *testing.T) {
	s := &Stepper{Process: New(PosixMinimal, "/a").Start()}
	steps := 0
	s.Step = func() { steps++ }
	root := must(s.OpenDir("/"))(t)
	d := must(root.OpenDir("a"))(t)
	f := must(d.Create("f", 0o600))(t)
	lock := must(d.OpenLock("lock"))(t)
	for name, call := range map[string]func(){
		"Resolve":     func() { s.Resolve("/a") },
		"FS.Lstat":    func() { s.Lstat("/a") },
		"FS.OpenDir":  func() { s.OpenDir("/nothing") },
		"Dir.Stat":    func() { d.Stat() },
		"System":      func() { d.System() },
		"Dir.Lstat":   func() { d.Lstat("f") },
		"Identify":    func() { d.Identify("f") },
		"Names":       func() { d.Names() },
		"Mkdir":       func() { d.Mkdir("d", 0o700) },
		"Dir.OpenDir": func() { d.OpenDir("nothing") },
		"Open":        func() { d.Open("nothing") },
		"OpenRW":      func() { d.OpenRW("nothing") },
		"Create":      func() { d.Create("lock", 0o600) },
		"OpenLock":    func() { d.OpenLock("lock") },
		"Rename":      func() { d.Rename("nothing", "f") },
		"Link":        func() { d.Link("nothing", "f") },
		"Remove":      func() { d.Remove("nothing") },
		"Dir.Sync":    func() { d.Sync() },
		"Dir.Close":   func() { root.Close() },
		"File.Stat":   func() { f.Stat() },
		"ReadAt":      func() { f.ReadAt(make([]byte, 2*Sector), 0) },
		"WriteAt":     func() { f.WriteAt(make([]byte, Sector), 0) },
		"Chmod":       func() { f.Chmod(0o600) },
		"Chgrp":       func() { f.Chgrp(simGID) },
		"File.Sync":   func() { f.Sync() },
		"SyncData":    func() { f.SyncData() },
		"TryLock":     func() { lock.TryLock() },
		"File.Close":  func() { f.Close() },
		"Lock.Close":  func() { lock.Close() },
	} {
		steps = 0
		before := s.Calls()
		if call(); steps != 1 || s.Calls() != before+1 {
			t.Errorf("%s: %d steps, %d calls", name, steps, s.Calls()-before)
		}
		s.Told, steps = true, 0
		call()
		want := slices.Contains([]string{"Mkdir", "Create", "OpenLock", "Rename", "Link", "Remove", "WriteAt", "Chmod", "Chgrp", "TryLock", "Lock.Close"}, name)
		if got := steps == 1; got != want {
			t.Errorf("%s: others can tell: %v, want %v", name, got, want)
		}
		s.Told = false
	}
	steps = 0
	s.Now()
	s.Owner()
	s.Random(make([]byte, 1))
	s.AfterFunc(0, func() {})
	s.Idle()
	if d.Path(); steps != 0 {
		t.Errorf("%d steps before what is no call", steps)
	}
}

// TestStepperPieces: where a write and a read are cut, and what they return.
func TestStepperPieces(t *testing.T) {
	for _, k := range []struct {
		off  int64
		n    int
		want []int // the pieces
	}{
		{0, 0, []int{0}},
		{0, Sector, []int{Sector}},
		{0, 2*Sector + 1, []int{Sector, Sector, 1}},
		{100, Sector, []int{Sector - 100, 100}},
		{Sector - 1, 2, []int{1, 1}},
		{-1, 2 * Sector, []int{2 * Sector}},
	} {
		p := New(PosixMinimal, "/a").Start()
		var lens []int
		p.SetHook(func(c *Call) Fault {
			if c.Part == 0 && (c.Op == OpWriteAt || c.Op == OpReadAt) {
				lens = append(lens, c.Len)
			}
			return Fault{}
		})
		s := &Stepper{Process: p, Step: func() {}, Reads: true}
		f := must(must(s.OpenDir("/a"))(t).Create("f", 0o600))(t)
		data := bytes.Repeat([]byte{7}, k.n)
		n, err := f.WriteAt(data, k.off)
		if want := (k.off < 0); (err != nil) != want || !want && n != k.n || len(lens) != len(k.want) {
			t.Errorf("%d at %d: %d, %v in pieces of %v, want %v", k.n, k.off, n, err, lens, k.want)
		}
		for i, l := range lens {
			if l != k.want[i] {
				t.Errorf("%d at %d: pieces of %v, want %v", k.n, k.off, lens, k.want)
			}
		}
		if k.off < 0 {
			continue
		}
		got := make([]byte, k.n+1)
		if n, err := f.ReadAt(got, k.off); n != k.n || !errors.Is(err, io.EOF) || !bytes.Equal(got[:n], data) {
			t.Errorf("%d at %d: read %d, %v", k.n, k.off, n, err)
		}
	}
}

// TestStepperLetsOthersIn: what another process does in a step is seen by the call
// after it, and a write that was cut in two there is half a write.
func TestStepperLetsOthersIn(t *testing.T) {
	m := New(PosixMinimal, "/a")
	r := must(m.Start().OpenDir("/a"))(t)
	var sizes []int64
	s := &Stepper{Process: m.Start()}
	s.Step = func() {
		if info, err := r.Lstat("f"); err == nil {
			sizes = append(sizes, info.Size)
		}
	}
	var d vfs.Dir = must(s.OpenDir("/a"))(t)
	f := must(d.Create("f", 0o600))(t)
	if _, err := f.WriteAt(make([]byte, 3*Sector), 0); err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 3 || sizes[0] != 0 || sizes[1] != Sector || sizes[2] != 2*Sector {
		t.Errorf("sizes: %v", sizes)
	}
}
