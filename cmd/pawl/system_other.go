//go:build !linux

package main

// mountedFiles: single files are mounted on Linux only.
func mountedFiles(string) (string, error) { return "", nil }
