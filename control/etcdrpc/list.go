package etcdrpc

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KeyRange is the keys from From on, up to but without End. With End "" it is From alone.
type KeyRange struct{ From, End string }

// PrefixRange returns all keys that begin with prefix.
func PrefixRange(prefix string) KeyRange {
	return KeyRange{prefix, clientv3.GetPrefixRangeEnd(prefix)}
}

// pageSize is how many entries one Range returns: about 2 MB of leases.
const pageSize = 10000

// List calls page with all keys of a range, in key order and as they stood at a revision (0: the
// present one), and returns the header of that revision.
func (c *Caller) List(ctx context.Context, what string, keys KeyRange, revision int64, page func([]*mvccpb.KeyValue)) (at *pb.ResponseHeader, err error) {
	from := keys.From
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(keys.End), clientv3.WithLimit(pageSize), clientv3.WithRev(revision)}
		var resp *clientv3.GetResponse
		err := c.Call(ctx, what, func(ctx context.Context, e *clientv3.Client) (err error) {
			resp, err = e.Get(ctx, from, opts...)
			return err
		})
		if err != nil {
			return nil, err
		}
		if at == nil {
			at = resp.Header
			if revision == 0 {
				revision = at.Revision
			}
			c.noteAnswer(ctx, at.Revision, nil)
		}
		page(resp.Kvs)
		if !resp.More || len(resp.Kvs) == 0 {
			return at, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
