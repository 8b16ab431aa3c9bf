// Package effect carries what a program does outside of its store (a tool call, a
// message, a payment) across crashes: it is never lost, and never repeated on doubt.
//
// # What cannot be known
//
// A store makes a program's state safe. The world outside takes no part in its commits:
// a process that dies between asking for something and writing the answer down cannot
// know afterwards whether it was done, and neither can one whose connection was cut.
// "You may try again" repeats a charge; "it was probably done" loses it.
//
// # What this package promises
//
// The request is on stable storage before the function that carries it out is called,
// and its result before anybody is told. What was begun and has no recorded result is
// unsettled, and then one of three things happens, which the caller chooses: the world
// is asked (Settle), it is carried out again under the same key (Idempotent), or it is
// parked until somebody decides, and [ErrUnsettled] says so.
//
//   - With an idempotency key that the other side honours: carried out at least once,
//     and one effect to be seen.
//   - Without one: carried out at most once for each time that somebody decides that it
//     may be, and parked when it is in doubt.
//
// Nothing more is promised: nobody can make a call that is not idempotent happen exactly
// once.
//
// # How
//
// [Do] carries out one effect and returns its result, now and after every restart.
// [Outbox.Enqueue] records an effect in the same commit as the state that causes it, and
// [Outbox.Run] carries out what is queued. Both follow one table of transitions
// (transitions in state.go, and docs/effects.md), each of which is one commit with an id
// of its own and one entry in the history that says who, when and why. An effect that is
// not settled is a part of the store, "effects/" and the digest of its key; one that is
// settled is an entry of the history and nothing else, so that a store stays small however
// much was done with it.
//
// An effect is known by its key: another request under the same key is [ErrKeyReused]. Its
// identity, which an operator names and from which the idempotency key is made, is the
// digest of key, destination and body.
package effect
