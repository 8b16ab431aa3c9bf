// Cli is a small command with a state of its own: it takes the SHA-256 of every file of a
// tree, and goes on where it was stopped.
//
//	go run ./examples/cli                          # shows it: is stopped in the middle, and resumed
//	go run ./examples/cli -state DIR TREE          # the sums of a tree
//	go run ./examples/cli -state DIR -resume TREE  # goes on
//
// Each file is one commit: an entry with its path, size and sum, and the part "job.json"
// that says which tree it is and what comes next. So however it is stopped, by Ctrl-C, by
// SIGKILL or by a power cut, no file is left out and none is there twice.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-5cdcd42d/pawl"
)

// job is the part job.json.
type job struct {
	Tree  string `json:"tree"`
	Last  string `json:"last"` // the file that was done last
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
	Done  bool   `json:"done"`
}

// sum is an entry.
type sum struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// The exit codes.
const (
	good       = 0
	failed     = 1
	badUsage   = 2
	unfinished = 3 // it was stopped, or an earlier run was and -resume is not given
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("cli", flag.ContinueOnError)
	flags.SetOutput(errs)
	state := flags.String("state", "", "`directory` of the state; what authorises it is beside it, in DIR.trust")
	resume := flags.Bool("resume", false, "go on with a run that was stopped")
	after := flags.Int("stop-after", 0, "stop after `count` files, as an interrupt does")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return good
		}
		return badUsage
	}
	var code int
	var err error
	switch {
	case *state == "" && flags.NArg() == 0:
		code, err = show(ctx, out, errs)
	case *state == "" || flags.NArg() != 1:
		fmt.Fprintln(errs, "usage: cli -state DIR [-resume] TREE")
		return badUsage
	default:
		code, err = hash(ctx, *state, flags.Arg(0), *resume, *after, out)
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return failed
	}
	return code
}

// hash does the work, from the beginning or from where it was stopped.
func hash(ctx context.Context, state, tree string, resume bool, after int, out io.Writer) (code int, err error) {
	tree, err = filepath.Abs(tree)
	if err != nil {
		return failed, err
	}
	s, err := pawl.Open(ctx, state, state+".trust", nil)
	if err != nil {
		return failed, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	j, begun, err := pawl.GetJSON[job](s.View(), "job.json")
	switch {
	case err != nil:
		return failed, err
	case begun && j.Tree != tree:
		return failed, fmt.Errorf("the state in %s is about %s", state, j.Tree)
	case begun && !j.Done && !resume:
		fmt.Fprintf(out, "a run was stopped after %d files; -resume goes on\n", j.Files)
		return unfinished, nil
	case !begun:
		j = job{Tree: tree}
	}
	if !j.Done {
		files, err := list(tree)
		if err != nil {
			return failed, err
		}
		next, found := slices.BinarySearch(files, j.Last)
		if found {
			next++
		}
		for i, path := range files[next:] {
			if ctx.Err() != nil || after > 0 && i == after {
				fmt.Fprintf(out, "stopped after %d of %d files\n", j.Files, len(files))
				return unfinished, nil
			}
			if j, err = add(ctx, s, j, path); err != nil {
				return failed, err
			}
		}
		j.Done = true
		c := pawl.Change{}
		c.SetJSON("job.json", j)
		if _, err := s.Commit(ctx, c); err != nil {
			return failed, err
		}
	}
	fmt.Fprintf(out, "%d files, %d bytes, sum of sums %x\n", j.Files, j.Bytes, sumOfSums(s.View()))
	return good, nil
}

// add is one step: one file, one commit.
func add(ctx context.Context, s *pawl.Store, j job, path string) (job, error) {
	b, err := os.ReadFile(filepath.Join(j.Tree, filepath.FromSlash(path)))
	if err != nil {
		return j, err
	}
	entry, err := json.Marshal(sum{path, int64(len(b)), fmt.Sprintf("%x", sha256.Sum256(b))})
	if err != nil {
		return j, err
	}
	j.Last, j.Files, j.Bytes = path, j.Files+1, j.Bytes+int64(len(b))
	c := pawl.Change{Entries: [][]byte{entry}}
	c.SetJSON("job.json", j)
	_, err = s.Commit(context.WithoutCancel(ctx), c) // an interrupt ends the run between two steps
	return j, err
}

// sumOfSums is one number for all entries.
func sumOfSums(v pawl.View) []byte {
	h := sha256.New()
	for e, err := range v.Entries(0) {
		if err != nil {
			return nil
		}
		h.Write(e.Data)
	}
	return h.Sum(nil)[:8]
}

// list is every regular file below a directory, sorted, with slashes.
func list(tree string) (files []string, err error) {
	err = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var name string
			if name, err = filepath.Rel(tree, path); err == nil {
				files = append(files, filepath.ToSlash(name))
			}
		}
		return err
	})
	slices.Sort(files)
	return files, err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// show runs it twice on a tree: in one go, and stopped again and again.
func show(ctx context.Context, out, errs io.Writer) (int, error) {
	root, err := os.MkdirTemp("", "pawl-cli")
	if err != nil {
		return failed, err
	}
	defer os.RemoveAll(root)
	tree := "." // where there are no sources of Go
	if root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output(); err == nil {
		if source := filepath.Join(strings.TrimSpace(string(root)), "src", "encoding"); isDir(source) {
			tree = source
		}
	}
	if code, err := hash(ctx, filepath.Join(root, "whole"), tree, false, 0, out); code != good || err != nil {
		return code, err
	}
	for i := 0; ; i++ {
		code, err := hash(ctx, filepath.Join(root, "stopped"), tree, i > 0, 40, out)
		if code != unfinished || err != nil || ctx.Err() != nil {
			return code, err
		}
	}
}
