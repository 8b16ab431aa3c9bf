package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What Compact does to a history, held against a model that is a list in memory.

// pastCommit is a commit as the model remembers it.
type pastCommit struct {
	change    pawl.Change
	receipt   pawl.Receipt
	left      bool // its entries are there
	forgotten bool
}

func (p *pastCommit) bytes() (n int64) {
	for _, e := range p.change.Entries {
		n += int64(len(e))
	}
	return n
}

// pastStore is a store as the model has it.
type pastStore struct {
	commits []pastCommit
	parts   map[string]string
}

func (m *pastStore) copy() *pastStore {
	return &pastStore{slices.Clone(m.commits), maps.Clone(m.parts)}
}

func (m *pastStore) version() (v pawl.Version) {
	if n := len(m.commits); n > 0 {
		v = m.commits[n-1].receipt.Version
	}
	return v
}

func (m *pastStore) nextSeq() pawl.Seq {
	n := pawl.Seq(1)
	for _, p := range m.commits {
		n += pawl.Seq(len(p.change.Entries))
	}
	return n
}

// add is a commit that was made.
func (m *pastStore) add(t testing.TB, c pawl.Change, r pawl.Receipt) {
	t.Helper()
	want := pawl.Receipt{Version: pawl.Version{Revision: m.version().Revision + 1, Digest: r.Digest}}
	if n := len(c.Entries); n > 0 {
		want.FirstSeq = m.nextSeq()
		want.LastSeq = want.FirstSeq + pawl.Seq(n) - 1
	}
	if r != want {
		t.Fatalf("receipt %+v, want %+v", r, want)
	}
	m.commits = append(m.commits, pastCommit{change: c, receipt: r, left: len(c.Entries) > 0})
	for name, b := range c.Put {
		m.parts[name] = string(b)
	}
	for _, name := range c.Delete {
		delete(m.parts, name)
	}
}

// compact does what a policy says, one entry after the other.
func (m *pastStore) compact(p pawl.Policy) (r pawl.CompactReport) {
	r.DryRun = p.DryRun
	entries := uint64(0)
	for _, c := range m.commits {
		if c.left {
			entries += uint64(len(c.change.Entries))
		}
	}
	stays := map[pawl.Revision]bool{}
	nth := uint64(0)
	for _, c := range m.commits {
		if !c.left {
			continue
		}
		for i, data := range c.change.Entries {
			nth++
			e := pawl.Entry{Seq: c.receipt.FirstSeq + pawl.Seq(i), Revision: c.receipt.Revision, Data: bytes.Clone(data)}
			if entries-nth < p.KeepLast || p.KeepSince > 0 && e.Revision >= p.KeepSince || p.Keep != nil && p.Keep(e) {
				stays[e.Revision] = true
			}
		}
	}
	prefix := true // nothing that stays has come yet
	for i := range m.commits {
		c := &m.commits[i]
		rev := c.receipt.Revision
		if prefix = prefix && !stays[rev]; prefix && rev < p.ForgetBefore && !c.forgotten {
			r.Forgotten++
			r.ForgottenTo = rev
			if !p.DryRun {
				c.forgotten = true
			}
		}
		if !c.left {
			continue
		}
		if stays[rev] {
			r.Kept += uint64(len(c.change.Entries))
			continue
		}
		if r.Entries == 0 {
			r.FirstSeq = c.receipt.FirstSeq
		}
		r.LastSeq = c.receipt.LastSeq
		r.Entries += uint64(len(c.change.Entries))
		r.EntryBytes += c.bytes()
		r.Commits++
		if !p.DryRun {
			c.left = false
		}
	}
	return r
}

func (m *pastStore) entries(after pawl.Seq) (list []string) {
	for _, c := range m.commits {
		for i, data := range c.change.Entries {
			if seq := c.receipt.FirstSeq + pawl.Seq(i); c.left && seq > after {
				list = append(list, fmt.Sprintf("%d/%d:%s", seq, c.receipt.Revision, data))
			}
		}
	}
	return list
}

func (m *pastStore) infos(after pawl.Revision) (list []string) {
	for _, c := range m.commits {
		if c.receipt.Revision > after && !c.forgotten {
			list = append(list, fmt.Sprintf("%s %q put %q deleted %q dropped %v", c.receipt, c.change.ID,
				slices.Sorted(maps.Keys(c.change.Put)), slices.Sorted(slices.Values(c.change.Delete)), len(c.change.Entries) > 0 && !c.left))
		}
	}
	return list
}

func infosOf(t testing.TB, v pawl.View, after pawl.Revision) (list []string) {
	t.Helper()
	for c, err := range v.Commits(after) {
		if err != nil {
			t.Fatal(err)
		}
		r := pawl.Receipt{Version: c.Version, FirstSeq: c.FirstSeq, LastSeq: c.LastSeq}
		list = append(list, fmt.Sprintf("%s %q put %q deleted %q dropped %v", r, c.ID, c.Put, c.Deleted, c.Dropped))
	}
	return list
}

