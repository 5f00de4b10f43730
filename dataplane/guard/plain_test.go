package guard

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// stub is another link of a host, with somebody at its other end.
type stub struct {
	*netnstest.NS
	here  [2]netip.Addr // of the host, of both families
	there [2]netip.Addr
}

// stubs are commands that make a second uplink of the end of a link.
var stubs = map[string]string{
	"veth":    "ip link set end name up0",
	"macvlan": "ip link add up0 link end type macvlan mode bridge",
	"bridge":  "ip link add up0 type bridge; ip link set end master up0",
}

// link adds a second uplink of that kind. What else a kernel has, such as VLANs, bonds and VRFs, is a link as these are.
func (h *host) link(kind string) stub {
	s := stub{NS: netnstest.New(h.w.t)}
	netnstest.Link(h.NS, "end", s.NS, "eth0")
	h.Run("sh", "-ec", "ip link set end down; "+stubs[kind]+"; for d in end up0; do ip link set dev $d up 2>/dev/null || true; done; sysctl -wq net.ipv4.conf.up0.rp_filter=0 net.ipv4.conf.all.arp_ignore=1")
	for i, p := range prefixes("10.60.0.0/24", "fd60::/64") {
		s.here[i], s.there[i] = p.Addr().Next(), p.Addr().Next().Next()
		h.Addr("up0", netip.PrefixFrom(s.here[i], p.Bits()).String())
		s.Addr("eth0", netip.PrefixFrom(s.there[i], p.Bits()).String())
		s.Run("ip", "route", "add", testNetworks[i].String(), "via", s.here[i].String())
	}
	return s
}

// tell sends a packet by the link, and then an honest one. It reports whether the first has arrived, and what was dropped.
func (s stub) tell(h *host, src, dst netip.Addr, name, way string) (arrived bool, d Drops) {
	w, v6 := h.w, family6(dst.Is6())
	h.dropped()
	for _, p := range ways[way](packet(src, dst, 1, receivePort, fmt.Appendf(nil, "%-40s", name))) {
		sendRaw(s.NS, p)
	}
	place := func(name string) bool { return w.place(fmt.Sprintf("%-40s", name)) != "" }
	eventually(w.t, name, func() bool {
		for i, n := range h.dropped() {
			d[i] += n
		}
		return d != Drops{} || place(name)
	})
	sendRaw(s.NS, packet(s.there[v6], dst, 1, receivePort, fmt.Appendf(nil, "%-40s", "honest, "+name)))
	eventually(w.t, "an honest packet after "+name, func() bool { return place("honest, " + name) })
	return place(name), d
}

// TestSecondUplink: a plain packet with an address of the overlay comes in by no link on which this host does not have that address, of whatever kind it is, also where
// the underlay is an address of the loopback device; all else does.
func TestSecondUplink(t *testing.T) {
	for dp, join := range joins() {
		for kind := range stubs {
			for _, under := range []string{"eth0", "lo"} {
				if under == "lo" && kind != "veth" {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s beside %s", dp, kind, under), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, false)
					w.config = func(c *Config) {
						if c.Underlay = under; under == "lo" {
							c.Link = loopback
						}
					}
					join(w)
					a, b := w.hosts[0], w.hosts[1]
					s := a.link(kind)
					for _, v6 := range []bool{false, true} {
						other := netip.MustParseAddr(map[bool]string{false: "10.42.200.9", true: "fd42:0:0:99::9"}[v6])
						for from, src := range map[string]netip.Addr{"own": a.podAddr(v6).Next(), "own pod": a.podAddr(v6), "peer": b.podAddr(v6), "peer .0": b.overlay(v6), "nobody": other} {
							for to, dst := range map[string]netip.Addr{"pod": a.podAddr(v6), "host": s.here[family6(v6)], "gateway": a.overlay(v6).Next()} {
								for _, way := range []string{"whole", "8+rest", "unusual"} {
									if from == "own pod" && to == "pod" {
										continue // of the pod itself, which drops it
									}
									name := fmt.Sprint(from, ">", to, ", ", way, " ", v6)
									arrived, d := s.tell(a, src, dst, name, way)
									n := d[dataplane.DropPlainSource]
									d[dataplane.DropPlainSource] = 0
									if arrived || n == 0 || d != (Drops{}) {
										t.Errorf("%s: arrived %v, %d as plain_source, %v else", name, arrived, n, d)
									}
								}
							}
						}
					}
					w.check(100)
					for _, v6 := range []bool{false, true} {
						if err := w.exchange(a.NS, a.overlay(v6).Next(), a.overlay(v6).Next(), 100); err != nil {
							t.Errorf("the host with itself: %v", err)
						}
						if err := w.exchange(a.pod, a.podAddr(v6), a.overlay(v6).Next(), 100); err != nil {
							t.Errorf("a pod with its host: %v", err)
						}
					}
				})
			}
		}
	}
}

// TestAtHome: a plain packet comes in by a link on which this host has its source, from the moment that there is the route, and where it is allowed.
func TestAtHome(t *testing.T) {
	const own, peer, unleased = "10.42.1.200", "10.42.2.2", "10.42.200.9"
	for dp, join := range joins() {
		for name, c := range map[string]struct {
			kind   string
			config func(*Config)
			routes []string // to the link
			comes  map[string]bool
		}{
			"no route":         {kind: "macvlan", comes: map[string]bool{own: false, peer: false, unleased: false}},
			"a pod's":          {kind: "veth", routes: []string{own + "/32"}, comes: map[string]bool{own: true, peer: false, unleased: false}},
			"a bridge":         {kind: "bridge", routes: []string{"10.42.1.192/26"}, comes: map[string]bool{own: true, peer: false, unleased: false}},
			"macvlan":          {kind: "macvlan", routes: []string{"10.42.1.192/26"}, comes: map[string]bool{own: true, peer: false}},
			"another subnet":   {kind: "bridge", routes: []string{"10.42.200.0/24"}, comes: map[string]bool{own: false, peer: false, unleased: true}},
			"allowed":          {kind: "veth", config: func(c *Config) { c.AllowPlain = true }, comes: map[string]bool{own: true, peer: false, unleased: false}},
			"direct":           {kind: "veth", config: func(c *Config) { c.Direct = true }, comes: map[string]bool{own: false, peer: false, unleased: false}},
			"settling":         {kind: "veth", config: func(c *Config) { c.Settle = time.Hour }, comes: map[string]bool{own: true, peer: false, unleased: false}},
			"direct, settling": {kind: "veth", config: func(c *Config) { c.Direct, c.Settle = true, time.Hour }, comes: map[string]bool{own: true, peer: false}},
			"direct, sent":     {kind: "veth", config: func(c *Config) { c.Direct = true }, routes: []string{peer + "/32"}, comes: map[string]bool{own: false, peer: true}},
		} {
			t.Run(dp+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, false)
				w.config = c.config
				join(w)
				a := w.hosts[0]
				s := a.link(c.kind)
				for _, r := range c.routes {
					a.Run("ip", "route", "add", r, "dev", "up0")
				}
				for from, want := range c.comes {
					for to, dst := range map[string]netip.Addr{"pod": a.podAddr(false), "host": s.here[0]} {
						for _, way := range []string{"whole", "8+rest"} {
							name := fmt.Sprintf("%s>%s, %s", from, to, way)
							if arrived, d := s.tell(a, netip.MustParseAddr(from), dst, name, way); arrived != want {
								t.Errorf("%s: arrived %v, want %v; dropped %v", name, arrived, want, d)
							}
						}
					}
				}
			})
		}
	}
}
