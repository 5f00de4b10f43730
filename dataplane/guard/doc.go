// Package guard keeps the rules that let only packets of peers into an overlay, and that keep everything else on this host
// from sending in its name. The rules are in nftables, in one table overlayd-guard-<VNI> of family inet. They are written over netlink.
//
// # What the rules do
//
// All base chains but leave have priority -310, so that they come before those of others. The chains:
//
//	arrive   is for all that comes, if the kernel forwards, before addresses are translated (hook prerouting). Its rules admit what there
//	         is most of; what they leave goes to usual, datagrams or here.
//	input    is for what comes to this host, if this process forwards. What it leaves goes to datagrams or here.
//	datagrams
//	         checks VXLAN packets of this network to this host. The outer source must be a known VTEP, the inner source
//	         must be in a subnet of that VTEP or be its address, and the inner destination must be in an own subnet. The outer
//	         destination must be an address to which peers send.
//	         A packet that the rules cannot read is dropped. Other networks on the port have guards of their own.
//	other    checks datagrams to the port that come by another interface than the underlay's. It drops those that come from
//	         a device with pods behind it in the name of a VTEP that is elsewhere, and those that come out of the overlay
//	         itself: each would be a datagram of the overlay inside another one.
//	stray    counts datagrams with a VNI that no network here has. The kernel drops them. It takes from datagrams of any other VNI the
//	         secmark of a VTEP that they are not from, which whoever is root of a network namespace of this kernel can have given them.
//	usual    admits most of what comes out of the kernel's device, and leaves the rest to inner.
//	inner    checks what comes out of the kernel's device. datagrams sees only the first datagram of a superpacket (UDP_SEGMENT),
//	         because the kernel splits it later. The secmark says from which VTEP the whole superpacket came, or that it was judged
//	         already: a datagram shorter than 120 bytes hides no other one. It drops neighbour discovery, of which the kernel would learn.
//	nested   drops datagrams of the overlay that come inside of another one for this host.
//	admitted takes the secmark off UDP that inner admits: if its address is translated, it may become a datagram of the overlay.
//	here     is for all other packets. It sends those from the underlay to plain, and those from other interfaces to pods.
//	foreign  takes the secmark of a VTEP from them: if their address is translated, they may become datagrams of the overlay.
//	plain    drops packets from the underlay that have an overlay address as their source and no encapsulation.
//	pods     drops those from other interfaces, unless this host has a route to that source by that interface: it is where pods are.
//	astray   drops them: as bad_source if they come from where pods are, else as plain_source.
//	spoof    drops packets that pods send into the overlay with a source of another host, or of this host.
//	egress   drops packets from pods to the port of a VTEP.
//	disguised
//	         drops what has a VXLAN header of this network and another port, protocol or IP header: a pod can arrange that the
//	         checksum, which is written later, replaces that.
//	leave    drops packets from processes to the port of a VTEP, behind the translation of addresses (postrouting, 110). What the kernel has
//	         encapsulated comes by its device there, and what a process sends by none. Before Linux 5.7, and on a host with a VRF,
//	         the mark tells the one from the other. Packets of this process's sockets have the mark. It also drops what goes from the port to
//	         a VTEP: its answers would be that VTEP's datagrams. And it drops what came by the underlay, if masquerading has given it an address of this host.
//	senders  drops what processes of users send over IPv6 with an overlay address that this host has not.
//	shut_in, shut_out, shut_through
//	         are there before the first Sync, if the VNI or the port is new: they drop what is for the port, or leaves for it, in the name of this network.
//	sent_on  is for what IPVS sends on that came out of the overlay. It has the device that it came by, as what the kernel has encapsulated, and is known
//	         by the address that connection tracking saw first. Only where IPVS keeps that (net.ipv4.vs.conntrack) can the source become
//	         this host's, and only there do leave and to_port ask for it: Run looks for that at each Resync.
//
// If this process forwards, input lets good packets pass to its sockets. There dataplane/userspace checks each datagram again.
// input drops the other packets before they take room in the sockets' queues. It lets a few of them a second pass, and more of
// those from VTEPs, so that userspace can count and log them by their own reason. The rest is a flood.
//
// The kernel puts fragments together only after prerouting, and over IPv6 after input. Over IPv6 a rule that asks for the state of a connection
// makes it do so before (chain defrag). The datagrams of the overlay themselves are not tracked. Over IPv4 that would cost each packet as much as
// a hook. There the first fragment is judged, if nothing else on the host puts them together before: the kernel keeps its secmark, and takes
// no other fragment in its place. One that is too short to be judged is dropped (fragment).
//
// "Overlay address" means every address in the networks. If the networks hold addresses of the underlay, it means only
// the addresses in leases, so that such a network cuts nobody off.
//
// # What the rules cannot stop
//
//   - A host on the link that can send with the address of a VTEP, and knows one of its subnets, is taken for that VTEP.
//   - If the link carries superpackets whole, as between virtual machines of one host, a VTEP can hide datagrams behind one of
//     its own. The hidden datagrams can have inner sources of other hosts. Chain inner finds them by the secmark. It cannot with
//     SourceInner, on a kernel without secmarks (CONFIG_NETWORK_SECMARK, and CONFIG_NFT_HASH for an underlay of IPv6), or
//     while this process forwards too.
//   - Of a superpacket that IPVS sends on the first datagram is judged, and not the hidden ones, if it came out of a vxlan device of others, before Linux 5.7, or
//     on a host with a VRF.
//   - A pod with packet sockets can have the checksum make the destination that of a VTEP, if this host masquerades the source that it claims: before Linux 5.7, or on a host with a VRF.
//   - A hidden datagram may also be a fragment of another host's packet, if the sender guesses its identification. Anybody who
//     may send inside of a network can do that.
//   - A process that may open raw or packet sockets or set marks (CAP_NET_RAW, CAP_NET_ADMIN) can send in the name of its host.
//   - On an interface beside the underlay's that leads to a part of the own subnet, anybody can use the addresses of that part. If this process
//     forwards, and the interface is in a VRF, that goes for all interfaces of the VRF: the kernel tells input only that of the VRF.
//   - With Direct, a NIC, bond, VLAN or VRF brings in any source that is in a lease.
//
// # How the table is kept
//
// Sync admits what is wanted and keeps what was admitted; Prune removes what is no longer wanted. Each writes only the
// differences, in one transaction. Sets are hash sets of single keys, one set for each length of lease: intervals would cost each
// packet more. In a key of two addresses, a prefix of IPv4 that is longer than 16 bits is in two parts: 10.42.7.0/24 is
// 10.42.0.0 . 7.0.0.0. Rules name devices by name, so that they still apply when a device is made again. Run compares the table
// with the rules when nftables has changed, and repairs it. While the table cannot be written, Holds is
// false, and the kernel's device is down. The table stays when the process ends; [Cleanup] removes it.
//
// Open leaves a table of an earlier run as it is until the first Sync. If that table is for another port, or no table exists, Open adds chains that shut the new port until then.
// When the VNI changes, the table of the old VNI stays until then, too (Config.Synced).
//
// # Files
//
//	config.go   Config
//	guard.go    Sync, Prune; open.go: Open; switch.go: what others tell it while it runs
//	facts.go    what the rules follow from (pure)
//	rules.go    the rules (pure), by hooks: rules_input.go, rules_plain.go (what has no encapsulation), rules_inner.go (what comes out of the overlay), rules_forward.go,
//	            rules_output.go
//	shut.go     what holds before the first Sync
//	origin.go   secmarks: which VTEP a packet is from, behind the kernel's device
//	rule.go     what a rule is; cond.go: its conditions, cond_icmp.go: those about ICMP, field.go: those about addresses
//	write.go    writes the differences
//	members.go  the keys of the sets, counted
//	table.go    rules → netlink, and what the kernel has
//	run.go      notices what others change, repairs, logs what was dropped
//	vnis.go     the networks that others have at the port
//	books.go    the counters
package guard
