package pawl

import (
	"bytes"
	"crypto/sha256"

	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// known is a state that was read and held against its digest, and where on disk it ends.
type known struct {
	state  *state
	root   Root
	bundle Root // what a trust record said when the bundle was published
}

// follow reads what was appended to the journal after a known state, up to a root that
// trust names. Nothing that is known is read again: the frames go on from its disk
// digest, and end with that of the root, or they are not accepted. It reports false
// where no such frames are: then the store has to be read whole, which tells why.
func (k *known) follow(dir vfs.Dir, limit int64, to Root) ([]appended, bool) {
	if k.root == to {
		return nil, true
	}
	if k.bundle.Epoch != to.Epoch || k.root.Journal >= to.Journal || to.Journal > limit {
		return nil, false
	}
	f, err := dir.Open(journalName(to.Epoch))
	if err != nil {
		return nil, false
	}
	defer f.Close()
	root, at := k.root, k.root.Journal
	if at == 0 {
		info, err := f.Stat()
		if err != nil {
			return nil, false
		}
		header, err := readFull(f, headerSize)
		if err != nil || !bytes.Equal(header, journalHeader(k.state.id, k.bundle, k.state.end(), info.Size)) {
			return nil, false
		}
		root.Digest, at = extendDigest(sha256.New(), root.Digest, header), blockSize
	}
	raw := make([]byte, to.Journal-at)
	if readAt(f, raw, at) != nil {
		return nil, false
	}
	var w walked
	w.walkFrames(raw, at, root, k.state.end(), map[string]bool{})
	if n := len(w.steps); w.bad != nil || n == 0 || w.steps[n-1].root != to {
		return nil, false
	}
	return w.steps, true
}

// with is the state after more commits.
func (s *state) with(steps []appended) *state {
	if len(steps) == 0 {
		return s
	}
	g := s.grow()
	for _, step := range steps {
		g.add(step.record, step.data)
	}
	return &g.state
}
