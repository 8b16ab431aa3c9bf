package main

import (
	"flag"
	"fmt"
	"strings"
)

// commands are all there are, in the order of the help. They are made anew for each run,
// because their flags live in them.
var commands []*command

func init() {
	commands = []*command{
		statusCommand(), logCommand(), partsCommand(), catCommand(), historyCommand(), lookupCommand(), verifyCommand(),
		initCommand(), appendCommand(), putCommand(), compactCommand(), recoverCommand(),
		backupCommand(), restoreCommand(), adoptCommand(), quarantineCommand(), removeCommand(), renameCommand(), upgradeCommand(),
		effectsCommand(), releaseCommand(), resolveCommand(), cancelCommand(),
		auditCommand(), doctorCommand(), versionCommand(),
	}
}

func (c *call) help(args []string) error {
	if len(args) > 1 && args[1] != "help" {
		if cmd := find(args[1]); cmd != nil {
			if len(args) > 2 && cmd.over && underEffects(args[2]) != nil {
				return c.helpUnder(underEffects(args[2]))
			}
			return c.helpOn(cmd)
		}
		return usage{fmt.Sprintf("there is no command %q; pawl help lists them", args[1])}
	}
	fmt.Fprint(c.out, `pawl keeps a program's state in one directory, and what authorises it in
another.

usage: pawl COMMAND [flags] [arguments]

`)
	for _, cmd := range commands {
		fmt.Fprintf(c.out, "  %-21s  %s\n", strings.TrimSpace(cmd.name+" "+cmd.args), cmd.what)
	}
	fmt.Fprint(c.out, `
The store is named by --store and --trust, or by PAWL_STORE and PAWL_TRUST.
--json writes one object a line, for programs. pawl help COMMAND says more.
`)
	return nil
}

// helpUnder is helpOn for a command that is named after effects.
func (c *call) helpUnder(cmd *command) error {
	under := *cmd
	under.name = "effects " + cmd.name
	return c.helpOn(&under)
}

func (c *call) helpOn(cmd *command) error {
	fmt.Fprintf(c.out, "usage: pawl %s\n\n%s.\n", strings.TrimSpace(cmd.name+" [flags] "+cmd.args), cmd.what)
	if cmd.more != "" {
		for paragraph := range strings.SplitSeq(cmd.more, "\n\n") {
			fmt.Fprintf(c.out, "\n%s\n", wrap(paragraph))
		}
	}
	fmt.Fprint(c.out, "\nflags:\n")
	c.flagSet(cmd).VisitAll(func(f *flag.Flag) {
		value, what := flag.UnquoteUsage(f)
		fmt.Fprintf(c.out, "  --%-22s %s\n", strings.TrimSpace(f.Name+" "+value), wrapAt(what, columns-27, strings.Repeat(" ", 27)))
	})
	return nil
}
