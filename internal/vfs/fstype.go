package vfs

import "slices"

// bsdType sorts file systems by their name, and by MNT_LOCAL, which macOS and
// the BSDs set where no server is involved.
func bsdType(name string, local bool) FileSystem {
	system := FileSystem{Type: orUnknown(name)}
	switch {
	case !local:
		system.Class = Network
	case slices.Contains([]string{"apfs", "ffs", "hammer", "hammer2", "hfs", "lfs", "mfs", "tmpfs", "ufs", "zfs"}, name):
		system.Class = Local
	}
	return system
}

// solarisType sorts the file systems of Solaris and illumos, which have no flag
// that tells them apart.
func solarisType(name string) FileSystem {
	system := FileSystem{Type: orUnknown(name)}
	switch name {
	case "tmpfs", "ufs", "zfs":
		system.Class = Local
	case "autofs", "nfs", "nfs3", "nfs4", "smb", "smbfs":
		system.Class = Network
	}
	return system
}

func orUnknown(name string) string {
	if name == "" {
		return "unknown"
	}
	return name
}
