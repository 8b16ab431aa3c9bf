package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
)

// A backup is a tar stream that holds one state whole:
//
//	bundle             as a publish would write it, of epoch 0: it was never published
//	parts/…            the files that it names, in the order of their names
//	segments/…         likewise, in the order of history
//	manifest.json      all of the above with size and SHA-256
//
// Headers say nothing that depends on when or where it was made, so the same state in the
// same files gives the same bytes. A reader accepts headers, order, filling and end only as
// they are written, holds each file against the bundle, and the manifest against the files:
// a backup that differs anywhere, or ends early, is refused.
const (
	manifestName  = "manifest.json"
	backupVersion = 1
)

// manifest is the last file of a backup.
type manifest struct {
	Format   int            `json:"pawl_backup"`
	Store    string         `json:"store"`
	Revision Revision       `json:"revision"`
	History  Digest         `json:"history"`
	LastSeq  Seq            `json:"last_seq"`
	Files    []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Digest Digest `json:"digest"`
}

// BackupInfo says what a backup holds.
type BackupInfo struct {
	StoreID string  `json:"store_id"`
	Version Version `json:"version"`
	LastSeq Seq     `json:"last_seq"`
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`  // of the whole backup
	Digest  Digest  `json:"digest"` // likewise
}

// Backup writes the newest acknowledged state to w, whole, as a tar stream that Restore
// and CheckBackup read. Commits go on meanwhile, and are not in it. Everything is held
// against its digest while it is read: damage is ErrDamaged, and never gets into a backup.
//
// When it returns nil, all was written to w; that w has it safe is for the caller to see
// to. After an error what was written is not a backup, and is refused as one.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	if err := s.backup(ctx, w); err != nil {
		return fail("backup", s.at.dir, err)
	}
	return nil
}

func (s *Store) backup(ctx context.Context, w io.Writer) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	var ev evidence
	err := s.join(ctx)
	if err == nil {
		ev, err = s.openForVerify()
	}
	s.give()
	defer ev.close()
	if err != nil {
		return err
	}
	return ev.backup(ctx, w, s.dir, s.opts.Limits.Inline)
}

// Backup writes the newest state that can be told to w, as Store.Backup does, without a
// lock and beside whoever writes. The errors are also those of Refresh.
func (r *Reader) Backup(ctx context.Context, w io.Writer) error {
	if err := r.backup(ctx, w); err != nil {
		return fail("backup", r.at.dir, err)
	}
	return nil
}

func (r *Reader) backup(ctx context.Context, w io.Writer) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	ev, _, err := r.evidence(ctx)
	dir := r.dir
	r.give()
	defer ev.close()
	if err != nil {
		return err
	}
	return ev.backup(ctx, w, dir, r.opts.Limits.Inline)
}

// archive writes a tar stream, or makes one again, and keeps the manifest of it.
type archive struct {
	ctx      context.Context
	tar      *tarWriter
	manifest manifest
	hash     hash.Hash // of the present file
}

func newArchive(ctx context.Context, w io.Writer) *archive {
	return &archive{ctx: ctx, tar: &tarWriter{w: w}, manifest: manifest{Format: backupVersion}}
}

func (a *archive) begin(name string, size int64) error {
	a.hash = sha256.New()
	a.manifest.Files = append(a.manifest.Files, manifestFile{Name: name, Size: size})
	return a.tar.head(tarHead{name, size})
}

func (a *archive) Write(b []byte) (int, error) {
	if a.ctx.Err() != nil {
		return 0, ctxError(a.ctx)
	}
	a.hash.Write(b)
	return a.tar.Write(b)
}

func (a *archive) end() { a.manifest.Files[len(a.manifest.Files)-1].Digest = Digest(a.hash.Sum(nil)) }

// close writes the manifest about a state, and the end of the stream.
func (a *archive) close(st *state) error {
	b := a.text(st)
	if err := a.tar.head(tarHead{manifestName, int64(len(b))}); err != nil {
		return err
	}
	if _, err := a.tar.Write(b); err != nil {
		return err
	}
	return a.tar.close()
}

func (a *archive) text(st *state) []byte {
	v := st.version()
	m := a.manifest
	m.Store, m.Revision, m.History, m.LastSeq = st.id.String(), v.Revision, v.Digest, st.nextSeq()-1
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // numbers and names
	}
	return append(b, '\n')
}

// canonical is the state as the bundle of a backup has it.
func (s *state) canonical(dir *directory, inline int64) (st *state, large map[string][]byte) {
	c := *s
	c.epoch, c.replaced, c.parts = 0, Digest{}, maps.Clone(s.parts)
	large = map[string][]byte{}
	for name, p := range c.parts {
		if p.file == nil && int64(len(p.data)) > inline {
			file := newPartFile(p.ref.digest, dir)
			large[file.name] = p.data
			p.file, p.data = file, nil
			c.parts[name] = p
		}
	}
	return &c, large
}

func (ev *evidence) backup(ctx context.Context, w io.Writer, dir *directory, inline int64) error {
	if ev.state == nil || dir == nil || ev.state.version().Revision == 0 {
		return &Error{Kind: ErrNotExist, Cause: errorString("nothing was committed yet"), Hint: hintNothing}
	}
	st, large := ev.state.canonical(dir, inline)
	a := newArchive(ctx, w)
	raw := encodeBundle(st)
	if err := a.begin(bundleName, int64(len(raw))); err != nil {
		return err
	}
	if _, err := a.Write(raw); err != nil {
		return err
	}
	a.end()
	files := map[string]*part{}
	for i := range ev.parts {
		files[ev.parts[i].file.name] = &ev.parts[i]
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(files)), maps.Keys(large))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := a.part(name, files[name], large[name]); err != nil {
			return err
		}
	}
	for _, g := range ev.segments {
		if err := a.segment(g); err != nil {
			return err
		}
	}
	return a.close(st)
}

// part adds the file of a part, which has it, or whose bytes are in memory.
func (a *archive) part(name string, p *part, data []byte) error {
	size := int64(len(data))
	if p != nil {
		size = int64(p.ref.size)
	}
	if err := a.begin(partsName+"/"+name, size); err != nil {
		return err
	}
	defer a.end()
	if p == nil {
		_, err := a.Write(data)
		return err
	}
	var failed error
	e := p.read(a.ctx, func(b []byte) {
		if failed == nil {
			_, failed = a.Write(b)
		}
	})
	if failed != nil {
		return failed
	}
	return plainNil(e)
}

// segment adds a segment, each chunk held against its digest.
func (a *archive) segment(g *segment) error {
	l, e := g.layout()
	if e != nil {
		return e
	}
	if err := a.begin(segmentsName+"/"+g.file.name, g.size); err != nil {
		return err
	}
	defer a.end()
	var room []byte
	for at := int64(0); at < l.end; at += int64(len(room)) {
		n := min(int64(largeSpan), l.end-at)
		b, e := g.read(at, n, room)
		if e != nil {
			return g.narrow(e)
		}
		if _, err := a.Write(b); err != nil {
			return err
		}
		room = b
	}
	foot, err := g.readFooter()
	if err != nil {
		return g.file.damaged(err, g.whole(0, g.size))
	}
	_, err = a.Write(foot)
	return err
}

// CheckBackup reads a backup to its end and checks all of it; nothing is written. When it
// returns nil, Restore can restore it as far as it depends on the backup. One that was cut
// off, or altered anywhere, is ErrDamaged. Of opts it uses Limits.
func CheckBackup(ctx context.Context, from io.Reader, opts *Options) (BackupInfo, error) {
	o, err := opts.complete()
	if err == nil {
		var b *backedUp
		if b, err = readBackup(ctx, from, &o.Limits, nil); err == nil {
			return b.info, nil
		}
	}
	return BackupInfo{}, fail("check backup", "", err)
}

// backedUp is a backup that was read to its end.
type backedUp struct {
	info   BackupInfo
	raw    []byte // the bundle
	files  map[string]manifestFile
	places map[string]int64 // where the bytes of each begin
}

// unpacker gets the files of a backup, besides its bundle, as they are read.
type unpacker func(name string, size int64, body io.Reader) error

// readBackup reads a backup. Whether it is one is known only at the end.
func readBackup(ctx context.Context, from io.Reader, l *Limits, each unpacker) (*backedUp, error) {
	in, count := sha256.New(), &counter{}
	all := io.TeeReader(bounded{ctx, from}, io.MultiWriter(in, count))
	// The manifest is made again of what is read.
	r, a := &tarReader{r: all}, newArchive(ctx, io.Discard)
	b := &backedUp{files: map[string]manifestFile{}, places: map[string]int64{}}
	st, err := b.read(r, a, count, l, each)
	if err == nil {
		for _, f := range a.manifest.Files {
			b.files[f.Name] = f
		}
		b.info = BackupInfo{StoreID: st.id.String(), Version: st.version(), LastSeq: st.nextSeq() - 1,
			Files: len(a.manifest.Files), Bytes: count.n, Digest: Digest(in.Sum(nil))}
		return b, nil
	}
	var e *Error
	var input fromOutside
	switch {
	case ctx.Err() != nil:
		return nil, &Error{Cause: ctxError(ctx)}
	case errors.As(err, &e):
		return nil, err
	case errors.As(err, &input):
		return nil, input.err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("it ends after %d bytes", count.n)
	}
	return nil, &Error{Kind: ErrDamaged, Cause: fmt.Errorf("the backup is not whole: %w", err), Hint: hintBackup}
}

// counter counts what is written to it.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

// bounded reads until the context ends. An error of the reader is not one of the backup.
type bounded struct {
	ctx context.Context
	r   io.Reader
}

type fromOutside struct{ err error }

func (f fromOutside) Error() string { return f.err.Error() }
func (f fromOutside) Unwrap() error { return f.err }

func (b bounded) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, ctxError(b.ctx)
	}
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fromOutside{err}
	}
	return n, err
}

// next finds the next file.
func (b *backedUp) next(r *tarReader, at *counter) (tarHead, error) {
	h, err := r.next()
	b.places[h.name] = at.n
	return h, err
}

// read goes through the files, which come in the order of the bundle, and holds each
// against what the bundle says of it.
func (b *backedUp) read(r *tarReader, a *archive, at *counter, l *Limits, each unpacker) (*state, error) {
	h, err := b.next(r, at)
	if err != nil {
		return nil, err
	}
	if h.name != bundleName {
		return nil, fmt.Errorf("it begins with %q", clip(h.name, 80))
	}
	// What was in a journal is in the bundle of a backup.
	if most := l.Bundle + l.Journal + l.Unsealed; h.size > most {
		return nil, overLimit(tooLarge("the bundle has %d bytes, and Limits.Bundle, Journal and Unsealed are %d", h.size, most))
	}
	if err := a.begin(bundleName, h.size); err != nil {
		return nil, err
	}
	var raw bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(&raw, a), r); err != nil {
		return nil, err
	}
	a.end()
	b.raw = raw.Bytes()
	st, _, err := decodeBundle(b.raw, &directory{})
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if st.version().Revision == 0 {
		return nil, errorString("its bundle holds no commit")
	}
	for _, want := range st.backedUpFiles() {
		h, err := b.next(r, at)
		if err != nil {
			return nil, err
		}
		if h.name != want.name || h.size != want.size {
			return nil, fmt.Errorf("%q, of %d bytes, is where %q, of %d, should be", clip(h.name, 80), h.size, want.name, want.size)
		}
		if err := a.begin(h.name, h.size); err != nil {
			return nil, err
		}
		body := io.Reader(io.TeeReader(r, a))
		var chunks *chunker
		if want.segment != nil {
			chunks = newChunker(want.segment)
			body = io.TeeReader(body, chunks)
		}
		if each != nil {
			if err := each(h.name, h.size, body); err != nil {
				return nil, err
			}
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return nil, err
		}
		a.end()
		if err := b.fits(h, a, chunks); err != nil {
			return nil, err
		}
	}
	if h, err = b.next(r, at); err != nil {
		return nil, err
	}
	want := a.text(st)
	if h.name != manifestName || h.size != int64(len(want)) {
		return nil, fmt.Errorf("%q is where the manifest should be", clip(h.name, 80))
	}
	if got, err := io.ReadAll(r); err != nil {
		return nil, err
	} else if !bytes.Equal(got, want) {
		return nil, errorString("its manifest is not that of its files")
	}
	if _, err := r.next(); err == nil {
		return nil, errorString("a file follows the manifest")
	} else if err != io.EOF {
		return nil, err
	}
	return st, nil
}

// wanted is a file that belongs into a backup.
type wanted struct {
	name    string
	size    int64
	segment *segment // nil: of a part
}

// backedUpFiles are the files of a backup besides its bundle, in order.
func (s *state) backedUpFiles() (files []wanted) {
	parts := map[string]int64{}
	for _, p := range s.parts {
		if p.file != nil {
			parts[p.file.name] = int64(p.ref.size)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		files = append(files, wanted{name: partsName + "/" + name, size: parts[name]})
	}
	for _, g := range s.sealed {
		files = append(files, wanted{name: segmentsName + "/" + g.file.name, size: g.size, segment: g})
	}
	return files
}

// fits holds a file that was read against its name, or against the bundle.
func (b *backedUp) fits(h tarHead, a *archive, chunks *chunker) error {
	f := a.manifest.Files[len(a.manifest.Files)-1]
	if chunks != nil {
		return chunks.check()
	}
	if partsName+"/"+hex.EncodeToString(f.Digest[:]) != h.name {
		return fmt.Errorf("%q does not have the digest that it is named by", clip(h.name, 80))
	}
	return nil
}

// chunker checks a segment as it goes by: each chunk against the footer, which comes last.
type chunker struct {
	g      *segment
	at     int64
	hash   hash.Hash
	chunks []byte
	foot   []byte
}

func newChunker(g *segment) *chunker { return &chunker{g: g, hash: sha256.New()} }

func (c *chunker) Write(b []byte) (int, error) {
	n, end := len(b), c.g.size-int64(c.g.footer)
	for len(b) > 0 && c.at < end {
		step := min(int64(len(b)), chunkSize-c.at%chunkSize, end-c.at)
		c.hash.Write(b[:step])
		b, c.at = b[step:], c.at+step
		if c.at%chunkSize == 0 || c.at == end {
			c.chunks = c.hash.Sum(c.chunks)
			c.hash.Reset()
		}
	}
	c.at += int64(len(b))
	if c.at > c.g.size {
		return 0, fmt.Errorf("%s is larger than the bundle says", c.g.file.name)
	}
	c.foot = append(c.foot, b...)
	return n, nil
}

func (c *chunker) check() error {
	if Digest(sha256.Sum256(c.foot)) != c.g.digest {
		return fmt.Errorf("%s does not have the footer that the bundle names", c.g.file.name)
	}
	l, err := decodeFooter(c.foot, &c.g.row, c.g.from)
	if err == nil && !bytes.Equal(l.chunks, c.chunks) {
		err = fmt.Errorf("%s does not have the bytes that its footer names", c.g.file.name)
	}
	return err
}
