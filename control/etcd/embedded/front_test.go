package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestPortTaken: a server that is to wait for its port serves at its socket meanwhile, and at the port when that is free; it can be stopped
// before. One that is not to wait does not start.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		waits, free bool
	}{{"is freed", true, true}, {"stays taken", true, false}, {"is a mistake", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			dir, opened := t.TempDir(), make(chan struct{})
			s, err := Start(t.Context(), Config{Dir: dir, ListenClient: "http://" + l.Addr().String(), Prefix: "/p", NoFsync: true,
				Waits: func(err error) bool {
					if !errors.Is(err, unix.EADDRINUSE) {
						t.Errorf("asked because of %v", err)
					}
					return c.waits
				}, Opened: func() { close(opened) }})
			if (err == nil) != c.waits {
				t.Fatalf("start: %v", err)
			}
			if err != nil {
				if !errors.Is(err, ErrListen) {
					t.Errorf("%v is no %v", err, ErrListen)
				}
				return
			}
			const method = "/etcdserverpb.Maintenance/Status"
			if err := call(t, dial(t, "unix://"+filepath.Join(dir, socketName), insecure.NewCredentials()), method, false); err != nil {
				t.Errorf("at the socket: %v", err)
			}
			if c.free {
				l.Close()
				<-opened
				if err := call(t, dial(t, l.Addr().String(), insecure.NewCredentials()), method, false); err != nil {
					t.Errorf("at the port: %v", err)
				}
			}
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOwnUsers: at a plain loopback address another user of the host cannot write, from whatever address he connects, and is named in the
// log. Root can. At other addresses and with certificates the user does not matter.
func TestOwnUsers(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	const nobody = 65534
	s, _, log := small(t, Config{Dir: t.TempDir()})
	for _, c := range []struct {
		user int
		from string
	}{{nobody, ""}, {0, ""}, {nobody, outside(t)}, {0, outside(t)}} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}, Control: func(_, _ string, conn syscall.RawConn) (err error) {
			broken := conn.Control(func(fd uintptr) { err = unix.Fchown(int(fd), c.user, c.user) })
			return errors.Join(broken, err)
		}}
		conn, err := grpc.NewClient("passthrough:///"+s.address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return d.DialContext(ctx, "tcp", at) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("/p/x"), Value: []byte("y")})
		if (err == nil) != (c.user == 0) {
			t.Errorf("user %d from %q: %v", c.user, c.from, err)
		}
	}
	if log.Count("refused a client: it is of another user") == 0 || log.Count(`client="uid 65534"`) == 0 {
		t.Errorf("the log:\n%s", log)
	}
	for at, own := range map[string]bool{"http://127.0.0.1": true, "http://127.1.2.3": true, "http://[::1]": true, "http://[::ffff:127.0.0.1]": true, "http://" + outside(t): false, "https://127.0.0.1": false, "http://0.0.0.0": false} {
		s := new(Server)
		_, err := s.listen(Config{Dir: t.TempDir(), TLS: func() (*tls.Config, error) { return nil, nil }}, *mustParse(t, at+":0"))
		if err != nil || s.front.own != own {
			t.Errorf("%s: %v, %+v", at, err, s.front)
		}
		s.closeFront()
	}
}

// outside returns an address of IPv4 that this host has besides those of the loopback.
func outside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	netnstest.Lacks(t, "an address besides 127.0.0.1")
	return ""
}
