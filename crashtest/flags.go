package crashtest

import "flag"

var (
	flagDepth    = flag.Int("crash.depth", 0, "crashes in a row, in the workload and then in its recoveries (0: what the test says, or 2)")
	flagLong     = flag.Bool("crash.long", false, "explore one crash deeper, with ten times the budget")
	flagBudget   = flag.Int("crash.budget", 0, "disks tried exhaustively after one power cut (0: 50000); beyond it a sample")
	flagProfile  = flag.String("crash.profile", "", "explore under this profile only; \"all\": under each")
	flagStrategy = flag.String("crash.strategy", "", "look less hard, to compare: \"kill\" (no power cuts), \"drop\" (a power cut takes all that was not synced), \"prefixes\" (none, all, prefixes, omit-one), \"power\" (no kills), \"all\"")
	flagReplay   = flag.String("crash.replay", "", "replay the one history that this token names")
)
