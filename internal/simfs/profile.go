package simfs

// Profile says what a file system promises about the order in which things
// reach the disk. OrderedNames, OrderedSize and DurableRename are promises: each
// takes legal disks away. The other fields are promises that are not kept.
type Profile struct {
	Name string

	// OrderedNames: the names on one disk become durable in the order in which
	// they were set, across directories, so that a sync of one directory forces
	// everything older on that disk.
	OrderedNames bool

	// OrderedSize: a size never exposes a sector that was written and has not
	// reached the disk.
	OrderedSize bool

	// Torn: the sector version that is on the disk may be a mixture of itself and
	// the version before it.
	Torn bool

	// SplitRename: a rename may be half done: the new name set, the old one still
	// there (or the other way round where names are not ordered).
	SplitRename bool

	// GapRename: a rename over another file first takes that one's name away, and a
	// power cut may come between.
	GapRename bool

	// NoDirSync: Dir.Sync succeeds and forces nothing.
	NoDirSync bool

	// LyingSync: Sync and SyncData succeed and force nothing.
	LyingSync bool

	// TornBlock: a write into a file rewrites the whole blocks of this many bytes
	// around it, and may spoil what it did not mean to change. 0: sectors only.
	TornBlock int

	// DurableRename: a rename forces itself (and, where names are ordered, all
	// names set before it).
	DurableRename bool
}

// The profiles that tests use. PosixMinimal is the weakest and the default; a
// failure that a stronger one does not show needs what that one promises.
var (
	PosixMinimal = Profile{Name: "posix-minimal", Torn: true}
	Ext4Ordered  = Profile{Name: "ext4-ordered", OrderedNames: true, OrderedSize: true}
	OrderedTorn  = Profile{Name: "ordered-torn", OrderedNames: true, Torn: true}
	NTFSLike     = Profile{Name: "ntfs-like", OrderedNames: true, Torn: true, NoDirSync: true}
	NTFSDurable  = Profile{Name: "ntfs-durable-rename", OrderedNames: true, Torn: true, NoDirSync: true, DurableRename: true}

	// PosixSplit may leave both names of a renamed file.
	PosixSplit = Profile{Name: "posix-split-rename", Torn: true, SplitRename: true}
)

// Disks that break what pawl assumes. They are for showing what fails then.
var (
	// GapRename has renames that are not atomic across a power cut.
	GapRename = Profile{Name: "posix-gap-rename", Torn: true, GapRename: true}

	// NoDirSync has no way to make a name durable.
	NoDirSync = Profile{Name: "posix-no-dirsync", Torn: true, NoDirSync: true}

	// LyingSync acknowledges flushes that it does not do.
	LyingSync = Profile{Name: "posix-lying-sync", Torn: true, NoDirSync: true, LyingSync: true}

	// TornBlock has blocks of 16 KiB, and a power cut in the middle of writing one
	// may spoil any 4 KiB of it.
	TornBlock = Profile{Name: "posix-torn-block", Torn: true, TornBlock: 16 << 10}
)

// Broken lists the profiles of disks that cannot be relied on.
func Broken() []Profile { return []Profile{GapRename, NoDirSync, LyingSync, TornBlock} }

// Profiles lists the profiles of disks that exist, or nearly so, weakest promise
// first.
func Profiles() []Profile {
	return []Profile{PosixSplit, PosixMinimal, OrderedTorn, Ext4Ordered, NTFSLike, NTFSDurable}
}

// ProfileByName finds a named profile.
func ProfileByName(name string) (Profile, bool) {
	for _, p := range append(Profiles(), Broken()...) {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}
