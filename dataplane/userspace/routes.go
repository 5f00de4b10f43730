package userspace

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/fib"
	"github.com/overlayd/overlayd/encap"
)

// entry is all that a packet to one VTEP needs. It is immutable but for path.
type entry struct {
	path     path
	template encap.Template
	family   uint8      // of addr: the underlay by which it goes
	addr     netip.Addr // outer destination
	sockaddr sockaddr   // the same with the port, for system calls
}

// table is what both directions forward by. It is immutable: a Sync makes a new
// one and stores it in one piece, so that no packet is judged by two states.
type table struct {
	routes fib.Table[entry] // overlay subnet, of either family → VTEP, of either
	vteps  fib.Table[entry] // underlay address of a VTEP → itself
	mtu    int              // of the overlay device

	entries []entry // all that the two have
}

// local is this node's VTEP of one family.
type local struct {
	addr netip.Addr // that the sockets are bound to; invalid where there is no such underlay
	mac  encap.MAC
	vni  uint32
	port uint16 // of every VTEP
}

// newLocals makes the VTEPs, by family.
func newLocals(cfg Config) (ls [families]local) {
	for _, u := range cfg.Underlays {
		ls[family(u.Local)] = local{addr: u.Local, mac: dataplane.MAC(u.Public, cfg.VNI), vni: cfg.VNI, port: cfg.Port}
	}
	return ls
}

// newTable makes the table for w. A peer that it cannot take is left out and gets
// a *dataplane.PeerError.
func newTable(locals *[families]local, w dataplane.Wanted) (*table, error) {
	entries := make([]entry, 0, len(w.Peers)) // one block of memory; its addresses are kept
	routes := make([]fib.Route[entry], 0, len(w.Peers))
	vteps := make([]fib.Route[entry], 0, len(w.Peers))
	var errs []error
	for _, p := range w.Peers {
		if err := checkPeer(locals, p); err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
			continue
		}
		f := family(p.Addr)
		entries = append(entries, entry{
			template: encap.NewTemplate(locals[f].vni, p.MAC, locals[f].mac),
			family:   uint8(f),
			addr:     p.Addr,
			sockaddr: newSockaddr(netip.AddrPortFrom(p.Addr, locals[f].port)),
		})
		e := &entries[len(entries)-1]
		vteps = append(vteps, fib.Route[entry]{Prefix: netip.PrefixFrom(p.Addr, p.Addr.BitLen()), Value: e})
		for _, s := range p.Subnets {
			routes = append(routes, fib.Route[entry]{Prefix: s, Value: e})
		}
	}
	t := &table{mtu: w.MTU, entries: entries}
	t.routes.Replace(routes)
	t.vteps.Replace(vteps)
	return t, errors.Join(errs...)
}

// checkPeer says why no packet can be sent to a peer.
func checkPeer(locals *[families]local, p dataplane.Peer) error {
	switch {
	case !p.Addr.IsValid() || p.Addr.Is4In6() || !locals[family(p.Addr)].addr.IsValid():
		return fmt.Errorf("address %s is not of the family of an underlay of this node", p.Addr)
	case p.Addr.IsUnspecified() || p.Addr.IsMulticast() || p.Addr.Zone() != "" || p.Addr.Is6() && p.Addr.IsLinkLocalUnicast():
		return fmt.Errorf("address %s is not that of one host", p.Addr)
	case !p.MAC.IsUnicast():
		return fmt.Errorf("MAC %s is not that of one station", p.MAC)
	}
	return nil
}