// agree compares a view with the model: what comes after some seqs and revisions, and some
// receipts. Without rnd it is from the beginning, and all of them.
func (m *pastStore) agree(t testing.TB, v pawl.View, rnd *rand.Rand) {
	t.Helper()
	var seqs []pawl.Seq
	var revisions []pawl.Revision
	if rnd != nil {
		seqs = append(seqs, m.someSeq(rnd), m.someSeq(rnd))
		revisions = append(revisions, m.someRevision(rnd))
	}
	if got := v.Version(); got.Revision != m.version().Revision || got.Revision > 0 && got != m.version() {
		t.Errorf("version %v, want %v", got, m.version())
	}
	for _, after := range append(seqs, 0) {
		if want, got := m.entries(after), entriesOf(t, v, after); !slices.Equal(want, got) {
			t.Errorf("entries after %d (-want +got):\n%s", after, cmp.Diff(want, got))
		}
	}
	for _, after := range append(revisions, 0) {
		if want, got := m.infos(after), infosOf(t, v, after); !slices.Equal(want, got) {
			t.Errorf("commits after %d (-want +got):\n%s", after, cmp.Diff(want, got))
		}
	}
	if got := partsOf(t, v); !maps.Equal(m.parts, got) {
		t.Errorf("parts (-want +got):\n%s", cmp.Diff(m.parts, got))
	}
	for _, i := range m.some(rnd) {
		c := m.commits[i]
		ok, err := v.Contains(c.receipt)
		last := !c.forgotten || i+1 < len(m.commits) && !m.commits[i+1].forgotten || i+1 == len(m.commits)
		switch {
		case last && (!ok || err != nil):
			t.Errorf("revision %d is not contained: %v, %v", c.receipt.Revision, ok, err)
		case !last && !ok && !errors.Is(err, pawl.ErrForgotten), !last && ok && err != nil:
			t.Errorf("revision %d, which is forgotten: %v, %v", c.receipt.Revision, ok, err)
		}
		other := c.receipt
		other.Digest[7] ^= 4
		if ok, err := v.Contains(other); ok || err != nil && !(c.forgotten && errors.Is(err, pawl.ErrForgotten)) {
			t.Errorf("another commit of revision %d is contained: %v, %v", c.receipt.Revision, ok, err)
		}
		if other = c.receipt; !c.forgotten {
			other.FirstSeq, other.LastSeq = other.FirstSeq+1, other.LastSeq+1
			if ok, err := v.Contains(other); ok || err != nil {
				t.Errorf("a receipt of revision %d with other seqs is contained: %v, %v", c.receipt.Revision, ok, err)
			}
		}
	}
	next := pawl.Receipt{Version: pawl.Version{Revision: m.version().Revision + 1}}
	if ok, err := v.Contains(next); ok || err != nil {
		t.Errorf("the next revision is contained: %v, %v", ok, err)
	}
}

// some are all commits, or a few of them.
func (m *pastStore) some(rnd *rand.Rand) (list []int) {
	n := len(m.commits)
	if rnd == nil {
		for i := range n {
			list = append(list, i)
		}
		return list
	}
	for range min(n, 6) {
		list = append(list, rnd.IntN(n))
	}
	return list
}

func (m *pastStore) someSeq(rnd *rand.Rand) pawl.Seq {
	return pawl.Seq(rnd.Uint64N(uint64(m.nextSeq()) + 2))
}

func (m *pastStore) someRevision(rnd *rand.Rand) pawl.Revision {
	return pawl.Revision(rnd.Uint64N(uint64(m.version().Revision) + 3))
}

// lookup asks for some ids, or all, and for one that there is not.
func (m *pastStore) lookup(t testing.TB, rnd *rand.Rand, ask func(context.Context, string) (pawl.Receipt, pawl.Outcome, error)) {
	t.Helper()
	for _, i := range m.some(rnd) {
		c := m.commits[i]
		if c.change.ID == "" {
			continue
		}
		want, outcome := c.receipt, pawl.OutcomeCommitted
		if c.forgotten {
			want, outcome = pawl.Receipt{}, pawl.OutcomeForgotten
		}
		if r, o, err := ask(t.Context(), c.change.ID); r != want || o != outcome || err != nil {
			t.Errorf("lookup %q: %v %v %v, want %v %v", c.change.ID, r, o, err, want, outcome)
		}
	}
	if r, o, err := ask(t.Context(), "there is none"); r != (pawl.Receipt{}) || o != pawl.OutcomeNotCommitted || err != nil {
		t.Errorf("lookup of an id that there is not: %v %v %v", r, o, err)
	}
}

// again asks for a commit once more.
func (m *pastStore) again(t testing.TB, s *pawl.Store, c *pastCommit) {
	t.Helper()
	ran := false
	update := func(context.Context, pawl.Change) (pawl.Receipt, error) {
		return s.Update(t.Context(), c.change.ID, func(pawl.View) (pawl.Change, error) {
			ran = true
			return c.change, nil
		})
	}
	before := s.View().Version()
	for name, do := range map[string]func(context.Context, pawl.Change) (pawl.Receipt, error){"Commit": s.Commit, "Update": update} {
		r, err := do(t.Context(), c.change)
		if c.forgotten {
			notCommitted(t, err, pawl.ErrForgotten)
			continue
		}
		want := c.receipt
		want.Replayed = true
		if r != want || err != nil {
			t.Errorf("%s of %q again: %+v, %v, want %+v", name, c.change.ID, r, err, want)
		}
	}
	other := c.change
	other.Entries = append(slices.Clone(other.Entries), []byte("more"))
	class := pawl.ErrIDReused
	if c.forgotten {
		class = pawl.ErrForgotten
	}
	_, err := s.Commit(t.Context(), other)
	notCommitted(t, err, class)
	if ran || s.View().Version() != before {
		t.Errorf("asking for %q again changed something: %v", c.change.ID, ran)
	}
}

// takes is what a store takes on disk, as CompactReport counts it, and the names of its
// segments.
func takes(t testing.TB, dir string) (n int64, segments []string) {
	t.Helper()
	for _, pattern := range []string{"bundle", "journal.*", "segments/*", "parts/*"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			n += info.Size()
			if pattern == "segments/*" {
				segments = append(segments, filepath.Base(name))
			}
		}
	}
	return n, segments
}

