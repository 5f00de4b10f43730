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
	addr     netip.Addr // outer destination
	sockaddr sockaddr   // the same with the port, for system calls
}

// table is what both directions forward by. It is immutable: a Sync makes a new
// one and stores it in one piece, so that no packet is judged by two states.
type table struct {
	routes fib.Table[entry] // overlay subnet → VTEP
	vteps  fib.Table[entry] // underlay address of a VTEP → itself
	mtu    int              // of the overlay device

	entries []entry // all that the two have
}

// local is what the routes need to know about this node.
type local struct {
	addr netip.Addr // underlay address that the sockets are bound to
	mac  encap.MAC
	vni  uint32
	port uint16 // of every VTEP
}

// newTable makes the table for w. A peer that it cannot take is left out and gets
// a *dataplane.PeerError.
func newTable(l local, w dataplane.Wanted) (*table, error) {
	entries := make([]entry, 0, len(w.Peers)) // one block of memory; its addresses are kept
	routes := make([]fib.Route[entry], 0, len(w.Peers))
	vteps := make([]fib.Route[entry], 0, len(w.Peers))
	var errs []error
	for _, p := range w.Peers {
		if err := checkPeer(l, p); err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
			continue
		}
		entries = append(entries, entry{
			template: encap.NewTemplate(l.vni, p.MAC, l.mac),
			addr:     p.Addr,
			sockaddr: newSockaddr(netip.AddrPortFrom(p.Addr, l.port)),
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
func checkPeer(l local, p dataplane.Peer) error {
	switch {
	case !p.Addr.IsValid() || p.Addr.Is4() != l.addr.Is4() || p.Addr.Is4In6():
		return fmt.Errorf("address %s is not of the underlay's family, that of %s", p.Addr, l.addr)
	case p.Addr.IsUnspecified() || p.Addr.IsMulticast():
		return fmt.Errorf("address %s is not that of one host", p.Addr)
	case !p.MAC.IsUnicast():
		return fmt.Errorf("MAC %s is not that of one station", p.MAC)
	}
	return nil
}
