//go:build linux

package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

func init() {
	node := func(kind uint32, major, minor uint32) func(t *testing.T, path, _ string, _ []byte) {
		return func(t *testing.T, path, _ string, _ []byte) {
			if err := unix.Mknod(path, kind|0o600, int(unix.Mkdev(major, minor))); err != nil {
				t.Skipf("no such node can be made: %v", err)
			}
		}
	}
	impostors = append(impostors,
		impostor{"a character device", node(unix.S_IFCHR, 1, 5)},              // zero
		impostor{"a character device that is full", node(unix.S_IFCHR, 1, 7)}, // full
		impostor{"a block device", node(unix.S_IFBLK, 7, 200)},                // a loop device that is not there
		impostor{"a socket", func(t *testing.T, path, _ string, _ []byte) {
			// By a short name: the path of a socket has a hundred bytes at most.
			t.Chdir(filepath.Dir(path))
			l, err := net.Listen("unix", filepath.Base(path))
			if err != nil {
				t.Skipf("no sockets here: %v", err)
			}
			t.Cleanup(func() { l.Close() })
		}},
	)
}

// mounts runs the calling test in a process that may mount what it likes, where
// nobody else sees it and nothing of it is left.
func mounts(t *testing.T) (goOn bool) {
	t.Helper()
	attributes := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		attributes = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}
	return runChild(t, attributes)
}

