package pawl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Two stores in one trust directory have names that differ in more than case. Where the
// file system folds case, they would be one file; and who makes them elsewhere may copy
// them there one day.

// unlike refuses to make a store whose name is that of another but for case.
func (s *site) unlike() error {
	if s.trustDir == nil {
		return nil
	}
	names, err := s.trustDir.Names()
	if err != nil {
		return fail("", s.at.trust, err)
	}
	own := s.at.name + trustSuffix
	for _, name := range names {
		if name != own && strings.EqualFold(name, own) {
			return s.alike(name)
		}
	}
	return nil
}

// spelled refuses a trust file that was found under another spelling of its name. Only
// where case is folded does that take a look at all names: there may be many stores.
func (s *site) spelled(trust vfs.Info) error {
	own := s.at.name + trustSuffix
	other, err := s.trustDir.Lstat(otherCase(own))
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !other.Same(trust):
		return nil
	case err != nil:
		return fail("", s.at.trust, err)
	}
	names, err := s.trustDir.Names()
	if err != nil {
		return fail("", s.at.trust, err)
	}
	if slices.Contains(names, own) {
		return nil
	}
	for _, name := range names {
		if info, err := s.trustDir.Lstat(name); err == nil && info.Same(trust) {
			return s.alike(name)
		}
	}
	return nil
}

// alike is the error for a store whose trust file has a name like ours.
func (s *site) alike(name string) *Error {
	made := "somewhere"
	t := trustFile{dir: s.trustDir, name: name}
	if t.read() == nil {
		made = t.newest.path
	}
	return &Error{Path: s.at.trust, Kind: ErrInvalid, Hint: hintAlike, Cause: fmt.Errorf(
		"store name %q is that of the store %q but for case, which was made for %s", s.at.name, strings.TrimSuffix(name, trustSuffix), made)}
}

// otherCase is a name with each letter of ASCII in its other case.
func otherCase(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r ^ ' '
		}
		return r
	}, s)
}
