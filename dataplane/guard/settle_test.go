package guard

import (
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// TestPodsWhileSettling: for as long as packets of peers may come plainly, because the network config has just changed, pods still have no sources of other hosts: neither
// to this host and its pods nor by a direct route.
func TestPodsWhileSettling(t *testing.T) {
	for name, direct := range map[string]bool{"to direct routes": true, "back": false} {
		for dp, join := range joins() {
			t.Run(dp+", "+name, func(t *testing.T) {
				overBoth(t, func(t *testing.T, w *world) {
					w.config = func(c *Config) { c.Direct, c.Settle = direct, time.Hour }
					join(w)
					a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
					a.Run("ip", "route", "replace", b.subnets()[family6(w.v6)].String(), "via", b.addr.String())
					b.Run("ip", "route", "replace", a.subnets()[family6(w.v6)].String(), "via", a.addr.String())
					if err := w.exchange(b.pod, b.podAddr(w.v6), a.podAddr(w.v6), 100); err != nil {
						t.Errorf("a peer's packets without encapsulation: %v", err)
					}
					forge := func(to *host) func(text []byte) {
						return func(text []byte) {
							sendRaw(a.pod, packet(c.podAddr(w.v6), to.podAddr(w.v6).Prev(), 1, receivePort, text))
						}
					}
					w.expect("a pod to its host, as another host's pod", a, dataplane.DropBadSource, forge(a))
					w.expect("a pod by a direct route, as another host's pod", a, dataplane.DropBadSource, forge(b))
				})
			})
		}
	}
}
