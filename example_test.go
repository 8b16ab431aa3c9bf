package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/seed-5cdcd42d/pawl"
)

// scratch makes a fresh directory the working directory; what it returns undoes
// that. It keeps examples from leaving anything behind.
func scratch() (undo func()) {
	before, err := os.Getwd()
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pawl-example-")
	if err == nil {
		err = os.Chdir(dir)
	}
	if err != nil {
		log.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Chdir(before), os.RemoveAll(dir)); err != nil {
			log.Fatal(err)
		}
	}
}

// README.md shows the twelve lines after the first, which keeps the example from
// leaving anything behind.
func ExampleOpen() {
	defer scratch()()

	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	change := pawl.Change{Entries: [][]byte{[]byte("read config.yaml: 214 bytes")}}
	change.SetJSON("state.json", map[string]int{"cursor": 1})
	if _, err := store.Commit(ctx, change); err != nil {
		log.Fatal(err)
	}
	fmt.Println("on stable storage: revision", store.View().Version().Revision)
	// Output: on stable storage: revision 1
}

// Entries and parts change together: all of the change is there after a crash, or
// nothing of it.
func ExampleStore_Commit() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	receipt, err := store.Commit(ctx, pawl.Change{
		ID:      "turn-1",
		Entries: [][]byte{[]byte("question"), []byte("answer")},
		Put: map[string][]byte{
			"state.json":    []byte(`{"turn":1}`),
			"manifest.json": []byte(`{"files":2}`),
		},
	})
	switch {
	case err == nil:
		fmt.Printf("revision %d, entries %d to %d\n", receipt.Revision, receipt.FirstSeq, receipt.LastSeq)
	case errors.Is(err, pawl.ErrNotCommitted):
		fmt.Println("nothing changed; the store goes on:", err)
	case errors.Is(err, pawl.ErrInDoubt):
		fmt.Println("call Recover, then Lookup:", err)
	}
	// Output: revision 1, entries 1 to 2
}

// Update reads, decides and writes, and no other change comes in between.
func ExampleStore_Update() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	type budget struct{ Left int }
	spend := func(call string, n int) error {
		_, err := store.Update(ctx, call, func(v pawl.View) (pawl.Change, error) {
			b, ok, err := pawl.GetJSON[budget](v, "budget.json")
			if err != nil {
				return pawl.Change{}, err
			}
			if !ok {
				b.Left = 10
			}
			if b.Left < n {
				return pawl.Change{}, errors.New("over budget")
			}
			b.Left -= n
			var c pawl.Change
			c.SetJSON("budget.json", b)
			return c, nil
		})
		return err
	}
	fmt.Println(spend("call-1", 7))
	fmt.Println(spend("call-1", 7)) // a retry: the id is known, nothing is spent twice
	fmt.Println(errors.Is(spend("call-2", 7), pawl.ErrNotCommitted))
	b, _, _ := pawl.GetJSON[budget](store.View(), "budget.json")
	fmt.Println("left:", b.Left)
	// Output:
	// <nil>
	// <nil>
	// true
	// left: 3
}

// A process was killed and never heard whether its commit happened. The id tells;
// and to send the same change again is safe in either case.
func ExampleStore_Lookup() {
	defer scratch()()
	ctx := context.Background()
	change := pawl.Change{ID: "charge-42", Entries: [][]byte{[]byte("charged 5 EUR")}}

	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.Commit(ctx, change); err != nil {
		log.Fatal(err)
	}
	store.Close() // the acknowledgement is lost here

	store, err = pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	_, outcome, err := store.Lookup(ctx, "charge-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("charge-42:", outcome)
	receipt, err := store.Commit(ctx, change)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("again:", receipt.Replayed, "revision", receipt.Revision)
	_, outcome, _ = store.Lookup(ctx, "charge-43")
	fmt.Println("charge-43:", outcome)
	// Output:
	// charge-42: committed
	// again: true revision 1
	// charge-43: not committed
}

// The entries are numbered from 1, across commits; a reader that knows how far it
// came goes on from there.
func ExampleView_Entries() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for _, entries := range [][][]byte{{[]byte("a"), []byte("b")}, {[]byte("c")}} {
		if _, err := store.Commit(ctx, pawl.Change{Entries: entries}); err != nil {
			log.Fatal(err)
		}
	}

	for entry, err := range store.View().Entries(1) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s, by revision %d\n", entry.Seq, entry.Data, entry.Revision)
	}
	// Output:
	// 2 b, by revision 1
	// 3 c, by revision 2
}

