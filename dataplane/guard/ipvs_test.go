package guard

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
)

// TestRulesWithIPVS: only then the rules ask connection tracking what the kernel has encapsulated.
func TestRulesWithIPVS(t *testing.T) {
	w := manyPeers(2)
	c := testConfig(t)
	c.Link, c.Local, c.asIfIPVS = 3, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, true
	for chain, want := range map[string]string{
		chainLeave: `iif == 9, ct original saddr != 192.0.2.1, goto sent_on
iif == 9, accept
udp dport == 8472, jump to_port
udp sport == 8472, l4proto == udp, nfproto ip, ip frag-off & 0x1fff == 0, ip daddr . ip daddr @pair44_32, drop egress`,
		chainToPort: `nfproto ip, ct original saddr != 192.0.2.1, l4proto == udp, vxlan vni == 1, ip saddr . ip saddr != @pair44_32, ip daddr . ip daddr @pair44_32, drop egress
iifkind == "vxlan", accept
nfproto ip, ip frag-off & 0x1fff != 0, return
nfproto ip6, exthdr frag offset & 0xfff8 != 0, return
skuid >= 0, goto own
iif != 3, l4proto == udp, nfproto ip, ip saddr . ip saddr != @pair44_32, ip daddr . ip daddr @pair44_32, drop egress
l4proto == udp, nfproto ip, ip saddr . ip saddr != @pair44_32, ip daddr . ip daddr @pair44_32, iif == 3, fib saddr type local, drop egress
l4proto == udp, vxlan vni == 1, fib saddr type local, drop egress
accept`,
		chainSentOn: `udp dport == 8472, l4proto == udp, nfproto ip, ip saddr . ip saddr != @pair44_32, ip daddr . ip daddr @pair44_32, drop egress
udp sport == 8472, l4proto == udp, nfproto ip, ip frag-off & 0x1fff == 0, ip daddr . ip daddr @pair44_32, drop egress`,
	} {
		if diff := cmp.Diff(want, strings.Join(rulesOf(c, w, true, chain, 9), "\n")); diff != "" {
			t.Errorf("%s: %s", chain, diff)
		}
	}
}

// TestSentOn: what IPVS sends on does not leave for a VTEP in the name of this host, nor from the VXLAN port. IPVS takes packets where forward and egress
// do not see them: that is what the translation of addresses does here, once these chains are empty.
func TestSentOn(t *testing.T) {
	for name, config := range map[string]func(*Config){"by the device": nil, "by the mark": func(c *Config) { c.noIncoming = true }} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = config
				w.join()
				a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
				b.guard.cfg.asIfIPVS = true
				b.Must(func() error { b.guard.look(nil); return nil })
				const toVTEP, beside = 30053, 30054 // services of b, at its port and at another one of a VTEP
				for port, at := range map[uint16]uint16{toVTEP: testPort, beside: 4000} {
					b.Run("nft", fmt.Sprintf("add table inet services; add chain inet services pre { type nat hook prerouting priority -100; };"+
						"add rule inet services pre meta nfproto %s udp dport %d dnat %s to %s;"+
						"add chain inet services post { type nat hook postrouting priority 100; }; add rule inet services post oifname eth0 masquerade fully-random",
						[]string{"ipv4", "ipv6"}[family6(w.v6)], port, []string{"ip", "ip6"}[family6(w.v6)], netip.AddrPortFrom(a.addr, at)))
				}
				b.Run("nft", "flush chain inet "+b.guard.name+" "+chainForward)
				w.check(100, 1400, 8000) // also with translated ports
				forged := func(text []byte) []byte {
					return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
				}
				w.expect("out of the overlay", b, dataplane.DropEgress, func(text []byte) {
					sendRaw(c.pod, packet(c.podAddr(w.v6), b.overlay(w.v6), 3000, toVTEP, forged(text)))
				})
				w.expect("of a pod of this host", b, dataplane.DropEgress, func(text []byte) {
					sendRaw(b.pod, packet(b.podAddr(w.v6), b.overlay(w.v6), 3001, toVTEP, forged(text)))
				})
				w.expect("of a stranger", b, dataplane.DropEgress, func(text []byte) {
					sendRaw(w.stranger, packet(w.strange, b.addr, 3002, toVTEP, forged(text)))
				})
				if config == nil {
					w.expect("hidden in a superpacket", b, dataplane.DropEgress, func(text []byte) {
						first := a.frame(2, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, make([]byte, len(text))))
						if err := sendSegmentsTo(c.pod, c.podAddr(w.v6), netip.AddrPortFrom(b.overlay(w.v6), toVTEP), first, forged(text)); err != nil {
							t.Error(err)
						}
					})
				}
				b.Run("nft", "flush chain inet services post")
				b.Run("nft", "add rule inet services post oifname eth0 masquerade")
				w.expect("from the VXLAN port", b, dataplane.DropEgress, func(text []byte) {
					sendRaw(c.pod, packet(c.podAddr(w.v6), b.overlay(w.v6), testPort, beside, text))
				})
				w.check(100, 1400, 8000)
			})
		})
	}
}
