package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func tree(t *testing.T, files int) string {
	dir := t.TempDir()
	for i := range files {
		name := filepath.Join(dir, fmt.Sprintf("d%d", i%3), fmt.Sprintf("f%02d", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name[len(dir):]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func cli(t *testing.T, ctx context.Context, args ...string) (string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(ctx, args, &out, &errs)
	return out.String() + errs.String(), code
}

// Stopped after each file and resumed, it comes to the same as in one go.
func TestResumes(t *testing.T) {
	dir, states := tree(t, 10), t.TempDir()
	want, code := cli(t, t.Context(), "-state", filepath.Join(states, "whole"), dir)
	if code != good || !strings.HasPrefix(want, "10 files, ") {
		t.Fatal(code, want)
	}
	state := filepath.Join(states, "stopped")
	for i := range 10 {
		args := []string{"-state", state, "-stop-after", "1", dir}
		if i > 0 {
			if out, code := cli(t, t.Context(), args...); code != unfinished || !strings.Contains(out, "-resume goes on") {
				t.Fatal(code, out)
			}
			args = append([]string{"-resume"}, args...)
		}
		out, code := cli(t, t.Context(), args...)
		if i < 9 && (code != unfinished || out != fmt.Sprintf("stopped after %d of 10 files\n", i+1)) || i == 9 && (code != good || out != want) {
			t.Fatal(i, code, out)
		}
	}
	for range 2 { // done is done
		if out, code := cli(t, t.Context(), "-state", state, "-resume", dir); code != good || out != want {
			t.Error(code, out)
		}
	}
	if out, code := cli(t, t.Context(), "-state", state, t.TempDir()); code != failed || !strings.Contains(out, "is about") {
		t.Error(code, out)
	}
}

func TestInterrupted(t *testing.T) {
	dir, state := tree(t, 5), filepath.Join(t.TempDir(), "s")
	if out, code := cli(t, t.Context(), "-state", state, "-stop-after", "2", dir); code != unfinished {
		t.Fatal(code, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out, code := cli(t, ctx, "-state", state, "-resume", dir); code == good {
		t.Fatal(code, out)
	}
	if out, code := cli(t, t.Context(), "-state", state, "-resume", dir); code != good || !strings.HasPrefix(out, "5 files, ") {
		t.Error(code, out)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-state", "s"}, {"-state", "s", "a", "b"}, {"-frob"}} {
		if out, code := cli(t, t.Context(), args...); code != badUsage || out == "" {
			t.Error(args, code, out)
		}
	}
	if _, code := cli(t, t.Context(), "-h"); code != good {
		t.Error(code)
	}
}

// What the command line without arguments shows.
func TestShow(t *testing.T) {
	out, code := cli(t, t.Context())
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != good || len(lines) < 2 || lines[0] != lines[len(lines)-1] {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
