package tcpport

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSilentHolder: the user of a socket that has a port without listening at it is named, and such a socket is no mistake of the operator.
func TestSilentHolder(t *testing.T) {
	for _, c := range []struct {
		name   string
		family int
		at     unix.Sockaddr
	}{
		{"127.0.0.1", unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}},
		{"0.0.0.0", unix.AF_INET, &unix.SockaddrInet4{}},
		{"[::]", unix.AF_INET6, &unix.SockaddrInet6{}},
	} {
		fd, err := unix.Socket(c.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, c.at)
		}
		if err != nil {
			t.Fatal(err)
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		port := 0
		switch a := name.(type) {
		case *unix.SockaddrInet4:
			port = a.Port
		case *unix.SockaddrInet6:
			port = a.Port
		}
		_, err = Listen("127.0.0.1", port)
		taken, ok := err.(*TakenError)
		if !ok {
			t.Fatalf("%s: %v", c.name, err)
		}
		if taken.IsOurs() || taken.Port != uint16(port) {
			t.Errorf("%s: %+v", c.name, taken)
		}
		want := fmt.Sprintf(" (pid %d) of user %d", os.Getpid(), os.Geteuid())
		if got := taken.Holder(); !strings.HasSuffix(got, want) && got != unseen { // before Linux 6.8 nobody can tell
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
		unix.Close(fd)
	}
}

// TestIsOurs: whoever listens at the port decides, and only root and the own user can be the operator.
func TestIsOurs(t *testing.T) {
	own := fmt.Sprint(os.Geteuid())
	for _, c := range []struct {
		users   []string
		listens bool
		want    bool
		holder  string
	}{
		{[]string{"0"}, true, true, "a process of user 0"},
		{[]string{own}, true, true, "a process of user " + own},
		{[]string{"0"}, false, false, "a process of user 0"},
		{[]string{"65534"}, true, false, "a process of user 65534"},
		{[]string{"0", "65534"}, true, true, "a process of user 0, 65534"},
		{nil, false, false, unseen},
	} {
		e := &TakenError{Users: c.users, Listens: c.listens, err: unix.EADDRINUSE}
		if e.IsOurs() != c.want || e.Holder() != c.holder {
			t.Errorf("%v, listens %v: %v, %s", c.users, c.listens, e.IsOurs(), e.Holder())
		}
	}
}

// TestCollide: only a socket that is in the way has the port.
func TestCollide(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"0.0.0.0:1", "127.0.0.2:1", true},
		{"0.0.0.0:1", "[::]:1", true},
		{"0.0.0.0:1", "[::1]:1", false},
		{"[::]:1", "127.0.0.1:1", true},
		{"[::]:1", "[::1]:1", true},
		{"[::ffff:127.0.0.1]:1", "127.0.0.1:1", true},
	} {
		a, b := netip.MustParseAddrPort(c.a), netip.MustParseAddrPort(c.b)
		if collide(a, b) != c.want || collide(b, a) != c.want {
			t.Errorf("%s and %s: %v", a, b, !c.want)
		}
	}
	if every := netip.AddrPortFrom(netip.Addr{}, 1); !collide(every, netip.MustParseAddrPort("[::1]:1")) || !collide(netip.MustParseAddrPort("0.0.0.0:1"), every) {
		t.Error("no address is every address")
	}
}
