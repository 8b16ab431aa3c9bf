package pawl_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-5cdcd42d/pawl"
)

// Entries begins after any seq: before the first, between commits, within one, at
// the last, and beyond.
func TestEntriesAfter(t *testing.T) {
	s := newStore(t)
	var all []string
	for i, n := range []int{2, 0, 1, 3, 0} {
		c := pawl.Change{ID: "c" + strconv.Itoa(i)}
		for j := range n {
			text := fmt.Sprintf("%d-%d", i, j)
			c.Entries = append(c.Entries, []byte(text))
			all = append(all, fmt.Sprintf("%d/%d:%s", len(all)+1, i+1, text))
		}
		commit(t, s, c)
	}
	v := s.View()
	for after := range pawl.Seq(10) {
		want := all[min(int(after), len(all)):]
		if got := entriesOf(t, v, after); !slices.Equal(got, want) {
			t.Errorf("after %d: %q, want %q", after, got, want)
		}
		// Early ends: a consumer may stop at any entry.
		for stop := range len(want) {
			var got []string
			for e := range v.Entries(after) {
				got = append(got, fmt.Sprintf("%d/%d:%s", e.Seq, e.Revision, e.Data))
				if len(got) == stop+1 {
					break
				}
			}
			if !slices.Equal(got, want[:stop+1]) {
				t.Errorf("after %d, %d of them: %q", after, stop+1, got)
			}
		}
	}
	for _, after := range []pawl.Seq{math.MaxInt64, math.MaxUint64 - 1, math.MaxUint64} {
		if got := entriesOf(t, v, after); got != nil {
			t.Errorf("after %d: %q", after, got)
		}
	}
	// An iterator may be used again, and what it gives is the caller's to keep.
	iter := v.Entries(0)
	for e := range iter {
		clear(e.Data)
	}
	if got := entriesOf(t, v, 0); !slices.Equal(got, all) {
		t.Errorf("a caller changed the history: %q", got)
	}
}

func TestCommits(t *testing.T) {
	s := newStore(t)
	start := time.Now()
	var want []pawl.CommitInfo
	for i, c := range []pawl.Change{
		{ID: "a", Entries: [][]byte{nil, nil}},
		{Put: map[string][]byte{"z": nil, "a": nil, "m": nil}},
		{ID: "c", Entries: [][]byte{nil}, Put: map[string][]byte{"z": nil}, Delete: []string{"m", "a", "never"}},
	} {
		r := commit(t, s, c)
		want = append(want, pawl.CommitInfo{Version: r.Version, ID: c.ID, FirstSeq: r.FirstSeq, LastSeq: r.LastSeq})
		switch i {
		case 1:
			want[1].Put = []string{"a", "m", "z"}
		case 2:
			want[2].Put, want[2].Deleted = []string{"z"}, []string{"a", "m", "never"}
		}
	}
	v := s.View()
	list := func(after pawl.Revision) (got []pawl.CommitInfo) {
		for c, err := range v.Commits(after) {
			if err != nil {
				t.Fatal(err)
			}
			if c.Time.Location() != time.UTC || c.Time.Before(start.Add(-time.Hour)) || c.Time.After(time.Now().Add(time.Hour)) {
				t.Errorf("time %v", c.Time)
			}
			got = append(got, c)
		}
		return got
	}
	diff := func(want, got []pawl.CommitInfo) string {
		return cmp.Diff(want, got, cmpopts.IgnoreFields(pawl.CommitInfo{}, "Time"), cmpopts.EquateEmpty())
	}
	for after := range pawl.Revision(6) {
		if d := diff(want[min(int(after), len(want)):], list(after)); d != "" {
			t.Errorf("after %d (-want +got):\n%s", after, d)
		}
	}
	if got := list(math.MaxUint64); got != nil {
		t.Errorf("beyond all: %+v", got)
	}
	for range v.Commits(0) {
		break
	}
	for c := range v.Commits(0) {
		for i := range c.Put {
			c.Put[i] = "scribbled"
		}
		for i := range c.Deleted {
			c.Deleted[i] = "scribbled"
		}
	}
	if d := diff(want, list(0)); d != "" {
		t.Errorf("a caller changed the history (-want +got):\n%s", d)
	}
}

func TestPartsAndGet(t *testing.T) {
	s := newStore(t)
	names := []string{"b", "a", "Z", "a/b", "a.b", "größe", "10", "9", "empty"}
	c := pawl.Change{Put: map[string][]byte{}}
	for _, name := range names {
		c.Put[name] = []byte(name)
	}
	c.Put["empty"] = nil
	commit(t, s, c)
	v := s.View()
	slices.Sort(names)
	if got := slices.Collect(v.Parts()); !slices.Equal(got, names) {
		t.Errorf("parts %q, want %q", got, names)
	}
	for name := range v.Parts() {
		if name != names[0] {
			t.Errorf("the first part is %q", name)
		}
		break
	}
	// What Get returns is a copy.
	b, _, _ := v.Get("a")
	b[0] = 'x'
	_ = append(b, "more"...)
	if b, ok, err := v.Get("a"); string(b) != "a" || !ok || err != nil {
		t.Errorf("%q, %v, %v", b, ok, err)
	}
	// A part of no bytes is there; one that is not there is not.
	if b, ok, err := v.Get("empty"); b == nil || len(b) != 0 || !ok || err != nil {
		t.Errorf("empty: %v, %v, %v", b, ok, err)
	}
	for _, name := range []string{"none", "", "..", "A"} {
		if b, ok, err := v.Get(name); b != nil || ok || err != nil {
			t.Errorf("%q: %q, %v, %v", name, b, ok, err)
		}
	}
}

