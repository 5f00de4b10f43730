package guard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestLaterFragments: a fragment that is not the first has no ports, whatever is where they would be: it arrives. Before Linux 7.1 nftables reads such a
// packet as if it had a header, and one of IPv6 as if that were the IP header.
func TestLaterFragments(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = func(c *Config) { c.MinPathMTU, c.AllowPlain = 1280, true }
				join(w)
				a, b := w.hosts[0], w.hosts[1]
				a.listen(w.stranger, "stranger")
				for _, v6 := range []bool{false, true} {
					for name, way := range map[string]struct {
						from     *netnstest.NS
						src, dst netip.Addr
						where    string
					}{
						"pod to pod":           {b.pod, b.podAddr(v6), a.podAddr(v6), "pod0"},
						"pod to host":          {b.pod, b.podAddr(v6), a.overlay(v6), "host0"},
						"host to host":         {b.NS, b.overlay(v6), a.overlay(v6), "host0"},
						"host to pod":          {b.NS, b.overlay(v6), a.podAddr(v6), "pod0"},
						"pod to its host":      {a.pod, a.podAddr(v6), a.overlay(v6), "host0"},
						"pod to a VTEP":        {b.pod, b.podAddr(w.v6), w.hosts[2].addr, "host2"},
						"pod to a stranger":    {b.pod, b.podAddr(w.v6), w.strange, "stranger0"},
						"VTEP to VTEP":         {b.NS, b.addr, w.hosts[2].addr, "host2"},
						"a stranger to a host": {w.stranger, w.strange, a.addr, "host0"},
					} {
						for what, pattern := range map[string][]byte{
							"the VXLAN port":               {0x21, 0x18},
							"a VXLAN header":               {0x21, 0x18, 0x21, 0x18, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0},
							"an ICMP message of a low MTU": {3, 4, 0, 0, 0, 0, 2, 40},
						} {
							if name == "pod to a VTEP" && what == "a VXLAN header" {
								continue // see TestDisguised
							}
							text := append(fmt.Appendf(nil, "%-64s", fmt.Sprintf("%s, %v, %s", name, v6, what)), bytes.Repeat(pattern, 1600/len(pattern))...)
							p := packet(way.src, way.dst, 1, receivePort, text)
							if p[0]>>4 == 6 {
								binary.BigEndian.PutUint16(p[2:], testPort) // of the flow label
							}
							for _, f := range fragments(p, 8+64+512) {
								sendRaw(way.from, f)
							}
							eventually(t, string(text[:64]), func() bool { return w.place(string(text)) == way.where })
						}
					}
				}
			})
		})
	}
}

// TestPingsInFragments: the answer to a long ping is no message about a path, whatever its bytes are.
func TestPingsInFragments(t *testing.T) {
	w := newWorld(t, false)
	w.config = func(c *Config) { c.MinPathMTU = 1280 }
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	m := append([]byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}, bytes.Repeat([]byte{3, 4, 0, 0, 0, 0, 2, 40}, 200)...)
	binary.BigEndian.PutUint16(m[2:], ^onesSum(m, 0))
	var answers net.PacketConn
	a.Must(func() (err error) { answers, err = net.ListenPacket("ip4:icmp", "0.0.0.0"); return err })
	defer answers.Close()
	for _, f := range fragments(ipPacket(a.overlay(false), b.podAddr(false), unix.IPPROTO_ICMP, m), 800) {
		sendRaw(a.NS, f)
	}
	answers.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, _, err := answers.ReadFrom(make([]byte, 1<<16)); err != nil || n != len(m) {
		t.Errorf("answer of %d bytes, want %d: %v", n, len(m), err)
	}
}
