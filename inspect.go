package pawl

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// inspectTries is how often Inspect looks again when a writer changed what it read.
const inspectTries = 40

// Report describes what is in the two directories of a store, good or bad.
type Report struct {
	Dir   string `json:"dir"`
	Trust string `json:"trust"` // the trust file

	// Verdict is what Open would do: "create", "clean", "landed", "not landed", or
	// "refuse", with Err saying why. "changing" means that a writer was too busy for
	// the two directories to be read as one.
	Verdict string `json:"verdict"`
	Err     error  `json:"-"`
	Problem string `json:"problem,omitempty"` // the text of Err
	Hint    string `json:"hint,omitempty"`    // what to do about it

	StoreID   string   `json:"store_id,omitempty"`
	Sequence  uint64   `json:"sequence,omitempty"` // of the newest trust record
	Confirmed Root     `json:"confirmed,omitzero"`
	Pending   Root     `json:"pending,omitzero"`       // zero: no intent
	Commits   []string `json:"commits,omitempty"`      // ids that the intent names
	Closed    bool     `json:"closed"`                 // the last writer closed the store
	CreatedAt string   `json:"created_at,omitempty"`   // where the store was when its trust file was made, as far as that fitted
	Broken    int      `json:"broken_slots,omitempty"` // trust records that are not whole

	Found   Root     `json:"found,omitzero"` // what the store directory holds, as far as it is whole
	Bytes   int64    `json:"bytes"`          // the bundle's size
	Journal int64    `json:"journal"`        // the journal's size; 0: there is none
	Entries Seq      `json:"entries"`        // those of Found
	Parts   []string `json:"parts,omitempty"`
	Schema  int      `json:"schema,omitempty"`  // what the newest commit that says one says
	Program string   `json:"program,omitempty"` // likewise

	// The files that the bundle names.
	Segments  int      `json:"segments,omitempty"`
	PartFiles int      `json:"part_files,omitempty"`
	FileBytes int64    `json:"file_bytes,omitempty"` // what these have, by the bundle
	Missing   []string `json:"missing,omitempty"`    // those that are not there, or no files; Verify looks into them

	Temps   []string `json:"temps,omitempty"`      // temps, segments and files of parts that nothing names: left by killed processes; Open sweeps them
	Aside   []string `json:"quarantine,omitempty"` // what was set aside; pawl leaves it alone
	Unknown []string `json:"unknown,omitempty"`    // names in the store directory that pawl did not make
}

// Inspect describes a store without opening it: no lock is taken, nothing is
// written, and a bad state is no error but described. Beside a live writer it tries
// again while what it reads changes under it. An error is one that leaves nothing to
// describe: bad arguments, or a directory that cannot be listed.
func Inspect(ctx context.Context, dir, trustDir string, opts *Options) (*Report, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, fail("inspect", dir, err)
	}
	at, err := locate(vfs.FromContext(ctx), dir, trustDir, &o)
	if err != nil {
		return nil, fail("inspect", dir, err)
	}
	s := &site{at: at, opts: o, counts: new(counts)}
	defer s.closeDirs()
	// What would keep Open from these directories is described with the rest.
	refusal := s.openDirs()
	if refusal != nil {
		s.opts.Allow = allowAll
		if err := s.closeDirs(); err != nil {
			return nil, fail("inspect", at.dir, err)
		}
		if s.openDirs() != nil {
			return (&Report{Dir: at.dir, Trust: at.trustPath()}).refuse(fail("open", at.dir, refusal)), nil
		}
	}
	var r *Report
	for try := range inspectTries {
		if ctx.Err() != nil {
			return nil, fail("inspect", at.dir, ctxError(ctx))
		}
		before := s.peekTrust()
		if r, err = s.inspect(); err != nil {
			return nil, fail("inspect", at.dir, err)
		}
		if slices.Equal(before, s.peekTrust()) {
			break
		}
		if try == inspectTries-1 {
			r.Verdict, r.Err, r.Problem, r.Hint = "changing", nil, "", "A writer is at work; ask again"
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(try) * time.Millisecond):
		}
	}
	if refusal != nil {
		r.refuse(fail("open", at.dir, refusal))
	}
	return r, nil
}

// peekTrust returns the trust file's bytes as they are now, or none.
func (s *site) peekTrust() []byte {
	if s.trustDir == nil {
		return nil
	}
	t := trustFile{dir: s.trustDir, name: s.at.name + trustSuffix}
	ring, _, _ := t.bytes()
	return ring
}

