package embedded

import (
	"bytes"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// words returns all strings over alphabet with up to n bytes.
func words(alphabet string, n int) []string {
	all, last := []string{""}, []string{""}
	for range n {
		var next []string
		for _, w := range last {
			for i := range len(alphabet) {
				next = append(next, w+alphabet[i:i+1])
			}
		}
		all, last = append(all, next...), next
	}
	return all
}

// selects is etcd's meaning of a key and a range end (KV.Range in rpc.proto),
// written out.
func selects(key, end, k string) bool {
	switch end {
	case "":
		return k == key
	case "\x00":
		return k >= key
	}
	return key <= k && k < end
}

// TestKeysAgainstEtcdsMeaning tries every short key with every short range end.
// Allowed is what starts at a key below the prefix and selects nothing else.
func TestKeysAgainstEtcdsMeaning(t *testing.T) {
	const alphabet = "\x00/0b\xff"
	g := newGuard("b")
	keys, ends, universe := words(alphabet, 3), words(alphabet, 3), words(alphabet, 3)
	below := func(k string) bool { return strings.HasPrefix(k, "b/") }
	var foreign []string // what must never be selected
	for _, k := range universe {
		if !below(k) {
			foreign = append(foreign, k)
		}
	}
	refused := 0
	for _, key := range keys {
		for _, end := range ends {
			want := below(key)
			for _, k := range foreign {
				if !want {
					break
				}
				want = !selects(key, end, k)
			}
			err := g.checkKeys([]byte(key), []byte(end))
			if (err == nil) != want {
				t.Fatalf("key %q, end %q: %v, want it allowed: %v", key, end, err, want)
			}
			if !want {
				refused++
			}
		}
	}
	if total := len(keys) * len(ends); refused == 0 || refused == total {
		t.Errorf("%d of %d refused: nothing was compared", refused, total)
	}
}

func TestPrefixIsADirectory(t *testing.T) {
	for _, prefix := range []string{"/a/b", "/a/b/", "/a/b///"} {
		g := newGuard(prefix)
		for key, want := range map[string]bool{
			"/a/b/config": true, "/a/b/": true, "/a/b//": true,
			"/a/b": false, "/a/bc": false, "/a/b0": false, "/a/": false, "": false, "/a/c/x": false, "/A/B/x": false,
		} {
			if err := g.checkKeys([]byte(key), nil); (err == nil) != want {
				t.Errorf("prefix %q, key %q: %v, want it allowed: %v", prefix, key, err, want)
			}
		}
	}
}

// TestRequestsAreJudgedWhole puts one good and one foreign key in each place of
// a request that can hold a key.
func TestRequestsAreJudgedWhole(t *testing.T) {
	get := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}
	}
	put := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}
	}
	del := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
	}
	txn := func(r *pb.TxnRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
	}
	compare := func(key string) []*pb.Compare {
		return []*pb.Compare{{Key: []byte("/p/first")}, {Key: []byte(key)}}
	}
	good := put("/p/first")
	long, longest := "/p/"+strings.Repeat("x", maxKey-2), "/p/"+strings.Repeat("x", maxKey-3)
	for name, request := range map[string]func(key string) any{
		"range":         func(k string) any { return &pb.RangeRequest{Key: []byte(k)} },
		"range to end":  func(k string) any { return &pb.RangeRequest{Key: []byte("/p/"), RangeEnd: []byte(k)} },
		"put":           func(k string) any { return &pb.PutRequest{Key: []byte(k)} },
		"delete":        func(k string) any { return &pb.DeleteRangeRequest{Key: []byte(k)} },
		"delete to end": func(k string) any { return &pb.DeleteRangeRequest{Key: []byte("/p/"), RangeEnd: []byte(k)} },
		"compare":       func(k string) any { return &pb.TxnRequest{Compare: compare(k)} },
		"then get":      func(k string) any { return &pb.TxnRequest{Success: []*pb.RequestOp{good, get(k)}} },
		"then put":      func(k string) any { return &pb.TxnRequest{Success: []*pb.RequestOp{good, put(k)}} },
		"then delete":   func(k string) any { return &pb.TxnRequest{Success: []*pb.RequestOp{good, del(k)}} },
		"else get":      func(k string) any { return &pb.TxnRequest{Failure: []*pb.RequestOp{good, get(k)}} },
		"else put":      func(k string) any { return &pb.TxnRequest{Failure: []*pb.RequestOp{good, put(k)}} },
		"else delete":   func(k string) any { return &pb.TxnRequest{Failure: []*pb.RequestOp{good, del(k)}} },
		"nested compare": func(k string) any {
			return &pb.TxnRequest{Success: []*pb.RequestOp{txn(&pb.TxnRequest{Compare: compare(k)})}}
		},
		"nested else, twice": func(k string) any {
			inner := &pb.TxnRequest{Failure: []*pb.RequestOp{del(k)}}
			return &pb.TxnRequest{Failure: []*pb.RequestOp{txn(&pb.TxnRequest{Success: []*pb.RequestOp{txn(inner)}})}}
		},
		"watch": func(k string) any {
			return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte(k)}}}
		},
	} {
		g := newGuard("/p")
		if err := g.check(request("/p/x")); err != nil {
			t.Errorf("%s: own key: %v", name, err)
		}
		err := g.check(request("/q/x"))
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: foreign key: %v, want it refused", name, err)
		}
		if err := g.check(request(longest)); err != nil {
			t.Errorf("%s: key of %d bytes: %v", name, len(longest), err)
		}
		err, reads := g.check(request(long)), strings.HasPrefix(name, "range")
		if reads == (status.Code(err) == codes.PermissionDenied) {
			t.Errorf("%s: key of %d bytes: %v, want it refused: %v", name, len(long), err, !reads)
		}
	}
	for _, request := range []any{nil, &pb.LeaseGrantRequest{TTL: 1}, &pb.TxnRequest{}, &pb.TxnRequest{Success: []*pb.RequestOp{{}}}, &pb.WatchRequest{}} {
		if err := newGuard("/p").check(request); err != nil {
			t.Errorf("%T without keys: %v", request, err)
		}
	}
}

func TestLargestValue(t *testing.T) {
	g := newGuard("/p")
	for size, want := range map[int]bool{0: true, maxPut: true, maxPut + 1: false} {
		put := &pb.PutRequest{Key: []byte("/p/x"), Value: bytes.Repeat([]byte("x"), size)}
		inTxn := &pb.TxnRequest{Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}}
		compare := &pb.TxnRequest{Compare: []*pb.Compare{{Key: put.Key, Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: put.Value}}}}
		for _, request := range []any{put, inTxn, compare} {
			if err := g.check(request); (err == nil) != want {
				t.Errorf("%T with %d bytes: %v, want it allowed: %v", request, size, err, want)
			}
		}
	}
}

// TestRefusalBoundsWhatItQuotes: a hostile key must not fill a log.
func TestRefusalBoundsWhatItQuotes(t *testing.T) {
	err := newGuard("/p").checkKeys(bytes.Repeat([]byte{0xff}, 1<<20), nil)
	if text := status.Convert(err).Message(); len(text) > 500 || !strings.Contains(text, "is not below /p/: an embedded etcd serves what is below the --etcd-prefix of its own daemon alone") {
		t.Errorf("%d bytes: %.600s", len(text), text)
	}
}
