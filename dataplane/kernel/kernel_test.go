package kernel

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

// host is a namespace on a LAN with a kernel dataplane.
type host struct {
	*netnstest.NS
	tb  testing.TB
	cfg Config
	dp  *Dataplane
}

// newHosts makes n hosts on one LAN: eth0 has 192.0.2.2/24 and onward.
func newHosts(tb testing.TB, n int) []*host {
	tb.Helper()
	var hosts []*host
	var all []*netnstest.NS
	for range n {
		ns := netnstest.New(tb)
		hosts = append(hosts, &host{NS: ns, tb: tb})
		all = append(all, ns)
	}
	netnstest.LAN(tb, "192.0.2.0/24", all...)
	for i, h := range hosts {
		local := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)})
		h.cfg = Config{Log: slog.New(slog.DiscardHandler), Underlays: []dataplane.Underlay{h.underlay(local)}, VNI: 1, Port: 8472, MTU: 1450}
	}
	return hosts
}

// underlay is that of eth0 with an address of its.
func (h *host) underlay(local netip.Addr) dataplane.Underlay {
	h.tb.Helper()
	u := dataplane.Underlay{Local: local, Public: local}
	h.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			u.Link = l.Attrs().Index
		}
		return err
	})
	return u
}

// try opens the dataplane.
func (h *host) try() error {
	return h.Do(func() error {
		dp, err := Open(h.cfg)
		if err == nil {
			h.dp = dp
			h.tb.Cleanup(func() { dp.Close() })
		}
		return err
	})
}

func (h *host) open() *host {
	h.tb.Helper()
	if err := h.try(); err != nil {
		h.tb.Fatal(err)
	}
	return h
}

func (h *host) sync(w dataplane.Wanted) {
	h.tb.Helper()
	if _, err := h.dp.Sync(h.tb.Context(), w); err != nil {
		h.tb.Fatal(err)
	}
}

// link returns the vxlan device.
func (h *host) link() *netlink.Vxlan {
	h.tb.Helper()
	var v *netlink.Vxlan
	h.Must(func() error {
		l, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return err
		}
		var ok bool
		if v, ok = l.(*netlink.Vxlan); !ok {
			return fmt.Errorf("flannel.1 is a %s", l.Type())
		}
		return nil
	})
	return v
}

func mustMAC(s string) encap.MAC {
	m, err := encap.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

func newPeer(addr, mac string, subnets ...string) dataplane.Peer {
	p := dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr(addr), MAC: mustMAC(mac), VNI: 1}}
	for _, s := range subnets {
		p.Subnets = append(p.Subnets, netip.MustParsePrefix(s))
	}
	return p
}

// wanted is a host's state with its own subnet 10.5.1.0/24.
func wanted(peers ...dataplane.Peer) dataplane.Wanted {
	return dataplane.Wanted{
		Subnets:  []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")},
		Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		MTU:      1450,
		Peers:    peers,
	}
}

// manyPeers returns n peers with one subnet each, none of them 10.5.1.0/24.
func manyPeers(n int) []dataplane.Peer {
	peers := make([]dataplane.Peer, n)
	for i := range peers {
		addr := netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})
		base := uint32(10<<24 | 6<<16 + i*64)
		subnet := netip.AddrFrom4([4]byte{byte(base >> 24), byte(base >> 16), byte(base >> 8), byte(base)})
		peers[i] = dataplane.Peer{
			VTEP:    dataplane.VTEP{Addr: addr, MAC: dataplane.MAC(addr, 1), VNI: 1},
			Subnets: []netip.Prefix{netip.PrefixFrom(subnet, 26)},
		}
	}
	return peers
}

// TestSyncOfManyPeersIsFast holds the times that issue 2 asks for. The machine may be busy with
// other tests: processor time counts, and the best of a few tries.
func TestSyncOfManyPeersIsFast(t *testing.T) {
	const peers = 5000
	maxCold, maxRestart := 350*time.Millisecond, 100*time.Millisecond
	if netnstest.Raced {
		maxCold, maxRestart = 3*maxCold, 3*maxRestart
	}
	w := wanted(manyPeers(peers)...)
	var cold, restart time.Duration
	for range 5 {
		h := newHosts(t, 1)[0].open()
		cold = h.timed(w)
		h.dp.Close()
		h.open()
		restart = h.timed(w)
		more := w
		more.Peers = append(slices.Clip(w.Peers), newPeer("198.51.100.1", "0e:00:00:00:00:01", "10.255.0.0/24"))
		t.Logf("%d peers: cold %v, restart %v, one more %v", peers, cold, restart, h.timed(more))
		if n := len(h.objects()); n != 4*(peers+1) {
			t.Fatalf("%d objects", n)
		}
		if cold <= maxCold && restart <= maxRestart {
			return
		}
	}
	t.Errorf("cold %v, restart %v; want %v and %v at most", cold, restart, maxCold, maxRestart)
}

func (h *host) timed(w dataplane.Wanted) time.Duration {
	h.tb.Helper()
	return netnstest.CPUTime(h.tb, func() { h.sync(w) })
}

// BenchmarkSyncOnePeer adds and removes one peer among many.
func BenchmarkSyncOnePeer(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newHosts(b, 1)[0].open()
			few := wanted(manyPeers(n)...)
			many := wanted(manyPeers(n + 1)...)
			h.sync(few)
			for b.Loop() {
				h.sync(many)
				h.sync(few)
			}
		})
	}
}

// onlyPeers reports whether err concerns nothing but single peers.
func onlyPeers(err error) bool {
	_, rest := dataplane.PeerErrors(err)
	return rest == nil
}
