package guard

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestStolenDatagrams: a pod that sends from the port of the overlay to a peer, in a connection that the host masquerades, does not get the peer's
// datagrams: to connection tracking these look like the answers.
func TestStolenDatagrams(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				a, b := w.hosts[0], w.hosts[1]
				b.Run("sysctl", "-wq", "net.ipv4.ip_local_port_range=40000 40001") // a pod tries all of them
				command := []string{"ip", "ip6"}[family6(w.v6)]
				a.Run("nft", "add table "+command+" masq; add chain "+command+" masq post { type nat hook postrouting priority 100; }; add rule "+command+" masq post oifname eth0 masquerade")
				var pod *net.UDPConn
				a.pod.Must(func() (err error) {
					pod, err = net.ListenUDP("udp", &net.UDPAddr{Port: testPort})
					return err
				})
				defer pod.Close()
				for port := uint16(40000); port <= 40001; port++ {
					if _, err := pod.WriteToUDPAddrPort([]byte("mine"), netip.AddrPortFrom(b.addr, port)); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.exchange(b.pod, b.podAddr(w.v6), a.podAddr(w.v6), 100); err == nil {
					return
				}
				pod.SetReadDeadline(time.Now().Add(time.Second))
				n, from, err := pod.ReadFromUDPAddrPort(make([]byte, 2000))
				t.Errorf("the packets of a peer's pod do not arrive; the other pod has a datagram of %d bytes from %s, %v", n, from, err)
			})
		})
	}
}
