package masq

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/xtables"
)

// legacyTables is what iptables-legacy has in one family, both tables of interest. They are only compared and searched.
type legacyTables struct {
	text   string   // all rules without counters; "" without a table
	chains []string // those that are not built in
	drops  bool     // FORWARD drops by policy

	flannel []netip.Prefix // that rules of flannel name
}

// mentions reports whether there are chains of ours or of flannel.
func (l legacyTables) mentions() bool {
	return l.hasOurs() || slices.ContainsFunc(l.chains, isFlannels)
}

// hasOurs reports whether there are chains of ours, of any network.
func (l legacyTables) hasOurs() bool { return slices.ContainsFunc(l.chains, isOurChain) }

// readLegacy reads the tables that are in use in the calling thread's namespace.
func readLegacy(f family) (l legacyTables, err error) {
	names, err := xtables.Names(f)
	if err != nil {
		return l, err
	}
	for _, name := range []string{natTable, filterTable} {
		if !slices.Contains(names, name) {
			continue
		}
		t, err := xtables.Read(f, name)
		if err != nil {
			return legacyTables{}, err
		}
		l.text += name + "\n" + string(t.Entries)
		l.chains = append(l.chains, t.Chains()...)
		l.flannel = append(l.flannel, flannelIn(t)...)
		l.drops = l.drops || t.Drops(unix.NF_INET_FORWARD)
	}
	return l, nil
}
