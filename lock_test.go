//go:build unix || windows

package pawl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// childHold opens the store and holds it until its input ends.
func childHold(job childJob) error {
	s, err := Open(context.Background(), filepath.Join(job.Base, "session"), filepath.Join(job.Base, "trust"), nil)
	if err != nil {
		return err
	}
	fmt.Println("open", s.View().Version().Revision)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Close()
}

// childCount opens the store and counts one on, again and again. Between Open and
// Close nobody else may be in there.
func childCount(job childJob) error {
	ctx := context.Background()
	mark := filepath.Join(job.Base, "somebody is in there")
	for range job.Times {
		s, err := Open(ctx, filepath.Join(job.Base, "session"), filepath.Join(job.Base, "trust"), &Options{LockWait: time.Minute})
		if err != nil {
			return err
		}
		f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		f.Close()
		r, err := s.Update(ctx, "", func(v View) (Change, error) {
			n, _, err := GetJSON[int](v, "count")
			var c Change
			c.Entries = [][]byte{fmt.Append(nil, os.Getpid())}
			c.SetJSON("count", n+1)
			return c, err
		})
		if err = errors.Join(err, os.Remove(mark), s.Close()); err != nil {
			return err
		}
		fmt.Println("ack", int(r.Revision))
	}
	return nil
}

// holdStore starts a child that holds the store.
func holdStore(t testing.TB, r *rig) *child {
	t.Helper()
	c := startChild(t, childJob{Do: "hold", Base: r.base})
	if line := c.line(); !strings.HasPrefix(line, "open ") {
		t.Fatalf("the child that should hold the store said %q", line)
	}
	return c
}

// checkLocked fails unless err says who holds the store.
func checkLocked(t testing.TB, err error, lock string, owner string) {
	t.Helper()
	var e *Error
	if !errors.Is(err, ErrLocked) || !errors.As(err, &e) || e.Path != lock || e.Hint == "" || !strings.Contains(err.Error(), owner) {
		t.Errorf("got %v; want ErrLocked for %s, held by %s", err, lock, owner)
	}
}

func TestLockTwoProcesses(t *testing.T) {
	r := newRig(t)
	r.prepare("one")
	before := r.bytes()
	c := holdStore(t, r)
	owner := fmt.Sprintf("pid %d ", c.cmd.Process.Pid)
	for range 20 {
		_, err := r.open()
		checkLocked(t, err, filepath.Join(r.trust, "session.lock"), owner)
	}
	if diff := cmp.Diff(before, r.bytes()); diff != "" {
		t.Errorf("an Open that was locked out changed something: %s", diff)
	}
	testkit.NothingLeft(t, r.base) // 28: not even when refused

	// Another Open of this process is no different.
	c.in.Close()
	if said := c.wait(); !slices.Equal(said, []string{"done"}) {
		t.Fatalf("the holder: %v", said)
	}
	s := r.mustOpen()
	defer s.Close()
	_, err := r.open()
	checkLocked(t, err, filepath.Join(r.trust, "session.lock"), fmt.Sprintf("pid %d ", os.Getpid()))
	if err := commitNth(r.ctx(), s, 2); err != nil {
		t.Errorf("the holder, after somebody tried: %v", err)
	}
}

