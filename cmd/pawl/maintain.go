package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

func compactCommand() *command {
	var p pawl.Policy
	var since, forget uint64
	var shared bool
	return &command{
		name: "compact",
		what: "drop old entries, and give their space back",
		more: `
An entry stays when --keep-last or --keep-since keeps it, and with it those of its commit;
and so do those about effects that are not settled.
Of a commit whose entries go all else stays, but with --forget-before nothing is left of it
than that its id was used. Look with --dry-run first: what is dropped is gone.`,
		flags: func(fs *flag.FlagSet) {
			fs.Uint64Var(&p.KeepLast, "keep-last", 0, "keep the last `count` entries")
			fs.Uint64Var(&since, "keep-since", 0, "keep the entries of this `revision` and of all after it")
			fs.Uint64Var(&forget, "forget-before", 0, "forget commits before this `revision`, up to the first with an entry that stays")
			fs.BoolVar(&p.DryRun, "dry-run", false, "only say what would go")
			fs.BoolVar(&shared, "shared", false, "the store is open elsewhere with Options.Shared: take turns")
		},
		run: func(ctx context.Context, c *call) (err error) {
			w := writing{shared: shared}
			s, err := w.open(ctx, c)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			p.KeepSince, p.ForgetBefore = pawl.Revision(since), pawl.Revision(forget)
			if p.Keep = effect.KeepUnsettled(s); p.KeepLast == 0 && p.KeepSince == 0 {
				p.Keep = nil // it is to be said that nothing says what to keep
			}
			shown := progress{c: c, what: "looked at", unit: func(n int64) string { return number(int(n), "commit") }}
			p.Progress = func(done, total uint64) { shown.report(int64(done), int64(total)) }
			r, err := s.Compact(ctx, p)
			shown.end()
			if err != nil {
				return err
			}
			if c.json {
				return c.object(r)
			}
			verb := "dropped"
			if p.DryRun {
				verb = "would drop"
			}
			fmt.Fprintf(c.out, "%s %d entries (%s) of %d commits", verb, r.Entries, size(r.EntryBytes), r.Commits)
			if r.Entries > 0 {
				fmt.Fprintf(c.out, ", seqs %d to %d", r.FirstSeq, r.LastSeq)
			}
			fmt.Fprintf(c.out, "\n%d entries are left", r.Kept)
			if r.Forgotten > 0 {
				fmt.Fprintf(c.out, "; %d commits forgotten, to revision %d", r.Forgotten, r.ForgottenTo)
			}
			_, err = fmt.Fprintf(c.out, "\nspace %s before, %s after\n", size(r.BytesBefore), size(r.BytesAfter))
			return err
		},
	}
}

// recoverLine is what recover says, in JSON.
type recoverLine struct {
	Settled  string    `json:"settled"` // nothing to settle, landed, not landed
	Unclean  bool      `json:"unclean"`
	State    pawl.Root `json:"state"`
	Pending  pawl.Root `json:"pending,omitzero"`
	Commits  []string  `json:"commits,omitempty"`
	Swept    []string  `json:"swept,omitempty"`
	AuditErr string    `json:"audit_error,omitempty"`
}

func recoverCommand() *command {
	return &command{
		name: "recover",
		what: "settle what a killed process has left, as Open does",
		run: func(ctx context.Context, c *call) error {
			s, err := pawl.Open(ctx, c.store, c.trust, c.options())
			if err != nil {
				return err
			}
			r := s.Recovery()
			if err := s.Close(); err != nil {
				return err
			}
			if c.json {
				line := recoverLine{r.Settled.String(), r.Unclean, r.Confirmed, r.Pending, r.Commits, r.Swept, ""}
				if r.Audit != nil {
					line.AuditErr = r.Audit.Error()
				}
				return c.object(line)
			}
			switch r.Settled {
			case pawl.SettledNothing:
				fmt.Fprintln(c.out, "there was nothing to settle")
			default:
				fmt.Fprintf(c.out, "the commit of revision %d: %s\n", r.Pending.Revision, r.Settled)
				for _, id := range r.Commits {
					fmt.Fprintf(c.out, "  %s\n", safe(id))
				}
			}
			for _, name := range r.Swept {
				fmt.Fprintf(c.out, "swept %s\n", safe(name))
			}
			fmt.Fprintf(c.out, "the store is at revision %d\n", r.Confirmed.Revision)
			return nil
		},
	}
}

