package crashtest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What an operator decides is carried out in many steps, and each may be the last. The
// same decision again must go on, and until it is done nobody may find anything but what
// was there, or a refusal; and no byte of what was there may be gone.
const (
	opStore, opTrust = "/store/account", "/trust/account"
	opNewStore       = "/store/renamed"
	opKept           = "/store/kept"
	opBackup         = "/store/backup"
	opDigest         = "/store/digest"
	opAcked          = "/store/acked"
)

var opReason = "explored"

// operation is a decision, and what is there before and after it.
type operation struct {
	name  string
	opts  pawl.Options
	spoil func(ctx context.Context, p *crashtest.Process, early, late files) error
	do    func(ctx context.Context, p *crashtest.Process, dec pawl.Decision) (*pawl.Ruling, error)

	before error // what Open says; nil: it opens
	digest func(*pawl.Report) pawl.Digest
	rev    pawl.Revision // afterwards; 0: there is no store
	count  string        // the part "count" afterwards
	goes   bool          // files of the store may go
}

// files are the contents of files by name.
type files map[string][]byte

func dirsOf() []string {
	var dirs []string
	for _, store := range []string{opStore, opNewStore} {
		dirs = append(dirs, store, store+"/segments", store+"/parts", store+"/quarantine")
	}
	return append(dirs, opTrust)
}

func readAll(p *crashtest.Process) (files, error) {
	all := files{}
	for _, dir := range dirsOf() {
		names, err := p.FS().ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if strings.Contains(name, "tmp-") {
				continue
			}
			b, err := p.FS().ReadFile(path.Join(dir, name))
			if errors.Is(err, vfs.ErrNotRegular) {
				continue
			}
			if err != nil {
				return nil, err
			}
			all[path.Join(dir, name)] = b
		}
	}
	return all, nil
}

