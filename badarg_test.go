package pawl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// quickStore makes a store with one commit, which flushes nothing and is closed when
// the test ends.
func quickStore(t *testing.T, tap *tap, opts *pawl.Options) (*bench, *pawl.Store) {
	t.Helper()
	b := newBench(t)
	s, err := pawl.Open(tap.context(), b.dir, b.trust, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, pawl.ErrStale) {
			t.Error(err)
		}
	})
	if _, err := s.Commit(context.Background(), change(1)); err != nil {
		t.Fatal(err)
	}
	return b, s
}

// way is one of the ways in which a commit after the first goes to disk.
type way struct {
	name string
	opts *pawl.Options
	more int    // commits before it, after the first
	op   string // the call that makes what it wrote visible, on a file of that name
	file string
}

var ways = []way{
	{"publishing", publishing, 0, "rename", "bundle"},
	{"making the journal", nil, 0, "rename", "journal.000000000001"},
	{"extending", nil, 1, "write", "journal.000000000001"},
}

// store makes a store whose next commit goes that way.
func (w way) store(t *testing.T, tap *tap) (*bench, *pawl.Store) {
	t.Helper()
	b, s := quickStore(t, tap, w.opts)
	for range w.more {
		if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
			t.Fatal(err)
		}
	}
	return b, s
}

// refusedChange wants Commit and Update to refuse a change for certain, with nothing
// changed on disk or in memory.
func (b *bench) refusedChange(t *testing.T, s *pawl.Store, c pawl.Change, want ...error) {
	t.Helper()
	before, says := testkit.Snapshot(t, b.dir, b.trust), dump(s.View())
	r, err := s.Commit(context.Background(), c)
	exactly(t, err, pawl.ErrNotCommitted, want...)
	if r != (pawl.Receipt{}) {
		t.Errorf("a receipt: %v", r)
	}
	_, err = s.Update(context.Background(), "", func(pawl.View) (pawl.Change, error) { return c, nil })
	exactly(t, err, pawl.ErrNotCommitted, want...)
	if got := dump(s.View()); got != says {
		t.Errorf("the view changed:\n%s", got)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// ---- names ----------------------------------------------------------------------

// badTexts are what no name, of whatever kind, may be.
var badTexts = []struct{ name, text string }{
	{"too long", strings.Repeat("x", 256)},
	{"too long in bytes", strings.Repeat("é", 128)},
	{"huge", strings.Repeat("x", 1<<20)},
	{"not UTF-8", "a\xffb"},
	{"a surrogate", "a\xed\xa0\x80b"},
	{"not the shortest UTF-8", "a\xc0\xafb"},
	{"NUL", "a\x00b"},
	{"NUL at its end", "a\x00"},
	{"a newline", "a\nb"},
	{"a carriage return", "a\r"},
	{"a tab", "\ta"},
	{"an escape", "\x1b[2Ja"},
	{"delete", "a\x7f"},
	{"a control character above ASCII", "a\u0085b"},
}

// TestPartNames: part names are like relative slash paths without ".." (R22: and are
// shown quoted).
func TestPartNames(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	bad := append(slices.Clone(badTexts), []struct{ name, text string }{
		{"empty", ""}, {"a dot", "."}, {"two dots", ".."}, {"up", "../a"}, {"up and down", "a/../b"}, {"up at its end", "a/.."},
		{"absolute", "/a"}, {"the root", "/"}, {"two slashes", "a//b"}, {"a slash at its end", "a/"}, {"a dot first", "./a"}, {"a dot between", "a/./b"},
	}...)
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			want := []error{pawl.ErrInvalid, fs.ErrInvalid}
			if len(tt.text) > 255 {
				want = append(want, pawl.ErrTooLarge)
			}
			b.refusedChange(t, s, pawl.Change{Put: map[string][]byte{tt.text: nil}}, want...)
			b.refusedChange(t, s, pawl.Change{Delete: []string{tt.text}}, want...)
			b.refusedChange(t, s, pawl.Change{Put: map[string][]byte{"good": nil, tt.text: nil}, Delete: []string{"other"}}, want...)
			var c pawl.Change
			c.SetJSON(tt.text, 1)
			_, err := s.Commit(context.Background(), c)
			exactly(t, err, pawl.ErrNotCommitted, pawl.ErrInvalid)
			if len(err.Error()) > 2000 || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == '\ufffd' }) {
				t.Errorf("%q", err)
			}
			if _, ok, err := s.View().Get(tt.text); ok || err != nil {
				t.Errorf("Get: %v, %v", ok, err)
			}
		})
	}
	good := []string{
		"a", strings.Repeat("x", 255), strings.Repeat("é", 127), "a/b/c", "...", "a..b", "..a", "a b", " ", "-rf", "~", "C:/x", `back\slash`, `\`, "CON", "nul.txt", "bundle", "lock",
		"会議/🐢", "e\u0301", "é", "\u202egpj.exe", "\ufeff", "\ufffd", "a?*<>|\"", "%00", "${HOME}",
	}
	c := pawl.Change{Put: map[string][]byte{}}
	for _, name := range good {
		c.Put[name] = []byte(name)
	}
	if _, err := s.Commit(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	want := dump(s.View())
	for _, name := range good {
		if got, ok, err := s.View().Get(name); string(got) != name || !ok || err != nil {
			t.Errorf("%q: %q, %v, %v", name, got, ok, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.opens(want)
}

// TestIDs: any text of 255 bytes without control characters names a commit.
func TestIDs(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	for _, tt := range badTexts {
		t.Run(tt.name, func(t *testing.T) {
			want := []error{pawl.ErrInvalid}
			if len(tt.text) > 255 {
				want = append(want, pawl.ErrTooLarge)
			}
			b.refusedChange(t, s, pawl.Change{ID: tt.text}, want...)
			_, err := s.Update(context.Background(), tt.text, func(pawl.View) (pawl.Change, error) {
				t.Error("the function runs")
				return pawl.Change{}, nil
			})
			exactly(t, err, pawl.ErrNotCommitted, want...)
			_, outcome, err := s.Lookup(context.Background(), tt.text)
			if outcome != pawl.OutcomeUnknown || !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("Lookup: %v, %v", outcome, err)
			}
		})
	}
	if _, outcome, err := s.Lookup(context.Background(), ""); outcome != pawl.OutcomeUnknown || !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("Lookup of no id: %v, %v", outcome, err)
	}
	for _, id := range []string{"a", strings.Repeat("x", 255), strings.Repeat("é", 127), "../..", "/", `"`, `\`, " ", "sum sha256:", "会議 🐢", "\u202e"} {
		first, err := s.Commit(context.Background(), pawl.Change{ID: id})
		if err != nil {
			t.Errorf("%q: %v", id, err)
			continue
		}
		if r, outcome, err := s.Lookup(context.Background(), id); r != first || outcome != pawl.OutcomeCommitted || err != nil {
			t.Errorf("%q: %v, %v, %v", id, r, outcome, err)
		}
	}
	want := dump(s.View())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.opens(want)
}

