// Package hostroute keeps the routes of an overlay that do not lead to its device:
// direct routes to peers on the same link, which need no encapsulation, and a blackhole
// for the own subnets. It works with either dataplane, and tells it by dataplane.Peer.Direct
// which peers need no route of the dataplane's.
//
// # Routes
//
// All are in the main table, of protocol rtnl.RouteProtocol, and told from the
// dataplanes' own by rtnl.IsHostRoute:
//
//	10.5.2.0/24 via 192.0.2.3 dev eth0 proto 211           a direct route
//	blackhole 10.5.1.0/24 proto 211 metric 1048576         packets to pods that are not there
//	unreachable 10.5.0.0/16 proto 211 metric 4294967294    packets to which no other route leads ([Nowhere], a part of its own)
//
// A peer is on-link, and gets direct routes, if the kernel's route to its VTEP's address
// has no gateway and leads to a device that has neighbours and is not an overlay device.
// Only subnets of that address's family get direct routes. An address inside the overlay
// networks counts as on-link only if the underlay has it (Wanted.Underlay): the packets to any
// other would come back to the overlay.
//
// Sync puts a direct route in the place of the kernel dataplane's by one atomic replacement.
// The way back is the dataplane's: if a peer is no longer on-link, its route stays until the
// dataplane's Sync has replaced it, or has its own wider route. Prune, which comes after that,
// removes the routes that are left. So no packet is lost on either way.
//
// Direct routes and blackholes of flannel are taken over or removed like ours. flannel's
// direct routes are known by their shape: protocol boot, no metric, a subnet of the length of
// the own one inside the overlay network, a gateway that routes nothing else; if the network holds
// addresses of the underlay, only those that lead to a peer. Every other
// route belongs to others and stays. If one has a peer's subnet, the peer gets no direct
// route, and the dataplane reports the conflict.
//
// With Config.Only, for a network without encapsulation, nothing else leads to the peers: Sync returns a
// *dataplane.PeerError for each that gets no direct route.
//
// # Files
//
//	hostroute.go  Config, Open, Sync, Prune
//	decide.go     peers → direct routes (pure); onlink.go asks the kernel
//	plan.go       routes there and wanted → operations (pure); read.go lists, apply.go does them (Cleanup)
//	nowhere.go    Nowhere: what no route leads to is unreachable
//	watch.go      Run: notices what others change (event.go: the pure part), decides again, repairs
package hostroute
