package pawl_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// forget makes the system drop what it has cached of files, so that they are read from
// the disk.
func forget(b *testing.B, files []string) bool {
	for _, name := range files {
		f, err := os.Open(name)
		if err == nil {
			err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			f.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return true
}
