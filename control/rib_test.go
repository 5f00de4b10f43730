package control

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// lease makes a good lease of one family; i makes its address and MAC.
func lease(subnet string, i int, age int64) Lease {
	return Lease{Subnet: prefix(subnet), PublicIP: nodeAddr(i), BackendType: "vxlan",
		Backend: VTEPData{VNI: 1, MAC: nodeMAC(i)}, CreateRevision: age}
}

func nodeAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168 + byte(i>>16), byte(i >> 8), byte(i)})
}

func nodeMAC(i int) encap.MAC { return dataplane.MAC(nodeAddr(i), 1) }

// peer is the Peer of lease(_, i, _).
func peer(i int, subnets ...string) dataplane.Peer {
	p := dataplane.Peer{VTEP: dataplane.VTEP{Addr: nodeAddr(i), MAC: nodeMAC(i), VNI: 1}}
	for _, s := range subnets {
		p.Subnets = append(p.Subnets, prefix(s))
	}
	return p
}

// newcomer has a VTEP of each family and no lease.
func newcomer() Lease {
	return Lease{PublicIP: addr("172.16.0.1"), PublicIPv6: addr("fd99::ffff"),
		Backend: VTEPData{VNI: 1, MAC: encap.MAC{2, 1}}, BackendV6: VTEPData{VNI: 1, MAC: encap.MAC{2, 2}}}
}

func with(l Lease, change func(*Lease)) Lease {
	change(&l)
	return l
}

// TestPeersWhileAcquiring: the watch may be faster than the reply to Acquire.
func TestPeersWhileAcquiring(t *testing.T) {
	self := with(lease("10.3.1.0/24", 1, 0), func(l *Lease) { l.Subnet = netip.Prefix{} })
	for _, tt := range []struct {
		name   string
		mac    encap.MAC
		reject int
	}{
		{"what this node publishes", nodeMAC(1), 0},
		{"another program at this address", nodeMAC(9), 1},
	} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		own := with(lease("10.3.3.0/24", 1, 5), func(l *Lease) { l.Backend.MAC = tt.mac })
		r.Apply(Update{Reset: true, Leases: []Lease{own, lease("10.3.2.0/24", 2, 6)}})
		peers, rejected := r.Peers(self)
		if len(peers) != 1 || peers[0].Addr != nodeAddr(2) || len(rejected) != tt.reject {
			t.Errorf("%s: peers %v, rejected %v", tt.name, peers, rejected)
		}
	}
}

// TestPeersUserspace: a Peer has the dataplane that its node has published last.
func TestPeersUserspace(t *testing.T) {
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	for _, userspace := range []bool{false, true, false} {
		r.Apply(Update{Reset: true, Leases: []Lease{with(lease("10.3.2.0/24", 2, 1), func(l *Lease) { l.Facts = NodeFacts{V: 1, Userspace: userspace} }), lease("10.3.3.0/24", 3, 2)}})
		want := []dataplane.Peer{peer(2, "10.3.2.0/24"), peer(3, "10.3.3.0/24")}
		want[0].Userspace = userspace
		got, _ := r.Peers(newcomer())
		if diff := cmp.Diff(want, got, netipTypes); diff != "" {
			t.Error(diff)
		}
	}
}

// TestPeersAfterOwnLoss: an own lease that was revoked or given up is not another one that is refused, whether the store still
// shows it or has lost it, and whatever the network makes of it.
func TestPeersAfterOwnLoss(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16"}`)
	other, elsewhere := lease("10.3.2.0/24", 2, 6), lease("10.4.1.0/24", 1, 5)
	otherType := with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.BackendType = "host-gw" })
	otherMAC := with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.Backend.MAC = nodeMAC(9) })
	for _, tt := range []struct {
		name    string
		was     Lease
		held    bool // when it was there
		deleted bool
		peers   int
		reject  string // the reason
	}{
		{"revoked", lease("10.3.1.0/24", 1, 5), true, true, 1, ""},
		{"revoked, and still shown", lease("10.3.1.0/24", 1, 5), true, false, 1, ""},
		{"deleted before it was held here", lease("10.3.1.0/24", 1, 5), false, true, 1, ""},
		{"with another MAC, deleted", otherMAC, true, true, 1, ""},
		{"outside of the network, deleted", elsewhere, false, true, 1, ""},
		{"of another backend, deleted", otherType, false, true, 1, ""},
		{"of another daemon at this address", lease("10.3.1.0/24", 1, 5), false, false, 1, "own_public_ip"},
		{"of another node", lease("10.3.1.0/24", 3, 5), false, true, 2, ""},
	} {
		r := NewRIB(n)
		r.Apply(Update{Reset: true, Leases: []Lease{tt.was, other}})
		if tt.held {
			r.Peers(tt.was)
		}
		if tt.deleted {
			r.Apply(Update{Deleted: []string{tt.was.Key()}})
		}
		r.Peers(with(tt.was, func(l *Lease) { l.Subnet = netip.Prefix{} }))
		peers, rejected := r.Peers(lease("10.3.7.0/24", 1, 7))
		got := ""
		for _, x := range rejected {
			got += Reason(x.Err)
		}
		if got != tt.reject || len(peers) != tt.peers {
			t.Errorf("%s: peers %v, refused %q, want %q", tt.name, peers, got, tt.reject)
		}
	}
}

