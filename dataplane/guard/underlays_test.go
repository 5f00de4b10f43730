package guard

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestUnderlaysOnOthers: packets go on if the interface of the underlay is on another one, and forged ones do not. A bridge asks the rules of IP, as Kubernetes wants it.
func TestUnderlaysOnOthers(t *testing.T) {
	for kind, script := range map[string]string{
		"bridge":              "ip link add eth0 type bridge; ip link set below master eth0",
		"macvlan":             "ip link add eth0 link below type macvlan mode bridge",
		"macvlan on a bridge": "ip link add br0 up type bridge; ip link set below master br0; ip link add eth0 link br0 type macvlan mode bridge",
	} {
		t.Run(kind, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				a, b := w.hosts[0], w.hosts[1]
				bits := 24 + 40*family6(w.v6)
				a.Run("sh", "-ec", "ip link set eth0 down; ip addr flush dev eth0; ip link set eth0 name below; "+script+`
					ip link set below up; ip link set eth0 up; sysctl -wq net.ipv4.conf.eth0.rp_filter=0
					[ ! -e /proc/sys/net/bridge ] || sysctl -wq net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1`)
				a.Addr("eth0", netip.PrefixFrom(a.addr, bits).String())
				w.join()
				for _, h := range w.hosts {
					h.Run("ip", "neigh", "flush", "all") // the address has moved
				}
				w.check(56, 1400, 8000)
				w.expect("a stranger", a, dataplane.DropUnknownVTEP, func(text []byte) {
					sendRaw(w.stranger, packet(w.strange, a.addr, 1, testPort, a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))))
				})
				w.stranger.Run("ip", "route", "replace", testNetworks[family6(w.v6)].String(), "via", a.addr.String())
				for name, dst := range map[string]netip.Addr{"to a pod": a.podAddr(w.v6), "to the host": a.overlay(w.v6).Next()} {
					w.expect("plain, "+name, a, dataplane.DropPlainSource, func(text []byte) {
						sendRaw(w.stranger, packet(b.podAddr(w.v6), dst, 1, receivePort, text))
					})
				}
			})
		})
	}
}
