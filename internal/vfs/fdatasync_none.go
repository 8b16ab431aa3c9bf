//go:build (unix || windows) && !aix && !linux && !solaris

package vfs

import "os"

// syncData is the full flush where there is no other, or none to trust:
// F_FULLFSYNC on macOS, fsync on the BSDs, FlushFileBuffers on Windows.
func syncData(f *os.File) error { return f.Sync() }
