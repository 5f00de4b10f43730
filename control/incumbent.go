package control

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// What a lease says beside its subnet can change at any time, and the lease is as old as before. So age does not
// decide about such a claim if the last call of RIB.Peers knew better: who was used keeps what he has. In the first call
// of a RIB there is age alone, unless it was told: see Incumbents.

// noteIncumbents finds out what claims the last peers keep.
func (a *admission) noteIncumbents(claims []claim, last []dataplane.Peer) {
	over := a.underlay.isInside(a.prefixes)
	for i := range claims {
		c := &claims[i]
		c.late = a.inNetwork(c.vtep.Addr) && (!over || len(last) > 0 && !hasVTEP(last, c.vtep))
		source := c.rec.Facts.source(c.vtep.Addr.Is6())
		if !source.IsValid() || c.kept {
			continue
		}
		if p, ok := peerOf(last, c.vtep); ok && p.Source == source {
			if a.sources == nil {
				a.sources = map[netip.Addr]netip.Addr{}
			}
			a.sources[source] = c.vtep.Addr
		}
	}
}

// isInside reports whether one of the networks holds what this host needs of the underlay: other hosts may have their
// public IPs there too.
func (u *Underlay) isInside(networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		return slices.ContainsFunc(u.OnLink, n.Overlaps) ||
			slices.ContainsFunc(u.Needs, func(need Need) bool { return !need.Yields && n.Contains(need.Addr) })
	})
}
