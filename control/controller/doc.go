// Package controller keeps this node's lease and makes the dataplane follow what a store says of all
// leases. Package control has the walk of one lease event through it.
//
// # The own lease
//
// keep.go owns it in a second goroutine: it acquires a lease (a [control.Store] chooses it with
// control's allocate.go, [control.Compatible], own.go and mac.go), renews it in time, and starts again
// when it is lost. If follow.go sees that the entry of the lease is missing or different, it asks
// keep.go to renew at once; only the store's fenced answer, [control.ErrLost], means that the lease is
// lost. The subnet and the subnet file are then withdrawn. If the network config has changed meanwhile,
// this Controller cannot get another lease, and Run ends with [control.ErrNetworkChanged].
//
// # Where a field of the Status comes from
//
// status.go has the fields. Everything is published by publish.go (*Controller).publish:
// controller.go and keep.go change the lease and its fault, the follower (follow.go, sync.go, kept.go and
// entries.go) everything else. The state of each peer is made after a Sync (publish.go, peerReport) from
// the peers, the errors of Sync and what the RIB keeps. The reason of a fault is given where the
// error is made ([control.WithReason]) and read back by [control.Reason]. How the store is comes from the Store
// itself: it reports each answer to a [control.StoreHealth] and so is a [control.StoreReporter].
package controller
