package control

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
)

// TestNodeNames: the last name of each address, safe to print, and no more than there is room for.
func TestNodeNames(t *testing.T) {
	var n NodeNames
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	if got := n.NodeName(a); got != "" {
		t.Errorf("before it was seen: %q", got)
	}
	n.SawNode(a, "one")
	n.SawNode(a, "two")
	n.SawNode(a, "")
	n.SawNode(netip.Addr{}, "nobody")
	n.SawNode(b, "\x1b[31m"+strings.Repeat("x", 100))
	if got := n.NodeName(a); got != "two" {
		t.Errorf("got %q, want the last name", got)
	}
	if got := n.NodeName(b); len(got) > nodeNameBytes || strings.ContainsRune(got, 0x1b) {
		t.Errorf("not safe to print: %q", got)
	}
	for i := range uint32(maxNodeNames + 10) {
		n.SawNode(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+i))), "x")
	}
	n.SawNode(a, "three")
	if len(n.names) != maxNodeNames || n.NodeName(a) != "three" {
		t.Errorf("%d names; one that is known is %q", len(n.names), n.NodeName(a))
	}
}
