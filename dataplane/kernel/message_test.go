package kernel

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/watch"
)

func TestRouteMessageIsReadBack(t *testing.T) {
	a4, a6 := netip.MustParseAddr("10.5.2.0"), netip.MustParseAddr("fd00:0:0:2::")
	for _, want := range []struct {
		k routeKey
		r route
	}{
		{routeKey{netip.PrefixFrom(a4, 24), 0}, route{protocol: 211, nexthop: 7}},
		{routeKey{netip.PrefixFrom(a4, 24), 9}, route{link: 4, protocol: 3, gateway: a4, onlink: true}},
		{routeKey{netip.PrefixFrom(a6, 64), 0}, route{link: 4, protocol: 211, gateway: a6, onlink: true}},
		{routeKey{netip.PrefixFrom(a4, 24), 0}, route{link: 4, protocol: 211, gateway: peerB.Addr, direct: true}},
		{routeKey{netip.PrefixFrom(a4, 24), 0}, route{link: 4, protocol: 3, gateway: peerB.Addr}},
	} {
		b := routeMessage(nil, unix.RTM_NEWROUTE, 0, want.k, want.r)
		k, r, ok := parseRoute(b[unix.SizeofNlMsghdr:])
		if !ok || k != want.k || r != want.r || int(native.Uint32(b)) != len(b) {
			t.Errorf("got %v %v, want %v %v", k, r, want.k, want.r)
		}
	}
}

// What the kernel sends is well formed; a reader that trusts it would still
// be one kernel bug away from a panic.
func FuzzParse(f *testing.F) {
	f.Add(routeMessage(nil, unix.RTM_NEWROUTE, 0, routeKey{dst: netip.MustParsePrefix("10.5.2.0/24")}, route{nexthop: 7}))
	f.Add(fdbMessage(nil, unix.RTM_NEWNEIGH, 0, fdbEntry{4, peerB.MAC, peerB.Addr}))
	f.Add(newNexthopMessage(nil, place{4, peerB.Addr}))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newState()
		s.links = []int{4}
		watch.Messages(b, func(h unix.NlMsghdr, body []byte) {
			for _, typ := range []uint16{h.Type, unix.RTM_NEWROUTE, unix.RTM_DELNEIGH, unix.RTM_NEWLINK, unix.RTM_DELNEXTHOP, unix.RTM_NEWADDR} {
				h.Type = typ
				classify(h, body, 4, 1).differs(s)
			}
			s.addRoute(body)
			if n, ok := parseNexthop(body); ok {
				s.addNexthop(n)
			}
			if n, ok := parseNeighbour(body); ok {
				s.addFDB(n, false)
			}
		})
	})
}