func TestPeersAdmission(t *testing.T) {
	self := lease("10.3.1.0/24", 1, 5)
	good, goodPeer := lease("10.3.2.0/24", 2, 6), peer(2, "10.3.2.0/24")
	ip := func(s string) func(*Lease) { return func(l *Lease) { l.PublicIP = addr(s) } }
	bad := func(change func(*Lease)) []Lease { return []Lease{with(lease("10.3.3.0/24", 3, 7), change)} }
	tests := []struct {
		name   string
		leases []Lease // beside self and good
		peers  []dataplane.Peer
		reject []string
	}{
		{"own left out", nil, nil, nil},
		{"in the place of the own", []Lease{lease("10.3.1.0/24", 9, 9)}, nil, nil},
		{"another", []Lease{lease("10.3.3.0/24", 3, 7)}, []dataplane.Peer{peer(3, "10.3.3.0/24")}, nil},
		{"merged", []Lease{lease("10.3.4.0/24", 3, 7), lease("10.3.3.0/24", 3, 8)}, []dataplane.Peer{peer(3, "10.3.3.0/24", "10.3.4.0/24")}, nil},
		{"another length", []Lease{lease("10.3.4.0/25", 3, 7)}, []dataplane.Peer{peer(3, "10.3.4.0/25")}, nil},
		{"backend", bad(func(l *Lease) { l.BackendType = "VXLAN" }), nil, []string{`10.3.3.0-24: BackendType "VXLAN" is not "vxlan"`}},
		{"reservation", []Lease{{Subnet: prefix("10.3.3.0/24"), PublicIP: nodeAddr(3), Reserved: true}}, nil, nil},
		{"no backend in Kubernetes, where no lease has a handle", []Lease{{Subnet: prefix("10.3.3.0/24"), PublicIP: nodeAddr(3)}}, nil, []string{`10.3.3.0-24: BackendType "" is not "vxlan"`}},
		{"no backend", []Lease{{Subnet: prefix("10.3.3.0/24"), PublicIP: nodeAddr(3), Handle: 7}}, nil, []string{`10.3.3.0-24: BackendType "" is not "vxlan"`}},
		{"VNI", bad(func(l *Lease) { l.Backend.VNI = 2 }), nil, []string{`10.3.3.0-24: VNI 2 is not the network's 1`}},
		{"outside", bad(func(l *Lease) { l.Subnet = prefix("172.31.0.0/16") }), nil, []string{`172.31.0.0-16: subnet 172.31.0.0/16 is not inside the network 10.3.0.0/16`}},
		{"the network", bad(func(l *Lease) { l.Subnet = prefix("10.3.0.0/16") }), nil, []string{`10.3.0.0-16: subnet 10.3.0.0/16 is not inside the network 10.3.0.0/16`}},
		{"above it", bad(func(l *Lease) { l.Subnet = prefix("10.0.0.0/8") }), nil, []string{`10.0.0.0-8: subnet 10.0.0.0/8 is not inside the network 10.3.0.0/16`}},
		{"in own", bad(func(l *Lease) { l.Subnet = prefix("10.3.1.128/25") }), nil, []string{`10.3.1.128-25: subnet 10.3.1.128/25 overlaps this node's own 10.3.1.0/24`}},
		{"around own", bad(func(l *Lease) { l.Subnet = prefix("10.3.0.0/23") }), nil, []string{`10.3.0.0-23: subnet 10.3.0.0/23 overlaps this node's own 10.3.1.0/24`}},
		{"own address", bad(ip("192.168.0.1")), nil, []string{`10.3.3.0-24: PublicIP 192.168.0.1 is this node's own`}},
		{"own stale", []Lease{lease("10.3.9.0/24", 1, 2)}, nil, []string{`10.3.9.0-24: PublicIP 192.168.0.1 is this node's own`}},
		{"zero", bad(ip("0.0.0.0")), nil, []string{`10.3.3.0-24: PublicIP 0.0.0.0 is unspecified`}},
		{"this network", bad(ip("0.1.2.3")), nil, []string{`10.3.3.0-24: PublicIP 0.1.2.3 is unspecified`}},
		{"loopback", bad(ip("127.1.2.3")), nil, []string{`10.3.3.0-24: PublicIP 127.1.2.3 is loopback`}},
		{"multicast", bad(ip("239.1.2.3")), nil, []string{`10.3.3.0-24: PublicIP 239.1.2.3 is multicast`}},
		{"link-local", bad(ip("169.254.1.1")), nil, []string{`10.3.3.0-24: PublicIP 169.254.1.1 is link-local`}},
		{"broadcast", bad(ip("255.255.255.255")), nil, []string{`10.3.3.0-24: PublicIP 255.255.255.255 is broadcast`}},
		{"reserved", bad(ip("248.1.2.3")), nil, []string{`10.3.3.0-24: PublicIP 248.1.2.3 is reserved`}},
		{"reserved, as a stand-in is", bad(ip("240.1.2.3")), nil, []string{`10.3.3.0-24: PublicIP 240.1.2.3 is reserved`}},
		{"recursion", bad(ip("10.3.2.7")), nil, []string{`10.3.3.0-24: PublicIP 10.3.2.7 is inside subnet 10.3.2.0/24 of the older lease 10.3.2.0/24`}},
		{"no address", bad(func(l *Lease) { l.PublicIP = netip.Addr{} }), nil, []string{`10.3.3.0-24: subnet 10.3.3.0/24: no public IP with backend data in a family in which this node has them too`}},
		{"no data", bad(func(l *Lease) { l.Backend = VTEPData{} }), nil, []string{`10.3.3.0-24: subnet 10.3.3.0/24: no public IP with backend data in a family in which this node has them too`}},
		{"the other family's VTEP only", bad(func(l *Lease) {
			l.PublicIP, l.Backend, l.PublicIPv6, l.BackendV6 = netip.Addr{}, VTEPData{}, addr("fd99::3"), l.Backend
		}), nil, []string{`10.3.3.0-24: subnet 10.3.3.0/24: no public IP with backend data in a family in which this node has them too`}},
		{"zero MAC", bad(func(l *Lease) { l.Backend.MAC = encap.MAC{} }), nil, []string{`10.3.3.0-24: VtepMAC 00:00:00:00:00:00 is not unicast`}},
		{"broadcast MAC", bad(func(l *Lease) { l.Backend.MAC = mac("ff:ff:ff:ff:ff:ff") }), nil, []string{`10.3.3.0-24: VtepMAC ff:ff:ff:ff:ff:ff is not unicast`}},
		{"own MAC", bad(func(l *Lease) { l.Backend.MAC = nodeMAC(1) }), nil, []string{`10.3.3.0-24: VtepMAC ` + nodeMAC(1).String() + ` of PublicIP 192.168.0.3 is this node's own`}},
		{"IPv6 in an IPv4 network", bad(func(l *Lease) {
			l.IPv6Subnet, l.PublicIPv6, l.BackendV6 = prefix("fd10:6:0:8::/64"), addr("fd99::3"), l.Backend
		}), []dataplane.Peer{peer(3, "10.3.3.0/24")}, []string{`10.3.3.0-24&fd10:6:0:8::-64: subnet fd10:6:0:8::/64: the network has no such family`}},
		{"more specific of an older", []Lease{lease("10.3.2.128/25", 3, 7)}, nil, []string{`10.3.2.128-25: subnet 10.3.2.128/25 overlaps 10.3.2.0/24 of the older lease 10.3.2.0/24`}},
		{"around an older", []Lease{lease("10.3.2.0/23", 3, 7)}, nil, []string{`10.3.2.0-23: subnet 10.3.2.0/23 overlaps 10.3.2.0/24 of the older lease 10.3.2.0/24`}},
		{"duplicate MAC", []Lease{with(lease("10.3.3.0/24", 2, 7), ip("192.168.0.3"))}, nil, []string{
			`10.3.3.0-24: VtepMAC ` + nodeMAC(2).String() + ` with PublicIP 192.168.0.3 belongs to lease 10.3.2.0/24 with PublicIP 192.168.0.2`}},
		{"ties by key", []Lease{lease("10.3.8.0/24", 5, 9), lease("10.3.8.0/25", 6, 9)}, []dataplane.Peer{peer(5, "10.3.8.0/24")}, []string{
			`10.3.8.0-25: subnet 10.3.8.0/25 overlaps 10.3.8.0/24 of the older lease 10.3.8.0/24`}},
		{"a rejected one claims nothing", []Lease{
			with(lease("10.3.2.128/25", 4, 7), ip("192.168.0.77")), // loses by overlap ...
			lease("10.3.4.0/24", 4, 8),                             // ... so that its MAC is free
		}, []dataplane.Peer{peer(4, "10.3.4.0/24")}, []string{`10.3.2.128-25: subnet 10.3.2.128/25 overlaps 10.3.2.0/24 of the older lease 10.3.2.0/24`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
			r.Apply(Update{Reset: true, Leases: append([]Lease{self, good}, tt.leases...)})
			peers, rejections := r.Peers(self)
			want := append([]dataplane.Peer{goodPeer}, tt.peers...)
			if d := cmp.Diff(want, peers, netipTypes); d != "" {
				t.Errorf("peers (-want +got):\n%s", d)
			}
			var got []string
			for _, r := range rejections {
				got = append(got, r.Key+": "+r.Err.Error())
			}
			if d := cmp.Diff(tt.reject, got); d != "" {
				t.Errorf("rejections (-want +got):\n%s", d)
			}
		})
	}
}

