package main

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
)

// Killed while on its errands, by the real path (R23; 31): none is lost, none repeated, what
// is in doubt is parked; and then decided. The usual way is for comparison.
func TestErrands(t *testing.T) {
	errands, kills := 120, 50
	if testing.Short() || runtime.GOOS == "windows" {
		errands, kills = 40, 6
	}
	dir, _ := testkit.Dirs(t)
	var out bytes.Buffer
	rows, err := compare(t.Context(), filepath.Dir(dir), errands, kills, rand.New(rand.NewPCG(1, uint64(os.Getpid()))), &out)
	if err != nil || len(rows) != 2 {
		t.Fatalf("%v\n%s", err, &out)
	}
	if r := rows[0]; r.Lost != 0 || r.Repeated != 0 || r.Errands != errands || r.Kills < kills/2 {
		t.Errorf("%+v", r)
	}
	if r := rows[1]; r.Lost != 0 || r.Parked != 0 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(out.String(), rows[0].String()) || !strings.Contains(out.String(), rows[1].String()) {
		t.Errorf("the rows are not shown:\n%s", &out)
	}
	t.Logf("\n%s", &out)
}

// What each tool does a second time, and that the world sees it.
func TestWorld(t *testing.T) {
	w, err := newWorld(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	j := &errandJob{Out: w.out, Server: w.url}
	want := []int{0}
	for n := 1; n <= len(tools); n++ {
		e, tool := errandOf(n)
		for range 2 {
			if _, err := tools[tool].call(t.Context(), j, e, "key"+e.Tool); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, map[bool]int{true: 1, false: 2}[tools[tool].idempotent])
	}
	got, err := w.happened(len(tools))
	if err != nil {
		t.Fatal(err)
	}
	for n := range want {
		if got[n] != want[n] {
			e, _ := errandOf(n)
			t.Errorf("%+v happened %d times, want %d", e, got[n], want[n])
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	// What an error says: a server that is not there has certainly done nothing.
	store, err := pawl.Open(t.Context(), filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "t"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for n := 1; n <= len(tools); n++ {
		e, tool := errandOf(n)
		if err := runErrand(context.Background(), store, j, e, tool); strings.HasPrefix(tools[tool].name, "notify") && !errors.Is(err, effect.ErrNotDone) {
			t.Errorf("%s without a server: %v", e.Tool, err)
		}
	}
}
