package kernel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// text is an operation as the plan table writes it.
func (o op) text() string {
	switch o.kind {
	case addNeigh, moveNeigh:
		return fmt.Sprintf("%s %s %s", o.kind, o.at.addr, o.mac)
	case delNeigh, addNexthop:
		return fmt.Sprintf("%s %s", o.kind, o.at.addr)
	case addFDB, delFDB:
		return fmt.Sprintf("%s %s %s", o.kind, o.fdb.mac, o.fdb.dst)
	case delNexthop:
		return fmt.Sprintf("%s %d", o.kind, o.id)
	}
	text := fmt.Sprintf("%s %s", o.kind, o.key.dst)
	if o.key.metric != 0 {
		text += fmt.Sprintf(" metric %d", o.key.metric)
	}
	return text
}

// does changes s as the kernel would.
func (s *state) does(ops []op) {
	next := uint32(100)
	for _, o := range ops {
		var id uint32
		switch o.kind {
		case addNexthop:
			next++
			id = next
		case addRoute, replaceRoute:
			id = s.nexthops[o.at]
		}
		s.apply(o, id)
	}
}

// testEnd is this host's end on a device of index 0.
var testEnd = end{Underlay: dataplane.Underlay{Local: netip.MustParseAddr("192.0.2.1"), Public: netip.MustParseAddr("198.51.100.1")}, vni: 1}

func asDirect(p dataplane.Peer) dataplane.Peer {
	p.Direct = true
	return p
}

func mustCompile(t *testing.T, peers ...dataplane.Peer) *desired {
	t.Helper()
	d, refused := compile(wanted(peers...), testEnd)
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	return d
}

// with returns the state that programming the peers leaves, changed by change.
func with(t *testing.T, change func(*state), peers ...dataplane.Peer) *state {
	s := newState()
	s.does(plan(s, mustCompile(t, peers...), true))
	if change != nil {
		change(s)
	}
	return s
}

