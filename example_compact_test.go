package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/seed-5cdcd42d/pawl"
)

// Compact drops old entries, and says first what it would drop. Numbers, receipts and ids
// stay good.
func ExampleStore_Compact() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	var first pawl.Receipt
	for _, turn := range []string{"one", "two", "three", "four"} {
		receipt, err := store.Commit(ctx, pawl.Change{
			ID:      "turn-" + turn,
			Entries: [][]byte{[]byte("question " + turn), []byte("answer " + turn)},
		})
		if err != nil {
			log.Fatal(err)
		}
		if turn == "one" {
			first = receipt
		}
	}

	policy := pawl.Policy{KeepLast: 3, DryRun: true}
	report, err := store.Compact(ctx, policy)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("would drop entries %d to %d, and keep %d\n", report.FirstSeq, report.LastSeq, report.Kept)

	policy.DryRun = false
	if _, err := store.Compact(ctx, policy); err != nil {
		log.Fatal(err)
	}
	view := store.View()
	for entry, err := range view.Entries(0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s\n", entry.Seq, entry.Data)
	}
	ok, err := view.Contains(first)
	fmt.Println("the first turn is part of this history:", ok, err)
	_, outcome, err := store.Lookup(ctx, "turn-one")
	fmt.Println("turn-one:", outcome, err)
	// Output:
	// would drop entries 1 to 4, and keep 4
	// 5 question three
	// 6 answer three
	// 7 question four
	// 8 answer four
	// the first turn is part of this history: true <nil>
	// turn-one: committed <nil>
}

// ForgetBefore drops commits altogether. Of their ids it is still known that they were
// used, so that nothing is done twice.
func ExamplePolicy_forgetBefore() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for _, id := range []string{"charge-41", "charge-42", "charge-43"} {
		if _, err := store.Commit(ctx, pawl.Change{ID: id, Entries: [][]byte{[]byte(id)}}); err != nil {
			log.Fatal(err)
		}
	}

	report, err := store.Compact(ctx, pawl.Policy{KeepSince: 3, ForgetBefore: 3})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("forgotten:", report.Forgotten, "up to revision", report.ForgottenTo)
	for commit, err := range store.View().Commits(0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(commit.Version.Revision, commit.ID)
	}
	_, outcome, err := store.Lookup(ctx, "charge-42")
	fmt.Println("charge-42:", outcome, err)
	_, err = store.Commit(ctx, pawl.Change{ID: "charge-42"})
	fmt.Println("made again:", !errors.Is(err, pawl.ErrForgotten))
	// Output:
	// forgotten: 2 up to revision 2
	// 3 charge-43
	// charge-42: forgotten <nil>
	// made again: false
}
