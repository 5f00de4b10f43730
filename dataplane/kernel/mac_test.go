package kernel

import (
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// TestSyncChangesMAC: the device gets the MAC that the lease says, and keeps what is on it.
func TestSyncChangesMAC(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB, peerC))
	for _, mac := range []encap.MAC{{2, 7}, {2, 8}, h.dp.VTEPs()[0].MAC} {
		w := wanted(peerB, peerC)
		v := h.dp.VTEPs()[0]
		v.MAC = mac
		w.VTEPs = []dataplane.VTEP{v}
		h.sync(w)
		h.expect(w)
		if got := h.dp.VTEPs()[0]; got != v {
			t.Errorf("publishes %v, want %v", got, v)
		}
		if out := h.Run("ip", "link", "show", "flannel.1"); !strings.Contains(out, mac.String()) {
			t.Errorf("want MAC %s: %s", mac, out)
		}
	}
}
