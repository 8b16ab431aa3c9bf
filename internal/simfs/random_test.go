package simfs

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// randomCall is one step of a random history: it opens what it needs, so that it
// can be run on any pair of directories, and returns what the call said.
type randomCall struct {
	op       int
	second   bool // on directory b
	name, to string
	off, n   int
	fill     byte
}

var randomNames = []string{"data", "x", "y", "d"}

func randomCalls(seed uint64, n int, run func(c randomCall)) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range n {
		run(randomCall{
			op: rng.IntN(10), second: rng.IntN(3) == 0,
			name: randomNames[rng.IntN(len(randomNames))], to: randomNames[rng.IntN(len(randomNames))],
			off: rng.IntN(3) * 300, n: 1 + rng.IntN(700), fill: byte('a' + rng.IntN(26)),
		})
	}
}

func (c randomCall) String() string {
	return fmt.Sprintf("op %d second=%v %s %s [%d+%d)", c.op, c.second, c.name, c.to, c.off, c.n)
}

func (c randomCall) run(a, b vfs.Dir) (string, error) {
	d := a
	if c.second {
		d = b
	}
	switch c.op {
	case 0, 1:
		f, err := d.Create(c.name, 0o600)
		if err != nil {
			return "", err
		}
		defer f.Close()
		return c.write(f)
	case 2, 3:
		f, err := d.OpenRW(c.name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		return c.write(f)
	case 4:
		return "", d.Rename(c.name, c.to)
	case 5:
		return "", d.Remove(c.name)
	case 6:
		return "", d.Link(c.name, c.to)
	case 7:
		return "", d.Sync()
	case 8:
		f, err := d.Open(c.name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if c.n%3 == 0 {
			return "", f.Sync()
		}
		p := make([]byte, c.n)
		n, err := f.ReadAt(p, int64(c.off))
		return string(p[:n]), err
	case 9:
		if c.n%2 == 0 {
			return "", d.Mkdir(c.name, 0o700)
		}
		f, err := d.OpenLock(c.name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		got, err := f.TryLock()
		return fmt.Sprint(got), err
	}
	panic("unreachable")
}

func (c randomCall) write(f vfs.File) (string, error) {
	n, err := f.WriteAt(bytes.Repeat([]byte{c.fill}, c.n), int64(c.off))
	return fmt.Sprint(n), err
}
