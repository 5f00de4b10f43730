package main

import (
	"net/netip"

	"github.com/overlayd/overlayd/bench/compare/agent"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// floodKind is one kind of what a host that is not a peer sends to a VXLAN port.
type floodKind struct {
	name  string
	flood func(*stage) agent.Flood // all but where to, and how long
}

func floodKinds() []floodKind {
	return []floodKind{
		{"unknown VTEP", func(s *stage) agent.Flood {
			return agent.Flood{From: s.x.underlay, Payload: s.frame(vni, s.overlay[0][0], s.overlay[1][0])}
		}},
		{"wrong VNI", func(s *stage) agent.Flood {
			return agent.Flood{From: s.x.underlay, Payload: s.frame(vni+1, s.overlay[0][0], s.overlay[1][0])}
		}},
		{"garbage", func(s *stage) agent.Flood { return agent.Flood{From: s.x.underlay, Payload: garbage()} }},
		{"fragments", func(s *stage) agent.Flood {
			return agent.Flood{From: s.x.underlay, Payload: s.frame(vni, s.overlay[0][0], s.overlay[1][0]), Fragments: true}
		}},
		{"a VTEP's address, an inner source of nobody's", func(s *stage) agent.Flood {
			return agent.Flood{From: s.a.underlay, Payload: s.frame(vni, netip.MustParseAddr("8.8.8.8"), s.overlay[1][0])}
		}},
		{"a VTEP's address, an inner destination of nobody's", func(s *stage) agent.Flood {
			return agent.Flood{From: s.a.underlay, Payload: s.frame(vni, s.overlay[0][0], netip.MustParseAddr("8.8.8.8"))}
		}},
	}
}

// vni and vxlanPort are what flannel and overlayd have by default.
const (
	vni       = 1
	vxlanPort = encap.DefaultPort
)

// frame is a datagram of VXLAN to host b, with those inner addresses.
func (s *stage) frame(vni uint32, src, dst netip.Addr) []byte {
	b := make([]byte, encap.HeaderLen, 400)
	t := encap.NewTemplate(vni, dataplane.MAC(s.under[1][0], vni), encap.MAC{2, 9})
	t.Put(b, encap.EtherTypeIPv4)
	return append(b, agent.Datagram(src, dst, 1, 9, make([]byte, 300))...)
}

func garbage() []byte {
	b := make([]byte, 400)
	for i := range b {
		b[i] = byte(i*7 + 3)
	}
	return b
}
