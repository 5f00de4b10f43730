// Package etcdchild runs the embedded etcd of a daemon in a process of its own, `overlayd etcd`.
//
//	start.go    the daemon's end: it starts the process, and says whether its data are to be moved aside
//	serve.go    the process: it serves until the daemon ends or etcd cannot go on
//	reasons.go  why it does not run
//
// Package child carries messages between the two, package control/etcd/embedded is etcd itself.
package etcdchild
