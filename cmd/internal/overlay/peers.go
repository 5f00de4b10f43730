package overlay

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// Marked returns peers as the parts know them by now: those that a direct route leads to, and those that the part that
// forwards has lost or got back. It changes no peer of its argument.
func (o *Overlay) Marked(peers []controller.PeerStatus) []controller.PeerStatus {
	return o.markDirect(o.markFaults(peers))
}

// markDirect returns peers with those marked that a direct route leads to. It changes no peer of
// its argument.
func (o *Overlay) markDirect(peers []controller.PeerStatus) []controller.PeerStatus {
	w := o.reached.Load()
	if w == nil {
		return peers
	}
	direct := map[netip.Prefix]bool{}
	for _, p := range w.Peers {
		for _, subnet := range p.Subnets {
			if p.Direct {
				direct[subnet] = true
			}
		}
	}
	if len(direct) == 0 {
		return peers
	}
	peers = slices.Clone(peers)
	for i := range peers {
		if peers[i].State == controller.PeerUp && direct[peers[i].Subnet] {
			peers[i].State = controller.PeerDirect
		}
	}
	return peers
}

// markFaults returns peers with those marked that the part that forwards has lost, or has got back, since control
// was told. It changes no peer of its argument.
func (o *Overlay) markFaults(peers []controller.PeerStatus) []controller.PeerStatus {
	if o.forward == nil {
		return peers
	}
	now := o.forward.Status()
	faults := map[netip.Prefix]dataplane.PeerFault{}
	for _, f := range now.Peers {
		for _, s := range f.Peer.Subnets {
			faults[s] = f
		}
	}
	if now.State == dataplane.StateFailed || len(faults) == 0 && !slices.ContainsFunc(peers, hasFailed) {
		return peers
	}
	peers = slices.Clone(peers)
	for i := range peers {
		p := &peers[i]
		switch f, bad := faults[p.Subnet]; {
		case bad && f.Peer.Addr == p.VTEP && p.State != controller.PeerRefused && p.State != controller.PeerUnknown:
			p.Fail(f.Err, f.Since)
		case !bad && hasFailed(*p):
			p.State, p.Reason, p.Err, p.Since = controller.PeerUp, "", "", now.Since
		}
	}
	return peers
}

func hasFailed(p controller.PeerStatus) bool { return p.State == controller.PeerFailed }
