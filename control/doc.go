// Package control decides who has which subnet: it has the types and the texts of leases and of the
// network config, the table of all leases and the choice of a subnet. Stores, below it, hold the
// leases; control/controller keeps this node's, watches everybody else's, and tells the
// dataplane what to make true.
//
// # One lease event, store → dataplane
//
//  1. control/etcd/watch.go: an event of the store becomes an [Update], its key and
//     value read by key.go [ParseKey] and codec.go [ParseLease]. What cannot be read
//     is Update.Bad and touches nothing else. After any gap everything is listed
//     again: an Update with Reset.
//  2. controller/inbox.go: takes updates while the dataplane is busy.
//  3. controller/follow.go (*follower).loop: one goroutine takes all that are pending.
//  4. rib.go [RIB.Apply]: updates the table of all leases, and reports whether it changed. If a
//     store loses its data, at once or one lease after the other (loss.go), the table keeps the leases for a
//     minute, so that the nodes can register again. After a restart controller/leasesfile.go tells
//     the table what there was.
//  5. rib_peers.go [RIB.Peers], admit.go: decides which leases are used, oldest first, and returns
//     a sorted list of [dataplane.Peer]. admit_underlay.go refuses what would take an address away that
//     is reached without the overlay (underlay.go), and incumbent.go whatever an older lease begins to take from
//     a younger one. A refused lease is a [Rejection] and affects no other lease. lengths.go says how long a subnet may be.
//  6. What else is known of each: vtep.go chooses the VTEP by which this node reaches the subnets of a lease, limits.go
//     accepts the outer source that its node says to have (facts.go) and notes what does not work with a peer that is used,
//     and controller/families.go names the peers without a common family.
//     controller/contend.go has the own lease published with another MAC if another node has the same.
//  7. controller/sync.go (*follower).sync: passes one complete [dataplane.Wanted] to controller.Overlay,
//     then dataplane/subnetfile writes the subnet file. What failed is tried again
//     later; each fault is logged once (package pace).
//  8. controller/publish.go: makes the new controller.Status.
//
// Who owns the own lease, and where a field of the Status comes from, is in the doc of control/controller.
//
// # The network config
//
// parse.go [ParseNetwork] reads it, check.go checks each family's part of it, and
// subnets.go does the arithmetic of its subnets.
//
// # How to add a store
//
// Implement [Store] (store.go) in a package below this one, as control/etcd and control/kube do, and
// pass the suite of control/controltest: a Harness and one call of Conform. What only some stores
// can do is an interface of its own in optional.go; callers ask for it by a type assertion. Use
// [ParseLease], [Network.Publish], [Allocate], [Node.Ownership] and [Node.KeepMACs], so that all stores agree. Then
// let cmd open it.
package control
