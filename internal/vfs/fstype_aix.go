package vfs

import "os"

// fileSystem does not know: statfs(2) of AIX gives a number whose meaning is in
// /etc/vfs and may differ from machine to machine.
func fileSystem(*os.File) (FileSystem, error) { return FileSystem{Type: "unknown"}, nil }
