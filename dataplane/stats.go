package dataplane

// Stats counts what a dataplane carried. Every packet that it received is
// either delivered or counted in Drops under one reason.
type Stats struct {
	TxPackets, TxBytes uint64 // overlay to underlay, inner packets and their bytes
	RxPackets, RxBytes uint64 // underlay to overlay, inner packets and their bytes
	Drops              [NumDrops]uint64
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
	NumDrops        = iota
)

// String returns the reason as the lower-case word used in logs and metrics.
func (d Drop) String() string {
	names := [NumDrops]string{"malformed", "no_route", "bad_vni", "bad_mac", "unknown_vtep",
		"bad_source", "too_big", "send", "deliver", "overrun", "device"}
	if int(d) < len(names) {
		return names[d]
	}
	return "unknown"
}
