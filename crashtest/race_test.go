//go:build race

package crashtest

// raced is true under the race detector, which makes a run ten times slower and
// looks for something else: there, the large explorations stop at their first crash.
const raced = true