func TestPeersOfAnOlderNewcomer(t *testing.T) {
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	older, newer := lease("10.3.2.0/24", 2, 3), lease("10.3.2.0/25", 3, 4)
	r.Apply(Update{Reset: true, Leases: []Lease{newer, older}})
	peers, _ := r.Peers(newcomer())
	if len(peers) != 1 || peers[0].Addr != nodeAddr(2) {
		t.Errorf("peers %v, want the older only", peers)
	}
	r.Apply(Update{Deleted: []string{older.Key()}})
	if peers, _ = r.Peers(newcomer()); len(peers) != 1 || peers[0].Addr != nodeAddr(3) {
		t.Errorf("peers %v, want the newer once the older is gone", peers)
	}
}

// TestPeersByVTEPFamily has two nodes, each with the VTEPs that a letter says: 4, 6, or
// d for both. A subnet goes by the VTEP of its own family if both nodes have one.
func TestPeersByVTEPFamily(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	node := func(i int, vteps string) Lease {
		l := lease(fmt.Sprintf("10.3.%d.0/24", i), i, int64(i))
		l.IPv6Subnet = prefix(fmt.Sprintf("fd10:6:0:%d::/64", i))
		l.PublicIPv6, l.BackendV6 = addr(fmt.Sprintf("fd99::%d", i)), VTEPData{VNI: 1, MAC: encap.MAC{2, 6, 5: byte(i)}}
		switch vteps {
		case "4":
			l.PublicIPv6, l.BackendV6 = netip.Addr{}, VTEPData{}
		case "6":
			l.PublicIP, l.Backend = netip.Addr{}, VTEPData{}
		}
		return l
	}
	for _, tt := range []struct {
		self, other string
		want        []string // address and subnets of each peer
	}{
		{"4", "4", []string{"192.168.0.2 [10.3.2.0/24 fd10:6:0:2::/64]"}},
		{"6", "6", []string{"fd99::2 [10.3.2.0/24 fd10:6:0:2::/64]"}},
		{"d", "d", []string{"192.168.0.2 [10.3.2.0/24]", "fd99::2 [fd10:6:0:2::/64]"}},
		{"4", "d", []string{"192.168.0.2 [10.3.2.0/24 fd10:6:0:2::/64]"}},
		{"d", "4", []string{"192.168.0.2 [10.3.2.0/24 fd10:6:0:2::/64]"}},
		{"6", "d", []string{"fd99::2 [10.3.2.0/24 fd10:6:0:2::/64]"}},
		{"d", "6", []string{"fd99::2 [10.3.2.0/24 fd10:6:0:2::/64]"}},
		{"4", "6", nil},
		{"6", "4", nil},
	} {
		r := NewRIB(n)
		r.Apply(Update{Reset: true, Leases: []Lease{node(1, tt.self), node(2, tt.other)}})
		peers, rejections := r.Peers(node(1, tt.self))
		var got []string
		for _, p := range peers {
			got = append(got, fmt.Sprint(p.Addr, " ", p.Subnets))
		}
		if !slices.Equal(got, tt.want) || (len(rejections) == 2) != (tt.want == nil) {
			t.Errorf("self %s, other %s: %v, want %v; rejected %v", tt.self, tt.other, got, tt.want, rejections)
		}
	}
}

