package uplink

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// TestNeighbours: news of a next hop have exactly the routes by it asked for again. Those of other neighbours cause no work.
func TestNeighbours(t *testing.T) {
	const current, reachable = 1, unix.NUD_REACHABLE
	router, dead := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	far, near, lost := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.2")
	now := time.Now()
	u := &Uplink{cfg: Config{Local: netip.MustParseAddr("192.0.2.9")}, again: now.Add(time.Hour),
		ways: map[netip.Addr]*way{far: {route: route{link: 2, gateway: router}}, near: {route: route{link: 2}}, lost: {route: route{link: 2, gateway: dead}}},
		hops: map[hop]*neighbour{{2, router}: {}, {2, near}: {}, {2, dead}: {silent: true}}}
	type event struct {
		typ    uint16
		family uint8
		link   int
		addr   netip.Addr
		state  uint16
	}
	v4 := func(addr netip.Addr, state uint16) event {
		return event{unix.RTM_NEWNEIGH, unix.AF_INET, 2, addr, state}
	}
	for _, tt := range []struct {
		name   string
		events []event
		want   []netip.Addr // asked for again
	}{
		{"answers, as before", []event{v4(router, reachable), v4(near, unix.NUD_STALE), v4(dead, unix.NUD_FAILED)}, nil},
		{"other neighbours", []event{v4(netip.MustParseAddr("192.0.2.8"), unix.NUD_FAILED), {unix.RTM_NEWNEIGH, unix.AF_INET, 3, router, unix.NUD_FAILED},
			{unix.RTM_NEWNEIGH, unix.AF_BRIDGE, 2, router, unix.NUD_FAILED}}, nil},
		{"asked, and answers at once", []event{v4(router, unix.NUD_PROBE), v4(router, reachable)}, nil},
		{"router is silent", []event{v4(router, unix.NUD_PROBE), v4(router, unix.NUD_FAILED)}, []netip.Addr{far}},
		{"peer is silent, router answers", []event{v4(near, unix.NUD_FAILED), v4(router, reachable)}, []netip.Addr{far, near}},
		{"forgotten", []event{{unix.RTM_DELNEIGH, unix.AF_INET, 2, near, unix.NUD_FAILED}}, []netip.Addr{near}},
	} {
		for _, w := range u.ways {
			w.generation = current
		}
		for _, e := range tt.events {
			body := make([]byte, sizeofNdMsg)
			body[0] = e.family
			binary.NativeEndian.PutUint32(body[4:], uint32(e.link))
			binary.NativeEndian.PutUint16(body[8:], e.state)
			u.hear(e.typ, body[:sizeofNdMsg-1])
			u.hear(e.typ, rtmsg.AttrAddr(body, unix.NDA_DST, e.addr))
		}
		u.doubt(now)
		asked := map[netip.Addr]bool{}
		for to, w := range u.ways {
			if w.generation != current {
				asked[to] = true
			}
		}
		for _, to := range tt.want {
			if !asked[to] {
				t.Errorf("%s: %s is not asked for again", tt.name, to)
			}
		}
		if len(asked) != len(tt.want) {
			t.Errorf("%s: asked again for %v, want %v", tt.name, asked, tt.want)
		}
	}
	if u.doubt(now.Add(2 * time.Hour)); u.ways[lost].generation == current || u.ways[far].generation != current {
		t.Error("after a time the route by a silent neighbour is not asked for again, or another one is")
	}
	delete(u.ways, lost)
	if u.part(); len(u.hops) != 2 || u.hops[hop{2, dead}] != nil {
		t.Errorf("kept %v", u.hops)
	}
}
