package main

import (
	"encoding"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/effect"
)

var update = flag.Bool("update", false, "write docs/cli.md and the picture of a recovery anew")

// objects are what pawl --json writes, under their names in docs/cli.md.
var objects = []struct {
	name string
	of   any
}{
	{"report", pawl.Report{}},
	{"entry", entryLine{}},
	{"part", partLine{}},
	{"data", data{}},
	{"commit", commitLine{}},
	{"lookup", lookupLine{}},
	{"verified", verifyLine{}},
	{"version", pawl.Version{}},
	{"committed", doneLine{}},
	{"compacted", pawl.CompactReport{}},
	{"recovered", recoverLine{}},
	{"backup", backupLine{}},
	{"checked backup", pawl.BackupInfo{}},
	{"ruling", rulingLine{}},
	{"effect", effect.Effect{}},
	{"effect shown", shownEffect{}},
	{"event", eventLine{}},
	{"effect settled", settledLine{}},
	{"effect decision", effectDecisionLine{}},
	{"check", finding{}},
	{"upgraded", upgradeLine{}},
	{"program", versionLine{}},
	{"error", problem{}},
	{"root", pawl.Root{}},
	{"damage", pawl.Damage{}},
}

// fields are the fields of an object, as docs/cli.md has them.
func fields(t *testing.T, of reflect.Type) (all []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Pointer {
			all = append(all, fields(t, f.Type.Elem())...)
			continue
		}
		if f.Anonymous {
			all = append(all, fields(t, f.Type)...)
			continue
		}
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			t.Errorf("%s.%s has no name in JSON", of, f.Name)
		}
		mark := ""
		if strings.Contains(rest, "omit") {
			mark = "?"
		}
		all = append(all, fmt.Sprintf("`%s`%s %s", name, mark, kind(t, f.Type)))
	}
	return all
}

func kind(t *testing.T, of reflect.Type) string {
	switch {
	case of == reflect.TypeFor[time.Time]():
		return "time"
	case of == reflect.TypeFor[pawl.Digest]():
		return "digest"
	case of == reflect.TypeFor[[]byte]():
		return "base64"
	case of.Kind() == reflect.Pointer:
		return kind(t, of.Elem())
	case of.Kind() == reflect.Slice:
		return "[" + kind(t, of.Elem()) + "]"
	}
	for _, o := range objects {
		if of == reflect.TypeOf(o.of) {
			return "*" + o.name + "*"
		}
	}
	switch of.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		if !of.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return "number"
		}
	}
	t.Errorf("a field of type %s: docs/cli.md has no word for it", of)
	return ""
}

// TestJSONSchema holds the fields of every object against docs/cli.md. A field that goes,
// or becomes another, breaks a program somewhere: only new ones may come. With -update the
// document gets them.
func TestJSONSchema(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(strings.ReplaceAll(string(doc), "\r\n", "\n"), "<!-- objects -->\n")
	have, after, ok2 := strings.Cut(rest, "<!-- /objects -->\n")
	if !ok || !ok2 {
		t.Fatal("docs/cli.md has no place for the objects")
	}
	var want strings.Builder
	want.WriteString("| object | fields |\n|---|---|\n")
	for _, o := range objects {
		fmt.Fprintf(&want, "| *%s* | %s |\n", o.name, strings.Join(fields(t, reflect.TypeOf(o.of)), ", "))
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(path, []byte(before+"<!-- objects -->\n"+want.String()+"<!-- /objects -->\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(have, "\n"), strings.Split(want.String(), "\n")); diff != "" {
		t.Errorf("docs/cli.md has other objects (-docs +code):\n%s", diff)
	}
}
