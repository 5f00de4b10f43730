// Package underlay chooses the interface and the addresses that carry the overlay,
// reports when they change, and warns while they cannot be used.
//
//	underlay.go  Options, Interface, Select
//	options.go   checks Options; errors.go: the errors, which name fields and no flags
//	list.go      reads interfaces and routes from the kernel
//	mtu.go       the MTU of a host whose address is on the loopback
//	select.go    chooses from them (pure); link.go: one interface
//	needs.go     which other addresses of the underlay an overlay must not hide
//	watch.go     selects again when the kernel reports a change
//	health.go    Health: warns while the interface cannot carry packets
package underlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Options say which interface to use. The options that name an interface are tried in the
// order of the fields, and the first match wins. If none of them is given, the public
// addresses decide, and after them the default route.
type Options struct {
	// Iface holds names or addresses of interfaces.
	Iface []string
	// IfaceRegex holds Go regular expressions. Each is matched against the addresses of all
	// interfaces first and then against their names.
	IfaceRegex []string
	// CanReach asks for the interface and source address of the route to it. An address of
	// this host asks for the interface that has it.
	CanReach netip.Addr
	// PublicIP and PublicIPv6 are published instead of the interface's addresses. The host
	// need not have them: behind NAT it does not.
	PublicIP, PublicIPv6 netip.Addr

	// IPv4 and IPv6 are the families of the overlay. They order the default routes. If both
	// are wanted, the default routes must not lead to different interfaces. If neither is
	// set, the families are not known yet: IPv4 is preferred.
	IPv4, IPv6 bool
}

// Interface is the host's end of the underlay. It is a comparable value.
type Interface struct {
	Name  string
	Index int
	MTU   int // in bytes; at least 1. Of a loopback or dummy device that of the links by which packets leave
	// IPv4 and IPv6 are the ends of the two families; at least one is valid.
	IPv4, IPv6 End
}

// End is an interface in one address family; zero if it has no usable address. A link-local
// IPv6 address is not usable: it needs a zone, and a lease has none.
type End struct {
	Local  netip.Addr // the source of sent packets
	Public netip.Addr // what other nodes send to; Local unless another was asked for
}

// Underlays returns what a dataplane is opened with to carry an overlay of these families.
// Each family uses the underlay of its own family, or the other one if the host has only
// that.
func (i Interface) Underlays(ipv4, ipv6 bool) []dataplane.Underlay {
	var out []dataplane.Underlay
	for _, f := range []struct {
		end  End
		used bool
	}{
		{i.IPv4, ipv4 || !i.IPv6.Local.IsValid()},
		{i.IPv6, ipv6 || !i.IPv4.Local.IsValid()},
	} {
		if f.used && f.end.Local.IsValid() {
			out = append(out, dataplane.Underlay{Link: i.Index, Local: f.end.Local, Public: f.end.Public})
		}
	}
	return out
}

// Select chooses the interface for o in the network namespace of the calling thread. It
// returns an [*OptionError] for an invalid option, and a [*SelectError] if no interface is
// usable: that names every option tried, and every interface and why it was refused.
//
// The kernel first checks that no other host has a new IPv6 address (RFC 4862 section 5.4):
// Select waits for that, until ctx ends.
func Select(ctx context.Context, o Options) (Interface, error) {
	return SelectKeeping(ctx, o, Interface{})
}

// SelectKeeping is Select that takes the addresses of last as long as they can be used.
func SelectKeeping(ctx context.Context, o Options, last Interface) (Interface, error) {
	c, err := o.criteria()
	if err != nil {
		return Interface{}, err
	}
	c.last = last
	for tries := 0; ; tries++ {
		h, err := readHost(c)
		if err != nil {
			return Interface{}, err
		}
		got, err := c.choose(h)
		if err == nil {
			got.MTU, err = h.carries(got)
		}
		if err != nil || !h.isTentative(got.IPv6.Local) || tries == maxTentative {
			return got, err
		}
		if !pace.Sleep(ctx, tentativePause, nil) {
			return Interface{}, ctx.Err()
		}
	}
}

// Duplicate address detection takes a second, and up to another at random before it.
const (
	tentativePause = 50 * time.Millisecond
	maxTentative   = 60
)

// errNoInterface: there is nothing to choose from.
var errNoInterface = errors.New("this network namespace has no interface")

// errTwoInterfaces: the families lead to different interfaces.
func errTwoInterfaces(what4, name4, what6, name6 string) error {
	return fmt.Errorf("%s is on %s and %s on %s, but both families must use the same interface", what4, name4, what6, name6)
}
