package vfs

import (
	"bytes"
	"context"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestOwner(t *testing.T) {
	since := time.Date(2026, 11, 30, 5, 46, 50, 999, time.FixedZone("", 3600))
	for _, tt := range []struct{ host, program, want string }{
		{"host", "program", "pid 4242 on host since 2026-11-30T04:46:50Z (program)"},
		{"häst\n", "pro\x1b[31mgram\x7f\xff", "pid 4242 on h?st? since 2026-11-30T04:46:50Z (pro?[31mgram??)"},
		{"", "", "pid 4242 on  since 2026-11-30T04:46:50Z ()"},
		{strings.Repeat("h", 300), strings.Repeat("é", 300),
			"pid 4242 on " + strings.Repeat("h", 64) + " since 2026-11-30T04:46:50Z (" + strings.Repeat("?", 64) + ")"},
	} {
		if got := owner(4242, tt.host, since, tt.program); got != tt.want {
			t.Errorf("owner(%q, %q):\n got %q\nwant %q", tt.host, tt.program, got, tt.want)
		}
	}
	longest := owner(math.MaxInt, strings.Repeat("h", 300), since, strings.Repeat("p", 300))
	if len(longest) > 200 {
		t.Errorf("%d bytes", len(longest))
	}
	line := regexp.MustCompile(`^pid [0-9]+ on [!-~ ]+ since [0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z \([ -~]+\)$`)
	if got := OS().Owner(); !line.MatchString(got) {
		t.Errorf("Owner() = %q", got)
	}
}

func TestRandom(t *testing.T) {
	var a, b [32]byte
	OS().Random(a[:])
	OS().Random(b[:])
	if bytes.Equal(a[:], make([]byte, len(a))) || a == b {
		t.Errorf("Random: %x, then %x", a, b)
	}
}

func TestOthersCanWrite(t *testing.T) {
	groups := []int{100, 200}
	for _, tt := range []struct {
		mode fs.FileMode
		gid  int
		want string
	}{
		{0o700, 300, ""},
		{0o755, 300, ""},
		{0o770, 100, ""},
		{0o770, 200, ""},
		{0o775, 300, "writable by group 300, which the caller is not in (mode 0775)"},
		{0o720, 300, "writable by group 300, which the caller is not in (mode 0720)"},
		{0o777, 100, "writable by everyone (mode 0777)"},
		{0o702, 100, "writable by everyone (mode 0702)"},
		{0o777 | fs.ModeSticky, 100, "writable by everyone (mode 0777)"},
		{0o770 | fs.ModeSticky | fs.ModeSetgid, 300, "writable by group 300, which the caller is not in (mode 0770)"},
	} {
		dir := Info{Mode: tt.mode | fs.ModeDir, UID: 1, GID: tt.gid}
		if got := othersCanWrite(dir, groups); got != tt.want {
			t.Errorf("%v, group %d: %q; want %q", tt.mode, tt.gid, got, tt.want)
		}
	}
	if got := othersCanWrite(Info{Mode: 0o777 | fs.ModeDir, UID: -1, GID: -1}, nil); got != "" {
		t.Errorf("without owners: %q; want none", got)
	}
	own := Info{Mode: 0o770 | fs.ModeDir, UID: os.Getuid(), GID: os.Getegid()}
	if got := OS().OthersCanWrite(own); got != "" {
		t.Errorf("group of the caller: %q; want none", got)
	}
}

func TestContext(t *testing.T) {
	if got := FromContext(context.Background()); got != OS() {
		t.Errorf("FromContext of an empty context = %T", got)
	}
	type other struct{ FS }
	mine := &other{}
	if got := FromContext(NewContext(context.Background(), mine)); got != FS(mine) {
		t.Errorf("FromContext = %T, want the one that was put there", got)
	}
}

func TestSameSimulated(t *testing.T) {
	a := Info{Dev: 1, Ino: 2}
	if !a.Same(Info{Dev: 1, Ino: 2, Size: 3}) || a.Same(Info{Dev: 1, Ino: 3}) || a.Same(Info{Dev: 2, Ino: 2}) {
		t.Error("identity is not device and inode")
	}
	if (Info{}).Same(Info{}) {
		t.Error("two files that nothing is known of are the same")
	}
}

func TestTypes(t *testing.T) {
	for _, tt := range []struct {
		got, want FileSystem
	}{
		{bsdType("apfs", true), FileSystem{"apfs", Local}},
		{bsdType("ffs", true), FileSystem{"ffs", Local}},
		{bsdType("msdos", true), FileSystem{"msdos", Probed}},
		{bsdType("macfuse", true), FileSystem{"macfuse", Probed}},
		{bsdType("nfs", false), FileSystem{"nfs", Network}},
		{bsdType("zfs", false), FileSystem{"zfs", Network}},
		{bsdType("", true), FileSystem{"unknown", Probed}},
		{solarisType("zfs"), FileSystem{"zfs", Local}},
		{solarisType("nfs4"), FileSystem{"nfs4", Network}},
		{solarisType("lofs"), FileSystem{"lofs", Probed}},
		{solarisType(""), FileSystem{"unknown", Probed}},
	} {
		if tt.got != tt.want {
			t.Errorf("got %+v, want %+v", tt.got, tt.want)
		}
	}
}

func TestAfterFunc(t *testing.T) {
	fired := make(chan bool, 1)
	timer := OS().AfterFunc(time.Hour, func() { fired <- true })
	if !timer.Stop() || timer.Stop() {
		t.Error("Stop: want true, then false")
	}
	if timer.Reset(0) {
		t.Error("Reset of a stopped timer: true")
	}
	<-fired
}
