package encap

import (
	"encoding/json"
	"testing"
)

func TestParseMAC(t *testing.T) {
	for _, tt := range []struct {
		text string
		want MAC
		ok   bool
	}{
		{"0e:2a:00:00:00:01", MAC{0x0e, 0x2a, 0, 0, 0, 1}, true},
		{"FF:ff:Ab:cD:09:90", MAC{0xff, 0xff, 0xab, 0xcd, 0x09, 0x90}, true},
		{"", MAC{}, false},
		{"0e:2a:00:00:00", MAC{}, false},
		{"0e:2a:00:00:00:01:02:03", MAC{}, false},
		{"0e-2a-00-00-00-01", MAC{}, false},
		{"e:2a:00:00:00:001", MAC{}, false},
		{"0g:2a:00:00:00:01", MAC{}, false},
		{"0e:2a:00:00:00:0 ", MAC{}, false},
		{"0e2a.0000.0001:::", MAC{}, false},
	} {
		got, err := ParseMAC(tt.text)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("ParseMAC(%q) = %s, %v; want %s, ok %v", tt.text, got, err, tt.want, tt.ok)
		}
	}
}

func TestMACString(t *testing.T) {
	m := MAC{0x0e, 0x2a, 0, 0xff, 0x90, 1}
	const want = "0e:2a:00:ff:90:01"
	if got := m.String(); got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
	if again, err := ParseMAC(want); again != m || err != nil {
		t.Errorf("ParseMAC(%s) = %s, %v", want, again, err)
	}
}

func TestMACIsUnicast(t *testing.T) {
	for m, want := range map[MAC]bool{
		{0x0e, 0, 0, 0, 0, 1}:                true,
		{0, 0, 0, 0, 0, 1}:                   true,
		{}:                                   false,
		{0x01, 0, 0x5e, 0, 0, 1}:             false,
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}: false,
	} {
		if got := m.IsUnicast(); got != want {
			t.Errorf("%s: IsUnicast = %v, want %v", m, got, want)
		}
	}
}

// TestMACInJSON: a MAC is text in JSON, by itself, in a list and as a key.
func TestMACInJSON(t *testing.T) {
	m := MAC{0x0e, 0x2a, 0, 0, 0, 1}
	for _, c := range []struct {
		value any
		want  string
	}{{m, `"0e:2a:00:00:00:01"`}, {[]MAC{m}, `["0e:2a:00:00:00:01"]`}, {map[MAC]int{m: 1}, `{"0e:2a:00:00:00:01":1}`}} {
		if got, err := json.Marshal(c.value); err != nil || string(got) != c.want {
			t.Errorf("%T: %s, %v, want %s", c.value, got, err, c.want)
		}
	}
}
