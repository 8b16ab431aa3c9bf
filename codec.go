package pawl

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// writer appends the primitives of the binary formats.
type writer struct{ b []byte }

func (w *writer) u16(v uint16)   { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32)   { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64)   { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) bytes(p []byte) { w.b = append(w.b, p...) }
func (w *writer) str(s string) {
	w.u16(uint16(len(s)))
	w.b = append(w.b, s...)
}

// reader takes the primitives of the binary formats. Its first error sticks, and
// every length is held against what is left before anything is made of it.
type reader struct {
	b   []byte
	at  int
	err error
}

func (d *reader) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// plain is what an error says, without the class of the call that found it: a bad
// name in a file is not the caller's bad argument.
func plain(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Cause != nil {
		return errorString(e.Cause.Error())
	}
	return err
}

func (d *reader) left() uint64 { return uint64(len(d.b) - d.at) }

// bytes returns the next n bytes without copying them.
func (d *reader) bytes(n uint64) []byte {
	if d.err == nil && n > d.left() {
		d.fail(fmt.Errorf("%d bytes wanted at offset %d, %d there", n, d.at, d.left()))
	}
	if d.err != nil {
		return nil
	}
	p := d.b[d.at : d.at+int(n) : d.at+int(n)]
	d.at += int(n)
	return p
}

func (d *reader) u16() uint16 {
	if p := d.bytes(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (d *reader) u32() uint32 {
	if p := d.bytes(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *reader) u64() uint64 {
	if p := d.bytes(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (d *reader) str() string { return string(d.bytes(uint64(d.u16()))) }

func (d *reader) digest(to *Digest) { copy(to[:], d.bytes(uint64(len(to)))) }

// count reads a u32 number of items of at least size bytes each.
func (d *reader) count(size uint64) int {
	n := d.u32()
	if d.err == nil && uint64(n)*size > d.left() {
		d.fail(fmt.Errorf("%d items at offset %d do not fit in %d bytes", n, d.at, d.left()))
	}
	if d.err != nil {
		return 0
	}
	return int(n)
}

// end refuses bytes that nothing asked for.
func (d *reader) end() {
	if d.err == nil && d.left() != 0 {
		d.fail(fmt.Errorf("%d bytes too many at offset %d", d.left(), d.at))
	}
}
