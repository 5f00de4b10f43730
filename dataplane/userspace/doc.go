// Package userspace is the dataplane that forwards packets itself, between a TUN
// device and UDP sockets, where the kernel's vxlan device cannot be had. On the
// wire it is a vxlan device: kernel peers and it reach each other.
//
// It uses every offload that ordinary sockets and TUN devices have ([Offloads]), so
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
//  5. routes.go, table: the destination's [encap.Template] and outer address; no
//     route is DropNoRoute
//  6. encap/vxlan.go, Template: VXLAN and Ethernet header into the headroom
//  7. batch.go, (*batch).Send, that of the entry's family: encap/flow.go hashes the flow
//     to one of 16 sockets, which are the outer source ports; encap/split.go makes
//     headers for the segments of a superpacket, whose payload stays where it was
//     read; datagrams of one size to one VTEP become a run
//  8. sender_udp_linux.go, (*udpSender).transmit, when no packet is ready any more: one
//     UDP_SEGMENT message per run, one sendmmsg per socket. What the kernel refuses
//     as a run goes out as single datagrams
//
// # One packet, wire to TUN
//
//  1. receiver_udp_linux.go, (*udpReceiver).Receive: all datagrams that are there, each
//     with its source and the outer ECN field. A socket gets all that comes to the
//     port, of whatever VNI; ports_linux.go makes some for each family of the underlay
//  2. cut.go, cutter: what UDP_GRO joined, or a UDP superpacket that looks like it
//  3. demux.go, (*receiveWorker).receive: the VXLAN header is strict, and the VNI one of
//     this port's (port.go). Each network has a lane of its own at each worker
//  4. receive.go, (*lane).accept: the outer source is a known VTEP, the MAC ours,
//     and the inner source in a subnet of that VTEP
//  5. encap/ecn.go: congestion that the underlay marked goes inside (RFC 6040)
//  6. receive.go, (*lane).offloads: a partial checksum or a superpacket? Between
//     hosts of one machine there is no sign of it
//  7. vnet_write.go, (*vnetWriter).Write: encap/coalesce.go joins segments to
//     superpackets; plain.go is for a device without vnet headers: checksum
//     completed, superpacket split
//  8. vnet_write.go, (*vnetWriter).Flush, when no datagram is left: one writev per packet
//
// The families do not know of each other: overlay packets of either go over either
// underlay. Over IPv6 the kernel sends every datagram with a UDP checksum and takes
// none without (RFC 8200 section 8.1): the exception of RFC 6935 is not asked for,
// as it is not by flannel's device.
//
// What crosses the seams queue, writer, sender and receiver (packet.go) is a packet with
// what is left to offload. It is borrowed until the reading end calls flush, which
// it does before it waits or reuses memory: so batches grow under load, and an
// idle host waits for none. memory.go puts slices in memory behind the seams, so that
// tests and benchmarks run the real workers.
//
// # Offloads
//
// device_linux.go and attach_linux.go find out what the TUN device can do, ports_linux.go
// and sender_udp_linux.go what sockets can; Open logs it in one line. What turns out
// not to work later, the kernel says by an errno: the batch is done again without
// it, that is counted as a fallback, and it is not tried any more.
//
// # Partial checksums
//
// The kernel of a peer on this machine leaves inner checksums partial, and a UDP
// socket has no sign of it (measured on 6.18: a packet socket has, TP_STATUS_CSUMNOTREADY),
// so that one is taken for partial if it equals the pseudo-header sum. Where the
// outer UDP checksum is in use, as always over IPv6, the kernel has verified all of the
// packet before. Where an IPv4 peer sends none (noudpcsum), a packet that was damaged on its
// way is taken for partial, and so for sound, once in 65536 times: as often as its
// own checksum is right by chance.
//
// # Path MTU
//
// With Config.DF, and over IPv6 always, the underlay does not fragment. What the kernel
// then refuses as too long makes path_linux.go ask it for the path's MTU, and path.go
// tells the senders of longer packets (encap/icmp.go). What may be fragmented leaves
// by a socket of its own, without DF, as does an IPv6 packet that its sender need not
// make any shorter.
//
// # The books
//
// Each packet read from the device is in TxPackets or in Drops, and each datagram
// read from the socket in RxPackets or in Drops; of a Port that several networks
// share, in the Drops of the Port where it is of none of them. A superpacket is one packet, however
// many segments it is split into. What the kernel dropped before it could be read is
// DropQueueFull, or counted by the device as its own.
//
// # One Sync
//
// routes.go makes a new table, dataplane.go stores it by one atomic store and then
// makes the device, its addresses and its routes as wanted (dataplane/rtnl).
package userspace
