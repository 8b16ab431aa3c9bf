package crashtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// What a bundle does not hold is in files of their own, segments and parts. The scenarios
// of this file make them, merge them and drop what is in them.
const (
	segmentFiles = pawlStore + "/segments/seg-*"
	partFiles    = pawlStore + "/parts/[0-9a-f]*"
	receiptsFile = "/store/receipts"
)

// growthKey is where a Func finds what it may expect of a store that grows.
type growthKey struct{}

// growth says what a program expects. Where there is none, it is nil.
type growth struct {
	receipts bool   // it keeps the receipt of each commit, in a file of its own
	keep     uint64 // so many entries at least are left of the history; 0: all of them
	forgets  bool   // commits before them may be forgotten
	open     int    // so many files may be open at the end: their names are gone, or were never known
}

// growing is a Func whose programs expect what g says.
func growing(g growth, f Func) Func {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, p *Process) error {
		return f(context.WithValue(ctx, growthKey{}, &g), p)
	}
}

// label is stateLabel for a state of which older entries may be gone, and which may have
// large parts.
func (g *growth) label(v pawl.View) (label string, err error) {
	if g == nil || g.keep == 0 {
		label, err = stateLabel(v)
	} else {
		label, err = lateLabel(v, g.keep)
	}
	if err == nil {
		err = partsFit(v, label)
	}
	return label, err
}

// lateLabel is stateLabel for a history of which only so many entries are left for
// certain. Each commit has one.
func lateLabel(v pawl.View, keep uint64) (string, error) {
	part, ok, err := v.Get("state")
	if err != nil {
		return "", err
	}
	label, last, n := string(part), none, uint64(0)
	newest := pawl.Seq(v.Version().Revision)
	for e, err := range v.Entries(0) {
		if err != nil {
			return "", err
		}
		before, now, found := strings.Cut(string(e.Data), ">")
		if !found || (n > 0 || e.Seq == 1) && before != last || e.Seq != pawl.Seq(e.Revision) {
			return "", fmt.Errorf("K2: entry %d is %q, after %q", e.Seq, e.Data, last)
		}
		if n == 0 && uint64(newest-e.Seq)+1 < min(keep, uint64(newest)) {
			return "", fmt.Errorf("K3: the first entry left is %d of %d", e.Seq, newest)
		}
		last = now
		n++
	}
	if ok != (label != none) || label != last || n < min(keep, uint64(newest)) {
		return "", fmt.Errorf("K2: the part holds %q, the journal ends with %q, after %d entries", label, last, n)
	}
	return label, nil
}

// kindsOf is the end of a label that says what is in the parts "large" and "twin": for
// each a letter, or - where there is no such part. A commit leaves them as they are.
func kindsOf(label string) string {
	if f := strings.SplitN(label, ".", 3); len(f) == 3 {
		return "." + f[2]
	}
	return ""
}

var kindedParts = [...]string{"large", "twin"}

// contentOf is what a part with that letter holds: of capitals, more than the scenarios
// put into a bundle.
func contentOf(kind byte) []byte {
	if kind >= 'a' {
		return []byte{kind}
	}
	return bytes.Repeat([]byte{kind}, 300)
}

// kindOf is the letter of one of the two parts.
func kindOf(label string, i int) byte {
	if k := kindsOf(label); k != "" {
		return k[1+i]
	}
	return '-'
}

// partsFit says that the two parts are those of a label.
func partsFit(v pawl.View, label string) error {
	for i, name := range kindedParts {
		kind := kindOf(label, i)
		b, ok, err := v.Get(name)
		if err != nil {
			return err
		}
		if ok != (kind != '-') || ok && !bytes.Equal(b, contentOf(kind)) {
			return fmt.Errorf("K2: in state %q, the part %s is %.10q, of %d bytes", label, name, b, len(b))
		}
	}
	return nil
}

// sighting is a View as it was when it was taken.
type sighting struct {
	view  pawl.View
	label string
}

// stays says that the View can still be read whole, and has not changed.
func (s sighting) stays(g *growth) error {
	label, err := g.label(s.view)
	if err == nil && label != s.label {
		err = fmt.Errorf("the view of %q has become one of %q", s.label, label)
	}
	return err
}

