package vfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// identify asks for everything but the times. Since Linux 6.13 whoever looks at a
// file's times makes the next write change them at their finest, and the inode with
// them, which a flush then has to write too: for a file that is looked at before
// each write, one more block with each commit.
func (d *osDir) identify(name string) (Info, error) {
	var st unix.Statx_t
	err := control(d.self, func(fd uintptr) error {
		return again(func() error {
			return unix.Statx(int(fd), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_SYNC_AS_STAT,
				unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_NLINK|unix.STATX_UID|unix.STATX_GID|unix.STATX_INO|unix.STATX_SIZE, &st)
		})
	})
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EPERM) {
		return d.lstatInfo(name) // an older kernel, or a sandbox that does not let statx through
	}
	if err != nil {
		return Info{}, d.fail("statx", name, err)
	}
	i := Info{Size: int64(st.Size), Mode: fs.FileMode(st.Mode & 0o777), Links: uint64(st.Nlink), UID: int(st.Uid), GID: int(st.Gid),
		Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		i.Mode |= fs.ModeIrregular
	}
	return i, nil
}

// number fills in the numbers by which a file can be told without its os.FileInfo.
func number(i *Info, fi os.FileInfo) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		i.Dev, i.Ino = uint64(st.Dev), st.Ino
	}
}
