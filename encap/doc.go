// Package encap knows the bytes of the overlay and nothing else: the VXLAN and
// inner Ethernet headers in front of a packet, the inner IP packet itself, its
// flow hash, checksums and ECN field, the splitting of superpackets into segments
// and the way back, and the answer to a packet that is too big. It does no I/O,
// starts no goroutine, imports the standard library only and allocates nothing
// once a packet is in hand.
//
// All that it parses comes from the network and is taken to be hostile: every
// function states what it has checked, and what it needs checked before.
//
// On the way out a packet meets [Destination], [QuickHash], [PacketECN] and
// [Template.Put], and, if it is a superpacket, a [Splitter], whose segments
// [RunLen] divides into sends. On the way in it meets [ParseVXLAN],
// [ParseEthernet], [ParseIP], [DecapECN], and then either a [Coalescer] with an
// [Offload] for a device that completes checksums and takes superpackets, or
// [CompleteChecksum] and a [Splitter] for one that does not.
package encap
