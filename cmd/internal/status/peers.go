package status

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// PeerTraffic is what went both ways between this host and one VTEP, with all of its subnets, since the process began.
type PeerTraffic struct {
	VTEP netip.Addr `json:"vtep"` // its underlay address
	dataplane.Traffic
}

// Peer is all that is known of one subnet of one peer.
type Peer struct {
	controller.PeerStatus
	Probe   *Probe       `json:"probe,omitempty"`   // nil: it is not probed
	Traffic *PeerTraffic `json:"traffic,omitempty"` // of its VTEP; nil: none, or nobody counts it
}

// AllPeers returns the peers of a network, in their order, each with its probe and its traffic.
func (n *Network) AllPeers() []Peer {
	all := make([]Peer, len(n.Peers))
	traffic := make(map[netip.Addr]*PeerTraffic, len(n.Traffic))
	for i := range n.Traffic {
		traffic[n.Traffic[i].VTEP] = &n.Traffic[i]
	}
	var probes []Probe
	if n.Probes != nil {
		probes = n.Probes.Peers
	}
	for i, p := range n.Peers {
		all[i].PeerStatus, all[i].Traffic = p, traffic[p.VTEP]
		if len(probes) > 0 && probes[0].Subnet == p.Subnet && probes[0].VTEP == p.VTEP { // the others have no probe
			all[i].Probe, probes = &probes[0], probes[1:]
		}
	}
	return all
}

// Works reports whether packets reach a peer, as far as this host knows.
func (p *Peer) Works() bool {
	programmed := (p.State == controller.PeerUp || p.State == controller.PeerDirect) && p.Reason == ""
	return programmed && (p.Probe == nil || p.Probe.State == ProbeOK || p.Probe.State == ProbeUnknown)
}

// isCutOff reports whether there are peers, and packets reach none of them. Peers whose leases the store has lost are still programmed.
func (n *Network) isCutOff() bool {
	peers := slices.DeleteFunc(n.AllPeers(), func(p Peer) bool { return p.State == controller.PeerRefused })
	return len(peers) > 0 && !slices.ContainsFunc(peers, func(p Peer) bool { return p.Works() || p.State == controller.PeerKept })
}

// Why returns why a peer does not work, and what to do about it.
func (p *Peer) Why() (reason, err, fix string) {
	if p.Err == "" && p.Probe != nil {
		return p.Probe.Reason, p.Probe.Err, p.Probe.Fix
	}
	return p.Reason, p.Err, peerFixes[p.Reason]
}

// peerFixes say what to do, by reason.
var peerFixes = map[string]string{
	control.Reason(dataplane.ErrRouteTaken): dataplane.FixOf(dataplane.ErrRouteTaken),
	control.Reason(dataplane.ErrOffLink):    dataplane.FixOf(dataplane.ErrOffLink),
}

// Title returns the name of a peer for people.
func (p *Peer) Title() string {
	if p.Name == "" {
		return p.Subnet.String()
	}
	return p.Name + " (" + p.Subnet.String() + ")"
}

// PeerList is the answer of GET /v1/peers.
type PeerList struct {
	V        int            `json:"v"` // Version
	Networks []NetworkPeers `json:"networks"`
	LeftOut  int            `json:"left_out,omitempty"` // peers that were too many to be listed
}

// NetworkPeers are peers of one network.
type NetworkPeers struct {
	Name  string `json:"name,omitempty"` // of the network; empty if the daemon serves one
	Peers []Peer `json:"peers"`
}

// FindPeers returns the peers that name means, or all of them if it is empty: the name of a node, a subnet, or an address
// of a VTEP or inside a subnet.
func FindPeers(networks []Network, name string) PeerList {
	list, b := PeerList{V: Version}, newBudget()
	for i := range networks {
		n := &networks[i]
		found := slices.DeleteFunc(n.AllPeers(), func(p Peer) bool { return !p.isMeant(name) })
		few := b.peers(found)
		list.LeftOut += len(found) - len(few)
		list.Networks = append(list.Networks, NetworkPeers{n.Name, few})
	}
	return list
}

func (p *Peer) isMeant(name string) bool {
	if name == "" || strings.EqualFold(p.Name, name) {
		return true
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return p.VTEP == addr || p.Subnet.Contains(addr)
	}
	subnet, err := netip.ParsePrefix(name)
	return err == nil && p.Subnet == subnet.Masked()
}
