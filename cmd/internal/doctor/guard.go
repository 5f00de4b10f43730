package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/guard"
)

// checkGuard looks for the table that checks where packets of the overlay come from.
func checkGuard(o *overlay) []Result {
	switch {
	case o.isPlain():
		return ok("this backend has no tunnel to guard")
	case !o.isServed() && len(o.devices) == 0:
		return unknown("the VNI is not known: " + o.todo())
	}
	if o.status != nil && o.status.SourceCheck == string(dataplane.SourceOff) {
		return warn("nothing checks where packets of the overlay come from: anybody on the underlay can send to pods",
			"overlayd guard on, if it was switched off; else start overlayd without --source-check=off")
	}
	tables, err := guard.Tables()
	switch {
	case err != nil:
		return unreadable("nftables", err)
	case !slices.Contains(tables, o.vni):
		return o.unguarded()
	}
	return o.markClash()
}

// unguarded is that the table is missing. Only a daemon makes it: flanneld has none, nor can overlayd guard make it.
func (o *overlay) unguarded() []Result {
	text := fmt.Sprintf("there is no table inet %s: processes, pods and hosts on the underlay can send in the name of pods", dataplane.GuardTable(o.vni))
	switch {
	case o.status == nil:
		return warn(text, o.todo()+", which makes it")
	case !o.isServed():
		return fail(text, o.todo())
	}
	return fail(text, "overlayd guard on; if that fails it says what the kernel lacks")
}

// marksOfOthers are the bits of the packet mark that other programs use, if a device shows that they are here: Calico's are
// those of IptablesMarkMask, Cilium's those of its identities and of pkg/datapath/linux/linux_defaults/mark.go.
var marksOfOthers = []struct {
	who      string
	prefixes []string // of device names
	mask     uint32
}{
	{"Calico", []string{"cali", "vxlan.calico"}, 0xffff0000},
	{"Cilium", []string{"cilium_"}, 0xffff0f00}, // not lxc: lxcbr0 is that of LXC
}

// markClash looks for others that use the guard's bit of the packet mark.
func (o *overlay) markClash() []Result {
	mark := uint32(guard.DefaultMark)
	if o.status != nil && o.status.EgressMark != 0 {
		mark = o.status.EgressMark
	}
	fix := "start overlayd with another --egress-mark, a bit that nobody else uses"
	links, err := netlink.LinkList()
	if err != nil {
		return unreadable("the devices", err)
	}
	for _, other := range marksOfOthers {
		for _, l := range links {
			has := func(prefix string) bool { return strings.HasPrefix(l.Attrs().Name, prefix) }
			if mark&other.mask != 0 && slices.ContainsFunc(other.prefixes, has) {
				return warn(fmt.Sprintf("%s uses the bits %#x of the packet mark, if it is as by default, and the guard %#x: %s is here", other.who, other.mask, mark, l.Attrs().Name), fix)
			}
		}
	}
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return unreadable("the routing rules", err)
	}
	for _, r := range rules {
		mask := uint32(0xffffffff)
		if r.Mask != nil {
			mask = *r.Mask
		}
		if r.Mark != 0 && mask&mark != 0 {
			return warn(fmt.Sprintf("a routing rule asks for the mark %#x/%#x, and the guard uses %#x", r.Mark, mask, mark), fix)
		}
	}
	return ok("table inet " + dataplane.GuardTable(o.vni) + " is there, and nobody else uses its mark")
}
