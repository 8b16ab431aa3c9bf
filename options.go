package pawl

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Options say how a store is opened. The zero value, and a nil *Options, are safe
// defaults.
type Options struct {
	// Name is the base of the names in the trust directory: Name.trust, Name.lock
	// and Name.audit. Default: the base name of the store directory. Several
	// stores may share a trust directory under different names.
	Name string

	// MustExist makes Open fail with ErrNotExist rather than create a store.
	MustExist bool

	// LockWait is how long Open waits for another opener to let go, with Shared each
	// change too, and a Reader for a commit that is being written. Changes that wait
	// together in one process share the wait of the one that asked for the locks. 0: Open
	// does not wait; with Shared it is ten seconds (a nanosecond is not to wait), for
	// OpenReader one.
	LockWait time.Duration

	// Shared lets several processes, or several Stores of one, change the store by
	// turns: each holds the locks only while it changes something, and sees first what
	// the others did. All of them need it: an Open without it keeps the locks. View returns
	// what this Store saw last; Commit, Update, Lookup, Checkpoint, Verify and Recover take
	// the locks, and fail with ErrLocked when they do not get them.
	Shared bool

	// Schema is the number of the caller's own data format, 1 or more; it is stored with
	// each commit. Open hands a state with a lower one, or with none, to Migrate, and
	// fails with ErrSchema where that is nil, and for a state with a higher one. 0: not
	// checked, and not stored.
	Schema int

	// Migrate returns the change that brings a state up to Schema from an older one; 0
	// is a state that says none. Open commits it, as one commit, empty or not, before it
	// returns; a crash leaves either the old state, which the next Open migrates, or the
	// new one. An error of it is that of Open. It runs under the locks, with Shared too.
	Migrate func(ctx context.Context, from int, v View) (Change, error)

	// Program names the caller's program and its revision, at most 255 bytes; it is
	// stored with each commit. When the newest state was made by another one, Recovery,
	// the log and the audit file say so.
	Program string

	// CheckpointEvery publishes the bundle with every so many commits. 1: with each,
	// and there is never a journal. 0: when the journal is full, and at Close when it
	// is large.
	CheckpointEvery int

	// SyncConfirm makes Commit wait until its confirm is on stable storage too. It
	// costs a third flush, and closes the window in which a power cut, together with
	// an older copy of the store directory put back at just that moment, is taken for
	// a commit that did not land. Without it the window ends with the next commit, or
	// about a millisecond after the last one.
	SyncConfirm bool

	Limits Limits
	Allow  Allowance

	// Logger hears of everything that was not ordinary. nil: nothing is logged. It is
	// called while the store is busy, so it must not call the store.
	Logger *slog.Logger
}

// Limits bound what is accepted and what is allocated, in bytes. A zero field
// stands for its default. A store with a bundle or journal over its limit is not opened
// (ErrTooLarge), and nothing is changed.
type Limits struct {
	Entry  int64 // one entry; default 16 MiB
	Part   int64 // one part; default 64 MiB
	Commit int64 // all entries, parts and part names of one commit; default 128 MiB
	Bundle int64 // the bundle file; default 1 GiB

	// Journal is the largest size of the journal file; default 4 MiB, at least 8 KiB.
	// Journals begin small and grow up to it with use, from one bundle to the next. A
	// commit that does not fit publishes the bundle.
	Journal int64

	// Unsealed is how much history a bundle holds, in bytes; default 1 MiB, and not more
	// than a quarter of Bundle. What is more goes into a segment, a file of its own, when
	// the bundle is published. It bounds nothing that is read.
	Unsealed int64

	// Inline is the size of the largest part that a bundle holds; default 64 KiB. A larger
	// one is a file of its own, written once, when the bundle is published. It bounds
	// nothing that is read.
	Inline int64
}

// Allowance is a set of loosenings. Each is named in the log when it is used, and
// Stats shows what the file systems can do.
type Allowance uint

const (
	// NetworkFS allows directories on a network file system, whose locks may not
	// exclude, or may hang.
	NetworkFS Allowance = 1 << iota

	// NoDirSync allows a file system whose directories cannot be flushed. After a
	// power cut there, acknowledged commits may be gone.
	NoDirSync

	// SharedTrust allows a trust directory that others can write to. Whoever can
	// write there can make any state the trusted one.
	SharedTrust

	// Unsettled allows a Reader to return the state of a commit that nobody is there to
	// finish: the new state when it is whole, else the old one. The old one may be behind
	// what was acknowledged, the new one may not be durable. Reader.Unsettled then says
	// so.
	Unsettled

	allowAll = NetworkFS | NoDirSync | SharedTrust | Unsettled
)

