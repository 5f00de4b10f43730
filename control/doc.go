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
//  3. follow.go (*follower).run: one goroutine takes all that are pending.
//  4. rib.go [RIB.Apply]: the table of all leases, and whether that changed it. What a
//     store that was wiped has lost is kept for a minute, in which the nodes register anew.
//  5. rib.go [RIB.Peers], admit.go: which leases hold, oldest first, as a sorted list
//     of [dataplane.Peer]. Every refusal is a [Rejection] of that lease alone. vtep.go
//     says by which VTEP of a lease this node reaches its subnets.
//  6. follow.go (*follower).sync: one complete [dataplane.Wanted] for Overlay.Sync,
//     then subnetfile.go. What failed is tried again later, and
//     every fault is logged once (package pace). Ready means: the device is up and every
//     peer was attempted.
//
// # The own lease
//
// keep.go owns it in a second goroutine: acquire (a [Store] chooses with allocate.go,
// [Compatible] and own.go), renew in time, start again when it is lost. When
// follow.go sees that the entry of the lease is gone or is not what it should be, it
// asks keep.go to renew at once; only the store's fenced answer to that, [ErrLost],
// means that the lease is lost. What there is of it is withdrawn then, the subnet file
// too. If the network config has changed by then, there is no other lease for this
// Controller, and its Run ends: [ErrNetworkChanged].
//
// # The network config
//
// parse.go [ParseNetwork] reads it, check.go checks each family's part of it, and
// subnets.go does the arithmetic of its subnets.
//
// A Store is control/etcd or control/kube; control/controltest has the suite that each
// must pass.
package control
