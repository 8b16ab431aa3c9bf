package vfs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Nothing that fails, and nothing that is closed, leaves a descriptor behind.
func TestNoDescriptorLeaks(t *testing.T) {
	tmp := t.TempDir()
	write(t, filepath.Join(tmp, "file"), "")
	for _, err := range []error{
		os.Mkdir(filepath.Join(tmp, "sub"), 0o700),
		os.Symlink("sub", filepath.Join(tmp, "link")),
		unix.Mkfifo(filepath.Join(tmp, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"file", "sub", "link", "fifo", "missing", "lock", "../x"}
	round := func() {
		for _, name := range names {
			if d, err := OS().OpenDir(filepath.Join(tmp, name)); err == nil {
				d.Sync()
				d.Names()
				d.Close()
			}
		}
		d, err := OS().OpenDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		holder := openLock(t, d)
		defer mustClose(t, holder)
		wantLock(t, holder, true, "first")
		for _, name := range names {
			if sub, err := d.OpenDir(name); err == nil {
				sub.Close()
			}
			for _, open := range []func(string) (File, error){d.Open, d.OpenRW, d.OpenLock} {
				if name == "missing" {
					continue // OpenLock would make it
				}
				if f, err := open(name); err == nil {
					f.TryLock()
					f.Close()
				}
			}
			if f, err := d.Create(name, 0o600); err == nil {
				f.Close()
				d.Remove(name)
			}
			d.Lstat(name)
			d.Link(name, "file")
			d.Rename(name, "sub")
			d.System()
		}
		if err := os.WriteFile(filepath.Join(tmp, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Rename("file", "other"); err != nil {
			t.Fatal(err)
		}
		if err := d.Rename("other", "file"); err != nil {
			t.Fatal(err)
		}
	}
	round() // what the runtime opens once
	check := noLeaks(t)
	for range 10 {
		round()
	}
	check()
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func TestLinuxSystem(t *testing.T) {
	for path, want := range map[string]FileSystem{
		"/proc":    {"0x9fa0", Probed},
		"/dev/shm": {"tmpfs", Local},
	} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if got, err := open(t, path).System(); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", path, got, err, want)
		}
	}
}

const mountinfo = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
41 22 0:38 / /mnt/a\040b rw,nosuid,nodev,relatime shared:21 master:2 propagate_from:3 - fuse.sshfs user@host:/dir rw,user_id=0,group_id=0
42 22 0:39 / /mnt/plain rw - fuse /dev/fuse rw
43 22 0:40 / /mnt/dav rw - fuse https://dav.example.org/ rw
44 22 0:41 / /mnt/v rw - virtiofs myfs rw
45 22 8:17 / /mnt/usb rw - fuseblk /dev/sdb1 rw
46 22 0:50 / /mnt/- rw - fuse.rclone remote: rw
47 22 0:51 / /mnt/short rw
48 22 0:52 / /mnt/shorter rw -
49 22 0:53 / /mnt/shortest rw - fuse
garbage
50 22 0:54 / /mnt/s3 rw - fuse.s3fs s3fs rw
`

func TestMountinfo(t *testing.T) {
	for _, tt := range []struct {
		major, minor uint32
		want         FileSystem
	}{
		{0, 38, FileSystem{"fuse.sshfs", Network}},
		{0, 39, FileSystem{"fuse", Probed}},
		{0, 40, FileSystem{"fuse", Network}},
		{0, 41, FileSystem{"virtiofs", Probed}},
		{8, 17, FileSystem{"fuseblk", Probed}},
		{0, 50, FileSystem{"fuse.rclone", Network}},
		{0, 51, FileSystem{"fuse", Probed}},
		{0, 52, FileSystem{"fuse", Probed}},
		{0, 53, FileSystem{"fuse", Probed}},
		{0, 54, FileSystem{"fuse.s3fs", Network}},
		{0, 99, FileSystem{"fuse", Probed}},
		{0, 3, FileSystem{"fuse", Probed}},
	} {
		if got := fuseClass(findMount(strings.NewReader(mountinfo), tt.major, tt.minor)); got != tt.want {
			t.Errorf("%d:%d: %+v; want %+v", tt.major, tt.minor, got, tt.want)
		}
	}
	root, err := os.Stat("/proc")
	if err != nil {
		t.Skip("no /proc:", err)
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Skip("no mountinfo:", err)
	}
	defer mounts.Close()
	dev := root.Sys().(*syscall.Stat_t).Dev
	if fstype, _ := findMount(mounts, unix.Major(uint64(dev)), unix.Minor(uint64(dev))); fstype != "proc" {
		t.Errorf("/proc is mounted as %q", fstype)
	}
}

// What is read of the table is bounded, and a line that is too long ends it.
func TestMountinfoBounded(t *testing.T) {
	sshfs := mountinfo[strings.Index(mountinfo, "41 22"):]
	for name, before := range map[string]string{
		"many lines":  strings.Repeat("1 1 1:1 / / rw - ext4 x rw\n", mountinfoLimit/27+1),
		"a long line": strings.Repeat("x", mountinfoLimit/2) + "\n",
	} {
		if fstype, _ := findMount(strings.NewReader(before+sshfs), 0, 38); fstype != "" {
			t.Errorf("%s: found %q beyond the limit", name, fstype)
		}
	}
}
