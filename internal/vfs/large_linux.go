package vfs

import "golang.org/x/sys/unix"

// largeFile lets a 32-bit program open files of 2 GiB and more. os.Open asks for
// it by itself, os.Root does not; on 64-bit systems it is 0.
const largeFile = unix.O_LARGEFILE
