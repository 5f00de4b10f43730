package guard

import (
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestUnderlayMadeAgain: after the interface of the underlay was made again, no packet with a pod's source comes in by it, also before the next session
// has begun. The interface is of a kind that has no pods behind it, such as a NIC, a bond or a VLAN.
func TestUnderlayMadeAgain(t *testing.T) {
	for name, kernel := range map[string]bool{"kernel": true, "userspace": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			a.guard.cfg.noKinds = true // else a veth is one of a pod
			a.guard.Forwards(kernel)
			a.guard.keep(t, a.NS, func() {})
			a.guard.sync(t, a.NS, w.lastWanted(a))
			a.Run("ip", "link", "del", "eth0")
			netnstest.Link(w.under, "again", a.NS, "eth0")
			w.under.Run("ip", "link", "set", "again", "master", "br0")
			a.Addr("eth0", a.addr.String()+"/24")
			a.Run("sysctl", "-wq", "net.ipv4.conf.eth0.rp_filter=0")
			w.stranger.Run("ip", "route", "replace", "10.42.0.0/16", "via", a.addr.String())
			eventually(t, "a packet of a stranger arrives", func() bool {
				sendRaw(w.stranger, packet(w.strange, a.podAddr(false), 1, receivePort, []byte("stranger")))
				return w.place("stranger") != ""
			})
			w.expect("plain", a, dataplane.DropPlainSource, func(text []byte) {
				sendRaw(w.stranger, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))
			})
		})
	}
}
