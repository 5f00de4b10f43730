package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestFilter sends what a filter is to take, and what it is to drop, to a socket, over both families, from the first, the
// last and some of its sources, and from between them.
func TestFilter(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{-1, 0, 1, 2, 3, 200} { // sources; -1: any
			t.Run(fmt.Sprintf("%t/%d", v6, n), func(t *testing.T) {
				t.Parallel()
				testFilter(t, v6, n)
			})
		}
	}
}

// filterSource is the i-th source: only even ones are in the filter.
func filterSource(v6 bool, i int) netip.Addr {
	if v6 {
		a := [16]byte{0xfd, 8: byte(i % 3), 15: 1}
		binary.BigEndian.PutUint16(a[12:], uint16(i/3)) // several have the same last word
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{127, 128 + byte(i>>8), byte(i), 7})
}

func testFilter(t *testing.T, v6 bool, n int) {
	h := netnstest.New(t)
	to := netip.MustParseAddrPort("127.0.0.1:8472")
	if v6 {
		to = netip.MustParseAddrPort("[::1]:8472")
	}
	f := Filter{VNIs: []uint32{1, 70000, 1<<24 - 1}}
	if n >= 0 {
		f.Sources = []netip.Addr{}
	}
	for i := range n {
		f.Sources = append(f.Sources, filterSource(v6, 2*i))
	}
	slices.SortFunc(f.Sources, netip.Addr.Compare)
	var at int
	h.Must(func() (err error) {
		if at, err = Open(to, 0); err == nil {
			err = f.Attach(at, v6)
		}
		return err
	})
	defer unix.Close(at)
	good := func(vni uint32) []byte {
		b := make([]byte, 100)
		b[0] = 8
		binary.BigEndian.PutUint32(b[4:], vni<<8)
		return b
	}
	with := func(i int, v byte) []byte { b := good(1); b[i] = v; return b }
	for name, tt := range map[string]struct {
		b    []byte
		ours bool
	}{
		"first network": {good(1), true}, "last network": {good(1<<24 - 1), true}, "another network": {good(2), false}, "VNI 0": {good(0), false},
		"short": {good(1)[:41], false}, "empty": {nil, false}, "shortest": {good(1)[:42], true}, "header only": {good(1)[:8], false},
		"GBP": {with(0, 0x88), false}, "no flag": {with(0, 0), false}, "reserved": {with(2, 1), false}, "reserved behind the VNI": {with(7, 1), false},
	} {
		for _, i := range []int{0, 1, 2, 3, 2*n - 2, 2*n - 1, 2 * n, 401} {
			if i < 0 {
				continue
			}
			from := filterSource(v6, i)
			want := tt.ours && (n < 0 || i%2 == 0 && i/2 < n)
			const each = 40
			var got int
			h.Must(func() error { return sendFrom(from, to, tt.b, each) })
			for buf := make([]byte, 200); ; got++ {
				if _, _, err := unix.Recvfrom(at, buf, unix.MSG_DONTWAIT); err != nil {
					break
				}
			}
			if want && got != each || !want && got > each/4 { // one of 256 is a sample
				t.Errorf("%s from %s: %d of %d arrive, want all: %t", name, from, got, each, want)
			}
		}
	}
	if err := DetachFilter(at); err != nil {
		t.Error(err)
	}
	if err := DetachFilter(at); err != nil {
		t.Errorf("again: %v", err)
	}
}

// sendFrom sends a payload that often, by a socket of its own that may be bound to an address of nobody.
func sendFrom(from netip.Addr, to netip.AddrPort, b []byte, times int) error {
	family, level, name := unix.AF_INET, unix.IPPROTO_IP, unix.IP_FREEBIND
	var sa, dst unix.Sockaddr
	if from.Is6() {
		family, level, name = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
		sa, dst = &unix.SockaddrInet6{Addr: from.As16()}, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	} else {
		sa, dst = &unix.SockaddrInet4{Addr: from.As4()}, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, level, name, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return err
	}
	for range times {
		if err := unix.Sendto(fd, b, 0, dst); err != nil {
			return err
		}
	}
	return nil
}
