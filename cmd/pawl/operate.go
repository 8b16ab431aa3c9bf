package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
)

// deciding are the flags of a command that carries out a decision.
type deciding struct {
	digest, reason string
	dry            bool
}

func (d *deciding) flags(fs *flag.FlagSet, what string) {
	fs.StringVar(&d.digest, "digest", "", what)
	fs.StringVar(&d.reason, "reason", "", "`why`, for the audit file; without it nothing is done")
	fs.BoolVar(&d.dry, "dry-run", false, "only say what would be done")
}

// run shows what would be done, or does it.
func (d *deciding) run(c *call, name, rest string, do func(pawl.Decision) (*pawl.Ruling, error)) error {
	dec := pawl.Decision{Reason: d.reason, DryRun: d.dry || d.reason == ""}
	if d.digest != "" {
		if err := dec.Digest.UnmarshalText([]byte(d.digest)); err != nil {
			return usage{fmt.Sprintf("--digest: %v", err)}
		}
	}
	r, err := do(dec)
	if err != nil {
		return err
	}
	// Asked without a reason: what there is to decide is shown, and nothing is done.
	command := ""
	if dec.DryRun && !d.dry {
		command = "pawl " + name + c.place()
		digest := r.Trusted.Digest
		if name == "adopt" || name == "quarantine" {
			digest = r.Chosen.Digest
		}
		if digest != (pawl.Digest{}) {
			command += " --digest " + digest.String()
		}
		command += " --reason WHY" + rest
	}
	if c.json {
		if err := c.object(rulingLine{r, command}); err != nil {
			return err
		}
	} else {
		c.ruling(r)
	}
	if command == "" {
		return nil
	}
	return no{"nothing was done. To do it:\n  " + command}
}

// rulingLine is what a decision has done or would do, in JSON.
type rulingLine struct {
	*pawl.Ruling
	Command string `json:"command,omitempty"` // that does it, with a reason in place of WHY
}

// place are the flags that name the store, as far as the environment does not.
func (c *call) place() (flags string) {
	for _, f := range []struct{ name, value, env string }{{"store", c.store, "PAWL_STORE"}, {"trust", c.trust, "PAWL_TRUST"}, {"name", c.name, "PAWL_NAME"}} {
		if f.value != c.env(f.env) {
			flags += " --" + f.name + "=" + quoteArg(f.value)
		}
	}
	return flags
}

