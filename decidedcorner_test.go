//go:build unix

package pawl_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

func rolled(t *testing.T, dir, trust string, o *pawl.Options) (backup []byte, found pawl.Digest) {
	s := openStore(t, bg, dir, trust, o)
	commits(t, s, 1, 3)
	backup = backupOf(t, s)
	must(t, s.Close())
	early := copyOf(t, dir)
	s = openStore(t, bg, dir, trust, o)
	commits(t, s, 4, 3)
	must(t, s.Close())
	early.putBack(t, dir)
	return backup, inspect(t, dir, trust, o).Found.Digest
}

func TestDecidedLongName(t *testing.T) {
	for _, n := range []int{231, 232, 233, 234} {
		dir, trust := testkit.AgedDirs(t)
		o := &pawl.Options{Name: strings.Repeat("n", n)}
		_, d := rolled(t, dir, trust, o)
		_, err := pawl.Adopt(bg, dir, trust, o, pawl.Decision{Digest: d, Reason: "x"})
		if err != nil {
			t.Errorf("name of %d bytes: %.300v", n, err)
		}
	}
}

func TestDecidedBundleIsDir(t *testing.T) {
	for _, what := range []string{"dir", "link", "journal dir"} {
		dir, trust := testkit.AgedDirs(t)
		s := openStore(t, bg, dir, trust, nil)
		commits(t, s, 1, 3)
		b := backupOf(t, s)
		must(t, s.Close())
		d := trusted(t, dir, trust)
		p := filepath.Join(dir, "bundle")
		switch what {
		case "dir":
			must(t, os.Remove(p))
			must(t, os.Mkdir(p, 0o700))
		case "link":
			must(t, os.Rename(p, filepath.Join(dir, "b")))
			must(t, os.Symlink("b", p))
		case "journal dir":
			j := filepath.Join(dir, "journal.000000000001")
			must(t, os.Remove(j))
			must(t, os.Mkdir(j, 0o700))
		}
		if _, err := pawl.Restore(bg, dir, trust, nil, bytes.NewReader(b), pawl.Decision{Digest: d, Reason: "x"}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestDecidedTrustIsDir(t *testing.T) {
	for _, what := range []string{"dir", "link"} {
		dir, trust := testkit.AgedDirs(t)
		s := openStore(t, bg, dir, trust, nil)
		commits(t, s, 1, 3)
		must(t, s.Close())
		p := filepath.Join(trust, "session.trust")
		if what == "dir" {
			must(t, os.Remove(p))
			must(t, os.Mkdir(p, 0o700))
		} else {
			must(t, os.Rename(p, p+"x"))
			must(t, os.Symlink("session.trustx", p))
		}
		rep := inspect(t, dir, trust, nil)
		_, err := pawl.Adopt(bg, dir, trust, nil, pawl.Decision{Digest: rep.Found.Digest, Reason: "x"})
		if err != nil || inspect(t, dir, trust, nil).Verdict != "clean" {
			t.Errorf("the trust file is a %s: %v", what, err)
		}
	}
}

func TestDecidedAdoptDryRunDamage(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	_, d := rolled(t, dir, trust, laid["segments"])
	segs, _ := filepath.Glob(dir + "/segments/*")
	must(t, os.Remove(segs[0]))
	plan, err := pawl.Adopt(bg, dir, trust, nil, pawl.Decision{DryRun: true})
	must(t, err)
	r, err := pawl.Adopt(bg, dir, trust, nil, pawl.Decision{Digest: d, Reason: "x"})
	must(t, err)
	if len(plan.Damage) != len(r.Damage) {
		t.Errorf("the dry run tells of %d damages, the real one of %d: %+v", len(plan.Damage), len(r.Damage), r.Damage)
	}
}

func TestDecidedNoLinks(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Link" {
			return faultfs.Action{Err: errors.ErrUnsupported}
		}
		return faultfs.Action{}
	})
	s := openStore(t, ctx, dir, trust, laid["segments"])
	commits(t, s, 1, 3)
	b := backupOf(t, s)
	commits(t, s, 4, 3)
	must(t, s.Close())
	before := copyOf(t, dir, trust)
	r, err := pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b), pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"})
	must(t, err)
	before.kept(t, dir, trust)
	must(t, os.WriteFile(filepath.Join(dir, "segments", "n"), []byte("note"), 0o600))
	_, err = pawl.Quarantine(ctx, dir, trust, nil, "segments/n", pawl.Decision{Digest: sha256.Sum256([]byte("note")), Reason: "x"})
	must(t, err)
	s = openStore(t, ctx, dir, trust, laid["segments"])
	must(t, errors.Join(s.Verify(bg, nil), s.Close()))
	before.kept(t, dir, trust)
	_, err = pawl.Rename(ctx, dir, trust, nil, filepath.Join(filepath.Dir(dir), "re"), "", pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"})
	must(t, err)
	_ = r
}

