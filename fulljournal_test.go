//go:build linux

package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// smallDisk is a kind of file system that a test fills up.
type smallDisk struct {
	kind string
	size int64
	make []string // the command that makes one; nil: it has no device

	// inPlace says that what was written once can be written over when it is full.
	inPlace bool
}

var smallDisks = []smallDisk{
	{"tmpfs", 8 << 20, nil, true},
	{"ext4", 16 << 20, []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"}, true},
	{"xfs", 300 << 20, []string{"mkfs.xfs", "-q", "-f"}, true},
	{"btrfs", 128 << 20, []string{"mkfs.btrfs", "-q", "-f"}, false},
}

// mount mounts a fresh one, in a namespace of the test's own.
func (d smallDisk) mount(t *testing.T, at string) {
	t.Helper()
	if d.make == nil {
		mount(t, d.kind, at, d.kind, 0, fmt.Sprint("size=", d.size))
		return
	}
	if os.Getenv("HOME") != "" && os.Getuid() != 0 {
		t.Skip("only root mounts an image")
	}
	for _, tool := range []string{d.make[0], "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here: %v", tool, err)
		}
	}
	image := at + ".image"
	write(t, image, "")
	if err := os.Truncate(image, d.size); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(d.make[0], append(d.make[1:], image)...).CombinedOutput(); err != nil {
		t.Skipf("%s makes no file system of %d bytes: %v\n%s", d.make[0], d.size, err, out)
	}
	mkdir(t, at)
	if out, err := exec.Command("mount", "-t", d.kind, "-o", "loop", image, at).CombinedOutput(); err != nil {
		t.Skipf("an image of %s cannot be mounted here: %v\n%s", d.kind, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			unix.Unmount(at, unix.MNT_DETACH)
			t.Errorf("%s: %v", at, err)
		}
	})
}

