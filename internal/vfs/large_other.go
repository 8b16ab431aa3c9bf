//go:build (unix || windows) && !linux

package vfs

const largeFile = 0