func TestPeersOfTwoFamilies(t *testing.T) {
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`))
	dual := with(lease("10.3.2.0/24", 2, 3), func(l *Lease) {
		l.IPv6Subnet, l.PublicIPv6, l.BackendV6 = prefix("fd10:6:0:8::/64"), addr("fd99::2"), VTEPData{VNI: 1, MAC: nodeMAC(2)}
	})
	half := with(dual, func(l *Lease) { // its IPv4 half is good
		l.Subnet, l.PublicIP, l.Backend.MAC = prefix("10.3.3.0/24"), nodeAddr(3), nodeMAC(3)
		l.CreateRevision = 4
	})
	r.Apply(Update{Reset: true, Leases: []Lease{dual, half}})
	peers, rejections := r.Peers(newcomer())
	want := []dataplane.Peer{peer(2, "10.3.2.0/24"), peer(3, "10.3.3.0/24"),
		{VTEP: dataplane.VTEP{Addr: addr("fd99::2"), MAC: nodeMAC(2), VNI: 1}, Subnets: []netip.Prefix{prefix("fd10:6:0:8::/64")}}}
	if d := cmp.Diff(want, peers, netipTypes); d != "" {
		t.Errorf("peers (-want +got):\n%s", d)
	}
	if len(rejections) != 1 || !strings.Contains(rejections[0].Err.Error(), "fd10:6:0:8::/64 overlaps") {
		t.Errorf("rejections %v", rejections)
	}
}

func TestApplySaysWhatChanged(t *testing.T) {
	a, b := lease("10.3.2.0/24", 2, 3), lease("10.3.3.0/24", 3, 4)
	renewed := with(a, func(l *Lease) { l.ModRevision, l.Handle, l.Expires = 99, 7, time.Now() })
	moved := with(a, func(l *Lease) { l.Backend.MAC = nodeMAC(9) })
	steps := []struct {
		name   string
		u      Update
		want   bool
		leases int
		bad    int
	}{
		{"empty reset of nothing", Update{Reset: true}, false, 0, 0},
		{"first", Update{Leases: []Lease{a, b}}, true, 2, 0},
		{"renewal", Update{Leases: []Lease{renewed}}, false, 2, 0},
		{"same reset", Update{Reset: true, Leases: []Lease{b, renewed}}, false, 2, 0},
		{"attributes inside a gap", Update{Reset: true, Leases: []Lease{moved, b}}, true, 2, 0},
		{"bad keeps what was known", Update{Bad: []BadLease{{Key: a.Key()}, {Key: "garbage"}}}, false, 2, 2},
		{"bad in a reset keeps it too", Update{Reset: true, Leases: []Lease{b}, Bad: []BadLease{{Key: a.Key()}}}, false, 2, 1},
		{"good again", Update{Leases: []Lease{moved}}, false, 2, 0},
		{"unknown deleted", Update{Deleted: []string{"10.3.77.0-24", "garbage"}}, false, 2, 0},
		{"deleted", Update{Deleted: []string{a.Key()}}, true, 1, 0},
		{"one more", Update{Leases: []Lease{a}}, true, 2, 0},
		{"half not in a reset", Update{Reset: true, Leases: []Lease{b}}, true, 1, 0},
		{"all not in a reset", Update{Reset: true}, false, 1, 0},
	}
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	for _, s := range steps {
		got := r.Apply(s.u) || r.Doubted() > 0
		r.Resolve()
		leases, bad := r.Len()
		if got != s.want || leases != s.leases || bad != s.bad {
			t.Errorf("%s: changed %v with %d leases, %d bad; want %v, %d, %d", s.name, got, leases, bad, s.want, s.leases, s.bad)
		}
	}
}

// TestKeep: what a Reset lacks is kept if it is more than half, stands back behind what the
// store has, and is dropped when told.
func TestKeep(t *testing.T) {
	a, b, c, d := lease("10.3.2.0/24", 2, 53), lease("10.3.3.0/24", 3, 54), lease("10.3.4.0/24", 4, 55), lease("10.3.5.0/24", 5, 56)
	again := func(l Lease, revision int64) Lease { l.CreateRevision = revision; return l }
	narrow := lease("10.3.3.128/25", 9, 90) // younger than b was, and in the store
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	for _, s := range []struct {
		name  string
		u     Update
		kept  int
		peers int
	}{
		{"first", Update{Reset: true, Leases: []Lease{a, b, c, d}}, 0, 4},
		{"half is gone", Update{Reset: true, Leases: []Lease{a, b}}, 0, 2},
		{"back", Update{Leases: []Lease{c, d}}, 0, 4},
		{"deleted", Update{Deleted: []string{c.Key()}}, 0, 3},
		{"back again", Update{Leases: []Lease{c}}, 0, 4},
		{"most are gone", Update{Reset: true, Leases: []Lease{again(a, 3)}}, 3, 4},
		{"and still", Update{Reset: true, Leases: []Lease{again(a, 3)}}, 3, 4},
		{"one is back", Update{Leases: []Lease{again(c, 4)}}, 2, 4},
		{"in the way of one that is not", Update{Leases: []Lease{narrow}}, 2, 4},
		{"unreadable is there", Update{Bad: []BadLease{{Key: d.Key()}}}, 1, 4},
		{"unreadable still, in a reset", Update{Reset: true, Leases: []Lease{again(a, 3), again(c, 4), narrow}, Bad: []BadLease{{Key: d.Key()}}}, 1, 4},
		{"that is deleted", Update{Deleted: []string{d.Key()}}, 1, 3},
		{"all are back", Update{Leases: []Lease{again(b, 5), again(d, 6)}, Deleted: []string{narrow.Key()}}, 0, 4},
		{"one is gone", Update{Reset: true, Leases: []Lease{again(a, 3), again(c, 4), again(d, 6)}}, 0, 3},
		{"one is back once more", Update{Leases: []Lease{again(b, 7)}}, 0, 4},
		{"one is not back yet after a loss", Update{Reset: true, Leases: []Lease{again(a, 1), again(c, 2), again(d, 3)}}, 1, 4},
	} {
		r.Settle()
		r.Apply(s.u)
		r.Resolve()
		if peers, _ := r.Peers(newcomer()); r.kept != s.kept || len(peers) != s.peers {
			t.Errorf("%s: %d kept, %d peers, want %d and %d", s.name, r.kept, len(peers), s.kept, s.peers)
		}
	}
	r.DropKept()
	if leases, _ := r.Len(); leases != 3 || r.kept != 0 || r.Holds(b) {
		t.Errorf("after drop %d leases, %d kept", leases, r.kept)
	}
}

// slowPeers is the obvious reference of the conflict rules for leases that are good
// in themselves: oldest first, each held against every one admitted before; then each MAC is one node's.
func slowPeers(leases []Lease) (admitted []Lease) {
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(a, b Lease) int {
		if a.CreateRevision != b.CreateRevision {
			return int(a.CreateRevision - b.CreateRevision)
		}
		return strings.Compare(a.Key(), b.Key())
	})
	for _, l := range leases {
		if !slices.ContainsFunc(admitted, func(m Lease) bool {
			return m.Subnet.Overlaps(l.Subnet)
		}) {
			admitted = append(admitted, l)
		}
	}
	var left []Lease
	for _, l := range admitted {
		if macHolder(admitted, l.Backend.MAC) == l.PublicIP {
			left = append(left, l)
		}
	}
	return left
}

// macHolder returns the node that gets a MAC: the oldest one whose address it is derived from, else the oldest one.
func macHolder(admitted []Lease, mac encap.MAC) netip.Addr {
	has := func(l Lease) bool { return l.Backend.MAC == mac }
	derived := func(l Lease) bool { return has(l) && mac == dataplane.MAC(l.PublicIP, 1) }
	for _, first := range []func(Lease) bool{derived, has} {
		if i := slices.IndexFunc(admitted, first); i >= 0 {
			return admitted[i].PublicIP
		}
	}
	return netip.Addr{}
}

func TestPeersAgainstReference(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16"}`)
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		byKey := map[string]Lease{}
		for range rnd.IntN(60) {
			a := netip.AddrFrom4([4]byte{10, 3, byte(rnd.IntN(8)), byte(rnd.IntN(256))})
			p, _ := a.Prefix(22 + rnd.IntN(8))
			l := lease(p.String(), 1+rnd.IntN(30), int64(rnd.IntN(20)))
			if rnd.IntN(4) == 0 {
				l.Backend.MAC = nodeMAC(1 + rnd.IntN(30))
			}
			byKey[l.Key()] = l
		}
		r := NewRIB(n)
		var all []Lease
		for _, l := range byKey {
			all = append(all, l)
			r.Apply(Update{Leases: []Lease{l}})
		}
		want := map[netip.Prefix]dataplane.VTEP{}
		for _, l := range slowPeers(all) {
			want[l.Subnet] = dataplane.VTEP{Addr: l.PublicIP, MAC: l.Backend.MAC, VNI: 1}
		}
		got := map[netip.Prefix]dataplane.VTEP{}
		peers, rejections := r.Peers(newcomer())
		for _, p := range peers {
			for _, s := range p.Subnets {
				got[s] = p.VTEP
			}
		}
		if d := cmp.Diff(want, got, netipTypes); d != "" || len(got)+len(rejections) != len(all) {
			t.Fatalf("seed %d: %d leases, %d admitted, %d rejected (-want +got):\n%s", seed, len(all), len(got), len(rejections), d)
		}
	}
}

