package userspace

import (
	"net/netip"

	"github.com/overlayd/overlayd/dataplane/packettest"
)

var (
	podA  = netip.MustParseAddr("10.42.1.2")
	podB  = netip.MustParseAddr("10.42.2.2")
	podA6 = netip.MustParseAddr("fd42:0:0:1::2")
	podB6 = netip.MustParseAddr("fd42:0:0:2::2")

	subnetA  = netip.MustParsePrefix("10.42.1.0/24")
	subnetB  = netip.MustParsePrefix("10.42.2.0/24")
	subnetA6 = netip.MustParsePrefix("fd42:0:0:1::/64")
	subnetB6 = netip.MustParsePrefix("fd42:0:0:2::/64")
)

// Short names, as tests are full of them.
var (
	udpPacket    = packettest.UDP
	tcpPacket    = packettest.TCP
	makePartial  = packettest.MakePartial
	headerLen    = packettest.HeaderLen
	pseudoHeader = packettest.PseudoHeader
	slowSum      = packettest.Sum
	sound        = packettest.Sound
)
