//go:build unix || windows

package vfs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// childEnv makes the test binary a second process that tries to lock the file at
// the path in it, says how that went, and waits until its input ends.
const childEnv = "PAWL_VFS_TEST_LOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
		return
	}
	os.Exit(m.Run())
}

func child(path string) {
	d, err := OS().OpenDir(filepath.Dir(path))
	if err == nil {
		var f File
		if f, err = d.OpenLock(filepath.Base(path)); err == nil {
			var ok bool
			if ok, err = f.TryLock(); err == nil {
				fmt.Println("locked", ok)
			}
		}
	}
	if err != nil {
		fmt.Println(err)
	}
	io.Copy(io.Discard, os.Stdin)
}

// startChild returns the first line that the child says.
func startChild(t *testing.T, path string) (said string, kill func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
		in.Close()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child said %q: %v", line, err)
	}
	return strings.TrimSpace(line), kill
}

func openLock(t *testing.T, d Dir) File {
	t.Helper()
	f, err := d.OpenLock("lock")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func wantLock(t *testing.T, f File, want bool, when string) {
	t.Helper()
	if ok, err := f.TryLock(); ok != want || err != nil {
		t.Fatalf("TryLock %s = %v, %v; want %v", when, ok, err, want)
	}
}

func TestLockInProcess(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, tmp)
	a, b, c := openLock(t, d), openLock(t, d), openLock(t, d)
	wantLock(t, a, true, "first")
	wantLock(t, a, true, "again by the holder")
	wantLock(t, b, false, "while another open holds it")

	// An open that did not get it takes nothing away when it is closed, nor does
	// a reader, nor an open that failed.
	mustClose(t, b)
	r, err := d.Open("lock")
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, r)
	wantLock(t, c, false, "after a failed one was closed")
	if said, kill := startChild(t, filepath.Join(tmp, "lock")); said != "locked false" {
		t.Errorf("another process says %q while we hold it", said)
	} else {
		kill()
	}

	mustClose(t, a)
	wantLock(t, c, true, "after the holder was closed")
	mustClose(t, c)
}

// Whoever holds the lock file can be read while it is held.
func TestLockLeavesReading(t *testing.T) {
	d := open(t, t.TempDir())
	a := openLock(t, d)
	defer mustClose(t, a)
	wantLock(t, a, true, "first")
	if _, err := a.WriteAt([]byte("pid 1"), 0); err != nil {
		t.Fatal(err)
	}
	r, err := d.Open("lock")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, r)
	if got := read(t, r); got != "pid 1" {
		t.Errorf("read %q", got)
	}
}

// A lock goes with its process, however that ends.
func TestLockOfKilledProcess(t *testing.T) {
	tmp := t.TempDir()
	f := openLock(t, open(t, tmp))
	defer mustClose(t, f)
	said, kill := startChild(t, filepath.Join(tmp, "lock"))
	if said != "locked true" {
		t.Fatalf("the child says %q", said)
	}
	wantLock(t, f, false, "while another process holds it")
	kill()
	// Windows gives up the locks of a dead process when it gets round to it.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		ok, err := f.TryLock()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the lock of a killed process is still held")
		}
	}
}