func TestDecidedQuarantineSwap(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 1)
	must(t, s.Close())
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	p := filepath.Join(dir, "note")
	must(t, os.WriteFile(p, []byte("A"), 0o600))
	must(t, os.WriteFile(p+"B", []byte("B"), 0o600))
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Link" {
			return faultfs.Action{
				Before: func() { must(t, errors.Join(os.Rename(p, p+"A"), os.Rename(p+"B", p))) },
				After:  func() { must(t, errors.Join(os.Remove(p), os.Rename(p+"A", p))) },
			}
		}
		return faultfs.Action{}
	})
	_, err := pawl.Quarantine(ctx, dir, trust, nil, "note", pawl.Decision{Digest: sha256.Sum256([]byte("A")), Reason: "x"})
	found := false
	for _, b := range copyOf(t, dir) {
		found = found || string(b) == "A"
	}
	if !found {
		t.Errorf("A is destroyed: %v", err)
	}
}

func TestDecidedSealDropsLive(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, nil) // all in the bundle
	commits(t, s, 1, 4)
	b := backupOf(t, s)
	must(t, s.Close())
	o := &pawl.Options{CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 1}}
	s = openStore(t, bg, dir, trust, o)
	must(t, s.Close())
	// seal exactly these four
	s = openStore(t, bg, dir, trust, o)
	must(t, s.Checkpoint(bg))
	must(t, s.Close())
	s = openStore(t, bg, dir, trust, o)
	commits(t, s, 5, 2)
	must(t, s.Close())
	before := copyOf(t, dir, trust)
	f := faultfs.New(vfs.OS(), filepath.Dir(dir))
	ctx := f.Context(bg)
	placed := map[string]bool{}
	f.Set(func(c faultfs.Call) faultfs.Action {
		if c.Op == "Rename" && strings.HasPrefix(c.Path, "session/segments/") {
			placed["session/segments/"+filepath.Base(c.Detail)] = true
		}
		if c.Op == "ReadAt" && placed[c.Path] {
			return faultfs.Action{Err: syscall.EIO}
		}
		return faultfs.Action{}
	})
	_, err := pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b), pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"})
	f.Set(nil)
	before.kept(t, dir, trust)
	if err != nil {
		s = openStore(t, bg, dir, trust, o)
		if err := s.Verify(bg, nil); err != nil {
			t.Errorf("after an error the store is not what it was: %v", err)
		}
		s.Close()
	}
}

func tarFiles(t *testing.T, b []byte) (names []string, data map[string][]byte) {
	data = map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return
		}
		must(t, err)
		names = append(names, h.Name)
		data[h.Name], err = io.ReadAll(tr)
		must(t, err)
	}
}

func TestDecidedDuplicateForMissing(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, laid["segments"])
	commits(t, s, 1, 4)
	b := backupOf(t, s)
	must(t, s.Close())
	names, data := tarFiles(t, b)
	var seg []string
	for _, n := range names {
		if strings.HasPrefix(n, "segments/") {
			seg = append(seg, n)
		}
	}
	if len(seg) < 2 {
		t.Skip(seg)
	}
	// the second is replaced by the first, in stream and manifest
	sum := func(n string) string { return fmt.Sprintf("%x", sha256.Sum256(data[n])) }
	m := string(data["manifest.json"])
	m = strings.Replace(m, seg[1], seg[0], 1)
	m = strings.Replace(m, sum(seg[1]), sum(seg[0]), 1)
	m = strings.Replace(m, fmt.Sprintf("\"size\": %d", len(data[seg[1]])), fmt.Sprintf("\"size\": %d", len(data[seg[0]])), 1)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, n := range names {
		d := data[n]
		if n == seg[1] {
			n = seg[0]
			d = data[n]
		}
		if n == "manifest.json" {
			d = []byte(m)
		}
		must(t, w.WriteHeader(&tar.Header{Name: n, Size: int64(len(d)), Mode: 0o600, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}))
		w.Write(d)
	}
	must(t, w.Close())
	info, err := pawl.CheckBackup(bg, bytes.NewReader(out.Bytes()), nil)
	if err == nil {
		t.Errorf("a backup without %s passes: %+v", seg[1], info)
	}
	to, toTrust := testkit.AgedDirs(t)
	if _, err = pawl.Restore(bg, to, toTrust, nil, bytes.NewReader(out.Bytes()), pawl.Decision{Reason: "x"}); !errors.Is(err, pawl.ErrDamaged) {
		t.Error(err)
	}
	if _, e := os.Lstat(to); e == nil {
		t.Errorf("and Restore wrote before it found out: %v", len(copyOf(t, to)))
	}
}

