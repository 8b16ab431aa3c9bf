//go:build unix || windows

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// ends are the signals that end a command in good order.
func ends() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		all = append(all, syscall.SIGHUP)
	}
	return all
}
