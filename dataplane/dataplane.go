// Package dataplane defines what a dataplane of overlayd is. A dataplane gets the complete
// wanted state of the overlay, and makes it true. There are two: dataplane/kernel
// programs the kernel's vxlan device, and dataplane/userspace forwards packets itself.
//
// Both are a [Part]. So are the guard, the traffic rules and the direct routes, which
// change in step with them.
//
// The package holds only what these share, and what control needs to talk to them: their types, the checks of what
// others publish ([CheckPeer]), the names and MACs of the devices, and the [Reporter] of a part's status.
package dataplane

import (
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// VTEP is a node's tunnel end in one address family.
type VTEP struct {
	Addr netip.Addr // published underlay address; its family is the VTEP's
	MAC  encap.MAC  // inner Ethernet address of the tunnel end
	VNI  uint32     // 24-bit VXLAN network identifier
}

// Underlay is this host's end of the underlay in one address family. A dataplane
// makes one VTEP from it.
type Underlay struct {
	Link   int        // interface index
	Local  netip.Addr // address of that interface: source of outer packets
	Public netip.Addr // published address, of the same family; other than Local behind NAT
	MAC    encap.MAC  // of the VTEP; zero: that of the device that is there, else the derived one
}

// Peer is one remote VTEP of one family together with the overlay subnets that
// are reached through it, which may be of either family. A dataplane learns nothing
// else about other nodes. A Peer is a value: nobody may change its Subnets.
type Peer struct {
	VTEP
	// Source is the outer source of the VTEP's packets, of its family, if that is not Addr: it is
	// behind a 1:1 NAT that its own packets to this host do not pass.
	Source  netip.Addr
	Subnets []netip.Prefix // masked; at least one
	// Direct says that a direct route leads to the subnets, without encapsulation:
	// the dataplane takes packets from the VTEP but has no route of its own to it.
	Direct bool
	// Userspace says that the VTEP's host has published that it forwards by itself.
	Userspace bool
}

// Wanted is the complete state that a dataplane is to make true.
// It is a value: nobody changes it or its slices after passing it on.
type Wanted struct {
	VTEPs    []VTEP         // own, as published: the device gets their MACs; a family without one keeps its MAC
	Subnets  []netip.Prefix // own overlay subnets, one per family; the device gets each one's base address
	Networks []netip.Prefix // the overlay networks that hold all subnets, one per family
	Underlay []netip.Prefix // underlay addresses and on-link prefixes in Networks; only Subnets and Peers there are the overlay's
	Addrs    []netip.Prefix // further addresses of the device, such as a workload's
	MTU      int            // of the overlay devices, in bytes: underlay MTU less the largest encapsulation overhead of the VTEPs
	Peers    []Peer         // every other VTEP, sorted, without the own one
}

// Dataplane is the Part that carries packets between the overlay device and the
// underlay. Its constructor, Open, adopts or creates the device, so that the VTEPs are
// known before there is a lease.
type Dataplane interface {
	Part
	// VTEPs returns, per family, what to publish about this node: after a Sync with
	// Wanted.VTEPs, with the MACs of these.
	VTEPs() []VTEP
	// Stats returns the counters since Open. It may be called at any time.
	Stats() Stats
}

// PeerCounter is a Dataplane that counts for each VTEP. The kernel's vxlan device does not.
type PeerCounter interface {
	// Traffic returns the counts of each VTEP that is a peer now, by its address, since it became a peer. It may be
	// called at any time.
	Traffic() map[netip.Addr]Traffic
}

// Resumer is a Part that goes on with what another process has left, as after a crash.
type Resumer interface {
	// Resume of a Dataplane forwards at once, as w wants, and also forwards the packets that wait in inherited queues and sockets. It relies on the
	// addresses and routes of a device that is not new and the objects of other parts that are in the kernel from before. It is called before
	// the first Sync of any part, which checks all of these. If the store takes long to answer, it is called earlier, with what was
	// known when the earlier process ended. If it cannot forward, that Sync returns the error.
	Resume(w Wanted)
}
