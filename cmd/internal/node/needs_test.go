package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane/underlay"
)

// TestNeeds: each address that a host needs is named once, by its most important use.
func TestNeeds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# nameserver 192.0.2.9\nsearch example\nnameserver 192.0.2.53\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver 192.0.2.1\nnameserver\nnameserver x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	i := underlay.Interface{IPv4: underlay.End{Local: mustAddr("192.0.2.2"), Public: mustAddr("203.0.113.2")}, IPv6: underlay.End{Local: mustAddr("2001:db8::2"), Public: mustAddr("2001:db8::2")}}
	routes := underlay.Needs{Gateways: []netip.Addr{mustAddr("192.0.2.1")}, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	stores := addressesOf(t.Context(), []string{"192.0.2.7", "::1", "::ffff:192.0.2.8", "no such host."})
	var got []string
	u := needsOf(i, routes, stores, nameServers(file))
	for _, n := range u.Needs {
		text := n.String()
		if n.Yields {
			text += " (yields)"
		}
		got = append(got, text)
	}
	want := []string{
		"192.0.2.2, the underlay address of this host", "2001:db8::2, the underlay address of this host",
		"203.0.113.2, the public IP of this host", "192.0.2.1, the default gateway of this host",
		"192.0.2.7, an address of the store", "192.0.2.8, an address of the store",
		"192.0.2.53, a name server of this host (yields)", "fe80::1, a name server of this host (yields)",
		"169.254.169.254, the metadata service of clouds (yields)",
	}
	if !slices.Equal(got, want) || !slices.Equal(u.OnLink, routes.OnLink) {
		t.Errorf("needs %q\nwant  %q; on link %v", got, want, u.OnLink)
	}
	if got := nameServers(file + "x"); got != nil {
		t.Errorf("of no file: %v", got)
	}
}
