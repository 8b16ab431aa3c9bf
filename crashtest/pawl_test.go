package crashtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
)

const (
	pawlStore = "/store/s"
	pawlTrust = "/trust/t"
)

// known says which names may be in the two directories after a recovery.
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

// resolved says that nothing is left to settle after a recovery, and that the trust
// file names what is there, which is whole.
func resolved(ctx context.Context, p *Process) error {
	r, err := pawl.Inspect(ctx, pawlStore, pawlTrust, nil)
	if err != nil {
		return err
	}
	data, err := p.FS().ReadFile(pawlStore + "/bundle")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var found pawl.Digest
	if err == nil {
		found = sha256.Sum256(data)
	}
	if r.Pending != (pawl.Root{}) || r.Confirmed.Digest != found {
		return fmt.Errorf("K5: after a recovery that went well, the trust file names %v and %v, and %v is there", r.Confirmed, r.Pending, found)
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
	c.Immutable(pawlStore + "/bundle")
	c.Check(known)
	c.Check(resolved)
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

// fails makes the next call fail that is op on a path with this suffix, and with it
// all that follow, or only this one.
func (u *user) fails(op simfs.Op, suffix string, andAll bool) {
	hit := false
	u.p.fail = func(c *simfs.Call) error {
		if andAll && hit || !hit && c.Op == op && strings.HasSuffix(c.Path, suffix) {
			hit = true
			return &InjectedError{syscall.EIO}
		}
		return nil
	}
}

// stopped is a Setup: a store with two commits, the second of which ended before a
// call of the given kind, with its intent left.
func stopped(op simfs.Op, suffix string) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := u.commit(); err != nil {
			return err
		}
		u.fails(op, suffix, true)
		if err := u.commit(); !errors.Is(err, pawl.ErrInDoubt) {
			return fmt.Errorf("the commit should be in doubt: %w", err)
		}
		return nil
	}
}

// doubtful is a workload: a commit whose directory flush fails, Recover, and one more.
func doubtful(ctx context.Context, p *Process) error {
	u, err := openPawl(ctx, p)
	if err != nil {
		return err
	}
	if err := u.observe(); err != nil {
		return err
	}
	u.fails(simfs.OpSyncDir, pawlStore, false)
	if err := u.commit(); !errors.Is(err, pawl.ErrInDoubt) {
		return fmt.Errorf("the commit should be in doubt: %w", err)
	}
	if err := u.settle(); err != nil {
		return err
	}
	return errors.Join(u.commit(), u.s.Close())
}

// settled says that a Setup left what its name says.
func settled(want pawl.Settlement) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if got := u.s.Recovery().Settled; got != want {
			return fmt.Errorf("the setup left something that settles as %v", got)
		}
		if err := u.observe(); err != nil {
			return err
		}
		return errors.Join(u.commit(), u.s.Close())
	}
}

// scenario is a workload on pawl.
type scenario struct {
	name  string
	setup Func // nil: nothing
	do    Func
}

var scenarios = []scenario{
	{"create", nil, work(0, false)},
	{"create and close", nil, work(0, true)},
	{"create and first commits", nil, work(2, true)},
	{"first commit of a made store", made(0), work(1, false)},
	{"two commits", made(1), work(2, false)},
	{"two commits and close", made(2), work(2, true)},
	{"close at once", made(1), work(0, true)},
	{"five commits", made(1), work(5, true)}, // once around the ring
	{"settle landed", stopped(simfs.OpSyncDir, pawlStore), settled(pawl.SettledLanded)},
	{"settle not landed", stopped(simfs.OpRename, ""), settled(pawl.SettledNotLanded)},
	{"recover after doubt", made(1), doubtful},
}

// plan describes the exploration of a scenario.
func (sc *scenario) plan(c *C) {
	pawlPlan(c)
	if sc.setup != nil {
		c.Setup(sc.setup)
	}
	c.Do(sc.do)
}

// TestPawl explores pawl as it is: no crash of an ordinary kind, two deep, loses or
// invents a state, or keeps the store from opening.
func TestPawl(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			Run(t, func(c *C) {
				sc.plan(c)
				c.RecoverTwice()
				if raced {
					c.Depth(1)
				} else if !testing.Short() {
					c.Profiles("posix-minimal", "ordered-torn", "ext4-ordered")
				}
			})
		})
	}
}
