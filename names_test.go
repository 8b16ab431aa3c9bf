package pawl

import (
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

var longName = strings.Repeat("n", maxName)

func TestCheckPart(t *testing.T) {
	checkNames(t, func(s string) error { return checkPart(s) },
		[]string{"a", "state.json", "a/b/c", ".hidden", "...", "a b", "größe/🔒", `back\slash`, "CON", "a:b", longName, "tmp-0123456789abcdef", "bundle"},
		[]string{"", ".", "..", "/", "/a", "a/", "a//b", "./a", "a/.", "../a", "a/../b", "a/..", longName + "n", "a\x00", "a\nb", "\x1b[2J", "\x7f", "\u0085", "\xff", "a/\xc3"})
}

func TestCheckID(t *testing.T) {
	checkNames(t, checkID,
		[]string{"a", "call 7", "turn/3:call/7", "..", "/", `"`, "größe", longName, " ", "\u202e"},
		[]string{"", longName + "n", "a\x00", "a\nb", "\t", "\x1b", "\x7f", "\u0085", "\xff", "\xed\xa0\x80"})
}

func TestCheckName(t *testing.T) {
	good := []string{"session", ".hidden", "a b", "größe", "a.trust", longName[:234]}
	bad := []string{"", ".", "..", "a/b", "/", `a\b`, "a\x00b", "a\nb", "\x7f", "\xff", longName[:235]}
	onlyElsewhere := []string{"...", "a:b", "a*", "<a>", "a?", `a"`, "a|b", "a.", "a ", "con", "NUL.txt", "com1", "LPT9.tar.gz", "aux ", "CONIN$", "com²"}
	if runtime.GOOS == "windows" {
		bad = append(bad, onlyElsewhere...)
	} else {
		good = append(good, onlyElsewhere...)
	}
	checkNames(t, func(s string) error { return checkName("store", s, maxName-len(".tmp-")-tempDigits) }, good, bad)
}

func checkNames(t *testing.T, check func(string) error, good, bad []string) {
	t.Helper()
	for _, s := range good {
		if err := check(s); err != nil {
			t.Errorf("%q is refused: %v", s, err)
		}
	}
	for _, s := range bad {
		err := check(s)
		if !errors.Is(err, ErrInvalid) || !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: error %v", s, err)
		}
		if tooLong := len(s) > 200; errors.Is(err, ErrTooLarge) != tooLong {
			t.Errorf("%q: error %v", s, err)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\x00\x1b\n\x7f") || !utf8.ValidString(err.Error())) {
			t.Errorf("%q reaches a message as it is: %v", s, err) // R22
		}
	}
}

func TestReservedOnWindows(t *testing.T) {
	for s, want := range map[string]bool{
		"CON": true, "con": true, "prn": true, "Aux": true, "NUL": true, "nul.txt": true, "CON.a.b": true, "CON .txt": true,
		"COM1": true, "com9": true, "LPT3": true, "lpt1.log": true, "COM¹": true, "lpt²": true, "COM³.x": true, "CONIN$": true, "conout$": true,
		"": false, "CONS": false, "COM": false, "COM10": false, "COMA": false, "LPT": false, "LPT12": false, "xCON": false,
		"session": false, "console": false, "com1a": false, "a.con": false, "1": false, "COM¹²": false,
	} {
		if got := reservedOnWindows(s); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

// Only names that pawl makes are ever swept or taken for a store (contract 8).
func TestNamesThatMeanSomething(t *testing.T) {
	for name, want := range map[string]bool{
		"tmp-0123456789abcdef":  true,
		"tmp-0123456789abcde":   false,
		"tmp-0123456789abcdef0": false,
		"tmp-0123456789ABCDEF":  false,
		"tmp-0123456789abcdeg":  false,
		"Tmp-0123456789abcdef":  false,
		"tmp-":                  false,
		"0123456789abcdef":      false,
		".tmp-0123456789abcdef": false,
		"tmp-/123456789abcdef":  false,
	} {
		if got := isTemp(tempPrefix, name); got != want {
			t.Errorf("temp %q: %v, want %v", name, got, want)
		}
	}
	if !isTemp("a.tmp-", "a.tmp-0123456789abcdef") || isTemp("a.tmp-", "b.tmp-0123456789abcdef") {
		t.Error("a temp of another store in the trust directory")
	}
	for name, want := range map[string]bool{
		"bundle": true, "journal.000000000007": true, "journal.": true,
		"lock": false, "quarantine": false, "tmp-0123456789abcdef": false, "bundle2": false, "Bundle": false, "journal": false, "": false,
	} {
		if got := isStoreFile(name); got != want {
			t.Errorf("store file %q: %v, want %v", name, got, want)
		}
	}
}

// A journal is found by its name, and no other name is taken for one: it would be
// swept, or keep the store from opening.
func TestJournalNames(t *testing.T) {
	for _, epoch := range []uint64{0, 1, 42, 999999999999, 1000000000000, 1<<64 - 1} {
		name := journalName(epoch)
		if got, ok := journalEpoch(name); !ok || got != epoch || !isStoreFile(name) {
			t.Errorf("%q is the journal of %d, %v", name, got, ok)
		}
	}
	if got := journalName(7); got != "journal.000000000007" {
		t.Errorf("the journal of 7 is %q", got)
	}
	for _, name := range []string{
		"", "journal", "journal.", "journal.7", "journal.00000000007", "journal.0000000000007", "journal.+00000000007", "journal.-00000000007",
		"journal. 00000000007", "journal.000000000007 ", "journal.000000000007~", "journal.000000000007\n", "journal.0x0000000007", "journal.00000000_007",
		"journal.18446744073709551616", "journal.99999999999999999999999", "Journal.000000000007", " journal.000000000007", "journal.00000000000٧", "journal.bak",
		"bundle", "lock", "tmp-0123456789abcdef",
	} {
		if epoch, ok := journalEpoch(name); ok {
			t.Errorf("%q is taken for the journal of %d", name, epoch)
		}
	}
}
