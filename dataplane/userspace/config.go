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
	// Underlays has one or two underlays; two are of different families. Overlay packets of either
	// family go over either. Link is not used: the sockets are bound to Local.
	Underlays []dataplane.Underlay
	VNI       uint32 // 24 bits
	Port      uint16 // UDP port of every VTEP
	MTU       int    // of the overlay device in bytes, until the first Sync

	Offloads Offloads // the offloads that may be used
	// ExpectTunnel makes it a warning in the log if Tunnel does not work here; else it is only information.
	ExpectTunnel bool
	// WantTunnel says that Tunnel was asked for. Then a log line says if Offloads lacks what Tunnel needs.
	WantTunnel bool

	// DF sets Don't Fragment on packets over an IPv4 underlay. Hosts are then told the
	// path MTU to a VTEP, if it is less than MTU. Over IPv6 they always are.
	DF bool

	// MinPathMTU is the smallest MTU of an underlay path, in bytes, that is believed, with DF and over IPv6;
	// 0: carrier.DefaultMinPathMTU.
	MinPathMTU int

	// SourceCheck says how the sources of packets are checked, in both directions; empty: SourceStrict, or
	// SourceInner if there is an AnyPeerFrom. With each of them packets for other subnets than the own ones are dropped:
	// userspace forwarding never needs those, and a host that relays them is an open router.
	SourceCheck dataplane.SourceCheck
	// AnyPeerFrom has, for SourceInner, the networks of NATs that no peer publishes. Packets of any peer may come from addresses in
	// them, besides from the peer's own address. Of such packets only the inner source is
	// checked: it has to be in some peer's subnet.
	AnyPeerFrom []netip.Prefix

	// Mark is the firewall mark of the packets that the sockets send (SO_MARK), by which rules of this host tell them from
	// packets of other programs; 0: none. It needs CAP_NET_ADMIN (since Linux 5.17 also CAP_NET_RAW).
	Mark uint32

	// Deaf is for tests: without notifications, routes of others are found only every few seconds.
	Deaf bool

	// LogAttrs makes the attributes of a log line about an error; nil: its text alone. The errors are
	// of type *SourceError.
	LogAttrs func(error) []any

	// Captures, if not nil, may see each packet and its outcome.
	Captures *capture.Hub

	// Shared, if not nil, is a Port that several networks share, and that has the sockets. It was
	// made for the same Port and the same Local addresses.
	Shared *Port
	// Inherited has the exported files of another Dataplane, or for NewPort of another Port. That one is mostly in another process,
	// and no longer forwards. This one goes on with the files that fit, that is the queues, or the sockets of an address. A Dataplane
	// does so from its first Sync on. The rest is closed. The export of a Dataplane with Shared has no sockets.
	Inherited []carrier.Export
	// Unfit, if not nil, is called with the names of the files that did not fit and were closed. It makes other processes that have
	// these files open close them, too: until then the device and the UDP port are busy.
	Unfit func(names []string)
	// Awaited has, for NewPort with Inherited, the VNIs of the networks that are going to enter. What comes
	// to the sockets waits for all of them, for a short time.
	Awaited []uint32
	// Replaces, if not nil, reports whether the vxlan devices of a VNI make room for the sockets, because
	// this process is going to carry that network, too. The devices of Config.VNI always do.
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
