package crashtest

import (
	"bytes"
	"context"
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
	labels       map[pawl.Root]string
	order        []pawl.Root // of acknowledged states, oldest first; the zero root is the empty store
}

// histories are those that are mixed and damaged: of a bundle that each commit
// publishes, and of journals that become full, and are made again. The second ends with
// a journal in use.
var histories = []struct {
	name   string
	opts   pawl.Options
	script string
}{
	{"publishing", publishing, "publish publish publish close"},
	{"extending", extending(2), "publish extend extend publish extend checkpoint extend group"},
}

func record(t *testing.T, opts pawl.Options, script string) *recorded {
	t.Helper()
	rec := &recorded{labels: map[pawl.Root]string{{}: none}, order: []pawl.Root{{}}}
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
	p := newRun(&c.plan, m, emptyLedger, start{}).start()
	p.sim.SetHook(func(c *simfs.Call) simfs.Fault {
		// Of a bundle or a trust file that is being written in its temp nothing is read.
		if c.Op.Mutates() && (c.Part == 0 || !strings.Contains(c.Path, "tmp-")) {
			look(c.Snapshot().Image())
		}
		return simfs.Fault{}
	})
	ctx := vfs.NewContext(context.WithValue(context.Background(), optionsKey{}, &opts), p.sim)
	u, err := openPawl(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(script) {
		if err := u.does(word); err != nil {
			t.Fatal(err)
		}
		look(m.Image())
		r, err := pawl.Inspect(ctx, pawlStore, pawlTrust, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rec.order[len(rec.order)-1] != r.Confirmed {
			rec.order = append(rec.order, r.Confirmed)
			rec.labels[r.Confirmed] = p.run.ledger().open[0]
		}
	}
	if len(rec.store) < 10 || len(rec.trust) < 10 {
		t.Fatalf("recorded only %d and %d images", len(rec.store), len(rec.trust))
	}
	return rec
}

// holds says whether an image of the store directory is what a root names: exactly, but
// for bytes of the journal after the root's length up to residue.
func holds(im simfs.Image, root pawl.Root, residue int64) bool {
	bundle, some := im[pawlStore+"/bundle"]
	if root == (pawl.Root{}) || !some {
		return root == pawl.Root{} && !some
	}
	name := pawlStore + "/" + journalName(root.Epoch)
	for other := range im {
		if strings.HasPrefix(other, pawlStore+"/journal.") && other > name {
			return false
		}
	}
	journal := []byte(im[name].Data)
	if residue > root.Journal {
		clear(journal[min(root.Journal, int64(len(journal))):min(residue, int64(len(journal)))])
	}
	if root.Journal == 0 && len(bytes.TrimRight(journal, "\x00")) > 0 {
		return false
	}
	return attests(root, []byte(bundle.Data), journal) == nil
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
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) { mixPairs(t, record(t, h.opts, h.script)) })
	}
}

func mixPairs(t *testing.T, rec *recorded) {
	opened, refused := 0, map[string]int{}
	for _, trust := range rec.trust {
		for _, store := range rec.store {
			im := join(store, trust)
			a := try(t, im)
			r, hasTrust := a.report, len(im.Under(pawlTrust+"/s.trust")) > 0
			residue := int64(0)
			if r.Pending.Epoch == r.Confirmed.Epoch {
				residue = r.Pending.Journal
			}
			old, pending := holds(im, r.Confirmed, residue), r.Pending != pawl.Root{} && holds(im, r.Pending, 0)
			if a.err == nil {
				opened++
				want, ok := rec.labels[r.Confirmed]
				if pending {
					want, ok = rec.labels[r.Pending]
				}
				if !old && !pending || !ok || a.label != want {
					t.Fatalf("K3: opened as %q, which the trust file does not name: %+v\n%s", a.label, r, im)
				}
				continue
			}
			if !classed(a.err) || a.wrote != "" {
				t.Fatalf("K5, K8: %v\n%s", a.err, a.wrote)
			}
			if hasTrust && (old || pending) {
				t.Fatalf("refused (%v), though the trust file names what is there\n%s", a.err, im)
			}
			want := rec.wantRefusal(im, r, hasTrust)
			if want != nil && !errors.Is(a.err, want) {
				t.Fatalf("K5, K6: refused with %v, want %v\n%s", a.err, want, im)
			}
			e := (*pawl.Error)(nil)
			errors.As(a.err, &e)
			refused[e.Kind.Error()]++
		}
	}
	t.Logf("%d store directories, %d trust directories: %d pairs opened, refused %v", len(rec.store), len(rec.trust), opened, refused)
}