// less is what is in a and not in b.
func less(a, b []string) (n int) {
	for _, s := range a {
		if !slices.Contains(b, s) {
			n++
		}
	}
	return n
}

// retain compacts a store twice, the first time as a dry run, and holds both against the
// model, which then is what the store must be.
func (m *pastStore) retain(t testing.TB, rnd *rand.Rand, s *pawl.Store, dir, trust string, p pawl.Policy) pawl.CompactReport {
	t.Helper()
	version, before := s.View().Version(), testkit.Snapshot(t, dir, trust)
	p.DryRun = true
	dry, err := s.Compact(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, dir, trust)); diff != "" {
		t.Errorf("a dry run changed the disk (-before +after):\n%s", diff)
	}
	took, old := takes(t, dir)
	m.agree(t, s.View(), rnd)

	p.DryRun = false
	looked := uint64(0)
	p.Progress = func(done, total uint64) {
		if done <= looked || done > total || total != uint64(version.Revision) {
			t.Errorf("progress %d of %d after %d", done, total, looked)
		}
		looked = done
	}
	got, err := s.Compact(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if s.View().Version() != version {
		t.Errorf("the version changed from %v to %v", version, s.View().Version())
	}
	if dry.DryRun = false; dry != got {
		t.Errorf("dry run %+v\nreal    %+v", dry, got)
	}
	want := m.compact(p)
	takesNow, now := takes(t, dir)
	want.BytesBefore, want.BytesAfter = took, takesNow
	want.FilesMade, want.FilesRemoved = less(now, old), less(old, now)
	if !vfs.ReplacesOpen { // files go with the next Open
		want.BytesBefore, want.BytesAfter, want.FilesRemoved = got.BytesBefore, got.BytesAfter, got.FilesRemoved
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
	if got.Entries == 0 && got.Forgotten == 0 {
		if diff := cmp.Diff(before, testkit.Snapshot(t, dir, trust)); diff != "" {
			t.Errorf("nothing was to be dropped, and the disk changed (-before +after):\n%s", diff)
		}
	}
	if err := s.Verify(t.Context(), nil); err != nil {
		t.Errorf("verify: %v", err)
	}
	return got
}

// describe says a policy in a line.
func describePolicy(p pawl.Policy) string {
	return fmt.Sprintf("KeepLast %d KeepSince %d Keep %v ForgetBefore %d", p.KeepLast, p.KeepSince, p.Keep != nil, p.ForgetBefore)
}

// The model is the contract of Compact; random histories and policies hold the code
// against it.
func TestCompactModel(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a Reader holds files open, whose names cannot be given to others there meanwhile")
	}
	inMemory(t)
	for seed := range uint64(16) {
		if testing.Short() && seed%3 != 0 {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			compactAtRandom(t, seed)
		})
	}
}

