package guard

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestMasqueraded: a stranger or a VTEP for whom another one forwards and masquerades sends nothing to a third one in its name.
func TestMasqueraded(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				b, a, c := w.hosts[0], w.hosts[1], w.hosts[2]
				b.Run("nft", fmt.Sprintf("add table %[1]s masq; add chain %[1]s masq post { type nat hook postrouting priority 100; }; add rule %[1]s masq post oifname eth0 masquerade", []string{"ip", "ip6"}[family6(w.v6)]))
				b.Run("ethtool", "-K", "eth0", "tx-udp-segmentation", "off")
				w.stranger.Run("ip", "route", "add", netip.PrefixFrom(a.addr, a.addr.BitLen()).String(), "via", b.addr.String())
				forged := func(text []byte) []byte {
					return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
				}
				w.expect("a stranger", b, dataplane.DropEgress, func(text []byte) {
					sendRaw(w.stranger, packet(w.strange, a.addr, 1, testPort, forged(text)))
				})
				judge, why := b, dataplane.DropEgress
				if w.v6 { // it is not tracked, and so not masqueraded
					judge, why = a, dataplane.DropBadSource
				}
				w.expect("a VTEP", judge, why, func(text []byte) {
					sendRaw(w.stranger, packet(c.addr, a.addr, 1, testPort, forged(text)))
				})
				w.expect("hidden in a superpacket", b, dataplane.DropEgress, func(text []byte) {
					d := forged(text)
					if err := sendSegments(w.stranger, w.strange, a.addr, a.frame(99, d[22:]), d); err != nil {
						t.Error(err)
					}
				})
				container := map[bool]netip.Addr{false: netip.MustParseAddr("172.17.0.5"), true: netip.MustParseAddr("fd99::5")}[w.v6] // or a pod that has its address
				w.expect("a container, to what a checksum makes a VTEP", b, dataplane.DropEgress, func(text []byte) {
					sendRaw(b.pod, packet(container, w.strange, 1, testPort, forged(text)))
				})
				w.check(100, 8000)
			})
		})
	}
}
