// Package simfs is a simulated machine: disks, a page cache, locks, a clock and
// a source of randomness, behind the interfaces of package vfs. It does what no
// real disk can be asked to do: it names every disk that a power cut could have
// left at a given instant.
//
// # The model
//
// Each mutating call is split into atoms, the smallest things that reach a disk
// or do not:
//
//   - WriteAt writes one atom per 512-byte sector. The versions of a sector that
//     no sync has forced form a chain; any of them may be on the disk, and the
//     one that is there may be torn (part of it new, the rest as it was before).
//     Where a write repeats what is forced, the first sector that is not all zeros may
//     be spoilt; zeros over zeros are no atom.
//   - Growth of a file is a chain of sizes, in steps of one sector.
//   - Create, OpenLock (when it creates), Mkdir, Link and Remove set one name of
//     one directory. Rename sets two names in one atom, or in two where the
//     profile splits it.
//
// A Profile says which atom must be durable before which other one. The legal
// disks after a power cut are the down-closed sets of pending atoms, on top of
// everything that successful syncs have forced: Sync and SyncData force a file,
// Dir.Sync the names in a directory, Close nothing. The content of a file is
// independent of its names: a name may be durable before the content is.
//
// A failed sync makes the atoms that it covered lost. Any subset of them may be
// on the disk, and no later sync forces them; only a rewrite of the same sector,
// size or name replaces them. The page cache keeps showing them (ext4, XFS) or
// goes back to what was forced (btrfs), as the test asks.
//
// A killed process leaves page cache, pending and lost atoms as they are; only
// its handles and locks go.
//
// # Time
//
// The clock of a process stands still, so time never passes by itself, and no timer
// fires by itself: a run is the same each time. That a process is idle for a while is
// a thing that the test says, by Process.Idle; its timers fire there and nowhere else.
//
// # What is not modelled
//
// Modes, groups and times are not explored: after a power cut a file has the
// mode that its last Sync saw. There is no truncation, because vfs has none.
// There are no symbolic links, devices or FIFOs. Nothing that a sync forces is
// ever lost: the disk is honest unless a test injects a failure.
//
// # Stricter than a disk
//
// Use of a closed handle, a name with a separator, and whatever a policy
// function refuses are violations: they are kept, and the test that owns the
// machine must fail on them.
package simfs