// grow carries out the words that are about history and parts.
func (u *user) grow(word string) error {
	verb, what, _ := strings.Cut(word, "=")
	switch verb {
	case "put": // replaces both parts
		before, err := u.growth.label(u.s.View())
		if err != nil {
			return err
		}
		label, c := u.change(before)
		label = strings.TrimSuffix(label, kindsOf(label)) + "." + what
		u.newest, c.ID = label, label
		c.Entries = [][]byte{[]byte(before + ">" + label)}
		c.Put["state"] = []byte(label)
		for i, name := range kindedParts {
			if kind := what[i]; kind != '-' {
				c.Put[name] = contentOf(kind)
			} else if kindOf(before, i) != '-' {
				c.Delete = append(c.Delete, name)
			}
		}
		return u.commits(label, c)
	case "keep", "forget": // entries: the last so many
		n, err := strconv.ParseUint(what, 10, 64)
		if err != nil {
			return broken("%v", err)
		}
		p := pawl.Policy{KeepLast: n}
		if verb == "forget" {
			p.ForgetBefore = u.s.View().Version().Revision
		}
		r, err := u.s.Compact(u.ctx, p)
		if err != nil {
			return err
		}
		left := uint64(0)
		for _, err := range u.s.View().Entries(0) {
			if err != nil {
				return err
			}
			left++
		}
		if left != r.Kept || left != min(n, r.Kept+r.Entries) {
			return broken("%s left %d entries: %+v", word, left, r)
		}
		return nil
	case "hold":
		label, err := u.growth.label(u.s.View())
		u.held = append(u.held, sighting{u.s.View(), label})
		return err
	case "look":
		for _, s := range u.held {
			if err := s.stays(u.growth); err != nil {
				return err
			}
		}
		return nil
	}
	return broken("%q is no word of a script", word)
}

// noted is a receipt that a program has kept.
type noted struct {
	id      string
	receipt pawl.Receipt
}

// note keeps the receipt of an acknowledged commit, where the explorer makes it durable
// at once.
func (g *growth) note(p *Process, id string, r pawl.Receipt) error {
	if g == nil || !g.receipts {
		return nil
	}
	text, err := r.MarshalText()
	if err != nil {
		return err
	}
	before, err := p.FS().ReadFile(receiptsFile)
	if err != nil {
		return err
	}
	// A sector is written whole or not at all, and so is a quarter of one.
	return p.FS().WriteAt(receiptsFile, fmt.Appendf(nil, "%-127s\n", id+" "+string(text)), int64(len(before)))
}

// notes are the receipts that were kept.
func (g *growth) notes(p *Process) (all []noted, err error) {
	if g == nil || !g.receipts {
		return nil, nil
	}
	b, err := p.FS().ReadFile(receiptsFile)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		var n noted
		id, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := n.receipt.UnmarshalText([]byte(text)); err != nil {
			return nil, err
		}
		n.id = id
		all = append(all, n)
	}
	return all, nil
}

// proves says that the store is whole, and has all that it acknowledged, wherever that
// is by now.
func (u *user) proves() error {
	if err := u.s.Verify(u.ctx, nil); err != nil {
		return err
	}
	all, err := u.growth.notes(u.p)
	if err != nil {
		return err
	}
	same := func(r, o pawl.Receipt) bool {
		return r.Version == o.Version && r.FirstSeq == o.FirstSeq && r.LastSeq == o.LastSeq
	}
	for i, n := range all {
		ok, err := u.s.View().Contains(n.receipt)
		if gone := u.growth.forgets && errors.Is(err, pawl.ErrForgotten); !gone && (err != nil || !ok) {
			return fmt.Errorf("K1: the history does not hold %v, which was acknowledged (%w)", n, err)
		}
		r, out, err := u.s.Lookup(u.ctx, n.id)
		if err != nil || !(out == pawl.OutcomeCommitted && same(r, n.receipt)) && !(out == pawl.OutcomeForgotten && u.growth.forgets) {
			return fmt.Errorf("K1: Lookup of %v, which was acknowledged: %v, %v, %w", n, r, out, err)
		}
		if i > 0 && i < len(all)-1 {
			continue
		}
		again, err := u.s.Update(u.ctx, n.id, func(pawl.View) (pawl.Change, error) {
			return pawl.Change{}, errors.New("it is taken for a new commit")
		})
		if out == pawl.OutcomeForgotten {
			if !errors.Is(err, pawl.ErrForgotten) || !errors.Is(err, pawl.ErrNotCommitted) {
				return fmt.Errorf("K3: %s once more, which was forgotten: %v, %w", n.id, again, err)
			}
		} else if err != nil || !again.Replayed || !same(again, n.receipt) {
			return fmt.Errorf("K3: %s once more: %v, %w", n.id, again, err)
		}
	}
	return nil
}