// put makes one of the two directories what it was.
func (f files) put(p *crashtest.Process, dir string) error {
	now, err := readAll(p)
	if err != nil {
		return err
	}
	for name := range now {
		if strings.HasPrefix(name, dir+"/") && !strings.HasSuffix(name, "lock") {
			if err := p.FS().Remove(name); err != nil {
				return err
			}
		}
	}
	for name, b := range f {
		if !strings.HasPrefix(name, dir+"/") || strings.HasSuffix(name, "lock") {
			continue
		}
		if err := p.FS().Mkdir(path.Dir(name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := p.FS().Create(name, b); err != nil {
			return err
		}
	}
	return nil
}

func opCommits(ctx context.Context, s *pawl.Store, from, n int) error {
	for i := from; i < from+n; i++ {
		_, err := s.Commit(ctx, pawl.Change{ID: fmt.Sprint("id ", i), Entries: [][]byte{fmt.Append(nil, "entry ", i)},
			Put: map[string][]byte{"count": fmt.Append(nil, i), "large": bytes.Repeat(fmt.Append(nil, i), 130)}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *operation) setup(ctx context.Context, p *crashtest.Process) error {
	s, err := pawl.Open(ctx, opStore, opTrust, &o.opts)
	if err != nil {
		return err
	}
	var backup bytes.Buffer
	if err := errors.Join(opCommits(ctx, s, 1, 2), s.Backup(ctx, &backup), s.Close()); err != nil {
		return err
	}
	early, err := readAll(p)
	if err != nil {
		return err
	}
	if s, err = pawl.Open(ctx, opStore, opTrust, &o.opts); err != nil {
		return err
	}
	if err := errors.Join(opCommits(ctx, s, 3, 2), s.Close()); err != nil {
		return err
	}
	late, err := readAll(p)
	if err != nil {
		return err
	}
	if o.spoil != nil {
		if err := o.spoil(ctx, p, early, late); err != nil {
			return err
		}
	}
	report, err := pawl.Inspect(ctx, opStore, opTrust, nil)
	if err != nil {
		return err
	}
	digest := o.digest(report)
	if err := errors.Join(p.FS().Create(opDigest, digest[:]), p.FS().Create(opBackup, backup.Bytes()), p.FS().Mkdir(opKept)); err != nil {
		return err
	}
	now, err := readAll(p)
	if err != nil {
		return err
	}
	n := 0
	for name, b := range now {
		if !strings.HasSuffix(name, "lock") && !strings.HasSuffix(name, ".audit") {
			n++
			if err := p.FS().Create(fmt.Sprintf("%s/%d", opKept, n), b); err != nil {
				return err
			}
		}
	}
	return nil
}

// kept says that no byte of what was there is gone.
func (o *operation) kept(p *crashtest.Process) error {
	if o.goes {
		return nil
	}
	now, err := readAll(p)
	if err != nil {
		return err
	}
	names, err := p.FS().ReadDir(opKept)
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := p.FS().ReadFile(path.Join(opKept, name))
		if err != nil {
			return err
		}
		found := false
		for _, have := range now {
			found = found || bytes.Equal(have, b)
		}
		if !found {
			return fmt.Errorf("a file of %d bytes that was there is gone: %.40q", len(b), b)
		}
	}
	return nil
}

// decide carries the decision out, or goes on with it.
func (o *operation) decide(ctx context.Context, p *crashtest.Process) error {
	b, err := p.FS().ReadFile(opDigest)
	if err != nil {
		return err
	}
	dec := pawl.Decision{Reason: opReason}
	copy(dec.Digest[:], b)
	_, err = o.do(ctx, p, dec)
	return err
}

// found says what is there: whether all is done, or all as it was, or refused.
func (o *operation) found(ctx context.Context, p *crashtest.Process) (done bool, err error) {
	store := opStore
	if strings.HasPrefix(o.name, "rename") {
		at, err := pawl.Inspect(ctx, opNewStore, opTrust, nil)
		if err != nil {
			return false, err
		}
		if at.Verdict != "create" && at.Verdict != "refuse" {
			store = opNewStore
		}
	}
	report, err := pawl.Inspect(ctx, store, opTrust, nil)
	if err != nil {
		return false, err
	}
	if o.name == "quarantine" {
		var e *pawl.Error
		if report.Verdict != "refuse" || !errors.As(report.Err, &e) || e.Hint == "" {
			return false, fmt.Errorf("with another bundle, or none, the verdict is %s: %w", report.Verdict, report.Err)
		}
		return errors.Is(report.Err, pawl.ErrMissing), nil
	}
	switch report.Verdict {
	case "create":
		if o.rev != 0 && o.before != pawl.ErrNotExist {
			return false, errors.New("there is no store any more")
		}
		return o.rev == 0, nil
	case "refuse":
		var e *pawl.Error
		if !errors.As(report.Err, &e) || e.Hint == "" {
			return false, fmt.Errorf("a refusal without a hint: %w", report.Err)
		}
		return false, nil
	}
	switch {
	case strings.HasPrefix(o.name, "rename"):
		return store == opNewStore, nil
	case o.before == nil && report.Confirmed.Revision == 4: // as it was
		return false, nil
	case report.Confirmed.Revision >= o.rev && o.rev > 0: // or has gone on since
		return true, nil
	case o.before == nil || report.Verdict == "clean":
		return false, fmt.Errorf("it opens, at revision %d: %s", report.Confirmed.Revision, report.Verdict)
	}
	return false, nil
}

// goneOn says that it is done, and the store has gone on since: nobody decides again.
func (o *operation) goneOn(ctx context.Context) (bool, error) {
	store := opStore
	if strings.HasPrefix(o.name, "rename") {
		store = opNewStore
	}
	report, err := pawl.Inspect(ctx, store, opTrust, nil)
	return err == nil && o.rev > 0 && report.Verdict != "refuse" && max(report.Confirmed.Revision, report.Pending.Revision) > o.rev && report.Confirmed.Revision >= o.rev, err
}

// opens opens what is there, and looks at it.
func (o *operation) opens(ctx context.Context, p *crashtest.Process) error {
	if o.count == "" {
		return nil
	}
	store := opStore
	if strings.HasPrefix(o.name, "rename") {
		store = opNewStore
	}
	opts := o.opts
	opts.MustExist = true
	s, err := pawl.Open(ctx, store, opTrust, &opts)
	if err != nil {
		return err
	}
	b, _, err := s.View().Get("count")
	if v := s.View().Version(); err == nil && (v.Revision < o.rev || v.Revision > o.rev+6 || string(b) != o.count) {
		err = fmt.Errorf("opened at %s, with count %q", v, b)
	}
	for i := 1; err == nil && i <= int(o.count[0]-'0'); i++ {
		var out pawl.Outcome
		if _, out, err = s.Lookup(ctx, fmt.Sprint("id ", i)); err == nil && out != pawl.OutcomeCommitted {
			err = fmt.Errorf("id %d: %v", i, out)
		}
	}
	if err = errors.Join(err, o.kept(p), s.Verify(ctx, nil)); err != nil {
		return err
	}
	_, err = s.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("it goes on")}})
	return errors.Join(err, s.Close())
}

// audited says that the audit file knows of the decision.
func (o *operation) audited(p *crashtest.Process) error {
	names, err := p.FS().ReadDir(opTrust)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".audit") {
			b, err := p.FS().ReadFile(path.Join(opTrust, name))
			if err != nil {
				return err
			}
			if bytes.Contains(b, []byte(`"reason":"`+opReason+`"`)) {
				return nil
			}
		}
	}
	return errors.New("the audit file does not say who decided")
}

