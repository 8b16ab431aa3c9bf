//go:build !race

package crashtest

const raced = false
