// Package hostroute keeps the routes of an overlay that do not lead to its device:
// direct routes to peers on the same link, which need no encapsulation, and a blackhole
// for the own subnets. It serves either dataplane, and leaves both to themselves: it
// tells them by dataplane.Peer.Direct which peers it takes off them.
//
// # Routes
//
// All are in the main table, of protocol rtnl.RouteProtocol, and told from the
// dataplanes' own by rtnl.IsHostRoute:
//
//	10.5.2.0/24 via 192.0.2.3 dev eth0 proto 211           a direct route
//	blackhole 10.5.1.0/24 proto 211 metric 1048576         packets to pods that are not there
//
// A peer is on-link, and gets direct routes, if the kernel's route to its VTEP's address
// has no gateway and goes out of a device with neighbours that is no overlay's. Its
// subnets must be of that address's family: a peer with both families gets direct
// routes for the one, and stays with the device for the other. An address inside the
// overlay networks, whose packets would come back to the overlay, never counts as on-link.
//
// A direct route takes the place of the kernel dataplane's by one atomic replacement.
// The way back is the dataplane's: a route of a peer that is no longer on-link stays
// until the kernel dataplane has replaced it. Where that fails, a second later Run asks
// for another Sync, which deletes it. If the route of the userspace dataplane covers it, it
// is deleted at once. Where neither kind of route is wanted, Run rests.
//
// flannel's direct routes (protocol boot, without a metric, to a subnet of the length of
// the own one inside the overlay network, by a gateway that is no router for anything
// else) and its blackholes are taken over or removed like ours. Every other route is
// somebody else's and stays; where one has a peer's subnet, the peer is left to
// the dataplane, which reports that.
//
// # Files
//
//	hostroute.go  Config, Open, Sync, Cleanup
//	decide.go     peers → direct routes (pure); onlink.go asks the kernel
//	plan.go       routes there and wanted → operations (pure); read.go lists, apply.go does them
//	watch.go      Run: notices what others change (event.go: the pure part), decides again, repairs
package hostroute
