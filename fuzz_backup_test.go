package pawl

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// sparse is the header of a file with so many bytes of which none is stored, as GNU tar
// writes it.
func sparse(name string, size int64) []byte {
	h := make([]byte, 512)
	for at, text := range map[int]string{
		0: name, 100: "0000600\x00", 108: "0000000\x00", 116: "0000000\x00", 124: "00000000000\x00", 136: "00000000000\x00",
		148: "        ", 156: "S", 257: "ustar  \x00",
		386: fmt.Sprintf("%011o\x00", size), 398: "00000000000\x00", 483: fmt.Sprintf("%011o\x00", size),
	} {
		copy(h[at:], text)
	}
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

// TestSparseBackup: a kilobyte that says it is a bundle of 64 MiB is not believed.
func TestSparseBackup(t *testing.T) {
	b := append(sparse("bundle", 64<<20), make([]byte, 1024)...)
	modest(t, len(b), func() {
		if _, err := CheckBackup(t.Context(), bytes.NewReader(b), nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzReadBackup: whatever is taken for a backup is one that pawl would have written, and
// reading anything takes memory for what is there, not for what it says of itself.
func FuzzReadBackup(f *testing.F) {
	for _, name := range []string{"plain.backup", "given-up.backup"} {
		b := goldenFile(f, name, nil)
		f.Add(b)
		f.Add(b[:len(b)/2])
		f.Add(append(bytes.Clone(b), 0))
		bad := bytes.Clone(b)
		bad[700] ^= 1
		f.Add(bad)
	}
	f.Add(append(sparse("bundle", 64<<20), make([]byte, 1024)...))
	var o *Options
	c, err := o.complete()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got *backedUp
		var err error
		modest(t, len(b), func() { got, err = readBackup(t.Context(), bytes.NewReader(b), &c.Limits, nil) })
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Kind == nil {
				t.Errorf("an error without a class: %v", err)
			}
			return
		}
		if got.info.Bytes != int64(len(b)) {
			t.Errorf("%d bytes were read of %d", got.info.Bytes, len(b))
		}
		if _, err := readBackup(t.Context(), bytes.NewReader(b[:len(b)-1]), &c.Limits, nil); err == nil {
			t.Error("one byte less is a backup too")
		}
	})
}
