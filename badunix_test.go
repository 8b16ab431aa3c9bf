//go:build unix

package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

func init() {
	impostors = append(impostors,
		impostor{"a FIFO", func(t *testing.T, path, _ string, _ []byte) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Skipf("no FIFOs here: %v", err)
			}
		}},
		impostor{"a symlink to a FIFO", func(t *testing.T, path, elsewhere string, _ []byte) {
			if err := unix.Mkfifo(elsewhere, 0o600); err != nil {
				t.Skipf("no FIFOs here: %v", err)
			}
			symlink(t, elsewhere, path)
		}},
		impostor{"a symlink to a device", func(t *testing.T, path, _ string, _ []byte) { symlink(t, "/dev/zero", path) }},
	)
}

// ---- as somebody who may not do everything --------------------------------------

// childOf is set in a process that again runs one of the tests of this package.
const childOf = "PAWL_TEST_CHILD_OF"

// runChild runs the calling test again, in a process of its own with the given
// attributes, and reports whether this is the process that has to go on.
func runChild(t *testing.T, attributes *syscall.SysProcAttr) (goOn bool) {
	t.Helper()
	if os.Getenv(childOf) == t.Name() {
		return true
	}
	// By descriptor: the directory that the program is in may be closed to the child.
	self, err := os.Executable()
	if err != nil {
		t.Skipf("the test's program is not known: %v", err)
	}
	f, err := os.Open(self)
	if err != nil {
		t.Skipf("the test's program cannot be opened: %v", err)
	}
	defer f.Close()
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprintf("-test.short=%v", testing.Short()))
	if attributes.Credential != nil && runtime.GOOS == "linux" {
		cmd.Path = "/proc/self/fd/3"
		cmd.ExtraFiles = []*os.File{f}
	}
	cmd.Env = append(os.Environ(), childOf+"="+t.Name())
	cmd.Dir = os.TempDir()
	cmd.SysProcAttr = attributes
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Skipf("no such process can be started here: %v", err)
	}
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "\n--- SKIP: "+t.Name()+" "):
		t.Skipf("in a process of its own:\n%s", out)
	case !strings.Contains(string(out), "\n--- PASS: "+t.Name()+" "):
		t.Errorf("nothing ran:\n%s", out)
	}
	return false
}

// unprivileged runs the calling test as nobody when it is root: nothing is closed to
// root.
func unprivileged(t *testing.T) (goOn bool) {
	t.Helper()
	if os.Getuid() != 0 {
		return true
	}
	for d := os.TempDir(); ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			t.Skipf("root, and nobody cannot reach the directory for temporary files: %v", err)
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	return runChild(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
}

// chmod sets a mode, and gives the old one back when the test ends, so that its
// directories can be removed.
func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(path, info.Mode()) })
}

// TestClosedToTheCaller: files and directories that the caller may not read, and
// locks that it may not write. The class is the operating system's; the hint says
// what is needed.
func TestClosedToTheCaller(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	one, _, _ := histories(t)
	for _, s := range append(situations(t), situation{"never committed to", one.clean[0], one.says[0], false}) {
		for _, tt := range []struct {
			name string
			path func(b *bench) string
			mode fs.FileMode
		}{
			{"the trust file may not be read", slotsOf, 0o200},
			{"the bundle may not be read", bundleOf, 0o200},
			{"the store directory may not be read", func(b *bench) string { return b.dir }, 0o300},
			{"the store directory may not be entered", func(b *bench) string { return b.dir }, 0o600},
			{"the trust directory may not be read", func(b *bench) string { return b.trust }, 0o300},
			{"the trust directory may not be entered", func(b *bench) string { return b.trust }, 0o600},
			{"nor what they are in", func(b *bench) string { return filepath.Dir(b.dir) }, 0},
			{"the trust lock may not be written", func(b *bench) string { return filepath.Join(b.trust, "session.lock") }, 0o400},
			{"the store lock may not be read", func(b *bench) string { return filepath.Join(b.dir, "lock") }, 0},
		} {
			t.Run(s.name+"/"+tt.name, func(t *testing.T) {
				b := newBench(t)
				b.lay(s.moment)
				path := tt.path(b)
				if _, err := os.Lstat(path); path == b.bundle && errors.Is(err, fs.ErrNotExist) {
					t.Skip("this situation has no bundle whose mode could be changed")
				}
				before := testkit.Snapshot(t, b.dir, b.trust)
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				chmod(t, path, tt.mode)
				for range 2 {
					_, err = pawl.Open(quick(), b.dir, b.trust, nil)
					typed(t, err, "open", nil, fs.ErrPermission, syscall.EACCES)
					if errors.Is(err, fs.ErrNotExist) {
						t.Errorf("not there, and not closed? %v", err)
					}
				}
				if r, err := pawl.Inspect(quick(), b.dir, b.trust, nil); err != nil && !errors.Is(err, fs.ErrPermission) {
					t.Errorf("Inspect: %v", err)
				} else if err == nil && !strings.HasSuffix(path, "lock") && (r.Verdict != "refuse" || !errors.Is(r.Err, fs.ErrPermission)) {
					t.Errorf("Inspect: %q, %v", r.Verdict, r.Err)
				}
				if err := os.Chmod(path, info.Mode()); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, testkit.Snapshot(t, b.dir, b.trust)); diff != "" {
					t.Errorf("files changed (-before +after):\n%s", diff)
				}
				b.opens(s.says)
			})
		}
	}
}

