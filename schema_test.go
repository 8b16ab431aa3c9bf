package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// A store whose data has a schema, and that is brought up to a higher one, goes one of
// these ways with the commit that does so.
var schemaWays = []struct {
	name  string
	opts  pawl.Options // of whoever opens it
	first int          // commits that make it, all but the first into a journal
}{
	{"publishing", pawl.Options{CheckpointEvery: 1}, 2},
	{"making the journal", pawl.Options{}, 1},
	{"extending", pawl.Options{}, 3},
}

// leftOut says whether a short run leaves out the n-th of many that are alike.
func leftOut(n, every int) bool { return testing.Short() && n%every != 0 }

// as are options of a program whose data has a schema.
func as(o pawl.Options, schema int, program string) *pawl.Options {
	o.Schema, o.Program = schema, program
	return &o
}

// by are options with a Migrate.
func by(o *pawl.Options, migrate func(ctx context.Context, from int, v pawl.View) (pawl.Change, error)) *pawl.Options {
	o.Migrate = migrate
	return o
}

// unasked is a Migrate that nothing may ask.
func unasked(t testing.TB) func(context.Context, int, pawl.View) (pawl.Change, error) {
	return func(_ context.Context, from int, _ pawl.View) (pawl.Change, error) {
		t.Errorf("Migrate is asked about schema %d", from)
		return pawl.Change{}, nil
	}
}

// doubling is a Migrate that doubles the part n, and says so in an entry.
func doubling(_ context.Context, from int, v pawl.View) (pawl.Change, error) {
	n, _, err := pawl.GetJSON[int](v, "n")
	c := pawl.Change{ID: fmt.Sprint("migrate-", from), Entries: [][]byte{fmt.Appendf(nil, "from %d", from)}}
	c.SetJSON("n", 2*n)
	return c, err
}

// counted is the n-th commit of a store that is to be migrated: the part n is n.
func counted(n int) pawl.Change {
	c := pawl.Change{ID: fmt.Sprint("count-", n), Entries: [][]byte{fmt.Append(nil, n)}}
	c.SetJSON("n", n)
	return c
}

