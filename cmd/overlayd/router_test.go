package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// forward makes a namespace a router.
func forward(ns *netnstest.NS) {
	ns.Must(func() error {
		if err := rtnl.SetSysctl(ipForward, "1"); err != nil {
			return err
		}
		return rtnl.SetSysctl(ip6Forward, "1")
	})
}

// TestDirectRoutingOnAndOffLink: in one cluster, what goes to peers of the same LAN is not
// encapsulated and what goes to those behind a router is, by either family and dataplane,
// and all of it arrives.
//
//	host 0 ─┬─ under: bridge 192.0.2.1, 198.51.100.1 ── host 2
//	host 1 ─┘
func TestDirectRoutingOnAndOffLink(t *testing.T) {
	t.Parallel()
	config := strings.Replace(dualNetwork, `"vxlan"`, `"vxlan","DirectRouting":true`, 1)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newClusterOn(t, []string{under4, under6}, 2, config)
			far := c.addHost(netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8:2::2"))
			netnstest.Link(c.under, "far", far.NS, "eth0")
			for _, n := range []struct{ gateway, host string }{{"198.51.100.1", "198.51.100.2/24"}, {"2001:db8:2::1", "2001:db8:2::2/64"}} {
				c.under.Addr("far", n.gateway+n.host[strings.Index(n.host, "/"):])
				far.Addr("eth0", n.host)
				far.DefaultRoute(n.gateway)
			}
			forward(c.under)
			var pods []*pod
			for _, h := range c.hosts {
				nft(t, h.NS, countWire)
				h.up("--dataplane", mode, "--probe-interval=0") // packets are counted
				pods = append(pods, h.pod(0, 0))
			}
			for _, pair := range []struct {
				a, b  int
				plain bool
			}{{0, 1, true}, {0, 2, false}, {1, 2, false}} {
				t.Run(fmt.Sprintf("host %d and %d", pair.a, pair.b), func(t *testing.T) {
					a, b := pods[pair.a], pods[pair.b]
					ends := []*host{c.hosts[pair.a], c.hosts[pair.b]}
					awaitAll(t, ends[0].NS, b)
					awaitAll(t, ends[1].NS, a)
					eventually(t, patience, "the way that was chosen", func() error { return takesOneWay(ends, a, b, pair.plain) })
					before := []wire{ends[0].wire(), ends[1].wire()}
					checkPair(t, ends[0], a, ends[1], b, 8<<20)
					for i, h := range ends {
						now := h.wire()
						plain, encap := now.plain-before[i].plain, now.encap-before[i].encap
						if (plain > 500) != pair.plain || (encap > 500) == pair.plain || plain > 0 && encap > 0 {
							t.Errorf("host %d sent %d plain and %d encapsulated packets", pair.a+i*(pair.b-pair.a), plain, encap)
						}
					}
				})
			}
		})
	}
}

// takesOneWay returns an error if what the pods send each other is encapsulated though it should be plain, or the other way round:
// a route by the underlay comes after the peer's other routes.
func takesOneWay(ends []*host, a, b *pod, plain bool) error {
	before := []wire{ends[0].wire(), ends[1].wire()}
	for i, addr := range b.addrs {
		if err := errors.Join(echoWithin(a.NS, addr, 56, time.Second), echoWithin(b.NS, a.addrs[i], 56, time.Second)); err != nil {
			return err
		}
	}
	for i, h := range ends {
		if now := h.wire(); now.plain != before[i].plain && !plain || now.encap != before[i].encap && plain {
			return fmt.Errorf("%s: %+v, before %+v", h.name, now, before[i])
		}
	}
	return nil
}

// awaitAll waits until each address of to is reached by large packets. The first of IPv6 is
// lost if a link on the way has a smaller MTU than the sender's (RFC 8201).
func awaitAll(t *testing.T, from *netnstest.NS, to *pod) {
	t.Helper()
	for _, addr := range to.addrs {
		eventually(t, patience, fmt.Sprint(addr, " is reached"), func() error { return echoWithin(from, addr, 8000, 100*time.Millisecond) })
	}
}

// countWire counts what leaves by eth0, and belongs to the overlay. nftables would take random bytes of a later fragment for
// the destination port.
const countWire = `table inet wire {
	counter plain { }
	counter encap { }
	chain out {
		type filter hook postrouting priority 300; policy accept;
		oifname "eth0" ip frag-off & 0x1fff == 0 udp dport 8472 counter name encap
		oifname "eth0" ip6 nexthdr udp udp dport 8472 counter name encap
		oifname "eth0" ip daddr 10.5.0.0/16 counter name plain
		oifname "eth0" ip6 daddr fd00:5::/48 counter name plain
	}
}`

// wire are the packets, superpackets as one, that a host has sent to the overlay.
type wire struct{ plain, encap uint64 }

func (h *host) wire() (w wire) {
	w.plain, _ = counter(h.NS, "inet", "wire", "plain")
	w.encap, _ = counter(h.NS, "inet", "wire", "encap")
	return w
}

