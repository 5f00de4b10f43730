package conns

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// from is a connection to an address.
type from struct {
	net.Conn
	remote net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.remote }

func tcp(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 2379} }

// TestSet: open connections are listed, each address once; closed ones are forgotten, and only those that are meant are closed.
func TestSet(t *testing.T) {
	t.Parallel()
	var s Set[string]
	if s.Len() != 0 || s.Remotes() != nil || s.CloseIf(func(net.Conn, string) bool { return true }, nil) != 0 {
		t.Error("the zero value is not empty")
	}
	var conns []*Conn[string]
	var others []net.Conn
	for i, remote := range []net.Addr{tcp("192.0.2.9"), tcp("::ffff:192.0.2.1"), tcp("192.0.2.9"), &net.UnixAddr{Name: "/run/etcd"}} {
		here, there := net.Pipe()
		defer there.Close()
		others = append(others, there)
		conns = append(conns, s.Add(from{here, remote}, []string{"old", "new"}[i%2]))
	}
	if got := s.Remotes(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")}) {
		t.Errorf("remotes %v", got)
	}
	told := 0
	if n := s.CloseIf(func(_ net.Conn, note string) bool { return note == "old" }, func(net.Conn) { told++ }); n != 2 || told != 2 || s.Len() != 2 {
		t.Errorf("%d closed, %d told, %d left", n, told, s.Len())
	}
	if _, err := others[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("of the one that was closed: %v", err)
	}
	conns[1].Leave()
	if err := conns[1].Close(); err != nil || s.Len() != 1 {
		t.Errorf("of one that has left: %v, %d left", err, s.Len())
	}
	if err := conns[3].Close(); err != nil || s.Len() != 0 {
		t.Errorf("of the last one: %v, %d left", err, s.Len())
	}
}
