package crashtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
)

const (
	pawlStore = "/store/s"
	pawlTrust = "/trust/t"
)

// known says which names may be in the two directories after a recovery (K9).
func known(_ context.Context, p *Process) error {
	for dir, names := range map[string]string{pawlStore: " bundle lock ", pawlTrust: " s.audit s.lock s.trust "} {
		found, err := p.FS().ReadDir(dir)
		if err != nil {
			return err
		}
		for _, name := range found {
			if !strings.Contains(names, " "+name+" ") {
				return fmt.Errorf("K9: %s is left in %s", name, dir)
			}
		}
	}
	return nil
}

// user is a program on top of a store: each of its commits replaces one part and
// appends an entry that names the commit before.
type user struct {
	ctx context.Context
	p   *Process
	s   *pawl.Store
	n   int
}

func openPawl(ctx context.Context, p *Process) (*user, error) {
	s, err := pawl.Open(ctx, pawlStore, pawlTrust, nil)
	if err != nil {
		return nil, err
	}
	return &user{ctx: ctx, p: p, s: s}, nil
}

// observe tells the label of the state, after checking that part and history agree.
func (u *user) observe() error {
	label, err := stateLabel(u.s.View())
	if err != nil {
		return err
	}
	u.p.Observe(label)
	return nil
}

func stateLabel(v pawl.View) (string, error) {
	part, ok, err := v.Get("state")
	if err != nil {
		return "", err
	}
	label, last := string(part), none
	for e, err := range v.Entries(0) {
		if err != nil {
			return "", err
		}
		before, now, found := strings.Cut(string(e.Data), ">")
		if !found || before != last {
			return "", fmt.Errorf("K2: entry %d is %q, after %q", e.Seq, e.Data, last)
		}
		last = now
	}
	if ok != (label != none) || label != last {
		return "", fmt.Errorf("K2: the part holds %q, the journal ends with %q", label, last)
	}
	return label, nil
}

func (u *user) commit() error {
	before, err := stateLabel(u.s.View())
	if err != nil {
		return err
	}
	label := fmt.Sprintf("v%d.%d", u.p.Number(), u.n)
	u.n++
	u.p.Begin(label)
	_, err = u.s.Commit(u.ctx, pawl.Change{
		ID:      label,
		Entries: [][]byte{[]byte(before + ">" + label)},
		Put:     map[string][]byte{"state": []byte(label)},
	})
	u.p.End(label, err)
	return err
}

func (u *user) commits(n int) error {
	for range n {
		if err := u.commit(); err != nil {
			return err
		}
	}
	return nil
}

// pawlPlan is what all scenarios share: the recovery opens, tells what it found, and
// commits twice.
func pawlPlan(c *C) {
	c.Unexplored(pawlStore+"/lock", pawlTrust+"/s.lock", pawlTrust+"/s.audit")
	c.NeverRead("tmp-*", "s.tmp-*")
	c.Removable(pawlStore+"/tmp-*", pawlTrust+"/s.tmp-*")
	c.Check(known)
	c.Certain(func(err error) bool { return errors.Is(err, pawl.ErrNotCommitted) })
	c.Recover(func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := u.observe(); err != nil {
			return err
		}
		return u.commits(2)
	})
}

// made is a Setup: a store with some commits, closed.
func made(commits int) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		return errors.Join(u.commits(commits), u.s.Close())
	}
}

func work(commits int, close bool) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := u.observe(); err != nil {
			return err
		}
		if err := u.commits(commits); err != nil || !close {
			return err
		}
		return u.s.Close()
	}
}

// TestPawl explores pawl as it is: no crash of an ordinary kind, two deep, loses or
// invents a state, or keeps the store from opening.
func TestPawl(t *testing.T) {
	for _, sc := range []struct {
		name  string
		setup Func
		do    Func
	}{
		{"create", nil, work(0, false)},
		{"create and close", nil, work(0, true)},
		{"create and first commits", nil, work(2, true)},
		{"first commit of a made store", made(0), work(1, false)},
		{"two commits", made(1), work(2, false)},
		{"two commits and close", made(2), work(2, true)},
		{"close at once", made(1), work(0, true)},
		{"five commits", made(1), work(5, true)}, // once around the ring
	} {
		t.Run(sc.name, func(t *testing.T) {
			Run(t, func(c *C) {
				pawlPlan(c)
				c.RecoverTwice()
				if raced {
					c.Depth(1)
				} else if !testing.Short() {
					c.Profiles("posix-minimal", "ordered-torn", "ext4-ordered")
				}
				if sc.setup != nil {
					c.Setup(sc.setup)
				}
				c.Do(sc.do)
			})
		})
	}
}
