// Package encap knows the bytes of the overlay and nothing else: the VXLAN and
// inner Ethernet headers in front of a packet, the inner IP packet itself, its
// flow hash and checksums, and the splitting of TCP superpackets. It does no I/O,
// starts no goroutine, imports the standard library only and allocates nothing
// once a packet is in hand.
//
// All that it parses comes from the network and is taken to be hostile: every
// function states what it has checked, and what it needs checked before.
//
// On the way out a packet meets [Destination], [QuickHash] and
// [Template.Put]; on the way in [ParseVXLAN], [ParseEthernet], [ParseIP],
// [CompleteChecksum] and, where it is a superpacket, a [Splitter].
package encap
