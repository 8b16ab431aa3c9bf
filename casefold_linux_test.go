package pawl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCaseFoldedMount: on file systems that fold case, where the kernel has one.
func TestCaseFoldedMount(t *testing.T) {
	if !mounts(t) {
		return
	}
	for _, d := range []smallDisk{
		{kind: "ext4", size: 16 << 20, make: []string{"mkfs.ext4", "-q", "-F", "-O", "casefold"}},
		{kind: "vfat", size: 16 << 20, make: []string{"mkfs.vfat"}},
	} {
		t.Run(d.kind, func(t *testing.T) {
			root, err := os.MkdirTemp("", "pawl")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(root) })
			disk := filepath.Join(root, "disk")
			d.mount(t, disk)
			at := filepath.Join(disk, "folded")
			mkdir(t, at)
			if out, err := exec.Command("chattr", "+F", at).CombinedOutput(); err != nil && d.kind == "ext4" {
				t.Skipf("no directory here can fold case: %v\n%s", err, out)
			}
			if !folds(t, at) {
				t.Skip("it tells names by case")
			}
			caseFolded(t, at)
		})
	}
}