func TestPlan(t *testing.T) {
	subnet := func(s string) routeKey { return routeKey{dst: netip.MustParsePrefix(s)} }
	newMAC, newAddr := peerB, peerB
	newMAC.MAC = mustMAC("0e:00:00:00:00:bb")
	newAddr.Addr = netip.MustParseAddr("192.0.2.99")
	for _, tc := range []struct {
		name  string
		have  *state
		peers []dataplane.Peer
		plain bool
		want  string
	}{
		{name: "nothing", have: newState()},
		{name: "one peer", have: newState(), peers: []dataplane.Peer{peerB}, want: `
			add neighbour 10.5.2.0 0e:00:00:00:00:0b
			add FDB entry 0e:00:00:00:00:0b 192.0.2.20
			add nexthop 10.5.2.0
			add route 10.5.2.0/24`},
		{name: "one peer, plain routes", have: newState(), peers: []dataplane.Peer{peerB}, plain: true, want: `
			add neighbour 10.5.2.0 0e:00:00:00:00:0b
			add FDB entry 0e:00:00:00:00:0b 192.0.2.20
			add route 10.5.2.0/24`},
		{name: "two subnets share the FDB entry", have: newState(), peers: []dataplane.Peer{peerC}, want: `
			add neighbour 10.5.3.0 0e:00:00:00:00:0c
			add FDB entry 0e:00:00:00:00:0c 192.0.2.30
			add nexthop 10.5.3.0
			add neighbour 10.5.4.0 0e:00:00:00:00:0c
			add nexthop 10.5.4.0
			add route 10.5.3.0/24
			add route 10.5.4.0/24`},
		{name: "as wanted", have: with(t, nil, peerB, peerC), peers: []dataplane.Peer{peerB, peerC}},
		{name: "removed", have: with(t, nil, peerB, peerC), peers: []dataplane.Peer{peerC}, want: `
			delete route 10.5.2.0/24
			delete nexthop 101
			delete neighbour 10.5.2.0
			delete FDB entry 0e:00:00:00:00:0b 192.0.2.20`},
		{name: "one of two subnets removed", have: with(t, nil, peerC),
			peers: []dataplane.Peer{newPeer("192.0.2.30", "0e:00:00:00:00:0c", "10.5.4.0/24")}, want: `
			delete route 10.5.3.0/24
			delete nexthop 101
			delete neighbour 10.5.3.0`},
		{name: "MAC changed", have: with(t, nil, peerB), peers: []dataplane.Peer{newMAC}, want: `
			add FDB entry 0e:00:00:00:00:bb 192.0.2.20
			change neighbour 10.5.2.0 0e:00:00:00:00:bb
			delete FDB entry 0e:00:00:00:00:0b 192.0.2.20`},
		{name: "underlay address changed", have: with(t, nil, peerB), peers: []dataplane.Peer{newAddr}, want: `
			add FDB entry 0e:00:00:00:00:0b 192.0.2.99
			delete FDB entry 0e:00:00:00:00:0b 192.0.2.20`},
		{name: "subnet moved to another peer", have: with(t, nil, peerB),
			peers: []dataplane.Peer{newPeer("192.0.2.40", "0e:00:00:00:00:0d", "10.5.2.0/24")}, want: `
			add FDB entry 0e:00:00:00:00:0d 192.0.2.40
			change neighbour 10.5.2.0 0e:00:00:00:00:0d
			delete FDB entry 0e:00:00:00:00:0b 192.0.2.20`},
		{name: "subnet changed its length", have: with(t, nil, peerB),
			peers: []dataplane.Peer{newPeer("192.0.2.20", "0e:00:00:00:00:0b", "10.5.2.0/25")}, want: `
			add route 10.5.2.0/25
			delete route 10.5.2.0/24`},
		{name: "flannel's route", have: with(t, func(s *state) {
			s.routes[subnet("10.5.2.0/24")] = route{protocol: 3, gateway: peerB.Subnets[0].Addr(), onlink: true}
			delete(s.nexthops, place{addr: peerB.Subnets[0].Addr()})
		}, peerB), peers: []dataplane.Peer{peerB}, want: `
			add nexthop 10.5.2.0
			replace route 10.5.2.0/24`},
		{name: "nexthop gone", have: with(t, func(s *state) { clear(s.nexthops) }, peerB), peers: []dataplane.Peer{peerB}, want: `
			add nexthop 10.5.2.0
			replace route 10.5.2.0/24`},
		{name: "spare nexthop and metric", have: with(t, func(s *state) {
			s.spare[7] = true
			s.routes[routeKey{dst: peerB.Subnets[0], metric: 5}] = route{protocol: 211}
		}, peerB), peers: []dataplane.Peer{peerB}, want: `
			delete route 10.5.2.0/24 metric 5
			delete nexthop 7`},
		{name: "peer has become direct", have: with(t, nil, peerB), peers: []dataplane.Peer{asDirect(peerB)}, want: `
			delete route 10.5.2.0/24
			delete nexthop 101`},
		{name: "direct peer", have: newState(), peers: []dataplane.Peer{asDirect(peerB)}, want: `
			add neighbour 10.5.2.0 0e:00:00:00:00:0b
			add FDB entry 0e:00:00:00:00:0b 192.0.2.20`},
		{name: "direct peer and its route", have: with(t, func(s *state) {
			s.routes[subnet("10.5.2.0/24")] = route{link: 9, protocol: 211, gateway: peerB.Addr, direct: true}
		}, asDirect(peerB)), peers: []dataplane.Peer{asDirect(peerB)}},
		{name: "direct no longer", have: with(t, func(s *state) {
			s.routes[subnet("10.5.2.0/24")] = route{link: 9, protocol: 211, gateway: peerB.Addr, direct: true}
		}, asDirect(peerB)), peers: []dataplane.Peer{peerB}, want: `
			add nexthop 10.5.2.0
			replace route 10.5.2.0/24`},
		{name: "direct and gone", have: with(t, func(s *state) {
			s.routes[subnet("10.5.2.0/24")] = route{link: 9, protocol: 211, gateway: peerB.Addr, direct: true}
		})},
		{name: "from another device", have: with(t, func(s *state) {
			s.routes[subnet("10.5.2.0/24")] = route{link: 9, protocol: 211, gateway: peerB.Subnets[0].Addr(), nexthop: 7, onlink: true}
			at := place{9, peerB.Subnets[0].Addr()}
			s.neigh[at], s.nexthops[at], s.fdb[fdbEntry{9, peerB.MAC, peerB.Addr}] = peerB.MAC, 7, true
		}), peers: []dataplane.Peer{peerB}, want: `
			add neighbour 10.5.2.0 0e:00:00:00:00:0b
			add FDB entry 0e:00:00:00:00:0b 192.0.2.20
			add nexthop 10.5.2.0
			replace route 10.5.2.0/24
			delete nexthop 7
			delete neighbour 10.5.2.0
			delete FDB entry 0e:00:00:00:00:0b 192.0.2.20`},
		{name: "nexthops no longer used", have: with(t, nil, peerB), peers: []dataplane.Peer{peerB}, plain: true, want: `
			replace route 10.5.2.0/24
			delete nexthop 101`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, o := range plan(tc.have, mustCompile(t, tc.peers...), !tc.plain) {
				got = append(got, o.text())
			}
			want := strings.ReplaceAll(strings.TrimPrefix(tc.want, "\n"), "\t", "")
			if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// From any state to any other, the plan leads to exactly what is wanted, a
// second plan is empty, and no route ever misses what it leads to.
func TestPlanLeadsFromAnyStateToAnyOther(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() *desired {
		d := newDesired(0)
		for range r.IntN(8) {
			d.add(target{ // contradictions are refused
				link:   1 + r.IntN(2),
				direct: r.IntN(4) == 0,
				dst:    netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(r.IntN(5)), 0}), 24+r.IntN(2)),
				mac:    encap.MAC{14, 0, 0, 0, 0, byte(r.IntN(4))},
				via:    netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(4))}),
			})
		}
		return d
	}
	have := newState()
	for range 2000 {
		d, nexthops := random(), r.IntN(4) > 0
		for _, o := range plan(have, d, nexthops) {
			if o.kind == addRoute || o.kind == replaceRoute {
				if goal := d.targets[d.byBase[o.key.dst.Addr()]]; !have.ready(goal, nexthops) {
					t.Fatalf("%s before its parts", o.text())
				}
			}
			id := uint32(0)
			switch {
			case o.kind == addNexthop:
				id = r.Uint32()
			case nexthops:
				id = have.nexthops[o.at]
			}
			have.apply(o, id)
		}
		routes := 0
		for _, goal := range d.targets {
			if !goal.direct {
				routes++
			}
			if !have.complete(goal, nexthops) {
				t.Fatalf("%v is not complete", goal)
			}
		}
		if rest := plan(have, d, nexthops); len(rest) != 0 || len(have.routes) != routes || len(have.fdb) > len(d.targets) {
			t.Fatalf("left to do: %v", rest)
		}
	}
}

