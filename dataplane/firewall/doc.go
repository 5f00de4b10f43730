// Package firewall tells what of a host's packet filter drops a packet: it reads nftables and the tables of
// iptables-legacy, follows a packet that exists on paper only through their chains, and names the chain that drops it, and
// the command that would let it pass. It writes nothing, sends nothing, and executes no process.
//
//	packet.go   Packet: what is known of it, as the bytes that rules look at
//	outcome.go  what a chain may do with it
//	nft.go      chains of nftables, those of iptables-nft among them
//	eval.go     the expressions of one rule of nftables
//	xt.go       matches and targets of iptables, in either kind of table
//	legacy.go   chains of iptables-legacy
//	find.go     Find: all of it for several packets
//	watch.go    Watch: a part of an overlay that reports what drops its packets while it runs
//
// Not everything can be foreseen: a rule may ask for a limit, or for something of a packet that this one does not say. Such
// a condition is unknown, and both ways are followed. A packet is dropped for sure if every way ends so ([Drop.Sure]).
package firewall
