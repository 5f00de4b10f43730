// Package parts has the list of the parts that carry one network on this host, and opens them. It is told everything by
// a plain [Config]. Package overlay syncs and runs the parts; package node decides how long they live.
//
//	list.go        the list, and how the small parts are opened
//	config.go      what the list is made from
//	guard.go       the guard: who may send into the overlay
//	forwarding.go  which dataplane carries the packets, and how the kernel's is opened
//	userspace.go   how the userspace dataplane is opened, alone or beside other networks
//	kernel.go      how the kernel takes over from a userspace dataplane that still forwards
//	porttaken.go   who has the UDP port, if it is not free
package parts

import (
	"cmp"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/firewall"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/masq"
	"github.com/overlayd/overlayd/dataplane/sysctl"
	"github.com/overlayd/overlayd/encap"
)

// Rules is the name of the part that keeps the traffic rules.
const Rules = "rules"

// List is the parts of one overlay. Its methods are called from one goroutine until the overlay is open.
type List struct {
	Config

	guard   *guard.Guard        // nil: the kernel cannot have one
	noGuard error               // why not
	forward *overlay.Forwarding // nil until it is open
}

// Specs lists the parts of an overlay, in their order, for devices of this MTU. The guard comes first: it admits what a
// later part lets in. The rules come next, so that a packet that is routed meets them, and the direct routes before the dataplane gives up its own.
// The unreachable routes come last: one to a network that got smaller would hide the dataplane's route to the larger one.
func (l *List) Specs(mtu int) []overlay.Spec {
	noRules := ""
	if !l.Rules.Masquerade {
		noRules = "no forward rules: if the FORWARD policy of this host is DROP, pods cannot be reached"
	}
	specs := []overlay.Spec{
		{Name: guardPart, Open: l.openGuard, Lack: l.withoutGuard()},
		{Name: Rules, Open: l.openRules, Lack: noRules, Apart: true},
		{Name: "direct routes", Open: l.openRoutes},
	}
	if l.Network.Backend.Type != control.BackendAlloc {
		specs = append(specs, overlay.Spec{Name: "settings", Open: l.openSettings},
			overlay.Spec{Name: "firewall", Open: l.openFirewall, Lack: "chains of a firewall that drop the overlay's packets are not reported", Apart: true})
	}
	if !l.Network.Backend.IsVXLAN() {
		return specs[1:] // nothing is forwarded but by routes (host-gw), or not at all (alloc)
	}
	return append(specs, overlay.Spec{Name: "forwarding", Open: func() (dataplane.Part, error) { return l.openForwarding(mtu) }},
		overlay.Spec{Name: "unreachable", Open: l.openNowhere, Lack: "overlay addresses without a route leave by the default route, in clear", Apart: true})
}

// openRules opens masquerading and the rules of FORWARD.
func (l *List) openRules() (dataplane.Part, error) {
	c := l.Rules
	r, err := masq.Open(masq.Config{
		Log:         l.Log,
		VNI:         l.Network.Backend.VNI,
		Port:        cmp.Or(l.Network.Backend.Port, encap.DefaultPort), // another network of this host may use VXLAN
		Direct:      l.Network.Backend.DirectRouting || !l.Network.Backend.IsVXLAN(),
		NFTables:    l.Network.EnableNFTables,
		Masquerade:  c.Masquerade,
		Forward:     c.Forward,
		RandomFully: !c.KeepPorts,
		Resync:      c.Resync,
		Deaf:        l.Deaf,
	})
	if err != nil {
		return nil, err // not r: a nil *masq.Rules makes an interface that is not nil
	}
	return r, nil
}

// openSettings opens the kernel's settings that forwarding relies on.
func (l *List) openSettings() (dataplane.Part, error) {
	c := sysctl.Config{Log: l.Log, VNI: l.Network.Backend.VNI, IPv4: l.Network.EnableIPv4, IPv6: l.Network.EnableIPv6,
		Underlay: l.Underlay.Name, Deaf: l.Deaf}
	k, err := sysctl.Open(c)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// openFirewall opens what reports the chains of others that drop the overlay's packets.
func (l *List) openFirewall() (dataplane.Part, error) {
	c := firewall.Config{Log: l.Log, VNI: l.Network.Backend.VNI, Device: l.Underlay.Name, Forward: true, Deaf: l.Deaf}
	if l.Network.Backend.IsVXLAN() {
		c.Port = l.Network.Backend.Port
		for _, u := range l.Ends {
			c.Locals = append(c.Locals, u.Local)
		}
	}
	w, err := firewall.Open(c)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// openRoutes opens the direct and blackhole routes. The part is there even if the config wants none of
// them: then it removes those of an earlier run.
func (l *List) openRoutes() (dataplane.Part, error) {
	only := l.Network.Backend.Type == control.BackendHostGW
	if !l.Network.Backend.IsVXLAN() {
		l.leaveTunnel()
	}
	r, err := hostroute.Open(hostroute.Config{
		Log:       l.Log,
		Direct:    l.Network.Backend.DirectRouting || only,
		Only:      only,
		Blackhole: l.Rules.Blackhole,
		Settle:    l.Settle,
		Resync:    l.Rules.Resync,
		Deaf:      l.Deaf,
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openNowhere opens the routes that make what no other route leads to unreachable.
func (l *List) openNowhere() (dataplane.Part, error) {
	kernel := func() bool { return l.forward != nil && l.forward.Mode == fit.Kernel }
	r, err := hostroute.OpenNowhere(hostroute.Config{Log: l.Log, Deaf: l.Deaf}, kernel)
	if err != nil {
		return nil, err
	}
	return r, nil
}
