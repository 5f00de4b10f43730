package etcdrpc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// MaxValue bounds a value in bytes: that of a lease, a record or a config has a few hundred. Of a longer one a list or a
// stream hands out one byte more than that, so that whoever reads it says that it is too long, and nothing of it is kept.
const MaxValue = 64 << 10

// maxKey bounds what a key has behind the beginning of the range that is listed or watched, in bytes: etcd takes keys of a megabyte. Of
// longer ones that begin alike a list hands out the first alone, and goes on behind them all. A stream cuts them.
const maxKey = 512

const (
	// maxAnswer bounds the answer to one call, in bytes: whoever may write to etcd must not be able to fill the memory of
	// all that read. It holds a page of leases of two families.
	maxAnswer = 6 << 20
	// maxEvents bounds one message of a stream, in bytes. A longer one ends the stream, and all is listed again. etcd is not asked
	// to cut its messages (WatchCreateRequest.Fragment): for that it measures all of a piece again with each event, which
	// takes half a minute after 100 000 keys are deleted at once.
	maxEvents = 16 << 20
)

// oversized stands for each value that is too long. Nobody writes to it.
var oversized [MaxValue + 1]byte

// cutValues puts oversized in the place of what is too long.
func cutValues(kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if len(kv.Value) > MaxValue {
			kv.Value = oversized[:]
		}
	}
}

// isLong reports whether a key is too long, in a range that begins with from.
func isLong(from string, key []byte) bool { return len(key) > len(from)+maxKey }

// cutKey returns what is looked at of a key that is too long.
func cutKey(from string, key []byte) []byte { return bytes.Clone(key[:len(from)+maxKey]) }

// cutEvents cuts the keys and values that are too long, in the ranges that are watched.
func cutEvents(watched []KeyRange, events []*mvccpb.Event) {
	for _, e := range events {
		for _, k := range watched {
			if isLong(k.From, e.Kv.Key) && bytes.HasPrefix(e.Kv.Key, []byte(k.From)) {
				e.Kv.Key = cutKey(k.From, e.Kv.Key)
			}
		}
		cutValues([]*mvccpb.KeyValue{e.Kv})
	}
}

// dropLong returns the keys of a page without those that are too long and begin as the one before, and the key behind all that begin as
// the last one, if that is too long.
func dropLong(from string, kvs []*mvccpb.KeyValue) (kept []*mvccpb.KeyValue, behind string) {
	var last []byte // what is looked at of the one before; nil: it was not too long
	kept = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		if !isLong(from, kv.Key) {
			last = nil
			return false
		}
		if last != nil && bytes.HasPrefix(kv.Key, last) {
			return true
		}
		last = cutKey(from, kv.Key)
		return false
	})
	if last != nil {
		behind = clientv3.GetPrefixRangeEnd(string(last))
	}
	return kept, behind
}

// tooLong returns how many bytes an answer has that this client refused for its length; is: it did. etcd has errors with the
// same status.
func tooLong(err error) (bytes int64, is bool) {
	var of rpctypes.EtcdError
	if code(err) != codes.ResourceExhausted || errors.As(err, &of) {
		return 0, false
	}
	_, sizes, is := strings.Cut(err.Error(), "larger than max (") // google.golang.org/grpc v1.83, rpc_util.go
	if _, err := fmt.Sscan(sizes, &bytes); err != nil {
		bytes = maxAnswer
	}
	return max(bytes, maxAnswer), is
}
