// Package uplink sends superpackets inside of a tunnel to the underlay, headers and all. No socket takes such packets. It needs
// Linux 6.17. An [Uplink] is for one family and one local address.
//
// # The path of a frame
//
// The process writes a frame to a TAP device of its own. To the kernel the frame has arrived at that device. An nftables rule
// at the device's ingress forwards it to the next hop of its destination (nft.Forward). The kernel finds the neighbour, and the
// underlay's queueing discipline, card or veth gets one superpacket. The frame meets nothing else on the host: it is neither routed nor
// tracked, and passes no chain of iptables, FORWARD or OUTPUT. So it needs no sysctl, no address and no accept_local. A frame with a
// destination that the table does not know is dropped. bench/README.md compares this with routing from the TAP and with tc mirred.
//
// # What is on the host
//
// There is one TAP device without an address, ovl.up<n>, and one table of family netdev with the same name. This process owns the
// table (nft.Hold), and nobody else can change it. Both disappear with the process, however it ends, so cleanup finds
// nothing. If another process also has the file, the device stays. A service manager keeps the file between two daemons, and the
// next one uses it (Config.Inherited), because a process that removes the device ends 25 ms later. Refresh brings the device up if
// it is down, and makes it again if it is gone or renamed.
//
// # Routes
//
// The kernel's routes say what the next hop is (routes_linux.go). The first Refresh after a change of a route, rule, address or link
// asks again. These destinations are left to the sockets:
//
//   - one on this host;
//   - one whose next hop has not answered the kernel's question for its link-layer address (neighbours_linux.go). A socket then takes another
//     router, if there is one, and no route changes. So these routes are asked for again every two seconds;
//   - one with several next hops (a socket spreads its flows), with an encapsulation, or with a next hop of the other family;
//   - one that receives by UDP sockets, too, and whose link does not take superpackets inside of tunnels (features_linux.go), or is a bridge. The kernel would
//     split them, and on a veth with these features off the receiver's GRO does not join the segments of a tunnel for a socket (measured:
//     userspace to userspace 2.7 Gbit/s, by sockets 4.3). A kernel with a vxlan device joins them (userspace to kernel 5.8, by sockets 4.8).
//
// While there are outbound IPsec policies on this host, or its default one is to block, all destinations are left to the sockets: the policies apply to sockets, but not here.
//
//	uplink_linux.go   Uplink: Open, Refresh, Close
//	ways_linux.go     its ways to destinations
//	frame_linux.go    the vnet header; Writer
//	device_linux.go   the TAP device and its table
//	features_linux.go what links do themselves
//	routes_linux.go   what the kernel says about destinations
//	neighbours_linux.go what it says about next hops
package uplink
