//go:build unix && !linux && !darwin

package vfs

import "errors"

func exchange(a, b string) error { return errors.ErrUnsupported }
