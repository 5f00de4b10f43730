package dataplane

// Stats counts what a dataplane carried. Every packet that it received is
// either delivered or counted in Drops under one reason.
type Stats struct {
	TxPackets, TxBytes uint64 // overlay to underlay, inner packets and their bytes
	RxPackets, RxBytes uint64 // underlay to overlay, inner packets and their bytes
	Drops              [NumDrops]uint64
	TxWriteErrors      uint64 // those of Drops[DropWriteError] that the underlay refused; the others were for the overlay
	NarrowPaths        uint64 // ICMP messages that were not believed, because the path MTU in them was too small
	Offload            OffloadStats
}

// OffloadStats counts what offloads did for the userspace dataplane. The kernel's
// counts nothing here.
type OffloadStats struct {
	TxSuperpackets uint64 // superpackets from the host, for us to split
	TxSegments     uint64 // that these were split into
	TxBatches      uint64 // times that packets were sent together; packets per batch tell how well it works
	RxSuperpackets uint64 // handed to the host
	RxSegments     uint64 // received packets that were joined to superpackets
	RxBatches      uint64 // times that datagrams were received together
	Fallbacks      uint64 // times that the kernel refused an offload and the work was done without it
}

// Add adds what t has counted.
func (s *Stats) Add(t Stats) {
	s.TxPackets += t.TxPackets
	s.TxBytes += t.TxBytes
	s.RxPackets += t.RxPackets
	s.RxBytes += t.RxBytes
	s.TxWriteErrors += t.TxWriteErrors
	s.NarrowPaths += t.NarrowPaths
	for reason, n := range t.Drops {
		s.Drops[reason] += n
	}
	for i, n := range t.Offload.Fields() {
		*s.Offload.Fields()[i] += *n
	}
}

// Less takes away what t has counted, which s has counted too.
func (s *Stats) Less(t Stats) {
	s.TxPackets -= t.TxPackets
	s.TxBytes -= t.TxBytes
	s.RxPackets -= t.RxPackets
	s.RxBytes -= t.RxBytes
	s.TxWriteErrors -= t.TxWriteErrors
	s.NarrowPaths -= t.NarrowPaths
	for reason, n := range t.Drops {
		s.Drops[reason] -= n
	}
	for i, n := range t.Offload.Fields() {
		*s.Offload.Fields()[i] -= *n
	}
}

// Fields returns all counts, so that they can be added up in a loop.
func (o *OffloadStats) Fields() [7]*uint64 {
	return [...]*uint64{&o.TxSuperpackets, &o.TxSegments, &o.TxBatches, &o.RxSuperpackets, &o.RxSegments, &o.RxBatches, &o.Fallbacks}
}

// Traffic is what went both ways between this host and one VTEP, in bytes of inner packets.
type Traffic struct {
	TxBytes uint64 `json:"tx_bytes"` // sent to the VTEP
	RxBytes uint64 `json:"rx_bytes"` // accepted as the VTEP's; what the overlay device refuses is in Stats.Drops too
}

// Plus returns both together.
func (t Traffic) Plus(u Traffic) Traffic {
	return Traffic{t.TxBytes + u.TxBytes, t.RxBytes + u.RxBytes}
}

// Drop is the reason why a packet was not forwarded. Its value is an index
// into Stats.Drops.
type Drop uint8

// The reasons for a drop. Their names in logs and metrics never change.
const (
	DropNoRoute        Drop = iota // no peer has the destination
	DropBadHeader                  // an inner or outer header is short, inconsistent or not IP
	DropBadVNI                     // VXLAN flags, reserved bits or VNI are not this network's
	DropBadMAC                     // the inner frame is not for this VTEP, or claims to be from it
	DropUnknownVTEP                // the outer source is not a peer
	DropBadSource                  // the inner source is not in a subnet of the peer that sent it
	DropBadDestination             // the inner destination is not in a subnet of this host
	DropBadChecksum                // a superpacket with a wrong checksum, which splitting would make right
	DropTooBig                     // does not fit the path
	DropQueueFull                  // the kernel dropped it before it was read: the receive buffer was full, or the outer checksum was wrong
	DropWriteError                 // the underlay socket or the overlay device refused it; Stats.TxWriteErrors tells them apart
	DropDevice                     // dropped by the kernel's device, which does not tell why
	DropCongestion                 // the underlay marked congestion, and only loss can tell its sender (RFC 6040)
	DropFragment                   // a fragment where there should be none, or of a packet that cannot be checked in pieces
	DropPlainSource                // from the underlay, with the source of a pod and no encapsulation
	DropEgress                     // from a process or a pod to a VTEP: to its VXLAN port, from that port, or with a VXLAN header of the network
	DropFlood                      // not from a known VTEP, or of another network: more than are let through as samples (dataplane/guard, and the filter of dataplane/carrier)
	DropNarrowPath                 // an ICMP message that told of a path to a VTEP below --min-path-mtu, and was kept from the kernel
	NumDrops           = iota
)

// String returns the reason as it is written in logs and metrics.
func (d Drop) String() string {
	names := [NumDrops]string{"no_route", "bad_header", "bad_vni", "bad_mac", "unknown_vtep", "bad_source", "bad_destination",
		"bad_checksum", "too_big", "queue_full", "write_error", "device", "congestion",
		"fragment", "plain_source", "egress", "flood", "narrow_path"}
	if int(d) < len(names) {
		return names[d]
	}
	return "unknown"
}
