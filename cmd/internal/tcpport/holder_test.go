package tcpport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListenSaysWhoHasIt: the error names this process, whichever of the addresses of the port are wanted and taken.
func TestListenSaysWhoHasIt(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s (pid %d) has it", strings.TrimSpace(string(comm)), os.Getpid())
	for _, c := range []struct{ taken, wanted string }{
		{"127.0.0.1", "127.0.0.1"}, {"127.0.0.1", "localhost"}, {"127.0.0.1", "0.0.0.0"}, {"0.0.0.0", "127.0.0.1"}, {"", ""}, {"", "127.0.0.1"},
	} {
		l, err := net.Listen("tcp", net.JoinHostPort(c.taken, "0"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Listen(c.wanted, l.Addr().(*net.TCPAddr).Port)
		if !errors.Is(err, unix.EADDRINUSE) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q is taken, %q is wanted: %v, want %s", c.taken, c.wanted, err, want)
		}
		l.Close()
	}
}

// TestListen: a port that is free is opened, and what is not an address of this host is refused without a holder.
func TestListen(t *testing.T) {
	l, err := Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, host := range []string{"192.0.2.77", "no such name"} {
		if _, err := Listen(host, 9799); err == nil || strings.Contains(err.Error(), "has it") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestHolderOfNone: a port at which nobody listens, and one at another address, are nobody's.
func TestHolderOfNone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if got := Holder(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), at.Port())); got != "" {
		t.Errorf("beside it: %s", got)
	}
	l.Close()
	if got := Holder(at); got != "" {
		t.Errorf("after it: %s", got)
	}
}

// TestParseSocket: lines as Linux writes them on a machine with little-endian numbers, and lines that it does not write.
func TestParseSocket(t *testing.T) {
	const rest = " 00000000:0000 %s 00000000:00000000 00:00000000 00000000  1000        0 123456 1 0000000000000000 100 0 0 10 0"
	for _, c := range []struct {
		line, at string
		ok       bool
	}{
		{"   0: 0100007F:2647" + rest, "127.0.0.1:9799", true},
		{"   1: 00000000:1F91" + rest, "0.0.0.0:8081", true},
		{"   2: 00000000000000000000000001000000:2647" + rest, "[::1]:9799", true},
		{"   3: B80D0120000000000000000001000000:2647" + rest, "[2001:db8::1]:9799", true},
		{"   4: 0000000000000000FFFF00000100007F:2647" + rest, "127.0.0.1:9799", true},
		{"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", "", false},
		{"   5: 01007F:2647" + rest, "", false},
		{"   6: 0100007F:12647" + rest, "", false},
		{"   7: xx00007F:2647" + rest, "", false},
		{"   8: 0100007F" + rest, "", false},
		{"", "", false},
	} {
		at, inode, ok := parseSocket(strings.Replace(c.line, "%s", "0A", 1), false)
		if ok != c.ok || ok && (at.String() != c.at || inode != "123456") {
			t.Errorf("%s: %s %s %v", c.line, at, inode, ok)
		}
		if _, _, ok := parseSocket(strings.Replace(c.line, "%s", "01", 1), false); ok {
			t.Errorf("%s: a connection is taken for a listener", c.line)
		}
	}
}

// TestHolderOfUDP: whoever has a UDP port is named, at whatever address, and nobody if nobody has it.
func TestHolderOfUDP(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::]:0", "127.0.0.1:0 connected", "[::1]:0 connected"} {
		at, connected := strings.CutSuffix(at, " connected")
		c, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		if connected {
			to := unix.Sockaddr(&unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
			if strings.HasPrefix(at, "[") {
				to = &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}}
			}
			raw, err := c.(*net.UDPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var refused error
			if err := raw.Control(func(fd uintptr) { refused = unix.Connect(int(fd), to) }); err != nil || refused != nil {
				t.Fatal(err, refused)
			}
		}
		port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		if got := HolderUDP(port); !strings.HasSuffix(got, fmt.Sprintf(" (pid %d)", os.Getpid())) {
			t.Errorf("%s, connected %v: %q", at, connected, got)
		}
		c.Close()
		if got := HolderUDP(port); got != "" {
			t.Errorf("%s, closed: %q", at, got)
		}
	}
}
