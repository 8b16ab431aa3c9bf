package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/windows"
)

// hold opens a file as a scanner does that shares it in the ways given.
func hold(t *testing.T, path string, share uint32) (release func()) {
	t.Helper()
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := windows.CreateFile(p, windows.GENERIC_READ, share, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() { windows.CloseHandle(h) }
}

// A scanner that lets go does not make a rename, a removal or an open fail.
func TestScanner(t *testing.T) {
	const noDelete = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE
	for _, tt := range []struct {
		name, held string
		share      uint32
		do         func(d Dir) error
	}{
		{"rename, target held", "bundle", noDelete, func(d Dir) error { return d.Rename("temp", "bundle") }},
		{"rename, source held", "temp", noDelete, func(d Dir) error { return d.Rename("temp", "bundle") }},
		{"remove", "bundle", noDelete, func(d Dir) error { return d.Remove("bundle") }},
		{"open", "bundle", 0, func(d Dir) error {
			f, err := d.Open("bundle")
			if err != nil {
				return err
			}
			return f.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tmp := t.TempDir()
			d := open(t, tmp)
			write(t, filepath.Join(tmp, "bundle"), "old")
			write(t, filepath.Join(tmp, "temp"), "new")

			release := hold(t, filepath.Join(tmp, tt.held), tt.share)
			err := tt.do(d)
			release()
			if !errors.Is(err, windows.ERROR_ACCESS_DENIED) && !errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
				t.Fatalf("with the file held for good: %v; want: access denied, or a sharing violation", err)
			}
			if names, err := d.Names(); err != nil || len(names) != 2 {
				t.Fatalf("a failed call changed the directory: %q, %v", names, err)
			}

			release = hold(t, filepath.Join(tmp, tt.held), tt.share)
			done := make(chan error)
			go func() { done <- tt.do(d) }()
			release()
			if err := <-done; err != nil {
				t.Errorf("with the file held for a moment: %v", err)
			}
		})
	}
}

func TestPatiently(t *testing.T) {
	never := func() bool { return false }
	for _, tt := range []struct {
		name     string
		fails    []error
		happened func() bool
		want     error
		calls    int
	}{
		{"at once", nil, never, nil, 1},
		{"in the end", []error{windows.ERROR_ACCESS_DENIED, windows.ERROR_SHARING_VIOLATION}, never, nil, 3},
		{"for another reason", []error{windows.ERROR_DISK_FULL}, never, windows.ERROR_DISK_FULL, 1},
		{"though it failed", []error{windows.ERROR_ACCESS_DENIED}, func() bool { return true }, nil, 1},
	} {
		calls := 0
		err := patiently(func() error {
			calls++
			if calls <= len(tt.fails) {
				return tt.fails[calls-1]
			}
			return nil
		}, tt.happened, windows.ERROR_ACCESS_DENIED, windows.ERROR_SHARING_VIOLATION)
		if err != tt.want || calls != tt.calls {
			t.Errorf("%s: %v after %d calls; want: %v after %d", tt.name, err, calls, tt.want, tt.calls)
		}
	}
}

func TestClassifyWindows(t *testing.T) {
	for _, tt := range []struct {
		name     string
		classify func(error) error
		class    error
		yes, no  []error
	}{
		{"Dir.Sync", syncError, ErrNoDirSync,
			[]error{windows.ERROR_ACCESS_DENIED, windows.ERROR_INVALID_FUNCTION, windows.ERROR_INVALID_HANDLE, windows.ERROR_NOT_SUPPORTED},
			[]error{windows.ERROR_IO_DEVICE, windows.ERROR_DISK_FULL, windows.ERROR_SHARING_VIOLATION, os.ErrClosed}},
		{"Link", linkError, errors.ErrUnsupported,
			[]error{windows.ERROR_INVALID_FUNCTION, windows.ERROR_NOT_SUPPORTED, windows.ERROR_TOO_MANY_LINKS},
			[]error{windows.ERROR_ALREADY_EXISTS, windows.ERROR_ACCESS_DENIED, windows.ERROR_FILE_NOT_FOUND}},
		{"TryLock", lockError, errors.ErrUnsupported,
			[]error{windows.ERROR_INVALID_FUNCTION, windows.ERROR_NOT_SUPPORTED},
			[]error{windows.ERROR_LOCK_VIOLATION, windows.ERROR_INVALID_HANDLE, windows.ERROR_ACCESS_DENIED}},
	} {
		if err := tt.classify(nil); err != nil {
			t.Errorf("%s: nil becomes %v", tt.name, err)
		}
		for _, in := range tt.yes {
			if out := tt.classify(in); !errors.Is(out, tt.class) || !errors.Is(out, in) {
				t.Errorf("%s: %v becomes %v; want both", tt.name, in, out)
			}
		}
		for _, in := range tt.no {
			if out := tt.classify(in); out != in {
				t.Errorf("%s: %v becomes %v", tt.name, in, out)
			}
		}
	}
}

func TestWindowsTypes(t *testing.T) {
	for _, tt := range []struct {
		path, drive string
		unc         bool
	}{
		{`\\?\C:\dir`, `C:\`, false},
		{`\\?\z:\`, `z:\`, false},
		{`C:\dir`, `C:\`, false},
		{`\\?\UNC\server\share\dir`, "", true},
		{`\\server\share`, "", true},
		{`\\?\Volume{26a21bda-a627-11d7-9931-806e6f6e6963}\dir`, "", false},
		{``, "", false},
	} {
		if drive, unc := splitFinalPath(tt.path); drive != tt.drive || unc != tt.unc {
			t.Errorf("splitFinalPath(%q) = %q, %v; want %q, %v", tt.path, drive, unc, tt.drive, tt.unc)
		}
	}
	for name, want := range map[string]FileSystem{
		"NTFS":  {"NTFS", Local},
		"ReFS":  {"ReFS", Local},
		"FAT32": {"FAT32", Probed},
		"":      {"unknown", Probed},
	} {
		if got := windowsType(name); got != want {
			t.Errorf("windowsType(%q) = %+v, want %+v", name, got, want)
		}
	}
}

// One number of Windows is both ENOTDIR and ErrNotExist.
func TestNotDirIsNotMissing(t *testing.T) {
	err := error(notDirError{"a regular file"})
	if errors.Is(err, fs.ErrNotExist) || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%v matches the wrong errors", err)
	}
}

func isWine() bool {
	return windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}
