package embedded

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/overlayd/overlayd/control/garbage"
)

// asServer makes the test binary a server, whose URL and directory are its value.
const asServer = "OVERLAYD_TEST_EMBEDDED"

// hasPatience is its Config.takePatience; without it, its own.
const hasPatience = "OVERLAYD_TEST_EMBEDDED_PATIENCE"

// TestServerProcess is that process: it serves until its input ends.
func TestServerProcess(t *testing.T) {
	url, dir, ok := strings.Cut(os.Getenv(asServer), " ")
	if !ok {
		return
	}
	go garbage.Bound(t.Context(), Memory)
	patience, _ := time.ParseDuration(os.Getenv(hasPatience))
	s, err := Start(t.Context(), Config{Dir: dir, ListenClient: url, Prefix: "/p", NoFsync: true, takePatience: patience})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("serves")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Stop()
}

// server is a server in a process of its own.
type server struct {
	t       *testing.T
	pid     int
	address string
	client  *clientv3.Client // at its socket, as its daemon
}

func startProcess(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, address: FreeAddress(t)}
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestServerProcess$")
	cmd.Env = append(os.Environ(), asServer+"=http://"+s.address+" "+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	s.pid = cmd.Process.Pid
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "serves\n" {
		t.Fatalf("the server says %q, %v", line, err)
	}
	s.client, err = clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + Socket(dir)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close() })
	return s
}

// peak returns the most memory that the server has had, in kB.
func (s *server) peak() int {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return kb
}

// greedy opens a connection that takes no answer beyond the first 64 KiB, and sends the same request by n streams, with more messages in
// each. An error means that the server has closed it.
func (s *server) greedy(method string, n int, messages ...proto.Message) (net.Conn, error) {
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { conn.Close() })
	w := bufio.NewWriterSize(conn, 64<<10)
	if _, err := w.WriteString(http2.ClientPreface); err != nil {
		return conn, err
	}
	framer := http2.NewFramer(w, conn)
	if err := framer.WriteSettings(); err != nil {
		return conn, err
	}
	var body []byte
	for _, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			return conn, err
		}
		body = append(append(body, 0, 0, 0, byte(len(b)>>8), byte(len(b))), b...)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		id := uint32(2*i + 1)
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/etcdserverpb." + method}, {":authority", "x"},
			{"content-type", "application/grpc"}, {"te", "trailers"}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				return conn, err
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			return conn, err
		}
		if err := framer.WriteData(id, !strings.HasPrefix(method, "Watch"), body); err != nil {
			return conn, err
		}
	}
	return conn, w.Flush()
}

