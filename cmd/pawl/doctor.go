package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// finding is the result of one check, in JSON.
type finding struct {
	Check  string `json:"check"`
	Dir    string `json:"dir,omitempty"` // store or trust; both, when empty
	Result string `json:"result"`        // pass, warn or fail
	Reason string `json:"reason"`
}

func doctorCommand() *command {
	return &command{
		name: "doctor", args: "[DIR TRUSTDIR]", nowhere: true,
		what: "whether two directories can hold a store",
		more: `
It tries what pawl needs in both directories, with files of its own (.pawl-doctor-…) that
it removes. Where a directory does not exist, what would hold it is looked at. The exit
code is 5 when a check fails.`,
		run: func(ctx context.Context, c *call) error {
			dirs := c.args
			if len(dirs) == 0 && c.store != "" && c.trust != "" {
				dirs = []string{c.store, c.trust}
			}
			if len(dirs) != 2 {
				return usage{"doctor needs two directories: the store's, and the trust directory"}
			}
			d := &doctor{fsys: vfs.OS()}
			d.places(ctx, dirs[0], dirs[1], c.options())
			infos := []vfs.Info{d.examine("store", dirs[0]), d.examine("trust", dirs[1])}
			switch a, b := infos[0], infos[1]; {
			case a.Ino == 0 || b.Ino == 0:
			case a.Dev == b.Dev:
				d.say("disks", "", "pass", "both are on one file system; on two, a disk that fails would not take both")
			default:
				d.say("disks", "", "pass", "each is on a file system of its own")
			}
			return d.show(c)
		},
	}
}

// doctor collects findings.
type doctor struct {
	fsys     vfs.FS
	findings []finding
}

func (d *doctor) say(check, dir, result, reason string) {
	d.findings = append(d.findings, finding{check, dir, result, reason})
}

func (d *doctor) show(c *call) error {
	failed := 0
	for _, f := range d.findings {
		if f.Result == "fail" {
			failed++
		}
		if c.json {
			if err := c.object(f); err != nil {
				return err
			}
			continue
		}
		const wide = 36
		fmt.Fprintf(c.out, "%-4s  %-5s  %-22s %s\n", f.Result, f.Dir, f.Check, wrapAt(safe(f.Reason), columns-wide, strings.Repeat(" ", wide)))
	}
	if failed > 0 {
		return unfit{failed}
	}
	return nil
}

// unfit says that checks have failed.
type unfit struct{ n int }

func (u unfit) Error() string { return number(u.n, "check") + " failed" }

// places checks what two paths are to each other.
func (d *doctor) places(ctx context.Context, store, trust string, o *pawl.Options) {
	o.MustExist = false
	o.Allow = pawl.NetworkFS | pawl.SharedTrust // which have checks of their own
	r, err := pawl.Inspect(ctx, store, trust, o)
	if err == nil && r.Err == nil {
		// The trust directory has a check of its own; the trust file has not.
		if info, e := d.fsys.Lstat(r.Trust); e == nil {
			if why := d.fsys.OthersCanWrite(info); why != "" {
				d.say("permissions", "trust", "fail", "the trust file is "+why+": Open refuses it unless Allow has SharedTrust")
			}
		}
	}
	switch {
	case errors.Is(err, pawl.ErrInsecure), errors.Is(err, pawl.ErrInvalid), errors.Is(err, pawl.ErrUnsupported):
		d.say("places", "", "fail", err.Error())
	case err != nil:
		d.say("places", "", "fail", err.Error())
	case errors.Is(r.Err, pawl.ErrInsecure):
		d.say("places", "", "fail", r.Problem)
	case r.Err != nil:
		d.say("places", "", "warn", "there is a store that Open refuses; pawl status says more")
	case r.Verdict == "create":
		d.say("places", "", "pass", "there is no store yet; Open would make one")
	default:
		d.say("places", "", "pass", fmt.Sprintf("there is a store, at revision %d", r.Confirmed.Revision))
	}
}

// examine checks one directory, and describes the file system that it is on.
func (d *doctor) examine(which, path string) (info vfs.Info) {
	path, err := d.fsys.Resolve(path)
	if err != nil {
		d.say("path", which, "fail", err.Error())
		return info
	}
	there := path
	for {
		if info, err = d.fsys.Lstat(there); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(there) == there {
			break
		}
		there = filepath.Dir(there)
	}
	if err == nil && !info.Mode.IsDir() {
		err = fmt.Errorf("%s is no directory", there)
	}
	if err != nil {
		d.say("path", which, "fail", err.Error())
		return info
	}
	if there == path {
		d.say("path", which, "pass", path)
	} else {
		d.say("path", which, "pass", path+" would be made; what follows is about "+there)
	}
	dir, err := d.fsys.OpenDir(there)
	if err != nil {
		d.say("path", which, "fail", err.Error())
		return info
	}
	defer dir.Close()
	d.system(which, dir)
	d.owners(which, dir, there == path)
	d.space(which, there)
	d.mounts(which, dir)
	d.probe(which, dir)
	return info
}

func (d *doctor) system(which string, dir vfs.Dir) {
	s, err := dir.System()
	switch {
	case err != nil:
		d.say("file system", which, "fail", err.Error())
	case s.Class == vfs.Network:
		d.say("file system", which, "fail", s.Type+" is a network file system: its locks may exclude nobody. Open refuses it unless Allow has NetworkFS")
	case s.Class == vfs.Local:
		d.say("file system", which, "pass", s.Type)
	default:
		d.say("file system", which, "warn", s.Type+" is not known to flush and lock as it must; what can be tried is tried below")
	}
}

