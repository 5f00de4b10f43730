// Package hostroute keeps the routes of an overlay that do not lead to its device:
// direct routes to peers on the same link, which need no encapsulation, and a blackhole
// for the own subnets. It works with either dataplane. dataplane.Peer.Direct tells the
// dataplane which peers have a direct route and need none of its own.
//
// # Routes
//
// All are in the main table and have the protocol rtnl.RouteProtocol. rtnl.IsHostRoute tells them
// from the routes of the dataplanes:
//
//	10.5.2.0/24 via 192.0.2.3 dev eth0 proto 211           a direct route
//	blackhole 10.5.1.0/24 proto 211 metric 1048576         packets to pods that are not there
//	unreachable 10.5.0.0/16 proto 211 metric 4294967294    packets to which no other route leads ([Nowhere], a part of its own)
//
// A peer is on-link, and gets direct routes, if the kernel's route to its VTEP's address
// has no gateway and leads to a device that has neighbours and is not an overlay device.
// Only subnets of that address's family get direct routes. An address inside the overlay
// networks counts as on-link only if it belongs to the underlay (Wanted.Underlay). Packets to any
// other such address would come back to the overlay.
//
// Sync puts a direct route in the place of the kernel dataplane's route by one atomic replacement.
// If a peer is no longer on-link, its direct route stays until the dataplane's Sync has
// replaced it, or has a wider route of its own. Prune comes after that, and
// removes the direct routes that are left. So no packet is lost in either direction.
//
// Direct routes and blackholes of flannel are taken over or removed like ours. flannel's
// direct routes are recognised by their shape: protocol boot, no metric, a subnet in the overlay
// network with the same length as the own one, and a gateway that routes nothing else. If the network holds
// addresses of the underlay, the route must also lead to a peer. All other routes
// belong to others and stay. If another program has a route to a peer's subnet, the peer gets no direct
// route, and the dataplane reports the conflict.
//
// With Config.Only, for a network without encapsulation, only direct routes lead to the peers. Sync then returns a
// *dataplane.PeerError for each peer that gets none.
//
// # Files
//
//	hostroute.go  Config, Open, Sync, Prune
//	decide.go     peers → direct routes (pure); onlink.go asks the kernel
//	plan.go       routes there and wanted → operations (pure); read.go lists, apply.go does them (Cleanup)
//	nowhere.go    Nowhere: what no route leads to is unreachable
//	watch.go      Run: notices what others change (event.go: the pure part), decides again, repairs
package hostroute
