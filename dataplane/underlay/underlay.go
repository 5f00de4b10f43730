// Package underlay chooses the interface and the addresses that carry the overlay,
// and tells when they have changed.
//
// select.go decides, from plain values; list.go asks the kernel for them; watch.go
// asks again when the kernel says that something has changed.
package underlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// Options say which interface to use. What names an interface is tried in the
// order of the fields, and the first match wins; only where none of them is given
// do the public addresses, and after them the default route, decide.
type Options struct {
	// Iface holds names or addresses of interfaces (--iface).
	Iface []string
	// IfaceRegex holds Go regular expressions (--iface-regex). Each is matched
	// against the addresses of all interfaces first and then against their names.
	IfaceRegex []string
	// CanReach asks for the interface and source address of the route to it
	// (--iface-can-reach). An address of this host asks for the interface that has it.
	CanReach netip.Addr
	// PublicIP and PublicIPv6 are published instead of the interface's addresses
	// (--public-ip, --public-ipv6). The host need not own them: behind NAT it does not.
	PublicIP, PublicIPv6 netip.Addr

	// IPv4 and IPv6 are the families that the overlay has. They order the default
	// routes, and where both are wanted these must not lead to different interfaces.
	// Neither means that it is not known yet: as IPv4, and IPv6 where that is not there.
	IPv4, IPv6 bool
}

// Interface is the host's end of the underlay. It is a comparable value.
type Interface struct {
	Name  string
	Index int
	MTU   int // in bytes; at least 1
	// IPv4 and IPv6 are the ends of the two families; one at least is valid.
	IPv4, IPv6 End
}

// End is an interface in one address family; zero where it has no address of use.
// A link-local IPv6 address is of none: without a zone, which a lease has not, it
// is nobody's.
type End struct {
	Local  netip.Addr // the source of what is sent
	Public netip.Addr // what other nodes send to; Local unless another was asked for
}

// Underlays returns what a dataplane is opened with to carry an overlay of these
// families: each goes by the underlay of its own family, and where the host has
// none of that by the other.
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

// Select chooses the interface for o in the network namespace of the calling
// thread. An error names each flag tried and its value, and where nothing matched also
// every interface that was looked at and why it was not taken.
//
// An IPv6 address that was added a moment ago cannot be used before the kernel has
// seen that nobody else has it (RFC 4862 section 5.4): Select waits for that, until ctx ends.
func Select(ctx context.Context, o Options) (Interface, error) {
	return selectKeeping(ctx, o, Interface{})
}

// selectKeeping is Select, which of equally good addresses takes those that last has.
func selectKeeping(ctx context.Context, o Options, last Interface) (Interface, error) {
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
		if err != nil || !h.isTentative(got.IPv6.Local) || tries == maxTentative {
			return got, err
		}
		if !pause(ctx, tentativePause) {
			return Interface{}, ctx.Err()
		}
	}
}

// Duplicate address detection takes a second, and up to another at random before it.
const (
	tentativePause = 50 * time.Millisecond
	maxTentative   = 60
)

// errNoInterface says that there is nothing to choose from.
var errNoInterface = errors.New("this network namespace has no interface")

// errTwoInterfaces says that the families lead to different interfaces.
func errTwoInterfaces(what4, name4, what6, name6 string) error {
	return fmt.Errorf("%s is on %s and %s on %s, and both families take the same interface", what4, name4, what6, name6)
}
