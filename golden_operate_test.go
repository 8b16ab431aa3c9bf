//go:build unix || windows

package pawl

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// given-up.backup is a backup of a store that has gone back: three commits, of which the
// last was given up for the second, and one more. removing.trust is a trust file of which the
// newest record says that the store is being removed.

// goldenGivenUp makes that store, on a machine whose clock and random numbers are known.
func goldenGivenUp(t *testing.T) (first, last []byte) {
	t.Helper()
	dir, trust := testkit.AgedDirs(t)
	m := newFixed(7)
	ctx := vfs.NewContext(context.Background(), m)
	o := &Options{CheckpointEvery: 1, Limits: Limits{Inline: 30}}
	open := func() *Store {
		s, err := Open(ctx, dir, trust, o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	commit := func(s *Store, n int) {
		*m.clock = m.clock.Add(time.Second)
		if _, err := s.Commit(ctx, Change{ID: fmt.Sprint("call ", n), Entries: [][]byte{fmt.Append(nil, "result ", n)},
			Put: map[string][]byte{"state.json": fmt.Appendf(nil, `{"cursor":%d}`, n), "large": bytes.Repeat([]byte{byte('0' + n)}, 40)}}); err != nil {
			t.Fatal(err)
		}
	}
	backup := func(s *Store) []byte {
		var b bytes.Buffer
		if err := s.Backup(ctx, &b); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	s := open()
	commit(s, 1)
	commit(s, 2)
	first = backup(s)
	s = open()
	commit(s, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := Inspect(ctx, dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	*m.clock = m.clock.Add(time.Second)
	if _, err := Restore(ctx, dir, trust, o, bytes.NewReader(first), Decision{Digest: report.Confirmed.Digest, Reason: "golden"}); err != nil {
		t.Fatal(err)
	}
	s = open()
	commit(s, 4)
	return first, backup(s)
}

// TestGoldenBackup holds the bytes of a backup, and of a history that was given up, against
// those that were released, and both against what docs/format.md says.
func TestGoldenBackup(t *testing.T) {
	first, last := goldenGivenUp(t)
	for name, made := range map[string][]byte{"plain.backup": first, "given-up.backup": last} {
		if b := goldenFile(t, name, made); !bytes.Equal(b, made) {
			t.Errorf("%s is %d bytes, made now %d, and they differ", name, len(b), len(made))
		}
	}
	b := goldenFile(t, "given-up.backup", nil)
	r := tar.NewReader(bytes.NewReader(b))
	h, err := r.Next()
	if err != nil || h.Name != "bundle" {
		t.Fatal(h, err)
	}
	bundle, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if flags, epoch := binary.LittleEndian.Uint32(bundle[20:]), binary.LittleEndian.Uint64(bundle[52:]); flags != 3 || epoch != 0 {
		t.Errorf("flags %d, epoch %d", flags, epoch)
	}
	st, _, err := decodeBundle(bundle, emptyDirectory())
	if err != nil {
		t.Fatal(err)
	}
	if len(st.sealed) != 2 || len(st.records) != 2 || st.version().Revision != 5 {
		t.Fatalf("%d segments, %d records, at %s", len(st.sealed), len(st.records), st.version())
	}
	// The segment that stands for what was given up, and the history after it.
	gap := st.sealed[1]
	given := st.records[0].id
	var chosen, lost string
	var n, m uint64
	if _, err := fmt.Sscanf(given, "restore %d %s over %d %s", &n, &chosen, &m, &lost); err != nil || n != 2 || m != 3 {
		t.Fatalf("the commit that declares it has the id %q: %v", given, err)
	}
	var digest Digest
	if err := digest.UnmarshalText([]byte(lost)); err != nil {
		t.Fatal(err)
	}
	text := append(gap.from.history[:], "pawl history given up 1\n"...)
	text = binary.LittleEndian.AppendUint64(text, 3)
	text = binary.LittleEndian.AppendUint64(text, 4)
	text = append(text, digest[:]...)
	if want := Digest(sha256.Sum256(text)); gap.flags != 5 || gap.entries != 0 || gap.end.revision != 3 || gap.end.nextSeq != 4 || gap.end.history != want {
		t.Errorf("the gap is %+v, and its history %s", gap.row, want)
	}
	if chosen != gap.from.history.String() || st.records[0].count != 0 || st.records[0].revision != 4 || st.records[0].firstSeq != 4 {
		t.Errorf("the commit after it is %+v", st.records[0])
	}
	// It is restored as it was backed up.
	dir, trust := testkit.AgedDirs(t)
	if _, err := Restore(t.Context(), dir, trust, nil, bytes.NewReader(b), Decision{Reason: "golden"}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), nil); err != nil || s.View().Version() != st.version() {
		t.Errorf("restored: %s, %v", s.View().Version(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLostSeqsOfOldRecords: a trust record of before there was a line for it does not say
// which seqs were used. More than so many cannot have been.
func TestLostSeqsOfOldRecords(t *testing.T) {
	dir, trust := testkit.AgedDirs(t)
	s, err := Open(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	for i := range 3 {
		if _, err := s.Commit(t.Context(), Change{Entries: [][]byte{nil, nil}}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := s.Backup(t.Context(), &backup); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(trust, "session.trust")
	ring, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newest, _, err := decodeRing(ring)
	if err != nil || newest.next != 7 {
		t.Fatalf("%+v, %v", newest, err)
	}
	newest.next = 0
	if err := errors.Join(os.WriteFile(path, makeRing(newest), 0o600), os.RemoveAll(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), dir, trust, nil, bytes.NewReader(backup.Bytes()), Decision{Digest: newest.confirmed.Digest, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), dir, trust, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Commit(t.Context(), Change{Entries: [][]byte{nil}})
	if want := Seq(3 + 2*mostEntries); err != nil || r.FirstSeq != want || r.Revision != 5 {
		t.Errorf("%+v, %v; want seq %d", r, err, want)
	}
	if err := errors.Join(s.Verify(t.Context(), nil), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestGoldenRemoving: the trust file of a store that is being removed.
func TestGoldenRemoving(t *testing.T) {
	record := trustRecord{store: goldenID, sequence: 9, path: goldenPath, ending: stateRemoving, history: Digest{2},
		confirmed: Root{Revision: 4, Epoch: 2, Journal: 8192, Digest: Digest{1}}}
	ring := makeRing(record)
	b := goldenFile(t, "removing.trust", ring)
	if !bytes.Equal(b, ring) || !bytes.Contains(b, []byte("\nstate removing\n")) {
		t.Errorf("the encoder makes another trust file:\n%s\nwant\n%s", ring, b)
	}
	newest, broken, err := decodeRing(b)
	if err != nil || broken != nil || newest.ending != stateRemoving || newest.closed {
		t.Errorf("%+v, %v, %v", newest, broken, err)
	}
}
