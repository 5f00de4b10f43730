package control

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// Incumbents are who has what at the moment: without them a RIB has the age of the leases alone to judge by, and
// whoever has an old lease could take over by a restart what he cannot take from a daemon that runs. The zero value has none.
type Incumbents struct {
	MACs  [2]encap.MAC     // of this node, by family; zero: none
	Peers []dataplane.Peer // what RIB.Peers has returned; Subnets are of no account
}

// Incumbents returns who had what in the last call of Peers.
func (r *RIB) Incumbents() Incumbents { return Incumbents{r.ownMACs, r.last} }

// SetIncumbents is for a RIB that has not been asked for its Peers yet.
func (r *RIB) SetIncumbents(i Incumbents) {
	for p := range i.Peers {
		i.Peers[p].VNI = r.network.Backend.VNI
	}
	slices.SortFunc(i.Peers, func(a, b dataplane.Peer) int { return comparePeers(&a, b.VTEP) })
	r.ownMACs, r.last = i.MACs, i.Peers
}

// Lines returns texts that Parse reads: "self <MAC of IPv4> <MAC of IPv6>", and "<address> <MAC> [<source>]" of each peer.
func (i Incumbents) Lines() iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield("self " + i.MACs[0].String() + " " + i.MACs[1].String()) {
			return
		}
		for _, p := range i.Peers {
			line := p.Addr.String() + " " + p.MAC.String()
			if p.Source.IsValid() {
				line += " " + p.Source.String()
			}
			if !yield(line) {
				return
			}
		}
	}
}

// Parse adds what one of the Lines says. What says nothing is skipped.
func (i *Incumbents) Parse(line string) {
	words := strings.Fields(line)
	if len(words) < 2 || len(words) > 3 {
		return
	}
	mac, err := encap.ParseMAC(words[1])
	if err != nil {
		return
	}
	if words[0] == "self" {
		i.MACs[0] = mac
		if len(words) == 3 {
			i.MACs[1], _ = encap.ParseMAC(words[2]) // zero: none
		}
		return
	}
	p := dataplane.Peer{VTEP: dataplane.VTEP{MAC: mac}}
	if p.Addr, err = netip.ParseAddr(words[0]); err != nil {
		return
	}
	if len(words) == 3 {
		if p.Source, err = netip.ParseAddr(words[2]); err != nil {
			return
		}
	}
	i.Peers = append(i.Peers, p)
}
