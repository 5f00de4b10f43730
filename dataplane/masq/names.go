package masq

import (
	"strconv"
	"strings"
)

// Names of base chains and tables that iptables makes, and of what flannel leaves.
const (
	natTable, filterTable     = "nat", "filter"
	postrouting, forwardChain = "POSTROUTING", "FORWARD"
	flannelMasq, flannelFwd   = "FLANNEL-POSTRTG", "FLANNEL-FWD"
	ownChain                  = "postrouting" // of our nftables table

	tablePrefix = "overlayd-"
	chainPrefix = "OVERLAYD-" // in the style of others' chains, KUBE- and DOCKER-
	masqSuffix  = "-POSTRTG"
	fwdSuffix   = "-FWD"
)

func flannelTable(f family) string {
	if f == ipv6 {
		return "flannel-ipv6"
	}
	return "flannel-ipv4"
}

// names are those of one network, at most 25 characters: iptables allows 28.
type names struct{ table, masq, fwd string }

func namesOf(vni uint32) names {
	n := strconv.FormatUint(uint64(vni), 10)
	return names{tablePrefix + n, chainPrefix + n + masqSuffix, chainPrefix + n + fwdSuffix}
}

// isOurTable reports whether a table was made for any network.
func isOurTable(name string) bool {
	vni, ok := strings.CutPrefix(name, tablePrefix)
	return ok && isVNI(vni)
}

// isOurChain reports whether a chain of an iptables table was made for any network.
func isOurChain(name string) bool {
	rest, ok := strings.CutPrefix(name, chainPrefix)
	if !ok {
		return false
	}
	vni, _, ok := strings.Cut(rest, "-")
	return ok && isVNI(vni) && (strings.HasSuffix(name, vni+masqSuffix) || strings.HasSuffix(name, vni+fwdSuffix))
}

func isVNI(s string) bool {
	n, err := strconv.ParseUint(s, 10, 24)
	return err == nil && strconv.FormatUint(n, 10) == s
}

// isFlannels reports whether flannel made a chain or table.
func isFlannels(name string) bool {
	switch name {
	case flannelMasq, flannelFwd, flannelTable(ipv4), flannelTable(ipv6):
		return true
	}
	return false
}
