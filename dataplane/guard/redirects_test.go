package guard

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRedirects: an ICMP redirect that a pod or a stranger forges in the name of a router does not change the way to the peer behind that router.
func TestRedirects(t *testing.T) {
	for _, sender := range []string{"stranger", "pod"} {
		t.Run(sender, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			w.under.Run("sysctl", "-wq", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.br0.send_redirects=0")
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			router := netip.MustParseAddr("192.0.2.1")
			a.Run("ip", "route", "add", b.addr.String()+"/32", "via", router.String())
			w.check(100)
			quoted := packet(a.addr, b.addr, 40000, testPort, b.frame(1, packet(a.podAddr(false), b.podAddr(false), 1, 2, make([]byte, 600))))
			m := append([]byte{5, 1, 0, 0}, w.strange.AsSlice()...)
			m = append(m, quoted[:500]...)
			binary.BigEndian.PutUint16(m[2:], ^onesSum(m, 0))
			from, self := w.stranger, w.strange
			if sender == "pod" {
				from, self = a.pod, a.podAddr(false)
			}
			for range 5 {
				sendRaw(from, ipPacket(router, a.addr, unix.IPPROTO_ICMP, m))
			}
			sendRaw(from, packet(self, a.addr, 1, receivePort, []byte("behind them")))
			eventually(t, "what is behind them arrives", func() bool { return w.place("behind them") != "" })
			if out := a.Run("ip", "route", "get", b.addr.String()); !strings.Contains(out, "via "+router.String()) {
				t.Errorf("the way to the peer is %s", out)
			}
			w.check(100)
		})
	}
}
