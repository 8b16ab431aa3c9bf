// Package crashtest explores every crash of a workload.
//
// # What it does
//
// A workload runs once, on a simulated machine. At each of its calls that changes
// something, the machine may crash: the process is killed (what it wrote stays
// visible, and is still not durable), or the power fails (one of the disks that the
// profile allows is left; every one of them is tried). On each of these a recovery
// process runs, and what it finds is held against what was acknowledged. The
// recovery goes on to work, and is crashed in the same way; by default two crashes
// deep.
//
//	func TestCrashes(t *testing.T) {
//		crashtest.Run(t, func(c *crashtest.C) {
//			c.Setup(func(ctx context.Context, p *crashtest.Process) error { … }) // durable, not crashed
//			c.Do(func(ctx context.Context, p *crashtest.Process) error {
//				p.Begin("v2")
//				err := commit(ctx)
//				p.End("v2", err)
//				return err
//			})
//			c.Recover(func(ctx context.Context, p *crashtest.Process) error {
//				v, err := open(ctx)
//				if err != nil {
//					return err
//				}
//				p.Observe(v)
//				… // and commit again, twice: some holes need a writer between two crashes
//			})
//		})
//	}
//
// ctx carries the simulated machine: pawl.Open with it works on the simulated disks,
// however deep in the program it is called. Process.FS reaches the same disks for a
// program's own files. Time stands still there, and no timer fires by itself: that a
// process is idle for a while is said by Process.Idle. A function is run many times, in several goroutines at once,
// and must do the same thing each time: what differs between runs (names, contents)
// comes from Process.Number, or from what it reads.
//
// Programs that share a store are several processes at the same time: Process.Beside
// starts another one on the same machine, and Process.Kill and Process.KillAt end one
// of them while the other goes on.
//
// # What is checked
//
// States have labels; each Begin uses a new one. Observe fails unless the label is
// the newest that was acknowledged or observed, or one that was begun after it and
// whose End did not say that it certainly did not happen. So nothing acknowledged is
// lost, nothing observed relapses, and nothing that was ruled out comes back. A
// recovery that returns an error, or never observes, fails: an ordinary crash never
// blocks. After an End that is in doubt, nothing may succeed before the next Observe.
//
// # When it fails
//
// The report names the broken check, lists the calls of each process with what became
// of everything that was not durable, and gives a token. The token replays just that
// history:
//
//	go test -run TestCrashes -crash.replay=TOKEN
//
// Flags: -crash.depth, -crash.long, -crash.budget, -crash.profile, -crash.strategy,
// -crash.replay.
package crashtest
