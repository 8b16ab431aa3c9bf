package simfs

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestKillKeepsPageCache: a killed process leaves what it wrote visible and
// pending, and a power cut after that still takes it away.
func TestKillKeepsPageCache(t *testing.T) {
	s := newScript(t, PosixMinimal)
	replace(s, false, false)
	killed := s.m.Snapshot()
	if killed.Image().String() != s.m.Image().String() {
		t.Error("the page cache changed")
	}
	if got := len(disks(t, killed, CutOptions{})); got != 9 {
		t.Errorf("%d disks after kill and power cut, want 9", got)
	}
	// A second process that does the same again adds to what is pending.
	p := killed.Start()
	d := must(p.OpenDir("/a"))(t)
	if _, err := d.Create("tmp", 0o600); err != nil {
		t.Fatal(err)
	}
	// Old data: no tmp, the first one (4 contents), the second one (empty, as the
	// first may be). New data (4 contents): no tmp, or the second one.
	if got := len(disks(t, killed, CutOptions{})); got != 5+8 {
		t.Errorf("%d disks, want 13", got)
	}
}

// TestLostSurvivesKill: a kill does not make a failed sync good.
func TestLostSurvivesKill(t *testing.T) {
	s := newScript(t, PosixMinimal)
	f := must(s.a.OpenRW("data"))(t)
	s.write(f, "new", 0)
	s.failNext(OpSync, Fault{})
	if err := f.Sync(); err == nil {
		t.Fatal("the fault did not happen")
	}
	killed := s.m.Snapshot()
	d := must(killed.Start().OpenDir("/a"))(t)
	g := must(d.OpenRW("data"))(t)
	if err := g.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := len(disks(t, killed, CutOptions{})); got != 3 {
		t.Errorf("%d disks, want 3", got)
	}
}

// TestTwoDisksOneInstant: the order between disks is nobody's promise, even
// where each disk keeps its own.
func TestTwoDisksOneInstant(t *testing.T) {
	s := newScript(t, Ext4Ordered)
	for _, name := range []string{"1", "2"} {
		s.create(s.a, name, "")
		s.create(s.b, name, "")
	}
	s.wantDisks("three prefixes on each", 9)
	s.ok(s.b.Sync())
	s.wantDisks("one disk forced", 3)
}

func TestLocksDieWithTheirProcess(t *testing.T) {
	m := New(PosixMinimal, "/a")
	p, q := m.Start(), m.Start()
	pd, qd := must(p.OpenDir("/a"))(t), must(q.OpenDir("/a"))(t)
	pl, ql := must(pd.OpenLock("lock"))(t), must(qd.OpenLock("lock"))(t)
	if got := must(pl.TryLock())(t); !got {
		t.Fatal("a free lock was not to be had")
	}
	if got := must(ql.TryLock())(t); got {
		t.Fatal("two holders")
	}
	r := m.Snapshot().Start()
	rl := must(must(r.OpenDir("/a"))(t).OpenLock("lock"))(t)
	if got := must(rl.TryLock())(t); !got {
		t.Error("after a kill of all processes the lock is still held")
	}
	p.Kill()
	if got := must(ql.TryLock())(t); !got {
		t.Error("after a kill of the holder the lock is still held")
	}
	if _, err := pl.TryLock(); !errors.Is(err, ErrKilled) {
		t.Errorf("a call of a killed process: %v", err)
	}
}

// TestSnapshotsAreApart: whatever one machine does, its snapshots keep.
func TestSnapshotsAreApart(t *testing.T) {
	type kept struct {
		m     *Machine
		image string
		sum   uint64
	}
	for seed := range uint64(50) {
		s := newScript(t, PosixMinimal)
		var snaps []kept
		s.p.SetHook(func(c *Call) Fault {
			if c.Op.Mutates() {
				snaps = append(snaps, kept{m: c.Snapshot()})
				k := &snaps[len(snaps)-1]
				k.image, k.sum = k.m.Image().String(), k.m.Sum()
			}
			return Fault{}
		})
		randomCalls(seed, 25, func(c randomCall) { c.run(s.a, s.b) })
		for i, k := range snaps {
			p := k.m.Snapshot().Start() // and so does what a copy of it does
			randomCalls(seed+1000, 10, func(c randomCall) {
				c.run(must(p.OpenDir("/a"))(t), must(p.OpenDir("/b"))(t))
			})
			if k.m.Image().String() != k.image || k.m.Sum() != k.sum {
				t.Fatalf("seed %d: snapshot %d changed", seed, i)
			}
		}
	}
}

