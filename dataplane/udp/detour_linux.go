package udp

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// Detour gives the datagrams that come to one UDP port of this host to the sockets of another one. So
// the port can pass from its holder to the next, however long each takes, and nothing that arrives
// meanwhile is lost. It is a rule behind all firewalls of the host, which see the port that the datagram was sent to.
type Detour struct{ held *nft.Held }

// detourPriority puts the rule after what others do with packets for this host (conntrack's helpers have 300).
const detourPriority = 1000

// OpenDetour makes the detour from one address of this host to another port of it; it ends with Close, or with the
// process. It needs nftables and Linux 5.12.
func OpenDetour(from netip.AddrPort, to uint16) (*Detour, error) {
	f, addr := nft.IPv4, from.Addr()
	if addr.Is6() {
		f = nft.IPv6
	}
	table, chain := fmt.Sprintf("overlayd-detour-%d", from.Port()), "input"
	udp := slices.Concat(nft.Address(f, f.Destination(), netip.PrefixFrom(addr, addr.BitLen()), false), nft.UDP(), nft.DestinationPort(from.Port()))
	plain, err := nft.Encode(f, slices.Concat(udp, nft.WithoutChecksum(), nft.SetDestinationPort(to, false))...)
	if err != nil {
		return nil, err
	}
	summed, err := nft.Encode(f, slices.Concat(udp, nft.SetDestinationPort(to, true))...)
	if err != nil {
		return nil, err
	}
	held, err := nft.Hold(
		nft.NewOwnedTable(f, table),
		nft.NewChain(f, table, chain, &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: detourPriority}),
		nft.NewRule(f, table, chain, plain, "the VXLAN port changes hands"),
		nft.NewRule(f, table, chain, summed, "the VXLAN port changes hands"),
	)
	if err != nil {
		return nil, fmt.Errorf("detour of UDP %s: %w", from, err)
	}
	return &Detour{held}, nil
}

// Close ends the detour: what arrives from now on is for the holder of the port.
func (d *Detour) Close() error { return d.held.Close() }
