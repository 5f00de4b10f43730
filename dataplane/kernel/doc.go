// Package kernel is the dataplane that programs the kernel's vxlan devices: the kernel forwards
// the packets. The devices, and the routes and entries on them, stay when the process ends, so
// that traffic goes on, and are adopted at the next start.
//
// # Objects
//
// Each family of the underlay has a device: flannel.<VNI> for IPv4 and flannel-v6.<VNI>,
// with the same VNI and port, for IPv6. They are made as flannel makes them, and a device
// that flannel left is taken over with its MAC. Local address, underlay link and learning are
// changed in place; the kernel allows no more. A peer is on the device of its underlay
// address's family, with subnets of either family. An own subnet's address is on the device of
// its family, or on the other device if that is the only one. For each overlay subnet of a peer
// there are:
//
//	neighbour  10.5.2.0 lladdr <peer's MAC> PERMANENT
//	FDB entry  <peer's MAC> dst <peer's underlay address> self permanent
//	nexthop    id N via 10.5.2.0 dev flannel.1 onlink proto 211
//	route      10.5.2.0/24 nhid N proto 211
//
// Routes go through nexthop objects because the kernel finds equal routes by a hash that leaves
// out the gateway: 100 000 routes through gateways take minutes, through nexthop
// objects a second. Their ids are the kernel's choice. Kernels without
// them (before 5.3) get a route through the gateway, as flannel has it.
// A peer with a direct route (dataplane/hostroute) has neither nexthop nor route here, but
// packets from it are accepted. If a direct route stands where a route of ours is wanted, Sync
// replaces it, so that no packet is lost. Our routes have no metric: flannel's have none, and a
// second route would stay after a change between flanneld and overlayd.
//
// # Ownership
//
// The devices are ours alone: unwanted neighbours and unicast FDB entries on them are removed,
// even if others made them. Routes of the main table and nexthop objects are ours if they have
// our protocol (rtnl.RouteProtocol) and are on our device, or lead into the overlay networks:
// an overlayd with another VNI left them, or somebody moved them. Two running overlays of one
// host have no address in common, so these cannot belong to the other one. Routes of flannel's
// exact shape are ours on our device only. All other routes are never touched.
// The device of another VNI is left alone, because another daemon may use it. [Cleanup] removes it,
// unless somebody else has routes on it ([OthersRoutes]): then [Leave] removes what is ours and
// nobody else needs. The device of a family that the underlay no longer has is removed, if it is
// ours, as soon as nothing leads to it.
//
// If somebody else has a route to a peer's subnet without a metric (IPv6: with the default
// one, 1024), ours is not added, and the peer is reported: replacing it would break the
// administrator's configuration. The same holds if somebody puts a route in the place of ours. Ours
// is tried again after watch.RetryPeriod, and as soon as the kernel tells that the other one has
// gone. A foreign route with another metric stays, and ours is added beside it. In IPv4 ours has the
// lowest metric and takes precedence: a routing daemon's route (FRR's have metric 20) is not used
// while the peer exists. In IPv6 a metric below 1024 precedes ours.
//
// # Files, in the order of a change
//
//	kernel.go   Config, Open, Sync
//	open.go     the device: adopt, make, put in another's place, try (device.go: the pure part)
//	tunnel.go   one device; ensure.go: it during Sync
//	target.go   peers → targets; refuses invalid peers (pure)
//	read.go     kernel → state, at start and after a surprise (state.go: the pure part)
//	plan.go     state, targets → operations in order (pure)
//	program.go  applies them; removes what was programmed for a refused peer
//	message.go  the netlink messages (pure), which package rtmsg sends
//	watch.go    notices what others do to our objects (event.go: the pure part), and repairs it (repair.go: log and counts)
package kernel
