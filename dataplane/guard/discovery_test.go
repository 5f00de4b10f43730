package guard

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// icmpv6 is a message of ICMPv6 as it is to be, with a hop limit of 255.
func icmpv6(src, dst netip.Addr, kind byte, body ...byte) []byte {
	m := append([]byte{kind, 0, 0, 0}, body...)
	pseudo := binary.BigEndian.AppendUint32(append(src.AsSlice(), dst.AsSlice()...), uint32(len(m)))
	binary.BigEndian.PutUint16(m[2:], ^onesSum(append(pseudo, 0, 0, 0, unix.IPPROTO_ICMPV6), onesSum(m, 0)))
	p := ipPacket(src, dst, unix.IPPROTO_ICMPV6, m)
	p[7] = 255
	return p
}

// TestNeighbourDiscovery: a VTEP cannot fill the kernel's table of neighbours, which all namespaces share, by what it asks inside of the overlay. Other ICMPv6 passes.
func TestNeighbourDiscovery(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				a, b := w.hosts[0], w.hosts[1]
				src, dst := b.podAddr(true).Next(), a.overlay(true)
				tell := func(inner []byte) { sendRaw(w.stranger, packet(b.addr, a.addr, 1, testPort, a.frame(1, inner))) }
				body := append(append(make([]byte, 4), dst.AsSlice()...), 1, 1, 2, 2, 2, 2, 2, 2) // with the address of its link
				extended := icmpv6(src, dst, 135, body...)
				extended[6] = unix.IPPROTO_DSTOPTS
				extended = append(append(extended[:40:40], unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0), extended[40:]...)
				binary.BigEndian.PutUint16(extended[4:], uint16(len(extended)-40))
				packets := map[string][]byte{"behind an extension header": extended}
				for kind := byte(133); kind <= 137; kind++ { // RFC 4861
					packets[fmt.Sprint("type ", kind)] = icmpv6(src, dst, kind, body...)
				}
				for name, p := range packets {
					if a.sockets != nil { // its device has no addresses of the link
						tell(p)
						continue
					}
					w.expect(name, a, dataplane.DropBadHeader, func([]byte) { tell(p) })
				}
				var c *net.IPConn
				a.pod.Must(func() (err error) { c, err = net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{}); return err })
				defer c.Close()
				quoted := packet(a.podAddr(true), src, receivePort, 1, make([]byte, 60))
				for kind, body := range map[byte][]byte{1: append(make([]byte, 4), quoted...), 2: append([]byte{0, 0, 5, 0}, quoted...), 3: append(make([]byte, 4), quoted...), 128: {1, 2, 0, 1}, 129: {1, 2, 0, 1}} {
					tell(icmpv6(src, a.podAddr(true), kind, body...))
					c.SetReadDeadline(time.Now().Add(5 * time.Second))
					for got := (make([]byte, 2000)); ; {
						if _, _, err := c.ReadFrom(got); err != nil {
							t.Fatalf("type %d: %v", kind, err)
						}
						if got[0] == kind {
							break
						}
					}
				}
				if learnt := a.Run("ip", "-6", "neigh", "show", src.String()); strings.TrimSpace(learnt) != "" {
					t.Errorf("a VTEP has the kernel learn %s", learnt)
				}
				w.check(100)
			})
		})
	}
}
