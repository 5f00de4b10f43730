// Package nft reads and writes nftables over netlink, for the parts of an overlay that keep
// rules there. It knows tables, chains and rules, but not their purpose.
//
//	conn.go   one exchange with the kernel
//	step.go   Step, Commit: changes that happen all at once or not at all
//	hold.go   Hold: tables that go with the process
//	read.go   Read, Reader: the present tables, chains and rules
//	fwd.go    maps, and rules that give packets to other interfaces
//	set.go    what a set or a map has for a key
//	rule.go   Rule, Chain, as the kernel reports them (parse.go)
//	expr.go   expressions of rules, encoded with google/nftables/expr
//
// The Conn of google/nftables is not used: it hides the errno of objects that do not exist,
// and drops the flags of a masquerade expression that has ports.
package nft

import "golang.org/x/sys/unix"

// Family is an address family, numbered as netfilter does.
type Family uint8

// The families of tables.
const (
	Inet   Family = unix.NFPROTO_INET // both
	IPv4   Family = unix.NFPROTO_IPV4
	IPv6   Family = unix.NFPROTO_IPV6
	Netdev Family = unix.NFPROTO_NETDEV // what passes one interface
)

// String returns the name that the nft command has for the family.
func (f Family) String() string {
	switch f {
	case IPv6:
		return "ip6"
	case Inet:
		return "inet"
	case Netdev:
		return "netdev"
	}
	return "ip"
}
