// Package control decides who has which subnet: it keeps this node's lease, watches
// everybody else's, and tells the dataplane what to make true.
//
// # One lease event, store → dataplane
//
//  1. control/etcd/watch.go: an event of the store becomes an [Update], its key and
//     value read by key.go [ParseKey] and codec.go [ParseLease]. What cannot be read
//     is Update.Bad and touches nothing else. After any gap everything is listed
//     again: an Update with Reset.
//  2. inbox.go: takes updates while the dataplane is busy.
//  3. follow.go (*follower).loop: one goroutine takes all that are pending.
//  4. rib.go [RIB.Apply]: updates the table of all leases, and reports whether it changed. If a
//     store loses its data, the table keeps the leases for a minute, so that the nodes can
//     register again.
//  5. rib.go [RIB.Peers], admit.go: decides which leases are used, oldest first, and returns
//     a sorted list of [dataplane.Peer]. admit_underlay.go refuses what would take an address away that
//     is reached without the overlay (underlay.go). A refused lease is a [Rejection] and affects no other
//     lease. vtep.go chooses the VTEP by which this node reaches the subnets of a lease. limits.go
//     accepts the outer source that its node says to have (facts.go), and notes what does not
//     work with a peer that is used; families.go names the peers without a common family.
//     contend.go has the own lease published with another MAC if another node has the same.
//  6. follow.go (*follower).sync: passes one complete [dataplane.Wanted] to [Overlay.Sync],
//     then dataplane/subnetfile writes the subnet file. What failed is tried again
//     later; each fault is logged once (package pace).
//  7. publish.go: makes the new [Status].
//
// # Where a field of the Status comes from
//
// status.go has the fields. Everything is published by publish.go (*Controller).publish:
// controller.go and keep.go change the lease and its fault, follow.go everything else. The
// state of each peer is made after a Sync (publish.go, peerReport) from the peers, the errors of
// Sync and what the RIB keeps. The reason of a fault is given where the error is made
// ([WithReason]) and read back by [Reason]. How the store is comes from the Store itself: it
// reports each answer to a [StoreHealth] and so is a [StoreReporter].
//
// # The own lease
//
// keep.go owns it in a second goroutine: it acquires a lease (a [Store] chooses it with
// allocate.go, [Compatible], own.go and mac.go), renews it in time, and starts again when it is lost.
// If follow.go sees that the entry of the lease is missing or different, it asks keep.go to
// renew at once; only the store's fenced answer, [ErrLost], means that the lease is lost. The
// subnet and the subnet file are then withdrawn. If the network config has changed meanwhile,
// this Controller cannot get another lease, and Run ends with [ErrNetworkChanged].
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