func (o *operation) explore(c *crashtest.C) {
	c.Setup(o.setup)
	c.Unexplored(opStore+"/lock", opNewStore+"/lock", opTrust+"/*.lock", opTrust+"/*.audit", opAcked, "/store")
	c.NeverRead("tmp-*", "account.tmp-*", "renamed.tmp-*")
	c.Do(func(ctx context.Context, p *crashtest.Process) error {
		report, err := pawl.Inspect(ctx, opStore, opTrust, nil)
		if err != nil {
			return err
		}
		want := map[error]string{nil: "clean", pawl.ErrNotExist: "create"}[o.before]
		if want == "" && !errors.Is(report.Err, o.before) || want != "" && report.Verdict != want {
			return fmt.Errorf("before: %v, want %v", report.Err, o.before)
		}
		p.Begin("done")
		err = o.decide(ctx, p)
		if err == nil {
			err = acknowledge(p)
		}
		p.End("done", err)
		return err
	})
	c.Recover(func(ctx context.Context, p *crashtest.Process) error {
		done, err := o.found(ctx, p)
		if err != nil {
			return err
		}
		if _, err := p.FS().ReadFile(opAcked); err == nil && !done {
			report, err := pawl.Inspect(ctx, opStore, opTrust, nil)
			return fmt.Errorf("it was acknowledged, and is not there: %+v, %w", report, err)
		}
		if err := o.kept(p); err != nil {
			return err
		}
		if gone, err := o.goneOn(ctx); err != nil {
			return err
		} else if !gone {
			if err := o.decide(ctx, p); err != nil {
				return fmt.Errorf("the same decision again: %w", err)
			}
			if err := acknowledge(p); err != nil {
				return err
			}
		}
		if done, err := o.found(ctx, p); err != nil || !done {
			return fmt.Errorf("after the same decision again it is not done: %w", err)
		}
		if err := errors.Join(o.opens(ctx, p), o.audited(p)); err != nil {
			return err
		}
		p.Observe("done")
		return nil
	})
}

// acknowledge writes down, durably, that somebody was told that it is done.
func acknowledge(p *crashtest.Process) error {
	if err := p.FS().Create(opAcked, nil); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(p.FS().Sync(opAcked), p.FS().SyncDir("/store"))
}

