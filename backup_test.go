//go:build unix || windows

package pawl_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// laid are the ways in which a state lies in files.
var laid = map[string]*pawl.Options{
	"journal":  nil,
	"bundle":   {CheckpointEvery: 1},
	"segments": {CheckpointEvery: 2, Limits: pawl.Limits{Unsealed: 1, Inline: 20}},
}

// commits makes n commits, each with two entries and parts small and large.
func commits(t testing.TB, s *pawl.Store, from, n int) (receipts []pawl.Receipt) {
	t.Helper()
	for i := from; i < from+n; i++ {
		receipts = append(receipts, commit(t, s, pawl.Change{ID: fmt.Sprint("id ", i),
			Entries: [][]byte{fmt.Append(nil, "entry ", i), fmt.Append(nil, "and ", i)},
			Put:     map[string][]byte{"count": fmt.Append(nil, i), "large": bytes.Repeat(fmt.Append(nil, i, " "), 40+i)}}))
	}
	return receipts
}

// contents is all that a view shows.
func contents(t testing.TB, v pawl.View) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintln(&b, v.Version())
	for e, err := range v.Entries(0) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%d %d %s\n", e.Seq, e.Revision, e.Data)
	}
	for c, err := range v.Commits(0) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%+v\n", c)
	}
	for name := range v.Parts() {
		part, _, err := v.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %x\n", name, sha256.Sum256(part))
	}
	return b.String()
}

