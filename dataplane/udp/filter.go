package udp

import (
	"net/netip"
	"slices"
)

// MaxFilterSources is how many sources a Filter has at most: with more, what it costs for each packet and in memory
// (net.core.optmem_max, 20 KiB on older kernels) is no longer small.
const MaxFilterSources = 200

// Filter is what a socket that receives VXLAN takes under a flood. Everything else the kernel drops before it is
// queued, but for one of 256 datagrams, so that whoever reads the socket can tell what comes.
//
// Of what UDP_GRO has joined the kernel shows the filter only the first datagram: whoever reads has to check each one.
// They all are of one source.
type Filter struct {
	VNIs    []uint32     // the networks; 24 bits
	Sources []netip.Addr // sorted, of the family of the socket; nil: any
}

// Equal reports whether g takes the same.
func (f Filter) Equal(g Filter) bool {
	return slices.Equal(f.VNIs, g.VNIs) && (f.Sources == nil) == (g.Sources == nil) && slices.Equal(f.Sources, g.Sources)
}