func (s *site) inspect() (*Report, error) {
	name := s.at.name + trustSuffix
	r := &Report{Dir: s.at.dir, Trust: s.at.trustPath()}
	f, storeErr := readStore(s.dir, &s.opts.Limits)
	defer f.discard(nil)
	r.describe(f)
	if s.dir != nil {
		if err := r.listStore(s.dir, f); err != nil {
			return nil, err
		}
	}
	if s.trustDir == nil {
		return r.withoutTrust(s)
	}
	t := &trustFile{dir: s.trustDir, name: name}
	if err := t.read(); err == errNoTrust {
		return r.withoutTrust(s)
	} else if err != nil && t.newest.ending == "" {
		return r.refuse(fail("open", t.path(), err)), nil
	}
	rec := &t.newest
	r.StoreID, r.Sequence, r.Confirmed, r.Pending = rec.store.String(), rec.sequence, rec.confirmed, rec.pending
	r.Commits, r.Closed, r.CreatedAt, r.Broken = rec.ids, rec.closed, rec.path, len(t.broken)
	if path, err := strconv.Unquote(rec.path); err == nil {
		r.CreatedAt = path
	}
	if rec.ending != "" {
		return r.refuse(fail("open", t.path(), ending(rec.ending))), nil
	}
	if err := s.swapped(); err != nil {
		return r.refuse(fail("open", s.at.trust, err)), nil
	}
	if err := s.spelled(t.info); err != nil {
		return r.refuse(fail("open", s.at.trust, err)), nil
	}
	if err := s.ownTrust(t.info, t.path(), "trust file"); err != nil {
		return r.refuse(fail("open", t.path(), err)), nil
	}
	if err := s.locksFree(); err != nil {
		return r.refuse(fail("open", s.at.dir, err)), nil
	}
	if storeErr != nil {
		return r.refuse(fail("open", s.at.dir, storeErr)), nil
	}
	v, e := decide(rec, f)
	if e != nil {
		return r.refuse(fail("open", filepath.Join(s.at.dir, f.culprit(rec)), s.otherStore(rec.path, e))), nil
	}
	if f.state != nil {
		root := rec.confirmed
		if v == verdictLanded {
			root = rec.pending
		}
		n, _ := f.at(root)
		if e := schemaFits(&s.opts, f.stateAt(n), s.opts.Migrate != nil); e != nil {
			return r.refuse(fail("open", s.at.dir, e)), nil
		}
	}
	r.Verdict = [...]string{verdictClean: "clean", verdictLanded: "landed", verdictNotLanded: "not landed"}[v]
	return r, nil
}

// locksFree says whether there is nothing else where the lock files are, or will be.
func (s *site) locksFree() error {
	for _, l := range []struct {
		in   *directory
		name string
	}{{s.trustDir, s.at.name + lockSuffix}, {s.dir, lockName}} {
		if l.in == nil {
			continue
		}
		info, err := l.in.Lstat(l.name)
		if err == nil && !info.Mode.IsRegular() {
			return lockTaken(filepath.Join(l.in.Path(), l.name), vfs.ErrNotRegular)
		}
	}
	return nil
}

func (r *Report) refuse(e *Error) *Report {
	r.Verdict, r.Err, r.Problem, r.Hint = "refuse", e, e.Error(), e.Hint
	return r
}

func (r *Report) withoutTrust(s *site) (*Report, error) {
	if err := s.beforeLocks(); err != nil {
		return r.refuse(fail("open", s.at.dir, err)), nil
	}
	r.Verdict = "create"
	return r, nil
}

func (r *Report) listStore(d *directory, f *found) error {
	names, err := d.Names()
	if err != nil {
		return fmt.Errorf("%s: %w", printable(d.Path()), err)
	}
	for _, name := range names {
		_, journal := journalEpoch(name)
		info, err := d.Lstat(name)
		switch {
		case isTemp(tempPrefix, name):
			r.Temps = append(r.Temps, name)
		case err == nil && info.Mode.IsDir() && (name == segmentsName || name == partsName || name == asideName):
			// looked into below
		case name != lockName && name != bundleName && !journal:
			r.Unknown = append(r.Unknown, printable(name))
		}
	}
	aside, err := d.aside.names()
	if err != nil {
		return fmt.Errorf("%s: %w", printable(d.aside.path()), err)
	}
	for _, name := range aside {
		r.Aside = append(r.Aside, printable(name))
	}
	wanted := map[string]*keptFile{}
	if f.state != nil {
		wanted = f.state.keptFiles()
	}
	for _, in := range []*folder{&d.segments, &d.parts} {
		names, err := in.names()
		if err != nil {
			return fmt.Errorf("%s: %w", printable(in.path()), err)
		}
		for _, name := range names {
			switch path := in.name + "/" + name; {
			case wanted[name] != nil && wanted[name].in.name == in.name:
			case in.ours(name) || isTemp(tempPrefix, name):
				r.Temps = append(r.Temps, path)
			default:
				r.Unknown = append(r.Unknown, printable(path))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		file := wanted[name]
		if file.open() != nil {
			r.Missing = append(r.Missing, file.in.name+"/"+name)
		}
		file.rest()
	}
	return nil
}

func (r *Report) describe(f *found) {
	r.Found = f.newest()
	if f.info != nil {
		r.Bytes = f.info.Size
	}
	if f.journal != nil {
		r.Journal = f.journal.Size
	}
	if f.state != nil {
		st := f.stateAt(len(f.walk.steps))
		r.Entries, r.Parts = st.nextSeq()-1, st.partNames()
		r.Schema, r.Program = int(st.schema), st.program
		r.Segments = len(st.sealed)
		for _, g := range st.sealed {
			r.FileBytes += g.size
		}
		n, size := st.partFiles(math.MaxInt64)
		r.PartFiles, r.FileBytes = n, r.FileBytes+size
	}
}
