//go:build darwin || dragonfly || freebsd

package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

func fileSystem(dir *os.File) (FileSystem, error) {
	var st unix.Statfs_t
	err := control(dir, func(fd uintptr) error {
		return again(func() error { return unix.Fstatfs(int(fd), &st) })
	})
	if err != nil {
		return FileSystem{}, err
	}
	return bsdType(unix.ByteSliceToString(st.Fstypename[:]), st.Flags&unix.MNT_LOCAL != 0), nil
}
