package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
)

// mountedFiles finds a file in a directory that is a mount of its own.
func mountedFiles(dir string) (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		at := unescape(fields[4])
		if filepath.Dir(at) != dir {
			continue
		}
		if info, err := os.Lstat(at); err == nil && info.Mode().IsRegular() {
			return filepath.Base(at), nil
		}
	}
	return "", lines.Err()
}

// unescape undoes what /proc does to blanks in a path: \040 and the like.
func unescape(s string) string {
	for _, e := range []struct{ code, char string }{{`\040`, " "}, {`\011`, "\t"}, {`\012`, "\n"}, {`\134`, `\`}} {
		s = strings.ReplaceAll(s, e.code, e.char)
	}
	return s
}
