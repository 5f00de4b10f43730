package encap

// What tests compare with, or reach parts of the package by.

// FlowHash returns a hash of the flow of the packet b that ParseIP read into ip:
// of addresses, protocol and, for TCP and UDP, ports. Every fragment of a
// datagram, the first included, hashes without ports, so that all of
// them take one path. Equal flows hash equally in every process.
func FlowHash(b []byte, ip *IP) uint32 {
	var ports uint32
	if !ip.Fragment {
		ports = flowPorts(b[:ip.Len], ip.HeaderLen, ip.Proto)
	}
	if ip.Version == 4 {
		return flowHash4(b, ports, ip.Proto)
	}
	return flowHash6(b, ports, ip.Proto)
}

// InitTCP prepares to split a TCP packet into segments of at most maxLen bytes, IP
// header included.
func (s *Splitter) InitTCP(packet []byte, maxLen int) error {
	if err := s.reset(packet, ProtoTCP, tcpMinLen); err != nil {
		return err
	}
	return s.plan(maxLen - s.headers)
}

// InitUDP prepares to split a UDP packet into datagrams of size payload bytes, the
// last of which may be shorter: the boundaries that the sending application
// set with UDP_SEGMENT, which no length limit can tell.
// Datagrams of a packet without a checksum (IPv4 only) have none either.
func (s *Splitter) InitUDP(packet []byte, size int) error {
	if err := s.reset(packet, ProtoUDP, udpLen); err != nil {
		return err
	}
	return s.plan(size)
}

// SourcePort scales hash onto the ports from lo to hi, both included, as an
// outer source port (RFC 7348 section 5). If hi is not above lo it is lo.
func SourcePort(hash uint32, lo, hi uint16) uint16 {
	if hi <= lo {
		return lo
	}
	n := uint64(hi-lo) + 1
	return lo + uint16(uint64(hash)*n>>32)
}
