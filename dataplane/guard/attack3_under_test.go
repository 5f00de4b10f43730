package guard

import (
	"fmt"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestAttack3UnderlayMadeAgain: no plain packet comes in by an interface of the underlay that was made again, before the next session has begun. The
// interface is one whose kind does not tell that pods may be behind it, such as a NIC, a bond or a VLAN.
func TestAttack3UnderlayMadeAgain(t *testing.T) {
	for _, kernel := range []bool{true, false} {
		t.Run(fmt.Sprint("kernel ", kernel), func(t *testing.T) {
			w := newWorld(t, false)
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			a.guard.cfg.noKinds = true // a veth is one of a pod, else
			a.guard.Forwards(kernel)
			a.guard.keep(t, a.NS, func() {})
			a.guard.sync(t, a.NS, w.lastWanted(a))
			a.Run("ip", "link", "del", "eth0")
			netnstest.Link(w.under, "again", a.NS, "eth0")
			w.under.Run("ip", "link", "set", "again", "master", "br0")
			a.Addr("eth0", a.addr.String()+"/24")
			a.Run("sysctl", "-wq", "net.ipv4.conf.eth0.rp_filter=0")
			w.stranger.Run("ip", "route", "replace", "10.42.0.0/16", "via", a.addr.String())
			time.Sleep(200 * time.Millisecond)
			for range 3 {
				sendRaw(w.stranger, packet(w.strange, a.podAddr(false), 1, receivePort, []byte("control")))
				sendRaw(w.stranger, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, []byte("again")))
				time.Sleep(200 * time.Millisecond)
			}
			t.Logf("control at %q, drops %v", w.place("control"), a.dropped())
			if w.place("control") == "" {
				t.Log(a.Run("ip", "addr"), w.under.Run("ip", "link"), w.stranger.Run("ip", "neigh"))
			}
			if p := w.place("again"); p != "" {
				t.Errorf("arrived at %s", p)
			}
		})
	}
}
