package crashtest

import (
	"context"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Context returns a context that carries a new simulated machine, with one empty
// disk. Whatever is called with it finds its stores there: pawl.Open runs unchanged,
// under any absolute paths, makes the directories that are missing, and touches
// nothing of the real machine. Two contexts carry two machines.
func Context(ctx context.Context) context.Context {
	return vfs.NewContext(ctx, simfs.New(simfs.PosixMinimal, "/").Start())
}

// Idle says that nothing is done for a while on the machine that ctx carries, one from
// Context or from Run: what a program there does when it is idle happens now, in this
// goroutine, and not at any other time. It panics where ctx carries no such machine.
func Idle(ctx context.Context) {
	p, ok := vfs.FromContext(ctx).(interface{ Idle() }) // a *simfs.Process, or what stands around one
	if !ok {
		panic("crashtest: Idle without a simulated machine")
	}
	p.Idle()
}

// NewStore returns an empty store on a new simulated machine. It is closed when the
// test ends, which fails if that fails, or if the store used a handle after it was
// closed. opts may be nil.
func NewStore(t testing.TB, opts *pawl.Options) *pawl.Store {
	t.Helper()
	p := simfs.New(simfs.PosixMinimal, "/store", "/trust").Start()
	s, err := pawl.Open(vfs.NewContext(context.Background(), p), "/store/s", "/trust/s", opts)
	if err != nil {
		t.Fatalf("crashtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("crashtest: %v", err)
		}
		for _, err := range p.Violations() {
			t.Errorf("crashtest: %v", err)
		}
	})
	return s
}
