package crashtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// recorded is a history of one store: what the two directories looked like before
// each call that changed something, each content once, and the states that were
// acknowledged.
type recorded struct {
	store, trust []simfs.Image
	labels       map[pawl.Digest]string // by the digest of the bundle file
	order        []pawl.Digest          // of acknowledged states, oldest first; the zero digest is the empty store
}

func record(t *testing.T) *recorded {
	t.Helper()
	rec := &recorded{labels: map[pawl.Digest]string{{}: none}, order: []pawl.Digest{{}}}
	seen := map[string]bool{}
	look := func(im simfs.Image) {
		for part, list := range map[string]*[]simfs.Image{"/store": &rec.store, "/trust": &rec.trust} {
			im := im.Under(part)
			delete(im, part)
			if text := im.String(); !seen[text] {
				seen[text] = true
				*list = append(*list, im)
			}
		}
	}
	m := simfs.New(simfs.PosixMinimal, "/store", "/trust")
	c := newC()
	p := &Process{sim: m.Start(), machine: m, plan: &c.plan, claims: emptyLedger}
	p.sim.SetHook(func(c *simfs.Call) simfs.Fault {
		if c.Op.Mutates() {
			look(c.Snapshot().Image())
		}
		return simfs.Fault{}
	})
	u, err := openPawl(vfs.NewContext(context.Background(), p.sim), p)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := u.commit(); err != nil {
			t.Fatal(err)
		}
		d := bundleDigest(m.Image())
		rec.labels[d] = p.ledger().open[0]
		rec.order = append(rec.order, d)
	}
	if err := u.s.Close(); err != nil {
		t.Fatal(err)
	}
	look(m.Image())
	if len(rec.store) < 10 || len(rec.trust) < 10 {
		t.Fatalf("recorded only %d and %d images", len(rec.store), len(rec.trust))
	}
	return rec
}

// bundleDigest is what the trust file should name for what the store holds.
func bundleDigest(im simfs.Image) pawl.Digest {
	if b, ok := im[pawlStore+"/bundle"]; ok {
		return sha256.Sum256([]byte(b.Data))
	}
	return pawl.Digest{}
}

// attempt opens the store on an image, and inspects it before. What a refusal may
// leave is lock files.
type attempt struct {
	report *pawl.Report
	label  string
	err    error
	wrote  string // what an Inspect or a refused Open changed
}

