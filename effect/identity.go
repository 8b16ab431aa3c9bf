package effect

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-5cdcd42d/pawl"
)

// Request is what is asked of the world outside: where it goes, and what it says.
type Request struct {
	// Destination names who is asked, at most 255 bytes of UTF-8 without control
	// characters. An Outbox has a handler for each.
	Destination string

	// Body is what is asked. It is kept in the store until the effect is settled, and
	// written again with each transition: let a large one name where it is.
	Body []byte
}

const mostText = 255 // bytes in a key and in a destination

// scheme is how the identity of an effect that is begun now is made. A scheme never
// changes and is never removed: an effect keeps the one that it was begun under.
var scheme = "pawl-effect-1"

// schemes are all there ever were.
var schemes = map[string]func(key string, r Request) pawl.Digest{
	"pawl-effect-1": func(key string, r Request) pawl.Digest {
		h := sha256.New()
		for _, field := range [][]byte{[]byte("pawl-effect-1"), []byte(key), []byte(r.Destination), r.Body} {
			// With its length before it, no field can pass for the end of another.
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
			h.Write(field)
		}
		return pawl.Digest(h.Sum(nil))
	},
}

// identify returns the identity under a named scheme; false when there is no such scheme
// here.
func identify(scheme, key string, r Request) (pawl.Digest, bool) {
	f, ok := schemes[scheme]
	if !ok {
		return pawl.Digest{}, false
	}
	return f(key, r), true
}

// idempotencyKey is what the other side is given: the same in every attempt.
func idempotencyKey(identity pawl.Digest) string { return hex.EncodeToString(identity[:]) }

// partPrefix is what the names of the parts begin with that hold effects.
const partPrefix = "effects/"

// keyHash stands for a key in the names of parts and commits. It is the same under every
// scheme, so that an effect is found whatever it was begun under; and it is of the key
// alone, so that another request under the same key meets the first one.
func keyHash(key string) string {
	h := sha256.Sum256([]byte("pawl effect key\n" + key))
	return hex.EncodeToString(h[:])
}

func partOf(key string) string { return partPrefix + keyHash(key) }

// The ids of the commits that move an effect. Each can be made once in the life of a
// store, whoever tries.
func commitID(key, what string) string { return "effect/" + keyHash(key) + "/" + what }

func endID(key string) string { return commitID(key, "end") }

// check refuses a request that could not be recorded, or not be shown.
func check(key string, r Request) error {
	for _, f := range []struct{ what, text string }{{"key", key}, {"destination", r.Destination}} {
		switch {
		case f.text == "":
			return fmt.Errorf("%w: the %s is empty", pawl.ErrInvalid, f.what)
		case len(f.text) > mostText:
			return fmt.Errorf("%w: the %s has %d bytes, %d at most", pawl.ErrInvalid, f.what, len(f.text), mostText)
		case !utf8.ValidString(f.text), strings.ContainsFunc(f.text, unicode.IsControl):
			return fmt.Errorf("%w: the %s %.80q is not UTF-8 without control characters", pawl.ErrInvalid, f.what, f.text)
		}
	}
	return nil
}
