package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/encap"
)

// Config tells Open and NewPort what to open. GBP and learning are not options: only the kernel
// dataplane has them.
type Config struct {
	Log *slog.Logger
	// Underlays are one or two, then of different families. Overlay packets of either
	// family go over either. Link is not looked at: the sockets are bound to Local.
	Underlays []dataplane.Underlay
	VNI       uint32 // 24 bits
	Port      uint16 // UDP port of every VTEP
	MTU       int    // of the overlay device in bytes, until the first Sync

	Offloads Offloads // that may be used
	// ExpectTunnel says that it is a warning if Tunnel does not work here; else it is a line of information.
	ExpectTunnel bool
	// WantTunnel says that Tunnel was asked for: if Offloads lacks what that needs, a line says so, too.
	WantTunnel bool

	// DF is to be set on what is sent over an IPv4 underlay. Hosts are then told
	// what the path to a VTEP takes, if it is less than MTU. Over IPv6 they always are.
	DF bool

	// MinPathMTU is the least MTU of an underlay path, in bytes, that is believed with DF and over IPv6;
	// 0: carrier.DefaultMinPathMTU.
	MinPathMTU int

	// SourceCheck is how the sources of packets are checked, in both directions; empty: SourceStrict, or
	// SourceInner if there is an AnyPeerFrom. What is not for an own subnet is dropped with each of them:
	// nothing that userspace forwarding does needs more, and a host that relays is an open router.
	SourceCheck dataplane.SourceCheck
	// AnyPeerFrom are, for SourceInner, the networks from whose addresses any peer's packets may come, besides from its
	// own address: those of NATs that no peer publishes. Of such packets only the inner source is
	// checked: it has to be in some peer's subnet.
	AnyPeerFrom []netip.Prefix

	// Mark is the firewall mark of all that the sockets send (SO_MARK), so that rules of this host can tell it from
	// what other programs send; 0: none. It needs CAP_NET_ADMIN (since Linux 5.17 also CAP_NET_RAW).
	Mark uint32

	// Deaf is for tests: routes of others are only looked for every few seconds, without notifications.
	Deaf bool

	// LogAttrs makes the attributes of a log line about an error; nil: its text alone. The errors are
	// of type *SourceError.
	LogAttrs func(error) []any

	// Captures, if not nil, may see each packet and what became of it.
	Captures *capture.Hub

	// Shared, if not nil, is a Port that several networks share: it has the sockets. It was
	// made for the same Port and the same Local addresses.
	Shared *Port
	// Inherited is what another Dataplane, or for NewPort the Port, of another process mostly, exported, which no
	// longer forwards. What fits of it, the queues or the sockets of an address, this one goes on with, a Dataplane from its first
	// Sync on; the rest is closed. That of a Dataplane with Shared has no sockets.
	Inherited []carrier.Export
	// Unfit, if not nil, is called with the names of what did not fit and was closed. It has whoever else has the
	// files open close them: until then the device and the UDP port are busy.
	Unfit func(names []string)
	// Awaited are, for NewPort with Inherited, the VNIs of the networks that are to enter: what comes
	// to the sockets waits for all of them, for a short time.
	Awaited []uint32
	// Replaces, if not nil, reports whether the vxlan devices of a VNI make room for the sockets, as
	// those of Config.VNI do, because this process is going to carry that network too.
	Replaces func(vni uint32) bool

	in *inherit.Files // what fits of Inherited; set by Open
}

// check names the first field that makes no sense.
func (c Config) check() error {
	if err := c.checkPort(); err != nil {
		return err
	}
	for i, u := range c.Underlays {
		if !u.Public.IsValid() || u.Public.Is4() != u.Local.Is4() || u.Public.Is4In6() {
			return fmt.Errorf("config: Underlays[%d].Public %s is not of the family of Local %s", i, u.Public, u.Local)
		}
	}
	for i, p := range c.AnyPeerFrom {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			return fmt.Errorf("config: AnyPeerFrom[%d] %s is not a masked prefix", i, p)
		}
	}
	switch check := c.sourceCheck(); {
	case !slices.Contains([]dataplane.SourceCheck{dataplane.SourceStrict, dataplane.SourceOverlay, dataplane.SourceInner, dataplane.SourceOff}, check):
		return fmt.Errorf("config: SourceCheck is %q", check)
	case (check == dataplane.SourceInner) != (len(c.AnyPeerFrom) > 0):
		return fmt.Errorf("config: SourceCheck is %q, with %d networks in AnyPeerFrom", check, len(c.AnyPeerFrom))
	case c.VNI > encap.MaxVNI:
		return fmt.Errorf("config: VNI %d is more than %d", c.VNI, encap.MaxVNI)
	case c.MTU < carrier.MinMTU || c.MTU > carrier.MaxPacket:
		return fmt.Errorf("config: MTU %d is not in %d to %d", c.MTU, carrier.MinMTU, carrier.MaxPacket)
	case c.Shared != nil && !c.Shared.isFor(c):
		return fmt.Errorf("config: Shared is for port %d of %s, not for Port %d of Underlays %s", c.Shared.locals[0].Port(), c.Shared.locals, c.Port, c.locals())
	}
	return nil
}

// sourceCheck is SourceCheck with its default.
func (c Config) sourceCheck() dataplane.SourceCheck {
	switch {
	case c.SourceCheck != "":
		return c.SourceCheck
	case len(c.AnyPeerFrom) > 0:
		return dataplane.SourceInner
	}
	return dataplane.SourceStrict
}

// checkPort is check for what a Port needs.
func (c Config) checkPort() error {
	if n := len(c.Underlays); n < 1 || n > carrier.Families {
		return fmt.Errorf("config: Underlays are %d, not one or two", n)
	}
	for i, u := range c.Underlays {
		switch {
		case !u.Local.IsValid() || u.Local.Is4In6() || u.Local.IsUnspecified() || u.Local.IsMulticast():
			return fmt.Errorf("config: Underlays[%d].Local %s is not the address of one host", i, u.Local)
		case u.Local.Is6() && u.Local.IsLinkLocalUnicast():
			return fmt.Errorf("config: Underlays[%d].Local %s is link-local: no other host can tell on which link", i, u.Local)
		case i == 1 && u.Local.Is4() == c.Underlays[0].Local.Is4():
			return fmt.Errorf("config: Underlays[1].Local %s is of the family of Underlays[0].Local %s", u.Local, c.Underlays[0].Local)
		}
	}
	if c.Port == 0 {
		return errors.New("config: Port is 0")
	}
	return nil
}

// locals returns what the sockets that receive are bound to, IPv4 first.
func (c Config) locals() (out []netip.AddrPort) {
	for _, u := range c.Underlays {
		out = append(out, netip.AddrPortFrom(u.Local, c.Port))
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}
