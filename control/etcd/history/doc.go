// Package history checks the logic of leases: nodes acquire, renew, lose and give back subnets in
// a real etcd while faults are drawn at random, and porcupine judges what they did. It has tests only.
//
// # What is run
//
// One history is some thirty nodes in one process. Each runs what a daemon runs, a Controller on an
// etcd Store; in the place of the dataplane is an Overlay that notes which subnet is served
// (node_test.go). Between a node and etcd is a link (link_test.go), which can hold what goes through
// it, lose the answer, or change it. The driver (faults_test.go) draws faults by a seed: pauses as
// SIGSTOP makes them, black holes, cut connections, kill -9, restarts, drains, etcd leases that are
// revoked, entries that are deleted, spoilt or revoked by an operator, an etcd that is wiped or
// restored from an older snapshot. Some histories have an etcd of their own, which is stopped and started with earlier
// data, so that revisions and etcd leases are those of that time, too (restart_test.go). There are fewer subnets than nodes, so that every subnet that
// becomes free is somebody else's a moment later.
//
// # What is checked
//
// Never two owners of one subnet that both may serve. A node may serve a subnet from the moment
// that the store gives it or renews it until it withdraws it, gives it back, or the end of the
// lease as the node knows it has passed: Lease.Expires, the time at which it sent the last request
// that was answered, and the TTL. record_test.go makes operations of that, model_test.go is the
// register of one owner that they must be operations of, for each subnet alone.
//
// A wipe, a restore or an operator may remove an entry from the store without its owner's
// knowledge. That ends the owner's right, though nothing can tell it so. From then on the owner must not
// be able to renew it while another node has the subnet.
//
// If a host has given no sign of life for a while, others may take it for dead. Then a host with its node file or
// its address may succeed it: in some histories machines are cloned (clones_test.go). Nobody
// else may take its subnet before the lease has ended, and no clone may take the subnet of a living original.
//
// At the end all faults are mended, and the nodes must come to agree with the store: each node that
// serves a subnet has its entry, and no two nodes serve the same subnet.
//
// # Seeded bugs
//
// seeded_test.go and mistakes_test.go put known mistakes between the nodes and etcd or the Store and the Controller,
// and expect the checker to find each within a bounded number of histories.
//
// # Repeating a run
//
// Each history has a seed, which a failure names. OVERLAYD_SEED repeats the choices of the driver, but
// not what the scheduler and the network make of them. OVERLAYD_HISTORIES says how many histories are
// run: `make test` runs two, bench/long 200.
package history