// onDisk returns a bench whose store directory, and with both also the trust
// directory, is on a small disk.
func (d smallDisk) bench(t *testing.T, both bool) (b *bench, disk string) {
	t.Helper()
	root, err := os.MkdirTemp("", "pawl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	disk = filepath.Join(root, "disk")
	d.mount(t, disk)
	dir, trust := filepath.Join(disk, "session"), filepath.Join(root, "trust")
	if both {
		trust = filepath.Join(disk, "trust")
	}
	t.Cleanup(func() { testkit.NothingLeft(t, root) })
	mkdir(t, dir)
	mkdir(t, trust)
	return &bench{t, dir, trust, filepath.Join(dir, "bundle"), filepath.Join(trust, "session.trust")}, disk
}

// eachDisk runs a test on every kind of disk, with trust elsewhere and on the same.
func eachDisk(t *testing.T, do func(t *testing.T, d smallDisk, b *bench, disk string)) {
	if !mounts(t) {
		return
	}
	for _, d := range smallDisks {
		for _, both := range []bool{false, true} {
			t.Run(d.kind+map[bool]string{false: ", the store", true: ", both"}[both], func(t *testing.T) {
				b, disk := d.bench(t, both)
				do(t, d, b, disk)
			})
		}
	}
}

// full fills a disk, what was reserved and not used included.
func fillUp(t *testing.T, disk string, left int64) (free func()) {
	t.Helper()
	unix.Sync()
	free = fill(t, disk, left)
	unix.Sync()
	return free
}

// noRoom wants commits to fail for certain for want of space, again and again, and the
// store to be what it was. On a file system that writes nothing in place it may be in
// doubt instead, and it then settles when there is space.
func (b *bench) noRoom(t *testing.T, s *pawl.Store, c pawl.Change, certain bool) (doubt bool) {
	t.Helper()
	says := dump(s.View())
	for range 3 {
		_, err := s.Commit(context.Background(), c)
		if !certain && errors.Is(err, pawl.ErrInDoubt) {
			exactly(t, err, pawl.ErrInDoubt, syscall.ENOSPC)
			return true
		}
		e := exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
		if err != nil && e.Hint == "" {
			t.Errorf("no hint: %v", err)
		}
		if _, outcome, err := s.Lookup(context.Background(), c.ID); outcome != pawl.OutcomeNotCommitted || err != nil {
			t.Errorf("Lookup: %v, %v", outcome, err)
		}
	}
	if got := dump(s.View()); got != says {
		t.Errorf("the view changed:\n%s", got)
	}
	if temps := testkit.Temps(t, filepath.Dir(b.dir)); temps != nil {
		t.Errorf("temps: %v", temps)
	}
	if err := s.Verify(context.Background(), nil); err != nil {
		t.Errorf("Verify: %v", err)
	}
	return false
}

// roomAgain wants the store to go on, settled first when it is in doubt.
func (b *bench) roomAgain(t *testing.T, s *pawl.Store, c pawl.Change) {
	t.Helper()
	if _, err := s.Recover(context.Background()); err != nil {
		t.Fatalf("Recover with space again: %v", err)
	}
	if _, err := s.Commit(context.Background(), c); err != nil {
		t.Fatalf("with space again: %v", err)
	}
}

func (b *bench) closes(t *testing.T, s *pawl.Store) {
	t.Helper()
	says := dump(s.View())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(s.View()); got != says {
		t.Errorf("opens with\n%s", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestFullDiskMakingJournal: there is no room for the journal that the second commit
// of a store makes.
func TestFullDiskMakingJournal(t *testing.T) {
	eachDisk(t, func(t *testing.T, d smallDisk, b *bench, disk string) {
		s, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Commit(context.Background(), change(1)); err != nil {
			t.Fatal(err)
		}
		for i, left := range []int64{0, 4096, 32 << 10} {
			free := fillUp(t, disk, left)
			b.noRoom(t, s, change(2+i), d.inPlace)
			free()
			unix.Sync()
			b.roomAgain(t, s, change(2+i))
			if _, err := os.Stat(journalOf(b, i+1)); err != nil {
				t.Error(err)
			}
			if err := s.Checkpoint(context.Background()); err != nil { // the next commit makes another
				t.Fatal(err)
			}
		}
		b.closes(t, s)
	})
}

// TestFullDiskExtending: a journal has its space. Commits that fit in it go on when the
// disk is full; one that does not fit, or comes when the journal is full, needs space
// for the bundle.
func TestFullDiskExtending(t *testing.T) {
	eachDisk(t, func(t *testing.T, d smallDisk, b *bench, disk string) {
		s, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for r := range 2 {
			if _, err := s.Commit(context.Background(), change(r+1)); err != nil {
				t.Fatal(err)
			}
		}
		large := pawl.Change{ID: "large", Put: map[string][]byte{"large": make([]byte, 100<<10)}}
		free := fillUp(t, disk, 0)
		doubt := false
		made := 0 // the journal has 16 blocks, and two are taken
		for ; made < 14 && !doubt; made++ {
			c := pawl.Change{ID: fmt.Sprint("small ", made), Entries: [][]byte{[]byte("x")}}
			_, err := s.Commit(context.Background(), c)
			if err != nil && !d.inPlace {
				doubt = b.noRoom(t, s, c, false)
				break
			}
			if err != nil {
				t.Fatalf("commit %d in the journal: %v", made, err)
			}
			if made == 7 {
				doubt = b.noRoom(t, s, large, d.inPlace)
			}
		}
		t.Logf("%d commits when the disk is full; in doubt: %v", made, doubt)
		if !doubt && made == 14 {
			// What failed meanwhile may have given blocks back.
			again := fillUp(t, disk, 0)
			b.noRoom(t, s, pawl.Change{ID: "small 14", Entries: [][]byte{[]byte("x")}}, d.inPlace)
			if err := s.Checkpoint(context.Background()); d.inPlace && (!errors.Is(err, syscall.ENOSPC) || errors.Is(err, pawl.ErrInDoubt)) {
				t.Errorf("Checkpoint: %v", err)
			}
			again()
		}
		free()
		unix.Sync()
		b.roomAgain(t, s, large)
		b.closes(t, s)
	})
}

// TestFullDiskSettlingJournal: with an intent for the journal pending and no space,
// the store is not opened and nothing is changed; with space it is, as if nothing had
// been.
func TestFullDiskSettlingJournal(t *testing.T) {
	situations := func(t *testing.T) []journalSituation {
		one, _ := journalHistories(t)
		return append(journalSituations(t), journalSituation{name: "pending, the journal not made", m: one.old[2], says: one.says[1]})
	}
	eachDisk(t, func(t *testing.T, d smallDisk, b *bench, disk string) {
		for _, s := range situations(t) {
			b.layJournal(s.m)
			free := fillUp(t, disk, 0)
			before := testkit.Snapshot(t, b.dir, b.trust)
			for range 2 {
				store, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
				if err == nil {
					if got := dump(store.View()); got != s.says {
						t.Errorf("%s: opens with\n%s", s.name, got)
					}
					if err := store.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
						t.Errorf("%s: %v", s.name, err)
					}
					if s.name != "clean" && s.name != "pending, the journal not made" && d.inPlace {
						t.Errorf("%s: opens with no space to settle in", s.name)
					}
					break
				}
				typed(t, err, "open", nil, syscall.ENOSPC)
				sameFiles(t, before, testkit.Snapshot(t, b.dir, b.trust))
				if r, err := pawl.Inspect(context.Background(), b.dir, b.trust, nil); err != nil || r.Err != nil {
					t.Errorf("%s: Inspect: %+v, %v", s.name, r, err)
				}
			}
			free()
			unix.Sync()
			store, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
			if err != nil {
				t.Errorf("%s: with space again: %v", s.name, err)
				continue
			}
			if got := dump(store.View()); got != s.says {
				t.Errorf("%s: opens with\n%s", s.name, got)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
