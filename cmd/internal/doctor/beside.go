package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/masq"
)

// checkFlanneld looks for a flanneld that serves the same network as the daemon.
func checkFlanneld(o *overlay) []Result {
	if o.status == nil {
		return unknown(o.untold())
	}
	if found := o.warned(dataplane.WarnFlanneld); found != nil {
		return found
	}
	found, err := leftovers.FindBeside(o.scene.fileOf(o.name), o.subnets(), false)
	switch {
	case len(found) > 0:
		return fail(found[0].Text, found[0].Fix)
	case err != nil:
		return unreadable("the processes", err)
	}
	// A flanneld in a container of its own is not seen from another one, but its rules are.
	rules, err := masq.FlannelNetworks()
	isOurs := func(n netip.Prefix) bool { return slices.Contains(o.file.Networks(), n) }
	if i := slices.IndexFunc(rules, isOurs); err == nil && i >= 0 {
		return warn(fmt.Sprintf("flannel's traffic rules for %s are there, which overlayd removes when it starts: a flanneld was started after it", rules[i]),
			"look for it on the host: pgrep flanneld; in Kubernetes: kubectl get pods -A -o wide. End it, and restart overlayd")
	}
	return ok("no flanneld is seen that serves the same network")
}
