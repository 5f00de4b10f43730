package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/fib"
	"github.com/overlayd/overlayd/encap"
)

// forwarding is what both directions forward by. It is immutable: a Sync makes a new
// one and stores it in one piece, so that no packet is judged by two states.
type forwarding struct {
	sources
	subnets fib.Table[carrier.Entry]    // overlay subnet, of either family → peer, of either
	vteps   fib.Table[carrier.Entry]    // outer source of a peer's packets → itself: its address, and Peer.Source
	macs    [carrier.Families]encap.MAC // of this host's VTEPs
	mtu     int                         // of the overlay device

	entries []carrier.Entry  // all that the two have
	outer   []netip.Addr     // the addresses of vteps
	peers   []dataplane.Peer // those of entries, with the subnets that they have
}

// local is this node's VTEP of one family.
type local struct {
	addr    netip.Addr // that the sockets are bound to; invalid if there is no such underlay
	public  netip.Addr // that the others send to
	mac     encap.MAC
	vni     uint32
	port    uint16 // of every VTEP
	carrier uint8  // by which its family's peers are reached
}

// newLocals makes the VTEPs, by family. The first carrier of a family is that of its peers.
func newLocals(cfg Config, carriers []carrier.Description) (ls [carrier.Families]local) {
	for _, u := range cfg.Underlays {
		f := carrier.FamilyOf(u.Local)
		first := slices.IndexFunc(carriers, func(d carrier.Description) bool { return d.Family == f })
		mac := u.MAC
		if mac == (encap.MAC{}) {
			mac = dataplane.MAC(u.Public, cfg.VNI)
		}
		ls[f] = local{addr: u.Local, public: u.Public, mac: mac, vni: cfg.VNI, port: cfg.Port, carrier: uint8(max(first, 0))}
	}
	return ls
}

func macsOf(locals *[carrier.Families]local) (macs [carrier.Families]encap.MAC) {
	for family, l := range locals {
		macs[family] = l.mac
	}
	return macs
}

// newForwarding makes what w wants, with the peers that were there before. A peer that it cannot
// take, or a subnet of one, is left out and gets a *dataplane.PeerError.
func newForwarding(before *forwarding, locals *[carrier.Families]local, w dataplane.Wanted) (*forwarding, error) {
	f := &forwarding{sources: newSources(locals, w), mtu: w.MTU, macs: macsOf(locals)}
	f.entries = make([]carrier.Entry, 0, len(w.Peers)) // one block of memory; its addresses are kept
	f.peers = make([]dataplane.Peer, 0, len(w.Peers))
	routes := make([]fib.Route[carrier.Entry], 0, len(w.Peers))
	vteps := make([]fib.Route[carrier.Entry], 0, len(w.Peers))
	var errs []error
	for _, p := range w.Peers {
		subnets, err := checkPeer(locals, p, w)
		if err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
		}
		if len(subnets) == 0 {
			continue
		}
		p.Subnets = subnets
		f.peers = append(f.peers, p)
		local := &locals[carrier.FamilyOf(p.Addr)]
		f.entries = f.entries[:len(f.entries)+1]
		e := &f.entries[len(f.entries)-1]
		e.Self, e.Base = endsOf(w.Subnets, subnets)
		e.Template, e.Carrier = encap.NewTemplate(p.VNI, p.MAC, local.mac), local.carrier
		vteps = append(vteps, fib.Route[carrier.Entry]{Prefix: netip.PrefixFrom(p.Addr, p.Addr.BitLen()), Value: e})
		for _, s := range subnets {
			routes = append(routes, fib.Route[carrier.Entry]{Prefix: s, Value: e})
		}
	}
	f.subnets.Replace(routes)
	f.vteps.Replace(vteps)
	f.setPeers(before, locals, vteps)
	for i := range f.peers {
		f.vteps.Lookup(f.peers[i].Addr).Peer.SetSockets(f.peers[i].Userspace)
	}
	errs = append(errs, f.addSources(locals, w, vteps)...)
	for i := range f.entries {
		f.outer = append(f.outer, f.entries[i].Peer.Addr)
	}
	return f, errors.Join(errs...)
}

