package etcdrpc

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// KeyRange is the keys from From on, up to but without End. With End "" it is From alone.
type KeyRange struct{ From, End string }

// PrefixRange returns all keys that begin with prefix.
func PrefixRange(prefix string) KeyRange {
	return KeyRange{prefix, clientv3.GetPrefixRangeEnd(prefix)}
}

const (
	// pageSize is how many entries one Range returns at most: about half a MB of leases.
	pageSize = 2500
	// firstPage is how many the first returns. Anybody who may write to etcd can put a MB into each of them, all of which etcd reads and sends
	// before it is known that this is too much.
	firstPage = 64
	// minPage bounds how short a page becomes after late ones: they may be late for other reasons than their length.
	minPage = 4
)

// List calls page with all keys of a range, in key order and as they stood at a revision (0: the
// present one), and returns the header of that revision. Of large values see MaxValue.
func (c *Caller) List(ctx context.Context, what string, keys KeyRange, revision int64, page func([]*mvccpb.KeyValue)) (at *pb.ResponseHeader, err error) {
	return c.Scan(ctx, what, keys, pageSize, revision, func(kvs []*mvccpb.KeyValue) string {
		page(kvs)
		return After(kvs[len(kvs)-1].Key)
	})
}

// After returns the first key behind a key.
func After(key []byte) string { return string(key) + "\x00" }

// Scan is List with pages of up to a size. page is called with at least one key, and returns the key to go on from. Pages get longer while they are
// small and come soon. A page of more bytes than one answer may have is asked for again with half as many keys or fewer. One that does not come in
// time is asked for again with a quarter of the keys, and no page has more until a Scan has gone well, so that one can over a slow connection. If
// the page before did not come in time either, or there was none, etcd may be away, and Scan returns an error.
func (c *Caller) Scan(ctx context.Context, what string, keys KeyRange, size int64, revision int64, page func([]*mvccpb.KeyValue) (next string)) (at *pb.ResponseHeader, err error) {
	if most := c.most.Load(); most > 0 {
		size = min(size, most)
	}
	from, limit := keys.From, min(firstPage, size)
	answered, late := false, false // the page before, any page
	defer func() {
		if err == nil && !late {
			c.most.Store(0)
		}
	}()
	for {
		began := time.Now()
		resp, bytes, err := c.readPage(ctx, what, from, clientv3.WithRange(keys.End), clientv3.WithLimit(limit), clientv3.WithRev(revision))
		if code(err) == codes.DeadlineExceeded && ctx.Err() == nil {
			limit = max(limit/4, minPage)
			size, late = limit, true
			c.most.Store(size)
			if answered {
				answered = false
				continue
			}
		}
		answered = true
		switch {
		case err != nil:
			return nil, err
		case resp == nil && limit > 1:
			limit = max(1, min(limit/2, limit*maxAnswer/2/bytes))
			continue
		case resp == nil: // a single key: its name is all that is read
			if resp, err = c.readName(ctx, what, from, keys.End, revision); err != nil {
				return nil, err
			}
		}
		if at == nil {
			at = resp.Header
			if revision == 0 {
				revision = at.Revision
			}
			c.noteAnswer(ctx, at.Revision, nil)
		}
		if len(resp.Kvs) == 0 {
			return at, nil
		}
		cutValues(resp.Kvs)
		kvs, behind := dropLong(keys.From, resp.Kvs)
		if from = max(page(kvs), behind); !resp.More || from >= keys.End {
			return at, nil
		}
		if bytes < maxAnswer/4 && time.Since(began) < rpcTimeout/4 {
			limit = min(2*limit, size)
		}
	}
}

// readPage reads some keys. It returns no answer if that has too many bytes, which says nothing bad of etcd, and how many it has.
func (c *Caller) readPage(ctx context.Context, what, from string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, bytes int64, err error) {
	err = c.Call(ctx, what, func(ctx context.Context, e *clientv3.Client) (err error) {
		resp, err = e.Get(ctx, from, opts...)
		if long, is := tooLong(err); is {
			resp, bytes, err = nil, long, nil
		}
		return err
	})
	if resp != nil {
		for _, kv := range resp.Kvs {
			bytes += int64(len(kv.Key) + len(kv.Value))
		}
	}
	return resp, bytes, err
}

// readName reads one key, whose value is too long.
func (c *Caller) readName(ctx context.Context, what, from, end string, revision int64) (*clientv3.GetResponse, error) {
	var resp *clientv3.GetResponse
	err := c.Call(ctx, what, func(ctx context.Context, e *clientv3.Client) (err error) {
		resp, err = e.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithRev(revision), clientv3.WithKeysOnly())
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		kv.Value = oversized[:]
	}
	return resp, nil
}
