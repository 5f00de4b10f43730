package status

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control/controller"
)

// Daemon is how a daemon is: the answer of GET /v1/status. It is a value.
type Daemon struct {
	V        int       `json:"v"` // Version
	Process  Process   `json:"process"`
	At       time.Time `json:"at"`    // when this was so
	Ready    bool      `json:"ready"` // it is known which networks there are, and all of them are ready
	Verdict  Verdict   `json:"verdict"`
	Warnings []Warning `json:"warnings,omitempty"` // the gravest first
	Networks []Network `json:"networks"`           // by name
	LeftOut  int       `json:"left_out,omitempty"` // peers and entries of the store that were too many to be listed
}

// Process is the process of a daemon.
type Process struct {
	Host    string    `json:"host"` // name of this node
	Version string    `json:"version,omitempty"`
	PID     int       `json:"pid"`
	Start   time.Time `json:"start"`
}

// Report returns how a daemon with these networks is, and what to make of it.
func Report(p Process, ready bool, networks []Network) Daemon {
	d := Daemon{V: Version, Process: p, At: time.Now(), Ready: ready, Networks: networks}
	d.Warnings = Judge(d)
	d.Verdict = verdictOf(d.Warnings)
	return d
}

// What an answer lists at most: twice as many peers as overlayd is tested with. An answer with that many has 4 MB.
const (
	maxPeers   = 20_000
	maxEntries = 1000 // of each kind, in all networks together
)

// Bounded returns d with at most so many peers and entries as one answer may have. Peers that are up go first.
func (d Daemon) Bounded() Daemon {
	d.Networks = slices.Clone(d.Networks)
	peers, rejected, bad := maxPeers, maxEntries, maxEntries
	for i := range d.Networks {
		n := &d.Networks[i]
		all := len(n.Peers) + len(n.Rejected) + len(n.Bad)
		n.Peers = boundPeers(n.Peers, peers)
		n.Rejected = n.Rejected[:min(len(n.Rejected), rejected)]
		n.Bad = n.Bad[:min(len(n.Bad), bad)]
		peers, rejected, bad = peers-len(n.Peers), rejected-len(n.Rejected), bad-len(n.Bad)
		d.LeftOut += all - len(n.Peers) - len(n.Rejected) - len(n.Bad)
	}
	return d
}

// boundPeers returns at most n of peers, in their order: those that do not work, and then others.
func boundPeers(peers []controller.PeerStatus, n int) []controller.PeerStatus {
	if len(peers) <= n {
		return peers
	}
	var few []controller.PeerStatus
	spare := n
	for _, p := range peers {
		if !Works(p) {
			spare--
		}
	}
	for _, p := range peers {
		works := Works(p)
		if works && spare <= 0 || len(few) == n {
			continue
		}
		if few = append(few, p); works {
			spare--
		}
	}
	return few
}

// Works reports whether packets reach a peer, as far as this host knows.
func Works(p controller.PeerStatus) bool {
	return (p.State == controller.PeerUp || p.State == controller.PeerDirect) && p.Reason == ""
}

// PeerList is the answer of GET /v1/peers.
type PeerList struct {
	V        int            `json:"v"` // Version
	Networks []NetworkPeers `json:"networks"`
	LeftOut  int            `json:"left_out,omitempty"` // peers that were too many to be listed
}

// NetworkPeers are peers of one network.
type NetworkPeers struct {
	Name  string                  `json:"name,omitempty"` // of the network; empty if the daemon serves one
	Peers []controller.PeerStatus `json:"peers"`
}

// FindPeers returns the peers that name means, or all of them if it is empty: the name of a node, a subnet, or an address
// of a VTEP or inside a subnet.
func FindPeers(networks []Network, name string) PeerList {
	list := PeerList{V: Version}
	room := maxPeers
	for _, n := range networks {
		found := findPeers(n.Peers, name)
		few := boundPeers(found, room)
		room -= len(few)
		list.LeftOut += len(found) - len(few)
		list.Networks = append(list.Networks, NetworkPeers{n.Name, few})
	}
	return list
}

func findPeers(peers []controller.PeerStatus, name string) []controller.PeerStatus {
	if name == "" {
		return peers
	}
	addr, err := netip.ParseAddr(name)
	subnet, serr := netip.ParsePrefix(name)
	found := []controller.PeerStatus{}
	for _, p := range peers {
		switch {
		case strings.EqualFold(p.Name, name), serr == nil && p.Subnet == subnet.Masked(), err == nil && (p.VTEP == addr || p.Subnet.Contains(addr)):
			found = append(found, p)
		}
	}
	return found
}
