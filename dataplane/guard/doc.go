// Package guard keeps the rules that let nobody into an overlay but its peers, and nobody on this host
// send in its name. They are in nftables, written over netlink, in one table overlayd-guard-<VNI> of family inet.
//
// # What the rules do
//
// All base chains come before those of others (priority -310). A packet meets:
//
//	input    VXLAN of this network for this host: the outer source is a known VTEP, the inner source in a subnet of
//	         that VTEP or its address, the inner destination in an own subnet. What a rule cannot read is dropped.
//	         Other networks on the port have guards of their own.
//	stray    what has the VNI of no device here, which the kernel drops: it is counted
//	other    of these, what comes from a device such as pods are behind, in the name of a VTEP that is elsewhere; and
//	         what comes by the overlay itself: it would be another datagram of the overlay inside one
//	inner    what comes out of the kernel's device: input sees only the first datagram of a superpacket (UDP_SEGMENT),
//	         which the kernel splits behind it. The secmark says which VTEP all of it is from
//	plain    what comes by the underlay without encapsulation has no overlay address as its source
//	spoof    what pods send into the overlay has no source of another host, nor of this one
//	egress   pods do not send to the port of a VTEP
//	output   processes do not: what the kernel encapsulates for them has the mark, and so have this process's sockets
//
// If this process forwards, input lets the same pass to its sockets, where each datagram is judged again (dataplane/userspace), and
// drops others before they take room there. It lets a few a second of them pass too, and more of VTEPs: these are counted and
// logged for what they are, and the rest is a flood.
//
// Over IPv6 the kernel puts fragments together behind input. A rule that asks for the state of a connection makes it
// do so before (chain defrag); the datagrams of the overlay themselves are not tracked.
//
// "Overlay address" means every address in the networks, or, if these hold addresses of the underlay, those in
// leases only: a network over the underlay cuts nobody off.
//
// # What is left
//
// Whoever can send with the address of a VTEP on the link, and knows one of its subnets, is taken for that VTEP. If the link carries
// superpackets whole, as between virtual machines of one host, a VTEP can hide datagrams behind one of its own that have other overlay
// addresses as their sources, where inner does not know whom they come from: with SourceInner, on a kernel without secmarks
// (CONFIG_NETWORK_SECMARK, and CONFIG_NFT_HASH for an underlay of IPv6), and while this process forwards too. What it hides may also be a
// fragment of another's packet, if it guesses the identification of that, as anybody can who may send inside of a network. Whoever may
// open raw or packet sockets or set marks on a host (CAP_NET_RAW, CAP_NET_ADMIN) can send in its name. Rules about plain packets
// are for the underlay interface only.
//
// # How it is kept
//
// Sync admits what is wanted beside what was, Prune forgets: a change is written by what differs, at once or not at all. Sets are hash sets
// of single keys, one for each length of lease: no intervals, which cost each packet more. Devices are named, so
// that one may be made again. Run compares when nftables has changed, and repairs. While the table cannot be written, Holds is
// false, and the kernel's device is down. The table stays when the process ends; [Cleanup] removes it.
//
// # Files
//
//	config.go   Config
//	guard.go    Sync, Prune; open.go: Open; switch.go: what others tell it while it runs
//	facts.go    what the rules follow from (pure)
//	rules.go    the rules (pure), by hooks: rules_input.go, rules_forward.go, rules_output.go
//	origin.go   which VTEP a packet is from, behind the kernel's device
//	rule.go     what a rule is; cond.go: its conditions
//	write.go    makes them true, by what differs
//	members.go  the keys of the sets, counted
//	table.go    rules → netlink, and what the kernel has
//	run.go      notices what others change, repairs, logs what was dropped
//	vnis.go     the networks that others have at the port
//	books.go    the counters
package guard
