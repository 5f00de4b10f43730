package guard

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestMasqueraded: a stranger or a VTEP for whom another one forwards and masquerades sends nothing to a third one in its name. Datagrams over IPv6 are not tracked, and so not
// masqueraded.
func TestMasqueraded(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			join(w)
			b, a, c := w.hosts[0], w.hosts[1], w.hosts[2]
			b.Run("nft", "add table ip masq; add chain ip masq post { type nat hook postrouting priority 100; }; add rule ip masq post oifname eth0 masquerade")
			b.Run("ethtool", "-K", "eth0", "tx-udp-segmentation", "off")
			w.stranger.Run("ip", "route", "add", netip.PrefixFrom(a.addr, 32).String(), "via", b.addr.String())
			forged := func(text []byte) []byte {
				return a.frame(1, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))
			}
			for name, src := range map[string]netip.Addr{"a stranger": w.strange, "a VTEP": c.addr} {
				w.expect(name, b, dataplane.DropEgress, func(text []byte) {
					sendRaw(w.stranger, packet(src, a.addr, 1, testPort, forged(text)))
				})
			}
			w.expect("hidden in a superpacket", b, dataplane.DropEgress, func(text []byte) {
				d := forged(text)
				if err := sendSegments(w.stranger, w.strange, a.addr, a.frame(99, d[22:]), d); err != nil {
					t.Error(err)
				}
			})
			w.check(100, 8000)
		})
	}
}
