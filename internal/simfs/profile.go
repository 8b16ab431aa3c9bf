package simfs

// Profile says what a file system promises about the order in which things
// reach the disk. The zero value promises least; each field but Torn and
// SplitRename takes legal disks away.
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

	// NoDirSync: Dir.Sync succeeds and forces nothing.
	NoDirSync bool

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

	// PosixSplit takes away the assumption that a rename is atomic across a
	// power cut.
	PosixSplit = Profile{Name: "posix-split-rename", Torn: true, SplitRename: true}
)

// Profiles lists every named profile, weakest promise first.
func Profiles() []Profile {
	return []Profile{PosixSplit, PosixMinimal, OrderedTorn, Ext4Ordered, NTFSLike, NTFSDurable}
}

// ProfileByName finds a named profile.
func ProfileByName(name string) (Profile, bool) {
	for _, p := range Profiles() {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}