// grows opens the store, tells what it found, proves it, carries out a script, and
// proves it again.
func grows(script string) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := errors.Join(u.observe(), u.proves()); err != nil {
			return err
		}
		if err := u.does(script); err != nil || strings.HasSuffix(script, "close") {
			return err
		}
		return u.proves()
	}
}

// shelved says that of segments and parts those are there which the bundle names, and no
// other file that has such a name. It finds them by what docs/format.md says, and by
// nothing of pawl's own code.
func shelved(p *Process) error {
	want := map[string][]string{}
	bundle, err := p.FS().ReadFile(pawlStore + "/bundle")
	switch {
	case err == nil:
		want["segments"], want["parts"] = namedIn(bundle)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	for _, dir := range []string{"segments", "parts"} {
		found, err := p.FS().ReadDir(pawlStore + "/" + dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, name := range want[dir] {
			if !slices.Contains(found, name) {
				return fmt.Errorf("K5: the bundle names %s/%s, and there is %q", dir, name, found)
			}
		}
		for _, name := range found {
			if name == foreign || slices.Contains(want[dir], name) {
				continue
			}
			// Where an open file cannot be removed, that is left to the next open.
			if vfs.ReplacesOpen || strings.HasPrefix(name, "tmp-") {
				return fmt.Errorf("K9: %s is left in %s, and the bundle names %q", name, dir, want[dir])
			}
		}
	}
	return nil
}

// foreign is the name of a file that somebody else put there.
const foreign = "notes.txt"

// namedIn lists the files that a bundle names.
func namedIn(b []byte) (segments, parts []string) {
	at := 256
	u16 := func() int { at += 2; return int(binary.LittleEndian.Uint16(b[at-2:])) }
	u32 := func() int { at += 4; return int(binary.LittleEndian.Uint32(b[at-4:])) }
	u64 := func() uint64 { at += 8; return binary.LittleEndian.Uint64(b[at-8:]) }
	str := func() { at += u16() }
	str() // the program
	for range u32() {
		str()
		at++
		inFile := b[at-1] == 1
		size := int(u64())
		digest := hex.EncodeToString(b[at : at+32])
		at += 32
		if inFile {
			parts = append(parts, digest)
		} else {
			at += size
		}
	}
	if b[20]&1 == 0 {
		return nil, parts
	}
	first := uint64(1)
	for range u32() {
		row := at
		last := u64()
		segments = append(segments, fmt.Sprintf("seg-%012d-%x", first, b[row+72:row+80]))
		first, at = last+1, row+104
	}
	return segments, parts
}

// sealing makes options seal all history whenever the bundle is published.
func sealing(o pawl.Options) pawl.Options {
	o.Limits.Unsealed = 1
	return o
}

// spilling makes options put parts of more than 100 bytes into files.
func spilling(o pawl.Options) pawl.Options {
	o.Limits.Inline = 100
	return o
}

// growthScenario is a workload on a store whose bundle names files.
type growthScenario struct {
	scenario
	growth
	segments, parts int  // how many are there in the end, when nothing crashed
	large           bool // explored two crashes deep only with -crash.long
	all             bool // explored under three profiles
}

func grown(name string, o pawl.Options, setup Func, script string, segments, parts int) growthScenario {
	return growthScenario{scenario{name: name, opts: o, setup: setup, do: grows(script)}, growth{receipts: true}, segments, parts, false, false}
}

// by is a scenario whose workload is another one.
func (sc growthScenario) by(do Func) growthScenario {
	sc.do = do
	return sc
}

func (sc growthScenario) takesLong() growthScenario {
	sc.large = true
	return sc
}

func (sc growthScenario) everywhere() growthScenario {
	sc.all = true
	return sc
}

// compacted is a scenario in which so many entries are certainly left.
func (sc growthScenario) compacted(keep uint64, forgets bool) growthScenario {
	sc.keep, sc.forgets = keep, forgets
	return sc
}

var (
	writeSegment = failing{simfs.OpWriteAt, pawlStore + "/segments/tmp-*"}
	nameSegment  = failing{simfs.OpSyncDir, pawlStore + "/segments"}
	syncPart     = failing{simfs.OpSync, pawlStore + "/parts/tmp-*"}
	namePart     = failing{simfs.OpSyncDir, pawlStore + "/parts"}
)

func commits(n int) string { return strings.Repeat("commit ", n) }

// littered is a Setup: another one, and then files with names that pawl makes, in both
// directories, and one that it does not make.
func littered(setup Func) Func {
	return func(ctx context.Context, p *Process) error {
		if err := setup(ctx, p); err != nil {
			return err
		}
		for dir, names := range map[string][]string{
			"segments": {"seg-000000000001-0123456789abcdef", "seg-000000000009-0123456789abcdef", "tmp-0123456789abcdef", foreign},
			"parts":    {strings.Repeat("0123456789abcdef", 4), "tmp-0123456789abcdef", foreign},
		} {
			dir := pawlStore + "/" + dir
			for _, name := range names {
				made := path.Join(dir, "made")
				if err := errors.Join(p.FS().Create(made, []byte("left")), p.FS().Rename(made, path.Join(dir, name))); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

var growthScenarios = []growthScenario{
	grown("seal, from nothing", sealing(publishing), nil, "publish publish close", 2, 0),
	grown("seal", sealing(publishing), left("publish"), "publish publish", 3, 0).everywhere(),
	grown("seal and close", sealing(publishing), left("publish close"), "publish close", 2, 0),
	grown("seal now and then", pawl.Options{CheckpointEvery: 1, Limits: pawl.Limits{Unsealed: 300}}, left("publish"), "publish publish publish", 1, 0),
	grown("seal, first of a history that was in the bundle", sealing(publishing), with(publishing, left("publish publish close")), "publish", 1, 0),
	grown("seal, settle landed", sealing(publishing), stopped("publish", syncStore), "", 3, 0).by(settled(pawl.SettledLanded)),
	grown("seal, settle not landed", sealing(publishing), stopped("publish", renameTemp), "", 2, 0).by(settled(pawl.SettledNotLanded)).everywhere(),
	grown("seal, recover after doubt", sealing(publishing), left("publish"), "", 4, 0).by(doubtful("publish", "publish close", syncStore)),
	grown("seal, fail at the bundle", sealing(publishing), left("publish"), "", 2, 0).by(aborted("", "publish", writeTemp)),
	grown("seal, fail at the segment", sealing(publishing), left("publish"), "", 2, 0).by(aborted("", "publish", writeSegment)),
	grown("seal, fail at its name", sealing(publishing), left("publish"), "", 2, 0).by(aborted("", "publish", nameSegment)),
	grown("seal a journal", sealing(extending(2)), left("publish extend"), "extend publish extend", 2, 0),
	grown("seal at a checkpoint", sealing(extending(3)), left("publish extend"), "checkpoint extend checkpoint", 3, 0),
	grown("seal, close with a little that is not sealed", sealing(extending(2)), left("publish"), "extend close", 1, 0),
	grown("seal a group", sealing(extending(1)), left("publish extend"), "group extend", 2, 0).takesLong(),

	grown("spill, from nothing", spilling(publishing), nil, "put=A- commit close", 0, 1),
	grown("spill, unchanged", spilling(publishing), left("put=A- commit"), "commit put=A- commit", 0, 1),
	grown("spill, and back", spilling(publishing), left("put=A-"), "put=B- put=A-", 0, 1).everywhere(),
	grown("spill, two of the same content", spilling(publishing), left("commit"), "put=AA put=A- put=BA", 0, 2),
	grown("spill, and shrink", spilling(publishing), left("put=AB"), "put=aB put=-A", 0, 1),
	grown("spill, settle landed", spilling(publishing), stopped("put=AB", syncStore), "", 0, 2).by(settled(pawl.SettledLanded)),
	grown("spill, fail at the bytes", spilling(publishing), left("put=A-"), "", 0, 1).by(spillFails("put=B-", "put=B-", syncPart)),
	grown("spill, fail at the name", spilling(publishing), left("put=A-"), "", 0, 1).by(spillFails("put=B-", "put=B-", namePart)),
	grown("spill out of a journal", spilling(extending(2)), left("publish extend"), "put=A- put=AB checkpoint", 0, 2),
	grown("spill, replaced in the journal", spilling(extending(3)), left("put=A- extend"), "put=B- put=A- checkpoint", 0, 1).takesLong(),
	grown("seal and spill", spilling(sealing(publishing)), left("put=A-"), "put=BA put=B-", 3, 1),
	grown("seal and spill a journal", spilling(sealing(extending(2))), left("publish put=A-"), "extend put=B-", 2, 1),

	grown("merge", sealing(publishing), left(commits(7)), "publish publish", 2, 0),
	grown("merge after a seal", sealing(publishing), left(commits(6)), "publish publish", 1, 0).takesLong(),
	grown("merge a journal", sealing(extending(1)), left(strings.Repeat("publish extend ", 7)), "publish extend", 1, 0).takesLong(),
	grown("merge, settle landed", sealing(publishing), stopped(commits(7), syncStore), "", 2, 0).by(settled(pawl.SettledLanded)).takesLong(),

	grown("compact", sealing(publishing), left(commits(4)), "keep=2 commit", 4, 0).compacted(2, false).everywhere(),
	grown("compact what is not sealed", publishing, left(commits(3)), "keep=1 commit", 1, 0).compacted(1, false),
	grown("compact twice", sealing(publishing), left(commits(5)), "keep=3 keep=1", 2, 0).compacted(1, false),
	grown("compact with a journal", sealing(extending(3)), left("publish extend checkpoint extend extend"), "keep=2 extend", 1, 0).compacted(2, false),
	grown("compact, nothing to drop", sealing(extending(3)), left("publish extend"), "keep=9 extend", 1, 0),
	grown("compact, spilling", spilling(sealing(extending(3))), left("publish put=A- extend"), "keep=1 put=B-", 1, 1).compacted(1, false),
	grown("forget", sealing(publishing), left(commits(4)), "forget=1 commit", 3, 0).compacted(1, true).everywhere(),
	grown("forget with a journal", sealing(extending(3)), left("publish extend extend"), "forget=2 extend", 2, 0).compacted(2, true),
	grown("forget what was dropped", sealing(publishing), left(commits(4)+"keep=2"), "forget=1", 2, 0).compacted(1, true),

	grown("retire, with views", spilling(sealing(publishing)), left("put=A- "+commits(6)), "hold put=B- look hold put=C- look", 2, 1).takesLong(),
	grown("sweep", spilling(sealing(publishing)), littered(left("put=A-")), "publish", 2, 1).everywhere(),
	grown("sweep, settle landed", spilling(sealing(publishing)), littered(stopped("put=A-", syncStore)), "", 3, 1).by(settled(pawl.SettledLanded)),
	grown("sweep, settle not landed", spilling(sealing(publishing)), littered(stopped("put=A-", renameTemp)), "", 2, 1).by(settled(pawl.SettledNotLanded)),
}

// spillFails is a workload: a word that fails for certain, and more.
func spillFails(word, after string, calls ...failing) Func {
	return func(ctx context.Context, p *Process) error {
		u, err := openPawl(ctx, p)
		if err != nil {
			return err
		}
		if err := u.observe(); err != nil {
			return err
		}
		done := u.fails(false, calls...)
		err = u.does(word)
		if came := done(); came != nil {
			return came
		}
		if !errors.Is(err, pawl.ErrNotCommitted) {
			return fmt.Errorf("the commit ended with %w", err)
		}
		return u.does(after)
	}
}

func (sc *growthScenario) plan(c *C) {
	pawlPlan(c)
	if sc.setup != nil {
		c.Setup(with(sc.opts, sc.setup))
	}
	c.Do(with(sc.opts, sc.do))
	c.Recover(with(sc.opts, grows("commit commit")))
	sc.around(c)
}

// around makes all processes of a plan expect what g says.
func (g growth) around(c *C) {
	if g == (growth{}) {
		return
	}
	setup := c.setup
	c.Setup(growing(g, func(ctx context.Context, p *Process) error {
		if g.receipts {
			if err := p.FS().Create(receiptsFile, nil); err != nil {
				return err
			}
		}
		if setup == nil {
			return nil
		}
		return setup(ctx, p)
	}))
	c.Unexplored(receiptsFile)
	c.Do(growing(g, c.do))
	c.Recover(growing(g, c.recover))
}

// TestGrowth explores stores whose bundles name segments and parts, as TestPawl does with
// others: two crashes deep under posix-minimal, of which the few that take longest are one
// crash deep without -crash.long, and some under the other two profiles too.
func TestGrowth(t *testing.T) {
	for _, sc := range growthScenarios {
		t.Run(sc.name, func(t *testing.T) {
			sc.ends(t)
			Run(t, func(c *C) {
				sc.plan(c)
				c.RecoverTwice()
				if raced || testing.Short() || sc.large && !*flagLong {
					c.Depth(1)
				} else if sc.all || *flagLong {
					c.Profiles("posix-minimal", "ordered-torn", "ext4-ordered")
				}
			})
		})
	}
}

// ends checks that a scenario is what its name says: without a crash, so many files are
// there in the end.
func (sc *growthScenario) ends(t *testing.T) {
	t.Helper()
	c := newC()
	sc.plan(c)
	x := newExplorer(&c.plan, simfs.PosixMinimal)
	root, f := x.prepare()
	if f != nil {
		t.Fatal(x.report(t.Name(), f))
	}
	m := root.machine.Snapshot()
	for _, f := range []Func{c.do, func(_ context.Context, p *Process) error {
		b, err := p.FS().ReadFile(pawlStore + "/bundle")
		if err != nil {
			return err
		}
		if s, parts := namedIn(b); len(s) != sc.segments || len(slices.Compact(slices.Sorted(slices.Values(parts)))) != sc.parts {
			return fmt.Errorf("it ends with the segments %q and the parts %q", s, parts)
		}
		return nil
	}} {
		if err := c.plan.play(m, root.claims, f, start{}).verdict("without a crash"); err != nil {
			t.Fatal(err)
		}
	}
}

// growthFault is a workload in which calls fail.
type growthFault struct {
	name   string
	opts   pawl.Options
	setup  Func
	script string
	growth
	leaves string // operations on segments and parts whose failure is left to the next open
}

var growthFaults = []growthFault{
	{"seal, from nothing", sealing(publishing), nil, "commit commit", growth{open: 1}, ""},
	{"seal", sealing(publishing), left("publish"), "commit commit", growth{open: 1}, ""},
	{"seal a journal", sealing(extending(1)), left("publish extend"), "commit commit", growth{open: 1}, ""},
	{"seal, settle landed", sealing(publishing), stopped("publish", syncStore), "commit", growth{open: 1}, ""},
	{"seal, settle not landed", sealing(publishing), stopped("publish", renameTemp), "commit", growth{open: 1}, "remove lstat"},
	{"spill, from nothing", spilling(publishing), nil, "put=A- put=B-", growth{open: 1}, "remove lstat open"},
	{"spill", spilling(publishing), left("commit"), "put=A- put=B-", growth{open: 1}, "remove lstat open"},
	{"spill, and back", spilling(publishing), left("put=A-"), "put=B- put=A-", growth{open: 2}, "remove lstat open"},
	{"merge", sealing(publishing), left(commits(7)), "commit", growth{open: 8}, "remove lstat open stat readat"},
	{"compact", sealing(publishing), left(commits(4)), "keep=2 commit", growth{keep: 2, open: 3}, "remove lstat open"},
	{"compact with a journal", spilling(sealing(extending(3))), left("publish put=A- extend"), "keep=1", growth{keep: 1, open: 2}, "remove lstat open"},
	{"forget", sealing(publishing), left(commits(3)), "forget=1 commit", growth{keep: 1, forgets: true, open: 3}, "remove lstat open"},
	{"sweep", spilling(sealing(publishing)), littered(left("put=A-")), "", growth{}, "remove lstat open"},
}

// TestGrowthFaults makes each call fail that makes, merges, drops and sweeps files which
// the bundle names.
func TestGrowthFaults(t *testing.T) {
	if raced {
		t.Skip("has one goroutine, and is explored without the race detector")
	}
	for _, tt := range growthFaults {
		t.Run(tt.name, func(t *testing.T) {
			Run(t, tt.plan)
		})
	}
}

func (tt growthFault) plan(c *C) {
	pawlPlan(c)
	if tt.setup != nil {
		c.Setup(with(tt.opts, tt.setup))
	}
	c.Depth(1)
	c.Do(with(tt.opts, stubborn(tt.script)))
	c.Recover(with(tt.opts, stubborn("commit commit")))
	tt.around(c)
	c.Faults(FaultsInDo, 1)
	c.MaySwallow(func(call Call) bool {
		if ok, _ := path.Match(segmentFiles, call.Path); ok && call.Op == "readat" {
			return true // of what cannot be read a smaller piece is tried
		}
		if call.Op == "lstat" && (call.Path == pawlStore+"/segments" || call.Path == pawlStore+"/parts") {
			return true // then it is opened anew
		}
		in := strings.HasPrefix(call.Path, pawlStore+"/segments") || strings.HasPrefix(call.Path, pawlStore+"/parts")
		return in && slices.Contains(strings.Fields(tt.leaves), call.Op) || swallowable(call) || removed.excuses(call)
	})
}

// TestGrowthFailedSyncs: a sync fails, the page cache keeps what it covered or goes back;
// the store goes on, is opened again in the same boot, and then the power is cut. What a
// failed sync left under the name of a file, or of a directory, is not taken for written.
func TestGrowthFailedSyncs(t *testing.T) {
	if raced {
		t.Skip("two crashes after each of dozens of faults")
	}
	for _, tt := range growthFaults[:8] {
		t.Run(tt.name, func(t *testing.T) {
			if (tt.setup != nil || testing.Short() && tt.name != "seal, from nothing") && !*flagLong {
				t.Skip("takes a minute together with the others")
			}
			Run(t, func(c *C) {
				tt.plan(c)
				c.Faults(FaultsInDo, 2)
				c.faulty = func(c *simfs.Call, k faultKind) bool { return failedSync(c, k) && !aboveStore(c) }
			})
		})
	}
}

// TestGrowthHandOver is TestHandOver for processes that seal, merge, spill and compact.
func TestGrowthHandOver(t *testing.T) {
	receipts, drops := growth{receipts: true}, growth{receipts: true, keep: 2}
	spills := sealing(publishing)
	spills.Limits.Inline = 1 // so that the state is a file too
	for _, tt := range []handOver{
		{"sealing", sealing(publishing), left("publish close"), "a:turn b:turn a:turn", "a:turn", "b:turn", "a:turn", receipts},
		{"sealing from nothing", spills, nil, "a:turn b:turn a:turn", "", "b:turn", "a:turn", receipts},
		{"sealing journals", sealing(extending(1)), left("publish extend close"), "a:turn b:turn a:turn", "", "b:turn", "a:turn", growth{}},
		{"spilling", spills, left("publish close"), "a:turn b:turn a:turn", "a:turn", "b:turn", "a:turn", growth{}},
		{"merging", sealing(publishing), left(commits(6) + "close"), "a:turn b:turn a:turn", "a:turn", "b:turn", "a:turn", growth{}},
		{"compacting", sealing(publishing), left(commits(3) + "close"), "a:turn b:keep=2 a:turn b:turn", "a:turn", "b:keep=2", "a:turn", drops},
	} {
		t.Run(tt.name, tt.explore)
	}
}

// TestReaderBesideGrowth is TestReaderBesideWriter for writers that seal, merge, spill and
// compact, which remove files that a reader needs. What it has once seen stays readable.
func TestReaderBesideGrowth(t *testing.T) {
	spills, journal := sealing(publishing), sealing(extending(1))
	spills.Limits.Inline, journal.Limits.Inline = 1, 1
	whole, drops := &growth{}, &growth{keep: 1}
	besideWriter(t, []sight{
		{"seal and spill", spills, left("publish"), true, "publish", 1, whole},
		{"seal and spill twice", spills, left("publish"), true, "publish publish", 24, whole},
		{"seal and spill from nothing", spills, nil, false, "publish publish", 48, whole},
		{"seal and spill a journal", journal, left("publish extend"), true, "publish", 12, whole},
		{"merge", sealing(publishing), left(commits(7)), true, "publish", 24, whole},
		{"compact", spills, left(commits(3)), true, "keep=1", 12, drops},
		{"compact and commit", sealing(extending(2)), left("publish extend"), true, "keep=1 extend", 24, drops},
		{"settle landed", spills, stopped("publish", syncStore), false, "publish", 24, whole},
	})
}
