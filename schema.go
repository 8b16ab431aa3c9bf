package pawl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// knownSchema refuses a state that a newer program of the caller's made, before
// anything is changed, and one that nobody is there to migrate.
func (s *Store) knownSchema(st *state) *Error {
	return schemaFits(&s.opts, st, s.opts.Migrate != nil && s.state.Load() == nil)
}

// schemaFits says whether a state has the schema that the caller asks for, or can be
// given it.
func schemaFits(o *Options, st *state, migrates bool) *Error {
	want, is := uint32(o.Schema), st.schema
	if want == 0 || is == want || st.version().Revision == 0 || is < want && migrates {
		return nil
	}
	e := &Error{Kind: ErrSchema, Hint: hintNewerSchema, Cause: fmt.Errorf("the state has schema %d, and Options.Schema is %d", is, want)}
	if is < want {
		e.Hint = hintOlderSchema
	}
	return e
}

// migrate brings the state that was opened up to the caller's schema, in one commit
// like any other.
func (s *Store) migrate(ctx context.Context) error {
	from := s.state.Load()
	if s.opts.Schema == 0 || from.version().Revision == 0 || from.schema == uint32(s.opts.Schema) {
		return nil
	}
	c, err := s.opts.Migrate(ctx, int(from.schema), View{from})
	if err != nil {
		return &Error{Op: "migrate", Path: s.at.dir, Cause: contained{err}, Hint: hintMigrate}
	}
	p, err := s.prepare(c)
	if err != nil {
		return fail("migrate", s.at.dir, err)
	}
	p.empty = false // what it changes is the schema
	r := s.first(ctx, p)
	s.lead(nil)
	if r.err != nil {
		c := *r.err
		return withoutOutcome(fail("migrate", s.at.dir, &c))
	}
	if s.state.Load().schema != uint32(s.opts.Schema) {
		return &Error{Op: "migrate", Path: s.at.dir, Kind: ErrIDReused, Hint: hintReused, Cause: fmt.Errorf("the change has the id %q, which is that of revision %d", clip(c.ID, 80), r.receipt.Revision)}
	}
	s.recovery.Migrated, s.recovery.SchemaFrom, s.recovery.Confirmed = true, int(from.schema), s.root
	before, now := strconv.Itoa(int(from.schema)), strconv.Itoa(s.opts.Schema)
	s.opts.Logger.Info("pawl: migrated", "store", s.at.dir, "from", before, "to", now, "revision", r.receipt.Revision)
	s.noted(s.auditChange("migrate", before, now))
	return nil
}

// compareProgram tells when another program, or another revision of it, made the state
// that was opened.
func (s *Store) compareProgram() {
	before := s.state.Load().program
	if before == "" || s.opts.Program == "" || before == s.opts.Program {
		return
	}
	s.recovery.ProgramFrom = before
	s.opts.Logger.Info("pawl: the state was made by another program", "store", s.at.dir, "before", before, "now", s.opts.Program)
	s.noted(s.auditChange("program", before, s.opts.Program))
}

// noted keeps the error of an audit line, which never keeps a store from opening.
func (s *Store) noted(err error) {
	if err == nil {
		return
	}
	s.recovery.Audit = errors.Join(s.recovery.Audit, err)
	s.opts.Logger.Error("pawl: no audit line was written", "store", s.at.dir, "error", err)
}
