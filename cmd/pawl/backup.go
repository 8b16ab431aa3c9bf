package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// backupLine is the result of backup, in JSON.
type backupLine struct {
	File   string      `json:"file"` // "-": standard output
	Bytes  int64       `json:"bytes"`
	Digest pawl.Digest `json:"digest"` // SHA-256 of the backup
}

func backupCommand() *command {
	return &command{
		name: "backup", args: "FILE",
		what: "write the newest state into a tar file",
		more: `
It takes no lock, and works beside a live writer. FILE must not exist: it is there when the command ends, whole and on stable storage, or not
at all. - writes to standard output. The same state in the same files gives the same bytes.
restore --verify checks a backup.`,
		run: func(ctx context.Context, c *call) (err error) {
			r, err := pawl.OpenReader(ctx, c.store, c.trust, c.options())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			w := &counted{c: c, start: time.Now()}
			w.last = w.start
			name := c.args[0]
			if name == "-" && c.screen {
				return usage{"a backup is no text for a terminal: send it into a file or a pipe"}
			}
			if name == "-" {
				err = r.Backup(ctx, w.onto(c.out))
			} else {
				err = newFile(name, func(f *os.File) error { return r.Backup(ctx, w.onto(f)) })
			}
			w.end()
			if err != nil {
				return err
			}
			line := backupLine{name, w.n, pawl.Digest(w.hash.Sum(nil))}
			if name == "-" {
				if c.json {
					return writeObject(c.err, line)
				}
				return nil
			}
			if c.json {
				return c.object(line)
			}
			_, err = fmt.Fprintf(c.out, "%s: %s\n%s\n", safe(name), size(w.n), line.Digest)
			return err
		},
	}
}

// newFile makes a file that is there whole and durable, or not at all.
func newFile(name string, fill func(*os.File) error) (err error) {
	if _, err := os.Lstat(name); err == nil {
		return usage{fmt.Sprintf("%s is there already", safe(name))}
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".pawl-*")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		os.Remove(f.Name())
	}()
	if err := errors.Join(fill(f)); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), name); errors.Is(err, os.ErrExist) {
		return usage{fmt.Sprintf("%s is there already", safe(name))}
	} else if err != nil { // no hard links here
		if err := os.Rename(f.Name(), name); err != nil {
			return err
		}
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && runtime.GOOS != "windows" { // there directories cannot be flushed
		return err
	}
	return nil
}

// counted counts and hashes what is written, and shows it on a terminal.
type counted struct {
	c           *call
	to          io.Writer
	hash        interface{ Sum([]byte) []byte }
	n           int64
	start, last time.Time
	drawn       bool
}

func (w *counted) onto(to io.Writer) io.Writer {
	h := sha256.New()
	w.to, w.hash = io.MultiWriter(to, h), h
	return w
}

func (w *counted) Write(b []byte) (int, error) {
	n, err := w.to.Write(b)
	w.n += int64(n)
	if now := time.Now(); w.c.terminal && !w.c.json && now.Sub(w.last) > 200*time.Millisecond {
		w.last, w.drawn = now, true
		fmt.Fprintf(w.c.err, "\r\x1b[K%s, %s/s", size(w.n), size(int64(float64(w.n)/now.Sub(w.start).Seconds())))
	}
	return n, err
}

func (w *counted) end() {
	if w.drawn {
		fmt.Fprint(w.c.err, "\r\x1b[K")
	}
}

func restoreCommand() *command {
	var d deciding
	var verify bool
	return &command{
		name: "restore", args: "FILE",
		what: "put the state of a backup in place",
		more: `
The whole backup is checked before anything is written. Into two empty directories it
restores the store as it was backed up. Over a store it goes back, which is a decision:
without --reason nothing is done, and what would be lost is shown, with the command that
does it. FILE - is standard input, which is copied into a temporary file first. --digest
names the state that is given up. Its files go to quarantine/, its numbers are not used
again, and its receipts are void.`,
		flags: func(fs *flag.FlagSet) {
			d.flags(fs, "the `digest` that the trust file confirms; none: there is no state")
			fs.BoolVar(&verify, "verify", false, "only check the backup; needs no store")
		},
		nowhere: true,
		run: func(ctx context.Context, c *call) error {
			name := c.args[0]
			f, done, err := c.source(name)
			if err != nil {
				return err
			}
			defer done()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			from := &watched{f: f, p: progress{c: c, what: "read"}, size: info.Size()}
			if verify {
				info, err := pawl.CheckBackup(ctx, from, nil)
				from.p.end()
				if err != nil {
					return err
				}
				if c.json {
					return c.object(info)
				}
				_, err = fmt.Fprintf(c.out, "%s is whole: store %s at revision %d, %d files, %s\n%s\n",
					where(name), info.StoreID, info.Version.Revision, info.Files, size(info.Bytes), info.Digest)
				return err
			}
			if c.store == "" || c.trust == "" {
				return usage{"restore needs --store and --trust, or PAWL_STORE and PAWL_TRUST"}
			}
			o := c.options()
			o.MustExist = false
			return d.run(c, "restore", quoteLast(name), func(dec pawl.Decision) (*pawl.Ruling, error) {
				defer from.p.end()
				if _, err := from.Seek(0, io.SeekStart); err != nil {
					return nil, err
				}
				return pawl.Restore(ctx, c.store, c.trust, o, from, dec)
			})
		},
	}
}

func where(name string) string {
	if name == "-" {
		return "the backup"
	}
	return safe(name)
}

// source opens a backup. Standard input becomes a file, for a backup is read twice.
func (c *call) source(name string) (f *os.File, done func(), err error) {
	if name != "-" {
		f, err = os.Open(name)
		return f, func() { f.Close() }, err
	}
	if f, err = os.CreateTemp("", "pawl-backup-*"); err != nil {
		return nil, nil, err
	}
	done = func() {
		f.Close()
		os.Remove(f.Name())
	}
	_, err = io.Copy(f, c.in)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("copying standard input: %w", err)
	}
	return f, done, nil
}

// watched is a backup that is read, with how far that is.
type watched struct {
	f       *os.File
	p       progress
	n, size int64
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.f.Read(b)
	w.n += int64(n)
	w.p.report(w.n, max(w.n, w.size))
	return n, err
}

// Seek begins anew: a backup is checked as a whole before it is unpacked.
func (w *watched) Seek(offset int64, whence int) (int64, error) {
	w.p.end()
	w.p.start = time.Time{}
	n, err := w.f.Seek(offset, whence)
	w.n = n
	return n, err
}
