//go:build unix || windows

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Resolve goes up from the whole path until a prefix resolves. A name on the
// way that exists and does not resolve — a loop, a symbolic link to nowhere, a
// directory that may not be entered, a file with names below it — is an error:
// what would be made there is not what the path says.
func (osFS) Resolve(path string) (string, error) {
	fail := func(err error) (string, error) {
		return "", &fs.PathError{Op: "resolve", Path: path, Err: cause(err)}
	}
	if path == "" {
		return fail(fs.ErrInvalid)
	}
	prefix, err := filepath.Abs(path)
	if err != nil {
		return fail(err)
	}
	tries := 0
	for rest := ""; ; {
		resolved, err := filepath.EvalSymlinks(prefix)
		if err == nil {
			if rest != "" {
				fi, err := os.Stat(resolved)
				if err != nil {
					return fail(err)
				}
				if !fi.IsDir() {
					return fail(notDirError{kind(fi.Mode())})
				}
			}
			return filepath.Join(resolved, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fail(err)
		}
		if fi, lerr := os.Lstat(prefix); lerr == nil {
			// What is there now is no link: somebody has just made it.
			if tries++; fi.Mode()&fs.ModeSymlink == 0 && tries < openTries {
				continue
			}
			return fail(err)
		} else if !errors.Is(lerr, fs.ErrNotExist) {
			return fail(lerr)
		}
		parent := filepath.Dir(prefix)
		if parent == prefix {
			return fail(err)
		}
		rest = filepath.Join(filepath.Base(prefix), rest)
		prefix = parent
	}
}
