package node

import (
	"net/netip"
	"reflect"
	"testing"
)

// TestLeftoversSpoilt: of a file that somebody or a crash has cut, only whole lines count.
func TestLeftoversSpoilt(t *testing.T) {
	text := "\nvni 0\nvni 16777216\nvni x\nvni 3\nnetwork 10.5.0.0\nother 1\nnetwork 10.6.0.0/16\nvni 1"
	want := leftovers{[]uint32{0, 3}, []netip.Prefix{netip.MustParsePrefix("10.6.0.0/16")}}
	if got := parseLeftovers(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
