package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/encap"
)

// trace writes a line for each packet:
//
//	12:00:01.000001 tx host-b 10.42.1.5:80 > 10.42.2.7:1234 tcp PA seq 7 ack 9 win 502 len 1348
//
// that is time, verdict, peer (- if it is not known), addresses, protocol, and the bytes that this carries. A superpacket
// has gso and the size of its segments behind it, a packet of another network than those of the daemon its VNI.
type trace struct {
	framer
	*decoder
	w    *bufio.Writer
	line []byte
}

func newTrace(out io.Writer) *trace {
	return &trace{decoder: newDecoder(), w: bufio.NewWriterSize(out, inputSize)}
}

// Flush implements sink.
func (t *trace) Flush() error { return t.w.Flush() }

// Close implements sink.
func (t *trace) Close(uint64) error { return t.w.Flush() }

// Packet implements sink.
func (t *trace) Packet(p *stream.Packet) error {
	peer := p.Peer
	if peer == "" {
		peer = "-"
	}
	t.line = time.Unix(0, p.Time).AppendFormat(t.line[:0], "15:04:05.000000")
	t.addf(" %s %s", p.Verdict, peer)
	t.content(p)
	if p.GSO != encap.GSONone {
		t.addf(" gso %d", p.Size)
	}
	if vni, ok := strangeVNI(p); ok {
		t.addf(" vni %d", vni)
	}
	t.line = append(t.line, '\n')
	_, err := t.w.Write(t.line)
	return err
}

func (t *trace) addf(format string, args ...any) { t.line = fmt.Appendf(t.line, format, args...) }

// strangeVNI returns the VNI of a datagram for no network of the daemon.
func strangeVNI(p *stream.Packet) (vni uint32, ok bool) {
	if p.Form != capture.Arrival || p.VNI != 0 || len(p.Data) < encap.VXLANLen {
		return 0, false
	}
	return binary.BigEndian.Uint32(p.Data[4:]) >> 8, true
}

// content adds what is in a packet.
func (t *trace) content(p *stream.Packet) {
	frame, length := t.frame(p)
	whole := t.decode(frame)
	switch t.last() {
	case layers.LayerTypeIPv4, layers.LayerTypeIPv6:
		t.addresses(0, 0)
		t.network()
	case layers.LayerTypeTCP:
		t.addresses(uint16(t.tcp.SrcPort), uint16(t.tcp.DstPort))
		t.addf(" tcp %s seq %d", tcpFlags(&t.tcp), t.tcp.Seq)
		if t.tcp.ACK {
			t.addf(" ack %d", t.tcp.Ack)
		}
		t.addf(" win %d len %d", t.tcp.Window, max(t.carried()-4*int(t.tcp.DataOffset), 0))
	case layers.LayerTypeUDP:
		t.addresses(uint16(t.udp.SrcPort), uint16(t.udp.DstPort))
		t.addf(" udp len %d", max(t.carried()-8, 0))
	case layers.LayerTypeICMPv4:
		t.addresses(0, 0)
		t.addf(" icmp %s", t.icmp4.TypeCode)
		if c := t.icmp4.TypeCode.Type(); c == layers.ICMPv4TypeEchoRequest || c == layers.ICMPv4TypeEchoReply {
			t.addf(" id %d seq %d", t.icmp4.Id, t.icmp4.Seq)
		}
		t.addf(" len %d", max(t.carried()-8, 0))
	case layers.LayerTypeICMPv6:
		t.addresses(0, 0)
		t.addf(" icmp6 %s", t.icmp6.TypeCode)
		if c := t.icmp6.TypeCode.Type(); (c == layers.ICMPv6TypeEchoRequest || c == layers.ICMPv6TypeEchoReply) && len(t.icmp6.Payload) >= 4 {
			t.addf(" id %d seq %d", binary.BigEndian.Uint16(t.icmp6.Payload), binary.BigEndian.Uint16(t.icmp6.Payload[2:]))
		}
		t.addf(" len %d", max(t.carried()-8, 0))
	case layers.LayerTypeEthernet:
		if uint16(t.eth.EthernetType) == etherTypeOther && p.Form != capture.Datagram {
			what := "datagram without a frame"
			if p.Form == capture.IP {
				what = "not IP"
			}
			t.addf(" %s len %d", what, p.Length)
			return
		}
		t.addf(" %s > %s ethertype %#04x len %d", t.eth.SrcMAC, t.eth.DstMAC, uint16(t.eth.EthernetType), max(length-encap.EthernetLen, 0))
	default:
		t.addf(" frame of %d bytes", length)
	}
	if !whole {
		t.line = append(t.line, " (cut or damaged)"...)
	}
}

// isIPv4 reports whether the packet is IPv4; else it is IPv6.
func (t *trace) isIPv4() bool { return t.eth.EthernetType == layers.EthernetTypeIPv4 }

// addresses adds source and destination, with ports unless they are 0.
func (t *trace) addresses(from, to uint16) {
	src, dst := t.ip6.SrcIP, t.ip6.DstIP
	if t.isIPv4() {
		src, dst = t.ip4.SrcIP, t.ip4.DstIP
	}
	t.line = append(t.line, ' ')
	t.address(src, from)
	t.line = append(t.line, " > "...)
	t.address(dst, to)
}

func (t *trace) address(ip []byte, port uint16) {
	addr, _ := netip.AddrFromSlice(ip)
	if port == 0 {
		t.line = addr.AppendTo(t.line)
		return
	}
	t.line = netip.AddrPortFrom(addr, port).AppendTo(t.line)
}

// carried returns how many bytes the IP packet carries, by its header.
func (t *trace) carried() int {
	if t.isIPv4() {
		return int(t.ip4.Length) - 4*int(t.ip4.IHL)
	}
	if t.ip6.HopByHop != nil {
		return int(t.ip6.IPv6.Length) - t.ip6.HopByHop.ActualLength
	}
	return int(t.ip6.IPv6.Length)
}

// network adds an IP packet of which no more is known.
func (t *trace) network() {
	if !t.isIPv4() {
		t.addf(" proto %d len %d", uint8(t.ip6.proto()), max(t.carried(), 0))
		return
	}
	t.addf(" proto %d", uint8(t.ip4.Protocol))
	if more := t.ip4.Flags&layers.IPv4MoreFragments != 0; more || t.ip4.FragOffset != 0 {
		t.addf(" frag %d", 8*int(t.ip4.FragOffset))
		if more {
			t.line = append(t.line, '+')
		}
	}
	t.addf(" len %d", max(t.carried(), 0))
}

// tcpFlags returns the flags that are set, as letters.
func tcpFlags(h *layers.TCP) string {
	b := make([]byte, 0, 8)
	for _, f := range [...]struct {
		set    bool
		letter byte
	}{{h.SYN, 'S'}, {h.FIN, 'F'}, {h.RST, 'R'}, {h.PSH, 'P'}, {h.ACK, 'A'}, {h.URG, 'U'}, {h.ECE, 'E'}, {h.CWR, 'W'}} {
		if f.set {
			b = append(b, f.letter)
		}
	}
	return string(b)
}