// TestReadOnlyDirectory: one in which nothing can be made or replaced, though the
// files in it can be written to (19).
func TestReadOnlyDirectory(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	one, _, _ := histories(t)
	for _, which := range []string{"store", "trust"} {
		pick := func(b *bench) string {
			if which == "store" {
				return b.dir
			}
			return b.trust
		}
		t.Run(which+" directory, nothing to settle", func(t *testing.T) {
			b := newBench(t)
			b.lay(one.clean[3])
			path := pick(b)
			chmod(t, path, 0o500)
			before := testkit.Snapshot(t, path)
			s, err := pawl.Open(quick(), b.dir, b.trust, nil)
			if err != nil {
				// Said at once.
				typed(t, err, "open", nil, fs.ErrPermission)
			} else {
				// Said at the first commit, which leaves the store usable.
				for range 2 {
					_, err = s.Commit(context.Background(), change(4))
					exactly(t, err, pawl.ErrNotCommitted, fs.ErrPermission)
				}
				if got := dump(s.View()); got != one.says[3] {
					t.Errorf("the view changed:\n%s", got)
				}
				sameFiles(t, before, testkit.Snapshot(t, path))
				if err := os.Chmod(path, 0o700); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Commit(context.Background(), change(4)); err != nil {
					t.Errorf("once it may be written to: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		t.Run(which+" directory, an intent to settle", func(t *testing.T) {
			b := newBench(t)
			b.lay(one.new[4])
			path := pick(b)
			chmod(t, path, 0o500)
			before := testkit.Snapshot(t, path)
			for range 2 {
				_, err := pawl.Open(quick(), b.dir, b.trust, nil)
				typed(t, err, "open", nil, fs.ErrPermission)
			}
			sameFiles(t, before, testkit.Snapshot(t, path))
			if err := os.Chmod(path, 0o700); err != nil {
				t.Fatal(err)
			}
			b.opens(one.says[4])
		})
		t.Run("what the new "+which+" directory would be in", func(t *testing.T) {
			for _, mode := range []fs.FileMode{0o500, 0o300, 0} {
				root := newRoot(t)
				mkdir(t, "closed")
				dir, trust := filepath.Join("closed", "a", "session"), "trust"
				if which == "trust" {
					dir, trust = "session", filepath.Join("closed", "a", "trust")
				}
				chmod(t, "closed", mode)
				_, err := pawl.Open(quick(), dir, trust, nil)
				if mode == 0o300 && err != nil {
					// It may be written to and not be flushed: whichever way that is taken,
					// it is not that the store is not there.
					typed(t, err, "open", nil, fs.ErrPermission)
					continue
				}
				typed(t, err, "open", nil, fs.ErrPermission)
				if err := os.Chmod("closed", 0o700); err != nil {
					t.Fatal(err)
				}
				if list, err := os.ReadDir("closed"); err != nil || len(list) != 0 {
					t.Errorf("mode %v: %v, %v", mode, list, err)
				}
				s, err := pawl.Open(quick(), filepath.Join(root, dir), filepath.Join(root, trust), nil)
				if err != nil {
					t.Fatalf("once it is open: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestTrustFileWriteProtected: by its mode, which a replaced file keeps. It may be
// written to all the same, or be refused, but it does not make a doubtful commit of
// one that was not begun.
func TestTrustFileWriteProtected(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	for _, s := range situations(t) {
		t.Run(s.name, func(t *testing.T) {
			b := newBench(t)
			b.lay(s.moment)
			chmod(t, b.slots, 0o400)
			store, err := pawl.Open(quick(), b.dir, b.trust, nil)
			if err != nil {
				typed(t, err, "open", nil, fs.ErrPermission)
			} else {
				if _, err = store.Commit(context.Background(), change(5)); err != nil {
					exactly(t, err, pawl.ErrNotCommitted, fs.ErrPermission)
				}
				s.says = dump(store.View())
				if err := store.Close(); err != nil && !errors.Is(err, fs.ErrPermission) {
					t.Error(err)
				}
			}
			if err := os.Chmod(b.slots, 0o600); err != nil {
				t.Fatal(err)
			}
			b.opens(s.says)
		})
	}
}

// sameFiles compares two pictures but for the lock files, in which a line says who
// opened the store last.
func sameFiles(t *testing.T, before, after testkit.Tree) {
	t.Helper()
	for _, tree := range []testkit.Tree{before, after} {
		for path := range tree {
			if name := filepath.Base(path); name == "lock" || strings.HasSuffix(name, ".lock") {
				delete(tree, path)
			}
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// TestFileSizeLimit: a disk that is full for this process alone. The error is the
// system's, and the store goes on where there is room: for a small bundle, and in a
// journal that is there.
func TestFileSizeLimit(t *testing.T) {
	if !runChild(t, &syscall.SysProcAttr{}) {
		return
	}
	bothWays(t, "commits", func(t *testing.T, opts *pawl.Options) {
		b := newBench(t)
		s, err := pawl.Open(quick(), b.dir, b.trust, opts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if _, err := s.Commit(context.Background(), change(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		says := dump(s.View())
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 32 << 10, Max: unix.RLIM_INFINITY}); err != nil {
			t.Skipf("no such limit here: %v", err)
		}
		large := pawl.Change{ID: "large", Put: map[string][]byte{"large": make([]byte, 64<<10)}}
		for range 2 {
			_, err = s.Commit(context.Background(), large)
			exactly(t, err, pawl.ErrNotCommitted, syscall.EFBIG)
		}
		if temps := testkit.Temps(t, filepath.Dir(b.dir)); temps != nil {
			t.Errorf("temps: %v", temps)
		}
		if got := dump(s.View()); got != says {
			t.Errorf("the view changed:\n%s", got)
		}
		if _, err := s.Commit(context.Background(), change(3)); err != nil {
			t.Errorf("a small one: %v", err)
		}
		half := pawl.Change{ID: "half", Put: map[string][]byte{"half": make([]byte, 30<<10)}}
		if opts == nil {
			// One that fits in the journal, and that the limit cuts off. It cannot be
			// taken back either: the limit is in the way of that too.
			_, err = s.Commit(context.Background(), half)
			exactly(t, err, pawl.ErrInDoubt, syscall.EFBIG)
		}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
			t.Fatal(err)
		}
		if rec, err := s.Recover(context.Background()); err != nil || opts == nil && rec.Settled != pawl.SettledNotLanded {
			t.Errorf("Recover: %v, %v", rec.Settled, err)
		}
		for _, c := range []pawl.Change{half, large} {
			if _, err := s.Commit(context.Background(), c); err != nil {
				t.Errorf("with the limit gone: %v", err)
			}
		}
		says = dump(s.View())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		b.opens(says)
	})
}

// TestDescriptorLimit: Open runs out of descriptors at each step in turn. Each time
// the error is the system's with a hint, nothing is lost, and nothing leaks (R7, 28).
func TestDescriptorLimit(t *testing.T) {
	if !runChild(t, &syscall.SysProcAttr{}) {
		return
	}
	one, _, _ := histories(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	set := func(n int) {
		l := limit
		if n >= 0 {
			setCur(&l, n)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range append(situations(t), situation{"never committed to", one.clean[0], one.says[0], false}) {
		b := newBench(t)
		b.lay(s.moment)
		// The lowest free one, and all below it are taken.
		f, err := os.Open(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		first := int(f.Fd())
		f.Close()
		failed := 0
		for n := first; ; n++ {
			set(n)
			store, err := pawl.Open(quick(), b.dir, b.trust, nil)
			set(-1)
			if err == nil {
				if got := dump(store.View()); got != s.says {
					t.Errorf("%s: opens with\n%s", s.name, got)
				}
				if err := store.Close(); err != nil {
					t.Error(err)
				}
				break
			}
			failed++
			typed(t, err, "open", nil, syscall.EMFILE)
			if t.Failed() || failed > 50 {
				t.Fatalf("%s: with %d descriptors more: %v", s.name, n-first, err)
			}
		}
		if failed < 4 {
			t.Errorf("%s: failed %d times only", s.name, failed)
		}
	}
}

// ---- owners and modes -----------------------------------------------------------

// TestTrustDirectoryOfOthers: who may write to the trust directory can make any state
// the trusted one, so a directory that others may write to is refused unless that is
// allowed, before anything is made in it.
func TestTrustDirectoryOfOthers(t *testing.T) {
	one, _, _ := histories(t)
	for _, tt := range []struct {
		name  string
		mode  fs.FileMode
		group int // -1: the caller's
		safe  bool
	}{
		{"nobody else", 0o700, -1, true},
		{"others may read", 0o755, -1, true},
		{"the caller's group", 0o770, -1, true},
		{"everyone", 0o777, -1, false},
		{"everyone, and sticky", 0o777 | fs.ModeSticky, -1, false},
		{"everyone, blindly", 0o702, -1, false},
		{"a foreign group", 0o770, 61234, false},
		{"a foreign group, to read", 0o750, 61234, true},
		{"a foreign group, inherited", 0o770 | fs.ModeSetgid, 61234, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, m := range []moment{{}, one.clean[3], one.old[4]} {
				b := newBench(t)
				b.lay(m)
				if m.trust == nil {
					for _, lock := range []string{filepath.Join(b.dir, "lock"), filepath.Join(b.trust, "session.lock")} {
						if err := os.Remove(lock); err != nil {
							t.Fatal(err)
						}
					}
				}
				if tt.group >= 0 {
					if err := os.Chown(b.trust, -1, tt.group); err != nil {
						t.Skipf("the group cannot be given away: %v", err)
					}
				}
				chmod(t, b.trust, tt.mode)
				if !tt.safe {
					b.refused(nil, nil, pawl.ErrInsecure)
				}
				for _, allow := range []pawl.Allowance{0, pawl.SharedTrust} {
					if allow == 0 && !tt.safe {
						continue
					}
					s, err := pawl.Open(quick(), b.dir, b.trust, &pawl.Options{Allow: allow})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
						t.Error(err)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestMadeOpenWhileOpen: the check is made when the store is opened, each time.
func TestMadeOpenWhileOpen(t *testing.T) {
	b, s := openBench(t, new(tap))
	chmod(t, b.trust, 0o777)
	if _, err := s.Commit(context.Background(), pawl.Change{ID: "a"}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.refused(nil, nil, pawl.ErrInsecure)
}

// TestModesOfContainers: a volume that everyone may write to, as containers have it,
// and a umask that takes little away. What pawl makes is its owner's alone.
func TestModesOfContainers(t *testing.T) {
	for _, umask := range []int{0o002, 0, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", umask), func(t *testing.T) {
			root := newRoot(t)
			volume := filepath.Join(root, "volume")
			mkdir(t, volume)
			chmod(t, volume, 0o777)
			// The umask is the process's. No other test runs beside this one.
			old := syscall.Umask(umask)
			defer syscall.Umask(old)
			s, err := pawl.Open(quick(), filepath.Join(volume, "a", "session"), filepath.Join(volume, "b", "trust"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for range 2 {
				if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
					t.Fatal(err)
				}
			}
			err = filepath.WalkDir(volume, func(path string, d fs.DirEntry, err error) error {
				if err != nil || path == volume {
					return err
				}
				info, err := d.Info()
				if err != nil {
					return err
				}
				want := fs.FileMode(0o600)
				if d.IsDir() {
					want = fs.ModeDir | 0o700
				}
				if info.Mode() != want {
					t.Errorf("%s: %v, want %v", path, info.Mode(), want)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			// The volume itself as the trust directory.
			_, err = pawl.Open(quick(), filepath.Join(root, "other"), volume, nil)
			typed(t, err, "open", pawl.ErrInsecure)
			shared, err := pawl.Open(quick(), filepath.Join(root, "other"), volume, &pawl.Options{Allow: pawl.SharedTrust})
			if err != nil {
				t.Fatal(err)
			}
			if err := shared.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSetgidDirectory: new files have the group of the directory, and no more rights
// for it than for others.
func TestSetgidDirectory(t *testing.T) {
	b := newBench(t)
	group := 61234
	if os.Getuid() != 0 {
		groups, err := os.Getgroups()
		i := slices.IndexFunc(groups, func(g int) bool { return g != os.Getegid() })
		if err != nil || i < 0 {
			t.Skip("not root, and in one group only")
		}
		group = groups[i]
	}
	for _, d := range []string{b.dir, b.trust} {
		if err := os.Chown(d, -1, group); err != nil {
			t.Fatal(err)
		}
		chmod(t, d, 0o750|fs.ModeSetgid)
	}
	s, err := pawl.Open(quick(), b.dir, b.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{b.bundle, b.slots, filepath.Join(b.dir, "lock")} {
			modeIs(t, path, 0o600)
		}
	}
}

func modeIs(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Error(err)
	} else if info.Mode() != want {
		t.Errorf("%s: mode %v, want %v", path, info.Mode(), want)
	}
}

func groupOf(t *testing.T, path string) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Gid)
}

// TestReplacedFileKeepsModeAndGroup: by commits, by settling, and when the store is
// opened again.
func TestReplacedFileKeepsModeAndGroup(t *testing.T) {
	one, _, _ := histories(t)
	for _, mode := range []fs.FileMode{0o640, 0o600, 0o664, 0o400} {
		b := newBench(t)
		b.lay(one.old[4]) // to be settled: both files are made anew
		group := os.Getegid()
		if os.Getuid() == 0 {
			group = 61234
		}
		for _, path := range []string{b.bundle, b.slots} {
			if err := errors.Join(os.Chown(path, -1, group), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
		}
		check := func(when string) {
			t.Helper()
			for _, path := range []string{b.bundle, b.slots} {
				modeIs(t, path, mode)
				if g := groupOf(t, path); g != group {
					t.Errorf("%s: %s: group %d, want %d", when, path, g, group)
				}
			}
		}
		if mode == 0o400 && os.Getuid() != 0 {
			continue // only root can write in place to what it made so
		}
		// The group of the trust file is one that the caller is not in.
		s, err := pawl.Open(quick(), b.dir, b.trust, &pawl.Options{Allow: pawl.SharedTrust})
		if err != nil {
			t.Fatal(err)
		}
		check("settled")
		for range 2 {
			if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
				t.Fatal(err)
			}
			check("committed")
		}
		// Changed while the store is open: the next commit keeps that too.
		if err := os.Chmod(b.bundle, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
			t.Fatal(err)
		}
		modeIs(t, b.bundle, 0o644)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestModeBitsAreNotInherited: set-id and sticky bits are not passed on.
func TestModeBitsAreNotInherited(t *testing.T) {
	b, s := openBenchWith(t, new(tap), publishing)
	if err := os.Chmod(b.bundle, 0o640|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky); err != nil {
		t.Skipf("no such bits here: %v", err)
	}
	if _, err := s.Commit(context.Background(), pawl.Change{Entries: [][]byte{nil}}); err != nil {
		t.Fatal(err)
	}
	modeIs(t, b.bundle, 0o640)
}

// setCur sets the soft limit, whose type is not the same on every system.
func setCur(l *unix.Rlimit, n int) { setNumber(&l.Cur, n) }

func setNumber[N int64 | uint64](to *N, n int) { *to = N(n) }
