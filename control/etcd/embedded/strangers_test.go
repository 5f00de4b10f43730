package embedded

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// authority issues certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	a.cert = a.issue(a.cert, key).Leaf
	return a
}

func (a *authority) issue(cert *x509.Certificate, key *ecdsa.PrivateKey) tls.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// leaf is a certificate for a client or a server, which ends after a while.
func (a *authority) leaf(usage x509.ExtKeyUsage, valid time.Duration) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.issue(&x509.Certificate{SerialNumber: big.NewInt(2), ExtKeyUsage: []x509.ExtKeyUsage{usage}, NotAfter: time.Now().Add(valid)}, key)
}

// server is the config of a server that takes the clients of these authorities.
func (a *authority) server(clients ...*authority) *tls.Config {
	c := &tls.Config{Certificates: []tls.Certificate{a.leaf(x509.ExtKeyUsageServerAuth, time.Hour)}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: x509.NewCertPool(), NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true}
	for _, by := range clients {
		c.ClientCAs.AddCert(by.cert)
	}
	return c
}

// client is the config of a client, which takes every server.
func (a *authority) client(valid time.Duration) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{a.leaf(x509.ExtKeyUsageClientAuth, valid)}, NextProtos: []string{"h2"}}
}

// serving starts a server on a port of this host. secure is nil, or what it asks for at each handshake.
func serving(t *testing.T, secure func() (*tls.Config, error)) *Server {
	t.Helper()
	scheme := "http"
	if secure != nil {
		scheme = "https"
	}
	s, err := Start(t.Context(), Config{Dir: t.TempDir(), ListenClient: scheme + "://" + FreeAddress(t), Prefix: "/p", TLS: secure, NoFsync: true, Log: slog.New(slog.DiscardHandler), greeting: 500 * time.Millisecond, recheck: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	return s
}

func (s *Server) address() string { return s.front.listener.Addr().String() }

func dial(t *testing.T, address string, with credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(with))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// call calls a method of any type with an empty message.
func call(t *testing.T, conn *grpc.ClientConn, method string, isStream bool) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if !isStream {
		return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	_, _ = s.SendMsg(&emptypb.Empty{}), s.CloseSend() // what is wrong, RecvMsg tells
	return s.RecvMsg(&emptypb.Empty{})
}

// TestServedIsEverything: the list of RPCs, over which other tests go, is that of a server that runs.
func TestServedIsEverything(t *testing.T) {
	s := &Server{conns: newConnTracker()}
	dir := t.TempDir()
	info := make(chan map[string]grpc.ServiceInfo, 1)
	c := s.config(Config{Dir: dir, Name: "n"}, *mustParse(t, "unix://"+dir+"/s"), []url.URL{*mustParse(t, "unix://"+dir+"/s")})
	c.ServiceRegister = func(g *grpc.Server) { info <- g.GetServiceInfo() }
	c.UnsafeNoFsync = true
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var have []string
	for name, service := range <-info {
		for _, m := range service.Methods {
			have = append(have, "/"+name+"/"+m.Name)
		}
	}
	slices.Sort(have)
	if want := slices.Sorted(maps.Keys(served())); !slices.Equal(have, want) {
		t.Errorf("served %q\nlisted %q", have, want)
	}
}

// TestStrangersGetNothing: with TLS no RPC of etcd answers a client without a certificate of this cluster, or with one that
// has ended; a member's reach etcd, as far as the guard lets them.
func TestStrangersGetNothing(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	config := ours.server(ours)
	s := serving(t, func() (*tls.Config, error) { return config, nil })
	none := ours.client(time.Hour)
	none.Certificates = nil
	server := ours.client(time.Hour)
	server.Certificates[0] = ours.leaf(x509.ExtKeyUsageServerAuth, time.Hour)
	strangers := map[string]credentials.TransportCredentials{
		"no TLS": insecure.NewCredentials(), "no certificate": credentials.NewTLS(none), "another authority": credentials.NewTLS(theirs.client(time.Hour)),
		"too old": credentials.NewTLS(ours.client(-time.Minute)), "of a server": credentials.NewTLS(server),
	}
	for name, with := range strangers {
		conn := dial(t, s.address(), with)
		for method, isStream := range served() {
			if err := call(t, conn, method, isStream); status.Code(err) != codes.Unavailable {
				t.Errorf("%s: %s: %v", name, method, err)
			}
		}
	}
	conn := dial(t, s.address(), credentials.NewTLS(ours.client(time.Hour)))
	checkStated(t, conn)
}

// TestStrangersGetWhatIsStated: without TLS a stranger has each RPC as a member has it. None of them keeps the server from
// starting again, nor others out of it.
func TestStrangersGetWhatIsStated(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	checkStated(t, dial(t, s.address(), insecure.NewCredentials()))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	_, c, _ := small(t, Config{Dir: s.dir.Name()})
	if _, err := c.Put(t.Context(), "/p/x", "y"); err != nil {
		t.Error(err)
	}
}

// checkStated calls every RPC with an empty request.
func checkStated(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	answers := map[string]codes.Code{ // of what is not refused
		"/etcdserverpb.Auth/Authenticate":    codes.FailedPrecondition, // there is nothing to authenticate for
		"/etcdserverpb.KV/Txn":               codes.OK,                 // which does nothing
		"/etcdserverpb.Lease/LeaseGrant":     codes.OK,                 // etcd raises the TTL to what it takes
		"/etcdserverpb.Lease/LeaseRevoke":    codes.NotFound,
		"/etcdserverpb.Maintenance/Status":   codes.OK,
		"/grpc.health.v1.Health/Check":       codes.OK,
		"/grpc.health.v1.Health/Watch":       codes.OK,
		"/etcdserverpb.Lease/LeaseKeepAlive": codes.OK, "/etcdserverpb.Lease/LeaseTimeToLive": codes.OK, // of a lease that does not exist
	}
	for method, isStream := range served() {
		if method == "/etcdserverpb.Watch/Watch" {
			continue // an empty request asks for nothing, and is not answered
		}
		err := call(t, conn, method, isStream)
		want, stated := answers[method]
		if !stated {
			want = codes.PermissionDenied
		}
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %v", method, err, want)
		}
	}
}

// TestLeasesWithForeignKeys: who ends a lease deletes its keys, and who asks for them learns them. The guard is not in the way
// of leases that have only keys below the prefix.
func TestLeasesWithForeignKeys(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.address()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	grant := func(keys ...string) clientv3.LeaseID {
		l, err := c.Grant(ctx, 600)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if _, err := s.etcd.Server.Put(ctx, &pb.PutRequest{Key: []byte(key), Lease: int64(l.ID)}); err != nil {
				t.Fatal(err)
			}
		}
		return l.ID
	}
	for _, tt := range []struct {
		keys    []string
		refused bool
	}{
		{nil, false}, {[]string{"/p/a"}, false}, {[]string{"/p/a", "/p/b/c"}, false},
		{[]string{"/q"}, true}, {[]string{"/p/a", "/q"}, true}, {[]string{"/p"}, true}, {[]string{"/pq/a", "/p/a"}, true},
	} {
		id := grant(tt.keys...)
		_, err := c.TimeToLive(ctx, id, clientv3.WithAttachedKeys())
		if refused := status.Code(err) == codes.PermissionDenied; refused != tt.refused || !refused && err != nil {
			t.Errorf("%q: keys: %v", tt.keys, err)
		}
		if _, err := c.TimeToLive(ctx, id); err != nil {
			t.Errorf("%q: time: %v", tt.keys, err)
		}
		_, err = c.Revoke(ctx, id)
		if refused := status.Code(err) == codes.PermissionDenied; refused != tt.refused || !refused && err != nil {
			t.Errorf("%q: revoke: %v", tt.keys, err)
		}
		r, err := s.etcd.Server.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(id), Keys: true})
		if tt.refused && (err != nil || len(r.Keys) != len(tt.keys)) {
			t.Errorf("%q: left %v, %v", tt.keys, r, err)
		}
	}
}

