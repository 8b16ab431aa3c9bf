package crashtest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
)

func TestNewStore(t *testing.T) {
	var kept *pawl.Store
	t.Run("in a test", func(t *testing.T) {
		kept = NewStore(t, nil)
		if _, err := kept.Commit(context.Background(), pawl.Change{Entries: [][]byte{[]byte("one")}}); err != nil {
			t.Fatal(err)
		}
		if r := kept.View().Version().Revision; r != 1 {
			t.Errorf("revision %d", r)
		}
	})
	if _, err := kept.Commit(context.Background(), pawl.Change{Entries: [][]byte{[]byte("two")}}); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("after the test: %v", err)
	}
}

// TestContext: code that opens stores by paths of its own runs on the simulated
// machine, and leaves nothing on the real one.
func TestContext(t *testing.T) {
	dir := t.TempDir()
	app := func(ctx context.Context) (pawl.Revision, error) {
		s, err := pawl.Open(ctx, dir+"/state", dir+"/trust", nil)
		if err != nil {
			return 0, err
		}
		r, err := s.Commit(ctx, pawl.Change{Put: map[string][]byte{"p": nil}})
		return r.Revision, errors.Join(err, s.Close())
	}
	ctx := Context(context.Background())
	for want := pawl.Revision(1); want <= 2; want++ {
		if got, err := app(ctx); got != want || err != nil {
			t.Fatalf("revision %d, %v; want %d", got, err, want)
		}
	}
	if got, err := app(Context(context.Background())); got != 1 || err != nil {
		t.Errorf("on another machine: revision %d, %v", got, err)
	}
	if names, err := os.ReadDir(dir); len(names) != 0 || err != nil {
		t.Errorf("on the real machine: %v, %v", names, err)
	}
}
