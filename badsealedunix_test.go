//go:build unix

package pawl_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// TestSealedClosedToTheCaller: segments and parts that the caller may not read. The class
// is the operating system's: that says nothing about the bytes.
func TestSealedClosedToTheCaller(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	one, _ := sealedStores(t)
	for _, name := range []string{one.segments[1], one.partFile["large-a"]} {
		t.Run(name[:strings.Index(name, "/")], func(t *testing.T) {
			b := newBench(t)
			b.laySealed(one)
			chmod(t, b.at(name), 0)
			s := b.sealedOpen()
			defer b.close(s)
			closed := func(op string, err error) {
				t.Helper()
				if e := typed(t, err, op, nil, fs.ErrPermission); e.Path != b.at(name) || errors.Is(err, pawl.ErrDamaged) {
					t.Errorf("%s: %v", op, err)
				}
			}
			closed("verify", s.Verify(context.Background(), nil))
			if strings.HasPrefix(name, "parts") {
				_, _, err := s.View().Get("large-a")
				closed("get", err)
				return
			}
			n := 0
			for e, err := range s.View().Entries(0) {
				if n++; n == 2 {
					closed("entries", err)
				} else if err != nil || e.Seq != 1 {
					t.Errorf("%d: %v", e.Seq, err)
				}
			}
			if n != 2 {
				t.Errorf("%d entries", n)
			}
			_, outcome, err := s.Lookup(context.Background(), "nobody's")
			if closed("lookup", err); outcome != pawl.OutcomeUnknown {
				t.Errorf("%v", outcome)
			}
			_, err = s.Commit(context.Background(), entry("new", "x"))
			exactly(t, err, pawl.ErrNotCommitted, fs.ErrPermission)
			commit(t, s, entry("", "x"))
			if err := s.Checkpoint(context.Background()); err != nil {
				t.Error(err)
			}
			_, err = s.Compact(context.Background(), pawl.Policy{KeepLast: 1})
			closed("compact", err)
			if err := os.Chmod(b.at(name), 0o600); err != nil {
				t.Fatal(err)
			}
			b.mended(s, one)
		})
	}
	for _, folder := range []string{"segments", "parts"} {
		for _, mode := range []fs.FileMode{0, 0o300, 0o600} {
			t.Run(folder+"/"+mode.String(), func(t *testing.T) {
				b := newBench(t)
				b.laySealed(one)
				path := b.at(folder)
				write(t, filepath.Join(b.dir, "lock"), "")
				write(t, filepath.Join(b.trust, "session.lock"), "")
				before := testkit.Snapshot(t, path, b.bundle, b.slots)
				chmod(t, path, mode)
				for range 2 { // the second time shows that the first gave up its locks
					s, err := pawl.Open(quick(), b.dir, b.trust, sealing)
					if err == nil {
						b.close(s)
						t.Fatal("it opens, though nobody can tell what is there to sweep")
					}
					if e := typed(t, err, "open", nil, fs.ErrPermission); e.Path != path {
						t.Errorf("%v", err)
					}
				}
				r, err := pawl.OpenReader(quick(), b.dir, b.trust, sealing)
				if err != nil {
					t.Fatal(err)
				}
				if got := dump(r.View()); !strings.Contains(got, fs.ErrPermission.Error()) {
					t.Errorf("a Reader has read it:\n%s", got)
				}
				b.close(r)
				if err := os.Chmod(path, 0o700); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, testkit.Snapshot(t, path, b.bundle, b.slots)); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
				b.sealedOpenAgain(one)
			})
		}
	}
}
