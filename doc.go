// Package pawl keeps a program's state, and in another place what authorises it, and
// never loses or invents it.
//
// # What disks do
//
// A process can be killed between any two instructions. A machine can lose power at
// any moment; then what was written and not flushed may be there, or not, or in
// part, in any order, and a file can be there without its name or the name without
// its bytes. A flush that failed may have lost what it was for, and a second one
// reports success. An older copy of a directory can be put back by a backup, a
// sandbox, or a program that is allowed to write there.
//
// # What pawl promises
//
// A program appends entries to a history and replaces named parts of its state, all
// in one [Store.Commit]. When that returns nil, the change is on stable storage.
// [Open] afterwards yields exactly that state, or a later one, or says why it will
// not: a state is returned only if a record in the trust directory names its digest.
// Being killed or losing power at any instant, in recovery too, ends in a store that
// opens by itself.
//
// Every error of a change says whether it happened: [ErrNotCommitted] is certain,
// [ErrInDoubt] holds until [Store.Recover] or the next Open has settled it, and then
// [Store.Lookup] tells.
//
// # How
//
// The state is a file, the bundle, only ever replaced whole, and beside it a journal of
// the commits since, which is only written where it holds zeros. The trust file, in
// another directory, says which bundle counts and how much of the journal, by SHA-256.
//
// A commit writes an intent {confirmed: old, pending: new} to the trust file, then its
// frame to the journal, each flushed before the next step, and then a confirm, whose
// flush may come a little later: until it does, the intent authorises the new state.
// Commits that are asked for at the same time share the flushes. When the journal is
// full the bundle is published: the intent, the new bundle beside the old one, a
// rename, the confirm, each flushed. Older history and large parts are in files that the
// bundle names by digest, made before the intent; [Store.Compact] drops what a policy says.
//
// Whatever happens in between, one of the two states is there whole, and the trust file
// authorises both. The files extend.go and publish.go (the order of a commit), batch.go
// (who writes it), seal.go (older history) and recover.go (the decision that Open makes) say
// it all;
// docs/protocol.md draws it.
//
// # More than one process
//
// A [Reader] looks at a store beside whoever writes to it, takes no lock and writes
// nothing. With Options.Shared several processes write by turns. [Store.Watch] and
// [Reader.Watch] tell of each change.
//
// # What it does not protect against
//
// Someone who can write to both directories. A copy of both put back together, by
// restoring a virtual machine for one. An older copy of the store directory that is put
// back while the newest confirm is not flushed, together with a power cut: see
// Options.SyncConfirm. A device that acknowledges flushes that it does not do. Another
// program that writes into the directories at the same time: that is detected, not
// prevented.
package pawl