// TestLongIDsInTheTrustFile: an id has room in an intent, or is left out of it; it
// never makes a record that does not read back.
func TestLongIDsInTheTrustFile(t *testing.T) {
	for _, id := range []string{
		strings.Repeat("x", 255), strings.Repeat("\u00e9", 127), strings.Repeat("\U0001f422", 63), strings.Repeat("\ufeff", 85), strings.Repeat(`"`, 255), strings.Repeat(`\`, 255),
	} {
		b := newBench(t)
		var killed moment
		tap := &tap{after: func(op, path string) {
			if op == "rename" && path == b.bundle {
				killed = moment{read(t, b.slots), read(t, b.bundle)}
			}
		}}
		s, err := pawl.Open(tap.context(), b.dir, b.trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(context.Background(), pawl.Change{ID: id}); err != nil {
			t.Fatal(err)
		}
		want := dump(s.View())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b.lay(killed)
		rec := b.opens(want)
		if rec.Settled != pawl.SettledLanded || rec.Count != 1 || len(rec.Commits) == 1 && rec.Commits[0] != id {
			t.Errorf("%.10q…: %v, %d commits, %.10q", id, rec.Settled, rec.Count, rec.Commits)
		}
	}
}

// TestStoreNames: a store's name fits into a file name with all that is put to it.
func TestStoreNames(t *testing.T) {
	root := newRoot(t)
	bad := append(slices.Clone(badTexts), []struct{ name, text string }{
		{"two dots", ".."}, {"a dot", "."}, {"a slash", "a/b"}, {"a backslash", `a\b`}, {"absolute", "/a"}, {"up", "../a"},
		{"too long for its suffixes", strings.Repeat("x", 235)},
	}...)
	if runtime.GOOS == "windows" {
		for _, name := range []string{"a:b", "NUL", "con.txt", "a.", "a ", "a?", "COM1", "lpt9.x"} {
			bad = append(bad, struct{ name, text string }{name, name})
		}
	}
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			unplaced(t, root, "session", "trust", &pawl.Options{Name: tt.text}, pawl.ErrInvalid, fs.ErrInvalid)
		})
	}
	for _, name := range []string{strings.Repeat("x", 234), strings.Repeat("é", 117), "-", "a b", ".hidden", "会議"} {
		s, err := pawl.Open(quick(), filepath.Join("dir", name), "trust", &pawl.Options{Name: name})
		if err != nil {
			t.Errorf("%.20q: %v", name, err)
			continue
		}
		if _, err := s.Commit(context.Background(), change(1)); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join("trust", name+".trust")); err != nil {
			t.Error(err)
		}
	}
}

// TestPaths: what is no path of a directory, and what is none for a store.
func TestPaths(t *testing.T) {
	root := newRoot(t)
	for _, tt := range []struct {
		name, dir, trust string
		want             error
	}{
		{"no store directory", "", "trust", pawl.ErrInvalid},
		{"no trust directory", "session", "", pawl.ErrInvalid},
		{"neither", "", "", pawl.ErrInvalid},
		{"the root, without a name", rootOf(), "trust", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			unplacedPathless(t, root, tt.dir, tt.trust, nil, tt.want)
		})
	}
	t.Run("the root, with a name", func(t *testing.T) {
		unplaced(t, root, rootOf(), "trust", &pawl.Options{Name: "x"}, pawl.ErrInsecure)
		unplaced(t, root, "session", rootOf(), &pawl.Options{Name: "x"}, pawl.ErrInsecure)
	})
	for name, path := range map[string]string{
		"NUL": "a\x00b", "a name too long": strings.Repeat("x", 300), "a path too long": strings.Repeat("x/", 2100) + "x",
	} {
		t.Run(name, func(t *testing.T) {
			if name != "NUL" && runtime.GOOS == "windows" {
				t.Skip("the limits of names, and the errors for them, are others on Windows")
			}
			unplaced(t, root, path, "trust", &pawl.Options{Name: "x"})
			unplaced(t, root, "session", path, &pawl.Options{Name: "x"})
			if _, err := pawl.Open(quick(), path, "trust", &pawl.Options{Name: "x"}); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it cannot be, rather than is not: %v", err)
			}
		})
	}
}

// unplacedPathless is unplaced where there is no path to name.
func unplacedPathless(t *testing.T, root, dir, trust string, opts *pawl.Options, want error) {
	t.Helper()
	before := testkit.Snapshot(t, root)
	_, err := pawl.Open(quick(), dir, trust, opts)
	if e := (*pawl.Error)(nil); !errors.As(err, &e) || e.Op != "open" || want != nil && !errors.Is(err, want) {
		t.Errorf("%v; want: %v", err, want)
	}
	if _, err := pawl.Inspect(quick(), dir, trust, opts); err == nil || want != nil && !errors.Is(err, want) {
		t.Errorf("Inspect: %v; want: %v", err, want)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, root)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// TestBadOptions: refused before anything is looked at.
func TestBadOptions(t *testing.T) {
	root := newRoot(t)
	for name, o := range map[string]pawl.Options{
		"negative wait":                               {LockWait: -1},
		"an unknown allowance":                        {Allow: 1 << 20},
		"an allowance of the future, with known ones": {Allow: pawl.SharedTrust | pawl.NoDirSync | pawl.NetworkFS | 1<<30},
		"negative entry limit":                        {Limits: pawl.Limits{Entry: -1}},
		"negative part limit":                         {Limits: pawl.Limits{Part: -1}},
		"negative commit limit":                       {Limits: pawl.Limits{Commit: math.MinInt64}},
		"negative bundle limit":                       {Limits: pawl.Limits{Bundle: -5}},
		"an entry limit beyond the format":            {Limits: pawl.Limits{Entry: math.MaxInt32 + 1}},
		"a bundle limit beyond the format":            {Limits: pawl.Limits{Bundle: math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			unplaced(t, root, "session", "trust", &o, pawl.ErrInvalid, fs.ErrInvalid)
		})
	}
	t.Run("none, zero, and all there is", func(t *testing.T) {
		for _, o := range []*pawl.Options{nil, {}, {LockWait: math.MaxInt64, Allow: pawl.SharedTrust | pawl.NoDirSync | pawl.NetworkFS,
			Limits: pawl.Limits{Entry: math.MaxInt32, Part: math.MaxInt32, Commit: math.MaxInt32, Bundle: math.MaxInt32}}} {
			s, err := pawl.Open(quick(), "session", "trust", o)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// ---- sizes and shapes of changes -------------------------------------------------

// TestLimits: at each limit, and one over it.
func TestLimits(t *testing.T) {
	limits := pawl.Limits{Entry: 100, Part: 200, Commit: 500}
	b, s := quickStore(t, new(tap), &pawl.Options{Limits: limits})
	for _, tt := range []struct {
		name string
		make func(over int) pawl.Change
	}{
		{"entry", func(over int) pawl.Change { return pawl.Change{Entries: [][]byte{nil, make([]byte, 100+over)}} }},
		{"part", func(over int) pawl.Change { return pawl.Change{Put: map[string][]byte{"p": make([]byte, 200+over)}} }},
		{"commit", func(over int) pawl.Change {
			// An entry counts for its length's 4 bytes too, and a part for its name.
			return pawl.Change{Entries: [][]byte{make([]byte, 96)}, Put: map[string][]byte{"p": make([]byte, 200), "q": make([]byte, 198+over)}}
		}},
		{"commit, of entries of no bytes", func(over int) pawl.Change { return pawl.Change{Entries: make([][]byte, 125+over)} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.refusedChange(t, s, tt.make(1), pawl.ErrTooLarge)
			if _, err := s.Commit(context.Background(), tt.make(0)); err != nil {
				t.Errorf("at the limit: %v", err)
			}
		})
	}
	want := dump(s.View())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := pawl.Open(quick(), b.dir, b.trust, &pawl.Options{Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := dump(again.View()); got != want {
		t.Errorf("opens with\n%s", got)
	}
}

// TestBundleLimit: the whole state at its limit, and one byte over it, whether the
// bundle is published with each commit or holds the state only later.
func TestBundleLimit(t *testing.T) {
	const limit, reserve = 4000, 4 // some room is kept for the table of segments
	var left int64                 // for the part of a third commit
	empty := pawl.Change{Entries: [][]byte{nil}}
	for _, every := range []int{1, 0} {
		t.Run(fmt.Sprint("CheckpointEvery ", every), func(t *testing.T) {
			opts := &pawl.Options{Limits: pawl.Limits{Bundle: limit}, CheckpointEvery: every}
			b, s := quickStore(t, new(tap), opts)
			size := func() int64 { return int64(len(read(t, b.bundle))) }
			was := size()
			part := func(name string, size int64) pawl.Change {
				return pawl.Change{Put: map[string][]byte{name: make([]byte, size)}}
			}
			if _, err := s.Commit(context.Background(), part("p", 0)); err != nil {
				t.Fatal(err)
			}
			if every == 1 {
				left = limit - reserve - size() - (size() - was)
			}
			b.refusedChange(t, s, part("q", left+1), pawl.ErrTooLarge)
			if _, err := s.Commit(context.Background(), part("q", left)); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			b.refusedChange(t, s, empty, pawl.ErrTooLarge)
			if err := s.Checkpoint(context.Background()); err != nil {
				t.Errorf("Checkpoint at the limit: %v", err)
			}
			if size() != limit-reserve {
				t.Errorf("the bundle has %d bytes", size())
			}
			b.refusedChange(t, s, empty, pawl.ErrTooLarge)
			want := dump(s.View())
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			b.opens(want)
			if s, err := pawl.Open(quick(), b.dir, b.trust, opts); err != nil {
				t.Error(err)
			} else if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestShapesOfChanges: what is odd and right.
func TestShapesOfChanges(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	b.refusedChange(t, s, pawl.Change{Put: map[string][]byte{"p": nil}, Delete: []string{"p"}}, pawl.ErrInvalid)
	b.refusedChange(t, s, pawl.Change{Put: map[string][]byte{"a": nil, "p": nil}, Delete: []string{"b", "p", "p"}}, pawl.ErrInvalid)
	before := testkit.Snapshot(t, b.dir, b.trust)
	for _, c := range []pawl.Change{{}, {Put: map[string][]byte{}, Delete: []string{}, Entries: [][]byte{}}} {
		r, err := s.Commit(context.Background(), c)
		if err != nil || r.Version != s.View().Version() {
			t.Errorf("an empty change: %v, %v", r, err)
		}
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	for _, c := range []pawl.Change{
		{Entries: [][]byte{nil}},
		{Entries: [][]byte{{}, nil, {}}},
		{Put: map[string][]byte{"empty": nil}},
		{Put: map[string][]byte{"empty": {}}},
		{Delete: []string{"empty", "empty", "never there", "empty"}},
		{ID: "nothing else"},
	} {
		r, err := s.Commit(context.Background(), c)
		if err != nil || r.Version != s.View().Version() || (r.FirstSeq == 0) != (len(c.Entries) == 0) || int(r.LastSeq-r.FirstSeq) != max(len(c.Entries)-1, 0) {
			t.Errorf("%+v: %v, %v", c, r, err)
		}
		if c.Put != nil {
			if got, ok, err := s.View().Get("empty"); got == nil || len(got) != 0 || !ok || err != nil {
				t.Errorf("a part of no bytes: %v, %v, %v", got, ok, err)
			}
		}
	}
	for info := range s.View().Commits(4) {
		if slices.Contains(info.Deleted, "empty") && !slices.Equal(info.Deleted, []string{"empty", "never there"}) {
			t.Errorf("deleted %q", info.Deleted)
		}
	}
	if _, ok, _ := s.View().Get("empty"); ok {
		t.Error("a deleted part is there")
	}
	want := dump(s.View())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.opens(want)
}

// marshals is a type whose encoding fails with an error of the test's choice.
type marshals struct{ err error }

func (m marshals) MarshalJSON() ([]byte, error) { return nil, m.err }

// foreign are errors that come from another store, or claim to: whatever they say
// about a commit, they say it of another one.
func foreign(t *testing.T) map[string]error {
	t.Helper()
	b := newBench(t)
	fail := errors.New("a directory that does not flush")
	armed := false
	tap := &tap{before: func(op, path string) error {
		if armed && op == "syncdir" && path == b.dir {
			return fail
		}
		return nil
	}}
	s, err := pawl.Open(tap.context(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	armed = true
	_, err = s.Commit(context.Background(), change(1))
	exactly(t, err, pawl.ErrInDoubt, fail)
	armed = false
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return map[string]error{
		"another store's error": err,
		"wrapped":               fmt.Errorf("agent: %w", err),
		"joined":                errors.Join(errors.New("agent"), err, pawl.ErrNotCommitted),
		"the bare class":        pawl.ErrInDoubt,
		"matching everything":   matchesAll{},
	}
}

type matchesAll struct{}

func (matchesAll) Error() string   { return "anything" }
func (matchesAll) Is(error) bool   { return true }
func (matchesAll) As(any) bool     { return false }
func (matchesAll) Timeout() bool   { return true }
func (matchesAll) Temporary() bool { return true }

// TestForeignErrors: the error of a function, of an encoder or of a context that is
// another store's ErrInDoubt does not make this commit doubtful (33).
func TestForeignErrors(t *testing.T) {
	errs := foreign(t)
	b, s := quickStore(t, new(tap), nil)
	for name, foreign := range errs {
		t.Run(name, func(t *testing.T) {
			before := testkit.Snapshot(t, b.dir, b.trust)
			_, err := s.Update(context.Background(), "id", func(pawl.View) (pawl.Change, error) { return change(2), foreign })
			exactly(t, err, pawl.ErrNotCommitted)
			if e := (*pawl.Error)(nil); errors.As(err, &e) && (e.Op != "update" || e.Path != b.dir) {
				t.Errorf("the error found is the other store's: %v", err)
			}
			var c pawl.Change
			c.SetJSON("part", marshals{foreign})
			_, err = s.Commit(context.Background(), c)
			exactly(t, err, pawl.ErrNotCommitted, pawl.ErrInvalid)
			if as := (*json.MarshalerError)(nil); !errors.As(err, &as) {
				t.Errorf("the encoder's error is not found: %v", err)
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(foreign)
			_, err = s.Commit(ctx, change(2))
			exactly(t, err, pawl.ErrNotCommitted, context.Canceled)
			_, err = s.Update(ctx, "", func(pawl.View) (pawl.Change, error) { return change(2), nil })
			exactly(t, err, pawl.ErrNotCommitted, context.Canceled)
			if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
		})
	}
	if _, err := s.Commit(context.Background(), change(2)); err != nil {
		t.Errorf("the store does not go on: %v", err)
	}
	mine := errors.New("mine")
	_, err := s.Update(context.Background(), "", func(pawl.View) (pawl.Change, error) { return pawl.Change{}, fmt.Errorf("why: %w", mine) })
	exactly(t, err, pawl.ErrNotCommitted, mine)
}

// TestCallersBytes: what a caller does with its bytes after the call, or with those
// that it was given, changes nothing (bytes in are bytes out, R11).
func TestCallersBytes(t *testing.T) {
	one, _, _ := histories(t)
	b := newBench(t)
	b.lay(one.old[4])
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	scribble := func(b []byte) {
		for i := range b[:cap(b)] {
			b[:cap(b)][i] = 'X'
		}
	}
	entry, part, expect := []byte("entry"), []byte("part"), s.View().Version()
	c := pawl.Change{ID: "id", Expect: &expect, Entries: [][]byte{entry}, Put: map[string][]byte{"p": part}, Delete: []string{"state"}}
	if _, err := s.Commit(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(context.Background(), "", func(pawl.View) (pawl.Change, error) {
		return pawl.Change{Entries: [][]byte{entry}, Put: map[string][]byte{"q": part}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	says := dump(s.View())
	scribble(entry)
	scribble(part)
	c.Entries[0], c.Put["p"], c.Delete[0], expect = []byte("X"), nil, "X", pawl.Version{}
	for e := range s.View().Entries(0) {
		scribble(e.Data)
		_ = append(e.Data, "XXXX"...)
	}
	for name := range s.View().Parts() {
		data, _, _ := s.View().Get(name)
		scribble(data)
	}
	for info := range s.View().Commits(0) {
		for _, list := range [][]string{info.Put, info.Deleted} {
			for i := range list {
				list[i] = "X"
			}
		}
	}
	rec := s.Recovery()
	if want := []string{"commit-4"}; !slices.Equal(rec.Commits, want) {
		t.Errorf("the intent names %q, want %q", rec.Commits, want)
	}
	for i := range rec.Commits {
		rec.Commits[i] = "X"
	}
	if got := dump(s.View()); got != says {
		t.Errorf("the view changed:\n%s", cmp.Diff(says, got))
	}
	if again := s.Recovery(); slices.Contains(again.Commits, "X") {
		t.Errorf("Recovery changed: %q", again.Commits)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.opens(says)
}

// ---- closed, cancelled, nested, interrupted ---------------------------------------

// TestClosedStore: every method says so, but those that need nothing.
func TestClosedStore(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	says := dump(s.View())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	_, err := s.Commit(ctx, change(2))
	exactly(t, err, pawl.ErrNotCommitted, pawl.ErrClosed, os.ErrClosed)
	_, err = s.Commit(ctx, pawl.Change{})
	exactly(t, err, pawl.ErrNotCommitted, pawl.ErrClosed)
	_, err = s.Commit(ctx, change(1))
	exactly(t, err, pawl.ErrNotCommitted, pawl.ErrClosed)
	_, err = s.Update(ctx, "", func(pawl.View) (pawl.Change, error) { t.Error("the function runs"); return change(2), nil })
	exactly(t, err, pawl.ErrNotCommitted, pawl.ErrClosed)
	_, _, lookup := s.Lookup(ctx, "commit-1")
	_, recover := s.Recover(ctx)
	for op, err := range map[string]error{"lookup": lookup, "recover": recover, "checkpoint": s.Checkpoint(ctx), "verify": s.Verify(ctx, nil)} {
		typed(t, err, op, pawl.ErrClosed, os.ErrClosed)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
	}
	if got := dump(s.View()); got != says {
		t.Errorf("the view changed:\n%s", got)
	}
	if n := s.Stats().Commits; n != 1 || s.Recovery().Unclean {
		t.Errorf("%d commits, %+v", n, s.Recovery())
	}
	b.opens(says)
	if _, err := os.Stat(b.trust); err != nil {
		t.Error(err)
	}
}

// TestCloseWhileCommitting: Close waits for the commit that is under way, and those
// that wait behind it are made before, or refused for certain.
func TestCloseWhileCommitting(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			reached, goOn := make(chan struct{}), make(chan struct{})
			var armed atomic.Bool
			b, s := w.store(t, &tap{before: func(op, path string) error {
				if op == w.op && filepath.Base(path) == w.file && armed.CompareAndSwap(true, false) {
					close(reached)
					<-goOn
				}
				return nil
			}})
			before := int(s.View().Version().Revision)
			armed.Store(true)
			var group sync.WaitGroup
			var first error
			group.Go(func() { _, first = s.Commit(context.Background(), change(before+1)) })
			<-reached
			closed := make(chan error)
			go func() { closed <- s.Close() }()
			var late [4]error
			for i := range late {
				group.Go(func() {
					_, late[i] = s.Commit(context.Background(), pawl.Change{ID: fmt.Sprint("late ", i)})
				})
			}
			if v := s.View().Version(); int(v.Revision) != before {
				t.Errorf("the view is at %s before the commit is made", v)
			}
			if _, outcome, err := s.Lookup(context.Background(), change(before+1).ID); outcome != pawl.OutcomeUnknown || err != nil {
				t.Errorf("Lookup while it is being made: %v, %v", outcome, err)
			}
			close(goOn)
			group.Wait()
			if err := <-closed; err != nil || first != nil {
				t.Errorf("the commit: %v, Close: %v", first, err)
			}
			want := before + 1
			for _, err := range late {
				if err == nil {
					want++ // it came in before Close
					continue
				}
				exactly(t, err, pawl.ErrNotCommitted, pawl.ErrClosed)
			}
			if v := s.View().Version(); int(v.Revision) != want {
				t.Errorf("the view is at %s, want revision %d", v, want)
			}
			b.opens(dump(s.View()))
		})
	}
}

// TestManyClose: all are told the same.
func TestManyClose(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	b.opens(dump(s.View()))
}

// contexts that are over, each in its way.
func contexts() map[string]func() (context.Context, []error) {
	why := errors.New("the user went home")
	return map[string]func() (context.Context, []error){
		"cancelled": func() (context.Context, []error) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx, []error{context.Canceled}
		},
		"cancelled with a cause": func() (context.Context, []error) {
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(why)
			return ctx, []error{context.Canceled, why}
		},
		"deadline": func() (context.Context, []error) {
			ctx, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
			cancel()
			return ctx, []error{context.DeadlineExceeded}
		},
		"deadline with a cause": func() (context.Context, []error) {
			ctx, cancel := context.WithDeadlineCause(context.Background(), time.Unix(1, 0), why)
			cancel()
			return ctx, []error{context.DeadlineExceeded, why}
		},
	}
}

// TestCancelledBefore: nothing is begun.
func TestCancelledBefore(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	before := testkit.Snapshot(t, b.dir, b.trust)
	for name, make := range contexts() {
		t.Run(name, func(t *testing.T) {
			ctx, want := make()
			_, err := s.Commit(ctx, change(2))
			exactly(t, err, pawl.ErrNotCommitted, want...)
			_, err = s.Update(ctx, "commit-2", func(pawl.View) (pawl.Change, error) { t.Error("the function runs"); return change(2), nil })
			exactly(t, err, pawl.ErrNotCommitted, want...)
			_, _, lookup := s.Lookup(ctx, "commit-1")
			_, recover := s.Recover(ctx)
			for op, err := range map[string]error{"lookup": lookup, "recover": recover, "checkpoint": s.Checkpoint(ctx), "verify": s.Verify(ctx, nil)} {
				var e *pawl.Error
				if !errors.As(err, &e) || e.Op != op || e.Outcome != nil {
					t.Errorf("%s: %v", op, err)
				}
				for _, w := range want {
					if !errors.Is(err, w) {
						t.Errorf("%s: %v; want: %v", op, err, w)
					}
				}
			}
		})
	}
	// In the function: it is too late to ask for nothing to be done, but not to do it.
	ctx, cancel := context.WithCancel(context.Background())
	_, err := s.Update(ctx, "", func(pawl.View) (pawl.Change, error) { cancel(); return change(2), nil })
	exactly(t, err, pawl.ErrNotCommitted, context.Canceled)
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// TestCancelledAfterTheIntent: the commit runs to its end, and the result is that of
// the commit. At each call after the intent in turn.
func TestCancelledAfterTheIntent(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			for call := 0; cancelledAtCall(t, w, call); call++ {
			}
		})
	}
}

// cancelledAtCall reports whether there was such a call.
func cancelledAtCall(t *testing.T, w way, call int) bool {
	var cancel context.CancelFunc
	var b *bench
	seen, intent, armed := 0, false, false
	b, s := w.store(t, &tap{before: func(op, path string) error {
		if !armed {
			return nil
		}
		if intent {
			if seen == call {
				cancel()
			}
			seen++
		}
		intent = intent || op == "sync" && path == b.slots || op == "rename" && path == b.slots
		return nil
	}})
	before := s.View().Version().Revision
	ctx, cancelNow := context.WithCancel(context.Background())
	cancel, armed = cancelNow, true
	r, err := s.Commit(ctx, change(int(before)+1))
	armed = false
	cancelled := ctx.Err() != nil
	cancel()
	if err != nil || r.Revision != before+1 {
		t.Errorf("cancelled at call %d: %v, %v", call, r, err)
	}
	if _, err := s.Commit(context.Background(), change(int(before)+2)); err != nil {
		t.Errorf("cancelled at call %d: the store does not go on: %v", call, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if least := map[string]int{"write": 3, "rename": 5}[w.op]; !cancelled && call < least {
		t.Errorf("a commit has %d calls after its intent", call)
	}
	return cancelled
}

// TestCancelledWhileWaiting: for the turn, behind a commit that takes its time.
func TestCancelledWhileWaiting(t *testing.T) {
	_, s := quickStore(t, new(tap), nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	var waiting sync.WaitGroup
	errs := make(chan error, 3)
	_, err := s.Update(context.Background(), "", func(pawl.View) (pawl.Change, error) {
		started := make(chan struct{}, 3)
		for _, wait := range []func() error{
			func() error { _, err := s.Commit(ctx, change(9)); return err },
			func() error {
				_, err := s.Update(ctx, "x", func(pawl.View) (pawl.Change, error) { return change(9), nil })
				return err
			},
			func() error { return s.Checkpoint(ctx) },
		} {
			waiting.Go(func() { started <- struct{}{}; errs <- wait() })
		}
		for range 3 {
			<-started
		}
		cancel(why)
		waiting.Wait()
		return change(2), nil
	})
	if err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := <-errs; !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, pawl.ErrInDoubt) {
			t.Error(err)
		}
	}
	if v := s.View().Version(); v.Revision != 2 {
		t.Errorf("at %s", v)
	}
}

// TestInsideUpdate: whatever would wait for the function that it is called from is
// told so; what only looks works.
func TestInsideUpdate(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	ctx := context.Background()
	inner := map[string]func() error{
		"Commit":          func() error { _, err := s.Commit(ctx, change(9)); return err },
		"an empty Commit": func() error { _, err := s.Commit(ctx, pawl.Change{}); return err },
		"Update": func() error {
			_, err := s.Update(ctx, "", func(pawl.View) (pawl.Change, error) { t.Error("the function runs"); return change(9), nil })
			return err
		},
		"Checkpoint": func() error { return s.Checkpoint(ctx) },
		"Recover":    func() error { _, err := s.Recover(ctx); return err },
		"Verify":     func() error { return s.Verify(ctx, nil) },
		"Close":      s.Close,
	}
	for name, call := range inner {
		t.Run(name, func(t *testing.T) {
			before := s.View().Version()
			var err error
			_, outer := s.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
				err = call()
				if s.View().Version() != v.Version() || s.Stats().Commits < 1 || s.Recovery().Unclean {
					t.Error("what only looks does not work")
				}
				if _, outcome, err := s.Lookup(ctx, "commit-1"); outcome != pawl.OutcomeCommitted || err != nil {
					t.Errorf("Lookup: %v, %v", outcome, err)
				}
				return pawl.Change{Entries: [][]byte{[]byte(name)}}, nil
			})
			if outer != nil || s.View().Version().Revision != before.Revision+1 {
				t.Errorf("the outer one: %v", outer)
			}
			var e *pawl.Error
			if !errors.As(err, &e) || !errors.Is(err, pawl.ErrInvalid) || e.Op == "" {
				t.Errorf("the inner one: %v", err)
			}
			if strings.Contains(name, "Commit") || name == "Update" {
				exactly(t, err, pawl.ErrNotCommitted, pawl.ErrInvalid)
			}
		})
	}
	// Passed on, the inner error is still a certain one.
	_, err := s.Update(ctx, "", func(pawl.View) (pawl.Change, error) {
		_, err := s.Commit(ctx, change(9))
		return change(9), err
	})
	exactly(t, err, pawl.ErrNotCommitted, pawl.ErrInvalid)
	// Another store is another matter.
	_, other := quickStore(t, new(tap), nil)
	_, err = s.Update(ctx, "", func(pawl.View) (pawl.Change, error) {
		_, err := other.Update(ctx, "", func(pawl.View) (pawl.Change, error) { return change(2), nil })
		return change(2), err
	})
	if err != nil {
		t.Error(err)
	}
	want := dump(s.View())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.opens(want)
}

// TestInterruptedUpdate: a function that does not come back, by a panic or because its
// goroutine ends, leaves the store as it was, and the store goes on.
func TestInterruptedUpdate(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	before := testkit.Snapshot(t, b.dir, b.trust)
	update := func(fn func()) (recovered any) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { recovered = recover() }()
			s.Update(context.Background(), "id", func(pawl.View) (pawl.Change, error) { fn(); return change(2), nil })
			t.Error("Update returns")
		}()
		<-done
		return recovered
	}
	if got := update(func() { panic("mine") }); got != "mine" {
		t.Errorf("recovered %v: the panic does not pass through", got)
	}
	if got := update(func() { panic(pawl.ErrInDoubt) }); got != pawl.ErrInDoubt {
		t.Errorf("recovered %v", got)
	}
	if got := update(runtime.Goexit); got != nil {
		t.Errorf("recovered %v", got)
	}
	if got := fmt.Sprint(update(func() { maps.Copy(map[string]int(nil), map[string]int{"x": 1}) })); !strings.Contains(got, "nil map") {
		t.Errorf("recovered %v", got)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	if _, outcome, err := s.Lookup(context.Background(), "id"); outcome != pawl.OutcomeNotCommitted || err != nil {
		t.Errorf("Lookup: %v, %v", outcome, err)
	}
	// This goroutine is not taken for the one that was inside.
	if _, err := s.Commit(context.Background(), change(2)); err != nil {
		t.Error(err)
	}
	if _, err := s.Update(context.Background(), "id", func(pawl.View) (pawl.Change, error) { return pawl.Change{}, nil }); err != nil {
		t.Error(err)
	}
	// Nor does an encoder that panics do harm.
	func() {
		defer func() { _ = recover() }()
		var c pawl.Change
		c.SetJSON("part", panics{})
		s.Commit(context.Background(), c)
	}()
	if _, err := s.Commit(context.Background(), change(3)); err != nil {
		t.Error(err)
	}
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("encoder") }

// TestNilFunction: is an argument that was refused.
func TestNilFunction(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	before := testkit.Snapshot(t, b.dir, b.trust)
	for _, id := range []string{"", "id", "commit-1"} {
		_, err := s.Update(context.Background(), id, nil)
		exactly(t, err, pawl.ErrNotCommitted, pawl.ErrInvalid)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// TestManyCommitters: changes come one after the other, each with its own receipt, and
// ids that meet are made once.
func TestManyCommitters(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	const writers, each = 8, 12
	receipts := make([][]pawl.Receipt, writers)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				var r pawl.Receipt
				var err error
				switch i % 3 {
				case 0: // everybody's, once
					r, err = s.Commit(context.Background(), pawl.Change{ID: fmt.Sprint("shared ", i), Entries: [][]byte{[]byte("shared")}})
				case 1:
					r, err = s.Commit(context.Background(), pawl.Change{Entries: [][]byte{fmt.Appendf(nil, "%d %d", w, i), nil}})
				case 2:
					r, err = s.Update(context.Background(), "", func(v pawl.View) (pawl.Change, error) {
						n, _, err := pawl.GetJSON[int](v, "counter")
						var c pawl.Change
						c.SetJSON("counter", n+1)
						return c, err
					})
				}
				if err != nil {
					t.Error(err)
					return
				}
				receipts[w] = append(receipts[w], r)
				for e, err := range s.View().Entries(0) {
					if err != nil || e.Seq == 0 {
						t.Error(e, err)
					}
				}
			}
		})
	}
	group.Wait()
	if n, _, err := pawl.GetJSON[int](s.View(), "counter"); n != writers*each/3 || err != nil {
		t.Errorf("counted to %d, %v", n, err)
	}
	made := map[pawl.Revision]int{}
	for _, list := range receipts {
		last := pawl.Revision(0)
		for i, r := range list {
			if ok, err := s.View().Contains(r); !ok || err != nil {
				t.Errorf("%s is not contained: %v", r, err)
			}
			if i%3 != 0 {
				made[r.Revision]++
				if r.Revision <= last {
					t.Errorf("revision %d after %d", r.Revision, last)
				}
				last = r.Revision
			}
		}
	}
	for revision, n := range made {
		if n != 1 {
			t.Errorf("revision %d was given out %d times", revision, n)
		}
	}
	if v := s.View().Version(); int(v.Revision) != 1+writers*each*2/3+each/3 {
		t.Errorf("at %s", v)
	}
	want := dump(s.View())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.opens(want)
}

// ---- two openers, and their locks -------------------------------------------------

// TestTwoOpens: the second is told who has the store, and may wait for it.
func TestTwoOpens(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	says := dump(s.View())
	before := testkit.Snapshot(t, b.dir, b.trust)
	_, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if typed(t, err, "open", pawl.ErrLocked); !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("it is not said who holds it: %v", err)
	}
	_, err = pawl.Open(quick(), b.dir, b.trust, &pawl.Options{LockWait: time.Millisecond})
	typed(t, err, "open", pawl.ErrLocked)
	// To look is no second opener.
	if r, err := pawl.Inspect(quick(), b.dir, b.trust, nil); err != nil || r.Verdict != "clean" {
		t.Errorf("Inspect: %+v, %v", r, err)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	if _, err := s.Commit(context.Background(), pawl.Change{}); err != nil {
		t.Errorf("the first one: %v", err)
	}
	// It waits until it is let in: the first is closed once the second has asked.
	var once sync.Once
	waits := &tap{after: func(op, path string) {
		if op == "trylock" {
			once.Do(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}}
	second, err := pawl.Open(waits.context(), b.dir, b.trust, &pawl.Options{LockWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(second.View()); got != says {
		t.Errorf("the second opens with\n%s", got)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// TestWaitIsCancelled: the wait for a lock ends with the context, for either lock.
func TestWaitIsCancelled(t *testing.T) {
	b, s := quickStore(t, new(tap), nil)
	for name, make := range contexts() {
		t.Run(name, func(t *testing.T) {
			ctx, want := make()
			asked := false
			tap := &tap{FS: vfs.OS(), after: func(op, _ string) { asked = asked || op == "trylock" }}
			_, err := pawl.Open(vfs.NewContext(ctx, tap), b.dir, b.trust, &pawl.Options{LockWait: time.Hour})
			var e *pawl.Error
			if !errors.As(err, &e) || e.Op != "open" || errors.Is(err, pawl.ErrLocked) || !asked {
				t.Errorf("%v; asked: %v", err, asked)
			}
			for _, w := range want {
				if !errors.Is(err, w) {
					t.Errorf("%v; want: %v", err, w)
				}
			}
		})
	}
	t.Run("for the store's lock", func(t *testing.T) {
		// Under another name there is another trust lock, and the same store's.
		fresh := filepath.Join(filepath.Dir(b.dir), "fresh")
		first, err := pawl.Open(quick(), fresh, b.trust, &pawl.Options{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		ctx, cancel := context.WithCancel(context.Background())
		tap := &tap{FS: vfs.OS(), after: func(op, path string) {
			if op == "trylock" && filepath.Base(path) == "lock" {
				cancel()
			}
		}}
		_, err = pawl.Open(vfs.NewContext(ctx, tap), fresh, b.trust, &pawl.Options{Name: "b", LockWait: time.Hour})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	if _, err := s.Commit(context.Background(), change(2)); err != nil {
		t.Error(err)
	}
}

// TestOwnerTextIsInert: what a lock file says is for a message, is not believed and
// does not act on a terminal (27, R22).
func TestOwnerTextIsInert(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a locked file may not be readable on Windows")
	}
	b, s := quickStore(t, new(tap), nil)
	for _, text := range []string{"", strings.Repeat("\x00", 256), "\x1b[2J\x07pid 1\n\u202e", strings.Repeat("\xff", 1<<16), "pid 99999999"} {
		overwrite(t, filepath.Join(b.trust, "session.lock"), []byte(text))
		_, err := pawl.Open(quick(), b.dir, b.trust, nil)
		if typed(t, err, "open", pawl.ErrLocked); len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x00\x1b\x07\u202e\n\ufffd") {
			t.Errorf("%q", err)
		}
	}
	if _, err := s.Commit(context.Background(), change(2)); err != nil {
		t.Error(err)
	}
	// A lock of the dead locks nobody out, whatever it says.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.opens(dump(s.View()))
}

// TestWaitForTheMaker: who waits while another makes the store finds it made. As a
// trace of P and Q:
//
//	P  finds nothing; takes the trust lock
//	Q  finds nothing; waits for the trust lock
//	P  makes the store; commits; closes
//	Q  has the lock: the state is P's, and nothing is missing
func TestWaitForTheMaker(t *testing.T) {
	inMemory(t)
	dir, trust := testkit.Dirs(t)
	asked := make(chan struct{})
	var once sync.Once
	var q *pawl.Store
	var failed error
	var group sync.WaitGroup
	waits := &tap{after: func(op, _ string) {
		if op == "trylock" {
			once.Do(func() { close(asked) })
		}
	}}
	start := sync.OnceFunc(func() {
		group.Go(func() {
			q, failed = pawl.Open(waits.context(), dir, trust, &pawl.Options{LockWait: time.Hour})
			once.Do(func() { close(asked) })
		})
		<-asked
	})
	p, err := pawl.Open((&tap{after: func(op, _ string) {
		if op == "trylock" {
			start()
		}
	}}).context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(context.Background(), change(1)); err != nil {
		t.Error(err)
	}
	want := dump(p.View())
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	group.Wait()
	if failed != nil {
		t.Fatalf("the one that waited: %v", failed)
	}
	if got := dump(q.View()); got != want {
		t.Errorf("the one that waited opens with\n%s", got)
	}
	if _, err := q.Commit(context.Background(), change(2)); err != nil {
		t.Error(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// TestRaceToCreate: of many that make the same store at once, one makes it, and the
// others find that.
func TestRaceToCreate(t *testing.T) {
	inMemory(t)
	for range 5 {
		dir, trust := testkit.Dirs(t)
		var group sync.WaitGroup
		var ids sync.Map
		for i := range 4 {
			group.Go(func() {
				s, err := pawl.Open(quick(), dir, trust, &pawl.Options{LockWait: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Commit(context.Background(), pawl.Change{ID: fmt.Sprint(i)}); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			group.Go(func() {
				s, err := pawl.Open(quick(), dir, trust, nil)
				if err == nil {
					ids.Store(i, s.View().Version())
					err = s.Close()
				} else if errors.Is(err, pawl.ErrLocked) {
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		s, err := pawl.Open(quick(), dir, trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		if v := s.View().Version(); v.Revision != 4 {
			t.Errorf("at %s", v)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// meddle takes lock files away, or puts others in their place.
func (b *bench) meddle(t *testing.T, how string, trust, store bool) {
	t.Helper()
	var err error
	for path, meant := range map[string]bool{filepath.Join(b.trust, "session.lock"): trust, filepath.Join(b.dir, "lock"): store} {
		if !meant {
			continue
		}
		if how == "replaced" {
			write(t, path+".new", "")
			err = errors.Join(err, os.Rename(path+".new", path))
		} else {
			err = errors.Join(err, os.Remove(path))
		}
		if _, e := os.Lstat(path); how == "deleted" && e == nil {
			t.Skip("Windows does not remove or rename a lock file that is open")
		}
	}
	if err != nil {
		t.Skipf("lock files that are open cannot be %s here: %v", how, err)
	}
}

// TestLockFilesLost: while one lock is where it was, nobody else gets in. With both
// gone a second opener does, and from then on the first has lost. Whoever is told
// that a commit is made has made it for good: there are never two (24).
func TestLockFilesLost(t *testing.T) {
	for _, how := range []string{"deleted", "replaced"} {
		for _, tt := range []struct {
			name         string
			trust, store bool
		}{{"trust lock", true, false}, {"store lock", false, true}, {"both locks", true, true}} {
			for _, order := range []string{"first, second", "second, first"} {
				t.Run(fmt.Sprintf("%s %s, %s", tt.name, how, order), func(t *testing.T) {
					b, first := quickStore(t, new(tap), nil)
					b.meddle(t, how, tt.trust, tt.store)
					second, err := pawl.Open(quick(), b.dir, b.trust, nil)
					if both := tt.trust && tt.store; both != (err == nil) {
						t.Fatalf("a second opener gets: %v", err)
					}
					if err != nil {
						typed(t, err, "open", pawl.ErrLocked)
					} else {
						defer second.Close()
					}
					var made []pawl.Receipt
					for _, who := range strings.Split(order, ", ") {
						s := map[string]*pawl.Store{"first": first, "second": second}[who]
						if s == nil {
							continue
						}
						r, err := s.Commit(context.Background(), pawl.Change{ID: who})
						if who == "first" {
							exactly(t, err, pawl.ErrNotCommitted, pawl.ErrStale)
						} else if err != nil {
							t.Errorf("the second: %v", err)
						}
						if err == nil {
							made = append(made, r)
						}
					}
					if second != nil {
						if err := second.Close(); err != nil {
							t.Error(err)
						}
					}
					before := testkit.Snapshot(t, b.dir, b.trust)
					if err := first.Close(); !errors.Is(err, pawl.ErrStale) {
						t.Errorf("Close of the first: %v", err)
					}
					if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
						t.Errorf("a stale Close changed files (-before +after):\n%s", diff)
					}
					b.contains(t, made)
				})
			}
		}
	}
}

// contains opens the store and wants all the receipts to be part of its history.
func (b *bench) contains(t *testing.T, receipts []pawl.Receipt) {
	t.Helper()
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err != nil {
		t.Errorf("does not open again: %v", err)
		return
	}
	for _, r := range receipts {
		if ok, err := s.View().Contains(r); !ok || err != nil {
			t.Errorf("%s was acknowledged and is not there: %v", r, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestLockFilesLostWhileCommitting: the same in the middle of a commit, at each call in
// turn, with a second opener that commits there and then. As a trace of P and Q:
//
//	P  looks at its locks; writes its intent
//	   both lock files are deleted
//	Q  opens: settles P's intent as not landed; commits; is told so
//	P  must not be told that its commit is made too
func TestLockFilesLostWhileCommitting(t *testing.T) {
	t.Run("publishing", func(t *testing.T) { locksLostWhileCommitting(t, publishing, 0) })
	t.Run("making the journal", func(t *testing.T) { locksLostWhileCommitting(t, nil, 0) })
	t.Run("extending", func(t *testing.T) { locksLostWhileCommitting(t, nil, 1) })
}

func locksLostWhileCommitting(t *testing.T, o *pawl.Options, before int) {
	for call := 0; ; call++ {
		var b *bench
		var made []pawl.Receipt
		armed, seen, done := false, 0, false
		b, first := quickStore(t, &tap{before: func(op, path string) error {
			if !armed {
				return nil
			}
			if seen++; seen <= call {
				return nil
			}
			armed, done = false, true
			b.meddle(t, "deleted", true, true)
			second, err := pawl.Open(quick(), b.dir, b.trust, o)
			if err != nil {
				t.Errorf("the second does not open: %v", err)
				return nil
			}
			r, err := second.Commit(context.Background(), pawl.Change{ID: "second"})
			if err != nil {
				t.Errorf("the second: %v", err)
			} else {
				made = append(made, r)
			}
			if err := second.Close(); err != nil {
				t.Errorf("the second: %v", err)
			}
			return nil
		}}, o)
		for i := range before {
			r, err := first.Commit(context.Background(), pawl.Change{ID: fmt.Sprint("before ", i)})
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, r)
		}
		armed = true
		r, err := first.Commit(context.Background(), pawl.Change{ID: "first"})
		if err == nil {
			made = append(made, r)
		}
		first.Close()
		if !done {
			return
		}
		t.Logf("call %d: %d are told that their commit is made; the first: %v", call, len(made), err)
		b.contains(t, made)
	}
}

// ---- clocks -----------------------------------------------------------------------

// TestClockJumps: by years, there and back, and to where no clock should be. Nothing
// is decided by it; it is shown, and that is all.
func TestClockJumps(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	tap := &tap{now: func() time.Time { return now }}
	b, s := quickStore(t, tap, nil)
	times := []time.Time{
		now.AddDate(30, 0, 0), now.AddDate(-30, 0, 0), time.Unix(0, 0), time.Unix(-1, 0), now, now, // the same twice
		time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC), {},
	}
	var receipts []pawl.Receipt
	for i, at := range times {
		now = at
		if i%3 == 2 { // between two processes
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var err error
			if s, err = pawl.Open(tap.context(), b.dir, b.trust, nil); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
		}
		r, err := s.Commit(context.Background(), pawl.Change{ID: fmt.Sprint("at ", i), Entries: [][]byte{nil}})
		if err != nil || r.Revision != pawl.Revision(i+2) {
			t.Fatalf("at %v: %v, %v", at, r, err)
		}
		receipts = append(receipts, r)
		if i > 8 {
			continue // 64 bits of nanoseconds do not reach as far
		}
		for info := range s.View().Commits(r.Revision - 1) {
			if i < 8 && !info.Time.Equal(at) {
				t.Errorf("time %v, want %v", info.Time, at)
			}
		}
	}
	for _, r := range receipts {
		if ok, err := s.View().Contains(r); !ok || err != nil {
			t.Errorf("%s: %v, %v", r, ok, err)
		}
	}
	// Files from the future or the past are as good as any.
	for _, path := range []string{b.bundle, b.slots, b.dir, b.trust} {
		if err := os.Chtimes(path, time.Time{}, now.AddDate(1000, 0, 0)); err != nil {
			t.Log(err)
		}
	}
	want := dump(s.View())
	if err := s.Close(); err != nil && !errors.Is(err, pawl.ErrStale) {
		t.Error(err)
	}
	// An audit line is due, and the clock cannot be written down.
	now = time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC)
	one, _, _ := histories(t)
	s, err := pawl.Open(tap.context(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(s.View()); got != want {
		t.Errorf("opens with\n%s", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.lay(one.old[4])
	if s, err = pawl.Open(tap.context(), b.dir, b.trust, nil); err != nil {
		t.Fatal(err)
	}
	if rec := s.Recovery(); rec.Settled != pawl.SettledNotLanded || rec.Audit == nil {
		t.Errorf("%+v", rec)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestBadReceipts: a receipt that is made up proves nothing (R21).
func TestBadReceipts(t *testing.T) {
	_, s := quickStore(t, new(tap), nil)
	good, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil, nil}})
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(r *pawl.Receipt){
		"none":             func(r *pawl.Receipt) { *r = pawl.Receipt{} },
		"another revision": func(r *pawl.Receipt) { r.Revision-- },
		"a later revision": func(r *pawl.Receipt) { r.Revision = math.MaxUint64 },
		"another digest":   func(r *pawl.Receipt) { r.Digest[31] ^= 1 },
		"no digest":        func(r *pawl.Receipt) { r.Digest = pawl.Digest{} },
		"another entry":    func(r *pawl.Receipt) { r.LastSeq++ },
		"entries":          func(r *pawl.Receipt) { r.FirstSeq = math.MaxUint64 },
	} {
		r := good
		edit(&r)
		if ok, err := s.View().Contains(r); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	replayed := good
	replayed.Replayed = true
	if ok, err := s.View().Contains(replayed); !ok || err != nil {
		t.Errorf("replayed: %v, %v", ok, err)
	}
	text := good.String()
	for _, bad := range []string{
		"", text + " ", " " + text, text + "\n", strings.ToUpper(text), text[:len(text)-1], text + "00", strings.Replace(text, ".2.", ".02.", 1), strings.Replace(text, ".2.", ".+2.", 1),
		strings.Replace(text, ".2.", ".-2.", 1), strings.Replace(text, ".2.", ".99999999999999999999.", 1), strings.Replace(text, "pawl1", "pawl2", 1), text + "." + text, "{}", strings.Repeat("x", 1<<20),
	} {
		r := good
		if err := r.UnmarshalText([]byte(bad)); !errors.Is(err, pawl.ErrInvalid) || r != good || len(err.Error()) > 1000 {
			t.Errorf("%.100q reads as %s, %v", bad, r, err)
		}
	}
	var back pawl.Receipt
	b, err := json.Marshal(good)
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || back != good || !bytes.Contains(b, []byte(text)) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}
