package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// vxlanTo is how a datagram of VXLAN is tried at one port. An observer at that port of the destination tells whether it arrives.
type vxlanTo struct {
	name string
	send func(port uint16, frame []byte)
	at   *host
}

// ways of datagrams in the name of the network: from the link as a peer, and from this host's pods, processes and root to a peer.
func (w *world) vxlanWays() []vxlanTo {
	a, b := w.hosts[0], w.hosts[1]
	raw := func(from *host, src, dst netip.Addr, pod bool) func(uint16, []byte) {
		ns := from.NS
		if pod {
			ns = from.pod
		}
		return func(port uint16, frame []byte) { sendRaw(ns, packet(src, dst, 1, port, frame)) }
	}
	return []vxlanTo{
		{"a peer to this host", raw(b, b.addr, a.addr, false), a},
		{"a process to a peer", func(port uint16, frame []byte) {
			a.Must(func() error {
				c, err := net.Dial("udp", netip.AddrPortFrom(b.addr, port).String())
				if err != nil {
					return err
				}
				defer c.Close()
				if _, err = c.Write(frame); errors.Is(err, unix.EPERM) { // dropped
					return nil
				}
				return err
			})
		}, b},
		{"a pod to a peer", raw(a, a.podAddr(w.v6), b.addr, true), b},
		{"a pod to its own host, as a peer", raw(a, b.addr, a.addr, true), a},
	}
}

// observe counts what arrives at a UDP port of a host, by its text.
func (h *host) observe(port uint16) (has func(text string) bool) {
	var seen atomic.Pointer[string]
	var c *net.UDPConn
	h.Must(func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
		return err
	})
	h.w.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			all := string(buf[:n])
			if last := seen.Load(); last != nil {
				all = *last + all
			}
			seen.Store(&all)
		}
	}()
	return func(text string) bool {
		all := seen.Load()
		return all != nil && strings.Contains(*all, text)
	}
}

// overEach is overBoth with a name.
func overEach(t *testing.T, name string, test func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) { overBoth(t, test) })
}

// TestShutUntilSync: between Open and the first Sync nothing of a VNI or port that is new is taken or sent, whether there is a table of an earlier port or none. The
// rules for the earlier one hold meanwhile. Datagrams of other VNIs pass. Resume opens the port for peers.
func TestShutUntilSync(t *testing.T) {
	t.Parallel()
	const next = testPort + 1
	for name, before := range map[string]bool{"no table": false, "the table of another port": true} {
		overEach(t, name, func(t *testing.T, w *world) {
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			v := w.lastWanted(a)
			if !before {
				a.dp.Close()
				a.Run("ip", "link", "del", a.device())
				a.Must(func() error { _, err := Cleanup(); return err })
			}
			b.Must(func() error { _, err := Cleanup(); return err }) // it observes
			at := map[*host]func(string) bool{a: a.observe(next), b: b.observe(next)}
			c := testConfig(t)
			c.IPv4, c.IPv6, c.Local, c.Port = !w.v6, w.v6, []netip.Addr{a.addr}, next
			a.guard.Close()
			synced := 0
			c.Synced = func() { synced++ }
			g := openIn(t, a.NS, c)
			arrives := func(way vxlanTo) bool {
				text := fmt.Sprintf("<%s>", way.name)
				after := "<after" + text[1:]
				way.send(next, b.frame(1, packet(a.podAddr(false).Next(), a.podAddr(false), 1, receivePort, []byte(text))))
				way.send(next, []byte("\x08\x00\x00\x00\x00\x00\x63\x00"+after)) // of VNI 99
				eventually(t, after, func() bool { return at[way.at](after) })
				return at[way.at](text)
			}
			for _, way := range w.vxlanWays() {
				if arrives(way) {
					t.Errorf("before the first Sync: %s", way.name)
				}
			}
			if before {
				w.check(100) // the earlier port is as it was
			}
			if r, ok := any(g).(dataplane.Resumer); ok {
				a.Must(func() error { r.Resume(v); return nil })
			}
			honest := func(text string) {
				sendRaw(b.NS, packet(b.addr, a.addr, 1, next, b.frame(1, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, []byte(text)))))
				eventually(t, "a datagram of a peer: "+text, func() bool { return at[a](text) })
			}
			honest("<resumed>")
			if synced > 0 {
				t.Error("Synced is called before the first Sync")
			}
			g.sync(t, a.NS, v)
			if synced != 1 {
				t.Errorf("Synced was called %d times", synced)
			}
			honest("<synced>")
		})
	}
}
