//go:build ignore

// Jsprobe is run by .ci/run as a js/wasm program. It opens a store on a
// platform without locks or flushes, and wants to be told so.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-5cdcd42d/pawl"
)

func main() {
	base, err := os.MkdirTemp("", "pawl-js-*")
	if err != nil {
		fail(err)
	}
	defer os.RemoveAll(base)

	s, err := pawl.Open(context.Background(), filepath.Join(base, "session"), filepath.Join(base, "trust"), nil)
	switch {
	case err == nil:
		s.Close()
		fail("Open succeeded")
	case !errors.Is(err, pawl.ErrUnsupported) && !errors.Is(err, errors.ErrUnsupported):
		fail("Open failed, but does not say that the platform is unsupported:", err)
	}
	fmt.Println("Open says:", err)

	// A refusal that left files behind would be half a store.
	left, err := os.ReadDir(base)
	if err != nil || len(left) > 0 {
		fail("Open left something behind:", left, err)
	}
}

func fail(v ...any) {
	fmt.Println(v...)
	os.Exit(1)
}
