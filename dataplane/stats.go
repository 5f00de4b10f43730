package dataplane

// Stats counts what a dataplane carried. Every packet that it received is
// either delivered or counted in Drops under one reason.
type Stats struct {
	TxPackets, TxBytes uint64 // overlay to underlay, inner packets and their bytes
	RxPackets, RxBytes uint64 // underlay to overlay, inner packets and their bytes
	Drops              [NumDrops]uint64
	Offload            OffloadStats
}

// OffloadStats counts what offloads did for the userspace dataplane. The kernel's
// counts nothing here.
type OffloadStats struct {
	TxSuperpackets uint64 // of the host, which left them for us to split
	TxSegments     uint64 // that these were split into
	TxBatches      uint64 // times that packets were sent together; packets per batch say how well it works
	RxSuperpackets uint64 // handed to the host
	RxSegments     uint64 // received packets that were joined to superpackets
	RxBatches      uint64 // times that datagrams were received together
	Fallbacks      uint64 // times that the kernel refused an offload and the work was done without it
}

// Drop is the reason why a packet was not forwarded. Its value is an index
// into Stats.Drops.
type Drop uint8

// The reasons for a drop. Those of the kernel dataplane are the device's own
// counters and come under DropDevice.
const (
	DropMalformed   Drop = iota // an inner or outer header is short, inconsistent or not IP
	DropNoRoute                 // no peer has the destination
	DropBadVNI                  // VXLAN flags, reserved bits or VNI are not this network's
	DropBadMAC                  // inner frame is not for this VTEP, or claims to be from it
	DropUnknownVTEP             // outer source is no peer
	DropBadSource               // inner source is not in a subnet of the peer that sent it
	DropTooBig                  // does not fit the underlay
	DropSend                    // the underlay socket refused it
	DropDeliver                 // the overlay device refused it
	DropOverrun                 // the kernel dropped it before it was read: receive buffer full
	DropDevice                  // dropped by the kernel's device
	DropCongestion              // the underlay marked congestion, and only loss can tell its sender (RFC 6040)
	NumDrops        = iota
)

// String returns the reason as the lower-case word used in logs and metrics.
func (d Drop) String() string {
	names := [NumDrops]string{"malformed", "no_route", "bad_vni", "bad_mac", "unknown_vtep",
		"bad_source", "too_big", "send", "deliver", "overrun", "device", "congestion"}
	if int(d) < len(names) {
		return names[d]
	}
	return "unknown"
}
