package pawl

import (
	"bytes"
	"errors"
	"testing"
)

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
