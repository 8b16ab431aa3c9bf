package crashtest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
)

// counter is a program that somebody wants to test: it counts in a store.
type counter struct{ store *pawl.Store }

func openCounter(ctx context.Context) (*counter, error) {
	s, err := pawl.Open(ctx, "/store/counter", "/trust/counter", nil)
	return &counter{s}, err
}

func (c *counter) value() (string, error) {
	b, _, err := c.store.View().Get("n")
	return string(b), err
}

func (c *counter) set(ctx context.Context, n string) error {
	_, err := c.store.Commit(ctx, pawl.Change{Put: map[string][]byte{"n": []byte(n)}})
	return err
}

// TestCounter explores every crash of a user's own workload. The same code runs on
// real disks: only the context differs.
func TestCounter(t *testing.T) {
	twice := func(ctx context.Context, p *crashtest.Process, c *counter) error {
		for i := range 2 {
			n := fmt.Sprintf("%d.%d", p.Number(), i)
			p.Begin(n)
			err := c.set(ctx, n)
			p.End(n, err)
			if err != nil {
				return err
			}
		}
		return nil
	}
	open := func(ctx context.Context, p *crashtest.Process) error {
		c, err := openCounter(ctx)
		if err != nil {
			return err
		}
		n, err := c.value()
		if err != nil {
			return err
		}
		p.Observe(n)
		return twice(ctx, p, c)
	}
	crashtest.Run(t, func(c *crashtest.C) {
		c.Unexplored("/store/counter/lock", "/trust/counter/*.lock", "/trust/counter/*.audit")
		c.NeverRead("tmp-*", "counter.tmp-*")
		c.Do(open)
		c.Recover(open)
	})
}

// An ordinary unit test: a store in one line, which takes microseconds, leaves nothing
// behind, and is closed when the test ends.
func ExampleNewStore() {
	test := func(t testing.TB) { // func TestSet(t *testing.T)
		c := &counter{crashtest.NewStore(t, nil)}
		if err := c.set(context.Background(), "7"); err != nil {
			t.Fatal(err)
		}
		n, err := c.value()
		fmt.Println(n, err)
	}
	test(&printer{})
	// Output: 7 <nil>
}

// Code that opens stores deep inside runs on a simulated disk unchanged.
func ExampleContext() {
	ctx := crashtest.Context(context.Background())
	s, err := pawl.Open(ctx, "/var/lib/app/state", "/var/lib/app/trust", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	r, err := s.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("hello")}})
	fmt.Println(r.Revision, err)
	// Output: 1 <nil>
}
