package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-5cdcd42d/pawl"
)

// upToRevision opens the store, makes commits up to a revision, and closes it.
func upToRevision(ctx context.Context, upTo pawl.Revision) (receipts []pawl.Receipt) {
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	for store.View().Version().Revision < upTo {
		n := store.View().Version().Revision + 1
		r, err := store.Commit(ctx, pawl.Change{Put: map[string][]byte{"count": fmt.Append(nil, n)}})
		if err != nil {
			log.Fatal(err)
		}
		receipts = append(receipts, r)
	}
	if err := store.Close(); err != nil {
		log.Fatal(err)
	}
	return receipts
}

// A backup is written beside commits, checked without a store, and restored. Over a store
// that went on, going back is declared: what is given up is named, its number is not used
// again, and its receipt is void.
func ExampleRestore() {
	defer scratch()()
	ctx := context.Background()
	upToRevision(ctx, 2)
	reader, err := pawl.OpenReader(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	var backup bytes.Buffer
	if err := errors.Join(reader.Backup(ctx, &backup), reader.Close()); err != nil {
		log.Fatal(err)
	}
	info, err := pawl.CheckBackup(ctx, bytes.NewReader(backup.Bytes()), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the backup holds revision", info.Version.Revision)
	lost := upToRevision(ctx, 3)[0]

	from := bytes.NewReader(backup.Bytes())
	plan, err := pawl.Restore(ctx, "session", "trust", nil, from, pawl.Decision{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("would give up revisions", plan.LostFrom, "to", plan.LostTo)
	done, err := pawl.Restore(ctx, "session", "trust", nil, from, pawl.Decision{Digest: plan.Trusted.Digest, Reason: "revision 3 was a mistake"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("now at revision", done.Version.Revision)

	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	count, _, err := store.View().Get("count")
	fmt.Println("count", string(count), err)
	ok, err := store.View().Contains(lost)
	fmt.Println("revision 3 is part of this history:", ok, err)
	// Output:
	// the backup holds revision 2
	// would give up revisions 3 to 3
	// now at revision 4
	// count 2 <nil>
	// revision 3 is part of this history: false <nil>
}

// Backup writes a tar file, of which any tar program can list what is in it.
func ExampleStore_Backup() {
	defer scratch()()
	ctx := context.Background()
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if _, err := store.Commit(ctx, pawl.Change{Entries: [][]byte{[]byte("one")}}); err != nil {
		log.Fatal(err)
	}
	f, err := os.Create("backup.tar")
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(store.Backup(ctx, f), f.Sync(), f.Close()); err != nil {
		log.Fatal(err)
	}
	if f, err = os.Open("backup.tar"); err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	info, err := pawl.CheckBackup(ctx, f, nil)
	fmt.Println(info.Files, "file, last seq", info.LastSeq, err)
	// Output:
	// 1 file, last seq 1 <nil>
}

// The trust file is lost. What is in the store directory is trusted because somebody says
// so, who has looked at it and names it.
func ExampleAdopt() {
	defer scratch()()
	ctx := context.Background()
	upToRevision(ctx, 3)
	if err := os.Remove(filepath.Join("trust", "session.trust")); err != nil {
		log.Fatal(err)
	}
	_, err := pawl.Open(ctx, "session", "trust", nil)
	fmt.Println("untrusted:", errors.Is(err, pawl.ErrUntrusted))

	plan, err := pawl.Adopt(ctx, "session", "trust", nil, pawl.Decision{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("could adopt revision", plan.From.Revision)
	_, err = pawl.Adopt(ctx, "session", "trust", nil, pawl.Decision{Digest: plan.Chosen.Digest, Reason: "the trust disk is gone"})
	if err != nil {
		log.Fatal(err)
	}
	store, err := pawl.Open(ctx, "session", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	fmt.Println("at revision", store.View().Version().Revision)
	// Output:
	// untrusted: true
	// could adopt revision 3
	// at revision 3
}

// A file that is in the way is moved, and not deleted.
func ExampleQuarantine() {
	defer scratch()()
	ctx := context.Background()
	upToRevision(ctx, 1)
	if err := os.WriteFile(filepath.Join("session", "notes.txt"), []byte("whose is this?"), 0o600); err != nil {
		log.Fatal(err)
	}
	plan, err := pawl.Quarantine(ctx, "session", "trust", nil, "notes.txt", pawl.Decision{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	done, err := pawl.Quarantine(ctx, "session", "trust", nil, "notes.txt", pawl.Decision{Digest: plan.Chosen.Digest, Reason: "in the way"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(done.SetAside, " "))
	// Output:
	// quarantine/notes.txt
}

// The store is called after its directory, and so is its trust file.
func ExampleRename() {
	defer scratch()()
	ctx := context.Background()
	upToRevision(ctx, 2)
	plan, err := pawl.Rename(ctx, "session", "trust", nil, "finished", "", pawl.Decision{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pawl.Rename(ctx, "session", "trust", nil, "finished", "", pawl.Decision{Digest: plan.Trusted.Digest, Reason: "it is finished"}); err != nil {
		log.Fatal(err)
	}
	report, err := pawl.Inspect(ctx, "finished", "trust", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Verdict, report.Confirmed.Revision)
	// Output:
	// clean 2
}

// Remove takes away what pawl has made.
func ExampleRemove() {
	defer scratch()()
	ctx := context.Background()
	upToRevision(ctx, 2)
	plan, err := pawl.Remove(ctx, "session", "trust", nil, pawl.Decision{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pawl.Remove(ctx, "session", "trust", nil, pawl.Decision{Digest: plan.Trusted.Digest, Reason: "no longer needed"}); err != nil {
		log.Fatal(err)
	}
	_, err = os.Stat("session")
	fmt.Println("gone:", errors.Is(err, os.ErrNotExist))
	// Output:
	// gone: true
}
