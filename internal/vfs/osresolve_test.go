//go:build unix || windows

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

func TestResolve(t *testing.T) {
	tmp, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(tmp, "dir", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(tmp, "file"), "")
	for _, tt := range []struct{ path, want string }{
		{"dir/sub", "dir/sub"},
		{"file", "file"},
		{"missing", "missing"},
		{"dir/missing/below", "dir/missing/below"},
		{"dir/missing/../other", "dir/other"},
		{"dir/./sub/", "dir/sub"},
	} {
		got, err := OS().Resolve(tmp + string(filepath.Separator) + filepath.FromSlash(tt.path))
		if want := filepath.Join(tmp, filepath.FromSlash(tt.want)); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", tt.path, got, err, want)
		}
	}
	_, err = OS().Resolve(filepath.Join(tmp, "file", "below"))
	refused(t, err, syscall.ENOTDIR, "resolve", filepath.Join(tmp, "file", "below"))
	_, err = OS().Resolve("")
	refused(t, err, fs.ErrInvalid, "resolve", "")

	t.Chdir(tmp)
	if got, err := OS().Resolve("missing"); got != filepath.Join(tmp, "missing") || err != nil {
		t.Errorf("relative: %q, %v", got, err)
	}
}

func TestResolveLinks(t *testing.T) {
	tmp, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(tmp, "dir", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	symlink(t, "dir", filepath.Join(tmp, "link"))
	symlink(t, "nowhere", filepath.Join(tmp, "dangling"))
	symlink(t, "loop", filepath.Join(tmp, "loop"))
	symlink(t, filepath.Join("sub", ".."), filepath.Join(tmp, "dir", "up"))
	for _, tt := range []struct{ path, want string }{
		{"link", "dir"},
		{"link/sub", "dir/sub"},
		{"link/missing/below", "dir/missing/below"},
		{"link/up/missing", "dir/missing"},
	} {
		got, err := OS().Resolve(filepath.Join(tmp, tt.path))
		if want := filepath.Join(tmp, tt.want); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", tt.path, got, err, want)
		}
	}
	for _, name := range []string{"dangling", "dangling/below", "loop", "loop/below"} {
		if got, err := OS().Resolve(filepath.Join(tmp, name)); err == nil {
			t.Errorf("%s resolves to %q; want an error", name, got)
		}
	}
	t.Run("not permitted", func(t *testing.T) {
		if runtime.GOOS == "windows" || os.Getuid() == 0 {
			t.Skip("no directory is closed to the caller")
		}
		closed := filepath.Join(tmp, "closed")
		if err := os.Mkdir(closed, 0); err != nil {
			t.Fatal(err)
		}
		_, err := OS().Resolve(filepath.Join(closed, "below"))
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("below a closed directory: %v; want: %v", err, fs.ErrPermission)
		}
	})
}
