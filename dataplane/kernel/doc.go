// Package kernel is the dataplane that programs the kernel's vxlan device: the
// kernel forwards, overlayd only says where to. The device and what is on it stay
// when the process ends, so that traffic goes on, and are adopted at the next start.
//
// # Objects
//
// The device flannel.<VNI> is made as flannel makes it, and a device that flannel
// left is taken over with its MAC. For each overlay subnet of a peer there are:
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
// Routes never have a metric of their own: after a change between flanneld and
// overlayd there would be two.
//
// # Ownership
//
// The device is ours alone: neighbours and unicast FDB entries on it that
// nobody wants are removed, whoever made them. Of the routes of the main table and
// the nexthop objects, those with our protocol (rtnl.RouteProtocol) are ours if they
// are on our device, or lead into the overlay networks through any other: an
// overlayd with another VNI left them, or somebody moved them. Two live overlays of
// one host have no address in common, so that they are nobody else's. Routes of
// flannel's exact shape are ours on our device only. All others are never touched.
// The device of another VNI is left alone, as another daemon may use it;
// `overlayd cleanup` removes it.
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
//	ensure.go   the device during Sync
//	target.go   peers → targets; refuses what cannot be right (pure)
//	read.go     kernel → state, at start and after a surprise (state.go: the pure part)
//	plan.go     state, targets → operations in order (pure)
//	tunnel.go   applies them; takes back what a refused peer left
//	message.go  the netlink messages (pure); conn.go: many of them per system call
//	watch.go    notices what others do to our objects (event.go: the pure part), and repairs it (pace.go: how soon)
package kernel
