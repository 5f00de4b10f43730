package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
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
		return nft.Commit([]nft.Step{nft.NewTable(nft.Inet, table), nft.DeleteTable(nft.Inet, table), nft.NewTable(nft.Inet, table), nft.NewChain(nft.Inet, table, "out", base(unix.NF_INET_LOCAL_OUT, 0)), nft.NewRule(nft.Inet, table, "out", rule, "")})
	})
}

// TestSecmarkOfOthers: root of a network namespace of this kernel, as a container may be, can give a packet a secmark, which the kernel keeps
// between namespaces. It does not say whom the packet is from, nor does it with a device of somebody else at the port.
func TestSecmarkOfOthers(t *testing.T) { overBoth(t, secmarkOfOthers) }

// TestSecmarkOfOthersWithGroups: the same if the secmark says only that a datagram was accepted.
func TestSecmarkOfOthersWithGroups(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.config = func(c *Config) { c.GBP, c.Check = true, dataplane.SourceInner }
		secmarkOfOthers(t, w)
	})
}

func secmarkOfOthers(t *testing.T, w *world) {
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	ofVTEP := b.addr.AsSlice()
	if w.v6 { // nobody else knows the seed, but a guess may be right
		ofVTEP = native(originOf(b.addr, a.guard.cfg.seed))
	}
	other := []string{"link", "add", "other", "type", "vxlan", "id", "77", "dstport", fmt.Sprint(testPort), "local", a.addr.String(), "dev", "eth0"}
	if a.guard.cfg.GBP {
		other = append(other, "gbp")
	}
	a.Run("ip", other...)
	a.Run("ip", "link", "set", "other", "up")
	a.guard.relinked.Store(true) // as runLinks has it
	a.sync()
	if !a.guard.others.equal(vnis{list: []uint32{77}}) {
		t.Fatalf("other networks are %v", a.guard.others)
	}
	a.pod.Addr("lo", netip.PrefixFrom(b.addr, b.addr.BitLen()).String())
	a.pod.Run("ip", "link", "set", "lo", "up")
	for name, from := range map[string]struct {
		ns  *netnstest.NS
		src netip.Addr
	}{"a pod": {a.pod, a.podAddr(w.v6)}, "a pod in the name of a VTEP": {a.pod, b.addr}, "a host on the link": {w.stranger, w.strange}} {
		for of, value := range map[string][]byte{"a VTEP's": ofVTEP, "that of what was judged": a.guard.cfg.judged()} {
			secmarks(t, from.ns, value)
			for first, vni := range map[string]uint32{"nobody's": 99, "another network's": 77} {
				w.expect(name+" with "+of+", behind "+first, a, dataplane.DropUnknownVTEP, func(text []byte) {
					bad := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
					if err := sendSegments(from.ns, from.src, a.addr, a.frame(vni, bad[22:]), bad); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
	w.check(100)
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

// TestSecmarkOfPods: root of a pod can give its packets the secmark of what was judged. They go no further than those without.
func TestSecmarkOfPods(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		secmarks(t, b.pod, b.guard.cfg.judged())
		w.check(100)
		datagram := func(text []byte) []byte {
			return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		}
		w.expect("to a VTEP", b, dataplane.DropEgress, func(text []byte) {
			sendSegments(b.pod, b.podAddr(w.v6), a.addr, datagram(text))
		})
		w.expect("in the name of a VTEP", b, dataplane.DropEgress, func(text []byte) {
			sendRaw(b.pod, packet(w.hosts[2].addr, a.addr, 1, testPort, datagram(text)))
		})
		w.expect("to its own host", b, dataplane.DropUnknownVTEP, func(text []byte) {
			sendSegments(b.pod, b.podAddr(w.v6), b.addr, b.frame(1, packet(a.podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text)))
		})
		w.expect("as a pod of another host", b, dataplane.DropBadSource, func(text []byte) {
			sendRaw(b.pod, packet(w.hosts[2].podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		})
	})
}

// TestSignedByMark: if the kernel does not tell by which device they came, its datagrams for processes are known by the mark. If a security module may
// read secmarks, nothing has one behind the guard.
func TestSignedByMark(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.config = func(c *Config) { c.labels, c.noIncoming = true, true }
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		b.Run("nft", "add table inet seen; add chain inet seen out { type filter hook postrouting priority 0; }")
		rule, err := nft.Encode(nft.Inet, append(origin().load(reg1, bitsOf(ipv4)), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)}, &expr.Counter{})...)
		if err != nil {
			t.Fatal(err)
		}
		b.Must(func() error { return nft.Commit([]nft.Step{nft.NewRule(nft.Inet, "seen", "out", rule, "")}) })
		w.check(100, 8000)
		if seen := b.Run("nft", "list", "table", "inet", "seen"); !strings.Contains(seen, "counter packets 0 ") {
			t.Errorf("packets leave with a secmark: %s", seen)
		}
		w.expect("a process", b, dataplane.DropEgress, func(text []byte) {
			d := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
			if err := sendSegments(b.NS, b.addr, a.addr, d); !errors.Is(err, unix.EPERM) {
				t.Errorf("a process may send: %v", err)
			}
		})
	})
}

// TestKernelBesideSockets: while this process forwards, what others have the kernel encapsulate for processes leaves for the same hosts.
func TestKernelBesideSockets(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.joinSockets(false)
		for i, ports := range [][2]int{{4790, testPort}, {testPort, 4790}} { // its own, which this process has not, and that of the other host
			h := w.hosts[i]
			h.Run("ip", "link", "add", "other", "type", "vxlan", "id", "77", "dstport", fmt.Sprint(ports[0]), "local", h.addr.String(), "dev", "eth0", "nolearning")
			h.Run("bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "other", "dst", w.hosts[1-i].addr.String(), "port", fmt.Sprint(ports[1]))
			h.Run("ip", "link", "set", "other", "up")
			h.Addr("other", fmt.Sprintf("172.31.0.%d/24", i+1))
		}
		if err := w.exchange(w.hosts[0].NS, netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("172.31.0.2"), 500); err != nil {
			t.Error(err)
		}
	})
}
