package guard

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestAttack3Redirects: no ICMP redirect of a pod or a stranger leads the datagrams for a peer behind a router elsewhere.
func TestAttack3Redirects(t *testing.T) {
	for _, sender := range []string{"stranger", "pod"} {
		t.Run(sender, func(t *testing.T) {
			w := newWorld(t, false)
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			// b is behind a router, which is the first address of the underlay.
			router := netip.MustParseAddr("192.0.2.1")
			a.Run("ip", "route", "add", b.addr.String()+"/32", "via", router.String())
			w.under.Run("sysctl", "-wq", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.default.send_redirects=0")
			w.under.Must(func() error {
				links, err := net.Interfaces()
				for _, l := range links {
					rtnl.SetSysctl("net/ipv4/conf/"+strings.ReplaceAll(l.Name, ".", "/")+"/send_redirects", "0")
				}
				return err
			})
			w.stranger.Run("true")
			w.exchangeNoEcho(a.NS, a.addr, w.strange)
			if err := w.exchange(a.pod, a.podAddr(false), b.podAddr(false), 100); err != nil {
				t.Fatal(err)
			}
			t.Log(a.Run("sysctl", "net.ipv4.conf.all.accept_redirects", "net.ipv4.conf.eth0.accept_redirects", "net.ipv4.conf.veth0.accept_redirects", "net.ipv4.conf.eth0.shared_media", "net.ipv4.conf.eth0.secure_redirects"))
			quoted := packet(a.addr, b.addr, 40000, testPort, b.frame(1, packet(a.podAddr(false), b.podAddr(false), 1, 2, make([]byte, 600))))
			m := append([]byte{5, 1, 0, 0}, w.strange.AsSlice()...)
			m = append(m, quoted[:500]...)
			binary.BigEndian.PutUint16(m[2:], ^onesSum(m, 0))
			from := map[string]*netnstest.NS{"stranger": w.stranger, "pod": a.pod}[sender]
			for range 5 {
				sendRaw(from, ipPacket(router, a.addr, unix.IPPROTO_ICMP, m))
				time.Sleep(200 * time.Millisecond)
			}
			if out := a.Run("ip", "route", "get", b.addr.String()); !strings.Contains(out, "via "+router.String()) {
				t.Errorf("the way to the peer is now: %s", out)
			}
			if err := w.exchange(a.pod, a.podAddr(false), b.podAddr(false), 100); err != nil {
				t.Errorf("the tunnel is broken: %v", err)
			}
		})
	}
}

// exchangeNoEcho resolves a neighbour by sending there.
func (w *world) exchangeNoEcho(ns *netnstest.NS, src, dst netip.Addr) {
	sendRaw(ns, packet(src, dst, 1, 2, []byte("hello")))
	time.Sleep(300 * time.Millisecond)
}
