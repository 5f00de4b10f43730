package dataplane

import "testing"

func TestRelease(t *testing.T) {
	for text, before616 := range map[string]bool{
		"6.15.11": true, "6.16.0-rc1": false, "6.16": false, "5.4.0-200-generic": true, "10.0": false, "6.1.0-13-amd64": true, "7.2": false,
	} {
		r, err := parseRelease(text)
		if err != nil || r.Before(6, 16) != before616 {
			t.Errorf("%s: before 6.16 %v, want %v, %v", text, r.Before(6, 16), before616, err)
		}
	}
	for _, text := range []string{"", "linux", "6"} {
		if r, err := parseRelease(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, r)
		}
	}
	if r, err := KernelRelease(); err != nil || r.Text == "" {
		t.Errorf("this kernel: %+v, %v", r, err)
	}
}
