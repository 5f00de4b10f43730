package etcdrpc

import (
	"log/slog"
	"net"
	"testing"
	"time"
)

func TestIsStale(t *testing.T) {
	prefix := func(s string) net.Addr {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	addrs := []net.Addr{prefix("127.0.0.1/8"), prefix("192.0.2.7/24"), prefix("fe80::1/64")}
	tcp := func(ip, zone string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Zone: zone, Port: 1} }
	for _, c := range []struct {
		local net.Addr
		want  bool
	}{
		{tcp("192.0.2.7", ""), false},
		{tcp("192.0.2.8", ""), true}, // of the same network
		{tcp("198.51.100.1", ""), true},
		{tcp("127.3.2.1", ""), false},
		{tcp("fe80::1", "eth0"), false},
		{tcp("2001:db8::1", ""), true},
		{&net.UnixAddr{Name: "/run/etcd"}, false},
	} {
		if got := isStale(c.local, addrs); got != c.want {
			t.Errorf("%v: %v", c.local, got)
		}
	}
}

// at is a connection that says where it is from.
type at struct {
	net.Conn
	local net.Addr
}

func (a at) LocalAddr() net.Addr { return a.local }

// TestCloseStale: only the connection whose address is gone is closed, and closed ones are forgotten.
func TestCloseStale(t *testing.T) {
	tracker := newConnTracker("http://etcd", nil, slog.New(slog.DiscardHandler))
	var conns []net.Conn
	for _, ip := range []string{"127.0.0.1", "192.0.2.77"} {
		here, there := net.Pipe()
		defer there.Close()
		c, _, err := tracker.ClientHandshake(t.Context(), "etcd", at{here, &net.TCPAddr{IP: net.ParseIP(ip)}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	tracker.closeStale(slog.New(slog.DiscardHandler))
	for i, want := range []bool{true, false} {
		if err := conns[i].SetDeadline(time.Time{}); (err == nil) != want { // one that is closed takes none
			t.Errorf("%v: %v, want it open: %v", conns[i].LocalAddr(), err, want)
		}
	}
	if n := tracker.conns.Len(); n != 1 {
		t.Errorf("%d connections are known, want the one that is open", n)
	}
}
