//go:build unix || windows

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// ruin is a store that was brought into a state that Open refuses, and what a person who
// follows the hint does.
type ruin struct {
	*place
	backup string
	early  map[string][]byte // both directories, as they were earlier
	late   map[string][]byte // and at the end
	file   string            // the file that is in the way, for quarantine
	free   func()            // ends what is in the way
}

func filesOf(t *testing.T, dirs ...string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				all[path], err = os.ReadFile(path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return all
}

func (r *ruin) putBack(files map[string][]byte, dir string) {
	r.t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		r.t.Fatal(err)
	}
	for path, b := range files {
		if strings.HasPrefix(path, dir+string(filepath.Separator)) {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func (r *ruin) edit(path string, f func([]byte) []byte) {
	r.t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, f(b), 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// failing carries out do on a machine of which one call fails.
func (r *ruin) failing(op, path string, do func(ctx context.Context) error) {
	r.t.Helper()
	m := faultfs.New(vfs.OS(), filepath.Dir(r.store))
	m.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == op && strings.HasSuffix(c.Path, path) {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	if err := do(m.Context(context.Background())); err == nil {
		r.t.Fatal("nothing failed")
	}
}

// cutOff leaves a commit of which only the intent is sure.
func (r *ruin) cutOff() {
	r.t.Helper()
	r.failing("SyncData", "journal.000000000001", func(ctx context.Context) error {
		s, err := pawl.Open(ctx, r.store, r.trust, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = s.Commit(ctx, pawl.Change{Put: map[string][]byte{"state": []byte("cut off")}})
		s.Close()
		return err
	})
}

func (r *ruin) trustFile() string { return filepath.Join(r.trust, "session.trust") }

var ruins = []struct {
	name  string
	spoil func(r *ruin)
	kind  error // what status says, or command says
	say   []string
	// what leads out besides a command that the hint names; nil: nothing does
	byHand func(r *ruin)
	cannot []string // commands that the hint names, and that are not the way out here
}{
	{name: "nothing there", kind: pawl.ErrNotExist, say: []string{"log"},
		spoil: func(r *ruin) { r.putBack(nil, r.store); r.putBack(nil, r.trust) }},
	{name: "locked", kind: pawl.ErrLocked, say: []string{"put", "x"},
		spoil: func(r *ruin) {
			s, err := pawl.Open(context.Background(), r.store, r.trust, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			r.free = func() { s.Close() }
		},
		byHand: func(r *ruin) { r.free() }},
	{name: "no trust file", kind: pawl.ErrUntrusted,
		spoil:  func(r *ruin) { r.putBack(nil, r.trust) },
		byHand: func(r *ruin) { r.putBack(r.late, r.trust) }},
	{name: "trust file damaged", kind: pawl.ErrTrustDamaged,
		spoil: func(r *ruin) {
			r.edit(r.trustFile(), func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) })
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.trust) }},
	{name: "trust file behind", kind: pawl.ErrTrustBehind,
		spoil:  func(r *ruin) { r.putBack(r.early, r.trust) },
		byHand: func(r *ruin) { r.putBack(r.late, r.trust) }},
	{name: "store directory gone", kind: pawl.ErrMissing,
		spoil:  func(r *ruin) { r.putBack(nil, r.store) },
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "rolled back", kind: pawl.ErrRolledBack,
		spoil:  func(r *ruin) { r.putBack(r.early, r.store) },
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "another store", kind: pawl.ErrForeign,
		spoil: func(r *ruin) {
			other := newPlace(r.t)
			other.must("", "init")
			other.must("one", "put", "state")
			if err := errors.Join(os.RemoveAll(r.store), os.CopyFS(r.store, os.DirFS(other.store))); err != nil {
				r.t.Fatal(err)
			}
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "bytes after the journal", kind: pawl.ErrUnauthorized,
		spoil: func(r *ruin) {
			r.file = "journal.000000000001"
			r.edit(filepath.Join(r.store, r.file), func(b []byte) []byte { copy(b[len(b)-5000:], "nobody knows"); return b })
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "a directory where the bundle was", kind: pawl.ErrUnauthorized,
		spoil: func(r *ruin) {
			r.file = "bundle"
			if err := errors.Join(os.Rename(filepath.Join(r.store, "bundle"), r.backup+".bundle"), os.Mkdir(filepath.Join(r.store, "bundle"), 0o700)); err != nil {
				r.t.Fatal(err)
			}
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "bundle damaged, no journal", kind: pawl.ErrDamaged,
		spoil: func(r *ruin) {
			r.must("", "compact", "--keep-last", "1")
			r.late = filesOf(r.t, r.store, r.trust)
			r.edit(filepath.Join(r.store, "bundle"), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "bundle damaged", kind: pawl.ErrDamaged,
		spoil: func(r *ruin) {
			r.edit(filepath.Join(r.store, "bundle"), func(b []byte) []byte { b[300] ^= 1; return b })
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "bundle and trust file damaged", kind: pawl.ErrTrustDamaged, cannot: []string{"adopt"}, // which says so
		spoil: func(r *ruin) {
			for _, path := range []string{r.trustFile(), filepath.Join(r.store, "bundle")} {
				r.edit(path, func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) })
			}
			out, errs, code := r.run("", "adopt")
			if code != 13 || strings.Contains(out+errs, "pawl adopt makes") || !strings.Contains(strings.Join(strings.Fields(errs), " "), "pawl restore FILE") {
				r.t.Errorf("adopt: %d, %s%s", code, out, errs)
			}
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store); r.putBack(r.late, r.trust) }},
	{name: "a journal of a later bundle", kind: pawl.ErrUnauthorized,
		spoil: func(r *ruin) {
			r.file = "journal.000000000002"
			r.edit(filepath.Join(r.store, "journal.000000000001"), func(b []byte) []byte {
				if err := os.WriteFile(filepath.Join(r.store, r.file), b, 0o600); err != nil {
					r.t.Fatal(err)
				}
				return b
			})
			if e := r.error([]string{"append"}); e == nil || filepath.Base(e.Path) != r.file {
				r.t.Errorf("the path of the error: %+v", e)
			}
		},
		byHand: func(r *ruin) {
			r.must("", strings.Fields(r.typed("pawl adopt"))...)
			if out := r.must("", "log"); strings.Count(out, "\n") != 3 {
				r.t.Errorf("adopting what is there has lost something:\n%s", out)
			}
		}},
	{name: "bytes after a commit that was cut off", kind: pawl.ErrUnauthorized,
		spoil: func(r *ruin) {
			r.cutOff()
			r.edit(filepath.Join(r.store, "journal.000000000001"), func(b []byte) []byte { copy(b[len(b)-5000:], "nobody knows"); return b })
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store); r.putBack(r.late, r.trust) }},
	{name: "a copy of the trust file in the store directory", kind: pawl.ErrUntrusted,
		spoil: func(r *ruin) {
			r.edit(r.trustFile(), func(b []byte) []byte {
				if err := os.WriteFile(filepath.Join(r.store, "old.trust"), b, 0o600); err != nil {
					r.t.Fatal(err)
				}
				return b
			})
			r.putBack(nil, r.trust)
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.trust) }},
	{name: "a file where the segments were", kind: pawl.ErrDamaged, say: []string{"verify"},
		spoil: func(r *ruin) {
			r.file = "segments"
			r.must("", "compact", "--keep-last", "1")
			r.must("", "backup", r.backup+".2")
			r.backup += ".2"
			r.late = filesOf(r.t, r.store, r.trust)
			path := filepath.Join(r.store, "segments")
			if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("not a directory"), 0o600)); err != nil {
				r.t.Fatal(err)
			}
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "a directory where a lock was", kind: pawl.ErrUnauthorized,
		spoil: func(r *ruin) {
			path := filepath.Join(r.trust, "session.lock")
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				r.t.Fatal(err)
			}
			if _, errs, code := r.run("", "append"); code != 18 {
				r.t.Errorf("append: %d, %s", code, errs)
			}
		},
		byHand: func(r *ruin) {
			if err := os.Rename(filepath.Join(r.trust, "session.lock"), filepath.Join(r.trust, "moved away")); err != nil {
				r.t.Fatal(err)
			}
		}},
	{name: "others can write to the trust file", kind: pawl.ErrInsecure,
		spoil: func(r *ruin) {
			if runtime.GOOS == "windows" {
				r.t.Skip("modes say nothing there")
			}
			if err := os.Chmod(r.trustFile(), 0o666); err != nil {
				r.t.Fatal(err)
			}
			if out, _, code := r.run("", "doctor"); code != exitUnfit || !strings.Contains(out, "the trust file is") {
				r.t.Errorf("doctor: %d, %s", code, out)
			}
		},
		byHand: func(r *ruin) {
			if err := os.Chmod(r.trustFile(), 0o600); err != nil {
				r.t.Fatal(err)
			}
		}},
	{name: "the directories swapped, before there is a commit", kind: pawl.ErrInsecure,
		spoil: func(r *ruin) {
			r.putBack(nil, r.store)
			r.putBack(nil, r.trust)
			r.must("", "init")
			r.store, r.trust = r.trust, r.store
			if out, _, code := r.run("", "doctor"); code != exitUnfit {
				r.t.Errorf("doctor: %d, %s", code, out)
			}
			if _, errs, code := r.run("", "init"); code != 24 {
				r.t.Errorf("init: %d, %s", code, errs)
			}
		},
		byHand: func(r *ruin) { r.store, r.trust = r.trust, r.store }},
	{name: "journal damaged", kind: pawl.ErrDamaged,
		spoil: func(r *ruin) {
			r.edit(filepath.Join(r.store, "journal.000000000001"), func(b []byte) []byte { b[8192+50] ^= 1; return b })
		},
		byHand: func(r *ruin) { r.putBack(r.late, r.store) }},
	{name: "a commit that was cut off", kind: pawl.ErrUnsettled, say: []string{"log"},
		spoil: func(r *ruin) {
			r.cutOff()
		}},
	{name: "a removal that was cut off", kind: pawl.ErrMissing,
		spoil: func(r *ruin) {
			report, err := pawl.Inspect(context.Background(), r.store, r.trust, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			r.failing("Remove", "session/bundle", func(ctx context.Context) error {
				_, err := pawl.Remove(ctx, r.store, r.trust, nil, pawl.Decision{Digest: report.Confirmed.Digest, Reason: "test"})
				return err
			})
			if _, err := os.Stat(filepath.Join(r.store, "bundle")); err != nil {
				r.t.Fatal(err)
			}
		}},
	{name: "others can write", kind: pawl.ErrInsecure,
		spoil: func(r *ruin) {
			if runtime.GOOS == "windows" {
				r.t.Skip("modes say nothing there")
			}
			if err := os.Chmod(r.trust, 0o777); err != nil {
				r.t.Fatal(err)
			}
		},
		byHand: func(r *ruin) {
			if err := os.Chmod(r.trust, 0o755); err != nil {
				r.t.Fatal(err)
			}
		}},
}

var named = regexp.MustCompile(`pawl (--wait 30s|[a-z]+)( [A-Z]+)?`)

// typed is what a command says to type, without the name of the program.
func (r *ruin) typed(command string) string {
	r.t.Helper()
	_, errs, _ := r.run("", strings.Fields(command)[1:]...)
	_, line, ok := strings.Cut(errs, "\n  pawl ")
	if !ok {
		r.t.Fatalf("%s does not say what to type: %s", command, errs)
	}
	return strings.ReplaceAll(strings.TrimSpace(line), "WHY", "as-the-hint-says")
}

// follow carries out a command that a hint names, with what it leaves open filled in.
func (r *ruin) follow(command string) {
	r.t.Helper()
	var args []string
	for _, word := range strings.Fields(command)[1:] {
		switch word {
		case "FILE":
			word = r.backup
		case "NAME":
			word = r.file
		}
		args = append(args, word)
	}
	switch args[0] {
	case "--wait":
		go r.free()
		r.must("", "--wait", "30s", "put", "x")
		return
	case "init", "recover", "status", "verify":
		r.must("", args...)
		return
	}
	out, errs, code := r.run("", args...)
	if code == 3 { // it says what to type
		_, line, ok := strings.Cut(errs, "\n  ")
		if !ok {
			r.t.Fatalf("%s does not say what to type: %s%s", command, out, errs)
		}
		args = strings.Fields(strings.ReplaceAll(strings.TrimSpace(line), "WHY", "as-the-hint-says"))[1:]
		out, errs, code = r.run("", args...)
	}
	if code != 0 {
		r.t.Fatalf("pawl %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
}

// TestHintsLeadOut brings a store into each state, takes the hint at its word, each way
// out that it names, and is out: the store opens, and no byte of what was there is gone.
func TestHintsLeadOut(t *testing.T) {
	for _, tt := range ruins {
		t.Run(tt.name, func(t *testing.T) {
			bring := func(t *testing.T) (*ruin, *pawl.Error, map[string][]byte) {
				r := &ruin{place: newPlace(t), backup: filepath.Join(t.TempDir(), "backup.tar")}
				r.must("", "init")
				r.must("one\n", "append")
				r.must("first", "put", "state")
				r.must("two\n", "append")
				r.early = filesOf(t, r.store, r.trust)
				r.must("second", "put", "state")
				r.must("three\n", "append")
				r.must("", "backup", r.backup)
				r.late = filesOf(t, r.store, r.trust)
				tt.spoil(r)
				if r.free != nil {
					t.Cleanup(func() { r.free() })
				}
				before := filesOf(t, r.store, r.trust)
				args := tt.say
				if args == nil {
					args = []string{"status"}
				}
				out, errs, code := r.run("", args...)
				if code != exitCode(tt.kind) || !strings.Contains(out+errs, "what to do: ") {
					t.Fatalf("pawl %s: exit code %d, want %d\n%s%s", args, code, exitCode(tt.kind), out, errs)
				}
				e := r.error(args)
				return r, e, before
			}
			r, e, before := bring(t)
			if e == nil || !errors.Is(e, tt.kind) || e.Hint == "" {
				t.Fatalf("%v", e)
			}
			var ways []string
			for _, m := range named.FindAllString(e.Hint, -1) {
				if !slices.Contains(ways, m) && !slices.Contains(tt.cannot, strings.Fields(m)[1]) {
					ways = append(ways, m)
				}
			}
			if len(ways) == 0 && tt.byHand == nil {
				t.Fatalf("no way out is named: %s", e.Hint)
			}
			out := func(r *ruin, how string, before map[string][]byte) {
				t.Helper()
				if r.free != nil {
					r.free()
				}
				if out, errs, code := r.run("", "status"); code != 0 {
					t.Errorf("after %s: exit code %d\n%s%s", how, code, out, errs)
				}
				if strings.HasSuffix(how, "remove") {
					return
				}
				r.must("on it goes\n", "append")
				r.must("", "verify")
				if how == "by hand" || strings.HasPrefix(how, "pawl --wait") || strings.HasPrefix(how, "pawl recover") {
					return // what was ruined is replaced by a copy; or there was nothing to keep
				}
				have := map[[32]byte]bool{}
				for _, b := range filesOf(t, r.store, r.trust) {
					have[sha256.Sum256(b)] = true
				}
				for path, b := range before {
					if !have[sha256.Sum256(b)] && !strings.HasSuffix(path, "lock") && !strings.HasSuffix(path, ".audit") {
						t.Errorf("after %s, %s is nowhere any more", how, path)
					}
				}
			}
			if tt.byHand != nil {
				tt.byHand(r)
				out(r, "by hand", before)
			}
			if testing.Short() { // each command takes a second under Wine
				ways = ways[:min(len(ways), 1)]
			}
			for _, way := range ways {
				r, _, before := bring(t)
				r.follow(way)
				if strings.HasPrefix(way, "pawl quarantine") {
					r.follow("pawl restore FILE") // as it goes on to say
				}
				out(r, way, before)
			}
		})
	}
}

// error is what a command fails with.
func (r *ruin) error(args []string) (e *pawl.Error) {
	c := r.call(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{})
	errors.As(c.dispatch(r.t.Context(), args), &e)
	return e
}
