package status

import "github.com/overlayd/overlayd/control/controller"

// What an answer has at most, in bytes: enough for 10 000 peers that are up, and for 3000 with a reason each.
const (
	maxPeerBytes  = 6 << 20
	maxEntryBytes = 512 << 10 // of each kind
	baseBytes     = 580       // of a peer without its texts, at most
)

// budget is the room that is left in one answer.
type budget struct{ peerBytes, rejectedBytes, badBytes int }

func newBudget() *budget { return &budget{maxPeerBytes, maxEntryBytes, maxEntryBytes} }

// Bounded returns d with no more peers and entries than one answer may have. Peers that work are left out first.
func (d Daemon) Bounded() Daemon {
	b := newBudget()
	networks := make([]Network, len(d.Networks))
	for i, n := range d.Networks {
		peers, all := len(n.Peers), len(n.Peers)+len(n.Rejected)+len(n.Bad)
		b.network(&n)
		d.PeersLeftOut += peers - len(n.Peers)
		d.LeftOut += all - len(n.Peers) - len(n.Rejected) - len(n.Bad)
		networks[i] = n
	}
	d.Networks = networks
	return d
}

// network bounds a copy of a network.
func (b *budget) network(n *Network) {
	joined := n.AllPeers()
	if few := b.peers(joined); len(few) < len(joined) {
		n.setPeers(few)
	}
	n.Rejected = entriesWithin(&b.rejectedBytes, n.Rejected)
	n.Bad = entriesWithin(&b.badBytes, n.Bad)
}

// setPeers makes these the peers of n.
func (n *Network) setPeers(peers []Peer) {
	n.Peers = make([]controller.PeerStatus, len(peers))
	n.Traffic = nil
	var probes []Probe
	listed := map[*PeerTraffic]bool{}
	for i, p := range peers {
		if n.Peers[i] = p.PeerStatus; p.Probe != nil {
			probes = append(probes, *p.Probe)
		}
		if p.Traffic != nil && !listed[p.Traffic] {
			listed[p.Traffic] = true // for all subnets of the VTEP
			n.Traffic = append(n.Traffic, *p.Traffic)
		}
	}
	if n.Probes != nil {
		few := *n.Probes
		few.Peers = probes
		n.Probes = &few
	}
}

// peers returns those for which there is room, in their order: those that do not work, and then others.
func (b *budget) peers(peers []Peer) []Peer {
	chosen, left := make([]bool, len(peers)), 0
	for _, works := range []bool{false, true} {
		for i := range peers {
			p := &peers[i]
			if p.Works() != works {
				continue
			}
			if chosen[i] = take(&b.peerBytes, p.bytes()); !chosen[i] {
				left++
			}
		}
	}
	if left == 0 {
		return peers
	}
	few := make([]Peer, 0, len(peers)-left)
	for i, p := range peers {
		if chosen[i] {
			few = append(few, p)
		}
	}
	return few
}

// bytes estimates the JSON of a peer.
func (p *Peer) bytes() int {
	n := baseBytes + len(p.Name) + len(p.Reason) + len(p.Err)
	if p.Probe != nil {
		n += len(p.Probe.Reason) + len(p.Probe.Err) + len(p.Probe.Fix)
	}
	return n
}

// take takes n bytes of the room that is left, if it has that many.
func take(room *int, n int) bool {
	if *room < n {
		return false
	}
	*room -= n
	return true
}

// entriesWithin returns the first ones, for which there is room.
func entriesWithin(room *int, all []controller.EntryStatus) []controller.EntryStatus {
	for i := range all {
		if !take(room, baseBytes+len(all[i].Key)+len(all[i].Name)+len(all[i].Err)+len(all[i].Fix)) {
			return all[:i]
		}
	}
	return all
}
