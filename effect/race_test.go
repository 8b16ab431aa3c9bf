//go:build race

package effect_test

const raced = true
