package control

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// Peers returns every VTEP other than the node's own with the subnets behind it,
// sorted by address, and why other leases are not used, sorted by key. self has the
// node's VTEPs, and its subnets unless it has no lease now.
//
// Each family of a lease is admitted on its own. Of leases that overlap the oldest holds, so
// that no newcomer takes over what works. If VTEPs have the same MAC, the one that has derived it
// from its own address holds, else the one that the last call has returned, else
// the one of the oldest lease. The same MAC, VNI and public IP in several leases make one Peer.
func (r *RIB) Peers(self Lease) ([]dataplane.Peer, []Rejection) {
	r.judge(&self)
	a, claims, admitted := r.admit(&self)
	for i := 0; r.releaseBehind(); i++ {
		if i == maxReleases {
			r.emptyShelf()
		}
		a, claims, admitted = r.admit(&self)
	}
	l := limits{a: a, rib: r}
	l.apply(claims, admitted)
	r.limits = l.found
	sortByKey(r.limits)
	r.last, r.names = mergePeers(claims, admitted)
	r.refused = a.refused + r.shelf.count
	for _, rec := range a.lasting {
		r.shelve(rec)
	}
	if len(a.lasting) > 0 && len(r.live) < len(r.leases)/2 {
		r.live = maps.Collect(maps.All(r.live)) // a map that has lost most is as large as before
	}
	r.noteRivals(&self, a.rivals)
	return r.last, r.shelf.with(r.shelf.tell(oldestRejected(a.rejected)))
}

// maxReleases is how often Peers begins again because leases on the shelf are to be judged again. Then it judges all of them.
const maxReleases = 3

// admit decides about the leases that are not on the shelf. admitted has the numbers of the claims that hold.
func (r *RIB) admit(self *Lease) (a *admission, claims []claim, admitted []int32) {
	r.calls++
	a = newAdmission(r, *self)
	r.owned[a.ownKey] = true
	a.shared, a.rivals = r.SharedMACs || !r.network.Backend.IsVXLAN(), r.shelvedRivals()
	claims = make([]claim, 0, len(r.live))
	for _, rec := range r.live {
		if a.isOwn(rec) || a.isOwnEarlier(rec) {
			continue
		}
		claims = a.appendClaims(claims, rec)
	}
	a.noteIncumbents(claims, r.last)
	order := byAge(claims)
	admitted = order[:0]
	for _, i := range order {
		if err := a.admit(&claims[i]); err != nil {
			a.reject(claims[i].rec, claims[i].subnet, err)
			continue
		}
		admitted = append(admitted, i)
	}
	if !a.shared {
		admitted = a.admitMACs(claims, admitted, r.last)
	}
	return a, claims, admitted
}

// Refused returns how many leases, or families of one, the last Peers refused, and how many are not remembered. Peers returns 2000 of them
// at most: the oldest that it knew when there was room.
func (r *RIB) Refused() int { return r.refused + r.omitted }

// Names returns the names of the nodes behind the peers that the last Peers returned: one for each subnet, in their order. It is
// of the lease that has the subnet. Nobody changes what it returns.
func (r *RIB) Names() []string { return r.names }

// Limits returns what does not work with the peers that the last Peers returned, sorted by key.
func (r *RIB) Limits() []Rejection { return r.limits }

// byAge returns the numbers of the claims, oldest first. Those of kept leases come last: they give
// way to whatever the store has. Late ones come after the others. Numbers are sorted and not
// claims, whose pointers would cost a write barrier for each exchange.
func byAge(claims []claim) []int32 {
	order := make([]int32, len(claims))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		x, y := &claims[i], &claims[j]
		if x.kept != y.kept {
			if x.kept {
				return 1
			}
			return -1
		}
		if x.late != y.late {
			if x.late {
				return 1
			}
			return -1
		}
		if c := cmp.Compare(x.created, y.created); c != 0 {
			return c
		}
		return cmp.Compare(x.rec.key, y.rec.key)
	})
	return order
}

// mergePeers makes one Peer of the admitted claims of each VTEP, and lists the names of the subnets' nodes.
func mergePeers(claims []claim, admitted []int32) ([]dataplane.Peer, []string) {
	slices.SortFunc(admitted, func(i, j int32) int {
		x, y := &claims[i], &claims[j]
		if c := x.vtep.Addr.Compare(y.vtep.Addr); c != 0 {
			return c
		}
		return cmp.Or(slices.Compare(x.vtep.MAC[:], y.vtep.MAC[:]), x.subnet.Addr().Compare(y.subnet.Addr()))
	})
	subnets := make([]netip.Prefix, len(admitted)) // one allocation for all peers
	names := make([]string, len(admitted))
	peers := make([]dataplane.Peer, 0, len(admitted))
	for i, number := range admitted {
		c := &claims[number]
		subnets[i], names[i] = c.subnet, c.rec.Facts.Name
		if n := len(peers); n > 0 && peers[n-1].VTEP == c.vtep {
			first := i - len(peers[n-1].Subnets)
			peers[n-1].Subnets = subnets[first : i+1 : i+1]
			if c.source.IsValid() {
				peers[n-1].Source = c.source
			}
			peers[n-1].Userspace = peers[n-1].Userspace || c.rec.Facts.Userspace
			continue
		}
		peers = append(peers, dataplane.Peer{VTEP: c.vtep, Source: c.source, Subnets: subnets[i : i+1 : i+1], Userspace: c.rec.Facts.Userspace})
	}
	return peers, names
}
