//go:build linux

package pawl_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// TestReaderReadOnlyMount: a medium that nobody can write to, with all kinds of states
// on it. Writers need more; a reader does not.
func TestReaderReadOnlyMount(t *testing.T) {
	if !mounts(t) {
		return
	}
	one, _, _ := histories(t)
	for _, which := range []string{"session", "trust", "both"} {
		t.Run(which, func(t *testing.T) {
			dir, trust := testkit.Dirs(t)
			root := filepath.Dir(dir)
			var disks []string
			for _, d := range []*string{&dir, &trust} {
				kind := filepath.Base(*d)
				*d = filepath.Join(root, kind+"-disk", kind)
				if which == kind || which == "both" {
					mount(t, "tmpfs", filepath.Dir(*d), "tmpfs", 0, "size=4m")
					disks = append(disks, filepath.Dir(*d))
				}
				mkdir(t, *d)
			}
			b := &bench{t, dir, trust, filepath.Join(dir, "bundle"), filepath.Join(trust, "session.trust")}
			set := func(flags uintptr) {
				t.Helper()
				for _, disk := range disks {
					if err := unix.Mount("", disk, "", unix.MS_REMOUNT|flags, ""); err != nil {
						t.Skipf("cannot be mounted read-only here: %v", err)
					}
				}
			}
			readOnly := func() {
				t.Helper()
				set(unix.MS_RDONLY)
				if f, err := os.Create(filepath.Join(disks[0], "x")); !errors.Is(err, unix.EROFS) {
					f.Close()
					t.Fatalf("it can be written to: %v", err)
				}
			}
			b.lay(one.clean[3])
			readOnly()
			b.reads(one.says[3])
			set(0)
			says := b.withJournal()
			r, err := pawl.OpenReader(quick(), b.dir, b.trust, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			readOnly()
			b.reads(says)
			if err := r.Refresh(context.Background()); err != nil || dump(r.View()) != says {
				t.Errorf("a reader that was there before: %v", err)
			}
			set(0)
			for _, m := range []moment{one.old[4], one.new[4]} {
				if err := errors.Join(os.RemoveAll(journalOf(b, 3))); err != nil {
					t.Fatal(err)
				}
				b.lay(m)
				readOnly()
				b.readRefused(hasty(0), nil, pawl.ErrUnsettled)
				if r, err := pawl.OpenReader(quick(), b.dir, b.trust, hasty(pawl.Unsettled)); err != nil || !r.Unsettled() {
					t.Errorf("with Unsettled allowed: %v", err)
				} else if err := r.Close(); err != nil {
					t.Error(err)
				}
				set(0)
			}
			b.lay(moment{one.clean[3].trust, nil})
			readOnly()
			b.readRefused(nil, nil, pawl.ErrMissing)
			set(0)
		})
	}
}
