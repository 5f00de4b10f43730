// Package controller keeps this node's lease, and makes the dataplane follow the leases in a store.
// The doc of package control walks one lease event through it.
//
// # The own lease
//
// keep.go owns it, in a second goroutine. It acquires a lease (a [control.Store] chooses one with
// control's allocate.go, [control.Compatible], own.go and mac.go), renews it in time, and starts again
// when it is lost. If follow.go sees that the entry of the lease is missing or different, it asks
// keep.go to renew at once. Only the store's fenced answer, [control.ErrLost], means that the lease is
// lost. Then the subnet and the subnet file are withdrawn. If the network config has changed meanwhile, and does not change back within a third of a second,
// this Controller cannot get another lease, and Run ends with [control.ErrNetworkChanged].
//
// # Where a field of the Status comes from
//
// status.go has the fields. publish.go (*Controller).publish publishes them all.
// controller.go and keep.go change the lease and its fault. The follower (follow.go, sync.go, kept.go and
// entries.go) changes everything else. After a Sync peerReport (publish.go) makes the state of each peer from
// the peers, the errors of Sync and what the RIB keeps. The reason of a fault is set where the
// error is made ([control.WithReason]) and read by [control.Reason]. The Store itself reports its state:
// it tells each answer to a [control.StoreHealth], and so is a [control.StoreReporter].
package controller
