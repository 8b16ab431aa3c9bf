//go:build !unix && !windows

package vfs

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestUnsupported(t *testing.T) {
	_, opendir := OS().OpenDir("/")
	_, lstat := OS().Lstat("/")
	_, resolve := OS().Resolve("/")
	for op, err := range map[string]error{"OpenDir": opendir, "Lstat": lstat, "Resolve": resolve} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "pawl does not support "+runtime.GOOS+"/"+runtime.GOARCH) {
			t.Errorf("%s: %v; want: %v", op, err, errors.ErrUnsupported)
		}
	}
}