// TestLockOfTheDead: 27, a lock is the kernel's, and whoever was killed has none.
func TestLockOfTheDead(t *testing.T) {
	r := newRig(t)
	r.prepare("one")
	for i := range 3 {
		holdStore(t, r).kill()
		opts := &Options{}
		if onWindows {
			opts.LockWait = time.Minute // Windows says that it unlocks when it comes to it
		}
		s, err := Open(r.ctx(), r.dir, r.trust, opts)
		if err != nil {
			t.Fatalf("after the holder was killed: %v", err)
		}
		if err := errors.Join(commitNth(r.ctx(), s, 2+i), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLockInherited: 25, a process that was started meanwhile has no part in the lock.
func TestLockInherited(t *testing.T) {
	r, other := newRig(t), newRig(t)
	other.prepare("one")
	s := r.mustOpen()
	c := holdStore(t, other)
	defer c.kill()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := r.open()
	if err != nil {
		t.Fatalf("a child of the process that had the lock: %v", err)
	}
	s.Close()
}

// onTry returns a hook that calls f when the lock is tried for the nth time: then it
// has been waited for.
func onTry(n int, f func()) faultfs.Hook {
	p := &faultfs.Plan{N: n, Action: faultfs.Action{Before: f}, Only: func(c faultfs.Call) bool { return c.Op == "TryLock" }}
	return p.Hook
}

func TestLockWait(t *testing.T) {
	r := newRig(t)
	r.prepare("one")
	wait := func(ctx context.Context, d time.Duration) (*Store, error) {
		return Open(r.fs.Context(ctx), r.dir, r.trust, &Options{LockWait: d})
	}
	t.Run("until it is given up", func(t *testing.T) {
		c := holdStore(t, r)
		r.fs.Set(onTry(3, func() {
			c.in.Close()
			c.wait()
		}))
		s, err := wait(context.Background(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(checkNth(s.View(), 1), s.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Run("until it is killed", func(t *testing.T) {
		c := holdStore(t, r)
		r.fs.Set(onTry(3, func() { c.kill() }))
		s, err := wait(context.Background(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	})
	t.Run("too long", func(t *testing.T) {
		c := holdStore(t, r)
		defer c.kill()
		r.fs.Set(nil)
		_, err := wait(context.Background(), 5*time.Millisecond)
		checkLocked(t, err, filepath.Join(r.trust, "session.lock"), fmt.Sprintf("pid %d ", c.cmd.Process.Pid))
	})
	t.Run("until the context ends", func(t *testing.T) {
		c := holdStore(t, r)
		defer c.kill()
		ctx, cancel := context.WithCancelCause(context.Background())
		why := errors.New("enough")
		r.fs.Set(onTry(3, func() { cancel(why) }))
		if _, err := wait(ctx, time.Hour); !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, ErrLocked) {
			t.Errorf("an Open that was cancelled: %v", err)
		}
		testkit.NothingLeft(t, r.base)
	})
}

// grab takes one lock, as another process would.
func grab(t testing.TB, dir, name string) (release func()) {
	t.Helper()
	d, err := vfs.OS().OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.OpenLock(name)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.TryLock(); !ok || err != nil {
		t.Fatalf("%s/%s: %v, %v", dir, name, ok, err)
	}
	return func() {
		if err := errors.Join(f.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestLockOrder holds one of the two locks and not the other. Trust is taken first;
// without both nothing is written, and none is kept.
func TestLockOrder(t *testing.T) {
	r := newRig(t)
	r.prepare("landed")
	before := testkit.Snapshot(t, r.dir, r.trust)
	for _, held := range []struct {
		dir, name string
		want      []string
	}{
		{r.trust, "session.lock", []string{"trust/session.lock OpenLock"}},
		{r.dir, "lock", []string{"trust/session.lock OpenLock", "session/lock OpenLock"}},
	} {
		release := grab(t, held.dir, held.name)
		r.fs.Set(nil)
		_, err := r.open()
		checkLocked(t, err, filepath.Join(held.dir, held.name), "held by")
		if diff := cmp.Diff(held.want, trace(r.fs.Calls())); diff != "" {
			t.Errorf("with %s held (-want +got): %s", held.name, diff)
		}
		if diff := cmp.Diff(before, testkit.Snapshot(t, r.dir, r.trust)); diff != "" {
			t.Errorf("with %s held it changed something: %s", held.name, diff)
		}
		if held.name == lockName {
			grab(t, r.trust, "session.lock")() // is free
		}
		release()
	}
	s := r.mustOpen()
	defer s.Close()
	if err := checkNth(s.View(), 2); err != nil {
		t.Error(err)
	}
}

// TestLockOwnerIsText: R22, what stands in a lock file was written by anybody.
func TestLockOwnerIsText(t *testing.T) {
	r := newRig(t)
	r.prepare("one")
	defer grab(t, r.trust, "session.lock")()
	for _, line := range []string{"\x1b[31mpid 1\r\n\x00\u202e\u009b evil", strings.Repeat("x", 1<<20), "\xff\xfe", ""} {
		if err := os.WriteFile(filepath.Join(r.trust, "session.lock"), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.open()
		if text := fmt.Sprint(err); !errors.Is(err, ErrLocked) || strings.ContainsAny(text, "\x1b\r\n\x00\u202e\u009b\ufffd") || len(text) > 2000 {
			t.Errorf("owner %.40q: %q", line, text)
		}
	}
}

// TestLockNames: stores that share a trust directory do not share a lock.
func TestLockNames(t *testing.T) {
	r := newRig(t)
	a := r.mustOpen()
	defer a.Close()
	b, err := Open(r.ctx(), filepath.Join(r.base, "other"), r.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// And one store directory under two names in the trust directory is one store.
	_, err = Open(r.ctx(), r.dir, r.trust, &Options{Name: "alias"})
	checkLocked(t, err, filepath.Join(r.dir, "lock"), fmt.Sprintf("pid %d ", os.Getpid()))
	if err := errors.Join(commitNth(r.ctx(), a, 1), commitNth(r.ctx(), b, 1)); err != nil {
		t.Error(err)
	}
}

// TestLockRace lets processes race to create one store and to count in it.
func TestLockRace(t *testing.T) {
	processes, times := 4, 6
	if testing.Short() {
		processes, times = 3, 3
	}
	r := newRig(t)
	var children []*child
	for range processes {
		children = append(children, startChild(t, childJob{Do: "count", Base: r.base, Times: times}))
	}
	var acks []string
	for _, c := range children {
		said := c.wait()
		if len(said) != times+1 || said[times] != "done" {
			t.Errorf("a child: %v", said)
		}
		acks = append(acks, said[:min(len(said), times)]...)
	}
	var want []string
	for i := range processes * times {
		want = append(want, fmt.Sprint("ack ", i+1))
	}
	slices.Sort(acks)
	slices.Sort(want)
	if diff := cmp.Diff(want, acks); diff != "" {
		t.Errorf("acknowledged (-want +got): %s", diff)
	}
	s := r.mustOpen()
	defer s.Close()
	n, _, err := GetJSON[int](s.View(), "count")
	if err != nil || n != processes*times || int(s.View().Version().Revision) != n {
		t.Errorf("counted %d, revision %d, error %v; want %d", n, s.View().Version().Revision, err, processes*times)
	}
	if rec := s.Recovery(); rec.Unclean || rec.Swept != nil {
		t.Errorf("the last one left %+v", rec)
	}
}

// oddFS is a machine with file systems that cannot do everything.
type oddFS struct {
	vfs.FS
	where     func(path string) bool // which directories are odd
	system    vfs.FileSystem
	noDirSync bool
	everybody bool // can take every lock
}

type oddDir struct {
	vfs.Dir
	fs oddFS
}

type oddFile struct{ vfs.File }

func (o oddFS) OpenDir(path string) (vfs.Dir, error) {
	d, err := o.FS.OpenDir(path)
	if err != nil || !o.where(path) {
		return d, err
	}
	return oddDir{d, o}, nil
}

func (d oddDir) System() (vfs.FileSystem, error) { return d.fs.system, nil }

func (d oddDir) Sync() error {
	if d.fs.noDirSync {
		return vfs.ErrNoDirSync
	}
	return d.Dir.Sync()
}

func (d oddDir) OpenLock(name string) (vfs.File, error) {
	f, err := d.Dir.OpenLock(name)
	if err == nil && d.fs.everybody {
		return oddFile{f}, nil
	}
	return f, err
}

func (oddFile) TryLock() (bool, error) { return true, nil }

// TestFileSystems opens and makes stores on file systems that lack something. What
// is not allowed is refused before a lock is touched: on some such file systems a
// lock call never returns (26).
func TestFileSystems(t *testing.T) {
	nfs := vfs.FileSystem{Type: "nfs", Class: vfs.Network}
	fuse := vfs.FileSystem{Type: "fuse", Class: vfs.Probed}
	ext4 := vfs.FileSystem{Type: "ext4", Class: vfs.Local}
	for _, tt := range []struct {
		name   string
		odd    oddFS
		allow  Allowance
		opens  bool
		locks  bool // that is found out with the lock, or after it
		dir    bool // Durability.Dir of the odd directory
		warned string
	}{
		{name: "network", odd: oddFS{system: nfs}},
		{name: "network, allowed other things", odd: oddFS{system: nfs}, allow: NoDirSync | SharedTrust},
		{name: "network, allowed", odd: oddFS{system: nfs}, allow: NetworkFS, opens: true, dir: true},
		{name: "network, allowed, without locks", odd: oddFS{system: nfs, everybody: true}, allow: NetworkFS, locks: true},
		{name: "unknown", odd: oddFS{system: fuse}, opens: true, dir: true},
		{name: "unknown, without locks", odd: oddFS{system: fuse, everybody: true}, locks: true},
		{name: "no directory flush", odd: oddFS{system: ext4, noDirSync: true}, locks: true},
		{name: "no directory flush, allowed other things", odd: oddFS{system: ext4, noDirSync: true}, allow: NetworkFS | SharedTrust, locks: true},
		{name: "no directory flush, allowed", odd: oddFS{system: ext4, noDirSync: true}, allow: NoDirSync, opens: true, warned: "flushed"},
	} {
		for _, which := range []string{"session", "trust"} {
			for _, from := range []string{"nothing", "one", "landed"} {
				if onWindows && testing.Short() && from == "landed" {
					continue // takes long under Wine, and what is tested is the same code
				}
				t.Run(strings.Join([]string{tt.name, which, from}, "/"), func(t *testing.T) {
					made := newRig(t)
					made.prepare(from)
					tt.odd.FS = vfs.OS()
					tt.odd.where = func(path string) bool { return filepath.Base(path) == which }
					r := rigAt(t, made.base, tt.odd, "trust") // flushes are done here: they answer
					r.fs.NoFlush = false
					before := testkit.Snapshot(t, r.dir, r.trust)
					var log bytes.Buffer
					opts := &Options{Allow: tt.allow, Logger: slog.New(slog.NewTextHandler(&log, nil))}
					s, err := Open(r.ctx(), r.dir, r.trust, opts)
					if tt.opens {
						if err != nil {
							t.Fatal(err)
						}
						stats := s.Stats()
						odd, other := stats.Trust, stats.Store
						if which == "session" {
							odd, other = stats.Store, stats.Trust
						}
						want := Durability{FileSystem: tt.odd.system.Type, Known: tt.odd.system.Class == vfs.Local, Dir: tt.dir}
						if odd != want || !other.Dir {
							t.Errorf("durability %+v, want %+v; of the other directory %+v", odd, want, other)
						}
						if !strings.Contains(log.String(), tt.warned) {
							t.Errorf("the log does not say %q: %s", tt.warned, &log)
						}
						n := int(s.View().Version().Revision)
						if err := errors.Join(checkNth(s.View(), n), commitNth(r.ctx(), s, n+1), commitNth(r.ctx(), s, n+2), s.Close()); err != nil {
							t.Error(err)
						}
						return
					}
					var e *Error
					if !errors.Is(err, ErrUnsupported) || !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &e) || e.Hint == "" {
						t.Fatalf("got %v; want ErrUnsupported with a hint", err)
					}
					for _, c := range r.fs.Calls() {
						if (c.Op == "OpenLock" || c.Op == "TryLock") && strings.HasPrefix(c.Path, which) && !tt.locks {
							t.Errorf("a lock was touched: %s", c)
						}
					}
					after := testkit.Snapshot(t, r.dir, r.trust)
					if diff := cmp.Diff(before, after); from != "nothing" && diff != "" {
						t.Errorf("refused, and something changed: %s", diff)
					}
					if _, err := os.Lstat(filepath.Join(r.dir, "bundle")); from == "nothing" && !os.IsNotExist(err) {
						t.Errorf("refused, and there is a bundle: %v", err)
					}
					testkit.NothingLeft(t, r.base)
				})
			}
		}
	}
}

// TestLockReplacedWhileTaken: 24, a lock counts only while it is the one that the
// next opener will find, or two would have it.
func TestLockReplacedWhileTaken(t *testing.T) {
	for _, which := range []string{"trust/session.lock", "session/lock"} {
		for _, again := range []int{1, 3} {
			r := newRig(t)
			r.prepare("one")
			left := again
			r.fs.Set(func(c faultfs.Call) faultfs.Action {
				if c.Op == "TryLock" && c.Path == which && left > 0 {
					left--
					return faultfs.Action{Before: func() { r.aside(filepath.Join(r.base, filepath.FromSlash(which))) }}
				}
				return faultfs.Action{}
			})
			s, err := r.open()
			if err != nil {
				t.Fatalf("%s replaced %d times: %v", which, again, err)
			}
			r.fs.Set(nil)
			_, err = r.open()
			checkLocked(t, err, filepath.Join(r.trust, "session.lock"), fmt.Sprintf("pid %d ", os.Getpid()))
			if err := errors.Join(commitNth(r.ctx(), s, 2), s.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}
