package control

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// TestOwnership has a node that published 192.0.2.1 and now publishes 192.0.2.2.
func TestOwnership(t *testing.T) {
	was, is, is6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	since := netip.MustParseAddr("192.0.2.3")
	kept, kept6, random := encap.MAC{2, 1}, encap.MAC{2, 6}, encap.MAC{2, 9}
	none := netip.Prefix{}
	v4 := network(t, `{"Network":"10.3.0.0/16"}`)
	v6 := network(t, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	dual := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	had, had6 := prefix("10.3.4.0/24"), prefix("fd10:6:0:4::/64")
	lease := func(ip netip.Addr, mac encap.MAC, p, p6 netip.Prefix) Lease {
		l := Lease{Subnet: p, IPv6Subnet: p6, BackendType: "vxlan"}
		if p.IsValid() {
			l.PublicIP, l.Backend = ip, VTEPData{1, mac}
		}
		if p6.IsValid() {
			l.PublicIPv6 = netip.MustParseAddr("2001:db8::1")
			l.BackendV6 = VTEPData{1, dataplane.MAC(l.PublicIPv6, 1)}
		}
		return l
	}
	with6 := func(l Lease, mac encap.MAC) Lease { l.BackendV6.MAC = mac; return l }
	derived := dataplane.MAC(was, 1)
	for _, tt := range []struct {
		name    string
		network Network
		lease   Lease
		want    Ownership
	}{
		{"its public IP", v4, lease(is, random, prefix("10.3.9.0/24"), none), Own},
		{"its public IP, of another network", v4, lease(is, random, prefix("10.9.9.0/24"), none), Own},
		{"kept MAC", v4, lease(was, kept, had, none), Own},
		{"kept MAC, not had", v4, lease(was, kept, prefix("10.3.9.0/24"), none), NotOwn},
		{"kept MAC, part of what it had", v4, lease(was, kept, prefix("10.3.4.0/25"), none), NotOwn},
		{"kept MAC, had, of another network", v4, lease(was, kept, prefix("10.9.4.0/24"), none), NotOwn},
		{"the other family's MAC", v4, lease(was, kept6, had, none), NotOwn},
		{"derived MAC", v4, lease(was, derived, had, none), OwnUnlessLive},
		{"derived MAC, of a node that has got the subnet since", v4, lease(since, dataplane.MAC(since, 1), had, none), NotOwn},
		{"derived MAC, not had", v4, lease(was, derived, prefix("10.3.9.0/24"), none), NotOwn},
		{"MAC derived from another address", v4, lease(was, dataplane.MAC(is, 1), had, none), NotOwn},
		{"random MAC", v4, lease(was, random, had, none), NotOwn},
		{"no MAC", v4, lease(was, encap.MAC{}, had, none), NotOwn},
		{"no backend", v4, Lease{Subnet: had, PublicIP: was}, NotOwn},
		{"two families", dual, lease(was, derived, had, had6), OwnUnlessLive},
		{"two families, one derived", dual, with6(lease(was, derived, had, had6), random), NotOwn},
		{"two families, one kept", dual, with6(lease(was, random, had, had6), kept6), Own},
		{"two families, one had", dual, lease(was, kept, had, prefix("fd10:6:0:9::/64")), NotOwn},
		{"one family of two", dual, lease(was, kept, had, none), NotOwn},
		{"IPv6 only", v6, lease(was, kept, none, had6), OwnUnlessLive},
		{"IPv6 only, kept", v6, with6(lease(was, kept, none, had6), kept6), Own},
	} {
		n := Node{PublicIP: is, PublicIPv6: is6, Former: []netip.Addr{was, netip.MustParseAddr("2001:db8::1")}, Previous: []netip.Prefix{had6, had, prefix("10.9.4.0/24")}}
		vteps := []dataplane.VTEP{{Addr: is, MAC: kept, VNI: 1}, {Addr: is6, MAC: kept6, VNI: 1}, {Addr: is}, {Addr: is6}}
		if got := n.Ownership(tt.network, vteps, tt.lease, false); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
		// What it wrote is its own whatever the MAC is, but nothing that it has lost since.
		want := NotOwn
		if tt.want == Own || Compatible(tt.network, tt.lease.Subnet, tt.lease.IPv6Subnet) && n.had(tt.lease.Subnet) && n.had(tt.lease.IPv6Subnet) {
			want = Own
		}
		if got := n.Ownership(tt.network, vteps, tt.lease, true); got != want {
			t.Errorf("%s, which it wrote: %d, want %d", tt.name, got, want)
		}
	}
}

// TestOwnershipByIPv6: all IPv6-only leases have the same IPv4 address, none.
func TestOwnershipByIPv6(t *testing.T) {
	ip, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	n := network(t, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	p := prefix("fd10:6:0:4::/64")
	for _, tt := range []struct {
		node  Node
		lease Lease
		want  Ownership
	}{
		{Node{PublicIPv6: ip}, Lease{IPv6Subnet: p, PublicIPv6: ip}, Own},
		{Node{PublicIPv6: ip}, Lease{IPv6Subnet: p, PublicIPv6: other}, NotOwn},
		{Node{PublicIPv6: ip}, Lease{IPv6Subnet: p, PublicIPv6: ip, PublicIP: netip.MustParseAddr("192.0.2.1")}, Own},
		{Node{PublicIPv6: ip, PublicIP: netip.MustParseAddr("192.0.2.1")}, Lease{IPv6Subnet: p, PublicIPv6: ip}, Own},
		{Node{PublicIPv6: ip, PublicIP: netip.MustParseAddr("192.0.2.1")}, Lease{IPv6Subnet: p, PublicIPv6: ip, PublicIP: netip.MustParseAddr("192.0.2.9")}, NotOwn},
		{Node{}, Lease{IPv6Subnet: p}, NotOwn},
	} {
		if got := tt.node.Ownership(n, nil, tt.lease, false); got != tt.want {
			t.Errorf("%+v of %+v: %d, want %d", tt.lease, tt.node, got, tt.want)
		}
	}
}
