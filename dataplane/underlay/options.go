package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// criteria are Options that have been checked and compiled.
type criteria struct {
	iface    []string
	regex    []*regexp.Regexp
	canReach netip.Addr
	public   netip.Addr
}

// named reports whether something names the interface, so that neither the
// public address nor the default route may decide.
func (c criteria) named() bool {
	return len(c.iface) > 0 || len(c.regex) > 0 || c.canReach.IsValid()
}

func (o Options) criteria() (criteria, error) {
	c := criteria{iface: o.Iface, canReach: o.CanReach.Unmap(), public: o.PublicIP.Unmap()}
	for _, v := range o.Iface {
		if err := checkIface(v); err != nil {
			return criteria{}, fmt.Errorf("--iface %q: %w", v, err)
		}
	}
	for _, v := range o.IfaceRegex {
		if v == "" {
			return criteria{}, errors.New(`--iface-regex "": is empty, which would match every interface`)
		}
		re, err := regexp.Compile(v)
		if err != nil {
			return criteria{}, fmt.Errorf("--iface-regex %q: %w", v, err)
		}
		c.regex = append(c.regex, re)
	}
	if err := checkAddr(c.canReach); err != nil {
		return criteria{}, fmt.Errorf("--iface-can-reach %s: %w", o.CanReach, err)
	}
	if err := checkAddr(c.public); err != nil {
		return criteria{}, fmt.Errorf("--public-ip %s: %w", o.PublicIP, err)
	}
	return c, nil
}

// maxName is the longest name the kernel gives an interface (IFNAMSIZ less the final NUL).
const maxName = 15

func checkIface(v string) error {
	if a, err := netip.ParseAddr(v); err == nil {
		return checkAddr(a.Unmap())
	}
	switch {
	case v == "":
		return errors.New("is empty; want the name or the IPv4 address of an interface")
	case len(v) > maxName || strings.ContainsAny(v, "/: \t\r\n"):
		// What dev_valid_name of Linux refuses can only be a mistake.
		return errors.New("is neither an IPv4 address nor a possible interface name")
	}
	return nil
}

// checkAddr accepts the zero Addr, which means that none is given.
func checkAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return nil
	case !a.Is4():
		return errors.New("want an IPv4 address; the IPv6 underlay is not supported yet")
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("is not the address of one host")
	}
	return nil
}
