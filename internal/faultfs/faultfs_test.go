//go:build unix || windows

package faultfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// newFS returns a file system and an open directory in it.
func newFS(t *testing.T) (*FS, vfs.Dir) {
	t.Helper()
	dir, _ := testkit.Dirs(t)
	f := New(vfs.OS(), filepath.Dir(dir))
	d, err := vfs.FromContext(f.Context(context.Background())).OpenDir(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	f.Set(nil)
	return f, d
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestNames makes every call once.
func TestNames(t *testing.T) {
	f, d := newFS(t)
	must(t, d.Mkdir("session", 0o700))
	s, err := d.OpenDir("session")
	must(t, err)
	h, err := s.Create("tmp-0123456789abcdef", 0o600)
	must(t, err)
	_, err = h.WriteAt(make([]byte, 10), 4)
	must(t, err, h.Chmod(0o640), h.Chgrp(-1), h.SyncData(), h.Sync(), h.Close())
	must(t, s.Link("tmp-0123456789abcdef", "bundle"), s.Remove("tmp-0123456789abcdef"), s.Rename("bundle", "tmp-fedcba9876543210"))
	must(t, s.Rename("tmp-fedcba9876543210", "bundle"))
	r, err := s.Open("bundle")
	must(t, err)
	_, err = r.ReadAt(make([]byte, 7), 0)
	must(t, err, r.Close())
	w, err := s.OpenRW("bundle")
	must(t, err)
	_, err = w.Stat()
	must(t, err, w.Close())
	l, err := s.OpenLock("lock")
	must(t, err)
	_, err = l.TryLock()
	must(t, err, l.Close())
	_, err = s.Stat()
	must(t, err)
	_, err = s.System()
	must(t, err)
	_, err = s.Names()
	must(t, err)
	_, err = s.Lstat("bundle")
	must(t, err, s.Sync(), s.Close())
	_, err = f.Resolve(d.Path())
	must(t, err)
	_, err = f.Lstat(filepath.Dir(d.Path()))
	must(t, err)

	var names, mutating []string
	for i, c := range f.Calls() {
		names = append(names, c.String())
		if c.N != i+1 {
			t.Errorf("%s has number %d", c, c.N)
		}
	}
	for _, c := range f.Mutating() {
		mutating = append(mutating, c.String())
	}
	want := []string{
		"session Mkdir", "session OpenDir",
		"session/tmp-* Create", "session/tmp-* WriteAt 10@4", "session/tmp-* Chmod 0640", "session/tmp-* Chgrp",
		"session/tmp-* SyncData", "session/tmp-* Sync", "session/tmp-* Close",
		"session/tmp-* Link session/bundle", "session/tmp-* Remove", "session/bundle Rename session/tmp-*", "session/tmp-* Rename session/bundle",
		"session/bundle Open", "session/bundle ReadAt 7@0", "session/bundle Close",
		"session/bundle OpenRW", "session/bundle Stat", "session/bundle Close",
		"session/lock OpenLock", "session/lock TryLock", "session/lock Close",
		"session Stat", "session System", "session Names", "session/bundle Lstat", "session Sync", "session Close",
		". Resolve", "above Lstat",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("calls (-want +got): %s", diff)
	}
	wantMutating := []string{
		"session Mkdir",
		"session/tmp-* Create", "session/tmp-* WriteAt 10@4", "session/tmp-* Chmod 0640", "session/tmp-* Chgrp",
		"session/tmp-* SyncData", "session/tmp-* Sync",
		"session/tmp-* Link session/bundle", "session/tmp-* Remove", "session/bundle Rename session/tmp-*", "session/tmp-* Rename session/bundle",
		"session/lock OpenLock", "session Sync",
	}
	if diff := cmp.Diff(wantMutating, mutating); diff != "" {
		t.Errorf("calls that change something (-want +got): %s", diff)
	}
}

func TestFail(t *testing.T) {
	for _, done := range []bool{false, true} {
		f, d := newFS(t)
		f.Set(func(Call) Action { return Action{Err: syscall.EIO, Done: done} })
		h, err := d.Create("file", 0o600)
		if !errors.Is(err, ErrInjected) || !errors.Is(err, syscall.EIO) || h != nil {
			t.Errorf("Create: %v, %v", h, err)
		}
		f.Set(nil)
		_, err = d.Lstat("file")
		if done && err != nil || !done && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("done: %v, afterwards: %v", done, err)
		}
		sub, err := d.OpenDir(".")
		if err == nil {
			t.Errorf("a name that is none: %v", sub)
		}
		testkit.NothingLeft(t, filepath.Join(d.Path(), "file")) // the handle that nobody got
	}
}

func TestCloseIsAlwaysDone(t *testing.T) {
	f, d := newFS(t)
	h, err := d.Create("file", 0o600)
	must(t, err)
	f.Set(func(Call) Action { return Action{Err: syscall.EIO} })
	if err := h.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Close: %v", err)
	}
	f.Set(nil)
	if err := h.Close(); err == nil {
		t.Error("was not closed")
	}
}

