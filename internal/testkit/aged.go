package testkit

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// AgedDirs is Dirs for stores that replace segments and parts: a file whose name is gone
// stays open while a View may need it, and is closed by the garbage collector. When the
// test ends, that is given time.
func AgedDirs(t testing.TB) (dir, trust string) {
	t.Helper()
	dir, trust = Dirs(t)
	t.Cleanup(func() {
		runtime.GC() // where the system has no list of what is open
		for end := time.Now().Add(20 * time.Second); openBelow(filepath.Dir(dir)) != nil && time.Now().Before(end); {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	})
	return dir, trust
}
