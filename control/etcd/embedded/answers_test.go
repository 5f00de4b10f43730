package embedded

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// fill writes n values of a size below /p/.
func fill(t *testing.T, c *clientv3.Client, n, size int) {
	t.Helper()
	value := strings.Repeat("x", size)
	for i := range n {
		if _, err := c.Put(t.Context(), fmt.Sprintf("/p/%04d", i), value); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnswersAreBounded: an answer of many keys has them all, in their order and as they are at one moment; one of too many bytes is
// refused, and so is every other way to get as much at once.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	_, c, _ := small(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	fill(t, c, 3*pageKeys, 10)
	for _, limit := range []int64{0, 1, 5, pageKeys - 1, pageKeys, pageKeys + 1, 2 * pageKeys, 3 * pageKeys, 1000} {
		for _, opt := range []clientv3.OpOption{clientv3.WithSerializable(), clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)} {
			got, err := c.Get(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithLimit(limit), opt)
			if err != nil {
				t.Fatal(err)
			}
			want := 3 * pageKeys
			if limit > 0 {
				want = min(want, int(limit))
			}
			if len(got.Kvs) != want || got.More != (want < 3*pageKeys) || got.Count != 3*pageKeys {
				t.Fatalf("limit %d: %d keys of %d, more: %v", limit, len(got.Kvs), got.Count, got.More)
			}
			for i, kv := range got.Kvs {
				if string(kv.Key) != fmt.Sprintf("/p/%04d", i) {
					t.Fatalf("limit %d: key %d is %s", limit, i, kv.Key)
				}
			}
		}
	}
	fill(t, c, 2*pageKeys, maxPut)
	refused := func(what string, want codes.Code, err error) {
		t.Helper()
		if status.Code(err) != want || !strings.Contains(err.Error(), "refused:") {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	all := []clientv3.OpOption{clientv3.WithPrefix()}
	_, err := c.Get(ctx, "/p/", all...)
	refused("all", codes.ResourceExhausted, err)
	_, err = c.Get(ctx, "/p/", append(all, clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))...)
	refused("sorted", codes.PermissionDenied, err)
	_, err = c.Get(ctx, "/p/", append(all, clientv3.WithMinModRev(1), clientv3.WithLimit(1))...)
	refused("by revision", codes.PermissionDenied, err)
	_, err = c.Delete(ctx, "/p/", append(all, clientv3.WithPrevKV())...)
	refused("deleted", codes.PermissionDenied, err)
	_, err = c.Txn(ctx).Then(clientv3.OpGet("/p/", all...)).Commit()
	refused("in a transaction", codes.PermissionDenied, err)
	var ops []clientv3.Op
	for i := range atOnce {
		ops = append(ops, clientv3.OpGet(fmt.Sprintf("/p/%04d", i)))
	}
	_, err = c.Txn(ctx).Then(clientv3.OpTxn(nil, ops, nil)).Commit()
	refused("one by one in a transaction", codes.PermissionDenied, err)
	if got, err := c.Get(ctx, "/p/", append(all, clientv3.WithCountOnly())...); err != nil || got.Count != 3*pageKeys {
		t.Errorf("count: %v, %v", got, err)
	}
	if got, err := c.Get(ctx, "/p/", append(all, clientv3.WithLimit(pageKeys-1))...); err != nil || len(got.Kvs) != pageKeys-1 {
		t.Errorf("a page: %v", err)
	}
}

// TestAnswersThatNobodyTakes: clients that ask for everything again and again and take nothing of it are closed, and keep others
// from nothing meanwhile.
func TestAnswersThatNobodyTakes(t *testing.T) {
	t.Parallel()
	s, c, _ := small(t, Config{Dir: t.TempDir(), takePatience: 300 * time.Millisecond})
	fill(t, c, 16, maxPut)
	var ended []<-chan struct{}
	for range 3 {
		ended = append(ended, askOnly(t, s.address(), 200))
	}
	for _, end := range ended {
		for waiting := true; waiting; {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			if _, err := c.Get(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithLimit(10)); err != nil {
				t.Fatalf("a client that takes its answers: %v", err)
			}
			cancel()
			select {
			case <-end:
				waiting = false
			case <-t.Context().Done():
				t.Fatal("a client that takes nothing is not closed")
			default:
			}
		}
	}
	a := s.guard.answers
	soon(t, "all room is given back", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.turns) > 0 || !a.sending.TryAcquire(sending) {
			return fmt.Errorf("%d turns", len(a.turns))
		}
		a.sending.Release(sending)
		return nil
	})
}

// askOnly sends many requests for everything on one connection, and never allows the server to send an answer beyond the first
// 64 KiB. The channel is closed when the server closes the connection.
func askOnly(t *testing.T, address string, n int) <-chan struct{} {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	body, err := proto.Marshal(&pb.RangeRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0")})
	if err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		id := uint32(2*i + 1)
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/etcdserverpb.KV/Range"}, {":authority", "x"},
			{"content-type", "application/grpc"}, {"te", "trailers"}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				t.Fatal(err)
			}
		}
		err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
		if err == nil {
			err = framer.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(body))}, body...))
		}
		if err != nil {
			break // it is closed already
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			if _, err := framer.ReadFrame(); err != nil {
				return
			}
		}
	}()
	return closed
}