func (d *doctor) owners(which string, dir vfs.Dir, exists bool) {
	info, err := dir.Stat()
	if err != nil {
		d.say("permissions", which, "fail", err.Error())
		return
	}
	why := d.fsys.OthersCanWrite(info)
	switch {
	case !exists:
		d.say("permissions", which, "pass", "it would be made for its owner alone")
	case why == "":
		d.say("permissions", which, "pass", "nobody else can write to it")
	case which == "trust":
		d.say("permissions", which, "fail", "it is "+why+": Open refuses it unless Allow has SharedTrust")
	default:
		d.say("permissions", which, "warn", "it is "+why+": what others do there is found, and not prevented")
	}
}

// leastSpace is what a store needs at the least to be made and used.
const leastSpace = 8 << 20

func (d *doctor) space(which, path string) {
	free, known := freeSpace(path)
	switch {
	case !known:
		d.say("free space", which, "warn", "it cannot be told on this system")
	case free < leastSpace:
		d.say("free space", which, "fail", size(free)+" are free; a small store needs "+size(leastSpace))
	default:
		d.say("free space", which, "pass", size(free)+" are free")
	}
}

// mounts looks for single files that are mounted: they cannot be replaced by rename.
func (d *doctor) mounts(which string, dir vfs.Dir) {
	mounted, err := mountedFiles(dir.Path())
	switch {
	case err != nil:
		d.say("mounted files", which, "warn", "it cannot be told: "+err.Error())
	case mounted != "":
		d.say("mounted files", which, "fail", mounted+" is mounted by itself and cannot be replaced by rename; mount its directory instead")
	default:
		d.say("mounted files", which, "pass", "no single file is mounted into it")
	}
}

// probe tries what pawl does, with files of its own.
func (d *doctor) probe(which string, dir vfs.Dir) {
	var random [4]byte
	d.fsys.Random(random[:])
	name := func(s string) string { return fmt.Sprintf(".pawl-doctor-%x-%s", random, s) }
	var made []string
	defer func() {
		for _, n := range made {
			_ = dir.Remove(n)
		}
	}()
	create := func(s string) (vfs.File, error) {
		f, err := dir.Create(name(s), 0o600)
		if err == nil {
			made = append(made, name(s))
		}
		return f, err
	}

	f, err := create("a")
	if err != nil {
		d.say("making files", which, "fail", err.Error())
		return
	}
	d.say("making files", which, "pass", "a file can be made")
	_, err = f.WriteAt([]byte("a"), 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.SyncData()
	}
	d.result("flush of a file", which, err, "it reports success; whether the device tells the truth cannot be tried")

	err = dir.Sync()
	if errors.Is(err, vfs.ErrNoDirSync) {
		d.say("flush of a directory", which, "fail", "there is none: a power cut may undo acknowledged commits. Open refuses that unless Allow has NoDirSync")
	} else {
		d.result("flush of a directory", which, err, "it works")
	}

	// Where a file that is open cannot be replaced, pawl waits; so this one is closed.
	err = f.Close()
	g, e := create("b")
	if err == nil {
		err = e
	}
	if err == nil {
		_, err = g.WriteAt([]byte("b"), 0)
		err = errors.Join(err, g.Close())
	}
	if err == nil {
		err = dir.Rename(name("b"), name("a"))
	}
	if err == nil {
		var h vfs.File
		if h, err = dir.Open(name("a")); err == nil {
			b := make([]byte, 1)
			if _, err = h.ReadAt(b, 0); err == nil && !bytes.Equal(b, []byte("b")) {
				err = errors.New("the name leads to the old file")
			}
			h.Close()
		}
	}
	d.result("replacing by rename", which, err, "the new file takes the name of the old one")

	if g, err = create("c"); err == nil {
		g.Close()
		err = dir.Link(name("c"), name("a"))
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		d.say("no replacing by link", which, "pass", "a name that is taken is not taken again")
	case errors.Is(err, errors.ErrUnsupported):
		d.say("no replacing by link", which, "warn", "there are no hard links; pawl looks before it renames, under its lock")
	case err == nil:
		d.say("no replacing by link", which, "fail", "a link took the place of another file")
	default:
		d.say("no replacing by link", which, "fail", err.Error())
	}

	d.lock(which, dir, name("lock"), &made)

	switch _, err := dir.Lstat(strings.ToUpper(name("a"))); {
	case err == nil:
		d.say("case of names", which, "warn", "names that differ only in case are one file; pawl refuses two such stores")
	case errors.Is(err, fs.ErrNotExist):
		d.say("case of names", which, "pass", "names that differ in case are different")
	default:
		d.say("case of names", which, "warn", err.Error())
	}
}

func (d *doctor) result(check, which string, err error, good string) {
	if err != nil {
		d.say(check, which, "fail", err.Error())
		return
	}
	d.say(check, which, "pass", good)
}

// lock tries whether a lock excludes a second one.
func (d *doctor) lock(which string, dir vfs.Dir, name string, made *[]string) {
	var locks []vfs.File
	defer func() {
		for _, l := range locks {
			l.Close()
		}
	}()
	for i := range 2 {
		l, err := dir.OpenLock(name)
		if err != nil {
			d.say("locks", which, "fail", err.Error())
			return
		}
		if locks = append(locks, l); i == 0 {
			*made = append(*made, name)
		}
		got, err := l.TryLock()
		switch {
		case err != nil:
			d.say("locks", which, "fail", err.Error())
			return
		case i == 0 && !got:
			d.say("locks", which, "fail", "a lock that nobody holds was not given")
			return
		case i == 1 && got:
			d.say("locks", which, "fail", "two could take the lock at once: a second writer would not be kept out")
			return
		}
	}
	d.say("locks", which, "pass", "a second one is kept out")
}