func compactAtRandom(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 6))
	dir, trust := testkit.AgedDirs(t)
	var history []string // what led here
	did := func(format string, args ...any) { history = append(history, fmt.Sprintf(format, args...)) }
	defer func() {
		if t.Failed() {
			t.Logf("seed %d:\n%s", seed, strings.Join(history, "\n"))
		}
	}()
	options := func() *pawl.Options {
		o := &pawl.Options{CheckpointEvery: rnd.IntN(6), Limits: pawl.Limits{Journal: 16 << 10, Unsealed: 1 + rnd.Int64N(5000), Inline: 1 + rnd.Int64N(200)}}
		if rnd.IntN(4) == 0 {
			o.Limits.Unsealed = 1
		}
		if rnd.IntN(8) == 0 {
			o.Limits.Unsealed = 0 // all of it
		}
		did("open %d %+v", o.CheckpointEvery, o.Limits)
		return o
	}
	s, err := pawl.Open(quick(), dir, trust, options())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
	m := &pastStore{parts: map[string]string{}}
	var r *pawl.Reader
	var seen pawl.View // what the Reader had
	var saw *pastStore
	var views []pawl.View
	var viewed []*pastStore
	leave := func() {
		if r != nil {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		r, seen, views, viewed = nil, pawl.View{}, nil, nil
	}
	defer leave()

	random := func() pawl.Change {
		c := pawl.Change{}
		if rnd.IntN(3) > 0 {
			c.ID = fmt.Sprintf("commit-%d", len(m.commits))
		}
		for range rnd.IntN(4) {
			c.Entries = append(c.Entries, bytes.Repeat([]byte{byte('a' + rnd.IntN(26))}, rnd.IntN(1+rnd.IntN(300))))
		}
		for range rnd.IntN(2) * rnd.IntN(3) {
			name := fmt.Sprintf("part-%d", rnd.IntN(4))
			if rnd.IntN(5) == 0 {
				c.Delete = append(c.Delete, name)
				continue
			}
			if c.Put == nil {
				c.Put = map[string][]byte{}
			}
			c.Put[name] = bytes.Repeat([]byte{byte('a' + rnd.IntN(3))}, rnd.IntN(3)*100)
		}
		c.Delete = slices.Compact(slices.Sorted(slices.Values(c.Delete)))
		c.Delete = slices.DeleteFunc(c.Delete, func(name string) bool { _, both := c.Put[name]; return both })
		if c.ID == "" && len(c.Entries)+len(c.Put)+len(c.Delete) == 0 {
			c.ID = fmt.Sprintf("commit-%d", len(m.commits))
		}
		return c
	}
	for step := 0; step < 60 && !t.Failed(); step++ {
		switch n := rnd.IntN(20); {
		case n < 9:
			for range 1 + rnd.IntN(12) {
				c := random()
				did("commit %q with %d entries, %d parts", c.ID, len(c.Entries), len(c.Put)+len(c.Delete))
				m.add(t, c, commit(t, s, c))
			}
		case n < 10:
			did("checkpoint")
			if err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		case n < 12:
			did("close and open")
			leave()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			before := testkit.Snapshot(t, filepath.Join(dir, "segments"), filepath.Join(dir, "parts"))
			if s, err = pawl.Open(quick(), dir, trust, options()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, testkit.Snapshot(t, filepath.Join(dir, "segments"), filepath.Join(dir, "parts"))); diff != "" && vfs.ReplacesOpen {
				t.Errorf("files were left for Open to sweep (-before +after):\n%s", diff)
			}
		case n < 13:
			did("reader")
			if r == nil {
				if r, err = pawl.OpenReader(quick(), dir, trust, nil); err != nil {
					t.Fatal(err)
				}
			} else if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			seen, saw = r.View(), m.copy()
		case n < 14:
			did("view")
			views, viewed = append(views, s.View()), append(viewed, m.copy())
		case n < 16 && len(m.commits) > 0:
			for range 3 {
				if c := &m.commits[rnd.IntN(len(m.commits))]; c.change.ID != "" {
					did("again %q", c.change.ID)
					m.again(t, s, c)
				}
			}
		default:
			p := pawl.Policy{KeepSince: pawl.Revision(1 + rnd.IntN(len(m.commits)+5))}
			switch rnd.IntN(4) {
			case 0:
				p.KeepSince, p.KeepLast = 0, 1+rnd.Uint64N(uint64(m.nextSeq()))
			case 1:
				p.KeepLast = 1 + rnd.Uint64N(20)
			}
			if rnd.IntN(3) == 0 {
				letter, mod := byte('a'+rnd.IntN(26)), pawl.Seq(1+rnd.IntN(9))
				p.Keep = func(e pawl.Entry) bool { return e.Seq%mod == 0 || bytes.IndexByte(e.Data, letter) == 0 }
				if rnd.IntN(2) == 0 {
					p.KeepSince = 0
				}
			}
			if rnd.IntN(3) == 0 {
				p.ForgetBefore = m.someRevision(rnd)
			}
			did("compact %s", describePolicy(p))
			m.retain(t, rnd, s, dir, trust, p)
		}
		m.agree(t, s.View(), rnd)
		m.lookup(t, rnd, s.Lookup)
		if r != nil {
			saw.agree(t, seen, rnd)
			if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.agree(t, r.View(), rnd)
			m.lookup(t, rnd, r.Lookup)
		}
		if n := len(views); n > 0 {
			i := rnd.IntN(n)
			viewed[i].agree(t, views[i], rnd)
		}
	}
	did("the end")
	m.agree(t, s.View(), nil)
	m.lookup(t, nil, s.Lookup)
	if err := s.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// fixedHistory is what the policies below are about:
//
//	revision  1    2    3    4      5    6    7    8
//	entries   1,2  -    3    4,5,6  -    7    8,9  -
//	id        a    b         d      e         g    h
func fixedHistory() []pawl.Change {
	texts := func(list ...string) (b [][]byte) {
		for _, s := range list {
			b = append(b, []byte(s))
		}
		return b
	}
	return []pawl.Change{
		{ID: "a", Entries: texts("one", ""), Put: map[string][]byte{"part": []byte("first"), "large": bytes.Repeat([]byte("l"), 100)}},
		{ID: "b"},
		{Entries: texts("three")},
		{ID: "d", Entries: texts("four", "five", "six"), Put: map[string][]byte{"part": []byte("second")}},
		{ID: "e", Put: map[string][]byte{"other": nil}, Delete: []string{"never there"}},
		{Entries: texts("seven")},
		{ID: "g", Entries: texts("eight", "nine"), Delete: []string{"other"}},
		{ID: "h"},
	}
}

// layouts are where the history may be: in the bundle and the journal, in a segment for
// each commit, in some segments and the journal, in one segment.
var layouts = map[string]pawl.Options{
	"unsealed": {},
	"sealed":   {CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 1, Inline: 50}},
	"mixed":    {CheckpointEvery: 3, Limits: pawl.Limits{Unsealed: 1, Inline: 50}},
	"late":     {CheckpointEvery: 8, Limits: pawl.Limits{Unsealed: 500}},
}

