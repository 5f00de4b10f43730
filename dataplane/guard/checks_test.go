package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestOtherChecks: what each of them admits, in both dataplanes.
func TestOtherChecks(t *testing.T) {
	all := []string{"the peer's pod", "the peer", "another peer's pod", "another peer's pod, from where any peer may be", "behind a NAT", "outside", "nobody's", "another peer", "this host", "another address of this host", "own pod", "link", "reserved", "compatible", "loopback"}
	usual := all[:2]
	for check, admitted := range map[dataplane.SourceCheck][]string{
		dataplane.SourceStrict:  usual,
		dataplane.SourceOverlay: append(slices.Clone(usual), "outside"),
		dataplane.SourceInner:   append(slices.Clone(usual), "another peer's pod, from where any peer may be", "behind a NAT"),
		dataplane.SourceOff:     append(slices.Clone(usual), "another peer's pod", "outside", "behind a NAT", "nobody's"),
	} {
		for name, join := range joins() {
			t.Run(fmt.Sprint(check, " by ", name), func(t *testing.T) {
				overBoth(t, func(t *testing.T, w *world) {
					a, c := w.hosts[0], w.hosts[2]
					w.config = func(cfg *Config) {
						cfg.Check = check
						if check == dataplane.SourceInner {
							cfg.AnyPeerFrom = []netip.Prefix{netip.PrefixFrom(w.strange, w.strange.BitLen()), netip.PrefixFrom(c.addr, c.addr.BitLen())}
						}
					}
					join(w)
					a.Addr("lo", "198.51.100.1/32")
					a.Addr("lo", "2001:db8:77::1/128")
					for _, name := range all {
						arrives := slices.Contains(admitted, name)
						if check == dataplane.SourceOff && !arrives || check == dataplane.SourceOverlay && !w.v6 && name == "another address of this host" {
							continue // the kernel decides
						}
						outer, inner := w.source(name)
						before := w.total(a)
						sendRaw(w.stranger, packet(outer, a.addr, 1, testPort, a.frame(1, packet(inner, a.podAddr(w.v6), 1, receivePort, []byte(name)))))
						eventually(t, name, func() bool { return w.place(name) != "" || w.total(a) > before })
						if got := w.place(name) != ""; got != arrives {
							t.Errorf("%s, %s in %s: arrived %v, want %v", name, inner, outer, got, arrives)
						}
					}
					w.check(100)
				})
			})
		}
	}
}

// source returns the outer and the inner source of a packet to host 0.
func (w *world) source(name string) (outer, inner netip.Addr) {
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	of := func(v4, v6 string) netip.Addr { return netip.MustParseAddr(map[bool]string{false: v4, true: v6}[w.v6]) }
	switch name {
	case "the peer's pod":
		return b.addr, b.podAddr(w.v6)
	case "the peer":
		return b.addr, b.addr
	case "another peer's pod":
		return b.addr, c.podAddr(w.v6)
	case "another peer's pod, from where any peer may be":
		return c.addr, b.podAddr(w.v6)
	case "behind a NAT":
		return w.strange, b.podAddr(w.v6)
	case "outside":
		return b.addr, of("8.8.8.8", "2001:4860::8")
	case "nobody's":
		return b.addr, of("10.42.200.1", "fd42:0:0:99::1")
	case "another peer":
		return b.addr, c.addr
	case "this host":
		return b.addr, a.addr
	case "another address of this host":
		return b.addr, of("198.51.100.1", "2001:db8:77::1")
	case "own pod":
		return b.addr, a.podAddr(w.v6)
	case "link":
		return b.addr, of("169.254.7.7", "fe80::7")
	case "compatible":
		return b.addr, of("255.255.255.255", "::10.42.2.2")
	case "reserved":
		return b.addr, of("240.0.0.1", "::ffff:10.42.2.2")
	}
	return b.addr, of("127.0.0.1", "::1")
}

// total is how many packets h has dropped for their source, by its guard for whatever reason.
func (w *world) total(h *host) (n uint64) {
	h.Must(func() error {
		for _, d := range h.guard.Drops() {
			n += d
		}
		return nil
	})
	if h.sockets != nil {
		d := h.sockets.Stats().Drops
		n += d[dataplane.DropUnknownVTEP] + d[dataplane.DropBadSource]
	}
	return n
}

// TestInsiders: from where any peer may be, no pod and no process sends in the name of a peer, although it has such an address too.
func TestInsiders(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = func(c *Config) {
					c.Check, c.AnyPeerFrom = dataplane.SourceInner, prefixes("192.0.2.0/24", "10.0.0.0/8", "2001:db8::/64", "fd00::/8")
				}
				join(w)
				a, b := w.hosts[0], w.hosts[1]
				send := func(from *netnstest.NS, src netip.Addr) func([]byte) {
					return func(text []byte) {
						sendRaw(from, packet(src, a.addr, 1, testPort, a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))))
					}
				}
				nobody := netip.MustParseAddr(map[bool]string{false: "10.42.200.9", true: "fd42:0:0:99::9"}[w.v6])
				for name, send := range map[string]func([]byte){
					"a pod to its host":            send(a.pod, a.podAddr(w.v6)),
					"a pod's address from outside": send(w.stranger, a.podAddr(w.v6)),
					"another host's pod's address": send(w.stranger, b.podAddr(w.v6)),
					"an address that nobody has":   send(w.stranger, nobody),
				} {
					before := w.total(a)
					send([]byte(name))
					eventually(t, name, func() bool { return w.place(name) != "" || w.total(a) > before })
					if where := w.place(name); where != "" {
						t.Errorf("%s: arrived at %s", name, where)
					}
				}
				send(w.stranger, w.strange)([]byte("behind a NAT"))
				eventually(t, "what is behind a NAT arrives", func() bool { return w.place("behind a NAT") != "" })
				w.check(100)
			})
		})
	}
}
