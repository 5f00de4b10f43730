// Package userspace is the dataplane that forwards packets itself, between a TUN
// device and UDP sockets, where the kernel's vxlan device cannot be had. On the
// wire it is a vxlan device: kernel peers and it reach each other.
//
// This tier is the plain one: one packet per system call, one queue, no vnet
// header (songgao/water).
//
// # One packet, TUN to wire
//
// The files in reading order; no channel, no lock, no map and no allocation is on
// the way (tests assert the last).
//
//  1. tun_linux.go, (*tunQueue).Read: a packet, behind headroom for its headers
//  2. send.go, (*sendWorker).send: one loop, one goroutine
//  3. encap/packet.go: bounds-checked destination; a bad packet is DropMalformed
//  4. routes.go, table: the destination's [encap.Template] and outer address; no
//     route is DropNoRoute
//  5. encap/vxlan.go, Template: VXLAN and Ethernet header into the headroom
//  6. sender_udp_linux.go, (*udpSender).Send: encap/flow.go hashes the flow, and one
//     sendto goes out by its socket. The hash is the sender's business because what
//     it is for is: a source port here, a header field for one that writes its own
//
// # One packet, wire to TUN
//
//  1. receiver_udp_linux.go, (*udpReceiver).Receive: a datagram and its source. One
//     socket gets all that comes to the port, of whatever VNI
//  2. receive.go, (*receiveWorker).accept: the outer source is a known VTEP, the VXLAN
//     header strict, the VNI and MAC ours, and the inner source in a subnet of that VTEP
//  3. receive.go, (*receiveWorker).offloads: a partial checksum or a superpacket?
//  4. plain.go, (*plain).Write: checksum completed, superpacket split (encap/split.go)
//  5. tun_linux.go: one write per packet
//
// What crosses the seams queue, sender and receiver (packet.go) is a packet with
// what is left to offload, and is borrowed until the next read. memory.go puts
// slices in memory behind them, so that tests and benchmarks run the real workers.
//
// # The books
//
// Each packet read from the device is in TxPackets or in Drops, and each datagram
// read from the socket in RxPackets or in Drops. A superpacket is one packet, however
// many segments are written. What the kernel dropped before it could be read is
// DropOverrun, or counted by the device as its own.
//
// # One Sync
//
// routes.go makes a new table, dataplane.go stores it by one atomic store and then
// makes the device, its addresses and its routes as wanted (dataplane/rtnl).
package userspace
