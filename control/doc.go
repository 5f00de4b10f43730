// Package control decides which node has which subnet. It has the types and formats of leases and of the
// network config, the table of all leases, and the choice of a subnet. The stores, in packages below it, hold the
// leases. control/controller keeps this node's lease, watches the leases of all others, and tells the
// dataplane what is wanted.
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
//     store loses its data, at once or lease by lease (loss.go), the table keeps the leases for a
//     minute, so that the nodes can register again. After a restart controller/leasesfile.go tells
//     the table which leases there were.
//  5. rib_peers.go [RIB.Peers], admit.go: decides which leases are used, oldest first, and returns
//     a sorted list of [dataplane.Peer]. admit_underlay.go refuses a lease that holds an address which this host
//     reaches without the overlay (underlay.go). incumbent.go refuses an older lease that begins to publish what
//     a younger one has. A refused lease is a [Rejection] and affects no other lease. lengths.go says which prefix lengths a subnet may have.
//  6. Details of each peer: vtep.go chooses the VTEP by which this node reaches the subnets of a lease. limits.go
//     accepts the outer source that its node publishes (facts.go), and notes what does not work with a peer that is used.
//     controller/families.go names the peers without a common family.
//     controller/contend.go publishes the own lease with another MAC if another node has the same MAC.
//  7. controller/sync.go (*follower).sync: passes one complete [dataplane.Wanted] to controller.Overlay.
//     Then dataplane/subnetfile writes the subnet file. What failed is tried again
//     later; each fault is logged once (package pace).
//  8. controller/publish.go: publishes the new controller.Status.
//
// The doc of control/controller says who owns the own lease, and where each field of the Status comes from.
//
// # The network config
//
// parse.go [ParseNetwork] reads it, check.go checks each family's part of it, and
// subnets.go does the arithmetic of its subnets.
//
// # How to add a store
//
// Implement [Store] (store.go) in a package below this one, as control/etcd and control/kube do, and
// pass the suite of control/controltest: a Harness and one call of Conform. Abilities that only some stores
// have are optional interfaces in optional.go; callers find out by a type assertion. Use
// [ParseLease], [Network.Publish], [Allocate], [Node.Ownership] and [Node.KeepMACs], so that all stores agree. Then
// have cmd open it.
package control