func BenchmarkRIB(b *testing.B) {
	n := network(b, `{"Network":"10.0.0.0/8","SubnetLen":26}`)
	r4, _ := n.ipv4()
	for _, size := range []int{1000, 5000, 100_000} {
		leases := make([]Lease, size)
		for i := range leases {
			leases[i] = lease(r4.subnetAt(uint64(i+1)).String(), i+2, int64(size-i))
		}
		b.Run(fmt.Sprintf("leases=%d", size), func(b *testing.B) {
			for b.Loop() {
				r := NewRIB(n)
				r.Apply(Update{Reset: true, Leases: leases})
				if peers, _ := r.Peers(leases[0]); len(peers) != size-1 {
					b.Fatalf("%d peers", len(peers))
				}
			}
		})
	}
}

// TestNames: a subnet has the name of the node whose lease it is, whoever publishes the same address, and for as long as it is used.
func TestNames(t *testing.T) {
	named := func(l Lease, name string) Lease { l.Facts = l.Facts.WithName(name); return l }
	good, other := named(lease("10.3.2.0/24", 2, 1), "n2"), named(lease("10.3.61.0/24", 2, 9), "dupip2")
	loser := named(lease("10.3.2.0/25", 2, 10), "loser")
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	for _, step := range []struct {
		what string
		u    Update
		want []string
	}{
		{"two nodes publish one address", Update{Reset: true, Leases: []Lease{other, good, named(lease("10.3.3.0/24", 3, 2), ""), loser}}, []string{"n2", "dupip2", ""}},
		{"another name", Update{Leases: []Lease{named(lease("10.3.3.0/24", 3, 2), "n3")}}, []string{"n2", "dupip2", "n3"}},
		{"one goes", Update{Reset: true, Leases: []Lease{good, named(lease("10.3.3.0/24", 3, 2), "n3")}}, []string{"n2", "n3"}},
	} {
		if !r.Apply(step.u) {
			t.Errorf("%s: nothing has changed", step.what)
		}
		r.Resolve()
		_, rejected := r.Peers(lease("10.3.1.0/24", 1, 1))
		if !slices.Equal(r.Names(), step.want) {
			t.Errorf("%s: the names are %q, want %q", step.what, r.Names(), step.want)
		}
		if len(rejected) > 0 && rejected[0].Name != "loser" {
			t.Errorf("%s: %q is refused", step.what, rejected[0].Name)
		}
	}
}
