package firewall

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// links are the interfaces of packets, by name. One that is not there is missing.
type links map[string]*netlink.LinkAttrs

// linksOf reads the interfaces of packets.
func linksOf(packets []Packet) links {
	all := links{}
	for _, p := range packets {
		for _, name := range [...]string{p.In, p.Out} {
			if _, done := all[name]; done || name == "" {
				continue
			}
			if l, err := netlink.LinkByName(name); err == nil { // else nothing is known of it
				all[name] = l.Attrs()
			}
		}
	}
	return all
}

// face is what rules may ask of an interface. Without an interface there is no kind and no group: then the rule does not match.
type face struct{ name, index, kind, group some }

// kinds are the numbers of some types of interface (linux/if_arp.h).
var kinds = map[string]uint16{"ether": unix.ARPHRD_ETHER, "loopback": unix.ARPHRD_LOOPBACK, "none": unix.ARPHRD_NONE}

// face returns what is known of the interface with this name. The name "" means no interface. ok is false if the name is unknown, too.
func (l links) face(name string, ok bool) face {
	text := make([]byte, unix.IFNAMSIZ)
	copy(text, name)
	f := face{name: known(text), index: unknown(4), kind: unknown(2), group: unknown(4)}
	link := l[name]
	switch {
	case !ok:
		f.name = unknown(unix.IFNAMSIZ)
	case name == "":
		return face{name: f.name, index: known(native(0))}
	case link != nil:
		f.index, f.group = known(native(uint32(link.Index))), known(native(link.Group))
		if kind, is := kinds[link.EncapType]; is {
			f.kind = known(binary.NativeEndian.AppendUint16(nil, kind))
		}
	}
	return f
}

// meta loads what is known about the packet beside its bytes.
func (x *rule) meta(m expr.Meta) {
	in, out := x.links.face(x.packet.comes(x.hook)), x.links.face(x.packet.leaves(x.hook))
	s := unknown(unix.IFNAMSIZ)
	switch m.Key {
	case expr.MetaKeyL4PROTO:
		s = known([]byte{x.packet.Protocol})
	case expr.MetaKeyNFPROTO:
		s = known([]byte{byte(x.packet.family())})
	case expr.MetaKeyPROTOCOL:
		s = known([]byte{unix.ETH_P_IPV6 >> 8, unix.ETH_P_IPV6 & 0xff})
		if x.packet.family() == nft.IPv4 {
			s = known([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
		}
	case expr.MetaKeyPKTTYPE:
		if x.packet.Path != Sent { // of its own packets the kernel says this or that
			s = known([]byte{unix.PACKET_HOST})
		}
	case expr.MetaKeyIIFNAME:
		s = in.name
	case expr.MetaKeyIIF:
		s = in.index
	case expr.MetaKeyIIFTYPE:
		s = in.kind
	case expr.MetaKeyIIFGROUP:
		s = in.group
	case expr.MetaKeyOIFNAME:
		s = out.name
	case expr.MetaKeyOIF:
		s = out.index
	case expr.MetaKeyOIFTYPE:
		s = out.kind
	case expr.MetaKeyOIFGROUP:
		s = out.group
	}
	if s.bytes == nil {
		x.condition(no)
		return
	}
	x.load(m.Register, s)
}

// fib is what the routing tables say: of an address its type, if no interface matters.
func (x *rule) fib(f expr.Fib) some {
	src, dst := x.packet.types()
	switch {
	case !f.ResultADDRTYPE || f.FlagIIF || f.FlagOIF:
	case f.FlagSADDR:
		return known(native(src))
	case f.FlagDADDR:
		return known(native(dst))
	}
	return unknown(unix.IFNAMSIZ)
}
