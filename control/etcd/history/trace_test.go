package history_test

import (
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// write is a call that may have changed something in etcd; it is read when it is reported.
type write struct {
	method          string
	request, answer []byte
}

// String says in one line what the write was about.
func (w write) String() string {
	if w.method == "/etcdserverpb.Lease/LeaseRevoke" {
		var r pb.LeaseRevokeRequest
		err := proto.Unmarshal(w.request, &r)
		return fmt.Sprintf("revokes etcd lease %x (%v)", r.ID, err)
	}
	var txn pb.TxnRequest
	var resp pb.TxnResponse
	if err := proto.Unmarshal(w.request, &txn); err != nil {
		return err.Error()
	}
	if err := proto.Unmarshal(w.answer, &resp); err != nil {
		return err.Error()
	}
	var text strings.Builder
	fmt.Fprintf(&text, "txn succeeded %v at %d: if", resp.Succeeded, resp.GetHeader().GetRevision())
	for _, c := range txn.Compare {
		fmt.Fprintf(&text, " %s %s=%d", short(c.Key), c.Target, max(c.GetModRevision(), c.GetLease(), c.GetCreateRevision()))
	}
	text.WriteString(" then")
	for _, op := range txn.Success {
		if p := op.GetRequestPut(); p != nil {
			fmt.Fprintf(&text, " put %s lease %x", short(p.Key), p.Lease)
		}
		if d := op.GetRequestDeleteRange(); d != nil {
			fmt.Fprintf(&text, " delete %s", short(d.Key))
		}
	}
	return text.String()
}

// short is a key without the prefix of its history.
func short(key []byte) string {
	parts := strings.SplitN(string(key), "/", 3)
	return parts[len(parts)-1]
}

// isWrite reports whether a method changes etcd.
func isWrite(method string) bool {
	return method == "/etcdserverpb.KV/Txn" || method == "/etcdserverpb.Lease/LeaseRevoke"
}
