// Package userspace is the dataplane that forwards packets itself, between a TUN
// device and UDP sockets, for machines without the kernel's vxlan device. On the
// wire it looks like a vxlan device: kernel peers and it reach each other.
//
// It has three parts, with an interface at each of the two joints (seams.go, carrier/seam.go):
//
//	host     the side of this machine: a TUN device (host_tun_linux.go; dataplane/device)
//	core     decides: workers, forwarding (core.go, send.go, demux.go, lane.go)
//	carrier  one way to and from the underlay of one family: UDP sockets, with an uplink for superpackets beside them (dataplane/carrier)
//
// It uses every offload that sockets, TUN and TAP devices have ([Offloads]), so
// that one system call carries up to 64 KB, or many packets. Each offload is optional.
// Without any, each system call on the device carries one packet (plain.go).
//
// # One packet, TUN to wire
//
// The files in reading order. No channel, lock, map or allocation is on
// the way; tests count the allocations.
//
//  1. tun_vnet_linux.go, (*vnetQueue).Read: reads all packets that the host has ready, each
//     behind headroom for its headers. tun_linux.go does the same without vnet headers
//  2. vnet.go, decodeVnet: is it a superpacket? Is its checksum partial?
//  3. send.go, (*sendWorker).send: one loop, one goroutine, one queue
//  4. encap/packet.go: finds the destination, with bounds checks; a bad packet is DropBadHeader
//  5. forwarding.go: finds the destination's entry, which has the [encap.Template], the peer and
//     the carrier; no entry is DropNoRoute. sources.go: the source must be one of this host, or lie outside
//     of the overlay; else the packet is DropBadSource. So no pod sends in the name of another host's pod
//  6. encap/vxlan.go, Template: puts the VXLAN and Ethernet headers into the headroom
//  7. carrier/batch.go, (*batcher).Send of the entry's carrier: encap/flow.go hashes the flow
//     to one of 16 source ports. encap/offload.go completes a partial checksum. encap/split.go makes
//     headers for the segments of a superpacket; the payload stays where it was
//     read. Datagrams of one size to one VTEP become a run. A superpacket to a peer that
//     the uplink reaches goes there instead, at once and whole (carrier/sender_tunnel_linux.go)
//  8. carrier/sender_udp_linux.go, (*udpTransmitter).transmit: runs when no more packets are ready (the
//     queue calls the worker's flush within Read). It sends one UDP_SEGMENT message per run, and makes one sendmmsg
//     call per socket. Runs that the kernel refuses are sent as single datagrams. carrier/counters.go counts
//     what was sent to each peer
//
// # One packet, wire to TUN
//
//  1. carrier/receiver_udp_linux.go, (*udpReceiver).Receive: receives all datagrams that are there, each
//     with its source and the outer ECN field. A socket gets every datagram that comes to the
//     port, of whatever VNI
//  2. carrier/cut.go, cutter: cuts what UDP_GRO joined, and UDP superpackets, which look the same
//  3. demux.go, (*receiveWorker).receive: the VXLAN header has to be exact, and the VNI that of a network on
//     this port (port.go). Each network has a lane of its own at each worker
//  4. lane.go, (*lane).accept, with sources.go: the outer source must be a known VTEP, the MAC ours, the inner source
//     in a subnet of that VTEP or its own address, and the inner destination in a subnet of this host. So nothing is relayed, sent back, or
//     delivered to loopback, multicast or broadcast. Config.SourceCheck may admit other sources, but never other destinations.
//     Accepted packets are counted for their peer. samples.go remembers the sources of dropped packets, and logs them later
//  5. encap/ecn.go: copies a congestion mark of the underlay to the inner packet (RFC 6040)
//  6. carrier/guess.go, socketGuesser: is the checksum partial, is it a superpacket? A socket does not tell. If
//     the datagram is not Exact, the lane asks the receiver
//  7. vnet_write.go, (*vnetWriter).Write: encap/coalesce.go joins segments to
//     superpackets. For a device without vnet headers plain.go completes the checksum and
//     splits the superpacket
//  8. vnet_write.go, (*vnetWriter).Flush, when no datagram is left: one writev per packet
//
// The system calls of both directions never wait, so they are raw (unix.RawSyscall). With unix.Syscall Go gives the worker's processor
// away and wakes its monitor thread; without, a ping takes 50 µs less (bench/README.md). Go's poller waits.
//
// The families are independent: overlay packets of either family go over either
// underlay. Over IPv6 the kernel sends every datagram with a UDP checksum and accepts
// none without (RFC 8200 section 8.1). Neither these sockets nor flannel's device ask for the
// exception of RFC 6935.
//
// A packet crosses a seam together with the offloads that it still needs. It is a value. Only its
// reader makes it, and lends it until the reading end calls flush. The reading end does that
// before it waits or reuses memory. So batches grow under load, and an idle host
// waits for none. The conformance suites (conform_test.go, carrier/carriertest) run over every
// implementation. memory_double.go puts slices in memory behind the seams, so that
// tests and benchmarks run the real workers.
//
// # Who owns what, and for how long
//
//   - The UDP sockets belong to a carrier, and the carriers to a [Port]. They live from the first network on
//     the Port until Run of the Port has ended and the last network is closed.
//   - An uplink belongs to its carrier. Its TAP device and table end with the process. It is not a Part of its own, because
//     nothing of it outlives the port: this Part's status counts its objects, and the check that runs twice a second repairs it (carrier.Keeper).
//   - The TUN queues belong to the host, and the host to its [Dataplane], from Open to Close. The
//     device itself outlives the process.
//   - A peer (its path MTU and its traffic counts) outlives a Sync: newForwarding takes over the peers that are still wanted.
//     Entries and tables do not: each Sync makes new ones, and they never change.
//   - A packet or datagram lives until the next flush.
//   - Queues, and the sockets that receive, can outlive the process. Export duplicates them for another process, which
//     takes them by Config.Inherited instead of opening its own (inherit.go, dataplane/inherit). What the kernel has queued stays.
//
// # How it takes over and hands over
//
// succeed.go: it starts beside the kernel's vxlan devices, and it ends beside them; in between both forward. Only one
// of them can have the UDP port. Meanwhile datagrams to the port take a detour to the receivers. Then the receivers
// move to sockets of the port (port_move.go, dataplane/carrier). No step between the two takes
// the kernel's lock of the network configuration.
//
// # How to add a host or a carrier
//
// A host implements host and queue (seams.go). Give it to newDataplane, as Open does with a TUN
// device. A carrier comes as a carrier.Opener in newPort, as NewPort does with UDP sockets; the doc of
// dataplane/carrier says what it has to implement. dummy_test.go adds one of each in a few lines.
//
// # Offloads
//
// dataplane/tun finds out what the TUN device can do, and dataplane/carrier what sockets
// can do. One log line says so once the sockets are open. If an offload fails later, the kernel
// answers with an errno. Then the refused packets are sent again without the offload, which counts
// as a fallback. If the errno does not depend on the path, the offload is switched off for good.
//
// # Path MTU
//
// If a path takes only packets shorter than the device's MTU, the carrier stores the path MTU in the peer. path.go
// tells the senders of longer packets (encap/icmp.go). run.go has the carriers check the paths twice a second, and more often
// while a probe is on its way (dataplane/carrier/path_linux.go). A probe goes from host to host in the overlay. It is an echo
// reply that nobody waits for (encap/probe.go).
//
// # Floods
//
// All datagrams to the port, good or bad, share the sockets' queues. Twenty times a second port_flood.go checks how many
// unwanted datagrams came. If there are many, it gives the carriers a filter (dataplane/udp/filter_linux.go, classic BPF). The
// filter admits datagrams of a network of the port that are long enough and, if there are at most 200 known VTEPs, come from one. The
// kernel drops all others before it queues them, except one in 256, so that counters and log
// lines still tell what comes. A Sync changes the filter before it changes the forwarding, so that no new peer is shut out. Ten seconds after
// the flood the filter is removed. If UDP_GRO joined datagrams, the filter sees only the first; the receivers check the rest as always.
//
// # The books
//
// Each packet read from the device is in TxPackets or in Drops. Each datagram
// read from the socket is in RxPackets or in Drops. If several networks share a Port,
// datagrams of none of them are in the Drops of the Port. A superpacket is one packet, however
// many segments it is split into. Packets that the kernel dropped before they could be read are
// DropQueueFull, or the device counts them as its own. Packets that the filter dropped are told apart from these by the
// kernel's count of full queues, which is one number for all sockets of the host (dataplane/carrier/shield_linux.go).
//
// # One Sync
//
// forwarding.go makes a new forwarding that takes over the peers of the old one. core.go stores it in one
// atomic store. Then the host gives the device its wanted addresses and routes
// (dataplane/device). dataplane/device also decides which routes: one for each whole network, or one for each
// subnet if the network holds addresses that belong to others. It watches the routes of others for that.
// Twice a second run.go repeats the last step, and reports what others had changed. The status is
// made of both.
package userspace
