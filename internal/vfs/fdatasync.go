//go:build aix || linux || solaris

package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fdatasync(2): the data, and of the metadata the size, but not the
// times. A write that neither grows the file nor fills a hole costs one flush.
func syncData(f *os.File) error {
	return control(f, func(fd uintptr) error {
		return again(func() error { return unix.Fdatasync(int(fd)) })
	})
}
