// Package kernel is the dataplane that programs the kernel's vxlan devices: the
// kernel forwards, overlayd only says where to. The devices and what is on them stay
// when the process ends, so that traffic goes on, and are adopted at the next start.
//
// # Objects
//
// Each family of the underlay has a device: flannel.<VNI> for IPv4 and flannel-v6.<VNI>,
// with the same VNI and port, for IPv6. They are made as flannel makes them, and a device
// that flannel left is taken over with its MAC. What the kernel lets be changed
// (local address, underlay link, learning) is changed in place. A peer is on the device
// of its underlay address's family, with subnets of either. An own subnet's address is on
// the device of its own family, and where there is none on the other. For each overlay
// subnet of a peer there are:
//
//	neighbour  10.5.2.0 lladdr <peer's MAC> PERMANENT
//	FDB entry  <peer's MAC> dst <peer's underlay address> self permanent
//	nexthop    id N via 10.5.2.0 dev flannel.1 onlink proto 211
//	route      10.5.2.0/24 nhid N proto 211
//
// Nexthop objects, because the kernel finds equal routes by a hash that leaves
// out the gateway: 100 000 routes through gateways take minutes, through nexthop
// objects a second. Their ids are the kernel's choice. Kernels without
// them (before 5.3) get a route through the gateway, as flannel has it.
// A peer to which a direct route leads (dataplane/hostroute) has neither nexthop nor
// route here, and is received from. A direct route that is in the place of a wanted
// one is replaced by Sync, so that no packet is lost; otherwise it is hostroute's.
// Routes never have a metric of their own: after a change between flanneld and
// overlayd there would be two.
//
// # Ownership
//
// The devices are ours alone: neighbours and unicast FDB entries on them that
// nobody wants are removed, whoever made them. Of the routes of the main table and
// the nexthop objects, those with our protocol (rtnl.RouteProtocol) are ours if they
// are on our device, or lead into the overlay networks through any other: an
// overlayd with another VNI left them, or somebody moved them. Two live overlays of
// one host have no address in common, so that they are nobody else's. Routes of
// flannel's exact shape are ours on our device only. All others are never touched.
// The device of another VNI is left alone, as another daemon may use it;
// [Cleanup] removes it. The device of a family that the underlay no longer has is
// removed, if it is ours, as soon as nothing leads to it.
//
// Where somebody else already has a route to a peer's subnet without a metric (IPv6:
// with the default one, 1024), ours is not added, and the peer reported: to replace it
// would break what the administrator set up. A route to it with another metric is
// somebody else's too and stays, but ours is added beside it and, having the least
// metric in IPv4, takes precedence: a routing daemon's route (FRR's have metric 20)
// gives way to the overlay for as long as the peer is there. In IPv6 a metric below
// 1024 precedes ours.
//
// # Files, in the order of a change
//
//	kernel.go   Config, Open, Sync
//	open.go     the device: adopt, make, put in another's place, try (device.go: the pure part)
//	tunnel.go   one device; ensure.go: it during Sync
//	target.go   peers → targets; refuses what cannot be right (pure)
//	read.go     kernel → state, at start and after a surprise (state.go: the pure part)
//	plan.go     state, targets → operations in order (pure)
//	overlay.go  applies them; takes back what a refused peer left
//	message.go  the netlink messages (pure); conn.go: many of them per system call
//	watch.go    notices what others do to our objects (event.go: the pure part), and repairs it (pace.go: how soon)
package kernel
