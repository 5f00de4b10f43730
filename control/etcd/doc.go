// Package etcd is control.Store on etcd v3, in the layout of flannel (v0.28.9
// pkg/subnet/etcd), so that overlayd and flanneld share one cluster.
//
// Keys, below the prefix P (default /coreos.com/network):
//
//	P/config                       the network config, JSON
//	P/subnets/<key>                one lease each, flannel's exact text
//	P/overlayd/nodes/<public IP>   which node is alive under that address
//	P/overlayd/nodes/<public IP>/* what another host with that node's ID asks it (clone.go), for seconds
//	P/overlayd/revoked/<key>       the lease that was revoked of a node, for a day
//
// Nothing else is ever written; above all no other key that begins with
// P/subnets, which would make every flanneld withdraw every lease.
//
// # Who owns what
//
// Every write is a transaction that compares what this node has seen. The lease
// that an acquisition gets is attached to an etcd lease whose id this node chose:
// kv.Lease == control.Lease.Handle is the proof of ownership, and answers what
// became of a transaction whose reply was lost. Each such transaction compares
// and rewrites the node's record too, so of two transactions of one node, one of
// them thought lost, only one can take effect: a node never gets two subnets.
//
// The node's record is attached to a short etcd lease that is kept alive as long
// as the daemon lives. It is how two live nodes with one public IP are told
// apart: <public IP> is the IPv4 one, or the IPv6 one of a node without. A flanneld has
// no such record: its lease is taken over in place. The record (etcdkeys.Record) says more of the process
// and of the node: src4 and src6 are the outer sources of its packets, if they are not its
// public IPs. Readers ignore fields that they do not know, and a node keeps those of its own.
//
// The watch of leases shows the records, too: a node sees at once that its own was deleted or overwritten, and writes it
// again unless another node lives there (keep.go); and it sees each clone (seen.go). That costs etcd no call. To
// read the record with each beat would cost 750 reads a second on a cluster of 5 000 nodes, and see it 3 s later on average.
//
// A node whose public IP has changed publishes its last lease again: same key, one
// write. control.Node.Ownership says which lease that is; if the MAC proves only
// that some overlayd wrote it, the write compares that no other node has a record
// under the lease's public IP, too.
//
// An entry without an etcd lease is a reservation. It is of the node that it names by a
// public IP, which writes what it publishes over it and leaves it without an etcd lease;
// such a value that somebody puts there by hand is a reservation, too. flanneld would make it a lease of
// 24 h (facts D10). An operator makes, ends and revokes leases of other nodes by
// transactions that compare what was read; their owners follow: see Store.Renew.
//
// A subnet is taken by an entry that lies strictly inside the network, and by no
// other: junk or an old lease that covers the network keeps nobody from anything.
// A value that cannot be read still takes its key's subnet from those who choose one,
// because a flanneld may own it (control.AppendTaken), but from nobody who has it already
// (control.AppendHeld).
//
// In a network of both families the keys of two nodes may differ and their subnets
// overlap in one family, which no transaction excludes. Whoever has written such an entry
// looks once more, and takes it back if an older one overlaps it; its next run does, if it
// could not.
//
// After a restore of etcd from an older snapshot an entry may stand in the place of a lease that is
// older than that: a ghost. It gives way to the lease's node if its own has another one by now, or
// gives no sign of life: see ghost.go. What came back of a node's own earlier leases is deleted: see own.go.
//
// # Watching
//
// A watch is one list and then one stream from the revision of that list. When the
// stream ends, for whatever reason, the next one begins with a list again: a
// Reset. The stream is etcd's own RPC and not clientv3's Watch, which reconnects
// by itself at a revision that a wiped or restored etcd reaches only years later.
// Nor is a stream trusted for ever: it is ended and the list repeated every ten
// minutes. The nodes' records are listed and followed with the leases, and etcdkeys.Facts puts what they say
// into these: control.Lease.Facts. The network config and the names of the older layout's networks are followed in
// the same way: Store.WatchNetwork, Store.Networks.
package etcd
