package device

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// taken returns a *dataplane.PeerError for each peer whose packets, or some of them, a route of somebody else leads
// away, because it is more specific than the one in want. Routes on the links ours are not somebody else's.
func taken(peers []dataplane.Peer, others []rtnl.OtherRoute, want rtnl.Routes, ours []int) error {
	var errs []error
	for _, o := range others {
		whole := slices.ContainsFunc(want.Whole, func(n netip.Prefix) bool { return n.Bits() < o.Dst.Bits() && n.Overlaps(o.Dst) })
		if slices.Contains(ours, o.Link) {
			continue
		}
		for _, p := range peers {
			i := slices.IndexFunc(p.Subnets, func(s netip.Prefix) bool {
				return s.Overlaps(o.Dst) && (whole || s.Bits() < o.Dst.Bits())
			})
			if i >= 0 && !p.Direct {
				errs = append(errs, &dataplane.PeerError{Peer: p, Err: fmt.Errorf("%w: packets to %s go by %s (see: ip route show root %[2]s)",
					rtnl.ErrRouteTaken, p.Subnets[i], o.Text)})
			}
		}
	}
	return errors.Join(errs...)
}