// TestFreshPlaceExplored restores into directories that are not there, or that somebody has
// made whose names may not be durable.
func TestFreshPlaceExplored(t *testing.T) {
	const dir, trust = "/store/fresh/account", "/trust/fresh/account"
	for name, made := range map[string][]string{"nothing": nil, "empty directories": {"/store/fresh", "/trust/fresh", dir, trust}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crashtest.Run(t, func(c *crashtest.C) {
				c.Setup(func(ctx context.Context, p *crashtest.Process) error {
					s, err := pawl.Open(ctx, opStore, opTrust, nil)
					if err != nil {
						return err
					}
					var b bytes.Buffer
					err = errors.Join(opCommits(ctx, s, 1, 2), s.Backup(ctx, &b), s.Close(), p.FS().Create(opBackup, b.Bytes()))
					for _, dir := range made {
						err = errors.Join(err, p.FS().Mkdir(dir))
					}
					return err
				})
				c.Unexplored("/store", "/store/account/*", "/store/b*", dir+"/lock", trust+"/*.lock", trust+"/*.audit", opAcked)
				c.NeverRead("tmp-*", "account.tmp-*")
				do := func(ctx context.Context, p *crashtest.Process) error {
					b, err := p.FS().ReadFile(opBackup)
					if err != nil {
						return err
					}
					if _, err = pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b), pawl.Decision{Reason: opReason}); err != nil {
						return err
					}
					return acknowledge(p)
				}
				c.Do(func(ctx context.Context, p *crashtest.Process) error {
					p.Begin("done")
					err := do(ctx, p)
					p.End("done", err)
					return err
				})
				c.Recover(func(ctx context.Context, p *crashtest.Process) error {
					_, err := p.FS().ReadFile(opAcked)
					if err != nil {
						err = do(ctx, p)
					}
					if err != nil {
						return err
					}
					r, err := pawl.Inspect(ctx, dir, trust, nil)
					if err == nil && (r.Confirmed.Revision != 2 || r.Verdict != "clean") {
						err = fmt.Errorf("acknowledged, and now: %s, %w", r.Verdict, r.Err)
					}
					if err == nil {
						p.Observe("done")
					}
					return err
				})
			})
		})
	}
}

// TestOperateFaults lets each call fail once, and the operator call again until it is done.
// Then the power is cut. (A first audit line may be gone then: the flush of the name that
// its file gets is tried once, as everywhere.)
func TestOperateFaults(t *testing.T) {
	for _, o := range operations {
		if strings.HasPrefix(o.name, "remove") || strings.HasPrefix(o.name, "rename") {
			continue // a failed flush of a directory from which a name was taken may show it again: A12
		}
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			crashtest.Run(t, func(c *crashtest.C) {
				c.Setup(o.setup)
				c.Unexplored(opStore+"/lock", opNewStore+"/lock", opTrust+"/*.lock", opTrust+"/*.audit", opAcked, "/store")
				c.NeverRead("tmp-*", "account.tmp-*", "renamed.tmp-*")
				c.Faults(crashtest.FaultsInDo, 1)
				c.MaySwallow(func(crashtest.Call) bool { return true })
				c.Do(func(ctx context.Context, p *crashtest.Process) error {
					p.Begin("done")
					err := o.decide(ctx, p)
					if err != nil {
						err = o.decide(ctx, p)
					}
					if err == nil {
						err = acknowledge(p)
					}
					p.End("done", err)
					return err
				})
				c.Recover(func(ctx context.Context, p *crashtest.Process) error {
					if err := o.kept(p); err != nil {
						return err
					}
					if _, err := p.FS().ReadFile(opAcked); err == nil {
						if err := o.opens(ctx, p); err != nil {
							return fmt.Errorf("it was acknowledged: %w", err)
						}
					}
					p.Observe("done")
					return nil
				})
			})
		})
	}
}

func chosen(r *pawl.Report) pawl.Digest { return r.Found.Digest }
func over(r *pawl.Report) pawl.Digest   { return r.Confirmed.Digest }

func adopt(ctx context.Context, _ *crashtest.Process, dec pawl.Decision) (*pawl.Ruling, error) {
	return pawl.Adopt(ctx, opStore, opTrust, nil, dec)
}

func restore(ctx context.Context, p *crashtest.Process, dec pawl.Decision) (*pawl.Ruling, error) {
	b, err := p.FS().ReadFile(opBackup)
	if err != nil {
		return nil, err
	}
	return pawl.Restore(ctx, opStore, opTrust, nil, bytes.NewReader(b), dec)
}

