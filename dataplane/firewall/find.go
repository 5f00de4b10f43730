package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// Drop is a base chain that drops a packet.
type Drop struct {
	Packet Packet
	Family nft.Family // of the table
	Legacy bool       // it is a table of iptables-legacy
	Table  string
	Chain  string
	Rule   string // that drops it, in words
	Sure   bool   // whatever is unknown about it
}

// Find returns the chains that drop one of the packets, or may, in the network namespace of the calling thread. What
// could not be read is the error; the rest is found all the same.
func Find(packets ...Packet) (list []Drop, err error) {
	var errs []error
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		if !slices.ContainsFunc(packets, func(p Packet) bool { return p.family() == f }) {
			continue
		}
		drops, err := nftDrops(f, packets)
		list, errs = append(list, drops...), append(errs, err)
		drops, err = legacyDrops(f, packets)
		list, errs = append(list, drops...), append(errs, err)
	}
	for _, f := range []nft.Family{nft.Inet, nft.Netdev} {
		drops, err := nftDrops(f, packets)
		list, errs = append(list, drops...), append(errs, err)
	}
	return list, errors.Join(errs...)
}

// Name is the chain as the nft command writes it, or as iptables does.
func (d Drop) Name() string {
	if d.Legacy {
		return fmt.Sprintf("%s -t %s %s", d.command(), d.Table, d.Chain)
	}
	return fmt.Sprintf("%s %s %s", d.Family, d.Table, d.Chain)
}

func (d Drop) command() string {
	name := "iptables"
	if d.Family == nft.IPv6 {
		name = "ip6tables"
	}
	if d.Legacy {
		name += "-legacy"
	}
	return name
}

// Accept is what an additional rule is to accept. What is empty or 0 is not asked for.
type Accept struct {
	Src, Dst netip.Prefix
	UDP      uint16 // destination port
}

// Fix returns the command that makes the chain accept it before anything else.
func (d Drop) Fix(a Accept) string {
	if d.Legacy || slices.Contains(builtIn, d.Chain) {
		table := ""
		if d.Table != "filter" {
			table = " -t " + d.Table
		}
		return fmt.Sprintf("%s%s -I %s%s -j ACCEPT", d.command(), table, d.Chain, a.iptables())
	}
	return fmt.Sprintf("nft insert rule %s%s accept", d.Name(), a.nft())
}

func (a Accept) iptables() (text string) {
	if a.Src.IsValid() {
		text += " -s " + a.Src.String()
	}
	if a.Dst.IsValid() {
		text += " -d " + a.Dst.String()
	}
	if a.UDP != 0 {
		text += fmt.Sprintf(" -p udp --dport %d", a.UDP)
	}
	return text
}

func (a Accept) nft() (text string) {
	address := func(word string, p netip.Prefix) {
		if family := nft.IPv6; p.IsValid() {
			if p.Addr().Is4() {
				family = nft.IPv4
			}
			text += fmt.Sprintf(" %s %s %s", family, word, p)
		}
	}
	address("saddr", a.Src)
	address("daddr", a.Dst)
	if a.UDP != 0 {
		text += fmt.Sprintf(" udp dport %d", a.UDP)
	}
	return text
}

// Names lists the chains of drops, each once.
func Names(list []Drop) string {
	var names []string
	for _, d := range list {
		if !slices.Contains(names, d.Name()) {
			names = append(names, d.Name())
		}
	}
	return strings.Join(names, ", ")
}

// somePort is a port that no rule is about: a packet with it stands for all of its protocol.
const somePort = 58123

// Through returns a packet that the host forwards from one overlay address to another. The interfaces may be empty: not known.
func Through(src, dst netip.Addr, in, out string) Packet {
	return Packet{Path: Forwarded, In: in, Out: out, Protocol: unix.IPPROTO_TCP, Src: src, Dst: dst, SrcPort: somePort + 1, DstPort: somePort}
}

// Tunnel returns the datagrams of VXLAN that come from a peer, and go there. The peer may be unknown.
func Tunnel(device string, local, peer netip.Addr, port uint16) []Packet {
	return []Packet{
		{Path: Received, In: device, Protocol: unix.IPPROTO_UDP, Src: peer, Dst: local, SrcPort: somePort, DstPort: port},
		{Path: Sent, Out: device, Protocol: unix.IPPROTO_UDP, Src: local, Dst: peer, SrcPort: somePort, DstPort: port},
	}
}
