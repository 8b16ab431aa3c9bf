//go:build unix

package pawl_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// hasty are options of a reader that waits for nobody.
func hasty(allow pawl.Allowance) *pawl.Options {
	return &pawl.Options{LockWait: time.Nanosecond, Allow: allow}
}

// reads wants a reader to show a state, and to be able to do all that it is for.
func (b *bench) reads(says string) {
	b.t.Helper()
	r, err := pawl.OpenReader(quick(), b.dir, b.trust, nil)
	if err != nil {
		b.t.Errorf("cannot be read: %v", err)
		return
	}
	_, outcome, err := r.Lookup(context.Background(), "never")
	if err := errors.Join(err, r.Refresh(context.Background())); err != nil || outcome != pawl.OutcomeNotCommitted {
		b.t.Errorf("%v, %v", outcome, err)
	}
	for v, err := range r.Watch(context.Background(), 0) {
		if err != nil || v.Version() != r.View().Version() {
			b.t.Errorf("watches %s, %v", v.Version(), err)
		}
		break
	}
	if err := r.Close(); err != nil {
		b.t.Error(err)
	}
	if diff := cmp.Diff(says, dump(r.View())); diff != "" {
		b.t.Errorf("another state is read (-want +got):\n%s", diff)
	}
}

// readRefused wants OpenReader to fail with all of the given classes, the first of them
// the kind, at no great expense, and with nothing changed.
func (b *bench) readRefused(opts *pawl.Options, also []string, want ...error) {
	b.t.Helper()
	paths := append([]string{b.dir, b.trust}, also...)
	before := testkit.Snapshot(b.t, paths...)
	used := allocated(func() {
		r, err := pawl.OpenReader(quick(), b.dir, b.trust, opts)
		if err == nil {
			b.t.Errorf("is read at %s, want an error: %v", r.View().Version(), want)
			r.Close()
			return
		}
		if want[0] == pawl.ErrTooLarge {
			if !errors.Is(err, pawl.ErrTooLarge) {
				b.t.Error(err)
			}
			return
		}
		typed(b.t, err, "open", want...)
	})
	if used > 8<<20 {
		b.t.Errorf("%d bytes were allocated", used)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(b.t, paths...)); diff != "" {
		b.t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// withJournal lays a store with a journal, closed, and returns what it says.
func (b *bench) withJournal() string {
	b.t.Helper()
	one, _, _ := histories(b.t)
	b.lay(one.clean[3])
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 4; i < 6; i++ {
		if _, err := s.Commit(context.Background(), change(i)); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.t.Fatal(err)
	}
	if _, err := os.Stat(journalOf(b, 3)); err != nil {
		b.t.Fatal(err)
	}
	return dump(s.View())
}

// TestReaderNotAFile: nothing that is not a regular file is opened, followed or waited
// for (contract 11; R14).
func TestReaderNotAFile(t *testing.T) {
	one, _, _ := histories(t)
	for _, s := range append(situations(t), situation{"never committed to", one.clean[0], one.says[0], false}) {
		for _, i := range impostors {
			for _, allow := range []pawl.Allowance{0, pawl.Unsettled} {
				t.Run(s.name+"/bundle is "+i.name, func(t *testing.T) {
					b := newBench(t)
					b.lay(moment{s.trust, nil})
					elsewhere := filepath.Join(filepath.Dir(b.dir), "elsewhere")
					i.make(t, b.bundle, elsewhere, s.bundle)
					b.readRefused(hasty(allow), []string{elsewhere}, pawl.ErrUnauthorized)
				})
				t.Run(s.name+"/trust file is "+i.name, func(t *testing.T) {
					b := newBench(t)
					b.lay(moment{nil, s.bundle})
					elsewhere := filepath.Join(filepath.Dir(b.dir), "elsewhere")
					i.make(t, b.slots, elsewhere, s.trust)
					b.readRefused(hasty(allow), []string{elsewhere}, pawl.ErrTrustDamaged)
				})
			}
		}
	}
	for _, i := range impostors {
		t.Run("journal is "+i.name, func(t *testing.T) {
			b := newBench(t)
			b.withJournal()
			journal, elsewhere := read(t, journalOf(b, 3)), filepath.Join(filepath.Dir(b.dir), "elsewhere")
			if err := os.Remove(journalOf(b, 3)); err != nil {
				t.Fatal(err)
			}
			i.make(t, journalOf(b, 3), elsewhere, journal)
			b.readRefused(hasty(0), []string{elsewhere}, pawl.ErrUnauthorized)
		})
		// What is there for writers only is of no account.
		t.Run("locks and audit file are "+i.name, func(t *testing.T) {
			b := newBench(t)
			b.lay(one.clean[3])
			for n, path := range []string{filepath.Join(b.dir, "lock"), filepath.Join(b.trust, "session.lock"), filepath.Join(b.trust, "session.audit")} {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				i.make(t, path, filepath.Join(filepath.Dir(b.dir), "elsewhere")+string(rune('0'+n)), nil)
			}
			b.reads(one.says[3])
		})
	}
	t.Run("directories", func(t *testing.T) {
		for _, which := range []string{"session", "trust"} {
			for _, what := range []string{"FIFO", "file", "link to itself"} {
				b := newBench(t)
				b.lay(one.clean[3])
				path := filepath.Join(filepath.Dir(b.dir), which)
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				switch what {
				case "FIFO":
					if err := unix.Mkfifo(path, 0o600); err != nil {
						t.Skipf("no FIFOs here: %v", err)
					}
				case "file":
					write(t, path, "")
				default:
					symlink(t, which, path)
				}
				_, err := pawl.OpenReader(quick(), b.dir, b.trust, nil)
				var e *pawl.Error
				if !errors.As(err, &e) || e.Op != "open" || e.Path == "" || !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) && what != "link to itself" {
					t.Errorf("%s is a %s: %v", which, what, err)
				}
			}
		}
	})
}

// TestReaderHugeFile: a sparse file of 1 TiB is neither read nor given memory
// (contract 11; 10: "garbage length").
func TestReaderHugeFile(t *testing.T) {
	one, _, _ := histories(t)
	for _, which := range []string{"bundle", "trust", "journal"} {
		b := newBench(t)
		b.withJournal()
		path, want := b.bundle, pawl.ErrDamaged
		switch which {
		case "trust":
			path, want = b.slots, pawl.ErrTrustDamaged
		case "journal":
			path, want = journalOf(b, 3), pawl.ErrTooLarge
		}
		if err := os.Truncate(path, 1<<40); err != nil {
			t.Skipf("the file system has no file of 1 TiB: %v", err)
		}
		b.readRefused(nil, nil, want)
	}
	b := newBench(t)
	b.lay(one.clean[3])
	b.readRefused(&pawl.Options{Limits: pawl.Limits{Bundle: 100}}, nil, pawl.ErrTooLarge)
}

// TestReaderInsecure: a reader relies on the trust directory as much as a writer does.
func TestReaderInsecure(t *testing.T) {
	one, _, _ := histories(t)
	for _, tt := range []struct {
		name string
		make func(t *testing.T, b *bench)
		safe bool
	}{
		{"others may read", func(t *testing.T, b *bench) { chmod(t, b.trust, 0o755); chmod(t, b.slots, 0o644) }, true},
		{"the caller's group", func(t *testing.T, b *bench) { chmod(t, b.trust, 0o770); chmod(t, b.slots, 0o660) }, true},
		{"everyone", func(t *testing.T, b *bench) { chmod(t, b.trust, 0o777) }, false},
		{"everyone, and sticky", func(t *testing.T, b *bench) { chmod(t, b.trust, 0o777|fs.ModeSticky) }, false},
		{"everyone, the file", func(t *testing.T, b *bench) { chmod(t, b.slots, 0o666) }, false},
		{"a foreign group", func(t *testing.T, b *bench) {
			if err := os.Chown(b.trust, -1, 61234); err != nil {
				t.Skipf("the group cannot be given away: %v", err)
			}
			chmod(t, b.trust, 0o770)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.lay(one.clean[3])
			r, err := pawl.OpenReader(quick(), b.dir, b.trust, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			tt.make(t, b)
			if !tt.safe {
				b.readRefused(nil, nil, pawl.ErrInsecure)
				r, err := pawl.OpenReader(quick(), b.dir, b.trust, hasty(pawl.SharedTrust))
				if err != nil || dump(r.View()) != one.says[3] {
					t.Fatalf("allowed: %v", err)
				}
				r.Close()
				return
			}
			b.reads(one.says[3])
			if err := r.Refresh(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("places", func(t *testing.T) {
		b := newBench(t)
		b.lay(one.clean[3])
		for _, pair := range [][2]string{{b.dir, b.dir}, {b.dir, filepath.Join(b.dir, "trust")}, {b.dir, filepath.Dir(b.dir)}, {b.trust, b.dir}} {
			_, err := pawl.OpenReader(quick(), pair[0], pair[1], nil)
			typed(t, err, "open", pawl.ErrInsecure)
		}
		for _, pair := range [][2]string{{"", b.trust}, {b.dir, ""}} {
			_, err := pawl.OpenReader(quick(), pair[0], pair[1], nil)
			typedPathless(t, err)
		}
		// By other ways to the same places it is the same store.
		link := filepath.Join(filepath.Dir(b.dir), "link")
		symlink(t, filepath.Dir(b.dir), link)
		(&bench{t, filepath.Join(link, "session"), filepath.Join(link, "trust"), b.bundle, b.slots}).reads(one.says[3])
	})
}

func typedPathless(t *testing.T, err error) {
	t.Helper()
	var e *pawl.Error
	if !errors.As(err, &e) || e.Kind != pawl.ErrInvalid || e.Op != "open" {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// TestReaderMayNotWrite: for a reader it is enough that it may read (19).
func TestReaderMayNotWrite(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	one, _, _ := histories(t)
	protect := func(t *testing.T, b *bench) {
		for _, dir := range []string{b.dir, b.trust} {
			list, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				mode := fs.FileMode(0o400)
				if e.Name() == "lock" || filepath.Ext(e.Name()) == ".lock" {
					mode = 0
				}
				chmod(t, filepath.Join(dir, e.Name()), mode)
			}
			chmod(t, dir, 0o500)
		}
	}
	t.Run("bundle", func(t *testing.T) {
		b := newBench(t)
		b.lay(one.clean[3])
		protect(t, b)
		b.reads(one.says[3])
	})
	t.Run("journal", func(t *testing.T) {
		b := newBench(t)
		says := b.withJournal()
		protect(t, b)
		b.reads(says)
	})
	for name, m := range map[string]moment{"not landed": one.old[4], "landed": one.new[4]} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.lay(m)
			protect(t, b)
			b.readRefused(hasty(0), nil, pawl.ErrUnsettled)
			r, err := pawl.OpenReader(quick(), b.dir, b.trust, hasty(pawl.Unsettled))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if want := map[string]string{"not landed": one.says[3], "landed": one.says[4]}[name]; dump(r.View()) != want || !r.Unsettled() {
				t.Errorf("unsettled: %v\n%s", r.Unsettled(), dump(r.View()))
			}
		})
	}
	for name, tt := range map[string]struct {
		path func(b *bench) string
		mode fs.FileMode
	}{
		"the trust file":             {slotsOf, 0},
		"the bundle":                 {bundleOf, 0},
		"the journal":                {func(b *bench) string { return journalOf(b, 3) }, 0},
		"the store directory":        {func(b *bench) string { return b.dir }, 0},
		"the trust directory":        {func(b *bench) string { return b.trust }, 0},
		"names of the store":         {func(b *bench) string { return b.dir }, 0o100},
		"what is in the trust place": {func(b *bench) string { return b.trust }, 0o400},
	} {
		t.Run("may not read "+name, func(t *testing.T) {
			b := newBench(t)
			b.withJournal()
			chmod(t, tt.path(b), tt.mode)
			_, err := pawl.OpenReader(quick(), b.dir, b.trust, nil)
			typed(t, err, "open", nil, fs.ErrPermission)
		})
	}
}
