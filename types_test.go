package pawl_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
)

const hex64 = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func digest0() (d pawl.Digest) {
	for i := range d {
		d[i] = byte(i)
	}
	return d
}

func TestDigestText(t *testing.T) {
	d := digest0()
	text := "sha256:" + hex64
	if d.String() != text {
		t.Errorf("String is %q", d)
	}
	var got pawl.Digest
	if err := got.UnmarshalText([]byte(text)); err != nil || got != d {
		t.Errorf("read back %v, %v", got, err)
	}
	for _, bad := range []string{
		"", "sha256:", hex64, "sha256:" + hex64[1:], text + "0", text + " ", " " + text, "SHA256:" + hex64,
		"sha512:" + hex64, "sha256:" + strings.ToUpper(hex64), "sha256:" + strings.Repeat("g", 64),
		"sha256:" + strings.Repeat("\u017f", 32), text + "\n", "sha256:sha256:" + hex64,
	} {
		got := d
		if err := got.UnmarshalText([]byte(bad)); !errors.Is(err, pawl.ErrInvalid) || !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: error %v", bad, err)
		}
		if got != d {
			t.Errorf("%q was refused, and changed the digest", bad)
		}
	}
}

func TestReceiptText(t *testing.T) {
	const most = "18446744073709551615"
	for _, tt := range []struct {
		receipt pawl.Receipt
		text    string
	}{
		{pawl.Receipt{}, "pawl1.0.0.0." + strings.Repeat("0", 64)},
		{pawl.Receipt{Version: pawl.Version{Revision: 12, Digest: digest0()}, FirstSeq: 30, LastSeq: 41}, "pawl1.12.30.41." + hex64},
		{pawl.Receipt{Version: pawl.Version{Revision: 1<<64 - 1, Digest: digest0()}, FirstSeq: 1<<64 - 1, LastSeq: 1<<64 - 1},
			"pawl1." + most + "." + most + "." + most + "." + hex64},
	} {
		if got := tt.receipt.String(); got != tt.text {
			t.Errorf("%+v is %q, want %q", tt.receipt, got, tt.text)
		}
		// Whether it was replayed is about the call, not about the commit.
		replayed := tt.receipt
		replayed.Replayed = true
		j, err := json.Marshal(map[string]pawl.Receipt{"r": replayed})
		if err != nil || string(j) != fmt.Sprintf(`{"r":%q}`, tt.text) {
			t.Errorf("as JSON: %s, %v", j, err)
		}
		var back map[string]pawl.Receipt
		if err := json.Unmarshal(j, &back); err != nil || back["r"] != tt.receipt {
			t.Errorf("read back %+v, %v", back, err)
		}
	}
	good := "pawl1.12.30.41." + hex64
	for _, bad := range []string{
		"", "pawl1", "pawl1....", "{}", good + ".", good + "0", good[:len(good)-1], good + "\n", " " + good,
		strings.Replace(good, "pawl1", "pawl2", 1), strings.Replace(good, "12", "012", 1), strings.Replace(good, "12", "+12", 1),
		strings.Replace(good, "12", "-12", 1), strings.Replace(good, "12", "", 1), strings.Replace(good, "12", "0x12", 1),
		strings.Replace(good, "12", most+"0", 1), strings.Replace(good, "12", "1_2", 1), strings.ToUpper(good),
		strings.Replace(good, "0a", "0A", 1), strings.Replace(good, "0a", "0g", 1), good + hex64,
	} {
		kept := pawl.Receipt{FirstSeq: 7}
		if err := kept.UnmarshalText([]byte(bad)); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: error %v", bad, err)
		}
		if kept != (pawl.Receipt{FirstSeq: 7}) {
			t.Errorf("%q was refused, and changed the receipt", bad)
		}
	}
}

// What is refused is shown clipped, and quoted (R22).
func TestBadTextIsShownInert(t *testing.T) {
	bad := "\x1b[2J" + strings.Repeat("x", 10_000)
	for _, err := range []error{new(pawl.Digest).UnmarshalText([]byte(bad)), new(pawl.Receipt).UnmarshalText([]byte(bad))} {
		if err == nil || len(err.Error()) > 400 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("error %q", err)
		}
	}
}

func TestTextOfVersionsAndOutcomes(t *testing.T) {
	v := pawl.Version{Revision: 3, Digest: digest0()}
	if got := v.String(); got != "3 sha256:"+hex64 {
		t.Errorf("version %q", got)
	}
	if j, err := json.Marshal(v); err != nil || string(j) != `{"revision":3,"digest":"sha256:`+hex64+`"}` {
		t.Errorf("version as JSON: %s, %v", j, err)
	}
	root := pawl.Root{Revision: 3, Epoch: 4, Journal: 5, Digest: digest0()}
	if j, err := json.Marshal(root); err != nil || string(j) != `{"revision":3,"epoch":4,"journal":5,"digest":"sha256:`+hex64+`"}` {
		t.Errorf("root as JSON: %s, %v", j, err)
	}
	for text, v := range map[string]fmt.Stringer{
		"unknown":           pawl.OutcomeUnknown,
		"committed":         pawl.OutcomeCommitted,
		"not committed":     pawl.OutcomeNotCommitted,
		"outcome 9":         pawl.Outcome(9),
		"nothing to settle": pawl.SettledNothing,
		"landed":            pawl.SettledLanded,
		"not landed":        pawl.SettledNotLanded,
	} {
		if v.String() != text {
			t.Errorf("%q, want %q", v, text)
		}
	}
	// The zero values claim nothing.
	if *new(pawl.Outcome) != pawl.OutcomeUnknown || *new(pawl.Settlement) != pawl.SettledNothing {
		t.Error("a zero value says something")
	}
}
