package pawl

import (
	"io/fs"
	"math"
	"runtime"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The names in the store directory and the suffixes in the trust directory.
const (
	bundleName   = "bundle"
	lockName     = "lock"
	tempPrefix   = "tmp-" // then tempDigits hexadecimal digits
	trustSuffix  = ".trust"
	lockSuffix   = ".lock"
	auditSuffix  = ".audit"
	journalStart = "journal."

	segmentsName = "segments" // directories in the store directory
	partsName    = "parts"
	asideName    = "quarantine"
)

// errorString is an error made of text that is written here.
type errorString string

func (e errorString) Error() string { return string(e) }

// checkText refuses what could be mistaken for something else wherever it is
// shown or stored: no bytes, too many, not UTF-8, or control characters.
func checkText(what, s string, most int) error {
	switch {
	case s == "":
		return invalid("%s is empty", what)
	case len(s) > most:
		return invalid("%s has %d bytes, %d at most: %w", what, len(s), most, ErrTooLarge)
	case !utf8.ValidString(s):
		return invalid("%s %q is not UTF-8", what, s)
	case strings.ContainsFunc(s, unicode.IsControl):
		return invalid("%s %q has a control character", what, s)
	}
	return nil
}

// checkName checks a name that becomes part of file names.
func checkName(what, s string, most int) error {
	if err := checkText(what+" name", s, most); err != nil {
		return err
	}
	if s == "." || s == ".." || strings.ContainsAny(s, `/\`) {
		return invalid("%s name %q is not a file name", what, s)
	}
	if runtime.GOOS == "windows" && (strings.ContainsAny(s, `<>:"|?*`) || strings.HasSuffix(s, ".") || strings.HasSuffix(s, " ") || reservedOnWindows(s)) {
		return invalid("%s name %q is not a file name on Windows", what, s)
	}
	return nil
}

// reservedOnWindows reports a name that Windows takes for a device, whatever its
// extension.
func reservedOnWindows(s string) bool {
	base, _, _ := strings.Cut(strings.ToUpper(s), ".")
	switch base = strings.TrimRight(base, " "); base {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return true
	}
	device, number := strings.TrimRight(base, "0123456789¹²³"), ""
	number = base[len(device):]
	return (device == "COM" || device == "LPT") && utf8.RuneCountInString(number) == 1
}

// checkPart checks a part name: a relative slash path without "." and "..".
func checkPart(s string) error {
	if err := checkText("part name", s, maxName); err != nil {
		return err
	}
	if !fs.ValidPath(s) || s == "." {
		return invalid("part name %q is not a relative slash path without . and ..", s)
	}
	return nil
}

func checkID(s string) error { return checkText("commit id", s, maxName) }

// checkSaid checks what a commit says of the program that makes it.
func checkSaid(schema uint32, program string) error {
	if schema > math.MaxInt32 {
		return invalid("schema %d is more than %d", schema, math.MaxInt32)
	}
	if program == "" {
		return nil
	}
	return checkText("program", program, maxName)
}

// isStoreFile reports whether a name in a store directory is proof that a state
// was committed there. A lock, a temp, quarantine or an empty directory is none; what a
// directory of segments or parts holds is looked at elsewhere.
func isStoreFile(name string) bool {
	return name == bundleName || strings.HasPrefix(name, journalStart)
}

// isTemp reports whether name is prefix and tempDigits hexadecimal digits: the
// only names that are ever swept.
func isTemp(prefix, name string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && len(digits) == tempDigits && strings.Trim(digits, "0123456789abcdef") == ""
}
