package main

import (
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// decoder reads the headers of frames. It knows the layers that can occur in an overlay and are worth a line, and no
// others: gopacket's NewPacket would read whatever is in a packet, and a 196-byte one has it take 256 MB. What lies
// inside of an IP packet in an IP packet is not looked at either.
type decoder struct {
	parser  *gopacket.DecodingLayerParser
	decoded []gopacket.LayerType

	eth   layers.Ethernet
	ip4   ipv4
	ip6   ipv6
	tcp   layers.TCP
	udp   layers.UDP
	icmp4 layers.ICMPv4
	icmp6 layers.ICMPv6
}

func newDecoder() *decoder {
	d := new(decoder)
	d.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &d.eth, &d.ip4, &d.ip6, &d.tcp, &d.udp, &d.icmp4, &d.icmp6)
	d.parser.IgnoreUnsupported = true
	return d
}

// decode reads the headers of a frame, as far as they are there and make sense. whole says whether all of them do.
func (d *decoder) decode(frame []byte) (whole bool) {
	d.decoded = d.decoded[:0]
	return d.parser.DecodeLayers(frame, &d.decoded) == nil
}

// last returns what was read last.
func (d *decoder) last() gopacket.LayerType {
	if len(d.decoded) == 0 {
		return gopacket.LayerTypeZero
	}
	return d.decoded[len(d.decoded)-1]
}

// ipv4 is an IPv4 header in which only transport is looked for.
type ipv4 struct{ layers.IPv4 }

// NextLayerType implements gopacket.DecodingLayer.
func (ip *ipv4) NextLayerType() gopacket.LayerType {
	return transport(ip.IPv4.NextLayerType())
}

// ipv6 is an IPv6 header in which only transport is looked for.
type ipv6 struct{ layers.IPv6 }

// NextLayerType implements gopacket.DecodingLayer.
func (ip *ipv6) NextLayerType() gopacket.LayerType {
	return transport(ip.IPv6.NextLayerType())
}

// proto returns the number of what the packet carries.
func (ip *ipv6) proto() layers.IPProtocol {
	if ip.HopByHop != nil {
		return ip.HopByHop.NextHeader
	}
	return ip.NextHeader
}

func transport(t gopacket.LayerType) gopacket.LayerType {
	switch t {
	case layers.LayerTypeTCP, layers.LayerTypeUDP, layers.LayerTypeICMPv4, layers.LayerTypeICMPv6:
		return t
	}
	return gopacket.LayerTypePayload
}
