package main

import "golang.org/x/sys/windows"

// freeSpace is what the caller can still write on the file system of a path.
func freeSpace(path string) (int64, bool) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, false
	}
	var free uint64
	if windows.GetDiskFreeSpaceEx(p, &free, nil, nil) != nil {
		return 0, false
	}
	return int64(free), true
}
