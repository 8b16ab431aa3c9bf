package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/seed-5cdcd42d/pawl"
)

// A Reader looks at a store while somebody else writes to it: no lock is taken, and
// nothing is written.
func ExampleOpenReader() {
	defer scratch()()
	ctx := context.Background()
	writer, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()

	reader, err := pawl.OpenReader(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer reader.Close()
	if _, err := writer.Commit(ctx, pawl.Change{ID: "step-1", Entries: [][]byte{[]byte("one")}}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("before:", reader.View().Version().Revision)
	if err := reader.Refresh(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("after: ", reader.View().Version().Revision)
	_, outcome, err := reader.Lookup(ctx, "step-1")
	fmt.Println(outcome, err)
	// Output:
	// before: 0
	// after:  1
	// committed <nil>
}

// Watch yields the newest state after each change, until its context ends. An error is
// told and does not end it.
func ExampleReader_Watch() {
	defer scratch()()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	writer, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	reader, err := pawl.OpenReader(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer reader.Close()

	for _, text := range []string{"one", "two", "three"} {
		if _, err := writer.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte(text)}}); err != nil {
			log.Fatal(err)
		}
	}
	seen := pawl.Seq(0)
	for view, err := range reader.Watch(ctx, 0) {
		if err != nil {
			log.Print(err) // the store cannot be read for now
			continue
		}
		for entry, err := range view.Entries(seen) { // what is new; states may have been skipped
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%d %s\n", entry.Seq, entry.Data)
			seen = entry.Seq
		}
		if seen == 3 {
			cancel()
		}
	}
	// Output:
	// 1 one
	// 2 two
	// 3 three
}

// A program may wait for its own changes: another goroutine makes them.
func ExampleStore_Watch() {
	defer scratch()()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	go func() {
		if _, err := store.Commit(ctx, pawl.Change{Put: map[string][]byte{"status": []byte("ready")}}); err != nil {
			log.Print(err)
		}
	}()
	for view, err := range store.Watch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		status, _, _ := view.Get("status")
		fmt.Printf("revision %d: %s\n", view.Version().Revision, status)
		break
	}
	// Output: revision 1: ready
}

// With Options.Shared several processes, here two Stores of one, change a store by
// turns. Update decides on the newest state, whoever made it.
func ExampleOptions_shared() {
	defer scratch()()
	ctx := context.Background()
	open := func() *pawl.Store {
		store, err := pawl.Open(ctx, "session", "trust", &pawl.Options{Shared: true})
		if err != nil {
			log.Fatal(err)
		}
		return store
	}
	a, b := open(), open()
	defer a.Close()
	defer b.Close()
	add := func(store *pawl.Store) {
		_, err := store.Update(ctx, "", func(v pawl.View) (pawl.Change, error) {
			n, _, err := pawl.GetJSON[int](v, "n")
			var c pawl.Change
			c.SetJSON("n", n+1)
			return c, err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	add(a)
	add(b)
	add(a)
	n, _, err := pawl.GetJSON[int](a.View(), "n")
	fmt.Println(n, err)

	behind := b.View().Version() // a has committed since
	_, err = b.Commit(ctx, pawl.Change{Expect: &behind, Delete: []string{"n"}})
	fmt.Println(errors.Is(err, pawl.ErrStale), errors.Is(err, pawl.ErrNotCommitted))
	// Output:
	// 3 <nil>
	// true true
}

// A program raises its schema together with a Migrate that knows the older ones. Open
// commits what it returns, once.
func ExampleOptions_migrate() {
	defer scratch()()
	ctx := context.Background()
	old, err := pawl.Open(ctx, "session", "trust", &pawl.Options{Schema: 1})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := old.Commit(ctx, pawl.Change{Put: map[string][]byte{"name": []byte("Ada Lovelace")}}); err != nil {
		log.Fatal(err)
	}
	if err := old.Close(); err != nil {
		log.Fatal(err)
	}

	store, err := pawl.Open(ctx, "session", "trust", &pawl.Options{
		Schema: 2,
		Migrate: func(ctx context.Context, from int, v pawl.View) (pawl.Change, error) {
			if from != 1 {
				return pawl.Change{}, fmt.Errorf("schema %d is not known", from)
			}
			name, _, err := v.Get("name")
			c := pawl.Change{Delete: []string{"name"}}
			c.SetJSON("person.json", map[string]string{"name": string(name)})
			return c, err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	person, _, _ := store.View().Get("person.json")
	fmt.Printf("from schema %d: %s\n", store.Recovery().SchemaFrom, person)
	// Output: from schema 1: {"name":"Ada Lovelace"}
}
