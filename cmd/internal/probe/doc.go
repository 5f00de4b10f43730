// Package probe asks the peers of an overlay by ICMP echo whether they can be reached, and tells why not. It informs only:
// it changes nothing, and nothing waits for it.
//
// # What is asked
//
//	echo   a small packet to the overlay address of a peer, the base of its subnet. Every overlayd has it, in kernel and in
//	       userspace mode, and every flanneld
//	full   the same with the MTU of the overlay and Don't Fragment
//	hop    a packet with TTL 1 to another address of the subnet: a host that forwards answers "time exceeded". A host that
//	       does not is silent, and so is one that limits such answers: silence alone means nothing
//	under  a small packet to the underlay address of the peer
//
// peer.go decides what follows from the answers and their absence, verdict.go what that means, texts.go what the log and the status
// say, and print.go what overlayd ping prints. Only a peer that answered before, and no longer does, is down. Nothing is known of a
// peer that never answered, unless its underlay address answers or a host on the way says that it is not there.
//
// # How often
//
// Each peer gets an echo once per interval. A lost echo is sent again after a second. After three losses the state changes, and
// the first answer changes it back. With few peers, full and hop go with each echo; else once a minute or less. The total
// rate is bounded, so with many peers a round takes longer than the interval (prober.go).
//
// # Who is believed
//
// An answer counts if it comes from the address that was asked, and repeats the random cookie of a request that is less than some
// seconds old (flight.go). An error has to quote the request. What an attacker who sees the packets can do does not matter here.
package probe
