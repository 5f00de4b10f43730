package guard

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestSamePort: where addresses are translated, the VXLAN port may be that of a pod's connection, as one in 64 512 has it, and of a service elsewhere. Both work.
func TestSamePort(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				a := w.hosts[0]
				a.listen(w.stranger, "stranger")
				ip, service := "ip", netip.MustParseAddr("172.30.0.1")
				if w.v6 {
					ip, service = "ip6", netip.MustParseAddr("fd30::1")
				}
				a.Run("nft", fmt.Sprintf(`add table %[1]s nat
	add chain %[1]s nat post { type nat hook postrouting priority 100; }
	add rule %[1]s nat post oifname eth0 %[1]s saddr %[2]s meta l4proto udp masquerade to :%[3]d
	add chain %[1]s nat out { type nat hook output priority -100; }
	add rule %[1]s nat out %[1]s daddr %[4]s udp dport %[3]d dnat to %[5]s`, ip, a.podAddr(w.v6), testPort, service, netip.AddrPortFrom(w.strange, receivePort)))
				if err := w.exchange(a.pod, a.podAddr(w.v6), w.strange, 100); err != nil {
					t.Errorf("a pod: %v", err)
				}
				if err := w.exchangeAt(a.NS, a.addr, netip.AddrPortFrom(service, testPort), 100); err != nil {
					t.Errorf("a process: %v", err)
				}
				w.check(100, 8000)
			})
		})
	}
}
