package pawl

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// Stats counts what a Store did since it was opened.
type Stats struct {
	Commits      int64 // changes made; replays and empty changes are not counted
	Replays      int64 // acknowledged again for their id
	NotCommitted int64 // failed with ErrNotCommitted
	InDoubt      int64 // failed with ErrInDoubt

	Batches   int64 // times that commits were appended to the journal, one or many at once
	Publishes int64 // times that the bundle was published
	Waiting   int64 // commits that wait now to be written with the next batch

	// ConfirmPending says that the newest confirm was written and its flush is still
	// to come, with the next commit or about a millisecond after the last one.
	ConfirmPending bool
	ConfirmSyncs   int64 // flushes for a confirm alone: when idle, or for SyncConfirm

	Seals         int64 // segments made, those made of smaller ones included
	Segments      int   // that the state has its older history in
	SegmentBytes  int64
	PartFiles     int // parts that have a file of their own
	PartFileBytes int64

	FileSyncs    int64 // flushes of files
	DirSyncs     int64 // flushes of directories
	BytesWritten int64 // to all files, names and metadata aside
	BytesBlocks  int64 // of these, what fills blocks: trust records, zeros of a journal, the rest of a block

	CommitTime time.Duration // spent in writing successful commits; those of a batch each count all of it
	OpenTime   time.Duration // spent in Open

	Store, Trust Durability // of the two directories, as probed by Open
}

// Durability is what a directory's file system can do.
type Durability struct {
	FileSystem string // its type: "ext4", "nfs", …
	Known      bool   // known to lock and flush as pawl needs; else only probed
	Dir        bool   // directories can be flushed: names survive a power cut
}

// counts are the counters behind Stats; they are safe for concurrent use.
type counts struct {
	commits, replays, notCommitted, inDoubt atomic.Int64
	batches, publishes, waiting, seals      atomic.Int64
	confirmSyncs, fileSyncs, dirSyncs       atomic.Int64
	bytes, blocks                           atomic.Int64
	retired                                 atomic.Int64 // files that have no name any more, and may be open
	commitTime                              atomic.Int64
}

// Stats returns the counters as they are now. It never waits for a commit.
func (s *Store) Stats() Stats {
	c := s.counts
	stats := Stats{
		Commits:      c.commits.Load(),
		Replays:      c.replays.Load(),
		NotCommitted: c.notCommitted.Load(),
		InDoubt:      c.inDoubt.Load(),
		Batches:      c.batches.Load(),
		Publishes:    c.publishes.Load(),
		Waiting:      c.waiting.Load(),
		ConfirmSyncs: c.confirmSyncs.Load(),
		FileSyncs:    c.fileSyncs.Load(),
		DirSyncs:     c.dirSyncs.Load(),
		BytesWritten: c.bytes.Load(),
		BytesBlocks:  c.blocks.Load(),
		Seals:        c.seals.Load(),
		CommitTime:   time.Duration(c.commitTime.Load()),
		OpenTime:     s.openTime,

		ConfirmPending: s.trust.behind.Load(),
		Store:          durability(s.dir),
		Trust:          durability(s.trustDir),
	}
	st := s.state.Load()
	stats.Segments = len(st.sealed)
	for _, g := range st.sealed {
		stats.SegmentBytes += g.size
	}
	stats.PartFiles, stats.PartFileBytes = st.partFiles(math.MaxInt64)
	return stats
}

func durability(d *directory) Durability {
	return Durability{FileSystem: d.system.Type, Known: d.system.Class == vfs.Local, Dir: !d.noSync.Load()}
}
