//go:build !unix && !windows

package main

import "os"

// ends are the signals that end a command in good order.
func ends() []os.Signal { return []os.Signal{os.Interrupt} }
