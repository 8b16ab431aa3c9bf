package vfs

import (
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

func fileSystem(dir *os.File) (system FileSystem, err error) {
	err = control(dir, func(fd uintptr) error {
		h := windows.Handle(fd)
		if isRemote(h) {
			system = FileSystem{Type: "remote", Class: Network}
			return nil
		}
		var name [windows.MAX_PATH + 1]uint16
		if err := windows.GetVolumeInformationByHandle(h, nil, 0, nil, nil, nil, &name[0], uint32(len(name))); err != nil {
			return err
		}
		system = windowsType(windows.UTF16ToString(name[:]))
		return nil
	})
	return system, err
}

// isRemote looks at where a directory really is: the drive letter of a share
// leads to a UNC path.
func isRemote(dir windows.Handle) bool {
	var buf [32 << 10]uint16 // no path is longer
	n, err := windows.GetFinalPathNameByHandle(dir, &buf[0], uint32(len(buf)), 0)
	if err != nil || int(n) > len(buf) {
		return false // on a volume without a drive letter or a share: not remote
	}
	drive, unc := splitFinalPath(windows.UTF16ToString(buf[:n]))
	if unc || drive == "" {
		return unc
	}
	p, err := windows.UTF16PtrFromString(drive)
	return err == nil && windows.GetDriveType(p) == windows.DRIVE_REMOTE
}

// splitFinalPath returns the drive of a path like \\?\C:\dir, with a backslash,
// or says that it is one like \\?\UNC\server\share\dir.
func splitFinalPath(path string) (drive string, unc bool) {
	path, _ = strings.CutPrefix(path, `\\?\`)
	if strings.HasPrefix(path, `UNC\`) || strings.HasPrefix(path, `\\`) {
		return "", true
	}
	if len(path) >= 2 && path[1] == ':' {
		return path[:2] + `\`, false
	}
	return "", false
}

func windowsType(name string) FileSystem {
	switch name {
	case "NTFS", "ReFS":
		return FileSystem{Type: name, Class: Local}
	case "":
		return FileSystem{Type: "unknown"}
	}
	return FileSystem{Type: name}
}