func try(t *testing.T, im simfs.Image) attempt {
	t.Helper()
	m := simfs.New(simfs.PosixMinimal, "/store", "/trust")
	m.Install(im)
	before := withoutLocks(m.Image())
	ctx := vfs.NewContext(context.Background(), m.Start())
	var a attempt
	var err error
	if a.report, err = pawl.Inspect(ctx, pawlStore, pawlTrust, nil); err != nil {
		t.Fatalf("Inspect: %v\n%s", err, im)
	}
	if m.Writes() != 0 {
		t.Fatalf("Inspect wrote\n%s", im)
	}
	s, err := pawl.Open(ctx, pawlStore, pawlTrust, nil)
	if a.err = err; err == nil {
		if a.label, err = stateLabel(s.View()); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if after := withoutLocks(m.Image()); before != after {
		a.wrote = fmt.Sprintf("before:\n%safter:\n%s", before, after)
	}
	return a
}

func withoutLocks(im simfs.Image) string {
	maps.DeleteFunc(im, func(name string, _ simfs.Item) bool { return strings.HasSuffix(name, "lock") })
	return im.String()
}

func join(a, b simfs.Image) simfs.Image {
	im := maps.Clone(a)
	maps.Copy(im, b)
	return im
}

// classed says whether an error is one of pawl's, of a kind that an operator is told
// about.
func classed(err error) bool {
	e := (*pawl.Error)(nil)
	return errors.As(err, &e) && e.Kind != nil && e.Hint != ""
}

// TestPawlMixedPairs puts every store directory of a history together with every
// trust directory of it (K3): a state is returned only if the trust file names its
// digest; each refusal changes nothing (K5, K8), and an older store directory is
// told as what it is (K6).
func TestPawlMixedPairs(t *testing.T) {
	rec := record(t)
	opened, refused := 0, map[string]int{}
	for _, trust := range rec.trust {
		for _, store := range rec.store {
			im := join(store, trust)
			a := try(t, im)
			d, r := bundleDigest(im), a.report
			named := d == r.Confirmed.Digest || r.Pending != pawl.Root{} && d == r.Pending.Digest
			if a.err == nil {
				opened++
				if !named || a.label != rec.labels[d] {
					t.Fatalf("K3: opened as %q with digest %v, which the trust file does not name: %+v\n%s", a.label, d, r, im)
				}
				continue
			}
			if !classed(a.err) || a.wrote != "" {
				t.Fatalf("K5, K8: %v\n%s", a.err, a.wrote)
			}
			if named && len(im.Under(pawlTrust+"/s.trust")) > 0 {
				t.Fatalf("refused (%v), though the trust file names what is there\n%s", a.err, im)
			}
			want := rec.wantRefusal(d, r, len(im.Under(pawlTrust+"/s.trust")) > 0)
			if want != nil && !errors.Is(a.err, want) {
				t.Fatalf("K5, K6: refused with %v, want %v\n%s", a.err, want, im)
			}
			e := (*pawl.Error)(nil)
			errors.As(a.err, &e)
			refused[e.Kind.Error()]++
		}
	}
	t.Logf("%d pairs opened, refused %v", opened, refused)
}

// wantRefusal is the class of a refusal, where the contract leaves no choice.
func (rec *recorded) wantRefusal(found pawl.Digest, r *pawl.Report, trust bool) error {
	rank := func(d pawl.Digest) int {
		for i, o := range rec.order {
			if o == d {
				return i
			}
		}
		return -1
	}
	switch f, c := rank(found), rank(r.Confirmed.Digest); {
	case !trust:
		return pawl.ErrUntrusted
	case c > 0 && f == 0:
		return pawl.ErrMissing
	case f < c:
		return pawl.ErrRolledBack
	case r.Pending == pawl.Root{}:
		return pawl.ErrTrustBehind
	}
	return pawl.ErrUnauthorized // the intent stays
}

// damage is one way of spoiling a file.
type damage struct {
	what string
	data string
}

// damages lists every truncation, a byte too many, and a bit flipped in each byte.
func damages(data string, step int) (all []damage) {
	for n := 0; n < len(data); n += step {
		all = append(all, damage{fmt.Sprintf("cut to %d bytes", n), data[:n]})
		b := []byte(data)
		b[n] ^= 1 << (n % 8)
		all = append(all, damage{fmt.Sprintf("bit flipped in byte %d", n), string(b)})
	}
	return append(all, damage{"one byte more", data + "\x00"}, damage{"zeros", strings.Repeat("\x00", len(data))})
}

// TestPawlDamage spoils each file that matters of every state that a history went
// through: what opens is a state that was submitted, the one that was there, and a
// refusal changes nothing.
func TestPawlDamage(t *testing.T) {
	rec := record(t)
	last := join(rec.store[len(rec.store)-1], rec.trust[len(rec.trust)-1])
	newest := rec.labels[rec.order[len(rec.order)-1]]
	for _, f := range []struct {
		name  string
		opens bool // some damage leaves an older record, which authorises the same state
	}{{pawlStore + "/bundle", false}, {pawlTrust + "/s.trust", true}} {
		opened := 0
		data := last[f.name].Data
		step := 1 + len(data)/2000
		if raced {
			step = 1 + len(data)/100
		}
		for _, d := range damages(data, step) {
			im := maps.Clone(last)
			im[f.name] = simfs.Item{Mode: 0o600, Data: d.data}
			a := try(t, im)
			if a.err == nil {
				opened++
				if !f.opens || a.label != newest {
					t.Errorf("K3: %s, %s: opened as %q", f.name, d.what, a.label)
				}
				continue
			}
			if !classed(a.err) || a.wrote != "" {
				t.Errorf("K8: %s, %s: %v\n%s", f.name, d.what, a.err, a.wrote)
			}
		}
		if (opened > 0) != f.opens {
			t.Errorf("%s: %d damaged files opened", f.name, opened)
		}
	}
}
