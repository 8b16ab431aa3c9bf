package pawl

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// readFull reads the first n bytes of f. A file that has fewer is an error.
func readFull(f vfs.File, n int64) ([]byte, error) {
	b := make([]byte, n)
	if err := readInto(f, b); err != nil {
		return nil, err
	}
	return b, nil
}

// readInto fills b from the beginning of f.
func readInto(f vfs.File, b []byte) error { return readAt(f, b, 0) }

// readAt fills b from off on.
func readAt(f vfs.File, b []byte, off int64) error {
	for at := 0; at < len(b); {
		got, err := f.ReadAt(b[at:], off+int64(at))
		at += got
		if at == len(b) {
			break
		}
		if err == nil && got == 0 {
			err = io.ErrNoProgress
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pause waits, and reports false when the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// writeFull writes all of b at off, going on after a short write that reported no
// error.
func writeFull(f vfs.File, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := f.WriteAt(b, off)
		if err != nil {
			return err
		}
		if n <= 0 || n > len(b) {
			return io.ErrShortWrite
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// directory is one of a store's two directories, held open. Its methods are all that
// ever changes a name in it.
type directory struct {
	vfs.Dir
	fsys   vfs.FS
	info   vfs.Info // as opened
	system vfs.FileSystem
	noSync atomic.Bool // allowed to go without directory flushes, because it has none
	temp   string      // prefix of the temps in it
	alone  bool        // whoever writes here holds the lock: there is one temp at a time
	counts *counts

	segments, parts, aside folder // within the store directory
}

// Sync makes the names in the directory durable. It is tried once: after a failed
// flush nobody knows what the next one covers.
func (d *directory) Sync() error {
	if d.noSync.Load() {
		return nil
	}
	d.counts.dirSyncs.Add(1)
	return d.Dir.Sync()
}

// moved says whether the directory's path leads elsewhere by now, and why.
func (d *directory) moved() error {
	now, err := d.fsys.Lstat(d.Path())
	if err == nil && !now.Same(d.info) {
		err = errorString("the path leads to another directory now")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", printable(d.Path()), err)
	}
	return nil
}

// newTemp makes a file with a short random name. Short, so that it fits wherever
// the name that it will take fits; random, because a clock is not unique. In the trust
// directory it is the same each time: many stores may have their files there, and what
// a killed process left is found without a look at all of them.
func (d *directory) newTemp() (vfs.File, string, error) {
	var err error
	if d.alone {
		name := d.theTemp()
		f, err := d.Create(name, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, name, err
		}
		info, err := d.Lstat(name)
		if err == nil && info.Mode.IsRegular() {
			if err = d.Remove(name); err == nil {
				f, err = d.Create(name, 0o600)
			}
			return f, name, err
		}
		// Whatever it is, pawl did not make it: it stays, and the temp gets another name.
	}
	for range 8 {
		var random [tempDigits / 2]byte
		d.fsys.Random(random[:])
		name := d.temp + hex.EncodeToString(random[:])
		var f vfs.File
		if f, err = d.Create(name, 0o600); err == nil {
			return f, name, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return nil, "", err
}

// theTemp is the name of the only temp in the trust directory.
func (d *directory) theTemp() string { return d.temp + strings.Repeat("0", tempDigits) }

// content is what a file is made with: bytes, and zeros up to a size; or what a
// function writes.
type content struct {
	b     []byte
	size  int64 // 0: no zeros
	write func(vfs.File) (int64, error)

	like *vfs.Info // whose mode and group it gets, when it replaces nothing
}

// writeTo writes all of it. With zeros it goes block by block: a file that was filled
// by large writes is cached in large pieces, and each block that is written over
// later costs a piece. They are written, not only allocated, or the first write to
// each block would have to be recorded by the file system. It returns how much it wrote.
func (c content) writeTo(f vfs.File) (int64, error) {
	if c.write != nil {
		return c.write(f)
	}
	if c.size == 0 {
		return int64(len(c.b)), writeFull(f, c.b, 0)
	}
	for at := int64(0); at < c.size; at += blockSize {
		block := zeros
		if rest := int64(len(c.b)) - at; rest >= blockSize {
			block = c.b[at : at+blockSize]
		} else if rest > 0 {
			block = append(bytes.Clone(c.b[at:]), zeros[rest:]...)
		}
		if err := writeFull(f, block, at); err != nil {
			return at, err
		}
	}
	return c.size, nil
}

// writeTemp makes a temp that is durable but for its name: all its bytes, and the
// mode and group of the file that it is to be like, are on stable storage when it
// returns. On error no temp is left, unless it cannot be removed either.
func (d *directory) writeTemp(b content, like *vfs.Info) (string, vfs.Info, error) {
	f, name, err := d.newTemp()
	if err != nil {
		return "", vfs.Info{}, err
	}
	info, n, err := fill(f, b, like)
	d.counts.fileSyncs.Add(1)
	d.counts.bytes.Add(n)
	err = errors.Join(err, f.Close())
	if err != nil {
		return "", info, errors.Join(err, ignoreNotExist(d.Remove(name)))
	}
	return name, info, nil
}

func fill(f vfs.File, b content, like *vfs.Info) (vfs.Info, int64, error) {
	n, err := b.writeTo(f)
	if err != nil {
		return vfs.Info{}, n, err
	}
	info, err := f.Stat()
	if err != nil {
		return info, n, err
	}
	if like != nil {
		if err := inherit(f, info, *like); err != nil {
			return info, n, err
		}
	}
	// Mode and group come before the sync, or a power cut could show the file with
	// others.
	if err := f.Sync(); err != nil {
		return info, n, err
	}
	info, err = f.Stat()
	return info, n, err
}

// inherit gives a new file the group and mode of the one it replaces. Where the
// group cannot be given, nobody's group gets the rights that were meant for it.
func inherit(f vfs.File, now, old vfs.Info) error {
	mode := old.Mode.Perm()
	if now.GID != old.GID && f.Chgrp(old.GID) != nil {
		mode &^= 0o070
	}
	if mode == now.Mode.Perm() && now.GID == old.GID {
		return nil
	}
	return f.Chmod(mode)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// notYet marks an error after which the change has certainly not been made, and
// cannot come to be made.
type notYet struct{ err error }

func (n notYet) Error() string { return n.err.Error() }
func (n notYet) Unwrap() error { return n.err }

// install makes b the content of name, durably: when it returns nil, the bytes and
// the name are on stable storage. It is the one way in which a file of pawl is ever
// replaced, in a commit and in recovery alike:
//
//	create temp (O_EXCL, 0600); write; chmod; fsync; close
//	rename temp → name
//	fsync directory
//
// An error that is notYet left name as it was, with certainty; after any other,
// both are possible until somebody has installed the name anew.
//
// ready, if not nil, runs once all that needs space has been written, just before
// the rename; an error of it leaves name as it was.
func (d *directory) install(name string, b content, ready func() error) (vfs.Info, error) {
	old, err := d.present(name)
	if err != nil {
		return vfs.Info{}, notYet{err}
	}
	like := b.like
	if old != nil {
		like = old
	}
	temp, info, err := d.writeTemp(b, like)
	if err != nil {
		return info, notYet{err}
	}
	return d.place(temp, info, name, old, ready)
}

// present describes the file of a name; nil when there is none.
func (d *directory) present(name string) (*vfs.Info, error) {
	info, err := d.Lstat(name)
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	return &info, nil
}

// place is the second half of install: it gives a temp that is durable its name.
func (d *directory) place(temp string, info vfs.Info, name string, old *vfs.Info, ready func() error) (vfs.Info, error) {
	made, err := d.Lstat(temp)
	if err == nil && (!made.Same(info) || made.Size != info.Size || !made.ModTime.Equal(info.ModTime) && runtime.GOOS != "windows") {
		// On Windows the time may be that of the close.
		err = fmt.Errorf("%s was replaced or changed while it was made", temp)
	}
	if err == nil && ready != nil {
		err = ready()
	}
	if err != nil {
		return info, notYet{errors.Join(err, ignoreNotExist(d.Remove(temp)))}
	}
	if err := d.Rename(temp, name); err != nil {
		// A rename that reports an error may have happened all the same. Only the
		// names can tell, and they tell for certain only when the temp is still
		// there and what it was to replace is too.
		if d.unmoved(temp, info, name, old) {
			return info, notYet{errors.Join(err, d.Remove(temp))}
		}
		return info, err
	}
	if err := d.Sync(); err != nil {
		return info, err
	}
	after, err := d.Lstat(name)
	if err == nil && !unchanged(after, made) {
		err = fmt.Errorf("%s was replaced or changed while it was put in place", name)
	}
	return after, err
}

// unchanged reports whether two looks saw the same file with the same content, as
// far as identity, size and time tell.
func unchanged(a, b vfs.Info) bool {
	return a.Same(b) && a.Size == b.Size && a.ModTime.Equal(b.ModTime)
}

// unmoved reports whether a rename certainly did not happen.
func (d *directory) unmoved(temp string, info vfs.Info, name string, old *vfs.Info) bool {
	t, err := d.Lstat(temp)
	if err != nil || !t.Same(info) {
		return false
	}
	now, err := d.Lstat(name)
	if old == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return err == nil && now.Same(*old)
}

// clear makes sure that no file has a name, whatever the disk may hold under it: after
// a failed flush of the directory, the name that a process sees, or does not see, may
// not be what the next power cut leaves. So the name is written anew before it is
// removed.
func (d *directory) clear(name string) error {
	if _, err := d.install(name, content{}, nil); err != nil {
		return err
	}
	if err := d.Remove(name); err != nil {
		return err
	}
	return d.Sync()
}

// sweep removes the temps that killed processes left behind, the other files that are
// named, and nothing else: only regular files under names that pawl makes, never
// through a link. What cannot be removed now stays for the next sweep.
func (d *directory) sweep(others ...string) (swept []string, err error) {
	names, err := d.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !isTemp(d.temp, name) && !slices.Contains(others, name) {
			continue
		}
		if info, err := d.Lstat(name); err != nil || !info.Mode.IsRegular() {
			continue
		}
		if d.Remove(name) == nil {
			swept = append(swept, name)
		}
	}
	if swept != nil {
		err = d.Sync()
	}
	return swept, err
}

// sweepTemp is sweep for the one temp of the trust directory.
func (d *directory) sweepTemp() ([]string, error) {
	name := d.theTemp()
	if info, err := d.Lstat(name); err != nil || !info.Mode.IsRegular() || d.Remove(name) != nil {
		return nil, nil
	}
	return []string{name}, d.Sync()
}
