// Package testkit is what the tests of several packages share: fresh directories
// whose test fails when anything is left behind, and pictures of a directory tree
// to compare before and after.
package testkit

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Dirs returns paths for a store directory and a trust directory, neither of which
// exists yet. When the test ends it fails if a descriptor is still open below them
// (where the system can tell), if a goroutine of pawl still runs, or if a temp was
// left behind.
func Dirs(t testing.TB) (dir, trust string) {
	t.Helper()
	root := t.TempDir()
	if r, err := filepath.EvalSymlinks(root); err == nil {
		root = r
	}
	t.Cleanup(func() { NothingLeft(t, root) })
	return filepath.Join(root, "session"), filepath.Join(root, "trust")
}

var tempName = regexp.MustCompile(`(^|\.)tmp-[0-9a-f]{16}$`)

// NothingLeft fails the test for descriptors, goroutines and temps left behind.
func NothingLeft(t testing.TB, root string) {
	t.Helper()
	if open := openBelow(root); open != nil {
		t.Errorf("descriptors left open: %v", open)
	}
	if g := goroutines(); g != "" {
		t.Errorf("goroutines left running:\n%s", g)
	}
	for _, name := range Temps(t, root) {
		t.Errorf("temp left behind: %s", name)
	}
}

// Temps lists the temps below root.
func Temps(t testing.TB, root string) (temps []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && tempName.MatchString(d.Name()) {
			temps = append(temps, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return temps
}

// openBelow lists this process's descriptors of files below root, where the system
// has a list of them.
func openBelow(root string) (open []string) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && (to == root || strings.HasPrefix(to, root+"/")) {
			open = append(open, to)
		}
	}
	return open
}

// goroutines returns the stacks of goroutines started by pawl, after giving those
// that are on their way out a moment.
func goroutines() string {
	for wait := time.Millisecond; ; wait *= 2 {
		var left []string
		b := make([]byte, 1<<20)
		for _, g := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
			if strings.Contains(g, "created by github.com/seed-5cdcd42d/pawl.") && !strings.Contains(g, "_test.") && !strings.Contains(g, ".Test") {
				left = append(left, g)
			}
		}
		if left == nil || wait > time.Second {
			return strings.Join(left, "\n\n")
		}
		time.Sleep(wait)
	}
}

// Tree is a picture of everything below a directory: for each path its kind, mode,
// and size and digest of the content.
type Tree map[string]string

// Snapshot takes a picture of the trees at the given paths. Times are not part of
// it.
func Snapshot(t testing.TB, paths ...string) Tree {
	t.Helper()
	tree := Tree{}
	for _, path := range paths {
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				tree[p] = "nothing"
				return nil
			}
			if err != nil {
				tree[p] = "unreadable"
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			tree[p] = describe(p, info)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

func describe(path string, info fs.FileInfo) string {
	switch mode := info.Mode(); {
	case mode.IsRegular() && info.Size() <= 64<<20:
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Sprintf("%v %d unreadable", mode, info.Size())
		}
		return fmt.Sprintf("%v %d %x", mode, len(b), sha256.Sum256(b))
	case mode.IsRegular():
		return fmt.Sprintf("%v %d", mode, info.Size())
	case mode&fs.ModeSymlink != 0:
		to, _ := os.Readlink(path)
		return fmt.Sprintf("%v → %s", mode, to)
	default:
		return mode.String()
	}
}
