package pawl

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// goldenSlot is a record with every field in use.
func goldenSlot() trustRecord {
	return trustRecord{
		store: goldenID, sequence: 9,
		confirmed: Root{Revision: 17, Epoch: 16, Digest: Digest{1}}, history: Digest{2},
		pending: Root{Revision: 18, Epoch: 17, Digest: Digest{3}}, commits: 3,
		ids: []string{"a", `say "ü"`}, next: 212, path: goldenPath,
	}
}

func slotDiff(want, got trustRecord) string {
	// A flag that this version does not know has no part in what the record says.
	flags := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".compatible" }, cmp.Ignore())
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.AllowUnexported(trustRecord{}), flags)
}

func TestSlotRoundTrip(t *testing.T) {
	for name, change := range map[string]func(*trustRecord){
		"all fields": func(*trustRecord) {},
		"no intent":  func(r *trustRecord) { r.pending, r.commits, r.ids = Root{}, 0, nil },
		"closed":     func(r *trustRecord) { r.pending, r.commits, r.ids, r.closed = Root{}, 0, nil, true },
		"empty store": func(r *trustRecord) {
			r.confirmed, r.history, r.pending, r.commits, r.ids = Root{}, Digest{}, Root{}, 0, nil
		},
		"first intent":  func(r *trustRecord) { r.confirmed, r.history = Root{}, Digest{} },
		"no ids":        func(r *trustRecord) { r.ids = nil },
		"an id of each": func(r *trustRecord) { r.ids = []string{" ", `"`, `\`, "`", "'", "\u202e", "\U0001f512"} },
		"removing":      func(r *trustRecord) { r.pending, r.commits, r.ids, r.ending = Root{}, 0, nil, stateRemoving },
		"without next":  func(r *trustRecord) { r.next = 0 },
		"large numbers": func(r *trustRecord) {
			r.sequence, r.next = 1<<64-1, 1<<64-1
			r.confirmed = Root{Revision: 1<<64 - 2, Epoch: 1<<64 - 1, Journal: 1<<63 - 1, Digest: Digest{31: 9}}
		},
		"long path": func(r *trustRecord) { r.path = quotePath("/" + strings.Repeat("ü/", 3000)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := goldenSlot()
			change(&r)
			b := r.encode()
			if len(b) != slotSize || b[slotSize-1] != '\n' {
				t.Fatalf("a slot of %d bytes", len(b))
			}
			if i := bytes.IndexFunc(b, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); i >= 0 {
				t.Errorf("byte %d is not printable: %q", i, b[:i+1])
			}
			got, err := decodeSlot(b)
			if err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			if diff := slotDiff(r, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// However long path and ids are, a record fits in a slot, and the ids that do not
// fit are left out from the end.
func TestSlotFits(t *testing.T) {
	for _, id := range []string{strings.Repeat("x", maxName), strings.Repeat(`"`, maxName), strings.Repeat("ü", maxName/2), strings.Repeat("\U0001f512", maxName/4)} {
		for _, path := range []string{"/a", "/" + strings.Repeat("\U0001f512/", 1000), "/" + strings.Repeat("\x01", 4000), strings.Repeat("\xff", 5000)} {
			r := goldenSlot()
			r.confirmed, r.pending = Root{1<<64 - 1, 1<<64 - 1, 1<<63 - 1, Digest{}}, Root{1<<64 - 1, 1<<64 - 1, 1<<63 - 1, Digest{1}}
			r.sequence, r.commits = 1<<64-1, 10
			r.path = quotePath(path)
			r.ids = make([]string, r.commits)
			for i := range r.ids {
				r.ids[i] = id
			}
			b := r.encode()
			if len(b) != slotSize {
				t.Fatalf("a slot of %d bytes", len(b))
			}
			got, err := decodeSlot(b)
			if err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			if n := len(got.ids); n == 0 || n > 10 || got.commits != 10 || got.ids[n-1] != id {
				t.Errorf("%d ids of %d commits", n, got.commits)
			}
		}
	}
}

// A record proves something only when it is whole: missing, doubled, unknown,
// contradictory or otherwise written fields make it no record (R21).
func TestSlotRefuses(t *testing.T) {
	r := goldenSlot()
	whole := strings.TrimRight(string(r.encode()), " \n")
	digest := "sha256:" + strings.Repeat("0", 64)
	type edit struct{ name, old, new string }
	edits := []edit{
		{"another magic", "pawl-trust", "pawl-thrust"},
		{"a first line too short", "pawl-trust 1 0 0 0", "pawl-trust 1 0 0"},
		{"a first line too long", "pawl-trust 1 0 0 0", "pawl-trust 1 0 0 0 0"},
		{"a leading zero", "sequence 9", "sequence 09"},
		{"a sign", "sequence 9", "sequence +9"},
		{"a negative sequence", "sequence 9", "sequence -9"},
		{"a sequence too large", "sequence 9", "sequence 18446744073709551616"},
		{"no sequence", "sequence 9\n", ""},
		{"a doubled line", "sequence 9\n", "sequence 9\nsequence 9\n"},
		{"no store", "store 3f0c2a9d5e6b47188a90c1d2e3f40516\n", ""},
		{"a short store id", "store 3f0c", "store "},
		{"a long store id", "store 3f0c", "store 003f0c"},
		{"an upper-case store id", "store 3f0c", "store 3F0C"},
		{"no confirmed state", "confirmed 17 16 0 " + Digest{1}.String() + "\n", ""},
		{"the empty store with a history", "confirmed 17 16 0 " + Digest{1}.String(), "confirmed 0"},
		{"a state that is written out and none", "confirmed 17 16 0 " + Digest{1}.String(), "confirmed 0 0 0 " + digest},
		{"a state without history", "history " + Digest{2}.String() + "\n", ""},
		{"half a root", "confirmed 17 16 0 ", "confirmed 17 16 "},
		{"a root too long", "pending 18 17 0 " + Digest{3}.String(), "pending 18 17 0 " + Digest{3}.String() + " 0"},
		{"a hexadecimal number", "pending 18", "pending 0x12"},
		{"an upper-case digest", Digest{3}.String(), "sha256:" + strings.Repeat("A", 64)},
		{"another hash", Digest{3}.String(), strings.Replace(Digest{3}.String(), "sha256", "sha512", 1)},
		{"an intent for nothing", "pending 18 17 0 " + Digest{3}.String(), "pending 0"},
		{"an intent without commits", `commits 3 "a" "say \"\u00fc\""` + "\n", ""},
		{"commits without an intent", "pending 18 17 0 " + Digest{3}.String() + "\n", ""},
		{"an id without quotes", `3 "a"`, `3 a`},
		{"an id in other quotes", `3 "a"`, "3 `a`"},
		{"an id that does not end", `3 "a"`, `3 "a`},
		{"an id that is not escaped", `\u00fc`, "ü"},
		{"two spaces", `"a" "say`, `"a"  "say`},
		{"no state line", "state open\n", ""},
		{"another state", "state open", "state ajar"},
		{"lines in another order", "state open\npath " + goldenPath, "path " + goldenPath + "\nstate open"},
		{"an unknown line", "state open", "color blue\nstate open"},
		{"an empty line", "state open", "\nstate open"},
		{"a carriage return", "state open", "state open\r"},
	}
	check := func(t *testing.T, b []byte) {
		t.Helper()
		if got, err := decodeSlot(b); err == nil {
			t.Errorf("accepted as %+v:\n%s", got, b)
		} else if errors.Is(err, ErrVersion) {
			t.Errorf("taken for a newer format: %v", err)
		}
	}
	for _, tt := range edits {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(whole, tt.old, tt.new, 1)
			if text == whole {
				t.Fatal("the edit changed nothing")
			}
			check(t, mendSlot([]byte(text)))
		})
	}
	good := r.encode()
	for name, b := range map[string][]byte{
		"nothing":                   {},
		"spaces":                    blankSlot,
		"zeros":                     make([]byte, slotSize),
		"cut short":                 good[:slotSize-1],
		"no padding":                []byte(whole + "\n"),
		"a byte too many":           append(bytes.Clone(good), '\n'),
		"something in the padding":  append(append(bytes.Clone(good[:slotSize-9]), 'x'), good[slotSize-8:]...),
		"another sum":               bytes.Replace(good, []byte("\nsum sha256:"), []byte("\nsum sha256:0"), 1)[:slotSize],
		"text after the padding":    append(bytes.Clone(good[:slotSize-1]), ' '),
		"a sum line in front of it": append([]byte("pawl-trust \nsum "+digest+"\n"), good...)[:slotSize],
	} {
		t.Run(name, func(t *testing.T) { check(t, b) })
	}
}

// A slot that would not fit when written again is refused like any other that is
// not written as it would be: an id may be shorter in it than in its own form.
func TestSlotThatGrowsIsRefused(t *testing.T) {
	r := goldenSlot()
	r.path, r.ids = `"`+strings.Repeat("p", 2900)+`"`, nil
	whole := strings.TrimRight(string(r.encode()), " \n")
	for _, id := range []string{"\"" + strings.Repeat("ü", 100) + "\"", "`" + strings.Repeat("\xff", 200) + "`"} {
		b := mendSlot([]byte(strings.Replace(whole, "commits 3", "commits 3 "+id, 1)))
		if len(b) != slotSize {
			t.Fatalf("the case has %d bytes", len(b))
		}
		if got, err := decodeSlot(b); err == nil {
			t.Errorf("accepted as %+v", got)
		}
	}
}

// A compatible flag changes the first line and nothing else: the rest is held to
// the letter all the same (R21).
func TestSlotCompatibleFlagIsNoExcuse(t *testing.T) {
	r := goldenSlot()
	text := strings.Replace(strings.TrimRight(string(r.encode()), " \n"), "pawl-trust 1 0 0 0", "pawl-trust 1 4 0 0", 1)
	got, err := decodeSlot(mendSlot([]byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := slotDiff(r, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, bad := range map[string]string{
		"no confirmed state":       "pawl-trust 1 4 0 0\nstore 3f0c2a9d5e6b47188a90c1d2e3f40516\nsequence 9\nstate open\npath \"\"\n",
		"nothing but a sequence":   "pawl-trust 1 4 0 0\nsequence 9\n",
		"two confirmed states":     strings.Replace(text, "\nhistory", "\nconfirmed 0\nhistory", 1),
		"another state line":       strings.Replace(text, "state open", "state ajar", 1),
		"more in the first line":   strings.Replace(text, "pawl-trust 1 4 0 0", "pawl-trust 1 4 0 0 closed", 1),
		"lines in another order":   strings.Replace(text, "state open\npath "+goldenPath, "path "+goldenPath+"\nstate open", 1),
		"a second line of commits": strings.Replace(text, "\nstate open", "\ncommits 3\nstate open", 1),
	} {
		if got, err := decodeSlot(mendSlot([]byte(bad))); err == nil {
			t.Errorf("%s: accepted as %+v", name, got)
		}
	}
}

// What a newer version wrote is told apart from damage, and nothing is read of it.
func TestSlotOfANewerVersion(t *testing.T) {
	for first, newer := range map[string]bool{
		"pawl-trust 2 0 0 0": true,
		"pawl-trust 0 0 0 0": true,
		"pawl-trust 1 0 1 0": true,
		"pawl-trust 1 0 0 8": true,
		"pawl-trust 1 7 0 0": false,
		"pawl-trust 1 0 0 0": false,
	} {
		r := goldenSlot()
		text := strings.Replace(string(r.encode()), "pawl-trust 1 0 0 0", first, 1)
		if newer {
			text = strings.Replace(text, "state open", "phase of the moon", 1)
		}
		_, err := decodeSlot(mendSlot([]byte(text)))
		if errors.Is(err, ErrVersion) != newer || err != nil != newer {
			t.Errorf("%q: %v", first, err)
		}
	}
}

// One flipped bit in the newest slot: the record is refused, the one before it
// counts, and the slot is reported. Never is another record read out of it.
func TestRingBitFlips(t *testing.T) {
	ring := goldenFile(t, "intent.trust", nil)
	newest, _, err := decodeRing(ring)
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := decodeRing(makeRingWithout(ring, newest.sequence))
	if err != nil || before.sequence != newest.sequence-1 {
		t.Fatalf("sequence %d before %d: %v", before.sequence, newest.sequence, err)
	}
	slot := int(newest.sequence % slotCount)
	text := bytes.Index(ring[slot*slotSize:(slot+1)*slotSize], []byte("  "))
	for i := range slotSize {
		for bit := range 8 {
			// The padding is all alike: a bit here and there will do.
			if i > text && i < slotSize-8 && (bit != i%8 || i%13 != 0) || testing.Short() && bit != i%8 {
				continue
			}
			at := slot*slotSize + i
			ring[at] ^= 1 << bit
			if got, err := decodeSlot(ring[slot*slotSize : (slot+1)*slotSize]); err == nil {
				t.Errorf("bit %d of byte %d: accepted as %+v", bit, i, got)
			}
			if bit == i%8 && i%7 == 0 {
				got, broken, err := decodeRing(ring)
				if err != nil || slotDiff(before, got) != "" || len(broken) != 1 || broken[0] != slot {
					t.Errorf("bit %d of byte %d: sequence %d, broken %v, %v", bit, i, got.sequence, broken, err)
				}
			}
			ring[at] ^= 1 << bit
		}
	}
}

// makeRingWithout is the ring with one record blanked out.
func makeRingWithout(ring []byte, sequence uint64) []byte {
	ring = bytes.Clone(ring)
	copy(ring[sequence%slotCount*slotSize:], blankSlot)
	return ring
}

func TestRing(t *testing.T) {
	at := func(sequence uint64) trustRecord {
		r := goldenSlot()
		r.sequence = sequence
		return r
	}
	other := at(10)
	other.store = storeID{1}
	newer := at(10)
	newerSlot := mendSlot(bytes.Replace(newer.encode(), []byte("pawl-trust 1 0 0 0"), []byte("pawl-trust 1 0 0 1"), 1))
	put := func(ring []byte, slot int, b []byte) []byte {
		copy(ring[slot*slotSize:], b)
		return ring
	}
	stray := at(9)
	for _, tt := range []struct {
		name   string
		ring   []byte
		newest uint64
		broken string
		err    error
	}{
		{"one record", makeRing(at(1)), 1, "[]", nil},
		{"all slots", makeRing(at(5), at(6), at(7), at(8)), 8, "[]", nil},
		{"the newest in the middle", makeRing(at(9), at(10), at(7), at(8)), 10, "[]", nil},
		{"torn newest", put(makeRing(at(9), at(8)), 9%4, []byte("torn")), 8, "[1]", nil},
		{"zeroed newest", put(makeRing(at(9), at(8)), 9%4, make([]byte, slotSize)), 8, "[1]", nil},
		{"a record in another's slot", put(makeRing(at(8)), 2, stray.encode()), 8, "[2]", nil},
		{"all blank", makeRing(), 0, "[]", ErrTrustDamaged},
		{"all zero", make([]byte, ringSize), 0, "[]", ErrTrustDamaged},
		{"sequence 0", makeRing(at(0)), 0, "[]", ErrTrustDamaged},
		{"two stores", makeRing(at(9), other), 0, "[]", ErrTrustDamaged},
		{"a newer version's record", put(makeRing(at(9)), 2, newerSlot), 0, "[]", ErrVersion},
		{"an older record of a newer version", put(makeRing(at(11)), 2, newerSlot), 0, "[]", ErrVersion},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, broken, err := decodeRing(tt.ring)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err == nil && (got.sequence != tt.newest || fmt.Sprint(broken) != tt.broken) {
				t.Errorf("sequence %d, broken %v; want %d, %v", got.sequence, broken, tt.newest, tt.broken)
			}
		})
	}
}

func TestQuotePath(t *testing.T) {
	for _, path := range []string{"/a/b", "", "C:\\x", "/\x1b[2J", "/\u202e", "\xff\xfe", strings.Repeat("ü", 5000), strings.Repeat("\x00", 5000)} {
		q := quotePath(path)
		if len(q) > maxPathText || strings.ContainsFunc(q, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%.40q is quoted as %q", path, q)
		}
		if len(path) < 100 && q != fmt.Sprintf("%+q", path) {
			t.Errorf("%q is quoted as %s", path, q)
		}
	}
}

// TestSlotJournalLength: a journal has no negative length.
func TestSlotJournalLength(t *testing.T) {
	for _, set := range []func(*trustRecord){
		func(r *trustRecord) { r.confirmed.Journal = -blockSize },
		func(r *trustRecord) { r.pending.Journal = -1 },
	} {
		r := goldenSlot()
		set(&r)
		if _, err := decodeSlot(r.encode()); err == nil {
			t.Errorf("accepted: %+v", r)
		}
	}
}