// quoteArg makes an argument safe to be typed again.
func quoteArg(s string) string {
	plain := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,"
	if runtime.GOOS == "windows" {
		plain += `\`
	}
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unsafeRune) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	// As bash, zsh, ksh and, since 2024, POSIX read it.
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteString(`\` + string(c))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}

// quoteLast is quoteArg for an argument behind the flags, which must not be taken for one.
func quoteLast(s string) string {
	if s == "-" {
		return " - <FILE"
	}
	if strings.HasPrefix(s, "-") {
		return " -- " + quoteArg(s)
	}
	return " " + quoteArg(s)
}

// unquoted is a name as it is, which status has shown quoted.
func (c *call) unquoted(name string) string {
	s, err := strconv.Unquote(name)
	if _, e := os.Lstat(filepath.Join(c.store, name)); err != nil || e == nil || strconv.QuoteToGraphic(s) != name {
		return name
	}
	return s
}

// ruling shows what was decided, or would be.
func (c *call) ruling(r *pawl.Ruling) {
	line := func(what, format string, args ...any) {
		fmt.Fprintf(c.out, "%-11s%s\n", what, fmt.Sprintf(format, args...))
	}
	if r.Done {
		line(r.Event, "it was done before")
	}
	if r.Trusted != (pawl.Root{}) {
		line("trusted", "%s", rootLine(r.Trusted))
	}
	if r.Pending != (pawl.Root{}) {
		line("pending", "%s", rootLine(r.Pending))
	}
	if r.Event == "quarantine" {
		line("file", "\n%s", digestLine(r.Chosen.Digest))
	} else if r.Chosen != (pawl.Root{}) {
		line("chosen", "%s", rootLine(r.Chosen))
	}
	if r.From != (pawl.Version{}) {
		line("version", "%d\n%s", r.From.Revision, digestLine(r.From.Digest))
	}
	if r.TrustedStore != "" {
		line("store", "%s, and the trust file speaks for\n%11s%s", r.Store, "", r.TrustedStore)
	}
	switch {
	case r.LostTo == 0:
		if r.Event == "adopt" || r.Event == "restore" {
			line("lost", "nothing")
		}
	case r.LostFrom == r.LostTo:
		line("lost", "revision %d", r.LostTo)
	default:
		line("lost", "revisions %d to %d", r.LostFrom, r.LostTo)
	}
	if r.Gained > 0 {
		line("gained", "%d commits that trust had not confirmed", r.Gained)
	}
	for _, d := range r.Damage {
		line("damaged", "%s", damageLine(d))
	}
	if r.Root != (pawl.Root{}) {
		line("now", "%s", rootLine(r.Root))
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"set aside", r.SetAside}, {"removed", r.Removed}, {"left", r.Left}} {
		for i, name := range list.names {
			if i == 10 {
				line("", "and %d more", len(list.names)-i)
				break
			}
			line(list.what, "%s", safe(name))
			list.what = ""
		}
	}
}

func adoptCommand() *command {
	var d deciding
	return &command{
		name: "adopt",
		what: "trust a state that is there and that Open refuses",
		more: `
Without --reason nothing is done: what that state is, and what is lost or gained by it, is
shown, with the command that does it. --digest names exactly one state, as status shows it.
What was there goes to quarantine/, what is given up is declared by a commit of its own, and
the audit file says why.`,
		flags: func(fs *flag.FlagSet) { d.flags(fs, "the `digest` of the state to trust, as status shows it") },
		run: func(ctx context.Context, c *call) error {
			return d.run(c, "adopt", "", func(dec pawl.Decision) (*pawl.Ruling, error) {
				return pawl.Adopt(ctx, c.store, c.trust, c.options(), dec)
			})
		},
	}
}

func quarantineCommand() *command {
	var d deciding
	return &command{
		name: "quarantine", args: "NAME",
		what: "move a file that is in the way into quarantine/",
		more: `
NAME is that of a file in the store directory, or in segments/ or parts/, which pawl did
not make, or which no trust record names; quoted, as status shows it, or as it is. Without
--reason nothing is done, and the command that does it is shown; --digest is the SHA-256
of the file. pawl never reads what is in quarantine/, and never removes it.`,
		flags: func(fs *flag.FlagSet) {
			d.flags(fs, "the `digest` of the file; none: it is no regular file")
		},
		run: func(ctx context.Context, c *call) error {
			name := c.unquoted(c.args[0])
			return d.run(c, "quarantine", quoteLast(name), func(dec pawl.Decision) (*pawl.Ruling, error) {
				return pawl.Quarantine(ctx, c.store, c.trust, c.options(), filepath.ToSlash(name), dec)
			})
		},
	}
}

func removeCommand() *command {
	var d deciding
	return &command{
		name: "remove",
		what: "remove a store: what pawl has made, and its trust file",
		more: `
Without --reason nothing is done, and the command that does it is shown; --digest is that of
the state that the trust file confirms. What pawl did not make stays, and so do quarantine/
and the audit file. A removal that was cut off is repeated, and goes on.`,
		flags: func(fs *flag.FlagSet) {
			d.flags(fs, "the `digest` that the trust file confirms; none: nothing was committed")
		},
		run: func(ctx context.Context, c *call) error {
			return d.run(c, "remove", "", func(dec pawl.Decision) (*pawl.Ruling, error) {
				return pawl.Remove(ctx, c.store, c.trust, c.options(), dec)
			})
		},
	}
}

func renameCommand() *command {
	var d deciding
	var name string
	return &command{
		name: "rename", args: "NEWDIR",
		what: "give the directory and its trust file a new name",
		more: `
NEWDIR is beside the store directory. The trust file is called after its last element, or
after --to-name. Without --reason nothing is done, and the command that does it is shown. A
rename that was cut off is repeated, and goes on. To move a store elsewhere, move its
directory, or both, while it is closed: no command is needed.`,
		flags: func(fs *flag.FlagSet) {
			d.flags(fs, "the `digest` that the trust file confirms; none: nothing was committed")
			fs.StringVar(&name, "to-name", "", "the new `name` in the trust directory")
		},
		run: func(ctx context.Context, c *call) error {
			rest := quoteLast(c.args[0])
			if name != "" {
				rest = " --to-name=" + quoteArg(name) + rest
			}
			return d.run(c, "rename", rest, func(dec pawl.Decision) (*pawl.Ruling, error) {
				return pawl.Rename(ctx, c.store, c.trust, c.options(), c.args[0], name, dec)
			})
		},
	}
}

// upgradeLine is the result of upgrade, in JSON.
type upgradeLine struct {
	Format int  `json:"format"`
	Newest int  `json:"newest"`
	Raised bool `json:"raised"`
}

func upgradeCommand() *command {
	return &command{
		name: "upgrade",
		what: "raise the format of a store; there is one format today",
		more: `
A store stays at the format that it was made with until this command is run. Programs that
know only an older one can then no longer open it.`,
		run: func(ctx context.Context, c *call) error {
			s, err := pawl.Open(ctx, c.store, c.trust, c.options())
			if err != nil {
				return err
			}
			if err := s.Close(); err != nil {
				return err
			}
			if c.json {
				return c.object(upgradeLine{format, format, false})
			}
			_, err = fmt.Fprintf(c.out, "the store is at format %d, the newest that there is: nothing was done\n", format)
			return err
		},
	}
}
