package effect_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
	"github.com/seed-5cdcd42d/pawl/effect"
)

// open opens a store: here, on a simulated disk.
func open() (context.Context, *pawl.Store) {
	ctx := crashtest.Context(context.Background())
	store, err := pawl.Open(ctx, "/session", "/trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	return ctx, store
}

// A call with a result is made once, however often the program comes to this line.
func ExampleDo() {
	ctx, store := open()
	defer store.Close()
	request := effect.Request{Destination: "bank", Body: []byte(`{"amount": 17}`)}
	for range 2 {
		id, err := effect.Do(ctx, store, "order-17/charge", request, func(_ context.Context, c effect.Call) (int, error) {
			fmt.Println("charged, attempt", c.Attempt)
			return 4711, nil
		}, nil)
		fmt.Println(id, err)
	}
	// Output:
	// charged, attempt 1
	// 4711 <nil>
	// 4711 <nil>
}

// When nobody knows whether it happened, it is parked, and not tried again.
func ExampleDo_unsettled() {
	ctx, store := open()
	defer store.Close()
	charge := func(context.Context, effect.Call) (int, error) {
		fmt.Println("charging")
		return 0, errors.New("the connection was cut")
	}
	for range 2 {
		_, err := effect.Do(ctx, store, "order-17/charge", effect.Request{Destination: "bank"}, charge, nil)
		fmt.Println(errors.Is(err, effect.ErrUnsettled))
	}
	// Output:
	// charging
	// true
	// true
}

// Settle asks the other side, which knows.
func ExampleOptions_settle() {
	ctx, store := open()
	defer store.Close()
	charges := map[string]int{} // what the bank knows
	charge := func(_ context.Context, c effect.Call) (int, error) {
		charges[c.Key] = 4711
		return 0, errors.New("the connection was cut")
	}
	ask := func(_ context.Context, c effect.Call) (int, error) {
		if id, ok := charges[c.Key]; ok {
			return id, nil
		}
		return 0, effect.NotDone(nil)
	}
	id, err := effect.Do(ctx, store, "order-17/charge", effect.Request{Destination: "bank"}, charge, &effect.Options[int]{Settle: ask})
	fmt.Println(id, err)
	// Output:
	// 4711 <nil>
}

// An effect is queued in the commit that causes it, and carried out by Run.
func ExampleOutbox() {
	ctx, store := open()
	defer store.Close()
	box := effect.NewOutbox(store, nil)
	_, err := store.Update(ctx, "order-17", func(v pawl.View) (pawl.Change, error) {
		var c pawl.Change
		c.SetJSON("order-17.json", "two chairs")
		err := box.Enqueue(ctx, v, &c, "order-17/mail", effect.Request{Destination: "mail", Body: []byte("two chairs")})
		return c, err
	})
	if err != nil {
		log.Fatal(err)
	}

	running, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	err = box.Run(running, map[string]effect.Handler{"mail": {
		Run: func(_ context.Context, c effect.Call) ([]byte, error) {
			fmt.Printf("mail: %s\n", c.Body)
			stop() // a program that goes on would not
			return nil, nil
		},
		Idempotent: true,
	}})
	fmt.Println(err)
	// Output:
	// mail: two chairs
	// <nil>
}

// An operator who knows that it did not happen allows one more attempt.
func ExampleRelease() {
	ctx, store := open()
	defer store.Close()
	charge := func(_ context.Context, c effect.Call) (int, error) {
		if c.Attempt == 1 {
			return 0, errors.New("the connection was cut")
		}
		return 4711, nil
	}
	_, err := effect.Do(ctx, store, "order-17/charge", effect.Request{Destination: "bank"}, charge, nil)
	fmt.Println(errors.Is(err, effect.ErrUnsettled))

	for e := range effect.Unsettled(store.View()) {
		fmt.Println(e.State, e.Key, "at epoch", e.Epoch)
		err := effect.Release(ctx, store, effect.Decision{Digest: e.Digest, Epoch: e.Epoch, By: "anna", Reason: "the bank has no such charge"})
		if err != nil {
			log.Fatal(err)
		}
	}
	id, err := effect.Do(ctx, store, "order-17/charge", effect.Request{Destination: "bank"}, charge, nil)
	fmt.Println(id, err)
	// Output:
	// true
	// parked order-17/charge at epoch 1
	// 4711 <nil>
}
