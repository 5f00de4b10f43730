package control

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// KeepMACs returns l, which the node is about to publish in the place of old, with the MACs of
// old: the peers know them. A MAC that is derived from an address which the node no longer publishes
// is replaced, because the next owner of that address derives the same. What came with the
// device or the lease of a flanneld stays.
func (n Node) KeepMACs(l, old Lease) Lease {
	for _, ipv6 := range [...]bool{false, true} {
		now, was := l.VTEP(ipv6), old.VTEP(ipv6)
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

// Rival is a lease of another address with the MAC of this node's VTEP.
type Rival struct {
	VTEP   dataplane.VTEP
	Subnet netip.Prefix // of the lease
	// Elder: it had the MAC before this node published it. Any other rival has come with a MAC that was in use, and
	// costs this node nothing, however old its lease is.
	Elder bool
	rec   *ribLease
}

// beats reports whether the rival keeps the MAC that it has in common with the own VTEP of the
// lease self. Both nodes judge alike: the one that has derived it from its own address keeps it, else the one that had it first,
// else the older lease.
func (r *Rival) beats(self *Lease) bool {
	own := self.VTEP(r.VTEP.Addr.Is6())
	if theirs := isDerivedFromOwn(r.VTEP); theirs != isDerivedFromOwn(own) {
		return theirs
	}
	if !r.Elder {
		return false
	}
	if r.rec.CreateRevision != self.CreateRevision {
		return r.rec.CreateRevision < self.CreateRevision
	}
	return r.rec.key < self.Key()
}

func isDerivedFromOwn(v dataplane.VTEP) bool { return dataplane.IsDerived(v.MAC, v.Addr, v.VNI) }

// Rivals returns the leases that have a MAC of the node's own, as the last Peers found them.
func (r *RIB) Rivals() []Rival { return r.rivals }

// maxRivals bounds the rivals: who may write leases can make as many as he likes.
const maxRivals = 256

// shelvedRivals returns those of the last call of Peers that are on the shelf.
func (r *RIB) shelvedRivals() []Rival {
	return slices.DeleteFunc(slices.Clone(r.rivals), func(v Rival) bool { return !v.rec.shelved || r.leases[v.rec.key] != v.rec })
}

// noteRivals takes over whom Peers has found with a MAC of self, and finds out which of them had it first: those that
// were there when self had that MAC for the first time. Of too many it takes those that have derived it, and then the oldest.
func (r *RIB) noteRivals(self *Lease, rivals []Rival) {
	slices.SortFunc(rivals, func(v, w Rival) int {
		if x, y := isDerivedFromOwn(v.VTEP), isDerivedFromOwn(w.VTEP); x != y {
			return map[bool]int{true: -1, false: 1}[x]
		}
		return cmp.Or(cmp.Compare(v.rec.CreateRevision, w.rec.CreateRevision), cmp.Compare(v.rec.key, w.rec.key))
	})
	rivals = rivals[:min(len(rivals), maxRivals)]
	for i := range rivals {
		v := &rivals[i]
		f := familyIndex(v.VTEP.Addr)
		was := slices.IndexFunc(r.rivals, func(w Rival) bool {
			return w.VTEP == v.VTEP && w.rec.key == v.rec.key && w.rec.CreateRevision == v.rec.CreateRevision
		})
		v.Elder = r.ownMACs[f] != v.VTEP.MAC || was >= 0 && r.rivals[was].Elder
	}
	r.rivals = rivals
	r.ownMACs = [2]encap.MAC{self.VTEP(false).MAC, self.VTEP(true).MAC}
}

// GiveWay returns self with other MACs in the place of those that it has in common with a rival
// that beats it, or with any that had it before if late is true: that one may be unable to change it, as a flanneld
// is. to is the last rival that got its way; ok is false if no MAC has changed, also because each one is in use.
func (r *RIB) GiveWay(self Lease, late bool) (l Lease, to Rival, ok bool) {
	l = self
	for _, v := range r.rivals {
		own := l.VTEP(v.VTEP.Addr.Is6())
		if own.MAC != v.VTEP.MAC || !v.beats(&self) && !(late && v.Elder) {
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
		used[rec.VTEP(v.Addr.Is6()).MAC] = true
	}
	for n := range dataplane.MACs {
		if m := dataplane.NthMAC(v.Addr, v.VNI, n); !used[m] {
			return m, true
		}
	}
	return encap.MAC{}, false
}
