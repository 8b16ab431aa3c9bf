package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

func fileSystem(dir *os.File) (FileSystem, error) {
	var st unix.Statvfs_t
	err := control(dir, func(fd uintptr) error {
		// ST_NOWAIT: what is cached will do, and a dead server is not waited for.
		return again(func() error { return unix.Fstatvfs1(int(fd), &st, unix.ST_NOWAIT) })
	})
	if err != nil {
		return FileSystem{}, err
	}
	return bsdType(unix.ByteSliceToString(st.Fstypename[:]), st.Flag&unix.MNT_LOCAL != 0), nil
}
