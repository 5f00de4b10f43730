package carrier

import "net/netip"

const testPort = 8472

var (
	podA = netip.MustParseAddr("10.42.1.2")
	podB = netip.MustParseAddr("10.42.2.2")
)

// entryTo is the entry of a peer at that address.
func entryTo(a netip.AddrPort) *Entry { return &Entry{Peer: NewPeer(a)} }
