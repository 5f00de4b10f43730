// Package userspace is the dataplane that forwards packets itself, between a TUN
// device and UDP sockets, for machines that do not have the kernel's vxlan device. On the
// wire it is a vxlan device: kernel peers and it reach each other.
//
// It has three parts, with an interface at each of the two joints (seams.go, carrier/seam.go):
//
//	host     the side of this machine: a TUN device (host_tun_linux.go; dataplane/device)
//	core     decides: workers, forwarding (core.go, send.go, demux.go, lane.go)
//	carrier  one way to and from the underlay of one family: UDP sockets, with an uplink for superpackets beside them (dataplane/carrier)
//
// It uses every offload that sockets, TUN and TAP devices have ([Offloads]), so
// that a system call carries up to 64 KB, or many packets. Each one is optional,
// down to the plain tier of one packet per system call on the device (plain.go).
//
// # One packet, TUN to wire
//
// The files in reading order; no channel, no lock, no map and no allocation is on
// the way (tests assert the last).
//
//  1. tun_vnet_linux.go, (*vnetQueue).Read: all packets that the host has ready, each
//     behind headroom for its headers; tun_linux.go is the same without vnet headers
//  2. vnet.go, decodeVnet: superpacket? partial checksum?
//  3. send.go, (*sendWorker).send: one loop, one goroutine, one queue
//  4. encap/packet.go: bounds-checked destination; a bad packet is DropBadHeader
//  5. forwarding.go: the destination's entry, which has the [encap.Template], the peer and
//     the carrier; no entry is DropNoRoute. sources.go: the source is one of this host, or not the overlay's;
//     else it is DropBadSource, so that no pod sends in the name of another one
//  6. encap/vxlan.go, Template: VXLAN and Ethernet header into the headroom
//  7. carrier/batch.go, (*batcher).Send of the entry's carrier: encap/flow.go hashes the flow
//     to one of 16 source ports; encap/offload.go completes a partial checksum; encap/split.go makes
//     headers for the segments of a superpacket, whose payload stays where it was
//     read; datagrams of one size to one VTEP become a run. A superpacket whose peer has a way by the uplink goes there instead, at once and whole (carrier/sender_tunnel_linux.go)
//  8. carrier/sender_udp_linux.go, (*udpTransmitter).transmit, when no packet is ready any more (the
//     queue calls the worker's flush within Read): one UDP_SEGMENT message per run, one sendmmsg
//     per socket. What the kernel refuses as a run goes out as single datagrams. What was sent counts for its
//     peer (carrier/counters.go)
//
// # One packet, wire to TUN
//
//  1. carrier/receiver_udp_linux.go, (*udpReceiver).Receive: all datagrams that are there, each
//     with its source and the outer ECN field. A socket gets all that comes to the
//     port, of whatever VNI
//  2. carrier/cut.go, cutter: what UDP_GRO joined, or a UDP superpacket that looks like it
//  3. demux.go, (*receiveWorker).receive: the VXLAN header has to be exact, and the VNI that of a network on
//     this port (port.go). Each network has a lane of its own at each worker
//  4. lane.go, (*lane).accept, with sources.go: the outer source is a known VTEP, the MAC ours, the inner source
//     in a subnet of that VTEP or its own address, the inner destination in a subnet of this host. So nothing is relayed, sent back, or
//     delivered to loopback, multicast or broadcast. Config.SourceCheck may take other sources, not other destinations.
//     What is accepted counts for its peer; samples.go notes what is dropped for its source, and logs it later
//  5. encap/ecn.go: congestion that the underlay marked goes inside (RFC 6040)
//  6. carrier/guess.go, socketGuesser: a partial checksum or a superpacket? A socket does not tell. If
//     the datagram is not Exact, the lane asks the receiver
//  7. vnet_write.go, (*vnetWriter).Write: encap/coalesce.go joins segments to
//     superpackets; plain.go is for a device without vnet headers: checksum
//     completed, superpacket split
//  8. vnet_write.go, (*vnetWriter).Flush, when no datagram is left: one writev per packet
//
// The families do not know of each other: overlay packets of either go over either
// underlay. Over IPv6 the kernel sends every datagram with a UDP checksum and takes
// none without (RFC 8200 section 8.1). Neither these sockets nor flannel's device ask for the
// exception of RFC 6935.
//
// What crosses the seams is a packet with what is left to offload. It is a value that only its
// reader makes, and it is borrowed until the reading end calls flush, which
// it does before it waits or reuses memory: so batches grow under load, and an
// idle host waits for none. The conformance suites (conform_test.go, carrier/carriertest) run over every
// implementation. memory_double.go puts slices in memory behind the seams, so that
// tests and benchmarks run the real workers.
//
// # Who owns what, and for how long
//
//   - The UDP sockets belong to a carrier, and the carriers to a [Port]: from the first network on
//     it until Run of the Port has ended and the last network is closed.
//   - An uplink belongs to its carrier, and its TAP device and table go with the process. It is no Part of its own, because nothing of it
//     outlives the port: this Part's status counts its objects, and the same look twice a second repairs it (carrier.Keeper).
//   - The TUN queues belong to the host, and the host to its [Dataplane]: from Open to Close. The
//     device itself outlives the process.
//   - A peer (its path MTU and its traffic) outlives a Sync: newForwarding takes over those that are still wanted.
//     Entries and tables do not: a Sync makes new ones, and they never change.
//   - A packet or datagram lives until the next flush.
//   - Queues and the sockets that receive can outlive the process: Export duplicates them for another one, and
//     Config.Inherited (inherit.go, dataplane/inherit) takes them instead of opening its own. What the kernel has queued stays.
//
// # How it takes over and hands over
//
// succeed.go: it begins beside the kernel's vxlan devices and ends beside them, and in between both forward. What
// comes to the UDP port, which only one of them can have, makes a detour to the receivers meanwhile, which
// then move to sockets of the port (port_move.go, dataplane/carrier). Nothing that
// takes the kernel's lock of the network configuration stands between the two.
//
// # How to add a host or a carrier
//
// A host implements host and queue (seams.go) and is given to newDataplane, as Open does with a TUN
// device. A carrier comes as a carrier.Opener in newPort, as NewPort does with UDP sockets; what it has
// to implement is in the doc of dataplane/carrier. dummy_test.go adds one of each in a few lines.
//
// # Offloads
//
// dataplane/tun finds out what the TUN device can do, dataplane/carrier what sockets
// can. It is logged in one line once the sockets are open. If something turns out
// not to work later, the kernel answers with an errno: what it refused is sent again without
// it, and that is counted as a fallback. An errno that does not depend on the path ends its use.
//
// # Path MTU
//
// A carrier notes in a peer the longest packet that its path takes, if that is less than the device's
// MTU; path.go tells the senders of longer ones (encap/icmp.go). run.go has the carriers look at the paths twice a second, and more often
// while a probe is out (dataplane/carrier/path_linux.go). Such a probe goes from host to host in the overlay, as an echo
// reply that nobody waits for (encap/probe.go).
//
// # Floods
//
// What comes to the port shares the sockets' queues, honest or not. port_flood.go looks twenty times a second how much came that nobody could have
// wanted. If that is much, it gives the carriers a filter (dataplane/udp/filter_linux.go, classic BPF): VXLAN of a network of the port, long enough, from a
// known VTEP, if these are at most 200. All else the kernel drops before it is queued, but for one of 256 datagrams, by which the counters and log
// lines still tell what comes. A Sync changes the filter before it changes the forwarding, so a new peer is never shut out. Ten seconds after the flood all is received again.
// Of datagrams that UDP_GRO joined the filter sees only the first: the rest is judged here as ever.
//
// # The books
//
// Each packet read from the device is in TxPackets or in Drops, and each datagram
// read from the socket in RxPackets or in Drops. On a Port that several networks
// share, datagrams of none of them are in the Drops of the Port. A superpacket is one packet, however
// many segments it is split into. What the kernel dropped before it could be read is
// DropQueueFull, or counted by the device as its own; what a filter dropped is told apart by the kernel's count of full queues, which is
// one for all sockets of the host (dataplane/carrier/shield_linux.go).
//
// # One Sync
//
// forwarding.go makes a new forwarding with the peers of the one before, core.go stores it by one
// atomic store, and then the host makes the device, its addresses and its routes as wanted
// (dataplane/device). Which routes is decided there, too: one for each whole network, or one for each
// subnet of a network that holds what belongs to others; it watches the routes of others for that.
// Twice a second run.go does the last step again, and reports what others had changed; the status is
// made of both.
package userspace
