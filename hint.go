package pawl

import (
	"errors"
	"io/fs"
	"strconv"
	"syscall"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// The hints of errors that are decided by the state of the two directories.
const (
	hintNotExist     = "Check the two directories; pawl init makes a store, and so does Open without Options.MustExist"
	hintLocked       = "Close the other user of the store, or wait for it: Options.LockWait, or pawl --wait 30s"
	hintUntrusted    = "Put the trust file back, or point to the trust directory that belongs to this store; if it is lost, pawl adopt makes a new one; nothing was changed"
	hintTrustDamaged = "Put back a copy of the trust file that was taken together with the store directory; if there is none, pawl adopt makes a new one; do not delete it"
	hintTrustBehind  = "Put the newest trust file back: the store directory is ahead of it; if it is lost, pawl adopt trusts what is there; nothing was changed"
	hintMissing      = "Put the newest copy of the store directory back, or restore a backup: pawl restore FILE; do not delete the trust file: it is what tells an older copy from the newest"
	hintRolledBack   = "Put the newest copy of the store directory back: the trust file knows a later state than the one found; if it is lost, pawl adopt goes on from the older one; nothing was changed"
	hintForeign      = "Check that the two directories belong together: the trust file speaks for another store; if they have to from now on, pawl adopt makes them; nothing was changed"
	hintUnauthorized = "Move the file out of the way (pawl quarantine NAME), and put back a copy that the trust file names, or restore a backup (pawl restore FILE); nothing was changed"
	hintBeyond       = "The state that the trust file confirms is there, and more that nobody has authorised: pawl adopt shows what it would trust, and sets all of it aside first; nothing was changed"
	hintBeside       = "Move that file out of the way (pawl quarantine NAME): all that the trust file names is there beside it; nothing was changed"
	hintWhole        = "Put an undamaged copy of the whole store directory back: bundle and journal belong together; if there is none, restore a backup: pawl restore FILE"
	hintNoState      = "Put a copy of the store directory back, or restore a backup: pawl restore FILE; nothing that is here can be adopted"
	hintDamaged      = "Put an undamaged copy of this file back, whose sha256sum is the digest that the trust file names, or restore a backup: pawl restore FILE"
	hintJournal      = "Put an undamaged copy of the whole store directory back: bundle and journal belong together; if there is none, restore a backup (pawl restore FILE), or go on from the state before the damage (pawl adopt)"
	hintSealed       = "Put an undamaged copy of this file back, under the same name, from a copy or out of a backup, or go back to a backup (pawl restore FILE); what is elsewhere can be read and written meanwhile; pawl verify tells all that is damaged"
	hintUnknownID    = "Whether a commit has this id cannot be told while that file cannot be read. Put it back, or commit without an id"
	hintForgotten    = "Use a new id for a new commit"
	hintReason       = "Say why: the reason goes into the audit file"
	hintDecide       = "Look at the store again (pawl status), and decide again"
	hintBackup       = "Take another backup: this one is not as it was written; nothing was changed"
	hintNothing      = "Commit something first: there is no state to back up"
	hintOtherBackup  = "Restore it where that store was, or into two empty directories"
	hintRenaming     = "Go on with the renaming: pawl rename NEWDIR, to the same name; nothing was changed"
	hintAdoptNothing = "Use the store as it is; to go back to an earlier state, restore a backup: pawl restore FILE"
	hintQuarantine   = "Name a file that pawl did not make, or that no trust record names: pawl status shows them"
	hintNewName      = "Choose a name beside the store directory that nothing has yet"
	hintAsideTaken   = "Move it out of the store directory by hand: pawl needs that name for a directory"
	hintFolderTaken  = "Move what has the name of the directory out of the way: pawl quarantine NAME, which is segments or parts"
	hintLockTaken    = "Move it away by hand, while no process uses the store: its name is that of a lock file, and a new one is made"
	hintNumbers      = "Move the file that claims such numbers out of the way: pawl quarantine NAME"
	hintRemoving     = "Go on with the removal: pawl remove; or restore a backup: pawl restore FILE; nothing was changed"
	hintGivenUp      = "Open the store again: an operator has given up what this process has shown; the audit file says why"
	hintPolicy       = "Say what to keep: KeepLast, KeepSince or Keep; pawl compact has --keep-last and --keep-since"
	hintLimit        = "Raise that field of Options.Limits, if the file is what it should be; nothing was changed"
	hintMemory       = "Nothing was written. This is a fault in memory or in pawl: stop the process and look at the machine"
	hintVersion      = "Open the store with a newer pawl; nothing was changed"
	hintNewerSchema  = "Open the store with the newer program that wrote it; nothing was changed"
	hintOlderSchema  = "Open the store with Options.Migrate, in a program that writes; nothing was changed"
	hintMigrate      = "The store was left at the old schema: mend what Migrate reports, and open it again"
	hintUnsettled    = "Open the store in a program that writes, or run pawl recover, which settles the commit; or set Allow to Unsettled and accept a state that may not last"
	hintChanging     = "Ask again, or raise Options.LockWait: a writer replaces the bundle faster than it can be read"
	hintNoDirSync    = "Use a local file system, or set Allow to NoDirSync and accept that a power cut may undo acknowledged commits"
	hintNetwork      = "Use a local file system, or set Allow to NetworkFS when this one is known to lock and flush"
	hintNoLock       = "Use a file system whose locks exclude a second opener"
	hintShared       = "Take write permission away from others (chmod go-w), or set Allow to SharedTrust"
	hintApart        = "Keep the trust directory apart from the store directory: neither may hold the other"
	hintAlike        = "Give this store an Options.Name (pawl --name) that differs from those of others in more than case"
	hintSwapped      = "Swap the two arguments, if this is the store directory"
	hintStale        = "Open the store again to see the newest state"
	hintExpect       = "Look at View again, decide again, and expect the version that it shows"
	hintReused       = "Use a new id for new content; Lookup returns the receipt of the commit that has this one"
)

// hintOS says what usually leads out of an error of the operating system.
func hintOS(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "Free some space and try again"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "The caller needs to read and write both directories and the files in them, which belong to whoever wrote last"
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EXDEV):
		return "Where a single file is mounted into a container, mount its directory instead: a file must be replaceable by rename"
	case notDir(err):
		return "Name another directory, or move what has this name out of the way: it is no directory"
	case errors.Is(err, vfs.ErrNotRegular):
		return "Move what has this name out of the way: pawl makes a new file; nothing was changed"
	case errors.Is(err, syscall.EMFILE):
		return "Raise the limit of open files: pawl holds about ten for each open store, and one for each segment and each large part that was read"
	}
	return ""
}

// printable keeps terminal escapes and line breaks in names from reaching a
// terminal: a name with such characters is shown quoted.
func printable(s string) string {
	if q := strconv.QuoteToGraphic(s); q != `"`+s+`"` {
		return q
	}
	return s
}
