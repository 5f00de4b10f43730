package userspace

// Offloads returns those that are in use now: what the kernel lacks, or has refused since, is not among them, but joined packets that the device refuses still count. It may be
// called at any time.
func (d *Dataplane) Offloads() Offloads {
	if !isClosed(d.entered) {
		return 0
	}
	return offloadsIn(describe(d.host, d.port.carriers[0]))
}

// offloadsIn returns the offloads that describe tells of.
func offloadsIn(attrs []any) (o Offloads) {
	bits := map[any]Offloads{"tun_vnet": TUNVnet, "tun_mask": TUNGSO, "queues": TUNMultiqueue, "coalesce": Coalesce, "udp_segment": UDPSegment, "udp_gro": UDPGRO, "tunnel": Tunnel}
	for i := 0; i+1 < len(attrs); i += 2 {
		if isOn(attrs[i+1]) {
			o |= bits[attrs[i]]
		}
	}
	return o
}

// isOn reports whether a value says more than one at a time.
func isOn(value any) bool {
	switch v := value.(type) {
	case bool:
		return v
	case int:
		return v > 1
	case int32:
		return v > 1
	case string:
		return v != "0x0"
	}
	return false
}
