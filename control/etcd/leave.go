package etcd

import (
	"context"
	"net/netip"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control/etcdkeys"
)

// leave deletes this node's records under its earlier public IPs, so that the next node with one
// of them need not wait until the record has expired. It is called when the lease already has
// the new public IP, so that the next node with the old one does not take the lease for its own.
func (a *acquisition) leave(ctx context.Context) {
	for i, ip := range a.former {
		if !ip.IsValid() || ip == a.offer.Identity() || slices.Contains(a.former[:i], ip) {
			continue
		}
		if err := a.leaveOne(ctx, ip); err != nil && ctx.Err() == nil {
			a.log.WarnContext(ctx, "this host's node record under an earlier public IP is not deleted: the next host with that address has to wait",
				"public_ip", ip, "for", a.cfg.NodeTTL, "err", err)
		}
	}
}

// leaveOne deletes the record under an address if it is this node's.
func (a *acquisition) leaveOne(ctx context.Context, ip netip.Addr) error {
	key := a.keys.Node(ip)
	got, err := a.rpc.Get(ctx, "read node record", key)
	if err != nil || len(got.Kvs) == 0 {
		return err
	}
	kv := got.Kvs[0]
	if n, ok := etcdkeys.ParseRecord(kv.Value); !ok || n.ID != a.node.ID {
		return nil // the next host is there already
	}
	if _, live := etcdkeys.RecordOf(a.node).OriginalOf(kv); live {
		return nil // it is of a living host, whose node file this host has a copy of
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
	resp, err := a.rpc.Txn(ctx, "delete node record", []clientv3.Cmp{unchanged}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	if err == nil && resp.Succeeded {
		a.rpc.Retire(ctx, leaseID(kv.Lease))
	}
	return err
}
