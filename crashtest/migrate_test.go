package crashtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
)

// doubled is the part that a migration doubles. No other commit of these tests changes
// it, so it tells how often that was done.
const doubled = "n"

// atSchema1 is a Setup: a store of schema 1 with the part to be doubled, and with more
// commits as a script has it.
func atSchema1(script string) Func {
	return func(ctx context.Context, p *Process) error {
		o := *ctx.Value(optionsKey{}).(*pawl.Options)
		o.Schema, o.Shared = 1, false
		u, err := openPawl(context.WithValue(ctx, optionsKey{}, &o), p)
		if err != nil {
			return err
		}
		label, c := u.change(none)
		c.SetJSON(doubled, 1)
		p.Begin(label)
		_, err = u.s.Commit(ctx, c)
		p.End(label, err)
		return errors.Join(err, u.does(script))
	}
}

// cutOff is a Setup: atSchema1, and then the intent of another commit, which ended in
// doubt at a call after which no other one succeeded.
func cutOff(script string, calls ...failing) Func {
	before := atSchema1(script + " close")
	return func(ctx context.Context, p *Process) error {
		if err := before(ctx, p); err != nil {
			return err
		}
		o := *ctx.Value(optionsKey{}).(*pawl.Options)
		o.Schema, o.Shared = 1, false
		u, err := openPawl(context.WithValue(ctx, optionsKey{}, &o), p)
		if err != nil {
			return err
		}
		u.n = 10
		if calls[0].pattern == writeJournal.pattern || calls[0].pattern == syncJournal.pattern {
			if err := u.commit(); err != nil { // so that the next one extends the journal
				return err
			}
		}
		return u.commitFails(pawl.ErrInDoubt, true, calls...)
	}
}

// migrated opens the store with schema 2, which migrates it if need be, checks that this
// was done exactly once, and carries out a script. With looks, what Migrate is shown is
// an observation of its own.
func migrated(script string, looks bool) Func {
	return func(ctx context.Context, p *Process) error { return migrate(ctx, p, 20, script, looks) }
}

// stubbornly is migrated with looks, tried once more when it fails.
func stubbornly(script string) Func {
	return func(ctx context.Context, p *Process) error {
		err := migrate(ctx, p, 20, script, true)
		if err == nil {
			return nil
		}
		return errors.Join(err, migrate(ctx, p, 40, script, true))
	}
}

// migrate is migrated, with labels from a number on.
func migrate(ctx context.Context, p *Process, first int, script string, looks bool) error {
	u := &user{ctx: ctx, p: p, n: first}
	label, asked := none, 0
	o := *ctx.Value(optionsKey{}).(*pawl.Options)
	o.Schema, o.Program = 2, fmt.Sprint("program ", p.Number())
	o.Migrate = func(ctx context.Context, from int, v pawl.View) (pawl.Change, error) {
		asked++
		before, err := stateLabel(v)
		if err != nil {
			return pawl.Change{}, err
		}
		if looks {
			p.Observe(before)
		}
		n, _, err := pawl.GetJSON[int](v, doubled)
		if err != nil || from != 1 || n != 1 {
			return pawl.Change{}, broken("to be migrated from %d, with %d (%v)", from, n, err)
		}
		var c pawl.Change
		label, c = u.change(before)
		c.SetJSON(doubled, 2*n)
		p.Begin(label)
		return c, nil
	}
	s, err := pawl.Open(ctx, pawlStore, pawlTrust, &o)
	if label != none {
		p.End(label, err)
	}
	if err != nil {
		return err
	}
	u.s = s
	if audit := s.Recovery().Audit; audit != nil {
		p.Report(audit)
	}
	if err := u.observe(); err != nil {
		return err
	}
	if rec := s.Recovery(); rec.Migrated != (asked == 1) || asked > 1 || rec.Migrated && rec.SchemaFrom != 1 {
		return broken("Migrate was asked %d times: %+v", asked, rec)
	}
	if err := onceMigrated(s.View()); err != nil {
		return err
	}
	if err := u.does(script); err != nil {
		return errors.Join(err, s.Close())
	}
	return onceMigrated(s.View())
}

