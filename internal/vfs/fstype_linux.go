package vfs

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// linuxTypes are the magic numbers that statfs(2) returns. Those without a name
// in package unix belong to file systems outside the kernel, and are in the
// table of GNU stat.
var linuxTypes = map[uint32]FileSystem{
	unix.BCACHEFS_SUPER_MAGIC: {"bcachefs", Local},
	unix.BTRFS_SUPER_MAGIC:    {"btrfs", Local},
	unix.EXT4_SUPER_MAGIC:     {"ext4", Local}, // ext2 and ext3 too: one driver, one number
	unix.F2FS_SUPER_MAGIC:     {"f2fs", Local},
	unix.RAMFS_MAGIC:          {"ramfs", Local}, // as durable as the machine's memory, like tmpfs
	unix.TMPFS_MAGIC:          {"tmpfs", Local},
	unix.XFS_SUPER_MAGIC:      {"xfs", Local},
	0x2fc12fc1:                {"zfs", Local},

	unix.AFS_FS_MAGIC:      {"afs", Network},
	unix.AFS_SUPER_MAGIC:   {"afs", Network},
	unix.CEPH_SUPER_MAGIC:  {"ceph", Network},
	unix.CIFS_SUPER_MAGIC:  {"cifs", Network},
	unix.CODA_SUPER_MAGIC:  {"coda", Network},
	unix.NCP_SUPER_MAGIC:   {"ncpfs", Network},
	unix.NFS_SUPER_MAGIC:   {"nfs", Network},
	unix.OCFS2_SUPER_MAGIC: {"ocfs2", Network},
	unix.SMB2_SUPER_MAGIC:  {"smb2", Network},
	unix.SMB_SUPER_MAGIC:   {"smb", Network},
	0x01161970:             {"gfs2", Network},
	0x0bd00bd0:             {"lustre", Network},
	0x19830326:             {"beegfs", Network},
	0x20030528:             {"orangefs", Network},
	0x47504653:             {"gpfs", Network},
	0xaad7aaea:             {"panfs", Network},
	0xbeefdead:             {"snfs", Network},

	unix.ECRYPTFS_SUPER_MAGIC:  {"ecryptfs", Probed},
	unix.EXFAT_SUPER_MAGIC:     {"exfat", Probed},
	unix.MSDOS_SUPER_MAGIC:     {"vfat", Probed},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", Probed},
	unix.V9FS_MAGIC:            {"9p", Probed},
	0x786f4256:                 {"vboxsf", Probed},
	0xbacbacbc:                 {"vmhgfs", Probed},
}

func fileSystem(dir *os.File) (FileSystem, error) {
	var st unix.Statfs_t
	err := control(dir, func(fd uintptr) error {
		return again(func() error { return unix.Fstatfs(int(fd), &st) })
	})
	if err != nil {
		return FileSystem{}, err
	}
	// All 32 bits of it: the field is signed or unsigned, and of either width.
	magic := uint32(st.Type)
	if magic == unix.FUSE_SUPER_MAGIC {
		return fuseFileSystem(dir)
	}
	if known, ok := linuxTypes[magic]; ok {
		return known, nil
	}
	return FileSystem{Type: fmt.Sprintf("%#x", magic)}, nil
}

// fuseFileSystem looks into the table of mounts for what is behind FUSE. Where
// that cannot be read the answer is that nothing is known.
func fuseFileSystem(dir *os.File) (FileSystem, error) {
	fi, err := dir.Stat()
	if err != nil {
		return FileSystem{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	mounts, err := os.Open("/proc/self/mountinfo")
	if !ok || err != nil {
		return FileSystem{Type: "fuse"}, nil
	}
	defer mounts.Close()
	dev := uint64(st.Dev)
	return fuseClass(findMount(mounts, unix.Major(dev), unix.Minor(dev))), nil
}
