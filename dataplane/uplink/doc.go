// Package uplink takes datagrams that this process has made, headers and all, to the underlay: superpackets inside of a
// tunnel, which no socket takes (Linux 6.17). An [Uplink] is for one family and one local address.
//
// # The way of a frame
//
// A frame is written to a TAP device of this process. The kernel reads it as one that has come by that device, and an nftables rule
// at its ingress gives it to the next hop of its destination (nft.Forward): the kernel finds the neighbour, and the
// underlay's queueing discipline, card or veth gets one superpacket. Nothing else of the host sees it: it is neither routed nor
// tracked, meets no chain of iptables, FORWARD or OUTPUT, and needs no sysctl, no address and no accept_local. What the table does not
// know is dropped. Measured beside routing it from the TAP, and tc mirred: see bench/README.md.
//
// # What is on the host
//
// One TAP device without an address, ovl.up<n>, and one table of family netdev with its name, which is owned by this process
// (nft.Hold): both go with the process, however it ends, and nobody but this process can change the table. So nothing is left for
// cleanup. Refresh looks whether the device is there and up, and makes it again if not.
//
// # Routes
//
// The kernel's routes say what the next hop is (routes_linux.go). They are asked again at the first Refresh after any of them, a rule, an
// address or a link has changed. A destination that has no plain way is left to the sockets: one on this host, one with several
// next hops (a socket spreads its flows), with an encapsulation, or with a next hop of the other family. So is one whose link does not take
// superpackets inside of tunnels (features_linux.go): the kernel would cut them, which is no faster than a send with UDP_SEGMENT, and on a veth with
// these features off the receiver's GRO does not join the segments of a tunnel (measured: userspace to userspace 2.7 Gbit/s, by sockets 4.3). While there are IPsec
// policies on this host nothing is taken: they apply to sockets, and not here.
//
//	uplink_linux.go   Uplink: Open, Refresh, Close
//	frame_linux.go    the vnet header; Writer
//	device_linux.go   the TAP device and its table
//	features_linux.go what links do themselves
//	routes_linux.go   what the kernel says about destinations
package uplink