// onceMigrated says that a state was migrated, in exactly one commit.
func onceMigrated(v pawl.View) error {
	n, _, err := pawl.GetJSON[int](v, doubled)
	if err != nil {
		return err
	}
	schema, put := 1, 0
	for c, err := range v.Commits(0) {
		if err != nil {
			return err
		}
		for _, part := range c.Put {
			if part != doubled {
				continue
			}
			if put++; put == 2 {
				schema = 2
			}
		}
		if c.Schema != schema {
			return broken("revision %d has schema %d, want %d", c.Version.Revision, c.Schema, schema)
		}
	}
	if n != 2 || put != 2 {
		return broken("%s is %d, and was put by %d commits", doubled, n, put)
	}
	return nil
}

var migrations = []struct {
	name   string
	opts   pawl.Options
	setup  Func
	intent bool // the Setup leaves one
}{
	{"publishing", publishing, atSchema1("commit close"), false},
	{"publishing, not closed", publishing, atSchema1("commit"), false},
	{"making the journal", extending(4), atSchema1("close"), false},
	{"extending", extending(roomy), atSchema1("extend extend close"), false},
	{"extending, not closed", extending(4), atSchema1("extend extend"), false},
	{"extending, confirms flushed", synced(4), atSchema1("extend extend"), false},
	{"a full journal", extending(1), atSchema1("extend close"), false},
	{"settling, landed", publishing, cutOff("commit", syncStore), true},
	{"settling, not landed", publishing, cutOff("commit", renameTemp), true},
	{"settling an extend, landed", extending(5), cutOff("", syncJournal), true},
	{"settling an extend, not landed", extending(5), cutOff("", writeJournal), true},
	{"sharing, publishing", shared(publishing), atSchema1("commit close"), false},
	{"sharing, extending", shared(extending(5)), atSchema1("extend extend close"), false},
}

// TestMigrations explores an open that brings a store up to a higher schema, and the
// same open again after each crash: the state is the old one, and migrated then, or the
// new one, and left alone. However often it is begun, it is done once.
func TestMigrations(t *testing.T) {
	for _, tt := range migrations {
		for _, looks := range []bool{false, true} {
			name := tt.name
			if looks {
				name += ", observed before"
			} else if tt.intent {
				continue // what the intent was about is to be observed first
			}
			t.Run(name, func(t *testing.T) {
				Run(t, func(c *C) {
					pawlPlan(c)
					c.Setup(with(tt.opts, tt.setup))
					c.Do(with(tt.opts, migrated("commit", looks)))
					c.Recover(with(tt.opts, migrated("commit commit", looks)))
					if !looks {
						c.RecoverTwice()
					}
					if raced || testing.Short() || looks && !tt.intent {
						c.Depth(1)
					}
				})
			})
		}
	}
}

// TestMigrationFaults makes each call of an open that migrates fail, in every way. The
// same open afterwards, and after a crash, finds it done, or does it.
func TestMigrationFaults(t *testing.T) {
	if raced {
		t.Skip("has one goroutine, and is explored without the race detector")
	}
	for _, tt := range migrations {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.name != "publishing" && tt.name != "extending" {
				t.Skip("two are enough for a quick look")
			}
			Run(t, func(c *C) {
				pawlPlan(c)
				c.Setup(with(tt.opts, tt.setup))
				c.Do(with(tt.opts, stubbornly("commit")))
				c.Recover(with(tt.opts, migrated("commit commit", true)))
				c.Depth(1)
				c.Faults(FaultsInDo, 1)
				c.MaySwallow(func(call Call) bool {
					if tt.opts.Shared && slices.Contains([]string{"open", "lstat", "stat", "readat"}, call.Op) {
						return true // what the others did is then read anew, and that they wait is a wish
					}
					return swallowable(call) || swept.excuses(call)
				})
			})
		})
	}
}
