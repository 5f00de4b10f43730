package masq

import (
	"github.com/google/nftables/expr"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// expressions writes a rule for nftables. Counters are for rules in the tables of
// iptables-nft, which has one in each.
func expressions(f family, r rule, counter bool) ([][]byte, error) {
	var list []expr.Any
	if r.tunnel != 0 {
		list = append(list, nft.UDP()...)
		list = append(list, nft.DestinationPort(r.tunnel)...)
		list = append(list, nft.FromLocal()...)
	}
	if r.marked {
		list = append(list, nft.Marked(mark)...)
	}
	if r.udp {
		list = append(list, nft.UDP()...)
	}
	if r.src.prefix.IsValid() {
		list = append(list, nft.Address(f, f.Source(), r.src.prefix, r.src.not)...)
	}
	if r.dst.prefix.IsValid() {
		list = append(list, nft.Address(f, f.Destination(), r.dst.prefix, r.dst.not)...)
	}
	if r.in != "" {
		list = append(list, nft.ComesBy(r.in)...)
	}
	if r.out != "" {
		list = append(list, nft.LeavesBy(r.out)...)
	}
	if counter {
		list = append(list, &expr.Counter{})
	}
	switch r.do {
	case accept:
		list = append(list, &expr.Verdict{Kind: expr.VerdictAccept})
	case leave:
		list = append(list, &expr.Verdict{Kind: expr.VerdictReturn})
	}
	encoded, err := nft.Encode(f, list...)
	if err != nil || r.do != masquerade {
		return encoded, err
	}
	last, err := nft.Masquerade(f, r.ports.low, r.ports.high, r.random)
	return append(encoded, last...), err
}
