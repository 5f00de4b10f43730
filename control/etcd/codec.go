package etcd

import (
	"bytes"
	"net/netip"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
)

// keys names every key that the package touches.
type keys struct{ prefix string }

func (k keys) config() string               { return k.prefix + "/config" }
func (k keys) subnets() string              { return k.prefix + "/subnets/" }
func (k keys) lease(l control.Lease) string { return k.subnets() + l.Key() }

// nodes is deliberately not below P/subnets: flannel reads all that begins so.
func (k keys) nodes() string { return k.prefix + "/overlayd/nodes/" }

// node names the record of the node with a public IP; parseNodeKey is its inverse.
func (k keys) node(publicIP netip.Addr) string { return k.nodes() + publicIP.String() }

func (k keys) parseNodeKey(key []byte) (publicIP netip.Addr, ok bool) {
	text := strings.TrimPrefix(string(key), k.nodes())
	ip, err := netip.ParseAddr(text)
	return ip, err == nil && ip.String() == text
}

// revokedPrefix is that of the marks that Revoke leaves.
func (k keys) revokedPrefix() string          { return k.prefix + "/overlayd/revoked/" }
func (k keys) revoked(l control.Lease) string { return k.revokedPrefix() + l.Key() }

// name returns a lease's own key from one below subnets().
func (k keys) name(key []byte) string { return strings.TrimPrefix(string(key), k.subnets()) }

// parse reads an entry below subnets().
func (k keys) parse(kv *mvccpb.KeyValue) (control.Lease, error) {
	l, err := control.ParseLease(k.name(kv.Key), kv.Value)
	if err != nil {
		return control.Lease{}, err
	}
	l.CreateRevision, l.ModRevision, l.Handle, l.Reserved = kv.CreateRevision, kv.ModRevision, kv.Lease, kv.Lease == 0
	return l, nil
}

// add appends one entry to u, as a lease or as a bad one.
func (k keys) add(u *control.Update, kv *mvccpb.KeyValue) {
	l, err := k.parse(kv)
	if err != nil {
		u.Bad = append(u.Bad, control.BadLease{Key: k.name(kv.Key), Err: err})
		return
	}
	u.Leases = append(u.Leases, l)
}

// update turns the events of one watch response into an Update. Of several events
// of one key only the last one counts: an Update has no order inside.
func (k keys) update(events []*mvccpb.Event) control.Update {
	last := make(map[string]int, len(events))
	for i, e := range events {
		last[string(e.Kv.Key)] = i
	}
	var u control.Update
	for i, e := range events {
		switch {
		case last[string(e.Kv.Key)] != i:
		case e.Type == mvccpb.Event_DELETE:
			u.Deleted = append(u.Deleted, k.name(e.Kv.Key))
		default:
			k.add(&u, e.Kv)
		}
	}
	return u
}

// sameValue reports whether an entry says what l says, in whatever spelling.
func sameValue(entry, l control.Lease) bool { return bytes.Equal(entry.Value(), l.Value()) }
