package pawl

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// lock is a held lock: a file that is never renamed and never removed, so that the
// one that is held and the one that its name leads to are the same. The data files
// themselves are replaced by rename, and a lock on one would stay with the old file.
type lock struct {
	dir  vfs.Dir
	name string
	f    vfs.File
	info vfs.Info
}

// ownerSize is how much of a lock file is for the line that says who holds it.
const ownerSize = 256

// Between two looks at a lock that somebody holds, one waits at most so long: for one
// that is held until its holder closes the store, and for one that is held for the time
// of a commit.
const (
	longPause   = 50 * time.Millisecond
	sharedPause = time.Millisecond
)

// wantedAt is where in a lock file those who wait for it leave a mark. It is a wish and
// no more: without it they wait longer.
const wantedAt = ownerSize

// takeLock takes the lock, waiting for another holder up to the deadline. Of a lock that
// is shared, the holder gets to know that somebody waits.
func takeLock(ctx context.Context, dir vfs.Dir, name string, deadline time.Time, shared bool) (*lock, error) {
	between, most := time.Millisecond, longPause
	if shared {
		between, most = sharedPause/4, sharedPause
	}
	for ; ; between = min(2*between, most) {
		l, owner, err := tryLock(dir, name, shared)
		if l != nil || err != nil {
			return l, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, &Error{Kind: ErrLocked, Hint: hintLocked, Cause: fmt.Errorf("held by %s", owner)}
		}
		if !pause(ctx, min(between, left)) {
			return nil, ctxError(ctx)
		}
	}
}

// sought says whether somebody has waited for the lock since it was last asked.
func (l *lock) sought() bool {
	if l == nil || l.f == nil {
		return false
	}
	var mark [1]byte
	if n, _ := l.f.ReadAt(mark[:], wantedAt); n == 0 || mark[0] == ' ' {
		return false
	}
	_, _ = l.f.WriteAt([]byte{' '}, wantedAt)
	return true
}

// tryLock takes the lock if nobody has it; else it says who, as far as is known.
func tryLock(dir vfs.Dir, name string, shared bool) (*lock, string, error) {
	// Between open and lock the name may come to lead elsewhere: the lock counts
	// only if, once taken, it is still the one that the next opener will find.
	for range 100 {
		f, err := dir.OpenLock(name)
		if err != nil {
			return nil, "", err
		}
		info, err := f.Stat()
		ok := false
		if err == nil {
			ok, err = f.TryLock()
		}
		if err != nil {
			f.Close()
			return nil, "", err
		}
		if !ok {
			owner := readOwner(f)
			if shared {
				_, _ = f.WriteAt([]byte{'+'}, wantedAt)
			}
			return nil, owner, f.Close()
		}
		l := &lock{dir, name, f, info}
		now, err := dir.Lstat(name)
		if err == nil && now.Same(info) {
			return l, "", nil
		}
		f.Close()
		if err = ignoreNotExist(err); err != nil {
			return nil, "", err
		}
	}
	return nil, "", fmt.Errorf("lock file %s is replaced again and again", name)
}

// lost says whether the name still leads to the lock that is held.
func (l *lock) lost() error {
	if l == nil || l.f == nil {
		return errorString("the lock is not held")
	}
	now, err := l.dir.Identify(l.name)
	if err != nil {
		return fmt.Errorf("the lock file is gone while it was held: %w", err)
	}
	if !now.Same(l.info) {
		return errorString("the lock file was replaced while it was held")
	}
	return nil
}

// excludes reports whether the lock keeps a second opener out, which some network
// and sandbox file systems only pretend to do.
func (l *lock) excludes() (bool, error) {
	f, err := l.dir.OpenLock(l.name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	taken, err := f.TryLock()
	return !taken, err
}

// sign leaves a line that tells others who holds the lock. It is for messages only,
// so an error does not matter.
func (l *lock) sign(owner string) {
	line := make([]byte, ownerSize)
	for i := range line {
		line[i] = ' '
	}
	copy(line[:ownerSize-1], owner)
	line[ownerSize-1] = '\n'
	_, _ = l.f.WriteAt(line, 0)
}

func (l *lock) release() error {
	if l == nil || l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil // dir and name stay: it may be taken again
	return f.Close()
}

// readOwner returns what a lock file says of its holder, fit for a message.
func readOwner(f vfs.File) string {
	b := make([]byte, ownerSize)
	n, _ := f.ReadAt(b, 0)
	owner := strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(string(b[:n]), "")))
	if owner == "" {
		return "a process that left no name"
	}
	return owner
}
