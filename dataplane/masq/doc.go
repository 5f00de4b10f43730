// Package masq keeps the traffic rules of one overlay network in the packet
// filter: what leaves the overlay is masqueraded, what stays inside is not, and
// the host forwards the overlay's packets even where its FORWARD policy is DROP.
//
// # What is said
//
// [build] makes the rules, which know of no packet filter. In the chain for
// masquerading, per address family:
//
//	UDP to the VXLAN port from a local address        RETURN      own tunnel packets are never translated
//	mark 0x4000/0x4000                                RETURN      kube-proxy masquerades these itself
//	own subnet → network                              RETURN
//	network → own subnet                              RETURN
//	other than network → own subnet                   RETURN      pods see who really calls
//	network → other than multicast                    MASQUERADE
//	other than network → network                      MASQUERADE  so that the answer comes back to this host
//
// and in the chain for forwarding, packets from and to the network are accepted.
// These are the rules of flannel's iptables mode but for the first. MASQUERADE is
// two rules: UDP gets a source port out of a range without the VXLAN port (the
// larger of what is below it from 1024 and what is above it), for a pod's
// connection with that source port would take the answers of a tunnel.
//
// # Where it is written
//
// With nftables, masquerading is a table overlayd-<VNI> of family ip and ip6 with one
// chain postrouting, written over netlink. With iptables it is the chain
// OVERLAYD-<VNI>-POSTRTG of table nat, jumped to at the end of POSTROUTING, written by
// iptables-restore. The accept rules are a chain OVERLAYD-<VNI>-FWD in table filter,
// jumped to at the end of FORWARD. An accept in a chain of our own would be
// worth nothing, as a packet must pass every chain of a hook: therefore in either
// mode the accept rules go to each FORWARD chain that the host has, that of
// iptables-nft (by netlink, where iptables does not write it anyway) and, where
// it drops by policy, that of iptables-legacy.
//
// Names carry the VNI: several networks on one host, of one daemon or of several,
// do not see each other's rules.
//
// # How it is kept
//
// [Rules.Run] listens to the kernel's notifications of nftables, in which
// iptables-nft shows too, and compares over netlink: no process is executed unless
// there is something to repair. iptables-legacy has no notifications: its tables
// are read from the kernel every resync period, again without a process.
// The binary is looked for anew after a failure, and where it is no longer the one
// that was found: it may write the other tables now.
//
// What the other mode left, and what flannel left for the same network, is removed
// once the own rules are in place; another network's flanneld on the host keeps its
// rules. Ours stay when the daemon ends; [Cleanup] removes them.
package masq
