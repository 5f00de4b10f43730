package hostroute

import (
	"errors"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestOnlyReportsThePeersLeft: if nothing but direct routes leads to the peers, each that gets none is an error that
// names it and says why, the others work, and the part is degraded until the last of them has gone.
func TestOnlyReportsThePeersLeft(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	h.cfg.Direct, h.cfg.Only = true, true
	h.Run("ip", "route", "add", "10.5.4.0/24", "via", "192.0.2.9", "proto", "bgp")
	h.open()
	good := newPeer("192.0.2.3", "10.5.2.0/24")
	w := wanted(good, newPeer("192.0.2.4", "10.5.4.0/24"), newPeer("198.51.100.9", "10.5.9.0/24"))
	_, err := h.r.Sync(t.Context(), w)
	if err := h.r.Prune(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	peers, rest := dataplane.PeerErrors(err)
	if rest != nil || len(peers) != 2 || !errors.Is(peers[0], dataplane.ErrRouteTaken) || !errors.Is(peers[1], dataplane.ErrOffLink) {
		t.Errorf("got %v and %v", peers, rest)
	}
	h.expect(0, directB)
	if s := h.r.Status(); s.State != dataplane.StateDegraded {
		t.Errorf("status %+v", s)
	}
	h.sync(wanted(good))
	if s := h.r.Status(); s.State != dataplane.StateOK {
		t.Errorf("status %+v", s)
	}
}
