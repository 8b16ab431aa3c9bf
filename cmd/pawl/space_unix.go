//go:build linux || darwin || freebsd

package main

import "golang.org/x/sys/unix"

// freeSpace is what the caller can still write on the file system of a path.
func freeSpace(path string) (int64, bool) {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
