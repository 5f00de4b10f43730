package firewall

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// extension is a match or target of iptables: as the kernel holds it in either kind of table.
type extension struct {
	name     string
	revision uint32
	data     []byte
}

// parseExtension reads the expression in which iptables-nft keeps one.
func parseExtension(b []byte) (x extension, ok bool) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return x, false
	}
	for d.Next() {
		switch d.Type() { // NFTA_TARGET_... has the same numbers
		case unix.NFTA_MATCH_NAME:
			x.name = d.String()
		case unix.NFTA_MATCH_REV:
			d.ByteOrder = binary.BigEndian
			x.revision = d.Uint32()
		case unix.NFTA_MATCH_INFO:
			x.data = d.Bytes()
		}
	}
	return x, d.Err() == nil
}

func (x *rule) xtMatch(b []byte) tri {
	e, ok := parseExtension(b)
	if !ok {
		return maybe
	}
	return e.match(x.family, x.packet)
}

func (x *rule) xtTarget(b []byte) outcome {
	e, ok := parseExtension(b)
	if !ok {
		return accepted | dropped | onward
	}
	return e.target()
}

// match reports whether the packet meets the condition.
func (e extension) match(f nft.Family, p Packet) tri {
	switch e.name {
	case "multiport":
		return e.multiport(p)
	case "pkttype":
		return e.pktType(p)
	}
	info, err := xt.Unmarshal(e.name, xt.TableFamily(f), e.revision, e.data)
	if err != nil {
		return maybe
	}
	switch m := info.(type) {
	case *xt.Comment:
		return yes
	case *xt.Udp:
		return inPorts(p.SrcPort, m.SrcPorts, m.InvFlags&xt.UdpInvSrcPorts != 0).and(inPorts(p.DstPort, m.DstPorts, m.InvFlags&xt.UdpInvDestPorts != 0))
	case *xt.Tcp:
		return inPorts(p.SrcPort, m.SrcPorts, m.InvFlags&xt.TcpInvSrcPorts != 0).and(inPorts(p.DstPort, m.DstPorts, m.InvFlags&xt.TcpInvDestPorts != 0)).
			and(is((tcpSYN&m.FlagsMask == m.FlagsCmp) != (m.InvFlags&xt.TcpInvFlags != 0))).and(is(m.Option == 0).or(maybe))
	case *xt.AddrType:
		return hasTypes(p, m.Source, m.Dest, m.InvertSource, m.InvertDest)
	case *xt.AddrTypeV1:
		const notSource, notDest = 1, 2        // XT_ADDRTYPE_INVERT_... of linux/netfilter/xt_addrtype.h
		if m.Flags&^(notSource|notDest) != 0 { // of one interface only
			return maybe
		}
		return hasTypes(p, m.Source, m.Dest, m.Flags&notSource != 0, m.Flags&notDest != 0)
	case *xt.ConntrackMtinfo1:
		return isNew(m.MatchFlags, m.InvertFlags, uint16(m.StateMask))
	case *xt.ConntrackMtinfo2:
		return isNew(m.MatchFlags, m.InvertFlags, m.StateMask)
	case *xt.ConntrackMtinfo3:
		return isNew(m.MatchFlags, m.InvertFlags, m.StateMask)
	}
	return maybe
}

// inPorts reports whether a port is in a range.
func inPorts(port uint16, r [2]uint16, not bool) tri {
	whole := r == [2]uint16{0, 0xffff}
	if port == 0 && !whole {
		return maybe
	}
	return is((whole || port >= r[0] && port <= r[1]) != not)
}

// hasTypes reports whether the types of both addresses are in sets of them; an empty set has all.
func hasTypes(p Packet, sources, dests uint16, notSource, notDest bool) tri {
	src, dst := p.types()
	in := func(set uint16, t uint32, not bool) tri { return is(set == 0 || (set>>t&1 != 0) != not) }
	return in(sources, src, notSource).and(in(dests, dst, notDest))
}

// pktType is the match of struct xt_pkttype_info of linux/netfilter/xt_pkttype.h.
func (e extension) pktType(p Packet) tri {
	const size = 8
	if len(e.data) < size || p.Path == Sent {
		return maybe
	}
	return is((binary.NativeEndian.Uint32(e.data) == unix.PACKET_HOST) == (binary.NativeEndian.Uint32(e.data[4:]) == 0))
}

// isNew reports whether a condition on the state of a connection takes its first packet.
func isNew(match, invert, states uint16) tri {
	const bitNew = 1 << 3 // XT_CONNTRACK_STATE_BIT(IP_CT_NEW) of linux/netfilter/xt_conntrack.h
	flag := uint16(xt.ConntrackState)
	if match&^uint16(xt.ConntrackStateAlias) != flag {
		return maybe
	}
	return is((states&bitNew != 0) != (invert&flag != 0))
}

// multiport is the match with a list of ports: struct xt_multiport_v1 of linux/netfilter/xt_multiport.h.
func (e extension) multiport(p Packet) tri {
	const destination, either, most, size = 1, 2, 15, 48
	if len(e.data) < size || e.revision != 1 {
		return maybe
	}
	which, n := e.data[0], min(int(e.data[1]), most)
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(e.data[2+2*i:]) }
	listed := func(is uint16) tri {
		if is == 0 {
			return maybe
		}
		for i := 0; i < n; i++ {
			low := port(i)
			high := low
			if e.data[2+2*most+i] != 0 && i+1 < n {
				i++
				high = port(i)
			}
			if is >= low && is <= high {
				return yes
			}
		}
		return no
	}
	found := listed(p.SrcPort)
	switch which {
	case destination:
		found = listed(p.DstPort)
	case either:
		found = found.or(listed(p.DstPort))
	}
	if e.data[2+3*most] != 0 {
		found = found.not()
	}
	return found
}

// target is what becomes of a packet at a target that is not a verdict.
func (e extension) target() outcome {
	switch {
	case e.name == "REJECT" || e.name == "DROP":
		return dropped
	case slices.Contains([]string{"MASQUERADE", "SNAT", "DNAT", "REDIRECT", "NETMAP", "NFQUEUE", "TPROXY", "ACCEPT"}, e.name):
		return accepted
	case slices.Contains([]string{"LOG", "NFLOG", "MARK", "CONNMARK", "CT", "NOTRACK", "TRACE", "TCPMSS", "TOS", "DSCP", "CLASSIFY", "SECMARK",
		"CONNSECMARK", "CHECKSUM", "SET", "HL", "TTL", "AUDIT", "TEE"}, e.name):
		return onward
	}
	return accepted | dropped | onward
}