// wantRefusal is the class of a refusal, where the contract leaves no choice: nil when
// the store directory is none of the states that were acknowledged.
func (rec *recorded) wantRefusal(im simfs.Image, r *pawl.Report, trust bool) error {
	found, confirmed := -1, -1
	for i, root := range rec.order {
		if holds(im, root, 0) {
			found = i
		}
		if root == r.Confirmed {
			confirmed = i
		}
	}
	switch {
	case !trust:
		return pawl.ErrUntrusted
	case found < 0:
		return nil
	case confirmed > 0 && found == 0:
		return pawl.ErrMissing
	case found < confirmed:
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

// TestPawlDamage spoils each file that matters of the state that a history ended with:
// what opens is that state, and a refusal changes nothing.
func TestPawlDamage(t *testing.T) {
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			rec := record(t, h.opts, h.script)
			last := join(rec.store[len(rec.store)-1], rec.trust[len(rec.trust)-1])
			root := rec.order[len(rec.order)-1]
			files := map[string]bool{ // whether some damage leaves an older record, which authorises the same state
				pawlStore + "/bundle": false, pawlTrust + "/s.trust": true,
			}
			if root.Journal > 0 {
				files[pawlStore+"/"+journalName(root.Epoch)] = false
			} else if h.opts.CheckpointEvery != 1 {
				t.Fatal("no journal to damage")
			}
			for name, opens := range files {
				damageFile(t, last, name, opens, rec.labels[root])
			}
		})
	}
}

func damageFile(t *testing.T, last simfs.Image, name string, opens bool, newest string) {
	opened := 0
	data := last[name].Data
	step := 1 + len(data)/2000
	if raced {
		step = 1 + len(data)/100
	}
	for _, d := range damages(data, step) {
		im := maps.Clone(last)
		im[name] = simfs.Item{Mode: 0o600, Data: d.data}
		a := try(t, im)
		if a.err == nil {
			opened++
			if !opens || a.label != newest {
				t.Errorf("K3: %s, %s: opened as %q", name, d.what, a.label)
			}
			continue
		}
		if !classed(a.err) || a.wrote != "" {
			t.Errorf("K8: %s, %s: %v\n%s", name, d.what, a.err, a.wrote)
		}
	}
	if (opened > 0) != opens {
		t.Errorf("%s: %d damaged files opened", name, opened)
	}
}

// TestRollbackWindow: an older copy of the store directory is put back after a power
// cut, taken before one batch that was acknowledged (or before two). From the
// acknowledgement to the next flush of the trust file that succeeds, this cannot be told
// from a batch that did not land; from then on it is told as what it is. It reaches back
// one batch and no further.
func TestRollbackWindow(t *testing.T) {
	for _, k := range []struct {
		name   string
		opts   pawl.Options
		before string
		after  string // the copy was taken before this
		intent bool   // and then the intent of another commit is written
		open   bool
	}{
		{"extended", extending(4), "publish extend", "extend", false, true},
		{"the journal made", extending(4), "publish", "extend", false, true},
		{"a group", extending(4), "publish extend", "group", false, true},
		{"idle", extending(4), "publish extend", "extend idle", false, false},
		{"confirm synced", synced(4), "publish extend", "extend", false, false},
		{"the next intent", extending(4), "publish extend", "extend", true, false},
		{"two batches", extending(4), "publish extend", "extend extend", false, false},
		{"published", extending(4), "publish extend", "checkpoint", false, false},
		{"published, and extended", extending(4), "publish extend", "checkpoint extend", false, false},
		{"every commit published", publishing, "publish", "publish", false, false},
		{"closed", extending(roomy), "publish", "extend close", false, false},
	} {
		m := simfs.New(simfs.PosixMinimal, "/store", "/trust")
		c := newC()
		p := newRun(&c.plan, m, emptyLedger, start{}).start()
		p.sim.SetHook(func(c *simfs.Call) simfs.Fault {
			if p.fail != nil {
				return simfs.Fault{Err: p.fail(c)}
			}
			return simfs.Fault{}
		})
		u, err := openPawl(vfs.NewContext(context.WithValue(context.Background(), optionsKey{}, &k.opts), p.sim), p)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.does(k.before); err != nil {
			t.Fatal(k.name, err)
		}
		label := p.run.ledger().open[0]
		older := m.Image().Under("/store")
		delete(older, "/store")
		err = u.does(k.after)
		if err == nil && k.intent {
			err = u.commitFails(pawl.ErrInDoubt, true, writeJournal)
		}
		if err != nil {
			t.Fatal(k.name, err)
		}
		back, told := 0, 0
		m.Cut(simfs.CutOptions{}).Disks(func(d *simfs.Disk) bool {
			im := d.Machine().Image().Under("/trust")
			delete(im, "/trust")
			switch a := try(t, join(older, im)); {
			case a.err == nil && a.label == label && a.report.Verdict == "not landed":
				back++
			case errors.Is(a.err, pawl.ErrRolledBack) && a.wrote == "":
				told++
			default:
				t.Errorf("%s: opened as %q, %v\n%s", k.name, a.label, a.err, a.wrote)
			}
			return true
		})
		if (back > 0) != k.open || back+told == 0 {
			t.Errorf("%s: of %d disks, on %d the older state is taken for the present one; want some: %v", k.name, back+told, back, k.open)
		}
		t.Logf("%s: %d disks, on %d the older copy opens", k.name, back+told, back)
	}
}