// The format's own limits.
const (
	maxName    = 255 // bytes in a file name, a part name and a commit id
	tempDigits = 16  // hexadecimal digits in the name of a temp
)

// sharedWait is how long a change waits for others that share the store, by default.
// They hold the locks for the time of a commit.
const sharedWait = 10 * time.Second

// complete checks o and fills in the defaults.
func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.LockWait < 0 {
		return c, invalid("LockWait %v is negative", c.LockWait)
	}
	if c.CheckpointEvery < 0 {
		return c, invalid("CheckpointEvery %d is negative", c.CheckpointEvery)
	}
	if c.Schema < 0 || c.Schema > math.MaxInt32 {
		return c, invalid("Schema %d is not between 0 and %d", c.Schema, math.MaxInt32)
	}
	if err := checkSaid(uint32(c.Schema), c.Program); err != nil {
		return c, err
	}
	if c.LockWait == 0 && c.Shared {
		c.LockWait = sharedWait
	}
	if c.Allow&^allowAll != 0 {
		return c, invalid("Allow has unknown bits: %#x", uint(c.Allow))
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, l := range []struct {
		name     string
		v        *int64
		standard int64
	}{
		{"Entry", &c.Limits.Entry, 16 << 20},
		{"Part", &c.Limits.Part, 64 << 20},
		{"Commit", &c.Limits.Commit, 128 << 20},
		{"Bundle", &c.Limits.Bundle, 1 << 30},
		{"Journal", &c.Limits.Journal, 4 << 20},
		{"Unsealed", &c.Limits.Unsealed, 1 << 20},
		{"Inline", &c.Limits.Inline, 64 << 10},
	} {
		if *l.v == 0 {
			*l.v = l.standard
		}
		// The format holds the length of one item in 32 bits.
		if *l.v < 0 || *l.v > math.MaxInt32 {
			return c, invalid("Limits.%s %d is not between 0 and %d", l.name, *l.v, math.MaxInt32)
		}
	}
	if c.Limits.Journal < 2*blockSize {
		return c, invalid("Limits.Journal %d is less than %d", c.Limits.Journal, 2*blockSize)
	}
	c.Limits.Journal -= c.Limits.Journal % blockSize
	c.Limits.Unsealed = min(c.Limits.Unsealed, c.Limits.Bundle/4)
	return c, nil
}

// place is where a store is: two directories and a name.
type place struct {
	fsys       vfs.FS
	dir, trust string // resolved
	name       string
}

func (p *place) trustPath() string { return filepath.Join(p.trust, p.name+trustSuffix) }

// locate finds the two directories, which need not exist yet, and refuses a pair
// that could not keep trust and data apart.
func locate(fsys vfs.FS, dir, trustDir string, o *Options) (place, error) {
	p := place{fsys: fsys}
	if dir == "" || trustDir == "" {
		return p, invalid("the store directory and the trust directory both need a path")
	}
	var err error
	if p.dir, err = fsys.Resolve(dir); err != nil {
		return p, fail("", dir, err)
	}
	if p.trust, err = fsys.Resolve(trustDir); err != nil {
		return p, fail("", trustDir, err)
	}
	p.name = o.Name
	if p.name == "" {
		p.name = filepath.Base(p.dir)
	}
	if err := checkName("store", p.name, maxName-len(".tmp-")-tempDigits); err != nil {
		return p, err
	}
	for _, pair := range []struct{ inner, outer, say string }{
		{p.trust, p.dir, "is inside or the same as the store directory"},
		{p.dir, p.trust, "is above the store directory"},
	} {
		in, err := holds(fsys, pair.outer, pair.inner)
		if err != nil {
			return p, fail("", trustDir, err)
		}
		if in {
			return p, &Error{Path: trustDir, Kind: ErrInsecure, Cause: errorString("it " + pair.say), Hint: hintApart}
		}
	}
	return p, nil
}

// holds reports whether inner is outer or lies below it, by name or by identity:
// a bind mount or a case-folding file system gives one directory two names.
func holds(fsys vfs.FS, outer, inner string) (bool, error) {
	top, err := fsys.Lstat(outer)
	exists := err == nil
	if unreadable(err) {
		return false, err
	}
	for p := inner; ; p = filepath.Dir(p) {
		if p == outer {
			return true, nil
		}
		info, err := fsys.Lstat(p)
		if err == nil && exists && info.Same(top) {
			return true, nil
		}
		if unreadable(err) {
			return false, err
		}
		if filepath.Dir(p) == p {
			return false, nil
		}
	}
}

// unreadable reports an error that leaves it open what is there. A directory on the
// way that the caller may not look at is none of its own.
func unreadable(err error) bool {
	return ignoreNotExist(err) != nil && !errors.Is(err, fs.ErrPermission)
}
