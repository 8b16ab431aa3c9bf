package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// What many goroutines do beside the sealing of what they did before: each id is committed
// once, and whoever asks for it gets the same receipt.

// crowded is what the goroutines were told.
type crowded struct {
	mu       sync.Mutex
	receipts map[string]pawl.Receipt
	fresh    map[string]int // how often an id was committed, and not acknowledged again
	calls    int
}

func (c *crowded) told(t testing.TB, id string, r pawl.Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if !r.Replayed {
		c.fresh[id]++
	}
	r.Replayed = false
	if was, ok := c.receipts[id]; ok && was != r {
		t.Errorf("%s: receipt %v, and %v before", id, r, was)
	}
	c.receipts[id] = r
}

// crowdedChange is the commit of an id.
func crowdedChange(id string) pawl.Change {
	return pawl.Change{ID: id, Entries: [][]byte{[]byte(id), {}}, Put: map[string][]byte{"last": []byte(id)}}
}

// crowd lets goroutines commit to stores, ids of others and of long ago too, while one
// compacts. keep, if it is not 0, says how many entries that one keeps.
func crowd(t *testing.T, stores []*pawl.Store, goroutines, rounds, ids int, keep uint64) *crowded {
	t.Helper()
	c := &crowded{receipts: map[string]pawl.Receipt{}, fresh: map[string]int{}}
	var wg sync.WaitGroup
	for g := range goroutines {
		s := stores[g%len(stores)]
		rnd := rand.New(rand.NewPCG(uint64(g), 11))
		wg.Go(func() {
			for i := range rounds {
				// Ids come one after the other, so that some goroutines ask for the same at
				// once, and some for what is in a segment by now.
				id := fmt.Sprint("id ", min(ids-1, i*ids/rounds+rnd.IntN(3)))
				if rnd.IntN(3) == 0 {
					id = fmt.Sprint("id ", rnd.IntN(1+i*ids/rounds))
				}
				var r pawl.Receipt
				var err error
				switch rnd.IntN(4) {
				case 0:
					r, err = s.Update(t.Context(), id, func(pawl.View) (pawl.Change, error) { return crowdedChange(id), nil })
				default:
					r, err = s.Commit(t.Context(), crowdedChange(id))
				}
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				c.told(t, id, r)
				if ok, err := s.View().Contains(r); !ok || err != nil {
					t.Errorf("%s: the view that came after does not contain it: %v, %v", id, ok, err)
				}
				if again, o, err := s.Lookup(t.Context(), id); err != nil || o != pawl.OutcomeCommitted || again.Version != r.Version {
					t.Errorf("lookup %s: %v %v %v, want %v", id, again, o, err, r)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for i := 0; keep > 0; i++ {
		select {
		case <-done:
			return c
		default:
		}
		if _, err := stores[i%len(stores)].Compact(t.Context(), pawl.Policy{KeepLast: keep}); err != nil {
			t.Errorf("compact: %v", err)
			break
		}
	}
	<-done
	return c
}

// check holds the history against what was told.
func (c *crowded) check(t *testing.T, s *pawl.Store, all bool) {
	t.Helper()
	if err := s.Checkpoint(t.Context()); err != nil { // with Shared, it sees what others did
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for info, err := range s.View().Commits(0) {
		if err != nil {
			t.Fatal(err)
		}
		r := pawl.Receipt{Version: info.Version, FirstSeq: info.FirstSeq, LastSeq: info.LastSeq}
		if seen[info.ID] || c.receipts[info.ID] != r || c.fresh[info.ID] != 1 {
			t.Errorf("commit %q: %v, told %v, committed anew %d times", info.ID, r, c.receipts[info.ID], c.fresh[info.ID])
		}
		seen[info.ID] = true
	}
	if len(seen) != len(c.receipts) || int(s.View().Version().Revision) != len(seen) {
		t.Errorf("%d commits, %d ids were told of, revision %d", len(seen), len(c.receipts), s.View().Version().Revision)
	}
	if c.calls <= len(seen) {
		t.Errorf("%d calls for %d ids: none was asked for twice", c.calls, len(seen))
	}
	entries := 0
	for e, err := range s.View().Entries(0) {
		if err != nil {
			t.Fatal(err)
		}
		if all && e.Seq != pawl.Seq(entries+1) {
			t.Fatalf("entry %d is seq %d", entries, e.Seq)
		}
		entries++
	}
	if all && entries != 2*len(seen) {
		t.Errorf("%d entries of %d commits", entries, len(seen))
	}
	if err := s.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestGroupCommitsBesideSealing(t *testing.T) {
	inMemory(t)
	for name, every := range map[string]int{"each": 1, "second": 2, "fifth": 5, "journal": 0} {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			s := openStore(t, quick(), dir, trust, &pawl.Options{CheckpointEvery: every, Limits: pawl.Limits{Unsealed: 1, Journal: 16 << 10}})
			crowd(t, []*pawl.Store{s}, 8, 60, 150, 0).check(t, s, true)
		})
	}
}

func TestGroupCommitsBesideCompact(t *testing.T) {
	inMemory(t)
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, quick(), dir, trust, &pawl.Options{CheckpointEvery: 2, Limits: pawl.Limits{Unsealed: 1}})
	crowd(t, []*pawl.Store{s}, 8, 60, 150, 9).check(t, s, false)
}

func TestGroupCommitsBesideSealingShared(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what one Store keeps open for Views the other cannot remove there, nor can the test")
	}
	inMemory(t)
	for name, keep := range map[string]uint64{"sealing": 0, "compact": 9} {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			o := &pawl.Options{Shared: true, CheckpointEvery: 2, Limits: pawl.Limits{Unsealed: 1}}
			stores := []*pawl.Store{openStore(t, quick(), dir, trust, o), openStore(t, quick(), dir, trust, o)}
			c := crowd(t, stores, 6, 40, 100, keep)
			for _, s := range stores {
				c.check(t, s, keep == 0)
			}
		})
	}
}

// Ids that are forgotten while goroutines ask for them are acknowledged or refused, never
// committed a second time.
func TestForgottenBesideCommits(t *testing.T) {
	inMemory(t)
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, quick(), dir, trust, &pawl.Options{CheckpointEvery: 2, Limits: pawl.Limits{Unsealed: 1}})
	var receipts []pawl.Receipt
	for i := range 40 {
		receipts = append(receipts, commit(t, s, crowdedChange(fmt.Sprint("id ", i))))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	last := make(chan struct{}) // closed when all but the newest are forgotten
	for g := range 6 {
		rnd := rand.New(rand.NewPCG(uint64(g), 12))
		wg.Go(func() {
			for end := false; ; {
				i := rnd.IntN(30)
				r, err := s.Commit(t.Context(), crowdedChange(fmt.Sprint("id ", i)))
				want := receipts[i]
				want.Replayed = true
				switch {
				case errors.Is(err, pawl.ErrForgotten) && errors.Is(err, pawl.ErrNotCommitted):
					mu.Lock()
					refused++
					mu.Unlock()
				case err != nil || r != want:
					t.Errorf("id %d again: %+v, %v", i, r, err)
				}
				if end {
					return
				}
				select {
				case <-last:
					end = true
				default:
				}
			}
		})
	}
	for before := pawl.Revision(3); before <= 31; before += 4 {
		if _, err := s.Compact(context.Background(), pawl.Policy{KeepSince: before, ForgetBefore: before}); err != nil {
			t.Error(err)
		}
	}
	close(last)
	wg.Wait()
	if refused < 6 {
		t.Errorf("%d calls were refused", refused)
	}
	if v := s.View().Version(); v != slices.MaxFunc(receipts, func(a, b pawl.Receipt) int { return int(a.Revision) - int(b.Revision) }).Version {
		t.Errorf("the version is %v", v)
	}
}