func backupOf(t testing.TB, s *pawl.Store) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Backup(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// restoreTo restores a backup, which must succeed.
func restoreTo(t testing.TB, dir, trust string, backup []byte, over pawl.Digest) *pawl.Ruling {
	t.Helper()
	r, err := pawl.Restore(context.Background(), dir, trust, nil, bytes.NewReader(backup), pawl.Decision{Digest: over, Reason: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func trusted(t testing.TB, dir, trust string) pawl.Digest {
	t.Helper()
	return inspect(t, dir, trust, nil).Confirmed.Digest
}

// TestBackupRestore: a backup restored into two empty directories is the store that was
// backed up, whatever files its state was in; twice the same state is the same bytes; and
// what the backup holds is what a tar reader finds.
func TestBackupRestore(t *testing.T) {
	ctx := context.Background()
	for name, o := range laid {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			s := openStore(t, ctx, dir, trust, o)
			receipts := commits(t, s, 1, 5)
			want := contents(t, s.View())
			b := backupOf(t, s)
			if !bytes.Equal(b, backupOf(t, s)) {
				t.Error("twice the same state is not the same bytes")
			}
			r, err := pawl.OpenReader(ctx, dir, trust, o)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var beside bytes.Buffer
			if err := r.Backup(ctx, &beside); err != nil || !bytes.Equal(b, beside.Bytes()) {
				t.Errorf("a reader's backup is another one: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			info, err := pawl.CheckBackup(ctx, bytes.NewReader(b), nil)
			if err != nil {
				t.Fatal(err)
			}
			files := 0
			for tr := tar.NewReader(bytes.NewReader(b)); ; files++ {
				h, err := tr.Next()
				if err == io.EOF {
					break
				}
				if err != nil || h.Mode != 0o600 || h.Uname != "" || h.ModTime.Unix() > 0 {
					t.Fatalf("%+v, %v", h, err)
				}
			}
			wantInfo := pawl.BackupInfo{StoreID: inspect(t, dir, trust, nil).StoreID, Version: receipts[4].Version, LastSeq: 10,
				Files: files - 1, Bytes: int64(len(b)), Digest: sha256.Sum256(b)}
			if diff := cmp.Diff(wantInfo, info); diff != "" {
				t.Errorf("CheckBackup (-want +got): %s", diff)
			}
			to, toTrust := testkit.AgedDirs(t)
			ruling := restoreTo(t, to, toTrust, b, pawl.Digest{})
			if ruling.LostTo != 0 || ruling.Done || ruling.Version != receipts[4].Version {
				t.Errorf("%+v", ruling)
			}
			again := restoreTo(t, to, toTrust, b, pawl.Digest{}) // its acknowledgement was lost
			if !again.Done || again.Version != ruling.Version {
				t.Errorf("again: %+v", again)
			}
			s = openStore(t, ctx, to, toTrust, o)
			if diff := cmp.Diff(want, contents(t, s.View())); diff != "" {
				t.Errorf("restored (-want +got): %s", diff)
			}
			if rec := s.Recovery(); rec.Unclean || rec.Swept != nil || rec.Settled != pawl.SettledNothing {
				t.Errorf("restored: %+v", rec)
			}
			if err := s.Verify(ctx, nil); err != nil {
				t.Error(err)
			}
			commits(t, s, 6, 3)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestRestoreOver: going back is declared. The lost numbers are not used again, receipts of
// lost commits are void and those of kept ones are not, lost ids are free, and a second
// restore goes on from there.
func TestRestoreOver(t *testing.T) {
	ctx := context.Background()
	for name, o := range laid {
		t.Run(name, func(t *testing.T) {
			dir, trust := testkit.AgedDirs(t)
			s := openStore(t, ctx, dir, trust, o)
			kept := commits(t, s, 1, 4)
			b := backupOf(t, s)
			lost := commits(t, s, 5, 3)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			before := inspect(t, dir, trust, nil)
			dec := pawl.Decision{Digest: before.Confirmed.Digest, Reason: "a bad deployment"}
			plan, err := pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b), pawl.Decision{DryRun: true})
			if err != nil || plan.LostFrom != 5 || plan.LostTo != 7 || !plan.DryRun {
				t.Fatalf("a dry run: %+v, %v", plan, err)
			}
			if diff := cmp.Diff(before.Confirmed, inspect(t, dir, trust, nil).Confirmed); diff != "" {
				t.Errorf("a dry run changed something: %s", diff)
			}
			if _, err := pawl.Restore(ctx, dir, trust, nil, bytes.NewReader(b), pawl.Decision{Reason: "no digest"}); !errors.Is(err, pawl.ErrStale) {
				t.Errorf("without naming what is given up: %v", err)
			}
			r := restoreTo(t, dir, trust, b, dec.Digest)
			if r.LostFrom != 5 || r.LostTo != 7 || r.Version.Revision != 8 || r.From != kept[3].Version || r.Trusted != before.Confirmed {
				t.Errorf("%+v", r)
			}
			if again := restoreTo(t, dir, trust, b, dec.Digest); !again.Done || again.Version != r.Version {
				t.Errorf("the same decision again: %+v", again)
			}
			s = openStore(t, ctx, dir, trust, o)
			v := s.View()
			if v.Version() != r.Version || v.LastSeq() != 14 {
				t.Errorf("version %s, last seq %d; the ruling says %s", v.Version(), v.LastSeq(), r.Version)
			}
			for i, receipt := range slices.Concat(kept, lost) {
				if ok, err := v.Contains(receipt); err != nil || ok != (i < len(kept)) {
					t.Errorf("Contains(%d) = %v, %v", receipt.Revision, ok, err)
				}
			}
			if _, out, err := s.Lookup(ctx, "id 6"); out != pawl.OutcomeNotCommitted || err != nil {
				t.Errorf("the id of a lost commit: %v, %v", out, err)
			}
			if _, out, err := s.Lookup(ctx, "id 4"); out != pawl.OutcomeCommitted || err != nil {
				t.Errorf("the id of a kept commit: %v, %v", out, err)
			}
			n := 0
			for e, err := range v.Entries(0) {
				if n++; err != nil || e.Seq != pawl.Seq(n) {
					t.Fatalf("entry %d: %+v, %v", n, e, err)
				}
			}
			if n != 8 {
				t.Errorf("%d entries, want 8", n)
			}
			after := commit(t, s, pawl.Change{ID: "id 5", Entries: [][]byte{[]byte("anew")}})
			if after.Revision != 9 || after.FirstSeq != 15 {
				t.Errorf("the first commit after it: %+v", after)
			}
			commits(t, s, 20, 6)
			second := backupOf(t, s)
			if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
				t.Fatal(err)
			}
			// Back to the first backup once more, and forth again.
			r2 := restoreTo(t, dir, trust, b, trusted(t, dir, trust))
			if r2.LostTo != 15 || r2.Version.Revision != 16 {
				t.Errorf("back again: %+v", r2)
			}
			r3 := restoreTo(t, dir, trust, second, trusted(t, dir, trust))
			if r3.LostTo != 16 || r3.Version.Revision != 17 {
				t.Errorf("forth again: %+v", r3)
			}
			s = openStore(t, ctx, dir, trust, o)
			if ok, err := s.View().Contains(after); !ok || err != nil {
				t.Errorf("what the second backup holds: %v, %v", ok, err)
			}
			if err := errors.Join(s.Verify(ctx, nil), s.Close()); err != nil {
				t.Fatal(err)
			}
			lines, torn := auditOf(t, trust)
			if len(torn) > 0 || len(lines) != 3 || lines[0].Event != "restore" || lines[0].Reason != "test" || lines[0].LostTo != 7 || *lines[0].Digest != dec.Digest || len(lines[0].SetAside) == 0 {
				t.Errorf("the audit file: %+v %q", lines, torn)
			}
		})
	}
}

// TestBackupAltered: one that ends early, or differs in any byte, is refused before
// anything is written.
func TestBackupAltered(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, laid["segments"])
	commits(t, s, 1, 4)
	b := backupOf(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	to, toTrust := filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "t")
	refused := func(what string, b []byte) {
		t.Helper()
		if _, err := pawl.CheckBackup(ctx, bytes.NewReader(b), nil); !errors.Is(err, pawl.ErrDamaged) && !errors.Is(err, pawl.ErrVersion) {
			t.Errorf("%s: CheckBackup says %v", what, err)
		}
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for i := 0; i < len(b); i += step {
		bad := bytes.Clone(b)
		bad[i] ^= 1 << (i % 8)
		refused(fmt.Sprint("byte ", i), bad)
	}
	for n := 0; n < len(b); n += 64 * step {
		refused(fmt.Sprint("cut off at ", n), b[:n])
	}
	refused("one byte short", b[:len(b)-1])
	refused("something after it", append(bytes.Clone(b), make([]byte, 512)...))
	refused("one after the other", append(bytes.Clone(b), b...))
	refused("text", []byte("this is no backup"))
	for _, bad := range [][]byte{b[:len(b)/2], append(bytes.Clone(b), 0)} {
		_, err := pawl.Restore(ctx, to, toTrust, nil, bytes.NewReader(bad), pawl.Decision{Reason: "test"})
		var e *pawl.Error
		if !errors.Is(err, pawl.ErrDamaged) || !errors.As(err, &e) || e.Hint == "" {
			t.Errorf("Restore says %v", err)
		}
		for _, path := range []string{to, toTrust} {
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("%s was made: %v", path, err)
			}
		}
	}
	// One that is altered between the two readings.
	_, err := pawl.Restore(ctx, to, toTrust, nil, &shifting{Reader: bytes.NewReader(b), after: b[len(b)/2:]}, pawl.Decision{Reason: "test"})
	if !errors.Is(err, pawl.ErrDamaged) {
		t.Errorf("one that changes while it is read: %v", err)
	}
	if r := inspect(t, to, toTrust, nil); r.Verdict != "refuse" && r.Verdict != "create" {
		t.Errorf("after that: %+v", r)
	}
	restoreTo(t, to, toTrust, b, pawl.Digest{})
}

// shifting is a file that is another one when it is read again.
type shifting struct {
	*bytes.Reader
	after []byte
}

func (s *shifting) Seek(off int64, whence int) (int64, error) {
	s.Reader = bytes.NewReader(s.after)
	return 0, nil
}

// TestBackupForged: a backup in which the manifest was made anew for what was altered is
// refused all the same: the bundle pins each file.
func TestBackupForged(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, laid["segments"])
	commits(t, s, 1, 4)
	b := backupOf(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	type file struct {
		name string
		data []byte
	}
	var whole []file
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		whole = append(whole, file{h.Name, data})
	}
	// forge writes a backup of other files, with the manifest that they ask for.
	forge := func(files []file) []byte {
		t.Helper()
		var m struct {
			Format   int             `json:"pawl_backup"`
			Store    string          `json:"store"`
			Revision pawl.Revision   `json:"revision"`
			History  pawl.Digest     `json:"history"`
			LastSeq  pawl.Seq        `json:"last_seq"`
			Files    json.RawMessage `json:"files"`
		}
		if err := json.Unmarshal(whole[len(whole)-1].data, &m); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		add := func(f file) {
			if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: 0o600, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(f.data); err != nil {
				t.Fatal(err)
			}
		}
		text := strings.Builder{}
		for _, f := range files {
			add(f)
			if text.Len() > 0 {
				text.WriteString(",")
			}
			fmt.Fprintf(&text, `{"name":%q,"size":%d,"digest":%q}`, f.name, len(f.data), pawl.Digest(sha256.Sum256(f.data)).String())
		}
		m.Files = json.RawMessage("[" + text.String() + "]")
		raw, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		add(file{"manifest.json", append(raw, '\n')})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	files := whole[:len(whole)-1]
	if !bytes.Equal(forge(files), b) {
		t.Fatal("what is forged of the same files is not the same")
	}
	for i := range files {
		for _, at := range []int{0, len(files[i].data) / 2, len(files[i].data) - 1} {
			bad := slices.Clone(files)
			bad[i].data = bytes.Clone(bad[i].data)
			bad[i].data[at] ^= 1
			if _, err := pawl.CheckBackup(ctx, bytes.NewReader(forge(bad)), nil); !errors.Is(err, pawl.ErrDamaged) {
				t.Errorf("%s, byte %d: %v", files[i].name, at, err)
			}
		}
		if _, err := pawl.CheckBackup(ctx, bytes.NewReader(forge(slices.Delete(slices.Clone(files), i, i+1))), nil); !errors.Is(err, pawl.ErrDamaged) {
			t.Errorf("without %s: %v", files[i].name, err)
		}
		if _, err := pawl.CheckBackup(ctx, bytes.NewReader(forge(append(slices.Clone(files), files[i]))), nil); !errors.Is(err, pawl.ErrDamaged) {
			t.Errorf("with %s twice: %v", files[i].name, err)
		}
	}
	if _, err := pawl.CheckBackup(ctx, bytes.NewReader(forge(append(slices.Clone(files), file{"notes.txt", []byte("x")}))), nil); !errors.Is(err, pawl.ErrDamaged) {
		t.Errorf("with another file: %v", err)
	}
}

// TestBackupOfNothing: before the first commit there is no state, and no backup of one.
func TestBackupOfNothing(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	r, err := pawl.OpenReader(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.Backup(ctx, io.Discard), r.Backup(ctx, io.Discard)} {
		var e *pawl.Error
		if !errors.Is(err, pawl.ErrNotExist) || !errors.As(err, &e) || e.Hint == "" {
			t.Errorf("%v", err)
		}
	}
	if err := errors.Join(r.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRestoreForeign: a backup of another store is put over no store, and over one that
// nothing was committed to it is.
func TestRestoreForeign(t *testing.T) {
	ctx := context.Background()
	dir, trust := testkit.AgedDirs(t)
	s := openStore(t, ctx, dir, trust, nil)
	commits(t, s, 1, 2)
	b := backupOf(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other, otherTrust := testkit.AgedDirs(t)
	if err := openStore(t, ctx, other, otherTrust, nil).Close(); err != nil {
		t.Fatal(err)
	}
	empty := copyOf(t, other, otherTrust)
	restoreTo(t, other, otherTrust, b, pawl.Digest{})
	if inspect(t, other, otherTrust, nil).StoreID != inspect(t, dir, trust, nil).StoreID {
		t.Error("over an empty store it is another one")
	}
	empty.putBack(t, other, otherTrust)
	s = openStore(t, ctx, other, otherTrust, nil)
	commits(t, s, 1, 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	full := copyOf(t, other, otherTrust)
	for range 2 {
		_, err := pawl.Restore(ctx, other, otherTrust, nil, bytes.NewReader(b), pawl.Decision{Digest: trusted(t, other, otherTrust), Reason: "test"})
		var e *pawl.Error
		if !errors.Is(err, pawl.ErrForeign) || !errors.As(err, &e) || e.Hint == "" {
			t.Errorf("%v", err)
		}
		full.kept(t, other, otherTrust)
		if err := os.RemoveAll(otherTrust); err != nil { // the same without its trust file
			t.Fatal(err)
		}
		for path := range full {
			if strings.HasPrefix(path, otherTrust) {
				delete(full, path)
			}
		}
	}
}