// TestConnectionsAreCheckedAgain: replaced authorities take effect for connections that are open, and at once for new ones;
// so does the end of a certificate.
func TestConnectionsAreCheckedAgain(t *testing.T) {
	t.Parallel()
	one, two := newAuthority(t), newAuthority(t)
	var config atomic.Pointer[tls.Config]
	config.Store(one.server(one))
	s := serving(t, func() (*tls.Config, error) { return config.Load(), nil })
	try := func(c *tls.Config, within time.Duration) (*clientv3.Client, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + s.address()}, TLS: c, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err = client.Put(ctx, "/p/x", "y")
		return client, err
	}
	open := func(c *tls.Config) *clientv3.Client {
		t.Helper()
		client, err := try(c, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	// A busy machine needs longer for a handshake than a short certificate is valid.
	openShort := func() *clientv3.Client {
		t.Helper()
		for valid := time.Second; valid < 20*time.Second; valid *= 2 {
			client, err := try(one.client(valid), valid)
			if err == nil {
				return client
			}
			client.Close()
		}
		t.Fatal("no handshake within 16 s")
		return nil
	}
	guests := func(n int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); len(s.front.guests.all()) != n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections, want %d", len(s.front.guests.all()), n)
			}
		}
	}
	old, short := open(one.client(time.Hour)), openShort()
	guests(1) // the certificate of the other has ended
	short.Close()
	config.Store(one.server(one, two))
	fresh := open(two.client(time.Hour))
	guests(2)
	config.Store(two.server(two))
	guests(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := old.Get(ctx, "/p/x"); err == nil {
		t.Error("the old one is still let in")
	}
	if _, err := fresh.Get(t.Context(), "/p/x"); err != nil {
		t.Error(err)
	}
}

