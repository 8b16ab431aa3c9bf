package pawl_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// auditRecord is an audit line as another program reads it.
type auditRecord struct {
	Time      time.Time
	Event     string
	Store     string
	Process   string
	Outcome   string
	Confirmed pawl.Root
	Pending   *pawl.Root
	Commits   []string
	From, To  string
	Digest    *pawl.Digest
	Chosen    *pawl.Version
	Reason    string
	LostFrom  pawl.Revision `json:"lost_from"`
	LostTo    pawl.Revision `json:"lost_to"`
	SetAside  []string      `json:"set_aside"`
}

// auditOf reads the audit lines of a store: each is a JSON object on a line of its
// own. Lines that are not are returned as torn.
func auditOf(t testing.TB, trust string) (lines []auditRecord, torn []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(trust, "session.audit"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var r auditRecord
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil || !strings.HasSuffix(line, "}\n") {
			torn = append(torn, line)
			continue
		}
		lines = append(lines, r)
	}
	return lines, torn
}

// A recovery leaves an audit line that says what was pending and what became of it
// (R12), and an ordinary open leaves none.
func TestAuditLines(t *testing.T) {
	for when, want := range map[string]auditRecord{
		"idle":     {Event: "unclean"},
		"unlanded": {Event: "settle", Outcome: "not landed", Commits: []string{"second"}},
		"landed":   {Event: "settle", Outcome: "landed", Commits: []string{"second"}},

		"unlanded journal": {Event: "settle", Outcome: "not landed", Commits: []string{"second"}},
		"landed journal":   {Event: "settle", Outcome: "landed", Commits: []string{"second"}},
	} {
		t.Run(when, func(t *testing.T) {
			dir, trust, _ := killed(t, when)
			start := time.Now()
			s := openStore(t, t.Context(), dir, trust, nil)
			rec := s.Recovery()
			lines, torn := auditOf(t, trust)
			if len(lines) != 1 || torn != nil {
				t.Fatalf("lines %+v, torn %q", lines, torn)
			}
			got := lines[0]
			if got.Event != want.Event || got.Outcome != want.Outcome || !slices.Equal(got.Commits, want.Commits) || got.Confirmed != rec.Confirmed {
				t.Errorf("line %+v, recovery %+v", got, rec)
			}
			if intent := when != "idle"; (got.Pending != nil) != intent || intent && *got.Pending != rec.Pending {
				t.Errorf("pending %+v, recovery %+v", got.Pending, rec)
			}
			if got.Time.Before(start.Add(-time.Hour)) || got.Time.After(time.Now().Add(time.Hour)) || got.Time.Location() != time.UTC {
				t.Errorf("time %v", got.Time)
			}
			if got.Process == "" || got.Store != inspect(t, dir, trust, nil).StoreID {
				t.Errorf("process %q, store %q", got.Process, got.Store)
			}
			// Commits, Close and clean opens are not worth a line.
			commit(t, s, entry("x", "x"))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			openStore(t, t.Context(), dir, trust, nil)
			if lines, torn := auditOf(t, trust); len(lines) != 1 || torn != nil {
				t.Errorf("lines %+v, torn %q", lines, torn)
			}
		})
	}
	dir, trust := testkit.Dirs(t)
	for range 2 {
		s := openStore(t, t.Context(), dir, trust, nil)
		commit(t, s, entry("", "x"))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if lines, torn := auditOf(t, trust); lines != nil || torn != nil {
		t.Errorf("of a store that was always closed: %+v, %q", lines, torn)
	}
}

// Lines are only ever appended, and one that a crash tore does not swallow the next.
func TestAuditAfterATornLine(t *testing.T) {
	const whole = `{"time":"2025-01-02T03:04:05Z","event":"unclean","store":"","process":"","confirmed":{"revision":1,"epoch":1,"journal":0,"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}}` + "\n"
	for name, before := range map[string]string{
		"empty":           "",
		"a whole line":    whole,
		"a torn line":     whole + whole[:60],
		"only a torn one": "{",
		"zeros":           whole + "\x00\x00\x00",
		"an empty line":   whole + "\n",
		"no line feed":    whole[:len(whole)-1],
	} {
		t.Run(name, func(t *testing.T) {
			dir, trust, _ := killed(t, "landed")
			path := filepath.Join(trust, "session.audit")
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, t.Context(), dir, trust, nil)
			if err := s.Recovery().Audit; err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil || !strings.HasPrefix(string(b), before) {
				t.Fatalf("what was there was changed to %q, %v", b, err)
			}
			lines, _ := auditOf(t, trust)
			if last := lines[len(lines)-1]; last.Event != "settle" || last.Outcome != "landed" {
				t.Errorf("the last line is %+v", last)
			}
			if want := strings.Count(before, "}}"); len(lines) != want+1 {
				t.Errorf("%d whole lines, want %d:\n%s", len(lines), want+1, b)
			}
		})
	}
}

// An audit file that cannot be written never keeps a store from opening: it is
// reported, and the file is left as it is.
func TestAuditThatCannotBeWritten(t *testing.T) {
	for name, obstruct := range map[string]func(t *testing.T, path string){
		"a directory": func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a symlink": func(t *testing.T, path string) {
			to := filepath.Join(filepath.Dir(path), "elsewhere")
			if err := os.WriteFile(to, []byte("untouched"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, path); err != nil {
				t.Skipf("no symbolic links here: %v", err)
			}
			if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSymlink {
				t.Skipf("no symbolic links here, though none was refused: %v, %v", info, err)
			}
		},
		"a symlink to nowhere": func(t *testing.T, path string) {
			if err := os.Symlink(path+"-nowhere", path); err != nil {
				t.Skipf("no symbolic links here: %v", err)
			}
			if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSymlink {
				t.Skipf("no symbolic links here, though none was refused: %v, %v", info, err)
			}
		},
		"a FIFO": func(t *testing.T, path string) {
			mkfifo, err := exec.LookPath("mkfifo")
			if err != nil {
				t.Skipf("nothing here makes a FIFO: %v", err)
			}
			if out, err := exec.Command(mkfifo, path).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, trust, last := killed(t, "landed")
			path := filepath.Join(trust, "session.audit")
			obstruct(t, path)
			before := testkit.Snapshot(t, path, filepath.Join(trust, "elsewhere"), path+"-nowhere")
			var log records
			s := openStore(t, t.Context(), dir, trust, &pawl.Options{Logger: slog.New(&log)})
			rec := s.Recovery()
			if rec.Audit == nil || rec.Settled != pawl.SettledLanded || s.View().Version() != last.Version {
				t.Errorf("%+v", rec)
			}
			if !slices.Contains(log.list, "ERROR pawl: no audit line was written") {
				t.Errorf("logged %q", log.list)
			}
			commit(t, s, entry("", "x"))
			for p, what := range testkit.Snapshot(t, path, filepath.Join(trust, "elsewhere"), path+"-nowhere") {
				if before[p] != what {
					t.Errorf("%s was %q, is %q", p, before[p], what)
				}
			}
		})
	}
}