// mount skips the test where nothing can be mounted.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	mkdir(t, target)
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		t.Skipf("%s cannot be mounted here, by uid %d: %v", kind, os.Getuid(), err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// fill takes all space of a file system but for some bytes; what it returns gives it
// back.
func fill(t *testing.T, dir string, left int64) (free func()) {
	t.Helper()
	f, err := os.CreateTemp(dir, "filler-")
	if errors.Is(err, syscall.ENOSPC) {
		return func() {}
	}
	if err != nil {
		t.Fatal(err)
	}
	name := f.Name()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling up: %v", err)
	}
	if left > 0 {
		info, err := f.Stat()
		if err == nil {
			err = f.Truncate(info.Size() - left)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// small mounts a small file system under the store directory, the trust directory or
// both, and returns a bench in it and the mount points that are small. Both have room
// for the files of the moment three times over.
func small(t *testing.T, which string) (*bench, []string) {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	root := filepath.Dir(dir)
	var full []string
	for _, d := range []*string{&dir, &trust} {
		kind := filepath.Base(*d)
		*d = filepath.Join(root, kind+"-disk", kind)
		if which == kind || which == "both" {
			mount(t, "tmpfs", filepath.Dir(*d), "tmpfs", 0, "size=128k")
			full = append(full, filepath.Dir(*d))
		}
		mkdir(t, *d)
	}
	return &bench{t, dir, trust, filepath.Join(dir, "bundle"), filepath.Join(trust, "session.trust")}, full
}

var disks = []string{"session", "trust", "both"}

// TestFullDiskCommit: commits go on until a disk is full. The error is certain, the
// state is what it was, no temp is left, and with space the store goes on (8).
func TestFullDiskCommit(t *testing.T) {
	if !mounts(t) {
		return
	}
	t.Run("publish", func(t *testing.T) { fullDiskCommit(t, &pawl.Options{CheckpointEvery: 1}) })
	t.Run("extend", func(t *testing.T) { fullDiskCommit(t, nil) })
}

func fullDiskCommit(t *testing.T, opts *pawl.Options) {
	for _, which := range disks {
		t.Run("grown full/"+which, func(t *testing.T) {
			b, full := small(t, which)
			s, err := pawl.Open(context.Background(), b.dir, b.trust, opts)
			if err != nil {
				t.Fatal(err)
			}
			free := func() {}
			if which == "trust" {
				// The trust file does not grow; only its replacement needs space. That is
				// with the first record of a process.
				free = fill(t, full[0], 0)
			}
			commits := 0
			for ; ; commits++ {
				_, err = s.Commit(context.Background(), pawl.Change{Entries: [][]byte{make([]byte, 5000)}})
				if err != nil || commits == 100 {
					break
				}
			}
			if commits == 100 || commits == 0 && which != "trust" {
				t.Fatalf("%d commits", commits)
			}
			b.full(t, s, full)
			exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
			if which == "trust" {
				free()
			} else {
				// There is less to hold now. (Nothing else can be taken away: history only grows.)
				remount(t, full, "size=1m")
			}
			b.goesOn(t, s, commits)
		})
		for _, left := range []int64{0, 4096, 8192, 12288} {
			t.Run(fmt.Sprintf("filled but for %d bytes/%s", left, which), func(t *testing.T) {
				b, full := small(t, which)
				s, err := pawl.Open(context.Background(), b.dir, b.trust, opts)
				if err != nil {
					t.Fatal(err)
				}
				// The first record of this process, or a later one.
				for commits := range 2 {
					var frees []func()
					for _, d := range full {
						frees = append(frees, fill(t, d, left))
					}
					_, err = s.Commit(context.Background(), pawl.Change{Entries: [][]byte{make([]byte, 16000)}})
					if which == "trust" && commits > 0 {
						// In place, in a file that is there whole: no space is needed.
						if err != nil {
							t.Errorf("a record in place: %v", err)
						}
					} else {
						exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
						if e := (*pawl.Error)(nil); errors.As(err, &e) && e.Hint == "" {
							t.Errorf("no hint: %v", err)
						}
						b.full(t, s, full)
					}
					for _, f := range frees {
						f()
					}
					if _, err = s.Commit(context.Background(), pawl.Change{ID: fmt.Sprint(commits)}); err != nil {
						t.Fatalf("with space again: %v", err)
					}
				}
				want := dump(s.View())
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				b.opens(want)
			})
		}
	}
}

// full checks that a store that failed for want of space is what it was, several
// commits on.
func (b *bench) full(t *testing.T, s *pawl.Store, disks []string) {
	t.Helper()
	says := dump(s.View())
	before := testkit.Snapshot(t, b.bundle)
	for range 3 {
		_, err := s.Commit(context.Background(), pawl.Change{ID: "no room", Entries: [][]byte{make([]byte, 16000)}})
		exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
		if _, outcome, err := s.Lookup(context.Background(), "no room"); outcome != pawl.OutcomeNotCommitted || err != nil {
			t.Errorf("Lookup: %v, %v", outcome, err)
		}
	}
	if got := dump(s.View()); got != says {
		t.Errorf("the view changed:\n%s", got)
	}
	if diff := cmp.Diff(before, testkit.Snapshot(t, b.bundle)); diff != "" {
		t.Errorf("the bundle changed (-before +after):\n%s", diff)
	}
	if temps := testkit.Temps(t, filepath.Dir(filepath.Dir(b.dir))); temps != nil {
		t.Errorf("temps: %v", temps)
	}
	if err := s.Verify(context.Background(), nil); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

func (b *bench) goesOn(t *testing.T, s *pawl.Store, commits int) {
	t.Helper()
	r, err := s.Commit(context.Background(), pawl.Change{ID: "no room", Entries: [][]byte{make([]byte, 16000)}})
	if err != nil || r.Revision != pawl.Revision(commits+1) {
		t.Fatalf("with space again: %v, %v", r, err)
	}
	want := dump(s.View())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.opens(want)
}

func remount(t *testing.T, disks []string, data string) {
	t.Helper()
	for _, d := range disks {
		if err := unix.Mount("tmpfs", d, "tmpfs", unix.MS_REMOUNT, data); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDiskOpen: with an intent pending and no space, the store is not opened and
// nothing is changed; with space it is, as if nothing had been (8, and "repair itself
// needed space"). With nothing pending it needs none.
func TestFullDiskOpen(t *testing.T) {
	if !mounts(t) {
		return
	}
	one, _, _ := histories(t)
	for _, which := range disks {
		for _, s := range append(situations(t),
			situation{"pending, nothing there", one.old[1], one.says[0], true},
			situation{"pending, the first there", one.new[1], one.says[1], true}) {
			for _, left := range []int64{0, 4096, 8192} {
				t.Run(fmt.Sprintf("%s/%s/%d bytes left", which, s.name, left), func(t *testing.T) {
					b, full := small(t, which)
					b.lay(s.moment)
					var frees []func()
					for _, d := range full {
						frees = append(frees, fill(t, d, left))
					}
					before := testkit.Snapshot(t, b.dir, b.trust)
					switch store, err := pawl.Open(context.Background(), b.dir, b.trust, nil); {
					case err == nil && s.pending && (which != "session" || left == 0 && s.bundle != nil):
						store.Close()
						t.Fatal("opens with no space to settle in")
					case err == nil:
						if got := dump(store.View()); got != s.says {
							t.Errorf("opens with\n%s", got)
						}
						_, err := store.Commit(context.Background(), pawl.Change{Entries: [][]byte{make([]byte, 16000)}})
						exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
						// Whether the end can be marked depends on where there is space.
						if err := store.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
							t.Error(err)
						}
					default:
						if !s.pending {
							t.Errorf("with nothing to settle: %v", err)
						}
						for range 3 {
							_, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
							typed(t, err, "open", nil, syscall.ENOSPC)
						}
						sameFiles(t, before, testkit.Snapshot(t, b.dir, b.trust))
						// It is described all the same.
						if r, err := pawl.Inspect(context.Background(), b.dir, b.trust, nil); err != nil || r.Err != nil || r.Pending == (pawl.Root{}) {
							t.Errorf("Inspect: %+v, %v", r, err)
						}
					}
					for _, f := range frees {
						f()
					}
					b.opens(s.says)
				})
			}
		}
	}
}

// TestFullDiskCreate: a store that there is no space for is not made, and can be made
// when there is.
func TestFullDiskCreate(t *testing.T) {
	if !mounts(t) {
		return
	}
	for _, which := range disks {
		for _, left := range []int64{0, 4096, 16384} {
			t.Run(fmt.Sprintf("%s, %d bytes left", which, left), func(t *testing.T) {
				b, full := small(t, which)
				var frees []func()
				for _, d := range full {
					frees = append(frees, fill(t, d, left))
				}
				s, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
				if err == nil {
					_, err = s.Commit(context.Background(), pawl.Change{Entries: [][]byte{make([]byte, 32000)}})
					exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
					if err := s.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
						t.Error(err)
					}
				} else {
					typed(t, err, "open", nil, syscall.ENOSPC)
				}
				for _, f := range frees {
					f()
				}
				s, err = pawl.Open(context.Background(), b.dir, b.trust, nil)
				if err != nil {
					t.Fatalf("with space again: %v", err)
				}
				if v := s.View().Version(); v.Revision != 0 {
					t.Errorf("a new store is at %s", v)
				}
				if _, err := s.Commit(context.Background(), change(1)); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestNoInodes: a disk with space, and no room for another file. Every file is
// replaced by way of a new one.
func TestNoInodes(t *testing.T) {
	if !mounts(t) {
		return
	}
	for _, which := range disks {
		for _, s := range situations(t) {
			t.Run(which+"/"+s.name, func(t *testing.T) {
				b, full := small(t, which)
				b.lay(s.moment)
				remount(t, full, "nr_inodes=30")
				taken := map[string]int{}
				for _, d := range full {
					for i := 0; ; i++ {
						f, err := os.Create(filepath.Join(d, fmt.Sprint("filler", i)))
						if err == nil && i < 100 {
							f.Close()
							continue
						}
						if !errors.Is(err, syscall.ENOSPC) {
							t.Fatalf("%d files: %v", i, err)
						}
						taken[d] = i
						break
					}
				}
				before := testkit.Snapshot(t, b.dir, b.trust)
				store, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
				if s.pending {
					typed(t, err, "open", nil, syscall.ENOSPC)
				} else if err != nil {
					t.Error(err)
				}
				if err == nil {
					_, err = store.Commit(context.Background(), change(4))
					exactly(t, err, pawl.ErrNotCommitted, syscall.ENOSPC)
					if err := store.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
						t.Error(err)
					}
				} else if which != "session" {
					sameFiles(t, before, testkit.Snapshot(t, b.dir, b.trust))
				}
				for d, n := range taken {
					for i := range n {
						os.Remove(filepath.Join(d, fmt.Sprint("filler", i)))
					}
				}
				b.opens(s.says)
			})
		}
	}
}

// TestReadOnlyMount: a file system that may not be written to. The error is the
// system's; nothing is changed, obviously, and the hint says what is needed.
func TestReadOnlyMount(t *testing.T) {
	if !mounts(t) {
		return
	}
	for _, which := range disks {
		for _, s := range situations(t) {
			t.Run(which+"/"+s.name, func(t *testing.T) {
				b := newBench(t)
				b.lay(s.moment)
				for _, d := range []string{b.dir, b.trust} {
					if which == filepath.Base(d) || which == "both" {
						mount(t, d, d, "", unix.MS_BIND, "")
						if err := unix.Mount("", d, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
							t.Skipf("nothing can be mounted to be read only: %v", err)
						}
					}
				}
				other := b.trust
				if which == "trust" {
					other = b.dir
				}
				before := testkit.Snapshot(t, other)
				for range 2 {
					_, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
					typed(t, err, "open", nil, syscall.EROFS)
				}
				sameFiles(t, before, testkit.Snapshot(t, other))
				r, err := pawl.Inspect(context.Background(), b.dir, b.trust, nil)
				if err != nil || r.Verdict == "refuse" {
					t.Errorf("Inspect: %+v, %v", r, err)
				}
			})
		}
	}
	t.Run("what the new directories would be in", func(t *testing.T) {
		root := newRoot(t)
		mkdir(t, "fixed")
		fixed := filepath.Join(root, "fixed")
		mount(t, fixed, fixed, "", unix.MS_BIND, "")
		if err := unix.Mount("", fixed, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Skipf("nothing can be mounted to be read only: %v", err)
		}
		_, err := pawl.Open(context.Background(), "session", filepath.Join("fixed", "trust"), nil)
		typed(t, err, "open", nil, syscall.EROFS)
		_, err = pawl.Open(context.Background(), filepath.Join("fixed", "session"), "trust", nil)
		typed(t, err, "open", nil, syscall.EROFS)
	})
}

// TestBoundFiles: a single file that is mounted into a container cannot be replaced
// by rename. The hint says to mount the directory instead; the file is not written to
// in place (19).
func TestBoundFiles(t *testing.T) {
	if !mounts(t) {
		return
	}
	one, _, _ := histories(t)
	for _, name := range []string{"bundle", "session.trust"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.lay(one.clean[3])
			path := b.bundle
			if name != "bundle" {
				path = b.slots
			}
			if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
				t.Skipf("nothing can be mounted here: %v", err)
			}
			was := read(t, path)
			s, err := pawl.Open(context.Background(), b.dir, b.trust, &pawl.Options{CheckpointEvery: 1})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err = s.Commit(context.Background(), change(4))
				e := exactly(t, err, pawl.ErrNotCommitted, syscall.EBUSY)
				if !strings.Contains(e.Hint, "mount its directory") {
					t.Errorf("hint %q", e.Hint)
				}
			}
			if string(was) != string(read(t, path)) {
				t.Error("the file was written to")
			}
			if err := s.Close(); err != nil && !errors.Is(err, syscall.EBUSY) {
				t.Error(err)
			}
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			b.opens(one.says[3])
		})
	}
}

// TestBoundDirectories: a bind mount gives one directory two names. They are told to
// be one by identity.
func TestBoundDirectories(t *testing.T) {
	if !mounts(t) {
		return
	}
	for _, tt := range []struct{ name, dir, trust string }{
		{"the same", "place", "alias"},
		{"inside", "place", "alias/trust"},
		{"above", "alias/session", "place"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := newRoot(t)
			mkdir(t, "place")
			mount(t, "place", "alias", "", unix.MS_BIND, "")
			unplaced(t, root, tt.dir, tt.trust, &pawl.Options{Name: "x"}, pawl.ErrInsecure)
		})
	}
}

// TestTwoFileSystems: the two directories need not be on one, and a mount in the
// place of one while the store is open is another directory.
func TestTwoFileSystems(t *testing.T) {
	if !mounts(t) {
		return
	}
	b, _ := small(t, "trust")
	s, err := pawl.Open(context.Background(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Commit(context.Background(), change(1)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{b.dir, b.trust} {
		if err := unix.Mount("tmpfs", d, "tmpfs", 0, "size=64k"); err != nil {
			t.Skipf("nothing can be mounted here: %v", err)
		}
		b.stale(s)
		if list, err := os.ReadDir(d); err != nil || len(list) != 0 {
			t.Errorf("in the mount: %v, %v", list, err)
		}
		if err := unix.Unmount(d, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(context.Background(), pawl.Change{ID: "on " + filepath.Base(d)}); err != nil {
			t.Errorf("with the mount gone: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(b.trust, "session.trust")); errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