// The zero View is the state of a store that does not exist: empty.
func TestZeroView(t *testing.T) {
	var v pawl.View
	if v.Version() != (pawl.Version{}) {
		t.Errorf("version %v", v.Version())
	}
	if got := entriesOf(t, v, 0); got != nil {
		t.Errorf("entries %q", got)
	}
	for c := range v.Commits(0) {
		t.Errorf("commit %+v", c)
	}
	for name := range v.Parts() {
		t.Errorf("part %q", name)
	}
	if b, ok, err := v.Get("a"); b != nil || ok || err != nil {
		t.Errorf("%q, %v, %v", b, ok, err)
	}
	if n, ok, err := pawl.GetJSON[int](v, "a"); n != 0 || ok || err != nil {
		t.Errorf("%d, %v, %v", n, ok, err)
	}
	if ok, err := v.Contains(pawl.Receipt{Version: pawl.Version{Revision: 1}}); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// A receipt proves that its commit is part of the history, in every later view and
// in none before; what is not exactly a receipt of this history proves nothing.
func TestContains(t *testing.T) {
	s := newStore(t)
	views := []pawl.View{s.View()}
	var receipts []pawl.Receipt
	for _, c := range []pawl.Change{entry("a", "x"), put("p", "x"), {ID: "c", Entries: [][]byte{nil, nil}}} {
		receipts = append(receipts, commit(t, s, c))
		views = append(views, s.View())
	}
	for i, v := range views {
		for j, r := range receipts {
			// What the caller kept elsewhere is the text.
			var kept pawl.Receipt
			text, err := r.MarshalText()
			if err == nil {
				err = kept.UnmarshalText(text)
			}
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := v.Contains(kept); ok != (j < i) || err != nil {
				t.Errorf("receipt %d in view %d: %v, %v", j+1, i, ok, err)
			}
		}
		empty := pawl.Receipt{Version: views[0].Version()}
		if ok, err := v.Contains(empty); !ok || err != nil {
			t.Errorf("the empty store in view %d: %v, %v", i, ok, err)
		}
	}
	last, v := receipts[2], views[3]
	replayed := last
	replayed.Replayed = true
	if ok, err := v.Contains(replayed); !ok || err != nil {
		t.Errorf("replayed: %v, %v", ok, err)
	}
	for name, change := range map[string]func(*pawl.Receipt){
		"zero":                   func(r *pawl.Receipt) { *r = pawl.Receipt{} },
		"another digest":         func(r *pawl.Receipt) { r.Digest[31] ^= 1 },
		"another revision":       func(r *pawl.Receipt) { r.Revision = 2 },
		"a revision to come":     func(r *pawl.Receipt) { r.Revision = 4 },
		"the highest revision":   func(r *pawl.Receipt) { r.Revision = math.MaxUint64 },
		"revision 0":             func(r *pawl.Receipt) { r.Revision = 0 },
		"another first seq":      func(r *pawl.Receipt) { r.FirstSeq-- },
		"another last seq":       func(r *pawl.Receipt) { r.LastSeq++ },
		"seqs of an empty store": func(r *pawl.Receipt) { *r = pawl.Receipt{Version: views[0].Version(), FirstSeq: 1, LastSeq: 1} },
	} {
		r := last
		change(&r)
		if ok, err := v.Contains(r); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

// A view stays what it was while commits go on, and many may read it at once.
func TestViewsAreSnapshots(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for i := range 20 {
		text := strconv.Itoa(i)
		c := entry("", text)
		c.Put = map[string][]byte{"n": []byte(text), "p" + text: []byte(text)}
		if i > 0 {
			c.Delete = []string{"p" + strconv.Itoa(i-1)}
		}
		commit(t, s, c)
		v := s.View()
		wg.Go(func() {
			if n := strings.Join(slices.Collect(v.Parts()), " "); n != "n p"+text {
				t.Errorf("parts %q at %d", n, i+1)
			}
			if b, _, _ := v.Get("n"); string(b) != text {
				t.Errorf("n is %q at %d", b, i+1)
			}
			n := pawl.Seq(0)
			for e, err := range v.Entries(0) {
				if n++; err != nil || e.Seq != n || string(e.Data) != strconv.Itoa(int(n-1)) {
					t.Errorf("entry %d is %q, %v", e.Seq, e.Data, err)
				}
			}
			if int(n) != i+1 || int(v.Version().Revision) != i+1 {
				t.Errorf("%d entries, at %v", n, v.Version())
			}
		})
	}
	wg.Wait()
}