// number is the part n.
func number(t testing.TB, v pawl.View) int {
	t.Helper()
	n, _, err := pawl.GetJSON[int](v, "n")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// opened opens the store of a bench, quickly, and closes it when the test ends.
func (b *bench) opened(t *testing.T, o *pawl.Options) *pawl.Store {
	t.Helper()
	s, err := pawl.Open(quick(), b.dir, b.trust, o)
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

// counts opens the store, makes commits in it up to a number, and closes it.
func (b *bench) counts(t *testing.T, o *pawl.Options, upTo int) {
	t.Helper()
	s := b.opened(t, o)
	for s.View().Version().Revision < pawl.Revision(upTo) {
		commit(t, s, counted(int(s.View().Version().Revision)+1))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// state is everything in the two directories but the locks, which say who was there.
func (b *bench) state(t *testing.T) testkit.Tree {
	t.Helper()
	tree := testkit.Snapshot(t, b.dir, b.trust)
	delete(tree, filepath.Join(b.dir, "lock"))
	delete(tree, filepath.Join(b.trust, "session.lock"))
	return tree
}

// says wants Inspect to find a schema and a program.
func (b *bench) says(t *testing.T, schema int, program string) {
	t.Helper()
	r, err := pawl.Inspect(quick(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Schema != schema || r.Program != program || r.Verdict == "refuse" {
		t.Errorf("the state has schema %d and program %q (%s), want %d and %q", r.Schema, r.Program, r.Verdict, schema, program)
	}
}

// saidBy lists what the commits of a view say of their schema and program.
func saidBy(t testing.TB, v pawl.View) (list []string) {
	t.Helper()
	for c, err := range v.Commits(0) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%d %s", c.Schema, c.Program))
	}
	return list
}

// The first commit of a store stores the schema and the program; whoever says the same
// is not asked for anything, and changes nothing.
func TestSchemaFirstCommit(t *testing.T) {
	for _, w := range schemaWays {
		t.Run(w.name, func(t *testing.T) {
			b := newBench(t)
			o := by(as(w.opts, 3, "agent 1"), unasked(t))
			s := b.opened(t, o)
			b.says(t, 0, "") // nothing is committed yet
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			// An empty store has no schema that could be too high, or too low.
			for _, schema := range []int{5, 1, 0} {
				s := b.opened(t, by(as(w.opts, schema, "another"), unasked(t)))
				if rec := s.Recovery(); rec.Migrated || rec.ProgramFrom != "" || s.View().Version().Revision != 0 {
					t.Errorf("schema %d, an empty store: %+v", schema, rec)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			b.counts(t, o, w.first)
			b.says(t, 3, "agent 1")
			before := b.state(t)
			s = b.opened(t, o)
			if rec := s.Recovery(); rec.Migrated || rec.SchemaFrom != 0 || rec.ProgramFrom != "" || rec.Audit != nil {
				t.Errorf("the same schema and program: %+v", rec)
			}
			if got := saidBy(t, s.View()); !slices.Equal(got, slices.Repeat([]string{"3 agent 1"}, w.first)) {
				t.Errorf("the commits say %q", got)
			}
			// A change that does nothing is none, and takes nothing on disk.
			if r, err := s.Commit(t.Context(), pawl.Change{}); err != nil || r.Version != s.View().Version() {
				t.Errorf("an empty change: %v, %v", r, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, b.state(t)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
		})
	}
}

// A state with a lower schema, or with none, is brought up to the caller's in one
// commit, empty or not, which is there before Open returns.
func TestSchemaMigrates(t *testing.T) {
	type asks struct {
		name string
		do   func(ctx context.Context, from int, v pawl.View) (pawl.Change, error)
		id   string
		n    func(int) int
	}
	n := 0
	for _, w := range schemaWays {
		for _, from := range []int{0, 1} {
			for _, m := range []asks{
				{"a change", doubling, fmt.Sprint("migrate-", from), func(n int) int { return 2 * n }},
				{"an empty change", func(context.Context, int, pawl.View) (pawl.Change, error) { return pawl.Change{}, nil }, "", func(n int) int { return n }},
				{"an id alone", func(context.Context, int, pawl.View) (pawl.Change, error) { return pawl.Change{ID: "only"}, nil }, "only", func(n int) int { return n }},
				{"a change that expects the state", func(_ context.Context, _ int, v pawl.View) (pawl.Change, error) {
					at := v.Version()
					return pawl.Change{Expect: &at, Delete: []string{"n"}}, nil
				}, "", func(int) int { return 0 }},
			} {
				if n++; leftOut(n, 5) {
					continue
				}
				t.Run(fmt.Sprintf("%s, from %d, %s", w.name, from, m.name), func(t *testing.T) {
					b := newBench(t)
					b.counts(t, as(w.opts, from, ""), w.first)
					before := b.opened(t, &w.opts)
					old := before.View()
					says := dump(old)
					if err := before.Close(); err != nil {
						t.Fatal(err)
					}
					b.migrates(t, w.opts, from, old, m.do, m.id, m.n(w.first))
					if dump(old) != says {
						t.Error("the view before was changed")
					}
				})
			}
		}
	}
}

// contextMark is a key for a value that a context of Open carries to Migrate.
type contextMark struct{}

// migrates opens the store with schema 7, which takes one commit.
func (b *bench) migrates(t *testing.T, opts pawl.Options, from int, old pawl.View,
	do func(context.Context, int, pawl.View) (pawl.Change, error), id string, n int) {
	t.Helper()
	asked := 0
	var log bytes.Buffer
	o := by(as(opts, 7, "agent 7"), func(ctx context.Context, is int, v pawl.View) (pawl.Change, error) {
		asked++
		if is != from || dump(v) != dump(old) || ctx.Value(contextMark{}) != t.Name() {
			t.Errorf("asked to go from %d, at %s, with %v; want from %d, at %s", is, v.Version(), ctx.Value(contextMark{}), from, old.Version())
		}
		return do(ctx, is, v)
	})
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, err := pawl.Open(context.WithValue(quick(), contextMark{}, t.Name()), b.dir, b.trust, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// It is there before Open returns: a process that is killed now leaves it.
	left := filepath.Join(filepath.Dir(b.dir), "killed")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	leftDir, leftTrust := filepath.Join(left, "session"), filepath.Join(left, "trust")
	copyStore(t, b.dir, b.trust, leftDir, leftTrust)

	v, rec := s.View(), s.Recovery()
	if asked != 1 || v.Version().Revision != old.Version().Revision+1 || number(t, v) != n {
		t.Errorf("asked %d times, revision %d after %d, n is %d, want %d", asked, v.Version().Revision, old.Version().Revision, number(t, v), n)
	}
	if !rec.Migrated || rec.SchemaFrom != from || rec.Settled != pawl.SettledNothing || rec.Unclean || rec.Audit != nil {
		t.Errorf("recovery %+v", rec)
	}
	var last pawl.CommitInfo
	for c, err := range v.Commits(0) {
		if err != nil {
			t.Fatal(err)
		}
		last = c
	}
	if last.Version != v.Version() || last.Schema != 7 || last.Program != "agent 7" || last.ID != id {
		t.Errorf("the last commit is %+v", last)
	}
	if want := fmt.Sprintf("msg=\"pawl: migrated\" store=%s from=%d to=7 revision=%d\n", b.dir, from, v.Version().Revision); strings.Count(log.String(), want) != 1 {
		t.Errorf("logged %q, want %q", &log, want)
	}
	root := inspect(t, b.dir, b.trust, nil).Confirmed
	lines, torn := auditOf(t, b.trust)
	if len(lines) != 1 || torn != nil || lines[0].Event != "migrate" || lines[0].From != fmt.Sprint(from) || lines[0].To != "7" || lines[0].Confirmed != root ||
		lines[0].Store == "" || lines[0].Process == "" || lines[0].Time.IsZero() || lines[0].Pending != nil || lines[0].Outcome != "" || lines[0].Commits != nil {
		t.Errorf("lines %+v, torn %q", lines, torn)
	}
	b.says(t, 7, "agent 7")
	// The store goes on, and the next open has nothing to migrate.
	commit(t, s, pawl.Change{ID: "more", Entries: [][]byte{[]byte("more")}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct {
		b        *bench
		revision pawl.Revision
	}{{b, v.Version().Revision + 1}, {&bench{t, leftDir, leftTrust, "", ""}, v.Version().Revision}} {
		o.Migrate = unasked(t)
		again := at.b.opened(t, o)
		if rec := again.Recovery(); rec.Migrated || rec.SchemaFrom != 0 || again.View().Version().Revision != at.revision || number(t, again.View()) != n {
			t.Errorf("opened again at revision %d, n is %d: %+v", again.View().Version().Revision, number(t, again.View()), rec)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		lines, torn := auditOf(t, at.b.trust)
		if n := len(slices.DeleteFunc(lines, func(l auditRecord) bool { return l.Event != "migrate" })); n != 1 || torn != nil {
			t.Errorf("opened again: %d lines about migrating, torn %q", n, torn)
		}
	}
}

// An audit line that cannot be written keeps no store from being migrated.
func TestSchemaMigratesWithoutAudit(t *testing.T) {
	b := newBench(t)
	b.counts(t, as(pawl.Options{}, 1, "one"), 2)
	mkdir(t, filepath.Join(b.trust, "session.audit"))
	var log records
	o := by(as(pawl.Options{Logger: slog.New(&log)}, 2, "two"), doubling)
	s := b.opened(t, o)
	if rec := s.Recovery(); rec.Audit == nil || !rec.Migrated || rec.ProgramFrom != "one" || number(t, s.View()) != 4 {
		t.Errorf("%+v", rec)
	}
	if n := strings.Count(strings.Join(log.list, "\n"), "ERROR pawl: no audit line was written"); n != 2 { // program, migrate
		t.Errorf("logged %q", log.list)
	}
}

// What nobody is there to migrate, or a newer program made, is refused before anything
// is changed, and is as it was for whoever has its number.
func TestSchemaRefused(t *testing.T) {
	n := 0
	for _, w := range schemaWays {
		for _, tt := range []struct {
			name     string
			is, asks int
			migrate  func(context.Context, int, pawl.View) (pawl.Change, error)
		}{
			{"lower, and no Migrate", 1, 2, nil},
			{"none, and no Migrate", 0, 2, nil},
			{"higher", 2, 1, nil},
			{"higher, with Migrate", 2, 1, unasked(t)},
			{"much higher", math.MaxInt32, 1, unasked(t)},
		} {
			if n++; leftOut(n, 4) {
				continue
			}
			t.Run(w.name+", "+tt.name, func(t *testing.T) {
				b := newBench(t)
				b.counts(t, as(w.opts, tt.is, "its program"), w.first)
				b.refused(by(as(w.opts, tt.asks, "another"), tt.migrate), nil, pawl.ErrSchema)
				_, err := pawl.OpenReader(quick(), b.dir, b.trust, as(w.opts, tt.asks, ""))
				typed(t, err, "open", pawl.ErrSchema)
				if text := err.Error(); !strings.Contains(text, fmt.Sprint("schema ", tt.is)) || !strings.Contains(text, fmt.Sprint("Schema is ", tt.asks)) {
					t.Errorf("the message does not name both: %v", err)
				}
				s := b.opened(t, as(w.opts, tt.is, "its program"))
				if got := s.View().Version().Revision; got != pawl.Revision(w.first) {
					t.Errorf("opened at revision %d, want %d", got, w.first)
				}
				commit(t, s, counted(w.first+1))
			})
		}
	}
}

// A Reader writes nothing, so it cannot have a state migrated.
func TestSchemaReader(t *testing.T) {
	b := newBench(t)
	s := b.opened(t, as(pawl.Options{}, 1, ""))
	reader := func(schema int) (*pawl.Reader, error) {
		return pawl.OpenReader(quick(), b.dir, b.trust, by(as(pawl.Options{}, schema, ""), unasked(t)))
	}
	r, err := reader(2) // an empty store has none
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	commit(t, s, counted(1))
	typed(t, r.Refresh(quick()), "refresh", pawl.ErrSchema)
	if r.View().Version().Revision != 0 {
		t.Errorf("it shows revision %d", r.View().Version().Revision)
	}
	for _, schema := range []int{0, 1} {
		r, err := reader(schema)
		if err != nil {
			t.Fatal(err)
		}
		if number(t, r.View()) != 1 {
			t.Error("the commit is not there")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = reader(2)
	typed(t, err, "open", pawl.ErrSchema)
}

// intentLeft makes a store of one schema in which a commit of a program of another one,
// or of the same, was cut off. Its intent is durable, and what it wrote is there when it
// has landed.
func intentLeft(t *testing.T, opts pawl.Options, first, is, writer int, landed bool) *bench {
	t.Helper()
	from := newBench(t)
	from.counts(t, as(opts, is, ""), first)
	root := filepath.Join(filepath.Dir(from.dir), "left")
	mkdir(t, root)
	left := &bench{t, filepath.Join(root, "session"), filepath.Join(root, "trust"), filepath.Join(root, "session", "bundle"), filepath.Join(root, "trust", "session.trust")}
	op, file := "rename", "bundle"
	if opts.CheckpointEvery != 1 {
		file = "journal.000000000001"
		if first > 1 {
			op = "write"
		}
	}
	copies := 0
	look := func(call, path string) {
		if call == op && filepath.Base(path) == file && copies == 0 {
			copyStore(t, from.dir, from.trust, left.dir, left.trust)
			copies++
		}
	}
	var tap tap
	if landed {
		tap.after = look
	} else {
		tap.before = func(call, path string) error { look(call, path); return nil }
	}
	s, err := pawl.Open(tap.context(), from.dir, from.trust, by(as(opts, writer, ""), doubling))
	if err == nil && is == writer {
		_, err = s.Commit(context.Background(), counted(first+1))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if copies != 1 {
		t.Fatalf("%d copies made", copies)
	}
	for path, b := range map[string]string{filepath.Join(left.dir, "lock"): "", filepath.Join(left.trust, "session.lock"): ""} {
		write(t, path, b)
	}
	return left
}

// With an intent to settle, the schema of the state that it would be settled on decides,
// before anything is settled.
func TestSchemaRefusedBeforeSettling(t *testing.T) {
	n := 0
	for _, w := range schemaWays {
		for _, landed := range []bool{false, true} {
			for _, tt := range []struct {
				name       string
				is, writer int
			}{{"a commit", 2, 2}, {"a migration", 1, 2}} {
				if n++; leftOut(n, 3) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, landed %v", w.name, tt.name, landed), func(t *testing.T) {
					left := func() *bench { return intentLeft(t, w.opts, w.first, tt.is, tt.writer, landed) }
					b := left()
					at, want := tt.is, pawl.SettledNotLanded
					revision := pawl.Revision(w.first)
					if landed {
						at, want = tt.writer, pawl.SettledLanded
						revision++
					}
					settled := func(o *pawl.Options, migrated bool) {
						t.Helper()
						s := b.opened(t, o)
						rec := s.Recovery()
						revision := revision
						if migrated {
							revision++
						}
						if rec.Settled != want || rec.Migrated != migrated || s.View().Version().Revision != revision {
							t.Errorf("revision %d, want %d: %+v", s.View().Version().Revision, revision, rec)
						}
					}
					b.refused(as(w.opts, 3, ""), nil, pawl.ErrSchema)
					if at == 2 {
						b.refused(by(as(w.opts, 1, ""), unasked(t)), nil, pawl.ErrSchema)
					}
					settled(by(as(w.opts, at, ""), unasked(t)), false)
					b = left()
					settled(by(as(w.opts, 3, ""), doubling), true)
					b = left()
					settled(as(w.opts, 0, ""), false)
				})
			}
		}
	}
}

// Schema 0 asks for nothing and stores nothing: the state keeps the number that it has,
// wherever it is kept. So it is with no program.
func TestSchemaKept(t *testing.T) {
	for _, w := range schemaWays {
		t.Run(w.name, func(t *testing.T) {
			b := newBench(t)
			b.counts(t, as(w.opts, 4, "agent 4"), 1)
			o := by(as(w.opts, 0, ""), unasked(t))
			var s *pawl.Store
			kept := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				b.says(t, 4, "agent 4")
				// Somebody who asks is told so, and has nothing to migrate.
				r, err := pawl.OpenReader(quick(), b.dir, b.trust, as(w.opts, 4, ""))
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				r.Close()
				if _, err := pawl.OpenReader(quick(), b.dir, b.trust, as(w.opts, 5, "")); !errors.Is(err, pawl.ErrSchema) {
					t.Errorf("%s: %v", what, err)
				}
			}
			for round := range 3 {
				s = b.opened(t, o)
				if rec := s.Recovery(); rec.Migrated || rec.ProgramFrom != "" {
					t.Errorf("%+v", rec)
				}
				kept("opened", nil)
				for range 4 {
					_, err := s.Commit(t.Context(), counted(int(s.View().Version().Revision)+1))
					kept("committed", err)
				}
				if round != 1 {
					kept("published", s.Checkpoint(t.Context()))
				}
				if err := s.Verify(t.Context(), nil); err != nil {
					t.Error(err)
				}
				kept("closed", s.Close())
			}
			if lines, _ := auditOf(t, b.trust); lines != nil {
				t.Errorf("audit lines %+v", lines)
			}
			want := append([]string{"4 agent 4"}, slices.Repeat([]string{"0 "}, 12)...)
			s = b.opened(t, by(as(w.opts, 4, "agent 4"), unasked(t)))
			if got := saidBy(t, s.View()); !slices.Equal(got, want) || s.Recovery().Migrated || s.Recovery().ProgramFrom != "" {
				t.Errorf("the commits say %q, %+v", got, s.Recovery())
			}
			commit(t, s, pawl.Change{ID: "said again"})
			if got := lastItem(saidBy(t, s.View())); got != "4 agent 4" {
				t.Errorf("the last commit says %q", got)
			}
			b.says(t, 4, "agent 4")
		})
	}
}

// The journal is large enough that Close publishes it: the bundle has what the journal
// had.
func TestSchemaPublishedByClose(t *testing.T) {
	b := newBench(t)
	o := as(pawl.Options{Limits: pawl.Limits{Journal: 16 << 10}}, 2, "agent")
	b.counts(t, o, 4)
	r, err := pawl.Inspect(quick(), b.dir, b.trust, nil)
	if err != nil || r.Journal != 0 || r.Schema != 2 || r.Program != "agent" {
		t.Errorf("%+v, %v", r, err)
	}
}

// errData is why a Migrate of these tests cannot do it.
var errData = errors.New("the data makes no sense")

// foreignDoubt is another store's error, which says nothing about this one.
var foreignDoubt = &pawl.Error{Op: "commit", Path: "elsewhere", Outcome: pawl.ErrInDoubt, Kind: pawl.ErrStale, Cause: errData}

// What Migrate cannot do leaves the state as it was, and the store free.
func TestSchemaMigrateFails(t *testing.T) {
	n := 0
	for _, tt := range []struct {
		name    string
		migrate func(cancel context.CancelFunc, v pawl.View) (pawl.Change, error)
		limits  pawl.Limits
		want    []error // the kind first
	}{
		{name: "an error", want: []error{nil, errData},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) {
				return pawl.Change{ID: "x"}, fmt.Errorf("wrapped: %w", errData)
			}},
		{name: "another store's error", want: []error{nil, errData, pawl.ErrStale},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) { return pawl.Change{}, foreignDoubt }},
		{name: "a part name that is none", want: []error{pawl.ErrInvalid},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) { return put("../x", "x"), nil }},
		{name: "an id that is none", want: []error{pawl.ErrInvalid},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) { return pawl.Change{ID: "a\nb"}, nil }},
		{name: "a part put and deleted", want: []error{pawl.ErrInvalid},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) {
				c := put("n", "1")
				c.Delete = []string{"n"}
				return c, nil
			}},
		{name: "a part that does not encode", want: []error{pawl.ErrInvalid},
			migrate: func(context.CancelFunc, pawl.View) (c pawl.Change, _ error) {
				c.SetJSON("n", func() {})
				return c, nil
			}},
		{name: "an entry that is too large", want: []error{pawl.ErrTooLarge}, limits: pawl.Limits{Entry: 100},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) {
				return entry("", strings.Repeat("x", 101)), nil
			}},
		{name: "a change that is too large", want: []error{pawl.ErrTooLarge}, limits: pawl.Limits{Commit: 100},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) {
				return entry("", strings.Repeat("x", 100)), nil
			}},
		{name: "a bundle that would be too large", want: []error{pawl.ErrTooLarge}, limits: pawl.Limits{Bundle: 10_000},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) {
				return put("n", strings.Repeat("x", 10_000)), nil
			}},
		{name: "the id of a commit with other content", want: []error{pawl.ErrIDReused},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) { return entry("count-1", "another"), nil }},
		{name: "the id of a commit with the same content", want: []error{pawl.ErrIDReused},
			migrate: func(context.CancelFunc, pawl.View) (pawl.Change, error) { return counted(1), nil }},
		{name: "another state expected", want: []error{pawl.ErrStale},
			migrate: func(_ context.CancelFunc, v pawl.View) (pawl.Change, error) {
				at := v.Version()
				at.Revision++
				return pawl.Change{Expect: &at}, nil
			}},
		{name: "a context that ends", want: []error{nil, context.Canceled},
			migrate: func(cancel context.CancelFunc, _ pawl.View) (pawl.Change, error) {
				cancel()
				return pawl.Change{ID: "too late"}, nil
			}},
		{name: "the error of a context that ends", want: []error{nil, context.Canceled},
			migrate: func(cancel context.CancelFunc, _ pawl.View) (pawl.Change, error) {
				cancel()
				return pawl.Change{}, context.Canceled
			}},
	} {
		for _, w := range schemaWays {
			for _, shared := range []bool{false, true} {
				if n++; leftOut(n, 7) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, shared %v", tt.name, w.name, shared), func(t *testing.T) {
					b := newBench(t)
					b.counts(t, as(w.opts, 1, ""), w.first)
					before := b.state(t)
					ctx, cancel := context.WithCancel(quick())
					defer cancel()
					o := by(as(w.opts, 2, ""), func(_ context.Context, _ int, v pawl.View) (pawl.Change, error) { return tt.migrate(cancel, v) })
					o.Limits, o.Shared = tt.limits, shared
					_, err := pawl.Open(ctx, b.dir, b.trust, o)
					if errors.Is(err, context.Canceled) { // which the caller knows best what to do about
						misplaced(t, err, "migrate", tt.want...)
					} else {
						typed(t, err, "migrate", tt.want...)
					}
					if e := (*pawl.Error)(nil); !errors.As(err, &e) || e.Path != b.dir || errors.Is(err, pawl.ErrNotCommitted) || errors.Is(err, pawl.ErrInDoubt) {
						t.Error(err)
					}
					b.unmigrated(t, w.opts, before, w.first)
				})
			}
		}
	}
}

// unmigrated wants the store to be as it was, and free: for the old program, and for a
// new one that can do it.
func (b *bench) unmigrated(t *testing.T, opts pawl.Options, before testkit.Tree, first int) {
	t.Helper()
	if diff := cmp.Diff(before, b.state(t)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
	s := b.opened(t, as(opts, 1, ""))
	if rec := s.Recovery(); s.View().Version().Revision != pawl.Revision(first) || rec.Unclean || rec.Settled != pawl.SettledNothing {
		t.Errorf("at revision %d: %+v", s.View().Version().Revision, rec)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = b.opened(t, by(as(opts, 2, ""), doubling))
	if !s.Recovery().Migrated || number(t, s.View()) != 2*first {
		t.Errorf("n is %d: %+v", number(t, s.View()), s.Recovery())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A Migrate, or a logger, that panics leaves nothing held.
func TestSchemaMigratePanics(t *testing.T) {
	for _, w := range schemaWays {
		t.Run(w.name, func(t *testing.T) {
			b := newBench(t)
			b.counts(t, as(w.opts, 1, ""), w.first)
			before := b.state(t)
			open := func(o *pawl.Options) (v any) {
				defer func() { v = recover() }()
				s, err := pawl.Open(quick(), b.dir, b.trust, o)
				t.Errorf("opened: %v, %v", s, err)
				return nil
			}
			for range 2 {
				got := open(by(as(w.opts, 2, ""), func(context.Context, int, pawl.View) (pawl.Change, error) { panic(errData) }))
				if got != errData {
					t.Errorf("the panic is %v", got)
				}
			}
			b.unmigrated(t, w.opts, before, w.first)
			// Of a logger that panics, once the commit is made.
			b.counts(t, as(w.opts, 0, ""), w.first+1)
			o := by(as(w.opts, 3, ""), doubling)
			o.Logger = slog.New(panicking("pawl: migrated"))
			if got := open(o); got != "pawl: migrated" {
				t.Errorf("the panic is %v", got)
			}
			s := b.opened(t, by(as(w.opts, 3, ""), unasked(t)))
			if number(t, s.View()) != 4*w.first {
				t.Errorf("n is %d", number(t, s.View()))
			}
		})
	}
}

// panicking is a logger that panics at one message.
type panicking string

func (p panicking) Enabled(context.Context, slog.Level) bool { return true }
func (p panicking) WithGroup(string) slog.Handler            { return p }
func (p panicking) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p panicking) Handle(_ context.Context, r slog.Record) error {
	if r.Message == string(p) {
		panic(r.Message)
	}
	return nil
}

// Two that share a store: one has it migrated by a third, and is refused from then on.
func TestSchemaShared(t *testing.T) {
	for _, w := range schemaWays {
		t.Run(w.name, func(t *testing.T) {
			b := newBench(t)
			opts := w.opts
			opts.Shared = true
			b.counts(t, as(opts, 1, "old"), w.first)
			a := b.opened(t, as(opts, 1, "old"))
			plain := b.opened(t, as(opts, 0, ""))
			if _, err := a.Commit(t.Context(), counted(w.first+1)); err != nil {
				t.Fatal(err)
			}
			says := dump(a.View())
			c, err := pawl.Open(quick(), b.dir, b.trust, by(as(opts, 2, "new"), doubling))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if rec := c.Recovery(); !rec.Migrated || rec.ProgramFrom != "old" || number(t, c.View()) != 2*(w.first+1) {
				t.Errorf("n is %d: %+v", number(t, c.View()), rec)
			}
			for range 2 {
				_, err := a.Commit(t.Context(), counted(9))
				if e := exactly(t, err, pawl.ErrNotCommitted, pawl.ErrSchema); e.Kind != pawl.ErrSchema || e.Hint == "" {
					t.Errorf("kind %v, hint %q", e.Kind, e.Hint)
				}
				_, err = a.Update(t.Context(), "nine", func(pawl.View) (pawl.Change, error) {
					t.Error("the function runs")
					return pawl.Change{}, nil
				})
				exactly(t, err, pawl.ErrNotCommitted, pawl.ErrSchema)
				typed(t, a.Checkpoint(t.Context()), "checkpoint", pawl.ErrSchema)
				_, outcome, err := a.Lookup(t.Context(), "count-9")
				if typed(t, err, "lookup", pawl.ErrSchema); outcome != pawl.OutcomeUnknown {
					t.Errorf("the outcome is %v", outcome)
				}
				if dump(a.View()) != says {
					t.Error("the view of the old program changed")
				}
			}
			// Whoever asks for nothing goes on, and so does the new one.
			for _, s := range []*pawl.Store{plain, c, plain} {
				before := number(t, s.View())
				_, err := s.Update(t.Context(), "", func(v pawl.View) (pawl.Change, error) {
					before = number(t, v)
					var c pawl.Change
					c.SetJSON("n", before+1)
					return c, nil
				})
				if err != nil || number(t, s.View()) != before+1 {
					t.Errorf("%v, n is %d after %d", err, number(t, s.View()), before)
				}
			}
			b.says(t, 2, "new")
			if n := number(t, plain.View()); n != 2*(w.first+1)+3 {
				t.Errorf("n is %d", n)
			}
			for _, s := range []*pawl.Store{a, plain, c} {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			b.refused(as(opts, 1, "old"), nil, pawl.ErrSchema)
		})
	}
}

// Two that open an empty store with different numbers: the first commit decides.
func TestSchemaSharedFromNothing(t *testing.T) {
	for _, first := range []int{1, 2} {
		b := newBench(t)
		shared := pawl.Options{Shared: true}
		stores := map[int]*pawl.Store{}
		for _, schema := range []int{1, 2} {
			stores[schema] = b.opened(t, by(as(shared, schema, ""), unasked(t)))
		}
		commit(t, stores[first], counted(1))
		_, err := stores[3-first].Commit(t.Context(), counted(2))
		exactly(t, err, pawl.ErrNotCommitted, pawl.ErrSchema)
		b.says(t, first, "")
		commit(t, stores[first], counted(2))
		for _, s := range stores {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Inspect says what Open would do, and what the state says of itself.
func TestSchemaInspect(t *testing.T) {
	for _, w := range schemaWays {
		b := newBench(t)
		b.counts(t, as(w.opts, 2, "agent \u202e2"), w.first)
		for _, tt := range []struct {
			o       *pawl.Options
			verdict string
		}{
			{nil, "clean"}, {as(w.opts, 0, "other"), "clean"}, {as(w.opts, 2, ""), "clean"}, {by(as(w.opts, 3, ""), unasked(t)), "clean"},
			{as(w.opts, 3, ""), "refuse"}, {as(w.opts, 1, ""), "refuse"}, {by(as(w.opts, 1, ""), unasked(t)), "refuse"},
		} {
			r := inspect(t, b.dir, b.trust, tt.o)
			if r.Verdict != tt.verdict || errors.Is(r.Err, pawl.ErrSchema) != (tt.verdict == "refuse") || r.Schema != 2 || r.Program != "agent \u202e2" {
				t.Errorf("%s, %+v: %+v", w.name, tt.o, r)
			}
		}
	}
}

// Whoever made the newest state with another program is told of; nothing is said where
// one of the two is not known.
func TestProgram(t *testing.T) {
	n := 0
	const long = "agent 2.1.0 (größe)"
	for _, w := range schemaWays {
		for _, tt := range []struct{ before, now string }{
			{"agent 1", "agent 2"}, {"agent 2", "agent 1"}, {"agent", "Agent"}, {long, strings.Repeat("x", 255)},
			{"agent 1", "agent 1"}, {"", "agent 1"}, {"agent 1", ""}, {"", ""},
		} {
			if n++; leftOut(n, 5) {
				continue
			}
			t.Run(fmt.Sprintf("%s, %.20q to %.20q", w.name, tt.before, tt.now), func(t *testing.T) {
				b := newBench(t)
				b.counts(t, as(w.opts, 0, tt.before), w.first)
				told := tt.before != tt.now && tt.before != "" && tt.now != ""
				open := func() (*pawl.Store, string) {
					t.Helper()
					var log bytes.Buffer
					o := as(w.opts, 0, tt.now)
					o.Logger = slog.New(slog.NewTextHandler(&log, nil))
					return b.opened(t, o), log.String()
				}
				s, log := open()
				rec := s.Recovery()
				lines, torn := auditOf(t, b.trust)
				if !told {
					if rec.ProgramFrom != "" || log != "" || lines != nil || torn != nil {
						t.Errorf("%+v, logged %q, lines %+v, torn %q", rec, log, lines, torn)
					}
				} else {
					if want := fmt.Sprintf(" before=%s now=%s\n", quoted(tt.before), quoted(tt.now)); rec.ProgramFrom != tt.before ||
						strings.Count(log, "level=INFO") != 1 || !strings.HasSuffix(log, want) {
						t.Errorf("%+v, logged %q, want %q", rec, log, want)
					}
					if len(lines) != 1 || torn != nil || lines[0].Event != "program" || lines[0].From != tt.before || lines[0].To != tt.now ||
						lines[0].Confirmed != rec.Confirmed || lines[0].Store == "" || lines[0].Process == "" || lines[0].Time.IsZero() || lines[0].Pending != nil {
						t.Errorf("lines %+v, torn %q", lines, torn)
					}
				}
				if rec.Migrated || rec.SchemaFrom != 0 || rec.Audit != nil {
					t.Errorf("%+v", rec)
				}
				// With a commit of its own, it is the one that made the newest state.
				commit(t, s, counted(w.first+1))
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				now := tt.now
				if now == "" {
					now = tt.before
				}
				b.says(t, 0, now)
				s, log = open()
				if rec := s.Recovery(); rec.ProgramFrom != "" || log != "" {
					t.Errorf("opened again: %+v, logged %q", rec, log)
				}
				want := append(slices.Repeat([]string{"0 " + tt.before}, w.first), "0 "+tt.now)
				if got := saidBy(t, s.View()); !slices.Equal(got, want) {
					t.Errorf("the commits say %q, want %q", got, want)
				}
			})
		}
	}
}

// quoted is a value as the text of a log has it.
func quoted(s string) string {
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("", "v", s)
	_, v, _ := strings.Cut(strings.TrimSuffix(b.String(), "\n"), " v=")
	return v
}

// What no state may say is refused before anything is looked at.
func TestSchemaArguments(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	root := filepath.Dir(dir)
	bad := []pawl.Options{{Schema: -1}, {Schema: math.MinInt}}
	if math.MaxInt > math.MaxInt32 {
		least := uint(math.MaxInt32) + 1 // no constant, which could not be one on 32 bits
		bad = append(bad, pawl.Options{Schema: math.MaxInt}, pawl.Options{Schema: int(least)})
	}
	for _, x := range badTexts {
		bad = append(bad, pawl.Options{Program: x.text})
	}
	for _, o := range bad {
		unplaced(t, root, dir, trust, &o, pawl.ErrInvalid)
		_, err := pawl.OpenReader(quick(), dir, trust, &o)
		misplaced(t, err, "open", pawl.ErrInvalid)
		if tooLong := len(o.Program) > 255; errors.Is(err, pawl.ErrTooLarge) != tooLong {
			t.Errorf("%v", err)
		}
		if strings.ContainsAny(err.Error(), "\x00\x1b\n\x7f") {
			t.Errorf("not fit to be shown: %q", err)
		}
	}
	inMemory(t)
	for i, o := range []pawl.Options{
		{Schema: 1}, {Schema: math.MaxInt32}, {Program: " "}, {Program: strings.Repeat("x", 255)}, {Program: strings.Repeat("é", 127)}, {Program: "\u202e\"/"},
	} {
		b := newBench(t)
		b.counts(t, &o, 3)
		if b.says(t, o.Schema, o.Program); t.Failed() {
			t.Fatalf("options %d: %+v", i, o)
		}
	}
}

// A commit is the same one, whatever program asks for it again.
func TestSchemaReplay(t *testing.T) {
	b := newBench(t)
	b.counts(t, as(pawl.Options{}, 1, "one"), 2)
	s := b.opened(t, by(as(pawl.Options{}, 2, "two"), doubling))
	r, err := s.Commit(t.Context(), counted(2))
	if err != nil || !r.Replayed || r.Revision != 2 || s.View().Version().Revision != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}
