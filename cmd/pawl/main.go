// Command pawl looks at stores, writes to them, and keeps them.
//
//	pawl COMMAND [flags] [arguments]
//
// The store is named by --store and --trust, or by PAWL_STORE and PAWL_TRUST. `pawl help`
// lists the commands, `pawl help COMMAND` says what one does; docs/cli.md has the JSON and
// the exit codes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// command is one word that pawl understands.
type command struct {
	name string
	args string // after the flags, for the help
	what string // one line
	more string // the rest of its help
	run  func(ctx context.Context, c *call) error

	flags   func(*flag.FlagSet) // its own; may be nil
	nowhere bool                // it needs no store
	over    bool                // its first argument may be a command, whose flags follow
}

// call is one run of a command.
type call struct {
	in       io.Reader
	out, err io.Writer
	terminal bool // err is one
	screen   bool // out is one
	env      func(string) string

	store, trust, name string
	json               bool
	wait               time.Duration
	args               []string
}

// grace is how long a command may take to end in good order. One that waits for what nobody
// reads, or writes, does not end.
const grace = 3 * time.Second

// usage is an error of how pawl was called.
type usage struct{ text string }

func (u usage) Error() string        { return u.text }
func (u usage) Is(target error) bool { return target == pawl.ErrInvalid }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	context.AfterFunc(ctx, func() {
		stop() // a second one ends it at once
		time.Sleep(grace)
		os.Exit(130)
	})
	c := &call{in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: isTerminal(os.Stderr), screen: isTerminal(os.Stdout), env: os.Getenv}
	os.Exit(c.main(ctx, os.Args[1:]))
}

// main runs pawl with its arguments and returns the exit code.
func (c *call) main(ctx context.Context, args []string) int {
	out := &output{to: c.out}
	c.out = out
	err := c.dispatch(ctx, args)
	if out.err != nil && (err == nil || errors.As(err, new(no)) || errors.As(err, new(shown)) || errors.As(err, new(unfit))) {
		err = out.err // the answer that these codes are about was not read by anybody
	}
	if err == nil {
		return exitOK
	}
	switch {
	case !errors.As(err, new(usage)):
		c.fail(err)
	case c.json || slices.Contains(args, "--json"): // it may not have come to be read as a flag
		_ = writeObject(c.err, problem{Error: className(err), Text: err.Error()})
	default:
		fmt.Fprintln(c.err, wrap("pawl: "+safe(err.Error())))
	}
	return exitCode(err)
}

func (c *call) dispatch(ctx context.Context, args []string) error {
	// The command may come after flags that are for all of them.
	i := 0
	for i < len(args) && strings.HasPrefix(args[i], "-") && !slices.Contains([]string{"-h", "--help", "-help"}, args[i]) {
		if _, value := globalFlags[strings.TrimLeft(args[i], "-")]; value && i+1 < len(args) {
			i++
		}
		i++
	}
	if i == len(args) || strings.HasPrefix(args[i], "-") || args[i] == "help" {
		return c.help(slices.DeleteFunc(slices.Clone(args[min(i, len(args)):]), func(arg string) bool { return strings.HasPrefix(arg, "-") }))
	}
	cmd := find(args[i])
	if cmd == nil {
		return usage{fmt.Sprintf("there is no command %q; pawl help lists them", args[i])}
	}
	fs := c.flagSet(cmd)
	var text strings.Builder
	fs.SetOutput(&text)
	err := parseAll(fs, slices.Concat(args[:i], args[i+1:]), &c.args, cmd.over)
	if errors.Is(err, flag.ErrHelp) {
		return c.helpOn(cmd)
	}
	if err != nil {
		return usage{fmt.Sprintf("%v; pawl help %s", err, cmd.name)}
	}
	if !cmd.nowhere && (c.store == "" || c.trust == "") {
		return usage{fmt.Sprintf("%s needs --store and --trust, or PAWL_STORE and PAWL_TRUST", cmd.name)}
	}
	if want := len(strings.Fields(cmd.args)); len(c.args) != want && !strings.Contains(cmd.args, "[") {
		return usage{strings.TrimSpace(fmt.Sprintf("%s takes %s, not %d: pawl %s %s", cmd.name, number(want, "argument"), len(c.args), cmd.name, cmd.args))}
	}
	c.in = &interruptible{ctx: ctx, from: c.in}
	return cmd.run(ctx, c)
}

// parseAll reads flags before, between and behind the arguments; none behind --, nor, with
// over, behind the first argument.
func parseAll(fs *flag.FlagSet, args []string, to *[]string, over bool) error {
	*to = nil
	for {
		if err := fs.Parse(args); err != nil {
			return err
		}
		rest := fs.Args()
		read := args[:len(args)-len(rest)]
		if len(rest) == 0 || over || len(read) > 0 && read[len(read)-1] == "--" {
			*to = append(*to, rest...)
			return nil
		}
		*to = append(*to, rest[0])
		args = rest[1:]
	}
}

// globalFlags are those that take a value, and that every command knows.
var globalFlags = map[string]bool{"store": true, "trust": true, "name": true, "wait": true}

func (c *call) flagSet(cmd *command) *flag.FlagSet {
	fs := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	fs.BoolVar(&c.json, "json", false, "write JSON, one object a line")
	fs.StringVar(&c.store, "store", c.env("PAWL_STORE"), "the store `directory`")
	fs.StringVar(&c.trust, "trust", c.env("PAWL_TRUST"), "the trust `directory`")
	fs.StringVar(&c.name, "name", c.env("PAWL_NAME"), "the `name` in the trust directory, if it is not that of the store directory")
	fs.DurationVar(&c.wait, "wait", 0, "how long to wait for another process")
	if cmd.flags != nil {
		cmd.flags(fs)
	}
	return fs
}

// options are those of the store.
func (c *call) options() *pawl.Options {
	return &pawl.Options{Name: c.name, MustExist: true, LockWait: c.wait}
}

func find(name string) *command {
	for _, cmd := range commands {
		if cmd.name == name {
			return cmd
		}
	}
	return nil
}
