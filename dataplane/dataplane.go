// Package dataplane defines what every dataplane of overlayd is: something that is
// told the complete wanted state of the overlay and makes it true. The two that
// exist are dataplane/kernel, which programs the kernel's vxlan device, and
// dataplane/userspace, which forwards packets itself.
//
// Both are a [Part]: so are the traffic rules and the direct routes, which are
// kept in step with them.
//
// The package holds only what these share and what control speaks: their types, the checks of what
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

// Underlay is this host's end of the underlay in one address family: what a
// dataplane makes one VTEP of.
type Underlay struct {
	Link   int        // interface index
	Local  netip.Addr // address of that interface: source of outer packets
	Public netip.Addr // published address, of the same family; other than Local behind NAT
	MAC    encap.MAC  // of the VTEP; zero: that of the device that is there, else the derived one
}

// Peer is one remote VTEP of one family together with the overlay subnets that
// are reached through it, which may be of either family. It is all that a
// dataplane ever learns of others. A Peer is a value: whoever holds one must not
// change its Subnets.
type Peer struct {
	VTEP
	// Source is the outer source of the VTEP's packets, of its family, if that is not Addr: it is
	// behind a 1:1 NAT that its own packets to this host do not pass.
	Source  netip.Addr
	Subnets []netip.Prefix // masked; at least one
	// Direct says that a direct route leads to the subnets, without encapsulation:
	// the dataplane takes packets from the VTEP but has no route of its own to it.
	Direct bool
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
	// Traffic returns what was counted for each VTEP that is a peer now, by its address, since it became one. It may be
	// called at any time.
	Traffic() map[netip.Addr]Traffic
}

// Resumer is a Dataplane that goes on with what another process has left working, as after a crash.
type Resumer interface {
	// Resume forwards at once, as w wants, also what waits in what was inherited: device, addresses, routes and the objects of
	// the other parts are in the kernel from before. It is called before the first Sync of any part, which looks at
	// all of these; and perhaps earlier with what was known when the process before ended, if the store takes long to answer. What
	// keeps it from forwarding is an error of that Sync.
	Resume(w Wanted)
}