func remove(ctx context.Context, p *crashtest.Process, dec pawl.Decision) (*pawl.Ruling, error) {
	r, err := pawl.Remove(ctx, opStore, opTrust, nil, dec)
	if errors.Is(err, pawl.ErrNotExist) {
		return nil, nil // it was cut off when all was done
	}
	return r, err
}

func rename(ctx context.Context, _ *crashtest.Process, dec pawl.Decision) (*pawl.Ruling, error) {
	return pawl.Rename(ctx, opStore, opTrust, nil, opNewStore, "", dec)
}

func rolledBack(ctx context.Context, p *crashtest.Process, early, late files) error {
	return early.put(p, opStore)
}

var sealedOpts = pawl.Options{CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 1, Inline: 100}}

var operations = []operation{
	{name: "adopt, rolled back", spoil: rolledBack, do: adopt, before: pawl.ErrRolledBack, digest: chosen, rev: 5, count: "2"},
	{name: "adopt, rolled back, segments", opts: sealedOpts, spoil: rolledBack, do: adopt, before: pawl.ErrRolledBack, digest: chosen, rev: 5, count: "2"},
	{name: "adopt, trust behind", do: adopt, before: pawl.ErrTrustBehind, digest: chosen, rev: 4, count: "4",
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error { return early.put(p, opTrust) }},
	{name: "adopt, no trust", do: adopt, before: pawl.ErrUntrusted, digest: chosen, rev: 4, count: "4",
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error {
			return p.FS().Remove(opTrust + "/account.trust")
		}},
	{name: "adopt, trust damaged", opts: sealedOpts, do: adopt, before: pawl.ErrTrustDamaged, digest: chosen, rev: 4, count: "4",
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error {
			return p.FS().WriteAt(opTrust+"/account.trust", bytes.Repeat([]byte("x"), 16<<10), 0)
		}},
	{name: "restore, over a store in order", do: restore, digest: over, rev: 5, count: "2"},
	{name: "restore, over a store in order, segments", opts: sealedOpts, do: restore, digest: over, rev: 5, count: "2"},
	{name: "restore, nothing there", opts: sealedOpts, do: restore, before: pawl.ErrNotExist, digest: over, rev: 2, count: "2",
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error {
			return errors.Join(files{}.put(p, opStore), files{}.put(p, opTrust))
		}},
	{name: "restore, the store directory is lost", do: restore, before: pawl.ErrMissing, digest: over, rev: 5, count: "2",
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error {
			return files{}.put(p, opStore)
		}},
	{name: "restore, the bundle is damaged", opts: sealedOpts, do: restore, before: pawl.ErrDamaged, digest: over, rev: 5, count: "2",
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error {
			return p.FS().WriteAt(opStore+"/bundle", []byte("x"), 300)
		}},
	{name: "remove", do: remove, digest: over, goes: true},
	{name: "remove, segments", opts: sealedOpts, do: remove, digest: over, goes: true},
	{name: "rename", do: rename, digest: over, rev: 4, count: "4", goes: true},
	{name: "rename, segments", opts: sealedOpts, do: rename, digest: over, rev: 4, count: "4", goes: true},
	{name: "quarantine", do: quarantine, before: pawl.ErrDamaged, digest: func(*pawl.Report) pawl.Digest { return sha256.Sum256(opForeign) },
		spoil: func(ctx context.Context, p *crashtest.Process, early, late files) error {
			return errors.Join(p.FS().Remove(opStore+"/bundle"), p.FS().Create(opStore+"/bundle", opForeign))
		}, rev: 4},
}

var opForeign = []byte("somebody has written this")

// quarantine moves a bundle that is not one aside; what it was done for is that a copy can
// be put back.
func quarantine(ctx context.Context, p *crashtest.Process, dec pawl.Decision) (*pawl.Ruling, error) {
	return pawl.Quarantine(ctx, opStore, opTrust, nil, "bundle", dec)
}

// TestOperateExplored crashes each decision at every step, and again while it goes on.
func TestOperateExplored(t *testing.T) {
	for _, o := range operations {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			crashtest.Run(t, o.explore)
		})
	}
}