// each calls f n times, some at a time.
func each(n int, f func()) {
	var wait sync.WaitGroup
	work := make(chan struct{})
	for range 8 {
		wait.Go(func() {
			for range work {
				f()
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wait.Wait()
}

// ofLease is a lease that has many long keys.
const ofLease = 7

// attach puts the keys on the lease.
func (s *server) attach(keys int) {
	s.t.Helper()
	if _, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseGrant(s.t.Context(), &pb.LeaseGrantRequest{ID: ofLease, TTL: 3600}); err != nil {
		s.t.Fatal(err)
	}
	const batch = 50
	for i := 0; i < keys; i += batch {
		var ops []clientv3.Op
		for j := range batch {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/p/%06d", i+j)+strings.Repeat("k", 1000), "", clientv3.WithLease(ofLease)))
		}
		if _, err := s.client.Txn(s.t.Context()).Then(ops...).Commit(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// maxMemory is what a server may need whatever strangers ask for, in kB.
const maxMemory = 150_000

// TestGreedyClients: whatever clients of one address open and ask for, and take nothing of, the memory stays small and the daemon of the host
// is served meanwhile.
func TestGreedyClients(t *testing.T) {
	everything := &pb.RangeRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0")}
	one := &pb.RangeRequest{Key: []byte("/p/0001")}
	watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0"), StartRevision: 1}}}
	var many []proto.Message
	for range 500 {
		many = append(many, watch)
	}
	for _, c := range []struct {
		name           string
		conns, streams int
		method         string
		messages       []proto.Message
	}{
		{"idle", 0, 0, "", nil},
		{"connections", 10_000, 1, "KV/Range", []proto.Message{one}},
		{"streams", 50, 20_000, "KV/Range", []proto.Message{everything}},
		{"large answers", 200, 200, "KV/Range", []proto.Message{everything}},
		{"watch streams", 20, 2000, "Watch/Watch", []proto.Message{watch}},
		{"watchers", 10, 20, "Watch/Watch", many},
		{"keys of a lease", 20, 20, "Lease/LeaseTimeToLive", []proto.Message{&pb.LeaseTimeToLiveRequest{ID: ofLease, Keys: true}}},
		{"ends of a lease", 20, 20, "Lease/LeaseRevoke", []proto.Message{&pb.LeaseRevokeRequest{ID: ofLease}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startProcess(t)
			if strings.HasPrefix(c.method, "Lease") {
				s.attach(maxDeleted)
			} else {
				fill(t, s.client, 100, maxPut)
			}
			before := s.peak()
			var failed atomic.Int64
			each(c.conns, func() {
				if _, err := s.greedy(c.method, c.streams, c.messages...); err != nil {
					failed.Add(1)
				}
			})
			for range 10 {
				if _, err := s.client.Put(t.Context(), "/p/x", strings.Repeat("x", maxPut)); err != nil {
					t.Error(err)
				}
			}
			most := s.peak()
			t.Logf("%d kB before, %d kB at most; %d of %d connections failed", before, most, failed.Load(), c.conns)
			if most > maxMemory && !raceEnabled {
				t.Errorf("%d kB of memory, want at most %d", most, maxMemory)
			}
		})
	}
}

// oldest returns the first revision that a watch may begin from.
func oldest(t *testing.T, c *clientv3.Client) int64 {
	t.Helper()
	first := <-c.Watch(t.Context(), "/p/", clientv3.WithPrefix(), clientv3.WithRev(1))
	return max(first.CompactRevision, 1)
}

// TestGreedyHistory: connections that ask one after the other for all changes since an old revision, and take none of them, cost the memory
// of few such answers.
func TestGreedyHistory(t *testing.T) {
	long := func(t *testing.T, s *server) {
		for range 2 {
			fill(t, s.client, 300, maxPut)
		}
	}
	short := func(t *testing.T, s *server) {
		for range 100 {
			var ops []clientv3.Op
			for i := range 128 {
				ops = append(ops, clientv3.OpPut(fmt.Sprint("/p/", i), ""))
			}
			if _, err := s.client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := func(*testing.T, *clientv3.Client) int64 { return 2 }
	for _, c := range []struct {
		name           string
		write          func(*testing.T, *server)
		from           func(*testing.T, *clientv3.Client) int64
		conns, watches int // watches of each of two streams
	}{
		{"from the first", long, first, 30, 1},
		{"from the oldest", long, oldest, 40, 1},
		{"of short values", short, oldest, 20, 1},
		{"many of a stream", short, oldest, 20, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startProcess(t)
			c.write(t, s)
			watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
				Key: []byte("/p/"), RangeEnd: []byte("/p0"), StartRevision: c.from(t, s.client)}}}
			before := s.peak()
			for range c.conns {
				if _, err := s.greedy("Watch/Watch", 2, slices.Repeat([]proto.Message{watch}, c.watches)...); err != nil {
					t.Logf("a connection is closed: %v", err)
				}
				time.Sleep(120 * time.Millisecond) // etcd reads the history once for all watches that it finds, ten times a second
			}
			most := s.peak()
			t.Logf("%d kB before, %d kB at most", before, most)
			if most > maxMemory && !raceEnabled {
				t.Errorf("%d kB of memory, want at most %d", most, maxMemory)
			}
		})
	}
}

// TestGreedyWrites: what is written costs little memory, also if there are watches that take nothing of it, each of which began later.
func TestGreedyWrites(t *testing.T) {
	watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0")}}}
	for name, watches := range map[string]int{"alone": 0, "watched": 1} {
		t.Run(name, func(t *testing.T) {
			s := startProcess(t)
			before := s.peak()
			for range 50 {
				for range watches {
					if _, err := s.greedy("Watch/Watch", 1, watch); err != nil {
						t.Fatal(err)
					}
				}
				fill(t, s.client, 60, maxPut)
			}
			most := s.peak()
			t.Logf("%d kB before, %d kB at most", before, most)
			if most > maxMemory && !raceEnabled {
				t.Errorf("%d kB of memory, want at most %d", most, maxMemory)
			}
		})
	}
}

// TestGreedyQueues: watches that take their changes bit by bit cost the memory of few that take all. What has no room in the queue of a watch
// etcd reads for it again, once there is room.
func TestGreedyQueues(t *testing.T) {
	t.Setenv(hasPatience, "1m") // else a slow machine, which joins changes to one message, would close the clients that do not take that
	s := startProcess(t)
	watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0")}}}
	var conns []net.Conn
	for range 80 {
		conn, err := s.greedy("Watch/Watch", 1, watch)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	fill(t, s.client, 40, 3500)   // what gRPC takes
	fill(t, s.client, 140, 10)    // and the queue
	fill(t, s.client, 25, maxPut) // and does not
	before := s.peak()
	for _, conn := range conns {
		framer := http2.NewFramer(conn, conn)
		for _, stream := range []uint32{0, 1} {
			if err := framer.WriteWindowUpdate(stream, 40_000); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(110 * time.Millisecond) // etcd reads once for all watches that it finds, ten times a second
	}
	most := s.peak()
	t.Logf("%d kB before, %d kB at most", before, most)
	if most > maxMemory && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d", most, maxMemory)
	}
}

// TestGreedyUnfinished: requests that never end cost little memory, however long they say to be.
func TestGreedyUnfinished(t *testing.T) {
	s := startProcess(t)
	before := s.peak()
	body := make([]byte, maxRequest) // gRPC's header is first: not compressed, and a length
	binary.BigEndian.PutUint32(body[1:], maxRequest)
	ctx, cancel := context.WithCancel(t.Context())
	var ends sync.WaitGroup
	defer func() { cancel(); ends.Wait() }()
	var sent atomic.Int64
	for range 8 {
		way := &http.Transport{Protocols: new(http.Protocols)}
		way.Protocols.SetUnencryptedHTTP2(true)
		defer way.CloseIdleConnections()
		for range maxUnits / 8 {
			ends.Go(func() {
				text, rest := io.Pipe()
				defer rest.Close()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/etcdserverpb.KV/Put", io.MultiReader(&counted{bytes.NewReader(body), &sent}, text))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/grpc")
				if answer, err := way.RoundTrip(req); err == nil {
					answer.Body.Close()
				}
			})
		}
	}
	soon(t, "most of what may be under way", func() error {
		if n, want := sent.Load(), int64(maxUnits*maxRequest*3/4); n < want {
			return fmt.Errorf("%d bytes sent, want %d", n, want)
		}
		return nil
	})
	_, err := s.client.Put(t.Context(), "/p/x", "")
	most := s.peak()
	t.Logf("%d kB before, %d kB at most; %d bytes sent", before, most, sent.Load())
	if err != nil || most > maxMemory && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d; the daemon of the host gets %v", most, maxMemory, err)
	}
}

// counted counts what is read.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}
