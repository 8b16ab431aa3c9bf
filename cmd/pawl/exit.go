package main

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// The exit codes; they never change their meaning.
const (
	exitOK    = 0
	exitOther = 1
	exitUsage = 2
	exitNot   = 3 // asked, and the answer is no: an id, a part that is not there
	exitUnfit = 5 // doctor: a check has failed
)

// codes gives each class of error its exit code. The first that matches counts.
var codes = []struct {
	class error
	code  int
	name  string // in JSON
}{
	{effect.ErrRefused, 36, "refused"},
	{effect.ErrUnknown, 37, "not understood"},
	{pawl.ErrInDoubt, 30, "in doubt"},
	{pawl.ErrIDReused, 33, "id reused"},
	{pawl.ErrForgotten, 35, "forgotten"},
	{pawl.ErrStale, 32, "stale"},
	{pawl.ErrTooLarge, 34, "too large"},
	{pawl.ErrNotExist, 10, "not exist"},
	{pawl.ErrLocked, 11, "locked"},
	{pawl.ErrUntrusted, 12, "untrusted"},
	{pawl.ErrTrustDamaged, 13, "trust damaged"},
	{pawl.ErrTrustBehind, 14, "trust behind"},
	{pawl.ErrRolledBack, 16, "rolled back"},
	{pawl.ErrUnauthorized, 18, "unauthorized"},
	{pawl.ErrForeign, 17, "foreign"},
	{pawl.ErrDamaged, 19, "damaged"},
	{pawl.ErrMissing, 15, "missing"},
	{pawl.ErrVersion, 20, "version"},
	{pawl.ErrSchema, 21, "schema"},
	{pawl.ErrUnsettled, 22, "unsettled"},
	{pawl.ErrUnsupported, 23, "unsupported"},
	{pawl.ErrInsecure, 24, "insecure"},
	{pawl.ErrInvalid, exitUsage, "invalid"},
	{context.Canceled, 130, "interrupted"},
	{syscall.ENOSPC, 40, "no space"},
	{fs.ErrPermission, 41, "permission"},
	{syscall.EROFS, 41, "permission"},
	{pawl.ErrNotCommitted, 31, "not committed"},
}

// no is an answer, and no error: the exit code alone tells.
type no struct{ text string }

func (n no) Error() string { return n.text }

func exitCode(err error) int {
	var n no
	if errors.As(err, &n) {
		return exitNot
	}
	if errors.As(err, new(unfit)) {
		return exitUnfit
	}
	for _, c := range codes {
		if errors.Is(err, c.class) {
			return c.code
		}
	}
	return exitOther
}

func className(err error) string {
	for _, c := range codes {
		if errors.Is(err, c.class) {
			return c.name
		}
	}
	return "other"
}
