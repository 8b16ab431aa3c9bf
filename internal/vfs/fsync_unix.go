//go:build unix

package vfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// dirFlush flushes a directory: here, the handle that the Dir holds anyway.
type dirFlush struct{ dir *os.File }

func openDirFlush(dir *os.File) dirFlush { return dirFlush{dir} }
func (d dirFlush) sync() error           { return d.dir.Sync() }
func (d dirFlush) close() error          { return nil }

// syncError sorts the answers that mean "no flush for directories here": EINVAL
// of fsync(2) on a file that cannot be synchronised (CIFS), EBADF of systems
// that flush only what is open for writing (AIX, virtiofs in some sandboxes).
// EIO is none of them, wherever it comes from.
func syncError(err error) error {
	if isOneOf(err, unix.EINVAL, unix.EBADF, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoDirSync, err)
	}
	return err
}