func TestHalf(t *testing.T) {
	f, d := newFS(t)
	h, err := d.Create("file", 0o600)
	must(t, err)
	defer h.Close()
	f.Set(func(Call) Action { return Action{Half: true} })
	if n, err := h.WriteAt([]byte("abcdef"), 0); n != 3 || err != nil {
		t.Errorf("half a write: %d, %v", n, err)
	}
	f.Set(func(Call) Action { return Action{Half: true, Err: syscall.ENOSPC} })
	if n, err := h.WriteAt([]byte("defghi"), 3); n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("half a write that fails: %d, %v", n, err)
	}
	f.Set(nil)
	b := make([]byte, 10)
	if n, err := h.ReadAt(b, 0); string(b[:n]) != "abcdef" || err != io.EOF {
		t.Errorf("the file: %q, %v", b[:n], err)
	}
	f.Set(func(Call) Action { return Action{Half: true} })
	if n, err := h.ReadAt(b[:6], 0); n != 3 || err != nil {
		t.Errorf("half a read: %d, %v", n, err)
	}
}

func TestBeforeAndAfter(t *testing.T) {
	f, d := newFS(t)
	there := func() bool { _, err := vfs.OS().Lstat(filepath.Join(d.Path(), "file")); return err == nil }
	var seen []bool
	look := func() { seen = append(seen, there()) }
	f.Set(func(Call) Action { return Action{Before: look, After: look} })
	h, err := d.Create("file", 0o600)
	must(t, err, h.Close())
	if !slices.Equal(seen, []bool{false, true, true, true}) {
		t.Errorf("before and after Create and Close: %v", seen)
	}
}

func TestNoFlush(t *testing.T) {
	f, d := newFS(t)
	f.NoFlush = true
	must(t, d.Sync())
	f.Set(func(Call) Action { return Action{Err: syscall.EIO} })
	if err := d.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Sync: %v", err)
	}
}

func TestPlan(t *testing.T) {
	for _, sticky := range []bool{false, true} {
		p := &Plan{N: 2, Sticky: sticky, Action: Action{Half: true}, Only: func(c Call) bool { return c.Op == "Sync" }}
		var hits []int
		for i, op := range []string{"Sync", "Open", "Sync", "Open", "Sync", "Sync"} {
			if i == 5 {
				p.Lift()
			}
			if p.Hook(Call{N: i, Op: op}).Half {
				hits = append(hits, i)
			}
		}
		want := []int{2}
		if sticky {
			want = []int{2, 4}
		}
		if !slices.Equal(hits, want) || len(p.Fired()) != len(want) {
			t.Errorf("sticky %v: acted on %v, want %v; %v", sticky, hits, want, p.Fired())
		}
	}
}

// TestAfterFunc: a timer is no call, and what its function does goes through the hook.
func TestAfterFunc(t *testing.T) {
	p := simfs.New(simfs.PosixMinimal, "/a").Start()
	f := New(p, "/")
	f.Set(func(Call) Action { return Action{Err: syscall.EIO} })
	var err error
	vfs.FromContext(f.Context(context.Background())).AfterFunc(0, func() { _, err = f.Lstat("/a") })
	p.Idle()
	if calls := f.Calls(); len(calls) != 1 || calls[0].Op != "Lstat" || !errors.Is(err, ErrInjected) {
		t.Errorf("calls %v, %v", calls, err)
	}
}
