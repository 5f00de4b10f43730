package etcdrpc

import (
	"bytes"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// FuzzAnswer: whatever an answer consists of, what passes the check can be read as the users of this package read it.
func FuzzAnswer(f *testing.F) {
	header := &pb.ResponseHeader{Revision: 1}
	kv := &mvccpb.KeyValue{Key: []byte("/p/x")}
	got := &pb.RangeResponse{Header: header, Kvs: []*mvccpb.KeyValue{kv}}
	responses := []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: got}}, {Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{}}}}
	for _, seed := range []proto.Message{
		got, &pb.RangeResponse{Kvs: got.Kvs}, &pb.RangeResponse{Header: header, Kvs: []*mvccpb.KeyValue{{}}},
		&pb.TxnResponse{Header: header, Succeeded: true, Responses: responses}, &pb.TxnResponse{Header: header, Responses: responses[:1]},
		&pb.TxnResponse{Succeeded: true, Responses: responses}, &pb.TxnResponse{Header: header, Succeeded: true, Responses: []*pb.ResponseOp{{}, {}}},
		&pb.WatchResponse{Header: header, Events: []*mvccpb.Event{{Kv: kv}}}, &pb.WatchResponse{Header: header, Events: []*mvccpb.Event{{}}}, &pb.WatchResponse{},
	} {
		b, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	read := &pb.RangeRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0")}
	ops := []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: read}}, {Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{}}}}
	txn := &pb.TxnRequest{Compare: []*pb.Compare{{}}, Success: ops, Failure: ops[:1]}
	f.Fuzz(func(t *testing.T, b []byte) {
		within := func(header *pb.ResponseHeader, kvs []*mvccpb.KeyValue) {
			_ = header.Revision // as others read it: a getter would do without a header
			for _, kv := range kvs {
				if !bytes.HasPrefix(kv.Key, read.Key) {
					t.Errorf("key %q passed", kv.Key)
				}
			}
		}
		var r pb.RangeResponse
		if proto.Unmarshal(b, &r) == nil && checkAnswer(read, &r) == nil {
			within(r.Header, r.Kvs)
		}
		var done pb.TxnResponse
		if proto.Unmarshal(b, &done) == nil && checkAnswer(txn, &done) == nil {
			within(done.Header, done.Responses[0].GetResponseRange().Kvs)
			if done.Succeeded {
				_ = done.Responses[1].GetResponseDeleteRange().PrevKvs
			}
		}
		var w pb.WatchResponse
		if proto.Unmarshal(b, &w) == nil && checkWatch([]KeyRange{PrefixRange("/p/")}, &w) == nil {
			for _, e := range w.Events {
				within(w.Header, []*mvccpb.KeyValue{e.Kv})
			}
		}
	})
}
