package userspace

import (
	"strings"
	"testing"
)

func TestParseOffloads(t *testing.T) {
	for text, want := range map[string]Offloads{
		"":                       AllOffloads,
		"all":                    AllOffloads,
		"none":                   0,
		"plain":                  0,
		"-udp-gro":               AllOffloads &^ UDPGRO,
		"-udp-gro, -coalesce":    AllOffloads &^ (UDPGRO | Coalesce),
		"tun-vnet,udp-segment":   TUNVnet | UDPSegment,
		"all,-tun-gso":           AllOffloads &^ TUNGSO,
		"none,tun-multiqueue":    TUNMultiqueue,
		"-all,coalesce,coalesce": Coalesce,
	} {
		if got, err := ParseOffloads(text); got != want || err != nil {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
		if got, err := ParseOffloads(want.String()); got != want || err != nil {
			t.Errorf("%s parsed again is %s, %v", want, got, err)
		}
	}
	for _, text := range []string{"gro", "-udp-gros", "all,x"} {
		if _, err := ParseOffloads(text); err == nil || !strings.Contains(err.Error(), "udp-segment") {
			t.Errorf("%q: error %v names no choices", text, err)
		}
	}
}
