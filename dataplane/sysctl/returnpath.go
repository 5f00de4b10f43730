package sysctl

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// With rp_filter 1 the kernel drops what arrives by an interface if its own route to the source leads to another one (RFC 3704,
// strict). It counts these packets, and nothing else tells of them; requests of ARP it leaves without an answer, uncounted.

// IsStrict reports whether that is so for an interface: the larger of its own value and that of all counts.
func IsStrict(device string) (bool, error) {
	larger := 0
	for _, name := range []string{"all", device} {
		b, err := os.ReadFile("/proc/sys/" + ip4Conf + "/" + name + "/rp_filter")
		if err != nil {
			return false, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return false, fmt.Errorf("rp_filter of %s: %w", name, err)
		}
		larger = max(larger, n)
	}
	return larger == 1, nil
}

// Detour is a peer to which this host does not send by the underlay interface.
type Detour struct {
	Peer   netip.Addr
	Device string // by which it sends instead
	OnLink bool   // the peer is on the link of the underlay interface: what it sends arrives there
}

// maxAsked bounds for how many peers one call asks the kernel for its route.
const maxAsked = 64

// Detours returns which of the IPv4 peers this host does not send to by a device. It asks for 64 of them at most, from the
// one with that index on.
func Detours(device string, peers []netip.Addr, from int) (list []Detour, err error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", device, err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", device, err)
	}
	for i := range min(len(peers), maxAsked) {
		peer := peers[(from+i)%len(peers)]
		if !peer.Is4() {
			continue
		}
		routes, err := netlink.RouteGet(net.IP(peer.AsSlice()))
		if err != nil || len(routes) == 0 || routes[0].LinkIndex == l.Attrs().Index {
			continue // without a route nothing is lost that another one would save
		}
		name := fmt.Sprint(routes[0].LinkIndex)
		if by, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil {
			name = by.Attrs().Name
		}
		onLink := slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Contains(peer.AsSlice()) })
		list = append(list, Detour{peer, name, onLink})
	}
	return list, nil
}

// maxNetstat bounds what is read of the kernel's counters, in bytes.
const maxNetstat = 64 << 10

// ReturnPathDrops returns how many packets the kernel has dropped so far because their way back is another.
func ReturnPathDrops() (uint64, error) {
	f, err := os.Open("/proc/thread-self/net/netstat")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNetstat))
	if err != nil {
		return 0, err
	}
	return parseReturnPath(string(text))
}

// parseReturnPath reads a counter of netstat: a line of names, and one with as many values.
func parseReturnPath(text string) (uint64, error) {
	const counter = "IPReversePathFilter"
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		if at := slices.Index(strings.Fields(lines[i]), counter); at > 0 {
			if values := strings.Fields(lines[i+1]); at < len(values) {
				return strconv.ParseUint(values[at], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("the kernel has no counter %s", counter)
}

// ReturnPathWarning says what strict rp_filter does to the packets of these peers: at least one. Its text names only
// the first, so that it stays the same while others come and go.
func ReturnPathWarning(device string, list []Detour) dataplane.Warning {
	return dataplane.Warning{ID: dataplane.WarnReturnPath,
		Text: fmt.Sprintf("strict rp_filter on %s drops what peers send, because this host sends to them by another interface: to %s by %s", device, list[0].Peer, list[0].Device),
		Fix: fmt.Sprintf("%s, or make the routes to these peers lead to %s",
			"sysctl -w "+rtnl.SysctlName(ip4Conf+"/"+device+"/rp_filter")+"=2", device)}
}
