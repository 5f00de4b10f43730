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
//   - [Counters]: what became of them; captures see it there, too (dataplane/capture)
//
// Packets and datagrams are values that only their readers make, and they are borrowed until the
// reading end calls flush. So nothing on the way is allocated, locked or handed to another goroutine.
//
// # The carrier of UDP sockets
//
// Out: batch.go joins datagrams of one size to one VTEP to runs, sender_udp_linux.go sends a run as one
// UDP_SEGMENT message, and segment_linux.go finds out at the start how many datagrams that takes. What
// the kernel refuses as a run goes out as single datagrams.
//
// In: receiver_udp_linux.go receives all that is there, cut.go cuts what UDP_GRO joined, and guess.go
// finds what a packet leaves to be done, as a socket does not tell.
//
// A carrier of UDP sockets can receive while the kernel's vxlan devices have its port: seat_linux.go moves
// receivers from one socket to another, and move_linux.go sends datagrams by a detour (udp.Detour).
//
// In a flood a carrier can have the kernel drop what nobody wants before it is queued: shield_linux.go.
//
// # The carrier with an uplink
//
// tunnel_linux.go: superpackets leave whole, inside of the tunnel, by a TAP device, for peers whose way is known; sender_tunnel_linux.go
// writes them. All else goes by the sockets, and so do superpackets for which there is no way, are too long for it or
// are refused: nothing is lost by that. A flow's packets have one source port by either, that of a socket, and leave in their order: what a batch holds
// of the port goes first. What comes is received by the sockets, which take a superpacket of a peer on the same machine whole: a packet socket is no faster
// (bench/README.md), and sees packets before the guard does.
//
// # Partial checksums
//
// The kernel of a peer on this machine leaves inner checksums partial, and a UDP
// socket has no sign of it (measured on 6.18: a packet socket has, TP_STATUS_CSUMNOTREADY),
// so a checksum is taken for partial if it equals the pseudo-header sum. If the
// outer UDP checksum is in use, as always over IPv6, the kernel has verified all of the
// packet before. If an IPv4 peer sends none (noudpcsum), one of 65536 packets that were damaged on
// their way is taken for partial, and so for sound: as often as its
// own checksum is right by chance.
//
// # Path MTU
//
// With UDPConfig.DF, and over IPv6 always, the underlay does not fragment. The kernel notes what ICMP says about
// paths, but sends all that the link takes (IP_PMTUDISC_PROBE). path_linux.go looks at the peers with traffic, and at what the kernel
// noted (udp.PathProbe); before it believes that, it sends a probe and hears what ICMP says about it (udp.Trial), because anybody can forge
// ICMP. What it believes is noted in the peer; the core tells the senders of longer packets. What may be fragmented leaves
// by a socket of its own, without DF, as does an IPv6 packet that its sender need not
// make any shorter. All other IPv4 sockets ignore ICMP about the path (IP_PMTUDISC_OMIT), which
// anybody can forge.
//
// # How to add a carrier
//
// Implement Carrier, [Sender] and [Receiver], and give an [Opener] of it to the Port of
// dataplane/userspace, as NewPort there does with UDP. The core allots the largest headroom of all
// carriers of the Port. If receivers are told what packets leave to be done, their datagrams are exact;
// if not, they implement [Guesser]. dummy_test.go of dataplane/userspace adds one in a few lines, and
// carriertest is the suite that every one has to pass. [Wire] is one in memory, for tests and benchmarks.
package carrier
