package crashtest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"strings"
)

// toy is a protocol of two files with an intent, the smallest thing that is like
// pawl: /trust/t says which state counts, /store/data holds it.
//
//	commit   intent pending(old, new), durable; data, durable; confirmed(new), durable
//	recover  pending: write anew what data holds, durable; then confirm it
//
// Each mutant leaves out or moves one step.
type toy struct {
	fs     *FS
	p      *Process
	mutant string
	temps  int
	state  string
}

var toyMutants = []string{
	"intent not synced",
	"data not synced",
	"store directory not synced",
	"trust directory synced after the data",
	"data synced after its rename",
	"trust written in place",
	"recovery rewrites in place",
	"recovery believes the page cache",
}

func sealed(s string) []byte { return fmt.Appendf(nil, "%s;%08x\n", s, crc32.ChecksumIEEE([]byte(s))) }

func unseal(b []byte) (string, error) {
	s, _, _ := strings.Cut(string(b), ";")
	if string(sealed(s)) != string(b) {
		return "", fmt.Errorf("damaged: %.40q", b)
	}
	return s, nil
}

func (t *toy) is(mutant string) bool { return t.mutant == mutant }

// install replaces a file whole; skip names steps that are left out.
func (t *toy) install(name, content string, skip ...string) error {
	t.temps++
	temp := path.Join(path.Dir(name), fmt.Sprintf("tmp%d.%d", t.p.Number(), t.temps))
	left := strings.Join(skip, " ")
	steps := []struct {
		name string
		run  func() error
	}{
		{"create", func() error { return t.fs.Create(temp, sealed(content)) }},
		{"sync", func() error { return t.fs.Sync(temp) }},
		{"rename", func() error { return t.fs.Rename(temp, name) }},
		{"late", func() error { return t.fs.Sync(name) }},
		{"dir", func() error { return t.fs.SyncDir(path.Dir(name)) }},
	}
	for _, s := range steps {
		if strings.Contains(left, s.name) || s.name == "late" && !strings.Contains(left, "sync") {
			continue
		}
		if err := s.run(); err != nil {
			return err
		}
	}
	return nil
}

func (t *toy) trust(record string, skip ...string) error {
	if !t.is("trust written in place") {
		return t.install("/trust/t", record, skip...)
	}
	if err := t.fs.WriteAt("/trust/t", sealed(fmt.Sprintf("%-40s", record)), 0); err != nil {
		return err
	}
	return t.fs.Sync("/trust/t")
}

func (t *toy) commit(label string) error {
	var intent, data []string
	switch t.mutant {
	case "intent not synced":
		intent = []string{"sync", "late"}
	case "trust directory synced after the data":
		intent, data = []string{"dir"}, []string{"dir"}
	case "data not synced":
		data = []string{"sync", "late"}
	case "data synced after its rename":
		data = []string{"sync"}
	case "store directory not synced":
		data = []string{"dir"}
	}
	if err := t.trust("pending "+t.state+" "+label, intent...); err != nil {
		return err
	}
	if err := t.install("/store/data", label, data...); err != nil {
		return err
	}
	if t.is("trust directory synced after the data") {
		for _, dir := range []string{"/trust", "/store"} {
			if err := t.fs.SyncDir(dir); err != nil {
				return err
			}
		}
	}
	if err := t.trust("confirmed " + label); err != nil {
		return err
	}
	t.state = label
	return nil
}

func (t *toy) read(name string) (string, error) {
	b, err := t.fs.ReadFile(name)
	if err != nil {
		return "", err
	}
	return unseal(b)
}

func (t *toy) recover() error {
	record, err := t.read("/trust/t")
	if err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	data, err := t.read("/store/data")
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	words := strings.Fields(record)
	if len(words) < 2 || !strings.Contains(strings.Join(words[1:], " "), data) {
		return fmt.Errorf("trust says %q, data holds %q", record, data)
	}
	if words[0] == "pending" {
		switch t.mutant {
		case "recovery believes the page cache":
		case "recovery rewrites in place":
			err = errors.Join(t.fs.WriteAt("/store/data", sealed(data), 0), t.fs.Sync("/store/data"))
		default:
			err = t.install("/store/data", data)
		}
		if err == nil {
			err = t.trust("confirmed " + data)
		}
		if err != nil {
			return err
		}
	}
	t.state = data
	return t.sweep()
}

func (t *toy) sweep() error {
	for _, dir := range []string{"/store", "/trust"} {
		names, err := t.fs.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, "tmp") {
				if err := t.fs.Remove(path.Join(dir, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// exploreToy describes the toy: one state before, two commits, and two more after
// each recovery.
func exploreToy(c *C, mutant string) {
	open := func(p *Process) *toy { return &toy{fs: p.FS(), p: p, mutant: mutant} }
	two := func(t *toy) error {
		for i := range 2 {
			label := fmt.Sprintf("v%d.%d", t.p.Number(), i)
			t.p.Begin(label)
			err := t.commit(label)
			t.p.End(label, err)
			if err != nil {
				return err
			}
		}
		return nil
	}
	c.Setup(func(_ context.Context, p *Process) error {
		p.Begin("v0")
		err := errors.Join(p.FS().Create("/store/data", sealed("v0")), p.FS().Create("/trust/t", sealed(fmt.Sprintf("%-40s", "confirmed v0"))))
		p.End("v0", err)
		return err
	})
	c.Do(func(_ context.Context, p *Process) error {
		t := open(p)
		t.state = "v0"
		return two(t)
	})
	c.Recover(func(_ context.Context, p *Process) error {
		t := open(p)
		if err := t.recover(); err != nil {
			return err
		}
		p.Observe(t.state)
		return two(t)
	})
}
