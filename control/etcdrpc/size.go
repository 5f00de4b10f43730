package etcdrpc

import (
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
)

// MaxValue bounds a value in bytes: that of a lease, a record or a config has a few hundred. Of a longer one a list or a
// stream hands out one byte more than that, so that whoever reads it says that it is too long, and nothing of it is kept.
const MaxValue = 64 << 10

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
