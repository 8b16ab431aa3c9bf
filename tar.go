package pawl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The tar stream of a backup: USTAR with one kind of header, which says nothing but name
// and size. A reader that knows no other cannot be asked for anything else, and archive/tar
// would bring os/user, and with it cgo, into every program that uses pawl.

const (
	tarBlock   = 512
	tarName    = 100
	tarLargest = 1<<33 - 1 // 11 octal digits
)

// tarHead is the header of a file.
type tarHead struct {
	name string
	size int64
}

// encode makes the block of a header: POSIX.1-1988, with mode 0600, and no owner, time,
// link or device.
func (h tarHead) encode() ([]byte, error) {
	if len(h.name) == 0 || len(h.name) > tarName || h.size < 0 || h.size > tarLargest {
		return nil, fmt.Errorf("%q, of %d bytes, does not go into a tar file", clip(h.name, 2*tarName), h.size)
	}
	b := make([]byte, tarBlock)
	copy(b, h.name)
	copy(b[100:], "0000600\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x0000000000000\x00", h.size))
	copy(b[148:], "        0")
	copy(b[257:], "ustar\x0000")
	copy(b[329:], "0000000\x000000000\x00")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b, nil
}

// decodeTarHead reads the block of a header, if it is one that encode makes.
func decodeTarHead(b []byte) (h tarHead, err error) {
	name, _, _ := bytes.Cut(b[:tarName], []byte{0})
	h.name = string(name)
	h.size, err = strconv.ParseInt(string(b[124:135]), 8, 64)
	var again []byte
	if err == nil {
		again, err = h.encode()
	}
	if err != nil || !bytes.Equal(again, b) {
		return h, fmt.Errorf("%q is not stored as Backup stores files", h.name)
	}
	return h, nil
}

// tarWriter writes a tar stream.
type tarWriter struct {
	w    io.Writer
	left int64 // of the present file
	pad  int64
}

func padding(size int64) int64 { return (tarBlock - size%tarBlock) % tarBlock }

func (t *tarWriter) head(h tarHead) error {
	b, err := h.encode()
	if err != nil {
		return err
	}
	if err := t.finish(); err != nil {
		return err
	}
	t.left, t.pad = h.size, padding(h.size)
	_, err = t.w.Write(b)
	return err
}

func (t *tarWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > t.left {
		return 0, errorString("there is more of a file than its header says")
	}
	n, err := t.w.Write(b)
	t.left -= int64(n)
	return n, err
}

// finish ends the present file.
func (t *tarWriter) finish() error {
	if t.left > 0 {
		return errorString("there is less of a file than its header says")
	}
	_, err := t.w.Write(make([]byte, t.pad))
	t.pad = 0
	return err
}

// close ends the stream: two blocks of zeros.
func (t *tarWriter) close() error {
	if err := t.finish(); err != nil {
		return err
	}
	_, err := t.w.Write(make([]byte, 2*tarBlock))
	return err
}

// tarReader reads a tar stream, file by file.
type tarReader struct {
	r    io.Reader
	left int64 // of the present file
	pad  int64
}

// next finds the next file; io.EOF: the end of the stream was read, and nothing follows.
func (t *tarReader) next() (tarHead, error) {
	b := make([]byte, tarBlock)
	if _, err := io.CopyN(io.Discard, t.r, t.left); err != nil {
		return tarHead{}, noEnd(err)
	}
	if _, err := io.ReadFull(t.r, b[:t.pad]); err != nil {
		return tarHead{}, noEnd(err)
	}
	if !bytes.Equal(b[:t.pad], make([]byte, t.pad)) {
		return tarHead{}, errorString("there is something between two of its files")
	}
	t.left, t.pad = 0, 0
	if _, err := io.ReadFull(t.r, b); err != nil {
		return tarHead{}, noEnd(err)
	}
	if !bytes.Equal(b, make([]byte, tarBlock)) {
		h, err := decodeTarHead(b)
		t.left, t.pad = h.size, padding(h.size)
		return h, err
	}
	if _, err := io.ReadFull(t.r, b); err != nil {
		return tarHead{}, noEnd(err)
	}
	if !bytes.Equal(b, make([]byte, tarBlock)) {
		return tarHead{}, errorString("its end is not that of a tar file")
	}
	if n, err := io.Copy(io.Discard, t.r); err != nil || n > 0 {
		return tarHead{}, errors.Join(errorString("something follows its end"), err)
	}
	return tarHead{}, io.EOF
}

func (t *tarReader) Read(b []byte) (int, error) {
	if t.left == 0 {
		return 0, io.EOF
	}
	n, err := t.r.Read(b[:min(int64(len(b)), t.left)])
	t.left -= int64(n)
	return n, noEnd(err)
}

// noEnd is the error for a stream that ends where it must not.
func noEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
