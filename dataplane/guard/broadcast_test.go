package guard

import (
	"net/netip"
	"testing"
)

// TestDirectedBroadcast: a VTEP's packet to the broadcast address of the pods' subnet reaches nobody, as with the userspace dataplane.
func TestDirectedBroadcast(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				a, b := w.hosts[0], w.hosts[1]
				to := netip.MustParseAddr("10.42.1.255")
				text := "to the broadcast address, " + name
				sendRaw(b.pod, packet(b.podAddr(false), to, 1, receivePort, []byte(text)))
				if err := w.exchange(b.pod, b.podAddr(false), a.podAddr(false), 100); err != nil { // the way of the other is over
					t.Error(err)
				}
				if where := w.place(text); where != "" {
					t.Errorf("arrived at %s", where)
				}
			})
		})
	}
}