// TestSplitWriteIsSeen: a kill inside a WriteAt leaves the sectors before it.
func TestSplitWriteIsSeen(t *testing.T) {
	s := newScript(t, PosixMinimal)
	f := s.create(s.a, "f", "")
	var sizes []int
	s.p.SetHook(func(c *Call) Fault {
		if c.Op == OpWriteAt {
			sizes = append(sizes, len(c.Snapshot().Image()["/a/f"].Data))
		}
		return Fault{}
	})
	s.write(f, strings.Repeat("x", 2*Sector+10), 0)
	if len(sizes) != 3 || sizes[0] != 0 || sizes[1] != Sector || sizes[2] != 2*Sector {
		t.Errorf("sizes at the crash points: %v", sizes)
	}
	if got := s.content("f"); got != strings.Repeat("x", 2*Sector+10) {
		t.Errorf("the write ended with %d bytes", len(got))
	}
}

// TestSumIsCanonical: inode numbers do not count, pending and lost do.
func TestSumIsCanonical(t *testing.T) {
	build := func(junk int, end func(s *script)) uint64 {
		s := newScript(t, Ext4Ordered)
		for range junk {
			s.ok(s.create(s.b, "junk", "junk").Close())
			s.ok(s.b.Remove("junk"))
		}
		s.m.Flush()
		end(s)
		return s.m.Snapshot().Sum()
	}
	ends := map[string]func(s *script){
		"clean":          func(s *script) {},
		"pending create": func(s *script) { s.create(s.a, "x", "") },
		"pending data":   func(s *script) { s.create(s.a, "x", "1") },
		"synced data":    func(s *script) { s.ok(s.create(s.a, "x", "1").Sync()) },
		"lost data": func(s *script) {
			f := s.create(s.a, "x", "1")
			s.failNext(OpSync, Fault{})
			f.Sync()
		},
		"synced all": func(s *script) { s.ok(s.create(s.a, "x", "1").Sync()); s.ok(s.a.Sync()) },
		"two, one order": func(s *script) {
			s.create(s.a, "x", "")
			s.ok(s.a.Mkdir("d", 0o700))
		},
		"two, the other order": func(s *script) {
			s.ok(s.a.Mkdir("d", 0o700))
			s.create(s.a, "x", "")
		},
	}
	seen := map[uint64]string{}
	for name, end := range ends {
		one, other := build(0, end), build(3, end)
		if one != other {
			t.Errorf("%s: the sum depends on inode numbers", name)
		}
		if seen[one] != "" {
			t.Errorf("%s and %s have the same sum", name, seen[one])
		}
		seen[one] = name
	}
}

func TestRandomAndClock(t *testing.T) {
	take := func(p *Process, n int) []byte {
		b := make([]byte, n)
		p.Random(b)
		return b
	}
	m, n := New(PosixMinimal, "/a"), New(PosixMinimal, "/a")
	p, q := m.Start(), n.Start()
	first := take(p, 20)
	if !bytes.Equal(first, take(q, 20)) {
		t.Error("the same history gives different randomness")
	}
	if bytes.Equal(first, take(p, 20)) || bytes.Equal(first, take(m.Start(), 20)) {
		t.Error("randomness repeats within a history")
	}
	n.Seed(2)
	if bytes.Equal(take(n.Start(), 20), take(m.Snapshot().Start(), 20)) {
		t.Error("the seed does not count")
	}
	before := p.Now()
	if m.Advance(time.Hour); p.Now().Sub(before) != time.Hour {
		t.Errorf("the clock moved by %v", p.Now().Sub(before))
	}
}

// TestInstallRoundTrip: an image put on another machine reads the same.
func TestInstallRoundTrip(t *testing.T) {
	for seed := range uint64(30) {
		s := newScript(t, PosixMinimal)
		randomCalls(seed, 25, func(c randomCall) {
			if c.op != 6 { // an image keeps no hard links
				c.run(s.a, s.b)
			}
		})
		im := s.m.Image()
		n := New(Ext4Ordered, "/a", "/b")
		n.Install(im)
		if n.Image().String() != im.String() {
			t.Fatalf("seed %d:\n%s\nbecame\n%s", seed, im, n.Image())
		}
		if got := len(disks(t, n, CutOptions{})); got != 1 {
			t.Fatalf("an installed image has %d disks", got)
		}
	}
}
