// Package etcdrpc is etcd as control/etcd uses it, and knows nothing of subnets. It is a package beside
// that one, and not below it, because a parent never imports its child.
//
//	client.go, conns.go, config.go   the connection, which several stores share; conns.go ends what cannot work any more
//	dial.go                          how gRPC dials
//	token.go                         tokens of users: what to do about one that etcd does not know, or does not answer
//	old.go                           which etcd is too old
//	rpc.go                           one call: its timeout, its error in one sentence, its report to control.StoreHealth
//	lease.go                         etcd leases, whose ids this program chooses
//	list.go, stream.go               what there is at one revision, and what changes from there on
//	size.go                          how much one answer may have, and a value in it
package etcdrpc