// TestBehindNAT: hosts behind a router each, which maps a public IP to them that they do not own
// one to one, and one in the open reach each other's pods. Both NATed hosts have the same
// address of their own.
func TestBehindNAT(t *testing.T) {
	t.Parallel()
	for _, modes := range [][3]string{
		{modeKernel, modeKernel, modeKernel}, {modeUserspace, modeUserspace, modeUserspace}, {modeUserspace, modeKernel, modeUserspace},
	} {
		t.Run(strings.Join(modes[:], "-"), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, testNetwork)
			c.hosts[0].up("--dataplane", modes[0])
			for i, public := range []string{"192.0.2.101", "192.0.2.102"} {
				h := c.behindNAT(public)
				h.up("--dataplane", modes[i+1], "--public-ip", public)
				if lease := c.get(h.key()); !strings.Contains(lease, `"PublicIP":"`+public+`"`) {
					t.Errorf("lease %s", lease)
				}
			}
			var pods []*pod
			for _, h := range c.hosts {
				pods = append(pods, h.pod(0, 0))
			}
			for _, pair := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
				a, b := pods[pair[0]], pods[pair[1]]
				warmUp(t, a, b)
				checkPair(t, c.hosts[pair[0]], a, c.hosts[pair[1]], b, 8<<20)
			}
		})
	}
}

// behindNAT makes one more host, which has an address of its own behind a router of its
// own with the given one.
func (c *cluster) behindNAT(public string) *host {
	h, router := c.behindRouter(public)
	nft(c.t, router, fmt.Sprintf(`table ip nat {
	chain in { type nat hook prerouting priority dstnat; ip daddr %[1]s dnat to 172.31.0.2; }
	chain out { type nat hook postrouting priority srcnat; ip saddr 172.31.0.2 snat to %[1]s; }
}`, public))
	return h
}

// behindDNAT is behindNAT with a router that translates only what comes in: the host's
// packets keep the source 172.31.0.2.
func (c *cluster) behindDNAT(public string) *host {
	h, router := c.behindRouter(public)
	c.under.Run("ip", "route", "add", "172.31.0.0/24", "via", public)
	nft(c.t, router, fmt.Sprintf(`table ip nat {
	chain in { type nat hook prerouting priority dstnat; ip daddr %s udp dport 8472 dnat to 172.31.0.2; }
}`, public))
	return h
}

func (c *cluster) behindRouter(public string) (h *host, router *netnstest.NS) {
	router = netnstest.New(c.t)
	netnstest.Plug(c.under, "nat"+public[strings.LastIndex(public, ".")+1:], router, public+"/24")
	h = c.addHost(netip.MustParseAddr("172.31.0.2"))
	netnstest.Link(router, "inside", h.NS, "eth0")
	router.Addr("inside", "172.31.0.1/24")
	h.Addr("eth0", "172.31.0.2/24")
	h.DefaultRoute("172.31.0.1")
	forward(router)
	return h, router
}

// TestSourceOfNATedPeer: a node whose packets do not come from its public IP, but from an address that it says to
// be its own, reaches the pods of either dataplane and is reached.
func TestSourceOfNATedPeer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.behindDNAT("192.0.2.101")
			c.hosts[0].up("--dataplane", modeUserspace)
			h.up("--dataplane", mode, "--public-ip", "192.0.2.101", "--iface", "172.31.0.2")
			c.hosts[1].up("--dataplane", modeUserspace) // it learns of h from the first list
			a := h.pod(0, 0)
			for i := range 2 {
				b := c.hosts[i].pod(0, 0)
				warmUp(t, a, b)
				checkPair(t, h, a, c.hosts[i], b, 4<<20)
				if n := linesWith(c.hosts[i].daemon.text(), "packets dropped"); n > 0 {
					t.Errorf("%d lines about dropped packets:\n%s", n, c.hosts[i].daemon.text())
				}
			}
		})
	}
}

// TestSourceCheckInner: packets of a flanneld behind such a NAT are dropped, with a line that says what would let
// them in, and do come in with that.
func TestSourceCheckInner(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h, far := c.hosts[0], c.behindDNAT("192.0.2.101")
	h.up("--dataplane", modeUserspace)
	peer := makePeer(t, far, h, "10.5.250.0", true)
	c.put(peer.key, strings.Replace(peer.value, "172.31.0.2", "192.0.2.101", 1))
	a, b := h.pod(0, 0), &pod{NS: far.NS, addr: peer.addr, addrs: []netip.Addr{peer.addr}}
	eventually(t, patience, "a line about the source", func() error {
		if echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) == nil {
			t.Fatal("its packets come in: why?")
		}
		if text := h.daemon.text(); linesWith(text, "--source-check=inner --peer-cidr=172.31.0.2/32") != 1 {
			return fmt.Errorf("not one such line:\n%s", text)
		}
		return nil
	})
	h.daemon.stop(unix.SIGTERM)
	h.up("--dataplane", modeUserspace, "--source-check=inner", "--peer-cidr=172.31.0.2/32", "--peer-cidr=192.0.2.0/24")
	warmUp(t, a, b)
	checkPair(t, h, a, far, b, 4<<20)
}
