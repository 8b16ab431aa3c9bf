package pawl

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// sharers opens a store so many times, to be shared.
func sharers(t *testing.T, n int, o Options) (all []*Store) {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	o.Shared = true
	for range n {
		s, err := Open(t.Context(), dir, trust, &o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		all = append(all, s)
	}
	return all
}

func note(s *Store, id string) (Receipt, error) {
	return s.Commit(context.Background(), Change{ID: id, Entries: [][]byte{[]byte(id)}, Put: map[string][]byte{"last": []byte(id)}})
}

func noted(t *testing.T, s *Store, id string) Receipt {
	t.Helper()
	r, err := note(s, id)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return r
}

// free reports whether nobody holds the locks of a store.
func free(t *testing.T, s *Store) bool {
	t.Helper()
	ok := true
	for _, path := range []string{filepath.Join(s.at.trust, s.at.name+lockSuffix), filepath.Join(s.at.dir, lockName)} {
		d, err := vfs.OS().OpenDir(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := tryLock(d, filepath.Base(path), false)
		if err != nil {
			t.Fatal(err)
		}
		ok = ok && l != nil
		if err := errors.Join(l.release(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return ok
}

func TestShared(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	for _, shared := range []bool{true, false} {
		s, err := Open(t.Context(), dir, trust, &Options{Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		if s.Shared() != shared {
			t.Errorf("opened with Shared %v, and it says %v", shared, s.Shared())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The locks of a shared store are held for a change and not between two (contract 10).
func TestSharedLocksOnlyForAChange(t *testing.T) {
	s := sharers(t, 1, Options{})[0]
	if !free(t, s) {
		t.Fatal("they are held after Open")
	}
	calls := map[string]func() error{
		"commit":     func() error { _, err := note(s, "a"); return err },
		"checkpoint": func() error { return s.Checkpoint(t.Context()) },
		"lookup":     func() error { _, _, err := s.Lookup(t.Context(), "b"); return err },
		"verify":     func() error { return s.Verify(t.Context(), nil) },
		"recover":    func() error { _, err := s.Recover(t.Context()); return err },
		"a failure": func() error {
			if _, err := s.Commit(t.Context(), Change{Expect: &Version{Revision: 9}}); !errors.Is(err, ErrStale) {
				return fmt.Errorf("expected ErrStale: %w", err)
			}
			return nil
		},
		"update": func() error {
			_, err := s.Update(t.Context(), "", func(View) (Change, error) {
				if free(t, s) {
					t.Error("nobody holds them while the function of Update runs")
				}
				return Change{}, nil
			})
			return err
		},
		"a panic": func() error {
			defer func() { _ = recover() }()
			_, _ = s.Update(t.Context(), "", func(View) (Change, error) { panic("mine") })
			return nil
		},
	}
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !free(t, s) {
			t.Errorf("they are held after %s", name)
		}
	}
}

// A process decides on what the others did: Update sees it, Expect fails before anything
// is written, Lookup knows it, and ids are known across processes.
func TestSharedSeesTheOthers(t *testing.T) {
	for name, o := range map[string]Options{"extend": {}, "publish": {CheckpointEvery: 1}, "both": {CheckpointEvery: 2}, "small": {Limits: Limits{Journal: 2 * blockSize}}} {
		t.Run(name, func(t *testing.T) {
			all := sharers(t, 3, o)
			a, b, c := all[0], all[1], all[2]
			noted(t, a, "one")
			old := b.View().Version()
			if old.Revision != 0 {
				t.Fatalf("View saw %v by itself", old)
			}
			files := testkit.Snapshot(t, b.at.dir, filepath.Join(b.at.trust, b.at.name+trustSuffix))
			_, err := b.Commit(t.Context(), Change{Expect: &old, Entries: [][]byte{[]byte("x")}})
			if !errors.Is(err, ErrStale) || !errors.Is(err, ErrNotCommitted) {
				t.Errorf("a Commit that is behind: %v", err)
			}
			for path, before := range files {
				if now := testkit.Snapshot(t, path)[path]; now != before && filepath.Base(path) != lockName && path != b.at.dir {
					t.Errorf("it wrote to %s", path)
				}
			}
			now := b.View().Version() // what Commit learned
			if _, err := b.Commit(t.Context(), Change{ID: "two", Expect: &now, Entries: [][]byte{[]byte("two")}}); err != nil {
				t.Errorf("a Commit that is not behind: %v", err)
			}
			if r, err := note(c, "one"); err != nil || !r.Replayed || r.Revision != 1 {
				t.Errorf("an id of another process: %+v, %v", r, err)
			}
			if _, err := c.Commit(t.Context(), Change{ID: "two", Entries: [][]byte{[]byte("other")}}); !errors.Is(err, ErrIDReused) {
				t.Errorf("an id of another process, with other content: %v", err)
			}
			if r, out, err := a.Lookup(t.Context(), "two"); err != nil || out != OutcomeCommitted || r.Revision != 2 {
				t.Errorf("Lookup: %v %v %v", r, out, err)
			}
			if _, out, err := a.Lookup(t.Context(), "three"); err != nil || out != OutcomeNotCommitted {
				t.Errorf("Lookup of nothing: %v %v", out, err)
			}
			for i := range 30 { // through several bundles
				s := all[i%3]
				_, err := s.Update(t.Context(), "", func(v View) (Change, error) {
					if got, want := v.Version().Revision, Revision(2+i); got != want {
						t.Errorf("Update sees revision %d, want %d", got, want)
					}
					return Change{Entries: [][]byte{fmt.Append(nil, i)}}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if i%7 == 0 {
					if err := all[(i+1)%3].Checkpoint(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i, s := range all {
				if err := s.Verify(t.Context(), nil); err != nil {
					t.Errorf("Verify by %d: %v", i, err)
				}
				if rec := s.Recovery(); rec.Settled != SettledNothing || rec.Unclean {
					t.Errorf("%d: %+v", i, rec)
				}
			}
		})
	}
}

// Somebody who keeps the locks keeps the others out, who say so, and go on afterwards.
func TestSharedLocked(t *testing.T) {
	s := sharers(t, 1, Options{LockWait: time.Millisecond})[0]
	noted(t, s, "one")
	holder, err := Open(t.Context(), s.at.dir, s.at.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = note(s, "two")
	var e *Error
	if !errors.Is(err, ErrLocked) || !errors.Is(err, ErrNotCommitted) || errors.Is(err, ErrInDoubt) || !errors.As(err, &e) || !strings.Contains(e.Error(), "pid ") {
		t.Errorf("Commit: %v", err)
	}
	if _, err := s.Update(t.Context(), "x", func(View) (Change, error) { t.Error("it runs"); return Change{}, nil }); !errors.Is(err, ErrLocked) {
		t.Errorf("Update: %v", err)
	}
	for name, err := range map[string]error{"checkpoint": s.Checkpoint(t.Context()), "verify": s.Verify(t.Context(), nil)} {
		if !errors.Is(err, ErrLocked) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, out, err := s.Lookup(t.Context(), "two"); out != OutcomeUnknown || !errors.Is(err, ErrLocked) {
		t.Errorf("Lookup: %v, %v", out, err)
	}
	if r, out, err := s.Lookup(t.Context(), "one"); out != OutcomeCommitted || err != nil || r.Revision != 1 {
		t.Errorf("Lookup of what is known: %v, %v", out, err)
	}
	if r, err := note(s, "one"); err != nil || !r.Replayed {
		t.Errorf("what is known: %v, %v", r, err)
	}
	if _, err := Open(t.Context(), s.at.dir, s.at.trust, &Options{Shared: true, LockWait: time.Millisecond}); !errors.Is(err, ErrLocked) {
		t.Errorf("Open: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.opts.LockWait = time.Hour
	cancel()
	if _, err := s.Commit(ctx, Change{ID: "three"}); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNotCommitted) {
		t.Errorf("with a context that has ended: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := s.Commit(ctx, Change{ID: "three"}); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNotCommitted) {
		t.Errorf("with a context that ends: %v", err)
	}
	noted(t, holder, "four")
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if r := noted(t, s, "two"); r.Revision != 3 {
		t.Errorf("afterwards: %v", r)
	}
}

// All who wait in a process get their answer when the locks are not to be had, whichever
// of them asked for them; and what they asked for is not done later.
func TestSharedLockedTogether(t *testing.T) {
	s := sharers(t, 1, Options{LockWait: 20 * time.Millisecond})[0]
	noted(t, s, "one")
	holder, err := Open(t.Context(), s.at.dir, s.at.trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := note(s, fmt.Sprint("id", i%10)); !errors.Is(err, ErrLocked) || !errors.Is(err, ErrNotCommitted) {
				t.Errorf("%d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if r := noted(t, s, "two"); r.Revision != 2 {
		t.Errorf("afterwards: %v", r)
	}
}

// Whoever wrote last marks a clean end, and nobody else; a shared open beside others that
// are at work says nothing of an unclean end.
func TestSharedClose(t *testing.T) {
	dir, trust := testkit.Dirs(t)
	open := func(shared bool) *Store {
		s, err := Open(t.Context(), dir, trust, &Options{Shared: shared, CheckpointEvery: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	end := func(s *Store) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	closed := func() bool {
		r, err := Inspect(t.Context(), dir, trust, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Closed
	}
	a, b := open(true), open(true)
	noted(t, a, "one")
	end(b)
	if closed() {
		t.Error("one that wrote nothing has marked the end of another's work")
	}
	c := open(true)
	if c.Recovery().Unclean {
		t.Error("others are at work, and one that joins calls that unclean")
	}
	noted(t, c, "two")
	end(a)
	if closed() {
		t.Error("one that did not write last has marked the end")
	}
	end(c)
	if !closed() {
		t.Error("the last one has not marked the end")
	}
	d := open(false)
	if d.Recovery().Unclean {
		t.Error("unclean after all have closed")
	}
	end(d)
}

// followed is a store with so many commits after a state that is known.
func followed(t *testing.T, commits int) (s *Store, from known, to Root) {
	t.Helper()
	dir, trust := testkit.Dirs(t)
	s, err := Open(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	noted(t, s, "one")
	noted(t, s, "two")
	from = known{state: s.state.Load(), root: s.root, bundle: s.log.bundle}
	for i := range commits {
		noted(t, s, fmt.Sprint("later", i))
	}
	return s, from, s.root
}

// What was appended is accepted only with the digest that trust names (contract 1).
func TestFollowOnlyToTheRoot(t *testing.T) {
	s, from, to := followed(t, 3)
	limit := s.opts.Limits.Journal
	steps, ok := from.follow(s.dir, limit, to)
	if !ok || len(steps) != 3 || from.state.with(steps).version() != s.View().Version() {
		t.Fatalf("%d steps, %v", len(steps), ok)
	}
	if steps, ok := from.follow(s.dir, limit, from.root); !ok || len(steps) != 0 {
		t.Errorf("to where it is: %d steps, %v", len(steps), ok)
	}
	other := func(f func(r *Root)) Root {
		r := to
		f(&r)
		return r
	}
	for name, to := range map[string]Root{
		"another digest":   other(func(r *Root) { r.Digest[7] ^= 1 }),
		"another revision": other(func(r *Root) { r.Revision++ }),
		"another epoch":    other(func(r *Root) { r.Epoch++ }),
		"longer":           other(func(r *Root) { r.Journal += blockSize }),
		"shorter":          other(func(r *Root) { r.Journal -= blockSize }),
		"no longer":        other(func(r *Root) { r.Journal = from.root.Journal }),
		"over the limit":   other(func(r *Root) { r.Journal = limit + blockSize }),
		"beyond the file":  other(func(r *Root) { r.Journal = limit }),
		"nothing":          {},
	} {
		if _, ok := from.follow(s.dir, limit, to); ok {
			t.Errorf("%s is accepted", name)
		}
	}
	from.root.Digest[0] ^= 1
	if _, ok := from.follow(s.dir, limit, to); ok {
		t.Error("frames that do not go on from what is known are accepted")
	}
}