// addSources lets each peer that has another outer source than its address send from there, too.
// No address is a source of two peers.
func (f *forwarding) addSources(locals *[carrier.Families]local, w dataplane.Wanted, vteps []fib.Route[carrier.Entry]) (errs []error) {
	owners := map[netip.Addr]*carrier.Peer{}
	for _, p := range w.Peers {
		if !p.Source.IsValid() || p.Source == p.Addr {
			continue
		}
		local, e := &locals[carrier.FamilyOf(p.Addr)], f.vteps.Lookup(p.Addr)
		if e == nil {
			continue // refused: its error says why
		}
		err := dataplane.CheckSource(p.Source, local.addr, local.public)
		switch other := f.vteps.Lookup(p.Source); {
		case err != nil:
		case p.Source.Is4() != p.Addr.Is4():
			err = fmt.Errorf("source %s is not of the family of address %s", p.Source, p.Addr)
		case other != nil:
			err = fmt.Errorf("source %s is the address of another peer", p.Source)
		case owners[p.Source] != nil && owners[p.Source] != e.Peer:
			err = fmt.Errorf("source %s is that of peer %s", p.Source, owners[p.Source].Addr)
		}
		if err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
			continue
		}
		owners[p.Source] = e.Peer
		f.outer = append(f.outer, p.Source)
		vteps = append(vteps, fib.Route[carrier.Entry]{Prefix: netip.PrefixFrom(p.Source, p.Source.BitLen()), Value: e})
	}
	if len(owners) > 0 {
		f.vteps.Replace(vteps)
	}
	return errs
}

// outerSources returns from where packets may come; nil: from anywhere, or from too many to list.
func (f *forwarding) outerSources() []netip.Addr {
	if f.off || len(f.anyFrom) > 0 || len(f.outer) > 2*carrier.MaxFilterSources { // of both families
		return nil
	}
	return append([]netip.Addr{}, f.outer...)
}

// setPeers gives all entries of one VTEP one peer: the one that was there before, or a new one.
func (f *forwarding) setPeers(before *forwarding, locals *[carrier.Families]local, vteps []fib.Route[carrier.Entry]) {
	for _, v := range vteps {
		addr := v.Prefix.Addr()
		first := f.vteps.Lookup(addr)
		p := first.Peer
		if p == nil {
			if old := before.vteps.Lookup(addr); old != nil && old.Peer.Addr == addr {
				p = old.Peer
			} else {
				p = carrier.NewPeer(netip.AddrPortFrom(addr, locals[carrier.FamilyOf(addr)].port))
			}
			p.Adopt(first, true)
		}
		if v.Value != first {
			p.Adopt(v.Value, false)
		}
	}
}

// endsOf returns the overlay addresses of this host and of a peer's, of one family.
func endsOf(own, its []netip.Prefix) (self, base netip.Addr) {
	for _, o := range own {
		for _, s := range its {
			if o.Addr().Is4() == s.Addr().Is4() {
				return o.Addr(), s.Addr()
			}
		}
	}
	return self, base
}

// checkPeer returns those subnets of a peer that can be routed to it; err says why the others cannot.
func checkPeer(locals *[carrier.Families]local, p dataplane.Peer, w dataplane.Wanted) (subnets []netip.Prefix, err error) {
	local := &locals[carrier.FamilyOf(p.Addr)]
	if p.Addr.IsValid() && !local.addr.IsValid() {
		return nil, fmt.Errorf("address %s is not of the family of an underlay of this node", p.Addr)
	}
	if err := dataplane.CheckPeer(p, local.vni, local.addr, local.public); err != nil {
		return nil, err
	}
	for i, s := range p.Subnets {
		if e := dataplane.CheckSubnet(s, w); e != nil {
			if err == nil {
				subnets = slices.Clone(p.Subnets[:i])
			}
			err = errors.Join(err, e)
		} else if err != nil {
			subnets = append(subnets, s)
		}
	}
	if err == nil {
		subnets = p.Subnets
	}
	return subnets, err
}
