package etcdrpc

import (
	"bytes"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An etcd that is broken, or a proxy in front of it, may leave out of an answer what every etcd says. Whoever reads the answer
// relies on that, and so each answer is checked first.

// malformed is the error of an answer that lacks what every etcd says. Nobody knows whether the request had an effect.
func malformed(format string, args ...any) error {
	return status.Errorf(codes.Internal, "malformed answer: "+format, args...)
}

// checkAnswer checks the answer to a call, of which this package and its users read more than single values.
func checkAnswer(request, answer any) error {
	switch r := answer.(type) {
	case *pb.RangeResponse:
		if asked, ok := request.(*pb.RangeRequest); ok {
			return checkRange(asked, r)
		}
	case *pb.TxnResponse:
		if asked, ok := request.(*pb.TxnRequest); ok {
			return checkTxn(asked, r)
		}
	}
	return nil
}

// checkRange wants a header, and keys of the range that was asked for alone: so a list always goes on, and each key has its prefix.
func checkRange(asked *pb.RangeRequest, r *pb.RangeResponse) error {
	if r.Header == nil {
		return malformed("it has no header")
	}
	return checkKeys(asked, r)
}

func checkKeys(asked *pb.RangeRequest, r *pb.RangeResponse) error {
	for _, kv := range r.Kvs {
		if !isIn(asked.Key, asked.RangeEnd, kv.Key) {
			return malformed("it has key %.80q, which was not asked for", kv.Key)
		}
	}
	return nil
}

// isIn reports whether a key is first, or in the range from there up to but without end. An end of a zero byte alone is that of all keys.
func isIn(first, end, key []byte) bool {
	if len(end) == 0 {
		return bytes.Equal(key, first)
	}
	return bytes.Compare(key, first) >= 0 && (bytes.Equal(end, []byte{0}) || bytes.Compare(key, end) < 0)
}

// checkTxn wants a header, and one response of the right type for each operation.
func checkTxn(asked *pb.TxnRequest, r *pb.TxnResponse) error {
	if r.Header == nil {
		return malformed("it has no header")
	}
	ops := asked.Success
	if !r.Succeeded {
		ops = asked.Failure
	}
	switch {
	case !r.Succeeded && len(asked.Compare) == 0:
		return malformed("it says that a comparison failed, and none was asked for")
	case len(r.Responses) != len(ops):
		return malformed("it has %d responses to %d operations", len(r.Responses), len(ops))
	}
	for i, op := range ops {
		if err := checkOp(op, r.Responses[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkOp checks one response of a transaction. No transaction here has another inside.
func checkOp(asked *pb.RequestOp, r *pb.ResponseOp) error {
	want, has := "", false
	switch {
	case asked.GetRequestRange() != nil:
		if has = r.GetResponseRange() != nil; has {
			return checkKeys(asked.GetRequestRange(), r.GetResponseRange())
		}
		want = "a range"
	case asked.GetRequestPut() != nil:
		want, has = "a put", r.GetResponsePut() != nil
	case asked.GetRequestDeleteRange() != nil:
		want, has = "a deletion", r.GetResponseDeleteRange() != nil
	}
	if !has {
		return malformed("it has no response to %s", want)
	}
	return nil
}

// checkWatch wants a header, and events with a key of the ranges that are watched.
func checkWatch(watched []KeyRange, r *pb.WatchResponse) error {
	if r.Header == nil {
		return malformed("it has no header")
	}
	for _, e := range r.Events {
		if e.Kv == nil {
			return malformed("it has an event without a key")
		}
		if !isWatched(watched, e.Kv) {
			return malformed("it has an event of key %.80q, which is not watched", e.Kv.Key)
		}
	}
	return nil
}

func isWatched(watched []KeyRange, kv *mvccpb.KeyValue) bool {
	return slices.ContainsFunc(watched, func(k KeyRange) bool { return isIn([]byte(k.From), []byte(k.End), kv.Key) })
}
