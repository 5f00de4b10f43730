package status

import (
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control/controller"
)

// TestEntriesLeftOutAreNoPeers: how many peers there are does not depend on what somebody has written to the store.
func TestEntriesLeftOutAreNoPeers(t *testing.T) {
	var n Network
	n.Peers = make([]controller.PeerStatus, 3)
	for i := range 1000 {
		n.Bad = append(n.Bad, controller.EntryStatus{Key: fmt.Sprint("junk", i), Fault: controller.Fault{Err: strings.Repeat("x", 200)}})
	}
	d := Daemon{Networks: []Network{n}}.Bounded()
	if d.LeftOut == 0 || d.PeersLeftOut != 0 || len(d.Networks[0].Peers) != 3 {
		t.Errorf("%d left out, %d of them peers, %d peers listed; want some, none, 3", d.LeftOut, d.PeersLeftOut, len(d.Networks[0].Peers))
	}
	n.Peers = make([]controller.PeerStatus, maxPeerBytes/baseBytes+5)
	if d := (Daemon{Networks: []Network{n}}).Bounded(); d.PeersLeftOut != 5 {
		t.Errorf("%d peers left out, want 5", d.PeersLeftOut)
	}
}
