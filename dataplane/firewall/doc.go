// Package firewall says which chain of a host's packet filter would drop a packet, and which command would let it pass.
// It reads nftables and the tables of iptables-legacy, and follows an imagined packet through their chains. It writes
// nothing, sends nothing, and executes no process.
//
//	packet.go   Packet: what is known of it, as the bytes that rules look at
//	outcome.go  what a chain may do with it
//	nft.go      chains of nftables, those of iptables-nft among them
//	eval.go     the expressions of one rule of nftables
//	meta.go     what these may ask beside the bytes: interfaces, types of packets and addresses
//	xt.go       matches and targets of iptables, in either kind of table
//	legacy.go   chains of iptables-legacy
//	find.go     Find: all of it for several packets
//	watch.go    Watch: a part of an overlay that reports what drops its packets while it runs
//
// Some conditions cannot be foreseen: a rule may have a rate limit, or ask for a property that the imagined packet does not
// have. Such a condition is unknown, and both branches are followed. A drop is sure if every branch ends in one ([Drop.Sure]).
package firewall
