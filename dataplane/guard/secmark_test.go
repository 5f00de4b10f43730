package guard

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/encap"
)

// secmarks has all packets that leave a namespace carry a secmark.
func secmarks(t *testing.T, ns *netnstest.NS, value []byte) {
	t.Helper()
	const table = "secmarks"
	rule, err := nft.Encode(nft.Inet, &expr.Immediate{Register: reg1, Data: value}, toSecmark(reg1))
	if err != nil {
		t.Fatal(err)
	}
	ns.Must(func() error {
		return nft.Commit([]nft.Step{nft.NewTable(nft.Inet, table), nft.NewChain(nft.Inet, table, "out", base(unix.NF_INET_LOCAL_OUT, 0)), nft.NewRule(nft.Inet, table, "out", rule, "")})
	})
}

// TestSecmarkOfOthers: root of a network namespace of this kernel, as a container may be, can give a packet a secmark, which the kernel keeps
// between namespaces. It does not say whom the packet is from, nor does it with a device of somebody else at the port.
func TestSecmarkOfOthers(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		ofVTEP := b.addr.AsSlice()
		if w.v6 { // nobody else knows the seed, but a guess may be right
			ofVTEP = native(originOf(b.addr, a.guard.cfg.seed))
		}
		a.Run("ip", "link", "add", "other", "type", "vxlan", "id", "77", "dstport", fmt.Sprint(testPort), "local", a.addr.String(), "dev", "eth0")
		a.Run("ip", "link", "set", "other", "up")
		a.guard.relinked.Store(true) // as runLinks has it
		a.sync()
		if !a.guard.others.equal(vnis{list: []uint32{77}}) {
			t.Fatalf("other networks are %v", a.guard.others)
		}
		a.pod.Addr("lo", netip.PrefixFrom(b.addr, b.addr.BitLen()).String())
		a.pod.Run("ip", "link", "set", "lo", "up")
		secmarks(t, a.pod, ofVTEP)
		secmarks(t, w.stranger, ofVTEP)
		for name, from := range map[string]struct {
			ns  *netnstest.NS
			src netip.Addr
		}{"a pod": {a.pod, a.podAddr(w.v6)}, "a pod in the name of a VTEP": {a.pod, b.addr}, "a host on the link": {w.stranger, w.strange}} {
			for first, vni := range map[string]uint32{"nobody's": 99, "another network's": 77} {
				w.expect(name+", behind "+first, a, dataplane.DropUnknownVTEP, func(text []byte) {
					bad := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
					if err := sendSegments(from.ns, from.src, a.addr, a.frame(vni, bad[22:]), bad); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
		w.check(100)
	})
}

// TestGuardsTogether: a guard leaves the origins to that of another network, of which it does not know yet. The table that is made later has
// its turn first.
func TestGuardsTogether(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		networks := prefixes("10.43.0.0/16", "fd43::/48")
		subnets := func(h *host) []netip.Prefix {
			return prefixes(fmt.Sprintf("10.43.%d.0/24", h.index+1), fmt.Sprintf("fd43:0:0:%d::/64", h.index+1))
		}
		var second []*host
		for _, h := range w.hosts {
			c := testConfig(t)
			c.VNI, c.IPv4, c.IPv6, c.Link = 2, !w.v6, w.v6, h.guard.cfg.Link
			s := *h
			s.guard = openIn(t, h.NS, c)
			s.guard.cfg.seed++ // another process
			h.Must(func() (err error) {
				s.dp, err = kernel.Open(kernel.Config{Log: slog.New(slog.DiscardHandler), VNI: 2, Port: testPort, MTU: 1500 - encap.Overhead(h.addr), MayBeUp: s.guard.Holds,
					Underlays: []dataplane.Underlay{{Link: c.Link, Local: h.addr, Public: h.addr}}})
				return err
			})
			t.Cleanup(func() { s.dp.Close() })
			second = append(second, &s)
		}
		for _, s := range second {
			v := dataplane.Wanted{VTEPs: s.dp.VTEPs(), Subnets: subnets(s), Networks: networks, MTU: 1500 - encap.Overhead(s.addr)}
			for _, o := range second {
				if o != s {
					v.Peers = append(v.Peers, dataplane.Peer{VTEP: dataplane.VTEP{Addr: o.addr, MAC: dataplane.MAC(o.addr, 2), VNI: 2}, Subnets: subnets(o)})
				}
			}
			s.guard.sync(t, s.NS, v)
			s.Must(func() error { _, err := s.dp.Sync(context.Background(), v); return err })
		}
		a, b := second[0], second[1]
		for i := range networks {
			for _, size := range []int{100, 8000} {
				if err := w.exchange(a.NS, subnets(a)[i].Addr(), subnets(b)[i].Addr(), size); err != nil {
					t.Errorf("%s, %d bytes: %v", networks[i], size, err)
				}
			}
		}
		w.check(100)
		if o := w.hosts[1].guard.others; !o.equal(vnis{}) {
			t.Errorf("the first guard knows of %v", o)
		}
	})
}
