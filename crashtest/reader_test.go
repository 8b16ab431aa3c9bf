package crashtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// sight is a workload that a reader looks at, and what it may see.
type sight struct {
	name   string
	opts   pawl.Options
	setup  Func
	opened bool   // the writer has opened the store before the reader comes
	script string // what it does
	stride int    // without -crash.long, only one of so many of its ways of falling between
	growth *growth
}

var sights = []sight{
	{"extend", extending(3), left("publish extend"), true, "extend", 2, nil},
	{"extend twice", extending(4), left("publish extend close"), true, "extend extend", 12, nil},
	{"make the journal", extending(2), made(1), true, "extend", 1, nil},
	{"publish", publishing, made(1), true, "publish", 1, nil},
	{"publish twice", publishing, made(1), true, "publish publish", 8, nil},
	{"full journal", extending(1), left("publish extend"), true, "publish extend", 8, nil},
	{"checkpoint", extending(3), left("publish extend"), true, "checkpoint extend", 8, nil},
	{"first commit", publishing, made(0), true, "commit", 1, nil},
	{"create", publishing, nil, false, "commit", 2, nil},
	{"close", extending(2), left("publish"), true, "extend close", 8, nil},
	{"shared", shared(extending(4)), left("publish extend"), true, "extend extend", 24, nil},
	{"settle landed", extending(3), stopped("publish extend", syncJournal), false, "extend", 12, nil},
	{"settle not landed", extending(3), stopped("publish extend", writeJournal), false, "", 4, nil},
	{"settle a publish, landed", extending(1), stopped("publish extend", syncStore), false, "", 4, nil},
	{"settle a publish, not landed", extending(1), stopped("publish extend", renameTemp), false, "", 4, nil},
	{"settle a new journal, landed", extending(2), stopped("publish", syncStore), false, "", 4, nil},
	{"settle a new journal, not landed", extending(2), stopped("publish", renameTemp), false, "", 4, nil},
}

// onlooker is one meeting of a writer and a reader.
type onlooker struct {
	sight
	labels []string // of all states, oldest first
	acked  int      // up to which the writer has acknowledged
	begun  int      // up to which it has begun
	opened bool
	busy   bool // an intent may be there
	failed error
	held   []sighting // what the reader has seen
}

// TestReaderBesideWriter runs a reader against a writer with every way in which the
// reader's calls can fall between two steps of the writer's, where the writer stops once
// while the reader is at work: between any two calls, and any two sectors of a write. A
// reader that was open before, and one that opens then, see a state that was the newest
// while they looked, or say that a commit is not settled.
func TestReaderBesideWriter(t *testing.T) {
	besideWriter(t, sights)
}

func besideWriter(t *testing.T, sights []sight) {
	for _, sc := range sights {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			pl := newC()
			pawlPlan(pl)
			pl.fresh, pl.fixed, pl.immutable = nil, nil, nil // writes come in pieces
			if sc.setup != nil {
				pl.Setup(with(sc.opts, sc.setup))
			}
			root, f := newExplorer(&pl.plan, simfs.PosixMinimal).prepare()
			if f != nil {
				t.Fatal(f.err)
			}
			for _, how := range []string{"open before", "opens then", "open before, unsettled too", "opens then, unsettled too"} {
				if how == "opens then, unsettled too" && sc.growth == nil {
					continue // there is no file that it would have to open
				}
				if strings.HasPrefix(how, "open before") && (sc.setup == nil || strings.HasPrefix(sc.name, "settle") && !strings.HasSuffix(how, "too")) {
					continue // there is nothing that it could have opened
				}
				t.Run(how, func(t *testing.T) {
					t.Parallel()
					n := sc.meetings(t, root, how)
					t.Logf("%d meetings", n)
				})
			}
		})
	}
}

func (sc sight) meetings(t *testing.T, root *item, how string) int {
	stride := sc.stride
	if *flagLong {
		stride = 1
	} else if raced || testing.Short() {
		stride *= 20
	}
	var end func()
	n := someMeetings(stride, func(m meeting) (func(func()), func(func())) {
		if end != nil {
			end()
		}
		machine := root.machine.Snapshot()
		o := &onlooker{sight: sc, labels: slices.Clone(root.claims.open)}
		o.begun, o.busy = len(o.labels)-1, !sc.opened
		w := &simfs.Stepper{Process: machine.Start(), Step: func() {}, Told: true}
		r := &simfs.Stepper{Process: machine.Start(), Step: func() {}}
		writer := o.writer(w)
		reader, last := o.reader(r, how)
		end = func() {
			last()
			if o.failed != nil {
				t.Fatalf("%v: %v", m, o.failed)
			}
			w.Kill()
			r.Kill()
		}
		return writer, reader
	})
	end()
	return n
}