func auditCommand() *command {
	return &command{
		name: "audit",
		what: "what was settled and decided, from the audit file",
		run: func(ctx context.Context, c *call) error {
			f, err := c.openAudit(ctx)
			if err != nil || f == nil {
				return err
			}
			defer f.Close()
			lines := bufio.NewReader(io.NewSectionReader(f, 0, math.MaxInt64))
			for {
				line, err := readLine(lines)
				if len(line) > 0 {
					if err := c.auditLine(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
						return err
					}
				}
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
			}
		},
	}
}

// openAudit opens the audit file, which is beside the trust file; nil: there is none.
func (c *call) openAudit(ctx context.Context) (vfs.File, error) {
	o := c.options()
	o.MustExist = false
	r, err := pawl.Inspect(ctx, c.store, c.trust, o)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(r.Trust), ".trust") + ".audit"
	dir, err := vfs.OS().OpenDir(filepath.Dir(r.Trust))
	var f vfs.File
	if err == nil {
		defer dir.Close()
		f, err = dir.Open(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.Verdict == "create":
		_, err = pawl.Open(ctx, c.store, c.trust, c.options()) // says that there is no store
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		if !c.json {
			fmt.Fprintln(c.out, "there is no audit file: nothing was settled yet")
		}
		return nil, nil
	}
	return f, err
}

// tornLine is a line of the audit file that is not whole, in JSON.
type tornLine struct {
	Text string `json:"not_whole"`
}

// auditLine shows one line of the audit file. One that is cut off is shown as it is.
func (c *call) auditLine(line []byte) error {
	if c.json && json.Valid(line) {
		return c.object(json.RawMessage(line))
	}
	if c.json {
		return c.object(tornLine{string(line)})
	}
	var a struct {
		Time, Event, Outcome, Process, From, To, Reason string
		LostFrom                                        uint64   `json:"lost_from"`
		LostTo                                          uint64   `json:"lost_to"`
		SetAside                                        []string `json:"set_aside"`
		Confirmed                                       struct{ Revision uint64 }
		Pending                                         *struct{ Revision uint64 }
		Commits                                         []string
	}
	if json.Unmarshal(line, &a) != nil {
		_, err := fmt.Fprintf(c.out, "not whole: %s\n", safe(string(line)))
		return err
	}
	text := fmt.Sprintf("%s  %s", safe(a.Time), safe(a.Event))
	if a.Pending != nil && a.Outcome != "" {
		text += fmt.Sprintf(" of revision %d: %s", a.Pending.Revision, safe(a.Outcome))
	}
	if a.From != "" || a.To != "" {
		text += fmt.Sprintf(" from %s to %s", safe(a.From), safe(a.To))
	}
	text += fmt.Sprintf(", at revision %d, by %s", a.Confirmed.Revision, safe(a.Process))
	if a.LostTo != 0 {
		text += fmt.Sprintf("; revisions %d to %d given up", a.LostFrom, a.LostTo)
	}
	if len(a.SetAside) > 0 {
		text += fmt.Sprintf("; %d files set aside", len(a.SetAside))
	}
	if a.Reason != "" {
		text += "; because: " + safe(a.Reason)
	}
	_, err := fmt.Fprintln(c.out, wrapAt(text, columns, "  "))
	return err
}

// format is the only one that there is.
const format = 1

// versionLine is what version says, in JSON.
type versionLine struct {
	Pawl   string `json:"pawl"`
	Format int    `json:"format"`
	Go     string `json:"go"`
	System string `json:"system"`
}

func versionCommand() *command {
	return &command{
		name: "version", nowhere: true,
		what: "the version of this program, and its format",
		run: func(_ context.Context, c *call) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
				version = info.Main.Version
			}
			v := versionLine{version, format, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if c.json {
				return c.object(v)
			}
			_, err := fmt.Fprintf(c.out, "pawl %s, format %d, %s, %s\n", v.Pawl, v.Format, v.Go, v.System)
			return err
		},
	}
}
