// Package carrier holds the ways by which the userspace dataplane's packets travel the underlay, and the
// seam between them and the core that uses them (dataplane/userspace). A [Carrier] is one way to and
// from the underlay of one family: [UDP] consists of UDP sockets (dataplane/udp), [Tunnel] of these and of an uplink for
// superpackets (dataplane/uplink).
//
// # What crosses the seam
//
//   - [Packet]: what a host sends, behind headroom for the headers, with what is left to offload
//   - [Entry] and [Peer]: where it goes. An entry is for one lease and lives until the next Sync; a peer
//     is for one VTEP, knows its path MTU and lives as long as it is wanted
//   - [Datagram]: what came from the underlay, with all that its receiver knows of it
//   - [Counters]: what happened to packets and datagrams. Captures watch them, too (dataplane/capture)
//
// Packets and datagrams are values. Only their readers make them, and lend them until the
// reading end calls flush. So nothing on the way is allocated, locked or handed to another goroutine.
//
// # The carrier of UDP sockets
//
// Out: batch.go joins datagrams of one size to one VTEP to runs, sender_udp_linux.go sends a run as one
// UDP_SEGMENT message, and segment_linux.go finds out at the start how many datagrams that takes. What
// the kernel refuses as a run goes out as single datagrams.
//
// In: receiver_udp_linux.go receives all datagrams that are there, cut.go cuts what UDP_GRO joined, and guess.go
// finds out which offloads a packet still needs, because a socket does not tell.
//
// The sockets that send have a port each, so that flows differ in their outer ports. If every UDP port of this host is taken, a socket that
// receives sends in their place: share_linux.go.
//
// A carrier of UDP sockets can receive while the kernel's vxlan devices have its port: seat_linux.go moves
// receivers from one socket to another, and move_linux.go sends datagrams by a detour (udp.Detour).
//
// In a flood a carrier can have the kernel drop unwanted datagrams before it queues them: shield_linux.go.
//
// # The carrier with an uplink
//
// tunnel_linux.go: superpackets to peers that the uplink reaches leave whole, inside of the tunnel, by a TAP device. sender_tunnel_linux.go
// writes them. All other packets leave by the sockets. So do superpackets to peers that the uplink does not reach,
// that are too long for it, or that it refuses; none is lost. The packets of a flow have the same source port on both ways, that of a socket. They keep their
// order: before a superpacket leaves, the batch sends what it holds for that port.
//
// The sockets receive everything. They take a superpacket from a peer on the same machine whole. A packet socket would be no faster
// (bench/README.md), and would see packets before the guard.
//
// # Partial checksums
//
// The kernel of a peer on this machine leaves inner checksums partial. A UDP socket does
// not say so (a packet socket does, by TP_STATUS_CSUMNOTREADY; measured on Linux 6.18).
// Therefore a checksum counts as partial if it equals the pseudo-header sum. If the
// outer UDP checksum is in use, as always over IPv6, the kernel has verified the whole
// packet before. If an IPv4 peer sends none (noudpcsum), one of 65536 damaged packets
// looks partial and is accepted: as often as its own checksum would be right by chance.
//
// # Path MTU
//
// With UDPConfig.DF, and always over IPv6, the underlay does not fragment. The kernel notes what ICMP says about
// paths, but still sends packets of any size that the link takes (IP_PMTUDISC_PROBE).
//
// For peers with traffic, path_linux.go reads what the kernel noted (udp.PathProbe). Anybody can forge ICMP. So before it believes
// the note, it sends a probe and waits for the ICMP answer to it (udp.Trial). It stores a path MTU that it believes in the peer,
// and the core tells the senders of longer packets. Packets that may be fragmented leave by a socket of their own,
// without DF; so do IPv6 packets that their senders need not make any shorter. All other IPv4 sockets ignore
// ICMP about the path (IP_PMTUDISC_OMIT).
//
// # How to add a carrier
//
// Implement Carrier, [Sender] and [Receiver], and give an [Opener] of it to the Port of
// dataplane/userspace, as NewPort there does with UDP. The core reserves the largest headroom of all
// carriers of the Port. If receivers are told which offloads a packet still needs, their datagrams are exact;
// if not, they implement [Guesser]. dummy_test.go of dataplane/userspace adds a carrier in a few lines.
// Every carrier has to pass the suite in carriertest. [Wire] is a carrier in memory, for tests and benchmarks.
package carrier
