package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// TestVerifySealedProgress: the files that the bundle names count too. Progress goes up
// and to the end, also beside damage, and Verify changes nothing.
func TestVerifySealedProgress(t *testing.T) {
	one, _ := sealedStores(t)
	for _, damaged := range []string{"", "absent", "flipped"} {
		b := newBench(t)
		b.laySealed(one)
		s := b.sealedOpen()
		all := inspect(t, b.dir, b.trust, nil).Confirmed.Journal + int64(len(one.files["bundle"]))
		files := 2
		for path, content := range one.files {
			if strings.Contains(path, "/") {
				all += int64(len(content))
				files++
			}
		}
		for i, path := range []string{one.segments[0], one.segments[1], one.partFile["large-a"]} {
			switch damaged {
			case "absent":
				if err := os.Remove(b.at(path)); err != nil {
					t.Fatal(err)
				}
			case "flipped":
				overwrite(t, b.at(path), flip(one.files[path], 8*100*i))
			}
		}
		before := testkit.Snapshot(t, b.dir, b.trust)
		last, calls := int64(0), 0
		err := s.Verify(context.Background(), func(done, total int64) {
			if done < last || done > total || total != all {
				t.Errorf("%s: %d of %d after %d; there are %d", damaged, done, total, last, all)
			}
			last = done
			calls++
		})
		if (err != nil) != (damaged != "") || last != all || calls < files {
			t.Errorf("%s: ended at %d of %d after %d calls: %v", damaged, last, all, calls, err)
		}
		if after := testkit.Snapshot(t, b.dir, b.trust); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("%s: Verify changed something", damaged)
		}
		b.close(s)
	}
}

