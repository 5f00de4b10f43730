// Package etcdkeys has what stands in etcd: the names of all keys, the values of leases and of nodes' records.
package etcdkeys

import (
	"bytes"
	"fmt"
	"net/netip"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// Keys names every key that overlayd touches below Prefix.
type Keys struct{ Prefix string }

// Config names the network config.
func (k Keys) Config() string { return k.Prefix + "/config" }

// Subnets is the prefix of all leases.
func (k Keys) Subnets() string { return k.Prefix + "/subnets/" }

// Lease names the entry of a lease.
func (k Keys) Lease(l control.Lease) string { return k.Subnets() + l.Key() }

// Nodes is the prefix of all records. It is deliberately not below Subnets: flannel reads all that begins so.
func (k Keys) Nodes() string { return k.Prefix + "/overlayd/nodes/" }

// Node names the record of the node with a public IP.
func (k Keys) Node(publicIP netip.Addr) string { return k.Nodes() + publicIP.String() }

// ParseNodeKey returns the public IP in the name of a record.
func (k Keys) ParseNodeKey(key []byte) (publicIP netip.Addr, ok bool) {
	name := bytes.TrimPrefix(key, []byte(k.Nodes()))
	if len(name) > maxName { // the zone of an address may be as long as a key
		return netip.Addr{}, false
	}
	ip, err := netip.ParseAddr(string(name))
	return ip, err == nil && ip.Zone() == "" && ip.String() == string(name)
}

// Question returns the key of a question to the node with that record. id is the etcd lease of the question. No record has such a key.
func (k Keys) Question(record string, id etcdrpc.LeaseID) string {
	return fmt.Sprintf("%s/%x", record, int64(id))
}

// RevokedPrefix is the prefix of the marks that an operator's revocations leave.
func (k Keys) RevokedPrefix() string { return k.Prefix + "/overlayd/revoked/" }

// Revoked names the mark of a lease.
func (k Keys) Revoked(l control.Lease) string { return k.RevokedPrefix() + l.Key() }

// maxName bounds the name of an entry, in bytes: that of a lease has 65 at most.
const maxName = 256

// Name returns a lease's own key from one below Subnets(). One that is too long for any lease is cut, so that those that
// begin alike count as one: etcd takes keys of a megabyte.
func (k Keys) Name(key []byte) string {
	name := bytes.TrimPrefix(key, []byte(k.Subnets()))
	return string(name[:min(len(name), maxName)])
}

// Parse reads an entry below Subnets().
func (k Keys) Parse(kv *mvccpb.KeyValue) (control.Lease, error) {
	l, err := control.ParseLease(k.Name(kv.Key), kv.Value)
	if err != nil {
		return control.Lease{}, err
	}
	l.CreateRevision, l.ModRevision, l.Handle, l.Reserved = kv.CreateRevision, kv.ModRevision, kv.Lease, kv.Lease == 0
	return l, nil
}

// Add appends one entry to u, as a lease or as a bad one.
func (k Keys) Add(u *control.Update, kv *mvccpb.KeyValue) {
	l, err := k.Parse(kv)
	if err != nil {
		u.Bad = append(u.Bad, control.BadLease{Key: k.Name(kv.Key), Err: err})
		return
	}
	u.Leases = append(u.Leases, l)
}

// Update turns the events of one watch response into an Update. Of several events
// of one key only the last one counts: an Update has no order inside.
func (k Keys) Update(events []*mvccpb.Event) control.Update {
	last := make(map[string]int, len(events))
	for i, e := range events {
		last[string(e.Kv.Key)] = i
	}
	var u control.Update
	for i, e := range events {
		switch {
		case last[string(e.Kv.Key)] != i:
		case e.Type == mvccpb.Event_DELETE:
			u.Deleted = append(u.Deleted, k.Name(e.Kv.Key))
		default:
			k.Add(&u, e.Kv)
		}
	}
	return u
}

// SameValue reports whether an entry says what l says, in whatever spelling.
func SameValue(entry, l control.Lease) bool { return bytes.Equal(entry.Value(), l.Value()) }

// CIDRs returns the subnets of entries, for a message.
func (k Keys) CIDRs(kvs []*mvccpb.KeyValue) (subnets []string) {
	for _, kv := range kvs {
		subnets = append(subnets, control.CIDRsOf(k.Name(kv.Key)))
	}
	return subnets
}