func TestCompileRefusesWhatCannotBeRight(t *testing.T) {
	otherVNI, noVNI := peerD, peerD
	otherVNI.VNI, noVNI.VNI = 2, 0
	for _, tc := range []struct {
		name string
		peer dataplane.Peer
		says string // "" means that it is taken
	}{
		{"good", peerD, ""},
		{"no VNI", noVNI, "VNI 0"},
		{"other VNI", otherVNI, "VNI 2"},
		{"zero MAC", newPeer("192.0.2.9", "00:00:00:00:00:00", "10.5.9.0/24"), "MAC 00:"},
		{"multicast MAC", newPeer("192.0.2.9", "01:00:5e:00:00:01", "10.5.9.0/24"), "MAC 01:"},
		{"broadcast MAC", newPeer("192.0.2.9", "ff:ff:ff:ff:ff:ff", "10.5.9.0/24"), "MAC ff:"},
		{"unspecified address", newPeer("0.0.0.0", "0e:00:00:00:00:09", "10.5.9.0/24"), "0.0.0.0"},
		{"multicast address", newPeer("239.1.1.1", "0e:00:00:00:00:09", "10.5.9.0/24"), "239.1.1.1"},
		{"broadcast address", newPeer("255.255.255.255", "0e:00:00:00:00:09", "10.5.9.0/24"), "255.255.255.255"},
		{"loopback address", newPeer("127.0.0.1", "0e:00:00:00:00:09", "10.5.9.0/24"), "127.0.0.1"},
		{"own local address", newPeer("192.0.2.1", "0e:00:00:00:00:09", "10.5.9.0/24"), "belongs to this host"},
		{"own public address", newPeer("198.51.100.1", "0e:00:00:00:00:09", "10.5.9.0/24"), "belongs to this host"},
		{"own subnet", newPeer("192.0.2.9", "0e:00:00:00:00:09", "10.5.1.0/24"), "overlaps the own subnet 10.5.1.0/24"},
		{"around the own subnet", newPeer("192.0.2.9", "0e:00:00:00:00:09", "10.5.0.0/16"), "overlaps"},
		{"default route", newPeer("192.0.2.9", "0e:00:00:00:00:09", "0.0.0.0/0"), "0.0.0.0/0"},
		{"outside the network", newPeer("192.0.2.9", "0e:00:00:00:00:09", "8.8.8.0/24"), "outside the overlay network"},
		{"not masked", newPeer("192.0.2.9", "0e:00:00:00:00:09", "10.5.9.1/24"), "not a masked prefix"},
		{"mapped subnet", newPeer("192.0.2.9", "0e:00:00:00:00:09", "::ffff:10.5.9.0/120"), "not a masked prefix"},
		{"other family, outside", newPeer("192.0.2.9", "0e:00:00:00:00:09", "fd00::/64"), "outside the overlay network"},
		{"taken subnet", newPeer("192.0.2.9", "0e:00:00:00:00:09", "10.5.2.0/24"), "begins like subnet 10.5.2.0/24 of peer 192.0.2.20"},
		{"same base", newPeer("192.0.2.9", "0e:00:00:00:00:09", "10.5.2.0/25"), "begins like"},
		{"taken MAC", newPeer("192.0.2.9", "0e:00:00:00:00:0b", "10.5.9.0/24"), "peer 192.0.2.20"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, refused := compile(wanted(peerB, tc.peer), testEnd)
			if refused[0] != nil || len(refused) > 1 {
				t.Errorf("another peer was refused: %v", refused)
			}
			err := refused[1]
			if (tc.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("want %q, got %v", tc.says, err)
			}
			if want := map[bool]int{true: 2, false: 1}[tc.says == ""]; len(d.targets) != want {
				t.Errorf("%d targets, want %d", len(d.targets), want)
			}
		})
	}
}
