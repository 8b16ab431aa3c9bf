package effect

import (
	"context"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
)

// Whoever gets his turn when a function that hung has returned holds the effect like anybody
// else: the others wait for him.
func TestLeftIsTakenBack(t *testing.T) {
	turns := 0
	for range 200 {
		s := new(pawl.Store)
		k := holdKey{s, "k"}
		release, ok := tryHold(s, "k")
		if !ok {
			t.Fatal("nobody has it")
		}
		abandon(s, "k")
		h := k.enter(true) // somebody comes, and the function returns
		release()
		again, err := k.wait(context.Background(), h)
		if err != nil {
			continue
		}
		turns++
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		if _, err := hold(ctx, s, "k"); err == errLeft || err == nil {
			t.Errorf("beside him: %v", err)
		}
		cancel()
		again()
	}
	if turns == 0 {
		t.Error("nobody got his turn")
	}
}