// TestVerifySealedIsCancelled: after any piece. It says so, and not what it would have
// found.
func TestVerifySealedIsCancelled(t *testing.T) {
	one, _ := sealedStores(t)
	b := newBench(t)
	b.laySealed(one)
	s := b.sealedOpen()
	defer b.close(s)
	mine := errors.New("mine")
	for at := 1; ; at++ {
		ctx, cancel := context.WithCancelCause(context.Background())
		calls, end := 0, false
		err := s.Verify(ctx, func(done, total int64) {
			if calls++; calls == at {
				cancel(mine)
			}
			end = done == total
		})
		cancel(nil)
		if end {
			if err != nil || at < 10 {
				t.Errorf("%d calls: %v", calls, err)
			}
			break
		}
		if !errors.Is(err, context.Canceled) || !errors.Is(err, mine) || errors.Is(err, pawl.ErrDamaged) || calls != at {
			t.Errorf("cancelled at call %d, ended after %d: %v", at, calls, err)
		}
	}
	if err := s.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

// TestVerifySealedMemory: of a store of 64 MiB Verify has a small part in memory, and so
// has whoever reads all entries (contract 11).
func TestVerifySealedMemory(t *testing.T) {
	size := 64
	if testing.Short() {
		size = 24
	}
	b := newBench(t)
	collected(t, b.dir)
	o := &pawl.Options{Limits: pawl.Limits{Unsealed: 1 << 20, Inline: 1 << 10}, CheckpointEvery: 8}
	s, err := pawl.Open(quick(), b.dir, b.trust, o)
	if err != nil {
		t.Fatal(err)
	}
	const commits = 64
	piece := make([]byte, size<<20/commits)
	for i := range commits {
		piece[0] = byte(i)
		c := pawl.Change{Entries: [][]byte{piece[:len(piece)/2], piece[len(piece)/2:]}}
		if i%16 == 0 {
			c.Put = map[string][]byte{fmt.Sprint("part ", i): piece}
		}
		commit(t, s, c)
	}
	b.close(s)
	if s, err = pawl.Open(quick(), b.dir, b.trust, o); err != nil {
		t.Fatal(err)
	}
	defer b.close(s)
	// What is in memory is what was allocated since it was last collected.
	most, calls := uint64(0), 0
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, total := heap(), int64(0)
	if err := s.Verify(context.Background(), func(_, all int64) {
		if total = all; calls%4 == 0 {
			most = max(most, heap())
		}
		calls++
	}); err != nil {
		t.Fatal(err)
	}
	if total < int64(size)<<20 || calls < 10 {
		t.Errorf("%d bytes in %d calls", total, calls)
	}
	// A record is read in one piece, with what else a large piece has.
	const room = 4 << 20
	if most > before+room {
		t.Errorf("%d bytes more in memory, of a store of %d", most-before, total)
	}
	most, calls = 0, 0
	for _, err := range s.View().Entries(0) {
		if err != nil {
			t.Fatal(err)
		}
		if calls%4 == 0 {
			most = max(most, heap())
		}
		calls++
	}
	if calls != 2*commits || most > before+room {
		t.Errorf("%d entries with %d bytes more in memory", calls, most-before)
	}
}

// TestVerifyTellsAllDamage: every damaged piece of every file, in one error, with the
// commits and entries that it is about.
func TestVerifyTellsAllDamage(t *testing.T) {
	one, _ := sealedStores(t)
	const chunk = 16384
	b := newBench(t)
	b.laySealed(one)
	long, at := one.files[one.segments[1]], one.sealedAt(1)
	of := func(from, to int) (first, last pawl.Revision) { // the commits with bytes from, up to to
		for i := range len(at) - 1 {
			if at[i] < to && at[i+1] > from {
				if last = sealedSpans[1].first + pawl.Revision(i); first == 0 {
					first = last
				}
			}
		}
		return first, last
	}
	want := []pawl.Damage{one.whole(b.at(one.segments[0]), 0)}
	bad := long
	for _, n := range []int{0, 2} {
		d := pawl.Damage{Path: b.at(one.segments[1]), Offset: int64(n * chunk), Length: chunk}
		d.First, d.Last = of(n*chunk, n*chunk+chunk)
		d.FirstSeq, d.LastSeq = one.receipts[d.First].FirstSeq, one.receipts[d.Last].LastSeq
		want = append(want, d)
		bad = flip(flip(bad, 8*(n*chunk+5000)), 8*(n*chunk+9000))
	}
	if want[1].Last >= want[2].First {
		t.Fatalf("%+v", want)
	}
	want = append(want, one.whole(b.at(one.segments[2]), 2))
	for _, name := range []string{"large-a", "large-b"} {
		want = append(want, pawl.Damage{Path: b.at(one.partFile[name]), Length: int64(len(one.parts[name])), Part: name})
	}
	if err := os.Remove(b.at(one.segments[0])); err != nil {
		t.Fatal(err)
	}
	overwrite(t, b.at(one.segments[1]), bad)
	overwrite(t, b.at(one.segments[2]), flip(one.files[one.segments[2]], 8*len(one.files[one.segments[2]])-1))
	overwrite(t, b.at(one.partFile["large-a"]), nil)
	overwrite(t, b.at(one.partFile["large-b"]), flip(one.files[one.partFile["large-b"]], 70000))
	s := b.sealedOpen()
	defer b.close(s)
	for range 2 { // and it goes on as before
		e := typed(t, s.Verify(context.Background(), nil), "verify", pawl.ErrDamaged)
		damageIs(t, e, want...)
		if e.Trusted != inspect(t, b.dir, b.trust, nil).Confirmed || !strings.Contains(e.Error(), fmt.Sprint(len(want))) {
			t.Errorf("%v, trusted %+v", e, e.Trusted)
		}
		commit(t, s, entry("", "more"))
	}
	// One mended after the other.
	for i, path := range []string{one.segments[0], one.segments[1], one.segments[2], one.partFile["large-a"], one.partFile["large-b"]} {
		putBack(t, b.at(path), one.files[path])
		if want = want[1:]; i == 1 {
			want = want[1:]
		}
		err := s.Verify(context.Background(), nil)
		if len(want) > 0 {
			damageIs(t, typed(t, err, "verify", pawl.ErrDamaged), want...)
		} else if err != nil {
			t.Error(err)
		}
	}
	b.mended(s, one)
}

// TestVerifyBesideRetiring: files that are not needed any more go while Verify reads. It
// answers for the state that it began with, whole or damaged.
func TestVerifyBesideRetiring(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Wine does not rename over a file that a process has open")
	}
	one, _ := sealedStores(t)
	for _, damaged := range []bool{false, true} {
		b := newBench(t)
		b.laySealed(one)
		path := b.at(one.segments[1])
		if damaged {
			overwrite(t, path, flip(one.files[one.segments[1]], 8*20000))
		}
		s := b.sealedOpen()
		n := 0
		err := s.Verify(context.Background(), func(done, total int64) {
			if n++; n > 1 {
				return
			}
			// Everything that the state of Verify names is named no more.
			commit(t, s, pawl.Change{Entries: [][]byte{nil}, Delete: []string{"large-a", "large-b"}})
			if _, err := s.Compact(context.Background(), pawl.Policy{KeepLast: 1}); (err != nil) != damaged {
				t.Error(err)
			}
			if err := s.Checkpoint(context.Background()); err != nil {
				t.Error(err)
			}
		})
		gone := 0
		for name := range one.files {
			if _, err := os.Lstat(b.at(name)); err != nil {
				gone++
			}
		}
		if damaged {
			if e := typed(t, err, "verify", pawl.ErrDamaged); len(e.Damage) != 1 || e.Damage[0].Offset != 16384 || e.Damage[0].Length != 16384 {
				t.Errorf("%+v", e.Damage)
			}
		} else if err != nil || gone < 5 {
			t.Errorf("%d files went: %v", gone, err)
		}
		b.close(s)
	}
}
