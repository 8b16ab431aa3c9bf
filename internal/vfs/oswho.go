package vfs

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// started is when the process started, but for the few milliseconds that the
// runtime needs.
var started = time.Now()

func (osFS) Now() time.Time { return time.Now() }

func (osFS) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

func (osFS) Random(p []byte) { rand.Read(p) } // never fails: it ends the program rather than return less

func (osFS) Owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	program := "unknown program"
	if len(os.Args) > 0 {
		program = filepath.Base(os.Args[0])
	}
	return owner(os.Getpid(), host, started, program)
}

// owner is at most 200 bytes of printable ASCII.
func owner(pid int, host string, since time.Time, program string) string {
	return fmt.Sprintf("pid %d on %s since %s (%s)", pid, printable(host, 64), since.UTC().Format(time.RFC3339), printable(program, 64))
}

// printable returns at most limit bytes of s, with a question mark for each
// character that is not printable ASCII.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), limit)]
}

func (osFS) OthersCanWrite(dir Info) string {
	groups, _ := os.Getgroups() // not known: then the caller is in none of them
	return othersCanWrite(dir, append(groups, os.Getegid()))
}

// othersCanWrite looks at the mode bits alone. The sticky bit is no help: it
// keeps others from replacing our files, not from making files of their own
// under names that we are about to use.
func othersCanWrite(dir Info, groups []int) string {
	perm := dir.Mode.Perm()
	switch {
	case dir.UID < 0: // no owners: the mode is made up
		return ""
	case perm&0o002 != 0:
		return fmt.Sprintf("writable by everyone (mode %04o)", perm)
	case perm&0o020 != 0 && !slices.Contains(groups, dir.GID):
		return fmt.Sprintf("writable by group %d, which the caller is not in (mode %04o)", dir.GID, perm)
	}
	return ""
}