// writer is what the writer does, but for what it has done before.
func (o *onlooker) writer(w *simfs.Stepper) func(step func()) {
	ctx := vfs.NewContext(context.Background(), w)
	var s *pawl.Store
	open := func() (err error) {
		opts := o.opts
		s, err = pawl.Open(ctx, pawlStore, pawlTrust, &opts)
		if err != nil {
			return err
		}
		label, err := o.growth.label(s.View())
		if err != nil {
			return err
		}
		o.opened, o.busy = true, false
		o.acked = slices.Index(o.labels, label)
		o.labels = o.labels[:o.acked+1]
		o.begun = o.acked
		return nil
	}
	if o.sight.opened {
		o.fail(open())
	}
	return func(step func()) {
		w.Step = step
		if s == nil {
			o.fail(open())
		}
		for _, word := range strings.Fields(o.script) {
			o.busy = true
			switch word {
			case "checkpoint":
				o.fail(s.Checkpoint(ctx))
			case "close":
				o.fail(s.Close())
			case "keep=1":
				_, err := s.Compact(ctx, pawl.Policy{KeepLast: 1})
				o.fail(err)
			default:
				before := o.labels[o.begun]
				label := fmt.Sprintf("w%d", o.begun)
				o.labels = append(o.labels, label)
				o.begun++
				_, err := s.Commit(ctx, pawl.Change{ID: label, Entries: [][]byte{[]byte(before + ">" + label)}, Put: map[string][]byte{"state": []byte(label)}})
				o.fail(err)
				o.acked++
			}
			o.busy = false
		}
		w.Step = func() {}
	}
}

// reader is what the reader does beside it, and once the writer has ended.
func (o *onlooker) reader(p *simfs.Stepper, how string) (beside func(step func()), last func()) {
	ctx := vfs.NewContext(context.Background(), p)
	opts := &pawl.Options{LockWait: time.Nanosecond, Limits: o.opts.Limits}
	if strings.HasSuffix(how, "unsettled too") {
		opts.Allow = pawl.Unsettled
	}
	var r *pawl.Reader
	look := func() (err error) {
		if r == nil {
			r, err = pawl.OpenReader(ctx, pawlStore, pawlTrust, opts)
			return err
		}
		return r.Refresh(ctx)
	}
	if strings.HasPrefix(how, "open before") {
		o.fail(look())
	}
	seen := -1
	judge := func(from int, busy, opened bool, err error) {
		if errors.Is(err, pawl.ErrNotExist) && !opened && o.setup == nil {
			return
		}
		if errors.Is(err, pawl.ErrUnsettled) && opts.Allow == 0 && (busy || o.busy || from < o.begun) {
			return
		}
		if err != nil {
			o.fail(fmt.Errorf("the reader fails: %w", err))
			return
		}
		label, err := o.growth.label(r.View())
		if err == nil {
			o.held = append(o.held, sighting{r.View(), label})
		}
		at := slices.Index(o.labels, label)
		if err == nil && (at < from || at > o.begun) {
			err = fmt.Errorf("the reader sees %q; it may be one of %q", label, o.labels[from:o.begun+1])
		}
		if err == nil && !r.Unsettled() {
			if at < seen {
				err = fmt.Errorf("the reader sees %q, and saw %q before", label, o.labels[seen])
			}
			seen = at
		}
		o.fail(err)
	}
	beside = func(step func()) {
		from, busy, opened := o.acked, o.busy, o.opened
		p.Step = step
		err := look()
		p.Step = func() {}
		judge(from, busy, opened, err)
	}
	last = func() {
		from := o.acked
		err := look()
		if err == nil && r.Unsettled() {
			err = errors.New("it is not settled")
		}
		if err != nil {
			o.fail(fmt.Errorf("after the writer: %w", err))
			return
		}
		judge(from, false, true, nil)
		for _, s := range o.held {
			o.fail(s.stays(o.growth))
		}
		if err := r.Close(); err != nil || p.Open() > 0 && o.growth == nil {
			o.fail(fmt.Errorf("after Close %d handles are open: %v", p.Open(), err))
		}
	}
	return beside, last
}

func (o *onlooker) fail(err error) {
	if err != nil && o.failed == nil {
		o.failed = err
	}
}

// readsFirst is a recovery before which a reader looks at what the crash left. What it
// returns is claimed like what a recovery finds: nothing that was acknowledged is newer,
// and the recovery may not go back behind it.
func readsFirst(recover Func) Func {
	return func(ctx context.Context, p *Process) error {
		opts, _ := ctx.Value(optionsKey{}).(*pawl.Options)
		o := *opts
		o.LockWait = time.Nanosecond
		writes := p.run.machine.Writes()
		r, err := pawl.OpenReader(ctx, pawlStore, pawlTrust, &o)
		if now := p.run.machine.Writes(); now != writes {
			return broken("a reader wrote %d times", now-writes)
		}
		switch {
		case err == nil:
			label, err := stateLabel(r.View())
			if err := errors.Join(err, r.Close()); err != nil {
				return err
			}
			p.Observe(label)
		case !errors.Is(err, pawl.ErrUnsettled) && !errors.Is(err, pawl.ErrNotExist):
			return fmt.Errorf("a reader fails: %w", err)
		}
		return recover(ctx, p)
	}
}

// TestReaderAfterCrash lets a reader look at every disk that a crash can leave, before
// anybody has settled anything.
func TestReaderAfterCrash(t *testing.T) {
	for _, name := range []string{"create and first commits", "two commits and close", "extend, two commits", "extend, three commits",
		"extend, make the journal", "extend, full", "extend, checkpoints", "extend, groups", "extend, abort", "extend, recover after doubt"} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(c *C) {
				sc := scenarioNamed(name)
				sc.plan(c)
				c.Recover(with(sc.opts, readsFirst(c.recover)))
				if raced || testing.Short() {
					c.Depth(1)
				}
			})
		})
	}
}