// A call whose context has ended does nothing.
func TestDecidedCancelled(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, bg, dir, trust, nil)
	commits(t, s, 1, 1)
	must(t, s.Close())
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := pawl.Remove(ctx, dir, trust, nil, pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if r := inspect(t, dir, trust, nil); r.Verdict != "clean" {
		t.Errorf("%+v", r)
	}
}

// Where directories cannot be flushed, and that is allowed, decisions are carried out too.
func TestDecidedWithoutDirSync(t *testing.T) {
	for _, op := range []string{"adopt", "quarantine", "rename", "remove"} {
		dir, trust := testkit.AgedDirs(t)
		f := faultfs.New(vfs.OS(), filepath.Dir(dir))
		ctx := f.Context(bg)
		f.Set(func(c faultfs.Call) faultfs.Action {
			if c.Op == "Sync" && filepath.Ext(c.Path) == "" && !strings.Contains(c.Path, "tmp-") && !strings.Contains(c.Path, "bundle") {
				return faultfs.Action{Err: vfs.ErrNoDirSync}
			}
			return faultfs.Action{}
		})
		o := &pawl.Options{Allow: pawl.NoDirSync}
		s := openStore(t, ctx, dir, trust, o)
		commits(t, s, 1, 2)
		must(t, s.Close())
		dec := pawl.Decision{Digest: trusted(t, dir, trust), Reason: "x"}
		var err error
		switch op {
		case "adopt":
			must(t, os.Remove(filepath.Join(trust, "session.trust")))
			_, err = pawl.Adopt(ctx, dir, trust, o, dec)
		case "quarantine":
			must(t, os.WriteFile(filepath.Join(dir, "note"), nil, 0o600))
			_, err = pawl.Quarantine(ctx, dir, trust, o, "note", pawl.Decision{Digest: sha256.Sum256(nil), Reason: "x"})
		case "rename":
			_, err = pawl.Rename(ctx, dir, trust, o, filepath.Join(filepath.Dir(dir), "to"), "", dec)
		case "remove":
			_, err = pawl.Remove(ctx, dir, trust, o, dec)
		}
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// What a store may hold, its backup may hold, and it can be restored under the same limits.
func TestDecidedBackupOverLimit(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	o := &pawl.Options{Limits: pawl.Limits{Bundle: 128 << 10, Unsealed: 32 << 10, Journal: 128 << 10, Inline: 128 << 10}}
	s := openStore(t, bg, dir, trust, o)
	commit(t, s, pawl.Change{Put: map[string][]byte{"p": bytes.Repeat([]byte("p"), 90<<10)}})
	for i := range 30 {
		commit(t, s, pawl.Change{Entries: [][]byte{bytes.Repeat([]byte{byte(i)}, 3000)}})
	}
	b := backupOf(t, s)
	must(t, s.Close())
	_, err := pawl.CheckBackup(bg, bytes.NewReader(b), o)
	must(t, err)
	to, toTrust := testkit.AgedDirs(t)
	_, err = pawl.Restore(bg, to, toTrust, o, bytes.NewReader(b), pawl.Decision{Reason: "x"})
	must(t, err)
	s = openStore(t, bg, to, toTrust, o)
	if v := s.View().Version(); v.Revision != 31 {
		t.Errorf("restored at %s", v)
	}
	must(t, errors.Join(s.Verify(bg, nil), s.Close()))
}

// TestDecidedSparseBackup: headers that promise more than is there are not believed.
func TestDecidedSparseBackup(t *testing.T) {
	for _, h := range []tar.Header{
		{Name: "bundle", Size: 5, Mode: 0o600, Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1073741824", "GNU.sparse.name": "bundle"}},
		{Name: "bundle", Size: 5, Mode: 0o600, Typeflag: tar.TypeReg, Format: tar.FormatGNU},
		{Name: "bundle", Mode: 0o600, Typeflag: tar.TypeSymlink, Linkname: "x", Format: tar.FormatUSTAR},
		{Name: "bundle", Mode: 0o600, Typeflag: tar.TypeDir, Format: tar.FormatUSTAR},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			continue // package tar does not write such a one
		}
		if h.Size > 0 {
			_, err := w.Write([]byte("0\n\n\n\n"))
			must(t, err)
		}
		must(t, w.Close())
		if _, err := pawl.CheckBackup(bg, bytes.NewReader(b.Bytes()), nil); !errors.Is(err, pawl.ErrDamaged) {
			t.Errorf("%+v: %v", h, err)
		}
	}
}