func fixedStore(t testing.TB, ctx context.Context, dir, trust string, o pawl.Options) (*pawl.Store, *pastStore) {
	t.Helper()
	s, err := pawl.Open(ctx, dir, trust, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	m := &pastStore{parts: map[string]string{}}
	for _, c := range fixedHistory() {
		m.add(t, c, commit(t, s, c))
	}
	return s, m
}

// What a policy keeps, written out. It is the same wherever the history is.
func TestCompactPolicies(t *testing.T) {
	inMemory(t)
	only := func(seqs ...pawl.Seq) func(pawl.Entry) bool {
		return func(e pawl.Entry) bool {
			clear(e.Data) // it is the caller's
			return slices.Contains(seqs, e.Seq)
		}
	}
	for _, tt := range []struct {
		name   string
		policy pawl.Policy
		left   string
		forgot pawl.Revision // the last that is forgotten
	}{
		{"the last", pawl.Policy{KeepLast: 1}, "8 9", 0},
		{"a whole commit", pawl.Policy{KeepLast: 2}, "8 9", 0},
		{"the end of a commit", pawl.Policy{KeepLast: 4}, "4 5 6 7 8 9", 0},
		{"one commit more", pawl.Policy{KeepLast: 7}, "3 4 5 6 7 8 9", 0},
		{"as many as there are", pawl.Policy{KeepLast: 9}, "1 2 3 4 5 6 7 8 9", 0},
		{"more than there are", pawl.Policy{KeepLast: 1 << 63}, "1 2 3 4 5 6 7 8 9", 0},
		{"since the first", pawl.Policy{KeepSince: 1}, "1 2 3 4 5 6 7 8 9", 0},
		{"since one without entries", pawl.Policy{KeepSince: 5}, "7 8 9", 0},
		{"since one with entries", pawl.Policy{KeepSince: 7}, "8 9", 0},
		{"since the last, which has none", pawl.Policy{KeepSince: 8}, "", 0},
		{"since one that is to come", pawl.Policy{KeepSince: 9}, "", 0},
		{"since the highest number", pawl.Policy{KeepSince: 1<<64 - 1}, "", 0},
		{"by choice", pawl.Policy{Keep: only(5, 8)}, "4 5 6 8 9", 0},
		{"none by choice", pawl.Policy{Keep: only()}, "", 0},
		{"the first by choice", pawl.Policy{KeepLast: 1, Keep: only(2)}, "1 2 8 9", 0},
		{"the more of two", pawl.Policy{KeepLast: 1, KeepSince: 6}, "7 8 9", 0},
		{"the more of two again", pawl.Policy{KeepLast: 3, KeepSince: 7}, "7 8 9", 0},
		{"all three", pawl.Policy{KeepLast: 1, KeepSince: 6, Keep: only(3)}, "3 7 8 9", 0},
		{"forgotten before one", pawl.Policy{KeepLast: 1, ForgetBefore: 1}, "8 9", 0},
		{"forgotten up to the one before", pawl.Policy{KeepLast: 1, ForgetBefore: 4}, "8 9", 3},
		{"forgotten up to what stays", pawl.Policy{KeepLast: 4, ForgetBefore: 99}, "4 5 6 7 8 9", 3},
		{"none forgotten before what stays", pawl.Policy{Keep: only(1), ForgetBefore: 7}, "1 2", 0},
		{"all forgotten", pawl.Policy{KeepSince: 9, ForgetBefore: 1<<64 - 1}, "", 8},
		{"all but the last forgotten", pawl.Policy{Keep: only(), ForgetBefore: 8}, "", 7},
		{"nothing to do", pawl.Policy{KeepSince: 1, ForgetBefore: 8}, "1 2 3 4 5 6 7 8 9", 0},
	} {
		for layout, o := range layouts {
			t.Run(tt.name+"/"+layout, func(t *testing.T) {
				dir, trust := testkit.AgedDirs(t)
				s, m := fixedStore(t, quick(), dir, trust, o)
				r := m.retain(t, nil, s, dir, trust, tt.policy)
				var left []string
				for e, err := range s.View().Entries(0) {
					if err != nil {
						t.Fatal(err)
					}
					left = append(left, fmt.Sprint(e.Seq))
				}
				if got := strings.Join(left, " "); got != tt.left || r.ForgottenTo != tt.forgot || r.Forgotten != uint64(tt.forgot) {
					t.Errorf("left are %q, forgotten %d up to %d; want %q and %d", got, r.Forgotten, r.ForgottenTo, tt.left, tt.forgot)
				}
				for range 2 { // as it is, and opened again
					m.agree(t, s.View(), nil)
					m.lookup(t, nil, s.Lookup)
					for i := range m.commits {
						if m.commits[i].change.ID != "" {
							m.again(t, s, &m.commits[i])
						}
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = openStore(t, quick(), dir, trust, &o)
				}
				// The same once more does nothing.
				if again := m.retain(t, nil, s, dir, trust, tt.policy); again.Entries != 0 || again.Forgotten != 0 || again.FilesMade != 0 || again.FilesRemoved != 0 {
					t.Errorf("once more: %+v", again)
				}
				// Numbers go on from where they were.
				m.add(t, entry("next", "ten"), commit(t, s, entry("next", "ten")))
				m.agree(t, s.View(), nil)
			})
		}
	}
}

// Keep is asked about the entries that nothing else keeps, in order, up to the first of a
// commit that it keeps.
func TestCompactAsksInOrder(t *testing.T) {
	inMemory(t)
	for layout, o := range layouts {
		t.Run(layout, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			s, m := fixedStore(t, quick(), dir, trust, o)
			var asked []string
			_, err := s.Compact(t.Context(), pawl.Policy{KeepSince: 6, Keep: func(e pawl.Entry) bool {
				asked = append(asked, fmt.Sprintf("%d/%d:%s", e.Seq, e.Revision, e.Data))
				return e.Seq == 4
			}})
			if want := []string{"1/1:one", "2/1:", "3/3:three", "4/4:four"}; err != nil || !slices.Equal(asked, want) {
				t.Errorf("asked about %q, want %q; %v", asked, want, err)
			}
			if got, want := entriesOf(t, s.View(), 0), m.entries(3); !slices.Equal(got, want) {
				t.Errorf("left are %q, want %q", got, want)
			}
		})
	}
}

// What fails drops nothing, and leaves nothing behind.
func TestCompactFails(t *testing.T) {
	inMemory(t)
	full := errors.New("no space")
	all := pawl.Policy{KeepSince: 7, ForgetBefore: 4}
	count := func(n int, f func()) func() { // calls f the nth time
		return func() {
			if n--; n == 0 {
				f()
			}
		}
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, s *pawl.Store, fs *faultfs.FS) error
		want error
	}{
		{"a policy that keeps nothing", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) error {
			_, err := s.Compact(t.Context(), pawl.Policy{})
			return err
		}, pawl.ErrInvalid},
		{"one that only forgets", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) error {
			_, err := s.Compact(t.Context(), pawl.Policy{ForgetBefore: 3, DryRun: true})
			return err
		}, pawl.ErrInvalid},
		{"a context that has ended", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.Compact(ctx, all)
			return err
		}, context.Canceled},
		{"one that ends while Keep is asked", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			at := count(3, cancel)
			_, err := s.Compact(ctx, pawl.Policy{Keep: func(pawl.Entry) bool { at(); return false }})
			return err
		}, context.Canceled},
		{"one that ends after the last commit", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := pawl.Policy{Keep: func(pawl.Entry) bool { return false }}
			p.Progress = func(done, total uint64) {
				if done == total {
					cancel()
				}
			}
			_, err := s.Compact(ctx, p)
			return err
		}, context.Canceled},
		{"one that ends between two segments", func(t *testing.T, s *pawl.Store, fs *faultfs.FS) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			at := count(1, cancel)
			fs.Set(func(c faultfs.Call) faultfs.Action {
				if c.Op == "Rename" && strings.HasPrefix(c.Path, "session/segments/") {
					return faultfs.Action{After: at}
				}
				return faultfs.Action{}
			})
			_, err := s.Compact(ctx, all)
			return err
		}, context.Canceled},
		{"no space for a segment", func(t *testing.T, s *pawl.Store, fs *faultfs.FS) error {
			fs.Set(func(c faultfs.Call) faultfs.Action {
				if c.Op == "WriteAt" && strings.HasPrefix(c.Path, "session/segments/") {
					return faultfs.Action{Err: full, Half: true}
				}
				return faultfs.Action{}
			})
			_, err := s.Compact(t.Context(), all)
			return err
		}, full},
		{"no space for the second segment", func(t *testing.T, s *pawl.Store, fs *faultfs.FS) error {
			made := false
			fs.Set(func(c faultfs.Call) faultfs.Action {
				if !strings.HasPrefix(c.Path, "session/segments/") {
					return faultfs.Action{}
				}
				if c.Op == "Rename" {
					return faultfs.Action{After: func() { made = true }}
				}
				if c.Op == "WriteAt" && made {
					return faultfs.Action{Err: full, Half: true}
				}
				return faultfs.Action{}
			})
			_, err := s.Compact(t.Context(), all)
			return err
		}, full},
		{"no space for the bundle", func(t *testing.T, s *pawl.Store, fs *faultfs.FS) error {
			fs.Set(func(c faultfs.Call) faultfs.Action {
				if c.Op == "WriteAt" && strings.HasPrefix(c.Path, "session/tmp-") {
					return faultfs.Action{Err: full, Half: true}
				}
				return faultfs.Action{}
			})
			_, err := s.Compact(t.Context(), all)
			return err
		}, full},
		{"inside Update", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) error {
			_, err := s.Update(t.Context(), "", func(pawl.View) (pawl.Change, error) {
				_, err := s.Compact(t.Context(), all)
				return pawl.Change{}, err
			})
			return err
		}, pawl.ErrInvalid},
		{"Keep panics", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) (err error) {
			defer func() { err, _ = recover().(error) }()
			_, err = s.Compact(t.Context(), pawl.Policy{Keep: func(pawl.Entry) bool { panic(full) }})
			return err
		}, full},
		{"Progress panics", func(t *testing.T, s *pawl.Store, _ *faultfs.FS) (err error) {
			defer func() { err, _ = recover().(error) }()
			p := all
			p.Progress = func(uint64, uint64) { panic(full) }
			_, err = s.Compact(t.Context(), p)
			return err
		}, full},
	} {
		for layout, o := range layouts {
			t.Run(tt.name+"/"+layout, func(t *testing.T) {
				dir, trust := testkit.AgedDirs(t)
				fs := faultfs.New(vfs.OS(), filepath.Dir(dir))
				fs.NoFlush = true
				s, m := fixedStore(t, fs.Context(t.Context()), dir, trust, o)
				took, segments := takes(t, dir)
				err := tt.do(t, s, fs)
				fs.Set(nil)
				if !errors.Is(err, tt.want) || errors.Is(err, pawl.ErrInDoubt) {
					t.Fatalf("%v, want %v", err, tt.want)
				}
				if now, left := takes(t, dir); now != took || !slices.Equal(left, segments) {
					t.Errorf("the store takes %d bytes with segments %q, and took %d with %q", now, left, took, segments)
				}
				if temps := testkit.Temps(t, dir); temps != nil {
					t.Errorf("left behind: %q", temps)
				}
				m.agree(t, s.View(), nil)
				m.lookup(t, nil, s.Lookup)
				// The store goes on, and so does Compact.
				m.retain(t, nil, s, dir, trust, all)
				m.agree(t, s.View(), nil)
			})
		}
	}
}

