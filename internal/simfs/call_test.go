package simfs

import (
	"fmt"
	"strings"
	"testing"
)

// TestCallTellsOfTheFile: what a policy learns of a write and of the file before it.
func TestCallTellsOfTheFile(t *testing.T) {
	s := newScript(t, PosixMinimal)
	var got []string
	s.p.KeepLog()
	s.p.SetPolicy(func(c *Call) error {
		if c.Op != OpWriteAt {
			return nil
		}
		held := []byte("????????")
		c.Held(held, 1)
		var names []string
		c.Named(func(path string) bool { names = append(names, path); return false })
		got = append(got, fmt.Sprintf("%q over %q of %d, %s", c.Data(), held, c.Size(), strings.Join(names, " ")))
		if !c.Named(func(path string) bool { return path == c.Path }) {
			t.Error("not known by the name it was opened by")
		}
		return nil
	})
	f := s.create(s.b, "tmp", "hello")
	s.ok(s.b.Mkdir("d", 0o700))
	s.ok(s.b.Link("tmp", "f"))
	s.write(f, "x", 2)
	s.ok(s.b.Remove("tmp"))
	s.write(f, "y", 9)
	s.ok(s.b.Remove("f"))
	s.write(f, "z", 0)
	want := []string{
		`"hello" over "\x00\x00\x00\x00\x00\x00\x00\x00" of 0, /b/tmp /b/tmp`,
		`"x" over "ello\x00\x00\x00\x00" of 5, /b/tmp /b/f /b/tmp`,
		`"y" over "exlo\x00\x00\x00\x00" of 5, /b/tmp /b/f`,
		`"z" over "exlo\x00\x00\x00\x00" of 10, /b/tmp`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	for _, c := range s.p.Log() {
		if c.Data() != nil {
			t.Errorf("the log keeps what was written: %v", &c)
		}
	}
}
