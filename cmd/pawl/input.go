package main

import (
	"context"
	"io"
)

// interruptible is standard input, which an interrupt ends: a read from a terminal or a pipe may
// never come back.
type interruptible struct {
	ctx  context.Context
	from io.Reader

	pieces chan piece // nil: nothing was read yet
	rest   []byte
	err    error
}

type piece struct {
	b   []byte
	err error
}

func (in *interruptible) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if in.pieces == nil {
		in.pieces = make(chan piece)
		go in.pump()
	}
	for len(in.rest) == 0 && in.err == nil {
		select {
		case next := <-in.pieces:
			in.rest, in.err = next.b, next.err
		case <-in.ctx.Done():
			return 0, in.ctx.Err()
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	if n == 0 {
		return 0, in.err
	}
	return n, nil
}

// pump reads until there is an error, or nobody wants any more; a read that does not come
// back stays behind until the process ends.
func (in *interruptible) pump() {
	for {
		b := make([]byte, 1<<16)
		n, err := in.from.Read(b)
		select {
		case in.pieces <- piece{b[:n], err}:
		case <-in.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}
