package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

func fileSystem(dir *os.File) (FileSystem, error) {
	var st unix.Statvfs_t
	err := control(dir, func(fd uintptr) error {
		return again(func() error { return unix.Fstatvfs(int(fd), &st) })
	})
	if err != nil {
		return FileSystem{}, err
	}
	name := make([]byte, 0, len(st.Basetype))
	for _, c := range st.Basetype {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	return solarisType(string(name)), nil
}
