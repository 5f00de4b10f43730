package node

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/sharedport"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/firewall"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/masq"
	"github.com/overlayd/overlayd/dataplane/sysctl"
	"github.com/overlayd/overlayd/dataplane/userspace"
	"github.com/overlayd/overlayd/encap"
)

// RulesPart is the name of the part that keeps the traffic rules.
const RulesPart = "rules"

// parts lists the parts of an overlay, in their order. The guard comes first: it admits what a later part lets in. The rules
// come next, so that a packet that is routed meets them, and the direct routes before the dataplane gives up its own.
func (s *Session) parts(mtu int) []overlay.Spec {
	noRules := ""
	if !s.network.cfg.Rules.Masquerade {
		noRules = "no forward rules: if the FORWARD policy of this host is DROP, pods cannot be reached"
	}
	specs := []overlay.Spec{
		{Name: guardPart, Open: s.openGuard, Lack: s.withoutGuard()},
		{Name: RulesPart, Open: s.openRules, Lack: noRules},
		{Name: "direct routes", Open: s.openRoutes},
	}
	if s.config.Backend.Type != control.BackendAlloc {
		specs = append(specs, overlay.Spec{Name: "settings", Open: s.openSettings},
			overlay.Spec{Name: "firewall", Open: s.openFirewall, Lack: "chains of a firewall that drop the overlay's packets are not reported"})
	}
	if !s.config.Backend.IsVXLAN() {
		return specs[1:] // nothing is forwarded but by routes (host-gw), or not at all (alloc)
	}
	return append(specs, overlay.Spec{Name: "unreachable", Open: s.openNowhere, Lack: "overlay addresses without a route leave by the default route, in clear"},
		overlay.Spec{Name: "forwarding", Open: func() (dataplane.Part, error) { return s.openForwarding(mtu) }})
}

// openRules opens masquerading and the rules of FORWARD.
func (s *Session) openRules() (dataplane.Part, error) {
	c := s.network.cfg.Rules
	r, err := masq.Open(masq.Config{
		Log:         s.network.log,
		VNI:         s.config.Backend.VNI,
		Port:        cmp.Or(s.config.Backend.Port, encap.DefaultPort), // another network of this host may use VXLAN
		Direct:      s.config.Backend.DirectRouting || !s.config.Backend.IsVXLAN(),
		NFTables:    s.config.EnableNFTables,
		Masquerade:  c.Masquerade,
		Forward:     c.Forward,
		RandomFully: !c.KeepPorts,
		Resync:      c.Resync,
		Deaf:        s.network.cfg.Deaf,
	})
	if err != nil {
		return nil, err // not r: a nil *masq.Rules makes an interface that is not nil
	}
	return r, nil
}