// What Keep and Progress must not do fails, rather than wait for itself.
func TestCompactAsksNoChanges(t *testing.T) {
	inMemory(t)
	dir, trust := testkit.AgedDirs(t)
	s, m := fixedStore(t, quick(), dir, trust, layouts["mixed"])
	calls := map[string]func() error{
		"Commit": func() error { _, err := s.Commit(t.Context(), entry("x", "x")); return err },
		"Update": func() error {
			_, err := s.Update(t.Context(), "x", func(pawl.View) (pawl.Change, error) { return entry("x", "x"), nil })
			return err
		},
		"Checkpoint": func() error { return s.Checkpoint(t.Context()) },
		"Verify":     func() error { return s.Verify(t.Context(), nil) },
		"Recover":    func() error { _, err := s.Recover(t.Context()); return err },
		"Compact":    func() error { _, err := s.Compact(t.Context(), pawl.Policy{KeepLast: 1}); return err },
		"Close":      func() error { return s.Close() },
	}
	asked := 0
	try := func() {
		asked++
		for name, call := range calls {
			if err := call(); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
	}
	_, err := s.Compact(t.Context(), pawl.Policy{
		Keep: func(e pawl.Entry) bool {
			try()
			m.agree(t, s.View(), nil)
			m.lookup(t, nil, s.Lookup)
			return e.Seq == 1
		},
		Progress: func(uint64, uint64) { try() },
	})
	if err != nil || asked == 0 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	// Afterwards all of them are possible again.
	m.compact(pawl.Policy{Keep: func(e pawl.Entry) bool { return e.Seq == 1 }})
	m.agree(t, s.View(), nil)
	m.add(t, entry("x", "x"), commit(t, s, entry("x", "x")))
	m.retain(t, nil, s, dir, trust, pawl.Policy{KeepLast: 1})
}

// A segment that is damaged is not made anew without what is in it: Compact fails, if it
// needs to read it, and drops nothing of others either.
func TestCompactOfDamage(t *testing.T) {
	inMemory(t)
	o := pawl.Options{CheckpointEvery: 3, Limits: pawl.Limits{Unsealed: 1}}
	for nth := range 3 {
		for _, at := range []int{300, -1} { // in a record, and in the footer
			t.Run(fmt.Sprintf("%d at %d", nth, at), func(t *testing.T) {
				dir, trust := testkit.AgedDirs(t)
				s, m := fixedStore(t, quick(), dir, trust, o)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				_, segments := takes(t, dir)
				path := filepath.Join(dir, "segments", segments[nth%len(segments)])
				whole := read(t, path)
				overwrite(t, path, flip(whole, 8*((at+len(whole))%len(whole))))
				s = openStore(t, quick(), dir, trust, &o)
				took, _ := takes(t, dir)
				_, err := s.Compact(t.Context(), pawl.Policy{KeepSince: 8, ForgetBefore: 8})
				if !errors.Is(err, pawl.ErrDamaged) {
					t.Errorf("%v, want ErrDamaged", err)
				}
				if now, left := takes(t, dir); now != took || !slices.Equal(left, segments) {
					t.Errorf("the store takes %d bytes with segments %q, and took %d with %q", now, left, took, segments)
				}
				overwrite(t, path, whole)
				m.agree(t, s.View(), nil)
				m.retain(t, nil, s, dir, trust, pawl.Policy{KeepSince: 8, ForgetBefore: 8})
				m.agree(t, s.View(), nil)
			})
		}
	}
}

// A store that is closed, in doubt or not the newest any more drops nothing.
func TestCompactRefused(t *testing.T) {
	inMemory(t)
	all := pawl.Policy{KeepSince: 7, ForgetBefore: 4}
	o := pawl.Options{CheckpointEvery: 3, Limits: pawl.Limits{Unsealed: 1}}
	// refused compacts, for real and as a dry run, and looks what became of the disk.
	refused := func(t *testing.T, s *pawl.Store, dir, trust string, want error) {
		t.Helper()
		before := testkit.Snapshot(t, dir, trust)
		for _, dry := range []bool{true, false} {
			p := all
			p.DryRun = dry
			if r, err := s.Compact(t.Context(), p); !errors.Is(err, want) || r != (pawl.CompactReport{}) {
				t.Errorf("%+v, %v, want %v", r, err, want)
			}
		}
		if diff := cmp.Diff(before, testkit.Snapshot(t, dir, trust)); diff != "" {
			t.Errorf("the disk changed (-before +after):\n%s", diff)
		}
	}
	t.Run("closed", func(t *testing.T) {
		dir, trust := testkit.AgedDirs(t)
		s, _ := fixedStore(t, quick(), dir, trust, o)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		refused(t, s, dir, trust, pawl.ErrClosed)
	})
	t.Run("in doubt", func(t *testing.T) {
		dir, trust := testkit.AgedDirs(t)
		fs := faultfs.New(vfs.OS(), filepath.Dir(dir))
		s, m := fixedStore(t, fs.Context(t.Context()), dir, trust, o)
		fs.Set(func(c faultfs.Call) faultfs.Action {
			if c.Path == "session" && c.Op == "Sync" {
				return faultfs.Action{Err: errors.New("no flush")}
			}
			return faultfs.Action{}
		})
		// Compact itself may be what the doubt is about.
		_, err := s.Compact(t.Context(), all)
		fs.Set(nil)
		if !errors.Is(err, pawl.ErrInDoubt) || errors.Is(err, pawl.ErrNotCommitted) {
			t.Fatalf("%v, want ErrInDoubt", err)
		}
		m.agree(t, s.View(), nil) // memory has not moved
		refused(t, s, dir, trust, pawl.ErrInDoubt)
		if _, err := s.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.compact(all) // it was renamed, and that stays
		m.agree(t, s.View(), nil)
		m.lookup(t, nil, s.Lookup)
		if err := s.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("stale", func(t *testing.T) {
		dir, trust := testkit.AgedDirs(t)
		s, _ := fixedStore(t, quick(), dir, trust, o)
		path := filepath.Join(dir, "bundle")
		if err := os.WriteFile(path+".new", read(t, path), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		refused(t, s, dir, trust, pawl.ErrStale)
	})
}

// A bundle with more history than it is to hold is sealed by Compact too: else there could
// be no room for it.
func TestCompactSealsTheRest(t *testing.T) {
	inMemory(t)
	dir, trust := testkit.AgedDirs(t)
	o := &pawl.Options{Limits: pawl.Limits{Bundle: 32 << 10, Unsealed: 4 << 10}}
	s := openStore(t, quick(), dir, trust, o)
	m := &pastStore{parts: map[string]string{}}
	for i := range 100 {
		c := entry(fmt.Sprint("id ", i), fmt.Sprintf("%500d", i))
		m.add(t, c, commit(t, s, c))
	}
	m.retain(t, nil, s, dir, trust, pawl.Policy{KeepSince: 2})
	if n := len(read(t, filepath.Join(dir, "bundle"))); n > 8<<10 {
		t.Errorf("the bundle has %d bytes", n)
	}
	m.agree(t, s.View(), nil)
	m.lookup(t, nil, s.Lookup)
}

// Every id, every receipt and every number is found in a history of hundreds of segments.
func TestLookupsInManySegments(t *testing.T) {
	inMemory(t)
	for name, o := range map[string]pawl.Options{
		"one commit each": {CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 1}},
		"a few each":      {CheckpointEvery: 5, Limits: pawl.Limits{Unsealed: 700}},
		"one of many":     {Limits: pawl.Limits{Unsealed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(7, uint64(len(name))))
			dir, trust := testkit.AgedDirs(t)
			s := openStore(t, quick(), dir, trust, &o)
			m := &pastStore{parts: map[string]string{}}
			for i := range 250 {
				c := pawl.Change{}
				for range rnd.IntN(4) {
					c.Entries = append(c.Entries, fmt.Appendf(nil, "%d of %d %*d", len(c.Entries), i, rnd.IntN(200), 0))
				}
				if rnd.IntN(4) > 0 || c.Entries == nil {
					c.ID = fmt.Sprintf("%x", rnd.Uint64())
				}
				m.add(t, c, commit(t, s, c))
			}
			if err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			compare := func() {
				t.Helper()
				v := s.View()
				m.agree(t, v, nil)
				m.lookup(t, nil, s.Lookup)
				whole := m.entries(0)
				for after := range m.nextSeq() + 2 {
					want := len(m.entries(after))
					n := 0
					for e, err := range v.Entries(after) {
						if err != nil || !strings.HasPrefix(whole[len(whole)-want+n], fmt.Sprintf("%d/%d:", e.Seq, e.Revision)) {
							t.Fatalf("entry %d after %d: %d/%d, %v", n, after, e.Seq, e.Revision, err)
						}
						if n++; n == 3 { // they go on as those after 0 do
							break
						}
					}
					if n != min(want, 3) {
						t.Fatalf("%d entries after %d, want %d", n, after, want)
					}
				}
				all := m.infos(0)
				for after := range m.version().Revision + 3 {
					want := len(m.infos(after))
					n := 0
					for c, err := range v.Commits(after) {
						r := pawl.Receipt{Version: c.Version, FirstSeq: c.FirstSeq, LastSeq: c.LastSeq}
						if err != nil || !strings.HasPrefix(all[len(all)-want+n], r.String()+" ") {
							t.Fatalf("commit %d after %d: %v, %v", n, after, r, err)
						}
						if n++; n == 3 {
							break
						}
					}
					if n != min(want, 3) {
						t.Fatalf("%d commits after %d, want %d", n, after, want)
					}
				}
			}
			compare()
			m.retain(t, rnd, s, dir, trust, pawl.Policy{KeepSince: 150, Keep: func(e pawl.Entry) bool { return e.Seq%7 == 0 }, ForgetBefore: 60})
			compare()
			m.retain(t, rnd, s, dir, trust, pawl.Policy{KeepLast: 50, ForgetBefore: 100})
			compare()
		})
	}
}

// Parts of the same bytes share a file. It is closed with the store, and gone with the last
// of them.
func TestPartsShareAFile(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	s := openStore(t, t.Context(), dir, trust, &pawl.Options{CheckpointEvery: 1, Limits: pawl.Limits{Inline: 10}})
	files := func() (n int) {
		names, err := filepath.Glob(filepath.Join(dir, "parts", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	large := make([]byte, 100)
	want := map[string]string{"a": string(large), "b": string(large), "c": string(large)}
	commit(t, s, pawl.Change{Put: map[string][]byte{"a": large, "b": large}})
	commit(t, s, pawl.Change{Put: map[string][]byte{"c": large}})
	if got := partsOf(t, s.View()); !maps.Equal(got, want) || files() != 1 {
		t.Errorf("parts %q in %d files", got, files())
	}
	delete(want, "a")
	commit(t, s, pawl.Change{Delete: []string{"a"}})
	if got := partsOf(t, s.View()); !maps.Equal(got, want) || files() != 1 {
		t.Errorf("parts %q in %d files", got, files())
	}
	if err := s.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Where the limit was raised since, a part that has a file keeps it, and what a bundle takes
// is told as it is.
func TestCompactCountsWhatThereIs(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	o := &pawl.Options{CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 1, Inline: 10}}
	s, m := fixedStore(t, quick(), dir, trust, *o)
	twins := pawl.Change{Put: map[string][]byte{"twin": m.commits[0].change.Put["large"], "other": make([]byte, 50)}}
	m.add(t, twins, commit(t, s, twins))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.CheckpointEvery, o.Limits.Inline = 0, 1000
	s = openStore(t, quick(), dir, trust, o)
	m.retain(t, nil, s, dir, trust, pawl.Policy{KeepSince: 3})
	// One that is only in the journal has no file yet, and one that the journal replaces
	// still has.
	more := pawl.Change{Put: map[string][]byte{"large": make([]byte, 2000), "other": make([]byte, 3000)}, Delete: []string{"twin"}}
	m.add(t, more, commit(t, s, more))
	m.retain(t, nil, s, dir, trust, pawl.Policy{KeepSince: 7})
	m.agree(t, s.View(), nil)
}
