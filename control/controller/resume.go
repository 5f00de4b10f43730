package controller

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// resume has an Overlay that forwards by itself go on with what the leases file has, until the first Sync: a store may take seconds to
// list what it has, and the dataplane of the kernel goes on meanwhile, too.
func (f *follower) resume() {
	r, ok := f.c.cfg.Overlay.(dataplane.Resumer)
	if !ok || !f.c.cfg.SharedMACs { // else who has which MAC would be decided without the store
		return
	}
	if self, ok := f.formerLease(); ok {
		f.rib.Underlay = *f.c.underlay.Load()
		peers, _ := f.rib.Peers(self)
		r.Resume(f.wanted(self, peers))
	}
}

// formerLease returns the own lease of the last run, if the file has it and this node is still what it says.
func (f *follower) formerLease() (control.Lease, bool) {
	node := &f.c.cfg.Node
	for l := range f.rib.Leases() {
		former := func(p netip.Prefix) bool { return slices.Contains(node.Previous, p) }
		own := subnetsOf(l)
		if slices.ContainsFunc(own, former) && (!l.PublicIP.IsValid() || l.PublicIP == node.PublicIP) && (!l.PublicIPv6.IsValid() || l.PublicIPv6 == node.PublicIPv6) {
			return l, true
		}
	}
	return control.Lease{}, false
}
