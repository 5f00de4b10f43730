package udp

import (
	"bytes"
	"net/netip"
	"testing"
)

func TestSockaddr(t *testing.T) {
	for _, s := range []string{"192.0.2.1", "2001:db8::1"} {
		a := netip.MustParseAddr(s)
		sa := NewSockaddr(netip.AddrPortFrom(a, 0x2118))
		if got := sa.Addr(); got != a || !bytes.Equal(sa.Raw[2:4], []byte{0x21, 0x18}) {
			t.Errorf("%s: address %s, port %#x", a, got, sa.Raw[2:4])
		}
	}
	mapped := NewSockaddr(netip.MustParseAddrPort("[::ffff:192.0.2.1]:1"))
	if got := mapped.Addr(); got != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("mapped address %s", got)
	}
}