// openSettings opens the kernel's settings that forwarding relies on.
func (s *Session) openSettings() (dataplane.Part, error) {
	c := sysctl.Config{Log: s.network.log, VNI: s.config.Backend.VNI, IPv4: s.config.EnableIPv4, IPv6: s.config.EnableIPv6,
		Underlay: s.iface.Name, Deaf: s.network.cfg.Deaf}
	k, err := sysctl.Open(c)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// openFirewall opens what reports the chains of others that drop the overlay's packets.
func (s *Session) openFirewall() (dataplane.Part, error) {
	c := firewall.Config{Log: s.network.log, VNI: s.config.Backend.VNI, Device: s.iface.Name, Forward: true, Deaf: s.network.cfg.Deaf}
	if s.config.Backend.IsVXLAN() {
		c.Port = s.config.Backend.Port
		for _, u := range s.network.underlays(s.config, s.iface) {
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
func (s *Session) openRoutes() (dataplane.Part, error) {
	only := s.config.Backend.Type == control.BackendHostGW
	if !s.config.Backend.IsVXLAN() {
		s.leaveTunnel()
	}
	r, err := hostroute.Open(hostroute.Config{
		Log:       s.network.log,
		Direct:    s.config.Backend.DirectRouting || only,
		Only:      only,
		Blackhole: s.network.cfg.Rules.Blackhole,
		Settle:    s.network.settle,
		Resync:    s.network.cfg.Rules.Resync,
		Deaf:      s.network.cfg.Deaf,
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openNowhere opens the routes that make what no other route leads to unreachable.
func (s *Session) openNowhere() (dataplane.Part, error) {
	kernel := func() bool { return s.overlay.Mode() == fit.Kernel }
	r, err := hostroute.OpenNowhere(hostroute.Config{Log: s.network.log, Deaf: s.network.cfg.Deaf}, kernel)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// errUnfit says that the dataplane which works here cannot carry the network.
var errUnfit = errors.New("network config")

// openForwarding opens the dataplane that is asked for, unless that of the last session goes on. In auto mode the kernel's is opened for
// real, device and all; whatever refuses that is the reason to take the userspace one.
func (s *Session) openForwarding(mtu int) (dataplane.Part, error) {
	if f := s.takeKept(); f != nil {
		s.forwardsItself()
		return f, nil
	}
	mode := s.network.cfg.Mode
	if mode == fit.Userspace {
		return s.openUserspace(mtu)
	}
	c := s.config
	k, err := s.openGuardedKernel(mtu)
	switch {
	case err == nil:
		return overlay.NewForwarding(k, fit.Kernel, nil, func() {}), nil
	case mode == fit.Kernel || isPortTaken(err): // the other one needs the port, too
		return nil, err
	case c.Backend.GBP || c.Backend.Learning:
		return nil, fmt.Errorf("%w: GBP and Learning need the kernel dataplane, which does not work here: %w", errUnfit, err)
	}
	s.network.log.Warn("kernel dataplane refused: taking the userspace one", s.network.attrs(err)...)
	u, uerr := s.openUserspace(mtu)
	if uerr != nil {
		return nil, fmt.Errorf("neither dataplane works: kernel: %w; userspace: %w", err, uerr)
	}
	return u, nil
}

// openKernel opens the kernel dataplane, which needs the UDP port that another daemon may have handed over. In auto
// mode that is kept if the kernel has no vxlan.
func (s *Session) openKernel(mtu int) (*kernel.Dataplane, error) {
	n := s.network
	if n.daemon.estate.Has(inherit.IsTraffic) || len(n.inherits) > 0 {
		if err := kernel.Available(); err != nil && n.cfg.Mode == fit.Auto {
			return nil, err
		}
		n.daemon.estate.Drop("the kernel dataplane needs the UDP port", inherit.IsTraffic)
		carrier.CloseExports(n.inherits)
		n.inherits = nil
	}
	return kernel.Open(s.kernelConfig(mtu))
}

// kernelConfig is what the kernel dataplane of the session is opened with.
func (s *Session) kernelConfig(mtu int) kernel.Config {
	c := s.config
	return kernel.Config{
		Log:       s.network.log,
		Underlays: s.iface.Underlays(c.EnableIPv4, c.EnableIPv6),
		VNI:       c.Backend.VNI,
		Port:      c.Backend.Port,
		MTU:       mtu,
		GBP:       c.Backend.GBP,
		Learning:  c.Backend.Learning,
		Deaf:      s.network.cfg.Deaf,
		MayBeUp:   s.guardHolds,
	}
}

// openUserspace opens the userspace dataplane. Of several networks, those with the same port and
// underlay share the sockets.
func (s *Session) openUserspace(mtu int) (dataplane.Part, error) {
	n := s.network
	s.forwardsItself()
	config := userspace.Config{
		Log:          n.log,
		Underlays:    n.underlays(s.config, s.iface),
		VNI:          s.config.Backend.VNI,
		Port:         s.config.Backend.Port,
		MTU:          mtu,
		Offloads:     n.cfg.Offloads,
		ExpectTunnel: n.cfg.ExpectTunnel,
		WantTunnel:   n.cfg.WantTunnel,
		DF:           n.cfg.DF,
		MinPathMTU:   n.cfg.MinPathMTU,
		SourceCheck:  n.cfg.SourceCheck,
		AnyPeerFrom:  n.cfg.AnyPeerFrom,
		Mark:         n.cfg.egressMark(),
		LogAttrs:     n.attrs,
		Deaf:         n.cfg.Deaf,
		Captures:     n.cfg.Captures,
	}
	config.Inherited, config.Unfit = n.takeInherited(config.VNI), n.daemon.estate.Unkeep
	giveBack, open := func() {}, userspace.Open
	var shared *sharedport.Port
	var err error
	if n.cfg.several() {
		open = n.openBesideOthers
		if shared, giveBack, err = n.daemon.ports.Take(config, n.cfg.Log); err != nil {
			return nil, err
		}
		config.Shared = shared.Port
	}
	d, err := open(config)
	if err != nil {
		giveBack()
		return nil, err
	}
	return overlay.NewForwarding(d, fit.Userspace, shared, giveBack), nil
}
