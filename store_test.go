package pawl_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// openStore opens a store and closes it when the test ends.
func openStore(t testing.TB, ctx context.Context, dir, trust string, opts *pawl.Options) *pawl.Store {
	t.Helper()
	s, err := pawl.Open(ctx, dir, trust, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// newStore makes a store that no other test has.
func newStore(t testing.TB) *pawl.Store {
	dir, trust := testkit.Dirs(t)
	return openStore(t, t.Context(), dir, trust, nil)
}

func commit(t testing.TB, s *pawl.Store, c pawl.Change) pawl.Receipt {
	t.Helper()
	r, err := s.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// entry is a change of one entry.
func entry(id, text string) pawl.Change {
	return pawl.Change{ID: id, Entries: [][]byte{[]byte(text)}}
}

func put(part, text string) pawl.Change {
	return pawl.Change{Put: map[string][]byte{part: []byte(text)}}
}

// entriesOf lists the entries of a view as "seq/revision:text".
func entriesOf(t testing.TB, v pawl.View, after pawl.Seq) []string {
	t.Helper()
	var list []string
	for e, err := range v.Entries(after) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%d/%d:%s", e.Seq, e.Revision, e.Data))
	}
	return list
}

// partsOf returns all parts of a view.
func partsOf(t testing.TB, v pawl.View) map[string]string {
	t.Helper()
	parts := map[string]string{}
	for name := range v.Parts() {
		b, ok, err := v.Get(name)
		if !ok || err != nil {
			t.Fatalf("part %q: %v, %v", name, ok, err)
		}
		parts[name] = string(b)
	}
	return parts
}

// notCommitted checks the error of a change that certainly did not happen: of its
// two outcomes it names this one and not the other (33), and its class.
func notCommitted(t testing.TB, err error, class ...error) {
	t.Helper()
	var e *pawl.Error
	if !errors.Is(err, pawl.ErrNotCommitted) || errors.Is(err, pawl.ErrInDoubt) || !errors.As(err, &e) || e.Outcome != pawl.ErrNotCommitted {
		t.Fatalf("not a certain error: %v", err)
	}
	for _, c := range class {
		if !errors.Is(err, c) {
			t.Errorf("error %v, want %v", err, c)
		}
	}
}

// hookFS is a machine on which a test stands beside the calls that show or flush a
// change: before is called first, and its error is the call's.
type hookFS struct {
	vfs.FS
	before func(call, path string) error
}

func (h *hookFS) OpenDir(path string) (vfs.Dir, error) {
	d, err := h.FS.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return hookDir{d, h}, nil
}

type hookDir struct {
	vfs.Dir
	fs *hookFS
}

func (d hookDir) Open(name string) (vfs.File, error) {
	if err := d.fs.before("open", filepath.Join(d.Path(), name)); err != nil {
		return nil, err
	}
	return d.Dir.Open(name)
}

func (d hookDir) Rename(old, name string) error {
	if err := d.fs.before("rename", filepath.Join(d.Path(), name)); err != nil {
		return err
	}
	return d.Dir.Rename(old, name)
}

func (d hookDir) Sync() error {
	if err := d.fs.before("sync", d.Path()); err != nil {
		return err
	}
	return d.Dir.Sync()
}

// hooked returns a context whose machine calls before.
func hooked(ctx context.Context, before func(call, path string) error) context.Context {
	return vfs.NewContext(ctx, &hookFS{vfs.OS(), before})
}

// copyStore copies a store as it is on disk at this moment, the lock files left
// out: what a process leaves that is killed now.
func copyStore(t testing.TB, fromDir, fromTrust, dir, trust string) {
	t.Helper()
	for from, to := range map[string]string{fromDir: dir, fromTrust: trust} {
		if err := os.Mkdir(to, 0o700); err != nil {
			t.Fatal(err)
		}
		list, err := os.ReadDir(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Name() == "lock" || strings.HasSuffix(e.Name(), ".lock") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(from, e.Name()))
			if err == nil {
				err = os.WriteFile(filepath.Join(to, e.Name()), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// killed makes a store whose process was killed and returns where it is:
//
//	"idle"       between two commits
//	"unlanded"   in the commit "second", when its intent was durable
//	"landed"     in the commit "second", when its bundle had been renamed
//
// and the same with the journal that "second" makes, as "unlanded journal" and "landed
// journal". The commit before it is "first". The receipt is that of "first", or of
// "second" where that has landed.
func killed(t testing.TB, when string) (dir, trust string, last pawl.Receipt) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "before")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	fromDir, fromTrust := filepath.Join(root, "session"), filepath.Join(root, "trust")
	dir, trust = testkit.Dirs(t)
	armed := false
	copies := 0
	var opts *pawl.Options
	at, file := "rename bundle", "journal.000000000001"
	when, journal := strings.CutSuffix(when, " journal")
	switch {
	case when == "landed":
		at = "sync session"
	case journal:
		at = "rename " + file
	}
	if !journal {
		opts = &pawl.Options{CheckpointEvery: 1}
	}
	ctx := hooked(t.Context(), func(call, path string) error {
		if armed && call+" "+filepath.Base(path) == at {
			copyStore(t, fromDir, fromTrust, dir, trust)
			copies++
			armed = false
		}
		return nil
	})
	s, err := pawl.Open(ctx, fromDir, fromTrust, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first := entry("first", "one")
	first.Put = map[string][]byte{"state": []byte("1")}
	last = commit(t, s, first)
	if when == "idle" {
		copyStore(t, fromDir, fromTrust, dir, trust)
		return dir, trust, last
	}
	armed = true
	second := entry("second", "two")
	second.Put = map[string][]byte{"state": []byte("2")}
	r := commit(t, s, second)
	if when == "landed" {
		last = r
	}
	if copies != 1 {
		t.Fatalf("%d copies made", copies)
	}
	return dir, trust, last
}

// Several parts and entries change in one commit or not at all (R11), and so do
// deletions.
func TestCommitTogether(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	commit(t, s, pawl.Change{Put: map[string][]byte{"a": []byte("1"), "b": []byte("1"), "c": []byte("1")}})
	old := s.View()
	r := commit(t, s, pawl.Change{
		ID:      "together",
		Entries: [][]byte{[]byte("x"), {}, nil},
		Put:     map[string][]byte{"b": []byte("2"), "d": nil},
		Delete:  []string{"c", "not-there", "c"},
	})
	if r.Revision != 2 || r.FirstSeq != 1 || r.LastSeq != 3 || r.Replayed || r.Version != s.View().Version() {
		t.Errorf("receipt %+v", r)
	}
	check := func(v pawl.View) {
		t.Helper()
		if diff := cmp.Diff(map[string]string{"a": "1", "b": "2", "d": ""}, partsOf(t, v)); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"1/2:x", "2/2:", "3/2:"}, entriesOf(t, v, 0)); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
	}
	check(s.View())
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "1", "c": "1"}, partsOf(t, old)); diff != "" {
		t.Errorf("a view changed (-want +got):\n%s", diff)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(openStore(t, t.Context(), dir, trust, nil).View())
}

// Bytes in are bytes out, whatever they are (R11), and the caller may write over
// its buffers as soon as the call has returned.
func TestBytesInAreBytesOut(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	big := make([]byte, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range big {
		big[i] = byte(random.Uint32())
	}
	want := [][]byte{all, {}, []byte("\r\n\r\n"), []byte("\xef\xbb\xbf\xff\xfe"), bytes.Repeat([]byte{0}, 5000), []byte("line\n"), big}
	c := pawl.Change{Put: map[string][]byte{}}
	for i, b := range want {
		c.Entries = append(c.Entries, bytes.Clone(b))
		c.Put["part-"+strconv.Itoa(i)] = bytes.Clone(b)
	}
	commit(t, s, c)
	for i := range c.Entries {
		clear(c.Entries[i])
		clear(c.Put["part-"+strconv.Itoa(i)])
	}
	check := func(v pawl.View) {
		t.Helper()
		n := 0
		for e, err := range v.Entries(0) {
			if err != nil || !bytes.Equal(e.Data, want[n]) {
				t.Errorf("entry %d is another, %v", n, err)
			}
			n++
		}
		for i := range want {
			if b, ok, err := v.Get("part-" + strconv.Itoa(i)); !ok || err != nil || !bytes.Equal(b, want[i]) {
				t.Errorf("part %d is another, %v, %v", i, ok, err)
			}
		}
		if n != len(want) {
			t.Errorf("%d entries", n)
		}
	}
	check(s.View())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(openStore(t, t.Context(), dir, trust, nil).View())
}

// Revisions and seqs rise by one and none is used twice (39), whatever a change
// holds, across reopening, and with refused changes in between.
func TestNumbers(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	type numbers struct {
		Revision    pawl.Revision
		First, Last pawl.Seq
	}
	two := pawl.Change{Entries: [][]byte{[]byte("a"), []byte("b")}}
	var got []numbers
	for range 2 {
		s := openStore(t, t.Context(), dir, trust, nil)
		for _, c := range []pawl.Change{two, put("p", "x"), {}, entry("", "c"), {Delete: []string{"nothing"}}, two} {
			r := commit(t, s, c)
			got = append(got, numbers{r.Revision, r.FirstSeq, r.LastSeq})
			if _, err := s.Commit(t.Context(), entry("\n", "refused")); err == nil {
				t.Fatal("a bad id was accepted")
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The third of each is empty: it returns what the second made.
	want := []numbers{
		{1, 1, 2}, {2, 0, 0}, {2, 0, 0}, {3, 3, 3}, {4, 0, 0}, {5, 4, 5},
		{6, 6, 7}, {7, 0, 0}, {7, 0, 0}, {8, 8, 8}, {9, 0, 0}, {10, 9, 10},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A lost acknowledgement: the same id with the same content gets the first receipt,
// later and by another process too, and changes nothing.
func TestSameIDReplays(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	c := pawl.Change{ID: "call", Entries: [][]byte{[]byte("a"), []byte("b")}, Put: map[string][]byte{"p": []byte("1"), "q": nil}, Delete: []string{"x", "y"}}
	first := commit(t, s, c)
	again := first
	again.Replayed = true
	if r := commit(t, s, c); r != again {
		t.Errorf("at once: %+v, want %+v", r, again)
	}
	commit(t, s, put("p", "2"))
	now := s.View().Version()
	// Deletions are a set, and nil and no bytes are the same.
	c.Delete = []string{"y", "x", "y"}
	c.Put["q"] = []byte{}
	// What was expected then has been fulfilled then.
	c.Expect = &pawl.Version{}
	if r := commit(t, s, c); r != again {
		t.Errorf("later: %+v, want %+v", r, again)
	}
	if s.View().Version() != now || partsOf(t, s.View())["p"] != "2" {
		t.Error("a replay changed the state")
	}
	if n := s.Stats(); n.Commits != 2 || n.Replays != 2 {
		t.Errorf("%d commits, %d replays", n.Commits, n.Replays)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, t.Context(), dir, trust, nil)
	if r := commit(t, s, c); r != again {
		t.Errorf("after reopening: %+v, want %+v", r, again)
	}
	if got, outcome, err := s.Lookup(t.Context(), "call"); got != first || outcome != pawl.OutcomeCommitted || err != nil {
		t.Errorf("Lookup: %+v, %v, %v", got, outcome, err)
	}
}

// The same id with other content is refused, and is not the caller's other commit
// (32: ids are reused by those who make them).
func TestSameIDOtherContent(t *testing.T) {
	s := newStore(t)
	make := func(change func(*pawl.Change)) pawl.Change {
		c := pawl.Change{ID: "call", Entries: [][]byte{[]byte("a"), []byte("b")}, Put: map[string][]byte{"p": []byte("1")}, Delete: []string{"x"}}
		change(&c)
		return c
	}
	commit(t, s, make(func(*pawl.Change) {}))
	before := s.View().Version()
	for name, c := range map[string]pawl.Change{
		"no content":     {ID: "call"},
		"fewer entries":  make(func(c *pawl.Change) { c.Entries = c.Entries[:1] }),
		"more entries":   make(func(c *pawl.Change) { c.Entries = append(c.Entries, nil) }),
		"another order":  make(func(c *pawl.Change) { slices.Reverse(c.Entries) }),
		"joined entries": make(func(c *pawl.Change) { c.Entries = [][]byte{[]byte("ab")} }),
		"another part":   make(func(c *pawl.Change) { c.Put = map[string][]byte{"q": []byte("1")} }),
		"other bytes":    make(func(c *pawl.Change) { c.Put["p"] = []byte("2") }),
		"one part more":  make(func(c *pawl.Change) { c.Put["q"] = nil }),
		"no deletion":    make(func(c *pawl.Change) { c.Delete = nil }),
		"put for delete": make(func(c *pawl.Change) { c.Delete, c.Put["x"] = nil, nil }),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := s.Commit(t.Context(), c)
			notCommitted(t, err, pawl.ErrIDReused)
			if r != (pawl.Receipt{}) || s.View().Version() != before {
				t.Errorf("receipt %+v, state %v", r, s.View().Version())
			}
		})
	}
}

// Two writers who read the same state: the second is told by a value, not by a text
// (30), and may try again.
func TestExpect(t *testing.T) {
	s := newStore(t)
	empty := s.View().Version()
	c := entry("", "one")
	c.Expect = &empty
	first := commit(t, s, c)

	for name, v := range map[string]pawl.Version{
		"an older one":    empty,
		"a newer one":     {Revision: 2, Digest: first.Digest},
		"another history": {Revision: 1, Digest: empty.Digest},
		"none":            {},
	} {
		c.Expect = &v
		_, err := s.Commit(t.Context(), c)
		notCommitted(t, err, pawl.ErrStale)
		if s.View().Version() != first.Version {
			t.Errorf("%s: the state moved", name)
		}
	}
	c.Expect = &first.Version
	if r := commit(t, s, c); r.Revision != 2 {
		t.Errorf("revision %d", r.Revision)
	}
	// The empty change asks and does nothing.
	if _, err := s.Commit(t.Context(), pawl.Change{Expect: &first.Version}); !errors.Is(err, pawl.ErrStale) {
		t.Errorf("an empty change with a stale Expect: %v", err)
	}
}

// An empty change does nothing at all. What it returns is as good a receipt as any:
// the state that it names is part of the history.
func TestEmptyChange(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	// No confirm is left for a timer, which would count too.
	s := openStore(t, t.Context(), dir, trust, &pawl.Options{SyncConfirm: true})
	for _, c := range []pawl.Change{{}, entry("", "one"), put("p", "x"), {ID: "id"}} {
		want := commit(t, s, c).Version
		before, stats := testkit.Snapshot(t, dir, trust), s.Stats()
		for _, empty := range []pawl.Change{{}, {Entries: [][]byte{}, Put: map[string][]byte{}, Delete: []string{}}} {
			r := commit(t, s, empty)
			if r.Version != want || r.Replayed {
				t.Errorf("receipt %+v at %v", r, want)
			}
			if ok, err := s.View().Contains(r); !ok || err != nil {
				t.Errorf("the receipt of an empty change at revision %d is not contained: %v", r.Revision, err)
			}
		}
		if diff := cmp.Diff(before, testkit.Snapshot(t, dir, trust)); diff != "" {
			t.Errorf("an empty change wrote:\n%s", diff)
		}
		if after := s.Stats(); after != stats {
			t.Errorf("counted: %+v, before %+v", after, stats)
		}
	}
}

// A change with nothing but an id is a commit: it marks that something happened.
func TestIDOnlyChange(t *testing.T) {
	s := newStore(t)
	before := s.View().Version()
	r := commit(t, s, pawl.Change{ID: "mark"})
	if r.Revision != 1 || r.FirstSeq != 0 || r.LastSeq != 0 || r.Digest == before.Digest {
		t.Errorf("receipt %+v", r)
	}
	if r := commit(t, s, pawl.Change{ID: "mark"}); !r.Replayed {
		t.Error("not replayed")
	}
}

func TestSetJSON(t *testing.T) {
	s := newStore(t)
	var c pawl.Change
	c.SetJSON("state.json", map[string]int{"cursor": 7})
	c.SetJSON("list.json", []string{"<a>", "é"})
	commit(t, s, c)
	if got := partsOf(t, s.View())["state.json"]; got != `{"cursor":7}` {
		t.Errorf("part %q", got)
	}
	if v, ok, err := pawl.GetJSON[map[string]int](s.View(), "state.json"); v["cursor"] != 7 || !ok || err != nil {
		t.Errorf("%v, %v, %v", v, ok, err)
	}
	if v, ok, err := pawl.GetJSON[[]string](s.View(), "list.json"); !slices.Equal(v, []string{"<a>", "é"}) || !ok || err != nil {
		t.Errorf("%v, %v, %v", v, ok, err)
	}
	if v, ok, err := pawl.GetJSON[*int](s.View(), "none.json"); v != nil || ok || err != nil {
		t.Errorf("a part that is not there: %v, %v, %v", v, ok, err)
	}

	// What does not encode is kept and refused by Commit, and so is the rest of that
	// change, whatever is set afterwards.
	var bad pawl.Change
	bad.SetJSON("first.json", func() {})
	bad.SetJSON("second.json", make(chan int))
	bad.SetJSON("good.json", 1)
	_, err := s.Commit(t.Context(), bad)
	notCommitted(t, err, pawl.ErrInvalid)
	if !strings.Contains(err.Error(), "first.json") {
		t.Errorf("the error does not name the part: %v", err)
	}
	if s.View().Version().Revision != 1 {
		t.Error("half a change was committed")
	}

	// What does not decode is an error that names the part, with no half-read value.
	commit(t, s, put("broken.json", `{"a":1,"b":`))
	commit(t, s, put("text.json", `{"a":1,"b":"text"}`))
	for _, part := range []string{"broken.json", "text.json"} {
		v, ok, err := pawl.GetJSON[map[string]int](s.View(), part)
		if v != nil || !ok || err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, %v, %v", part, v, ok, err)
		}
	}
}

// Update shows its function the newest state, and nothing comes in between:
// increments by many add up exactly.
func TestUpdateCountsExactly(t *testing.T) {
	s := newStore(t)
	const workers, each = 8, 6
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				_, err := s.Update(context.Background(), "", func(v pawl.View) (pawl.Change, error) {
					n, _, err := pawl.GetJSON[int](v, "n")
					c := entry("", strconv.Itoa(w))
					c.SetJSON("n", n+1)
					return c, err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, _, err := pawl.GetJSON[int](s.View(), "n"); n != workers*each || err != nil {
		t.Errorf("counted to %d, %v", n, err)
	}
	if got := len(entriesOf(t, s.View(), 0)); got != workers*each {
		t.Errorf("%d entries", got)
	}
}

func TestUpdateWithID(t *testing.T) {
	s := newStore(t)
	runs := 0
	step := func(pawl.View) (pawl.Change, error) {
		runs++
		return entry("", "run "+strconv.Itoa(runs)), nil
	}
	first, err := s.Update(t.Context(), "step-1", step)
	if err != nil || runs != 1 || first.Replayed || first.FirstSeq != 1 {
		t.Fatalf("%+v, %v, %d runs", first, err, runs)
	}
	// The acknowledgement was lost: fn does not run again, though it would make
	// another change by now (31).
	again, err := s.Update(t.Context(), "step-1", step)
	first.Replayed = true
	if err != nil || runs != 1 || again != first {
		t.Fatalf("%+v, %v, %d runs", again, err, runs)
	}
	// The change may carry the id too, but not another one.
	named := func(id string) func(pawl.View) (pawl.Change, error) {
		return func(pawl.View) (pawl.Change, error) { return entry(id, "x"), nil }
	}
	if r, err := s.Update(t.Context(), "step-2", named("step-2")); err != nil || r.Revision != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = s.Update(t.Context(), "step-3", named("step-4"))
	notCommitted(t, err, pawl.ErrInvalid)
	// Without an id of Update, that of the change counts, and is checked as in Commit.
	if r, err := s.Update(t.Context(), "", named("step-2")); err != nil || !r.Replayed {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = s.Update(t.Context(), "", named("step-1"))
	notCommitted(t, err, pawl.ErrIDReused)
	// With an id, no content is a commit too.
	nothing := func(pawl.View) (pawl.Change, error) { return pawl.Change{}, nil }
	if r, err := s.Update(t.Context(), "step-5", nothing); err != nil || r.Revision != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := s.Update(t.Context(), "", nothing); err != nil || r.Revision != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = s.Update(t.Context(), "a\nb", nothing)
	notCommitted(t, err, pawl.ErrInvalid)
	if v := s.View().Version(); v.Revision != 3 {
		t.Errorf("at %v", v)
	}
}

// The error of Update's function comes through, and says nothing about this store
// but that nothing was committed.
func TestUpdateFunctionFails(t *testing.T) {
	s := newStore(t)
	mine := errors.New("mine")
	for _, e := range []error{mine, fmt.Errorf("wrapped: %w", mine), errors.Join(mine, pawl.ErrInDoubt)} {
		r, err := s.Update(t.Context(), "id", func(pawl.View) (pawl.Change, error) { return entry("", "x"), e })
		notCommitted(t, err, mine)
		if r != (pawl.Receipt{}) {
			t.Errorf("receipt %+v", r)
		}
	}
	func() {
		defer func() {
			if p := recover(); p != "panic" {
				t.Errorf("recovered %v", p)
			}
		}()
		s.Update(t.Context(), "id", func(pawl.View) (pawl.Change, error) { panic("panic") })
	}()
	if _, outcome, err := s.Lookup(t.Context(), "id"); outcome != pawl.OutcomeNotCommitted || err != nil {
		t.Errorf("%v, %v", outcome, err)
	}
	if r := commit(t, s, entry("id", "x")); r.Revision != 1 || r.FirstSeq != 1 {
		t.Errorf("the next commit is %+v", r)
	}
}

// "Never arrived" and "may have been applied" are told apart (33).
func TestLookup(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	atRename, goOn := make(chan bool), make(chan bool)
	var failing, blocking bool
	ctx := hooked(t.Context(), func(call, path string) error {
		if blocking && call == "rename" && filepath.Base(path) == "bundle" {
			atRename <- true
			<-goOn
		}
		if failing && call == "sync" && path == dir {
			return syscall.EIO
		}
		return nil
	})
	s := openStore(t, ctx, dir, trust, &pawl.Options{CheckpointEvery: 1})
	check := func(id string, want pawl.Outcome, receipt pawl.Receipt) {
		t.Helper()
		got, outcome, err := s.Lookup(t.Context(), id)
		if outcome != want || got != receipt || err != nil {
			t.Errorf("%s: %v, %+v, %v; want %v, %+v", id, outcome, got, err, want, receipt)
		}
	}
	none := pawl.Receipt{}
	check("first", pawl.OutcomeNotCommitted, none)
	first := commit(t, s, entry("first", "1"))
	check("first", pawl.OutcomeCommitted, first)
	check("second", pawl.OutcomeNotCommitted, none)

	// While the commit is under way nobody can tell, and Lookup does not wait.
	blocking = true
	done := make(chan pawl.Receipt)
	go func() {
		r, err := s.Commit(context.Background(), entry("second", "2"))
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	<-atRename
	check("second", pawl.OutcomeUnknown, none)
	check("first", pawl.OutcomeCommitted, first)
	check("third", pawl.OutcomeNotCommitted, none)
	if v := s.View().Version(); v != first.Version {
		t.Errorf("the view shows %v before it is durable", v)
	}
	goOn <- true
	second := <-done
	blocking = false
	check("second", pawl.OutcomeCommitted, second)

	// A failed flush of the directory: nobody knows, until the store has settled.
	failing = true
	_, err := s.Commit(t.Context(), entry("third", "3"))
	if !errors.Is(err, pawl.ErrInDoubt) || errors.Is(err, pawl.ErrNotCommitted) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("error %v", err)
	}
	check("third", pawl.OutcomeUnknown, none)
	check("second", pawl.OutcomeCommitted, second)
	if _, err := s.Recover(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("recovered without a flush: %v", err)
	}
	check("third", pawl.OutcomeUnknown, none)
	if err := s.Checkpoint(t.Context()); !errors.Is(err, pawl.ErrInDoubt) || errors.Is(err, pawl.ErrNotCommitted) {
		t.Errorf("Checkpoint in doubt: %v", err)
	}
	if _, err := s.Commit(t.Context(), entry("fourth", "4")); err == nil {
		t.Error("a commit in doubt")
	}
	failing = false
	rec, err := s.Recover(t.Context())
	if err != nil || rec.Settled != pawl.SettledLanded || !slices.Equal(rec.Commits, []string{"third"}) {
		t.Fatalf("%+v, %v", rec, err)
	}
	// Nobody was killed: the audit line is about the intent only.
	if diff := cmp.Diff(rec, s.Recovery()); diff != "" || rec.Unclean || rec.Audit != nil || rec.Confirmed.Revision != 3 {
		t.Errorf("%+v; Recovery says (-Recover +Recovery):\n%s", rec, diff)
	}
	if lines, torn := auditOf(t, trust); torn != nil || len(lines) != 1 || lines[0].Outcome != "landed" || !slices.Equal(lines[0].Commits, []string{"third"}) {
		t.Errorf("audit lines %+v, torn %q", lines, torn)
	}
	third := commit(t, s, entry("third", "3"))
	if !third.Replayed || third.Revision != 3 {
		t.Errorf("%+v", third)
	}
	third.Replayed = false
	check("third", pawl.OutcomeCommitted, third)
	check("fourth", pawl.OutcomeNotCommitted, none)

	for _, bad := range []string{"", "a\nb", strings.Repeat("x", 256)} {
		if _, outcome, err := s.Lookup(t.Context(), bad); outcome != pawl.OutcomeUnknown || !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v, %v", bad, outcome, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, outcome, err := s.Lookup(cancelled, "first"); outcome != pawl.OutcomeUnknown || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", outcome, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, outcome, err := s.Lookup(t.Context(), "first"); outcome != pawl.OutcomeUnknown || !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("after Close: %v, %v", outcome, err)
	}
}

// After Checkpoint, sha256sum of the bundle is what the trust file names.
func TestCheckpoint(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	if err := s.Checkpoint(t.Context()); err != nil {
		t.Errorf("on an empty store: %v", err)
	}
	for range 3 {
		r := commit(t, s, entry("", "x"))
		if err := s.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		text := newestRecord(t, filepath.Join(trust, "session.trust"))
		want := fmt.Sprintf("\nconfirmed %d %d 0 sha256:%x\n", r.Revision, r.Revision, fileSum(t, filepath.Join(dir, "bundle")))
		if !strings.Contains(text, want) || !strings.Contains(text, "\nhistory "+r.Digest.String()+"\n") || strings.Contains(text, "pending") {
			t.Errorf("no line %q in the newest record:\n%s", want, text)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Checkpoint(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint(t.Context()); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func fileSum(t testing.TB, path string) [32]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// newestRecord returns the text of the record of a trust file that counts.
func newestRecord(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newest, most := "", 0
	for len(b) >= 4096 {
		var n int
		text := strings.TrimRight(string(b[:4096]), " \n") + "\n"
		if _, line, ok := strings.Cut(text, "\nsequence "); ok {
			fmt.Sscan(line, &n)
		}
		if n > most {
			newest, most = text, n
		}
		b = b[4096:]
	}
	return newest
}

// What a commit costs that publishes, in flushes and bytes. Three flushes of files,
// one after the other, and one of a directory: intent, bundle, name, confirm.
func TestWhatACommitCosts(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	publish := &pawl.Options{CheckpointEvery: 1}
	s := openStore(t, t.Context(), dir, trust, publish)
	const slot, ring = 4096, 4 * 4096
	bundle := func() int64 {
		info, err := os.Stat(filepath.Join(dir, "bundle"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	last := pawl.Stats{}
	costs := func(what string, files, dirs, bytes, commits, replays, refused int64) {
		t.Helper()
		now := s.Stats()
		want := pawl.Stats{FileSyncs: last.FileSyncs + files, DirSyncs: last.DirSyncs + dirs, BytesWritten: last.BytesWritten + bytes,
			Commits: last.Commits + commits, Publishes: last.Publishes + commits, Replays: last.Replays + replays, NotCommitted: last.NotCommitted + refused}
		if diff := cmp.Diff(want, now, cmpopts.IgnoreFields(pawl.Stats{}, "BytesBlocks", "OpenTime", "CommitTime", "Store", "Trust")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		last = now
	}
	costs("to create: the trust directory is flushed to see whether it can be", 1, 1+1+2, ring, 0, 0, 0)
	commit(t, s, entry("1", "x"))
	costs("the first commit: a trust file of its own", 3, 2, ring+bundle()+slot, 1, 0, 0)
	commit(t, s, entry("2", "x"))
	costs("the second commit", 3, 1, slot+bundle()+slot, 1, 0, 0)
	large := put("p", strings.Repeat("x", 60_000))
	large.Entries = [][]byte{[]byte("a"), []byte("b")}
	commit(t, s, large)
	costs("a larger commit", 3, 1, slot+bundle()+slot, 1, 0, 0)
	commit(t, s, entry("2", "x"))
	costs("a replay", 0, 0, 0, 0, 1, 0)
	commit(t, s, pawl.Change{})
	costs("an empty change", 0, 0, 0, 0, 0, 0)
	if _, err := s.Commit(t.Context(), entry("2", "y")); err == nil {
		t.Error("an id was reused")
	}
	costs("a refused change", 0, 0, 0, 0, 0, 1)
	if err := s.Checkpoint(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	s.View()
	costs("to look and check", 0, 0, 0, 0, 0, 0)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	costs("to close", 1, 0, slot, 0, 0, 0)

	s, last = openStore(t, t.Context(), dir, trust, publish), pawl.Stats{}
	costs("to open", 0, 2, 0, 0, 0, 0)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	costs("to close what was not changed", 0, 0, 0, 0, 0, 0)

	s, last = openStore(t, t.Context(), dir, trust, publish), pawl.Stats{}
	costs("to open", 0, 2, 0, 0, 0, 0)
	commit(t, s, entry("3", "x"))
	costs("the first commit of another process", 3, 2, ring+bundle()+slot, 1, 0, 0)
}

// The confirm of the last commit is flushed when the store is left alone, on any
// machine that says so.
func TestIdleOnASimulatedMachine(t *testing.T) {
	ctx := crashtest.Context(t.Context())
	s := openStore(t, ctx, "/session", "/trust", nil)
	for range 3 {
		commit(t, s, entry("", "x"))
	}
	before := s.Stats()
	for range 5 {
		commit(t, s, entry("", "x"))
	}
	if n := s.Stats(); n.FileSyncs-before.FileSyncs != 2*5 || n.DirSyncs != before.DirSyncs || n.ConfirmSyncs != 0 || !n.ConfirmPending {
		t.Errorf("five commits in a loop: %+v, before %+v", n, before)
	}
	for range 2 { // the second time there is nothing to do
		crashtest.Idle(ctx)
		if n := s.Stats(); n.FileSyncs-before.FileSyncs != 2*5+1 || n.ConfirmSyncs != 1 || n.ConfirmPending {
			t.Errorf("idle: %+v", n)
		}
	}
}

// On a real one nobody has to say it.
func TestIdleFlushComes(t *testing.T) {
	s := newStore(t)
	commit(t, s, entry("", "x"))
	for i := range int64(3) {
		commit(t, s, entry("", "x"))
		for s.Stats().ConfirmPending {
			time.Sleep(time.Millisecond)
		}
		if n := s.Stats(); n.ConfirmSyncs != i+1 {
			t.Errorf("%+v", n)
		}
	}
}

// Close may come at the moment at which the store begins to be idle.
func TestCloseBesideTheIdleFlush(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	for i := range 40 {
		s := openStore(t, t.Context(), dir, trust, nil)
		commit(t, s, entry("", "x"))
		time.Sleep(time.Duration(800+10*i) * time.Microsecond)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := s.Stats(); n.ConfirmPending {
			t.Errorf("closed, and %+v", n)
		}
	}
	s := openStore(t, t.Context(), dir, trust, nil)
	if rec := s.Recovery(); rec.Unclean || s.View().Version().Revision != 40 {
		t.Errorf("%+v", rec)
	}
}

// An audit line is written and flushed like anything else.
func TestWhatAnUncleanOpenCosts(t *testing.T) {
	dir, trust, _ := killed(t, "idle")
	n := openStore(t, t.Context(), dir, trust, nil).Stats()
	info, err := os.Stat(filepath.Join(trust, "session.audit"))
	if err != nil {
		t.Fatal(err)
	}
	if n.FileSyncs != 1 || n.DirSyncs != 3 || n.BytesWritten != info.Size() {
		t.Errorf("%d file and %d directory flushes, %d bytes for a line of %d", n.FileSyncs, n.DirSyncs, n.BytesWritten, info.Size())
	}
}

func TestStatsCountFailures(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	failing := ""
	ctx := hooked(t.Context(), func(call, path string) error {
		if call+" "+filepath.Base(path) == failing {
			return syscall.EIO
		}
		return nil
	})
	s := openStore(t, ctx, dir, trust, &pawl.Options{CheckpointEvery: 1})
	commit(t, s, entry("", "x"))
	failing = "rename bundle"
	_, err := s.Commit(t.Context(), entry("", "x"))
	notCommitted(t, err, syscall.EIO)
	failing = "sync session"
	if _, err := s.Update(t.Context(), "", func(pawl.View) (pawl.Change, error) { return entry("", "x"), nil }); !errors.Is(err, pawl.ErrInDoubt) {
		t.Errorf("error %v", err)
	}
	failing = ""
	if n := s.Stats(); n.Commits != 1 || n.NotCommitted != 1 || n.InDoubt != 1 {
		t.Errorf("%+v", n)
	}
	if _, err := s.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats(); !n.Store.Dir || !n.Trust.Dir || n.Store.FileSystem == "" || n.Trust.FileSystem == "" {
		t.Errorf("durability %+v, %+v", n.Store, n.Trust)
	}
}

// What Open found and settled.
func TestRecovery(t *testing.T) {
	for _, tt := range []struct {
		when    string
		settled pawl.Settlement
		state   string
	}{
		{"idle", pawl.SettledNothing, "1"},
		{"unlanded", pawl.SettledNotLanded, "1"},
		{"landed", pawl.SettledLanded, "2"},
		{"unlanded journal", pawl.SettledNotLanded, "1"},
		{"landed journal", pawl.SettledLanded, "2"},
	} {
		t.Run(tt.when, func(t *testing.T) {
			dir, trust, last := killed(t, tt.when)
			temps := testkit.Temps(t, dir)
			s := openStore(t, t.Context(), dir, trust, nil)
			rec := s.Recovery()
			if rec.Settled != tt.settled || !rec.Unclean || rec.Audit != nil || rec.BrokenSlots != 0 {
				t.Errorf("%+v", rec)
			}
			sum := pawl.Digest(fileSum(t, filepath.Join(dir, "bundle")))
			if rec.Confirmed.Revision != last.Revision || (rec.Confirmed.Digest == sum) != (tt.when != "landed journal") || (rec.Confirmed.Journal > 0) != (tt.when == "landed journal") {
				t.Errorf("confirmed %+v, want revision %d", rec.Confirmed, last.Revision)
			}
			if intent := tt.settled != pawl.SettledNothing; intent {
				if rec.Pending.Revision != 2 || rec.Count != 1 || !slices.Equal(rec.Commits, []string{"second"}) {
					t.Errorf("%+v", rec)
				}
			} else if rec.Pending != (pawl.Root{}) || rec.Count != 0 || rec.Commits != nil {
				t.Errorf("%+v", rec)
			}
			for i, p := range temps {
				temps[i] = filepath.Base(p)
			}
			if (tt.settled == pawl.SettledNotLanded) != (len(temps) == 1) || !slices.Equal(rec.Swept, temps) {
				t.Errorf("swept %q, there were %q", rec.Swept, temps)
			}
			if s.View().Version() != last.Version || partsOf(t, s.View())["state"] != tt.state {
				t.Errorf("at %v with %q", s.View().Version(), partsOf(t, s.View()))
			}
			// The retry of a caller that was killed before it heard of its commit.
			second := entry("second", "two")
			second.Put = map[string][]byte{"state": []byte("2")}
			if r := commit(t, s, second); r.Revision != 2 || r.Replayed != (tt.settled == pawl.SettledLanded) {
				t.Errorf("the retry gets %+v", r)
			}
			// Recover on a store that is not in doubt leaves it as it is.
			for s.Stats().ConfirmPending {
				time.Sleep(time.Millisecond)
			}
			before := s.Stats()
			if rec, err := s.Recover(t.Context()); err != nil || rec.Settled != pawl.SettledNothing || rec.Confirmed.Revision != 2 {
				t.Errorf("Recover: %+v, %v", rec, err)
			}
			if s.Stats() != before {
				t.Error("Recover wrote")
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			clean := openStore(t, t.Context(), dir, trust, nil).Recovery()
			if diff := cmp.Diff(pawl.Recovery{Confirmed: clean.Confirmed}, clean); diff != "" || clean.Confirmed.Revision != 2 {
				t.Errorf("after a clean end (-want +got):\n%s", diff)
			}
		})
	}
}

// A torn slot is reported, and the record before it counts.
func TestRecoveryCountsBrokenSlots(t *testing.T) {
	dir, trust, last := killed(t, "unlanded")
	path := filepath.Join(trust, "session.trust")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newest := newestRecord(t, path)
	at := bytes.Index(b, []byte(newest[:len(newest)-1]))
	clear(b[at+512 : at+4096]) // the sectors after the first one did not arrive
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, t.Context(), dir, trust, nil)
	if rec := s.Recovery(); rec.BrokenSlots != 1 || rec.Settled != pawl.SettledNothing || s.View().Version() != last.Version {
		t.Errorf("%+v", rec)
	}
}

// records is a log handler that keeps what it is told.
type records struct {
	mu   sync.Mutex
	list []string
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithGroup(string) slog.Handler            { return r }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		if a.Key == "outcome" || a.Key == "commits" {
			line += " " + a.String()
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, line)
	return nil
}

// The log tells what was not ordinary (R12), and of what is ordinary nothing.
func TestLogger(t *testing.T) {
	for when, want := range map[string][]string{
		"idle":     {"INFO pawl: the last writer did not close the store"},
		"unlanded": {"WARN pawl: settled an intent outcome=not landed commits=[second]"},
		"landed":   {"WARN pawl: settled an intent outcome=landed commits=[second]"},

		"unlanded journal": {"WARN pawl: settled an intent outcome=not landed commits=[second]"},
		"landed journal":   {"WARN pawl: settled an intent outcome=landed commits=[second]"},
	} {
		t.Run(when, func(t *testing.T) {
			dir, trust, _ := killed(t, when)
			var log records
			opts := &pawl.Options{Logger: slog.New(&log)}
			s := openStore(t, t.Context(), dir, trust, opts)
			if !slices.Equal(log.list, want) {
				t.Errorf("logged %q, want %q", log.list, want)
			}
			log.list = nil
			commit(t, s, entry("x", "x"))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, t.Context(), dir, trust, opts)
			commit(t, s, entry("x", "x"))
			if _, err := s.Commit(t.Context(), entry("x", "y")); err == nil {
				t.Error("an id was reused")
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if log.list != nil {
				t.Errorf("logged %q", log.list)
			}
		})
	}
}

// Opening and closing changes neither a version nor a byte that counts.
func TestReopeningChangesNothing(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	want := commit(t, s, entry("", "x")).Version
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files := func() [2][32]byte {
		return [2][32]byte{fileSum(t, filepath.Join(dir, "bundle")), fileSum(t, filepath.Join(trust, "session.trust"))}
	}
	before := files()
	for range 5 {
		s := openStore(t, t.Context(), dir, trust, &pawl.Options{MustExist: true})
		if got := s.View().Version(); got != want {
			t.Errorf("at %v, want %v", got, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if files() != before {
			t.Error("a file was changed")
		}
	}
}

// A store may be moved: its history does not hold a path.
func TestHistoryDoesNotHoldAPath(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	r := commit(t, s, entry("a", "x"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	otherDir, otherTrust := testkit.Dirs(t)
	otherDir += "-moved"
	copyStore(t, dir, trust, otherDir, otherTrust)
	moved := openStore(t, t.Context(), otherDir, otherTrust, &pawl.Options{Name: "session", MustExist: true})
	stayed := openStore(t, t.Context(), dir, trust, nil)
	if moved.View().Version() != r.Version || stayed.View().Version() != r.Version {
		t.Errorf("at %v, %v; want %v", moved.View().Version(), stayed.View().Version(), r.Version)
	}
	if ok, err := moved.View().Contains(r); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// Two stores share no history, even when the same was done in both: a receipt of
// one proves nothing in the other.
func TestStoresShareNoHistory(t *testing.T) {
	a, b := newStore(t), newStore(t)
	if a.View().Version() == b.View().Version() {
		t.Error("two empty stores have the same version")
	}
	for range 2 {
		ra, rb := commit(t, a, entry("", "x")), commit(t, b, entry("", "x"))
		if ra.Revision != rb.Revision || ra.Digest == rb.Digest {
			t.Errorf("%v and %v", ra, rb)
		}
		if ok, err := b.View().Contains(ra); ok || err != nil {
			t.Errorf("a receipt of another store is contained: %v", err)
		}
	}
}

// A closed store refuses changes with certainty, and still shows its last state.
func TestClosed(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, nil)
	commit(t, s, entry("a", "x"))
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Commit(t.Context(), entry("b", "x"))
	notCommitted(t, err, pawl.ErrClosed, os.ErrClosed)
	_, err = s.Update(t.Context(), "b", func(pawl.View) (pawl.Change, error) { t.Error("ran"); return pawl.Change{}, nil })
	notCommitted(t, err, pawl.ErrClosed, os.ErrClosed)
	// A replay needs no disk, and is refused all the same: closed is closed.
	_, err = s.Commit(t.Context(), entry("a", "x"))
	notCommitted(t, err, pawl.ErrClosed)
	if err := s.Verify(t.Context(), nil); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("Verify: %v", err)
	}
	if _, err := s.Recover(t.Context()); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("Recover: %v", err)
	}
	if got := entriesOf(t, s.View(), 0); !slices.Equal(got, []string{"1/1:x"}) {
		t.Errorf("entries %q", got)
	}
	if n := s.Stats(); n.Commits != 1 || n.NotCommitted != 3 {
		t.Errorf("%+v", n)
	}
}

// A trust directory holds several stores, each under its name.
func TestStoresShareATrustDirectory(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	a := openStore(t, t.Context(), dir+"-a", trust, nil)
	b := openStore(t, t.Context(), dir+"-b", trust, nil)
	c := openStore(t, t.Context(), filepath.Join(dir+"-deep", "er", "session-a"), trust, &pawl.Options{Name: "c"})
	for i, s := range []*pawl.Store{a, b, c} {
		commit(t, s, entry("", strconv.Itoa(i)))
	}
	for i, s := range []*pawl.Store{a, b, c} {
		if err := s.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if got := entriesOf(t, s.View(), 0); !slices.Equal(got, []string{"1/1:" + strconv.Itoa(i)}) {
			t.Errorf("entries %q", got)
		}
	}
	for _, name := range []string{"session-a.trust", "session-b.trust", "c.trust"} {
		if _, err := os.Stat(filepath.Join(trust, name)); err != nil {
			t.Error(err)
		}
	}
	// Under a name that is taken, another store's trust file speaks.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := pawl.Open(t.Context(), dir+"-a", trust, &pawl.Options{Name: "other"}); !errors.Is(err, pawl.ErrUntrusted) {
		t.Errorf("under a name of no store: %v", err)
	}
	if _, err := os.Stat(filepath.Join(trust, "other.trust")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a trust file was made for files that were there: %v", err)
	}
}
