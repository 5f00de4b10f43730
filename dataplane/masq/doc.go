// Package masq keeps the traffic rules of one overlay network in the packet
// filter: what leaves the overlay is masqueraded, what stays inside is not, and
// the host forwards the overlay's packets even if its FORWARD policy is DROP.
//
// # Rules
//
// [build] makes the rules, independent of the packet filter. In the chain for
// masquerading, per address family:
//
//	UDP to the VXLAN port from a local address        RETURN      own tunnel packets are never translated
//	mark 0x4000/0x4000                                RETURN      kube-proxy masquerades these itself
//	own subnet → network                              RETURN
//	network → own subnet                              RETURN
//	other than network → own subnet                   RETURN      pods see the caller's address
//	network → other than multicast                    MASQUERADE
//	other than network → network                      MASQUERADE  so that the answer comes back to this host
//
// and in the chain for forwarding, packets from and to the network are accepted. If the network holds
// addresses of the underlay (Wanted.Underlay), an address does not tell what is the overlay's: the
// interface does, and only own pods and what the overlay device takes or gives are meant (rules.go,
// mixedRules).
// These are the rules of flannel's iptables mode, except the first. MASQUERADE is two rules:
// UDP gets a source port from a range without the VXLAN port (the larger of the ranges below,
// from 1024, and above it), because a pod's connection with that source port would receive the
// answers of a tunnel.
//
// # Tables and chains
//
// With nftables, masquerading is a table overlayd-<VNI> of family ip and ip6 with one
// chain postrouting, written over netlink. With iptables it is the chain
// OVERLAYD-<VNI>-POSTRTG of table nat, jumped to at the end of POSTROUTING, written by
// iptables-restore. The accept rules are a chain OVERLAYD-<VNI>-FWD in table filter,
// jumped to at the end of FORWARD. An accept in a base chain of our own would not help, as a
// packet must pass every base chain of a hook. Therefore, in either mode, the accept rules go to
// each FORWARD chain of the host: that of iptables-nft (over netlink, unless iptables writes
// it) and, if it drops by policy, that of iptables-legacy.
//
// Every rule, and the jump to each chain, has the comment "overlayd masq" or "overlayd forward", so that
// whoever reads the rules knows whose they are. A rule without it, such as an older overlayd wrote,
// is replaced like any other that is not as wanted.
//
// Names contain the VNI: several networks on one host, of one daemon or of several, do not
// affect each other's rules.
//
// # Repair
//
// [Rules.Run] listens to the kernel's notifications of nftables, which include the changes of
// iptables-nft, and compares over netlink: no process is executed unless something must be
// repaired. iptables-legacy has no notifications: its tables are read from the kernel every
// resync period, also without a process. The binary is searched again after a failure, and if it
// has been replaced: it may write the other tables now.
//
// Rules of the other mode, and flannel's rules for the same network, are removed once our rules
// are in place; the rules of a flanneld for another network stay. Our rules stay when the daemon
// ends; [Cleanup] removes them.
package masq
