package vfs

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// mountinfoLimit is what is read of a table of mounts: some ten thousand lines.
const mountinfoLimit = 2 << 20

// findMount returns the type and the source of a device's mount, from the text
// of /proc/self/mountinfo, or nothing. A line is
//
//	36 35 0:31 /root /mnt rw,noatime shared:1 - fuse.sshfs user@host:/dir rw,user_id=0
//
// with any number of fields, also none, before the lone dash (proc(5)).
func findMount(mountinfo io.Reader, major, minor uint32) (fstype, source string) {
	device := fmt.Sprintf("%d:%d", major, minor)
	lines := bufio.NewScanner(io.LimitReader(mountinfo, mountinfoLimit))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 || fields[2] != device {
			continue
		}
		if dash := slices.Index(fields[6:], "-"); dash >= 0 && len(fields) > 6+dash+2 {
			return fields[6+dash+1], fields[6+dash+2]
		}
	}
	return "", ""
}

// networkFUSE are subtypes of FUSE that keep their files on another machine.
var networkFUSE = []string{
	"alluxio-fuse", "beegfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "cephfs", "curlftpfs",
	"davfs", "davfs2", "fuse_dfs", "gcsfuse", "glusterfs", "goofys", "gvfsd-fuse", "httpfs", "JuiceFS",
	"juicefs", "lizardfs", "mfs", "moosefs", "mount-s3", "mountpoint-s3", "rclone", "s3backer", "s3fs",
	"seaweedfs", "smbnetfs", "sshfs",
}

// fuseClass sorts a FUSE mount. Those that are not known to be remote are
// probed: virtiofs and its like pass flushes on, if their host does.
func fuseClass(fstype, source string) FileSystem {
	if fstype == "" {
		return FileSystem{Type: "fuse"}
	}
	class := Probed
	subtype, _ := strings.CutPrefix(fstype, "fuse.")
	// davfs2 mounts have no subtype, but an address for a source.
	if slices.Contains(networkFUSE, subtype) || strings.Contains(source, "://") {
		class = Network
	}
	return FileSystem{Type: fstype, Class: class}
}