// The sizes of parts are known without reading them.
func ExampleView_Size() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	change := pawl.Change{Put: map[string][]byte{"plan": []byte("1. look"), "transcript": make([]byte, 200_000)}}
	if _, err := store.Commit(ctx, change); err != nil {
		log.Fatal(err)
	}

	view := store.View()
	for part := range view.Parts() {
		size, _ := view.Size(part)
		fmt.Println(part, size, "in a file of its own:", size > store.Limits().Inline)
	}
	// Output:
	// plan 7 in a file of its own: false
	// transcript 200000 in a file of its own: true
}

// A receipt kept elsewhere, with a customer or in another system, tells later
// whether its commit is still part of the history.
func ExampleView_Contains() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	receipt, err := store.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("order 17")}})
	if err != nil {
		log.Fatal(err)
	}
	text, err := receipt.MarshalText() // what is kept elsewhere
	if err != nil {
		log.Fatal(err)
	}

	var kept pawl.Receipt
	if err := kept.UnmarshalText(text); err != nil {
		log.Fatal(err)
	}
	ok, err := store.View().Contains(kept)
	fmt.Println(ok, err)
	kept.Digest[0] ^= 1 // of another history
	ok, err = store.View().Contains(kept)
	fmt.Println(ok, err)
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleGetJSON() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	type state struct {
		Cursor int
		Done   []string
	}
	var change pawl.Change
	change.SetJSON("state.json", state{Cursor: 2, Done: []string{"a", "b"}})
	if _, err := store.Commit(ctx, change); err != nil {
		log.Fatal(err)
	}

	s, ok, err := pawl.GetJSON[state](store.View(), "state.json")
	fmt.Println(s.Cursor, s.Done, ok, err)
	_, ok, err = pawl.GetJSON[state](store.View(), "other.json")
	fmt.Println(ok, err)
	// Output:
	// 2 [a b] true <nil>
	// false <nil>
}

// Inspect says what Open would do, and changes nothing.
func ExampleInspect() {
	defer scratch()()
	ctx := context.Background()
	look := func() {
		report, err := pawl.Inspect(ctx, "session", "trust", nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(report.Verdict)
		if errors.Is(report.Err, pawl.ErrMissing) {
			fmt.Println("a committed state is gone")
		}
	}
	look()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("x")}}); err != nil {
		log.Fatal(err)
	}
	store.Close()
	look()
	if err := os.Remove(filepath.Join("session", "bundle")); err != nil {
		log.Fatal(err)
	}
	look()
	// Output:
	// create
	// clean
	// refuse
	// a committed state is gone
}

// After ErrInDoubt the store takes no commits until it has settled. Recover does so
// in place, and then the id tells; a commit that did not happen is made again.
func ExampleStore_Recover() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	commit := func(c pawl.Change) (pawl.Receipt, error) {
		receipt, err := store.Commit(ctx, c)
		if !errors.Is(err, pawl.ErrInDoubt) {
			return receipt, err
		}
		if _, err := store.Recover(ctx); err != nil {
			return pawl.Receipt{}, err // the disk is still failing; try Recover later
		}
		return store.Commit(ctx, c) // with an id, this never happens twice
	}
	receipt, err := commit(pawl.Change{ID: "step-1", Entries: [][]byte{[]byte("x")}})
	fmt.Println(receipt.Revision, err)
	// Output: 1 <nil>
}
