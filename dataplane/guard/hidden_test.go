package guard

import (
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestHiddenFrames: behind a datagram of another network no frame is hidden that is no IP packet: here a request of ARP, from which the kernel would
// learn a neighbor without the setting that dataplane/sysctl keeps.
func TestHiddenFrames(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a := w.hosts[0]
		a.Run("sysctl", "-wq", "net.ipv4.conf."+strings.ReplaceAll(a.device(), ".", "/")+".arp_ignore=8")
		to := a.overlay(false).As4()
		arp := append([]byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 42, 2, 77, 0, 0, 0, 0, 0, 0}, to[:]...)
		w.expect("the IP packet behind it", a, dataplane.DropUnknownVTEP, func(text []byte) {
			last := a.frame(1, packet(w.hosts[1].podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
			frame := a.frameOf(1, 0x0806, append(arp, make([]byte, len(last)-22-len(arp))...))
			if err := sendSegments(w.stranger, w.strange, a.addr, a.frame(99, last[22:]), frame, last); err != nil {
				t.Fatal(err)
			}
		})
		if learnt := a.Run("ip", "-4", "neigh", "show", "dev", a.device()); strings.Contains(learnt, "10.42.2.77") {
			t.Errorf("a stranger has the kernel learn %s", learnt)
		}
	})
}
