package control

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// KeepMACs returns l, which the node is about to publish in the place of old, with the MACs of
// old: the peers know them. Of an address that the node no longer publishes a derived MAC
// changes with it, because the next owner of that address derives the same. What came with the
// device or the lease of a flanneld stays.
func (n Node) KeepMACs(l, old Lease) Lease {
	for _, ipv6 := range [...]bool{false, true} {
		now, was := l.vtep(ipv6), old.vtep(ipv6)
		if !now.Addr.IsValid() {
			continue
		}
		former := append(slices.Clip(n.Former), was.Addr)
		switch {
		case was.MAC.IsUnicast() && was.VNI == now.VNI && !isStale(was.MAC, now, former):
			now.MAC = was.MAC
		case isStale(now.MAC, now, former):
			now.MAC = dataplane.MAC(now.Addr, now.VNI)
		}
		l.setVTEP(now, now.Addr)
	}
	return l
}

// isStale reports whether m, of whoever publishes v now, is derived from one of the former addresses.
func isStale(m encap.MAC, v dataplane.VTEP, former []netip.Addr) bool {
	return !dataplane.IsDerived(m, v.Addr, v.VNI) && slices.ContainsFunc(former, func(a netip.Addr) bool {
		return dataplane.IsDerived(m, a, v.VNI)
	})
}

// rival is a lease of another address with the MAC of this node's VTEP.
type rival struct {
	vtep    dataplane.VTEP
	subnet  netip.Prefix
	key     string
	created int64
}

// beats reports whether the rival keeps the MAC that it has in common with the own VTEP of the
// lease self. Both nodes judge alike: who has derived it from its own address keeps it, else the older lease.
func (r *rival) beats(self *Lease) bool {
	own := self.vtep(r.vtep.Addr.Is6())
	if theirs := isDerivedFromOwn(r.vtep); theirs != isDerivedFromOwn(own) {
		return theirs
	}
	if r.created != self.CreateRevision {
		return r.created < self.CreateRevision
	}
	return r.key < self.Key()
}

func isDerivedFromOwn(v dataplane.VTEP) bool { return dataplane.IsDerived(v.MAC, v.Addr, v.VNI) }

// giveWay returns self with other MACs in the place of those that it has in common with a rival
// that beats it, or with any rival if all is true. to is the last rival that got its way; ok is
// false if no MAC has changed, also because each one is in use.
func (r *RIB) giveWay(self Lease, all bool) (l Lease, to rival, ok bool) {
	l = self
	for _, v := range r.rivals {
		own := l.vtep(v.vtep.Addr.Is6())
		if own.MAC != v.vtep.MAC || !all && !v.beats(&self) {
			continue
		}
		mac, free := r.freeMAC(own)
		if !free {
			continue
		}
		own.MAC, to, ok = mac, v, true
		l.setVTEP(own, own.Addr)
	}
	return l, to, ok
}

// freeMAC returns the first of the MACs that can be derived for v which no lease has.
func (r *RIB) freeMAC(v dataplane.VTEP) (encap.MAC, bool) {
	used := make(map[encap.MAC]bool, len(r.leases))
	for _, rec := range r.leases {
		used[rec.vtep(v.Addr.Is6()).MAC] = true
	}
	for n := range dataplane.MACs {
		if m := dataplane.NthMAC(v.Addr, v.VNI, n); !used[m] {
			return m, true
		}
	}
	return encap.MAC{}, false
}
