package control

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// Store is where leases live: etcd or Kubernetes. Release exists because a draining node must
// give its lease back. Every call obeys its context and has a timeout of its own, so that a
// store that does not answer is an error and never a hang. Errors that a caller branches on
// are the sentinels below; every other error means "try again later".
type Store interface {
	// Network returns the network config. ErrNoNetwork: nobody has written it yet;
	// *NetworkError: what is there is not valid.
	Network(ctx context.Context) (Network, error)
	// Acquire gets node a lease that publishes vteps: the one it has, under whatever
	// public IP (Node.Ownership), with the MACs that are to stay (Node.KeepMACs), else the
	// previous subnet, else a free one. A lost race is retried inside. The public IPs that
	// node has had are free for others afterwards.
	// A reservation of the node stays one: the lease never expires.
	// A subnet that Node.CheckSubnets refuses is neither taken up nor chosen.
	// ErrTaken: another live node has the same public IP. It is ErrCloned too if that node also has the ID of this one:
	// trying again does not help. ErrNoSubnet: no subnet is free.
	Acquire(ctx context.Context, node Node, vteps []dataplane.VTEP) (Lease, error)
	// Renew extends a lease that Acquire or Renew returned, and puts it back if
	// it has expired and is still free. Its MACs may be others than before: they are then
	// published. ErrLost: somebody else has the subnet now. ErrGone: nobody has it, and the store
	// refuses to write the entry again. What is as it should be is not written, and so
	// needs no store that can be written to. It never writes over what it does not own.
	Renew(ctx context.Context, l Lease) (Lease, error)
	// Release gives the lease back. Releasing a lease that is gone is not an error. A
	// reservation stays: only what peers need to send to the node is removed.
	Release(ctx context.Context, l Lease) error
	// Watch sends what is in the store and every change of it until ctx ends, then
	// closes the channel. The first update is a Reset, and so is the first one
	// after any gap (compaction, disconnect, change of leader).
	Watch(ctx context.Context) <-chan Update
}

// The errors that a caller of a Store branches on.
var (
	ErrNoNetwork = errors.New("no network config in the store")
	ErrTaken     = errors.New("public IP is in use by another live node")
	ErrCloned    = errors.New("it runs with a copy of this host's node file, or this host with a copy of its file")
	ErrNoSubnet  = errors.New("no free subnet in the network")
	ErrLost      = errors.New("lease lost to somebody else")
	ErrGone      = errors.New("lease is gone and cannot be written again")

	// ErrNetworkChanged: the network config is not what the caller works with any more.
	ErrNetworkChanged = errors.New("network config has changed")
)

// Node is what a Store must know about this node to give it a lease.
type Node struct {
	ID         string // unique and stable over restarts; tells two nodes with one public IP apart
	Name       string // host name, for messages only
	PublicIP   netip.Addr
	PublicIPv6 netip.Addr
	Source     netip.Addr // outer IPv4 source of this node's packets, if it is not PublicIP
	SourceV6   netip.Addr // the same for IPv6
	Userspace  bool       // it forwards by itself
	Process    Process
	Handed     []int64        // handles of what the process before has handed over to this one in the store
	Previous   []netip.Prefix // subnets of the last run, from the subnet file; masked
	Lengths    *Lengths       // of subnets under earlier configs; nil: a lease may have any length
	Avoid      []netip.Prefix // in which it gets a new subnet only if there is no other
	Former     []netip.Addr   // public IPs that it has had and has no more
	Underlay   Underlay       // what no subnet may take away from it
	Network    Network        // the only config in which it wants a lease; zero: whichever the store has
}

// Process tells one daemon on one host from all others. Any field may be empty.
type Process struct {
	Boot    string    // boot ID of the host's kernel
	NetNS   uint64    // inode number of the network namespace
	Nonce   string    // random, of this process
	Start   time.Time // of this process
	Version string    // of overlayd
}

// Update is one change of the set of leases. It is a value: the receiver owns it.
// A key stands in at most one of Leases, Deleted and Bad, and once: as it is last.
//
// "No data" and "empty set" cannot be confused: only Reset says that what is
// not in Leases is gone, and even then a key listed in Bad is present but
// unreadable, so what was known under it stays.
type Update struct {
	Reset   bool       // Leases is the complete set
	Older   bool       // of a Reset: it is of a time before what was sent last, as the store was restored from a snapshot
	Leases  []Lease    // added or changed
	Deleted []string   // keys, as Lease.Key returns them; empty in a Reset
	Bad     []BadLease // entries that could not be read
	Omitted int        // leases that the store has besides and that are not remembered, about: see Sieve
}

// BadLease is an entry of the store that cannot be read as a lease.
type BadLease struct {
	Key  string // as it stands in the store, below the prefix of all leases
	Name string // of the node, safe to print; empty: not known
	Err  error  // names the field and the value; see Reason
}
