package masq

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/xtables"
)

// FlannelNetworks returns the networks and subnets that flannel's rules name in the network namespace of the
// calling thread, in whatever tables they are, both families. Somebody runs a flanneld for
// these, or has: overlayd removes such rules of a network that it serves. No process is executed.
func FlannelNetworks() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, f := range []family{ipv4, ipv6} {
		in, err := flannelInNFT(f)
		if err != nil {
			return nil, fmt.Errorf("look for rules of flannel: %w", err)
		}
		legacy, err := readLegacy(f)
		if err != nil && !errors.Is(err, fs.ErrPermission) { // a user to whom they are not listed can do nothing about them
			return nil, fmt.Errorf("look for rules of flannel: %w", err)
		}
		all = slices.Concat(all, in, legacy.flannel)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all), nil
}

func flannelInNFT(f family) (found []netip.Prefix, err error) {
	err = nft.Read(f, func(r nft.Reader) error {
		found = nil
		chains, err := r.Chains()
		for _, c := range chains {
			if !isFlannels(c.Table) && !(isFlannels(c.Name) && baseOf(c.Name).Table == c.Table) {
				continue
			}
			rules, rerr := r.Rules(c.Table, c.Name)
			err = errors.Join(err, rerr)
			for _, rule := range rules {
				found = append(found, rule.Prefixes(f)...)
			}
		}
		return err
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // a kernel without nftables
	}
	return found, err
}

// flannelIn returns the prefixes that the rules of flannel's chains name in a legacy table. A chain
// reaches from the rule with its name to that of the next one.
func flannelIn(t xtables.Table) (found []netip.Prefix) {
	if !slices.ContainsFunc(t.Chains(), isFlannels) {
		return nil
	}
	inside := false
	for _, r := range t.Rules() {
		switch {
		case r.Chain != "":
			inside = isFlannels(r.Chain)
		case inside:
			for _, a := range []xtables.Address{r.Src, r.Dst} {
				if bits, _ := net.IPMask(a.Mask).Size(); bits > 0 { // 0 also if the mask has holes
					found = append(found, netip.PrefixFrom(a.Addr, bits))
				}
			}
		}
	}
	return found
}
