//go:build !unix && !windows

package vfs

import (
	"errors"
	"fmt"
	"runtime"
)

// OS returns a machine on which every operation fails with an error that matches
// errors.ErrUnsupported: these platforms have no file locks, or no flush that
// can be relied on, and pawl does not pretend otherwise.
func OS() FS { return osFS{} }

type osFS struct{}

var errPlatform = fmt.Errorf("pawl does not support %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported)

func (osFS) Resolve(path string) (string, error) { return "", errPlatform }
func (osFS) OpenDir(path string) (Dir, error)    { return nil, errPlatform }
func (osFS) Lstat(path string) (Info, error)     { return Info{}, errPlatform }