// TestSilentConnections: a stranger who opens more connections than there may be, and says nothing, keeps nobody out, and
// what he holds is closed.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	var held []net.Conn
	for range 2 * maxGreeting {
		c, err := from.Dial("tcp", s.address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	began := time.Now()
	if err := call(t, dial(t, s.address(), insecure.NewCredentials()), "/etcdserverpb.Maintenance/Status", false); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > greeting {
		t.Errorf("answered after %s", took)
	}
	if n := len(s.front.greeted.all()); n > maxGreeting {
		t.Errorf("%d connections", n)
	}
	for _, c := range held {
		c.SetReadDeadline(time.Now().Add(4 * greeting))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("still open: %v", err)
		}
	}
}

// TestCrowd: who has most makes room; if several have, who came last, or who has been there for longest.
func TestCrowd(t *testing.T) {
	type step struct {
		from string
		lost string // which connection makes room, by its number; "": there is room
	}
	for _, tt := range []struct {
		name  string
		keeps bool
		steps []step
	}{
		{"one has most", true, []step{{"192.0.2.1", ""}, {"192.0.2.9", ""}, {"192.0.2.9", ""}, {"192.0.2.9", ""}, {"192.0.2.9", "4"}, {"192.0.2.2", "1"}, {"192.0.2.3", "2"}, {"192.0.2.9", "7"}}},
		{"one has most, and the oldest goes", false, []step{{"192.0.2.1", ""}, {"192.0.2.9", ""}, {"192.0.2.9", ""}, {"192.0.2.9", ""}, {"192.0.2.9", "1"}, {"192.0.2.2", "2"}, {"192.0.2.3", "3"}, {"192.0.2.9", "4"}}},
		{"all have one", true, []step{{"2001:db8::1", ""}, {"2001:db8::2", ""}, {"2001:db8::3", ""}, {"2001:db8::4", ""}, {"2001:db8::5", "4"}}},
		{"all have one, and the oldest goes", false, []step{{"2001:db8::1", ""}, {"2001:db8::2", ""}, {"2001:db8::3", ""}, {"2001:db8::4", ""}, {"2001:db8::5", "0"}, {"2001:db8::2", "1"}}},
	} {
		c := newCrowd(4, tt.keeps)
		var conns []*fakeConn
		closed := func() (numbers string) {
			for i, f := range conns {
				if f.closed {
					numbers += fmt.Sprint(i)
				}
			}
			return numbers
		}
		for i, s := range tt.steps {
			f := &fakeConn{from: netip.AddrPortFrom(netip.MustParseAddr(s.from), 1)}
			before := closed()
			conns = append(conns, f)
			g, dropped := c.admit(f)
			lost := strings.Trim(closed(), before)
			if lost != s.lost || dropped != (lost != "") || (g == nil) != f.closed || c.count > 4 {
				t.Errorf("%s: step %d: lost %q, want %q; admitted %v, dropped %v, %d open", tt.name, i, lost, s.lost, g != nil, dropped, c.count)
			}
		}
		for _, g := range c.all() {
			g.Close()
			g.Close()
		}
		if c.count != 0 || len(c.bySource) != 0 {
			t.Errorf("%s: %d left, %v", tt.name, c.count, c.bySource)
		}
		c.close()
		if g, _ := c.admit(&fakeConn{}); g != nil {
			t.Errorf("%s: admitted after close", tt.name)
		}
	}
}

// fakeConn is a connection from an address that tells whether it was closed.
type fakeConn struct {
	net.Conn
	from   netip.AddrPort
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }
func (c *fakeConn) Close() error         { c.closed = true; return nil }

// TestLongDirectory: the path of the data directory may be longer than that of a socket.
func TestLongDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	s, err := Start(t.Context(), Config{Dir: dir, ListenClient: "http://" + FreeAddress(t), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// FreeAddress returns an address of this host with a port that was free a moment ago, and still is: nobody but this test uses that address,
// and programs that connect to others use 127.0.0.1.
func FreeAddress(t *testing.T) string {
	t.Helper()
	r := make([]byte, 2)
	rand.Read(r)
	l, err := net.Listen("tcp", net.JoinHostPort(net.IPv4(127, 1+r[0]%254, r[1], 1).String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
