// Package etcd is control.Store on etcd v3, in the layout of flannel (v0.28.9
// pkg/subnet/etcd), so that overlayd and flanneld share one cluster.
//
// Keys, below the prefix P (default /coreos.com/network):
//
//	P/config                       the network config, JSON
//	P/subnets/<key>                one lease each, flannel's exact text
//	P/overlayd/nodes/<public IP>   which node is alive under that address
//	P/overlayd/nodes/<public IP>/* what another host with that node's ID asks it (clone.go), for seconds
//	P/overlayd/revoked/<key>       the lease that was revoked from a node, for a day
//
// Nothing else is ever written. Above all no other key begins with P/subnets: such a
// key would make every flanneld withdraw every lease.
//
// # Who owns what
//
// Every write is a transaction that compares what this node has seen. An acquisition
// attaches its entry to an etcd lease whose id this node chose. kv.Lease ==
// control.Lease.Handle proves ownership, and tells what happened to a transaction
// whose reply was lost. Each such transaction also compares and rewrites the node's
// record. So if a node sends a second transaction because it takes the first for lost,
// only one of them takes effect: a node never gets two subnets.
//
// The node's record is attached to a short etcd lease, which the daemon keeps alive
// as long as it lives. It distinguishes two live nodes with the same public IP. One under a longer etcd lease
// that nobody keeps alive keeps no node from its address (pulse.go).
// <public IP> is the IPv4 one, or the IPv6 one of a node without IPv4. A flanneld has
// no record: its lease is taken over in place. The record (etcdkeys.Record) also describes the process
// and the node. src4 and src6 are the outer sources of its packets, if they differ from its
// public IPs, and userspace is true if it forwards by itself. Readers ignore unknown fields. A node keeps the unknown fields of its own record.
//
// The watch of leases shows the records, too. So a node sees at once that its own record was deleted or overwritten, and
// writes it again unless another node lives there (keep.go). It also sees each clone (seen.go). That costs etcd no
// call. Reading the record with each beat would cost 750 reads a second in a cluster of 5 000 nodes, and notice a change 3 s later on average.
// Only once a minute a node reads a key, to see whether etcd still takes its user.
//
// A node whose public IP has changed publishes its last lease again: same key, one
// write. control.Node.Ownership says which lease that is. If the MAC proves only
// that some overlayd wrote the lease, the write also compares that no other node has a
// record under the lease's public IP.
//
// An entry without an etcd lease is a reservation. It belongs to the node with the public IP in it. That
// node writes what it publishes over it, and leaves it without an etcd lease. A value that somebody
// puts there by hand is a reservation, too. flanneld would make it a lease of
// 24 h (facts D10). An operator makes, ends and revokes leases of other nodes by
// transactions that compare what was read. The owners follow: see Store.Renew.
//
// Only an entry strictly inside the network takes a subnet. So junk, or an old lease
// that covers the network, blocks nothing. An entry whose value cannot be read still
// takes its key's subnet, because a flanneld may own it: no node chooses that subnet
// (control.AppendTaken), but a node that already has it keeps it (control.AppendHeld).
//
// In a network of both families the keys of two nodes may differ while their subnets
// overlap in one family. No transaction can exclude that. So a node that has written such an
// entry looks again, and removes it if an older entry overlaps it. If it could not do so,
// its next run does.
//
// After a restore of etcd from an older snapshot, an old entry (a ghost) may stand in the
// place of this node's lease. The ghost gives way if its own node has another lease by now, or
// gives no sign of life (ghost.go). Entries of this node's own earlier leases that came back are deleted (own.go).
//
// # Watching
//
// A watch is one list and then one stream from the revision of that list. When the
// stream ends, for whatever reason, the watch lists again, which is a Reset.
// The stream is etcd's own RPC and not clientv3's Watch: that reconnects by itself
// at a revision that a wiped or restored etcd reaches only years later. Every ten
// minutes the watch ends its stream and lists again, because no stream is trusted
// for ever. It lists and follows the nodes' records together with the leases. etcdkeys.Facts puts what
// the records say into the leases (control.Lease.Facts). Store.WatchNetwork follows the network config, and
// Store.Networks the names of the older layout's networks, in the same way.
package etcd
