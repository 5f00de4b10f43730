package flags

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Underlay says by which interface the other hosts are reached.
type Underlay struct {
	iface         []string
	ifaceRegex    []string
	ifaceCanReach string
	publicIP      string
	publicIPv6    string

	canReach, public, public6 netip.Addr // made by check
}

// Register adds the flags to f.
func (o *Underlay) Register(f *pflag.FlagSet) {
	f.StringArrayVar(&o.iface, "iface", nil, "name or address of the underlay interface; repeatable, the first match wins")
	f.StringArrayVar(&o.ifaceRegex, "iface-regex", nil, "regular expression for interface addresses, then names; repeatable, tried after --iface")
	f.StringVar(&o.ifaceCanReach, "iface-can-reach", "", "take the interface of the route to this address; tried after --iface and --iface-regex")
	f.StringVar(&o.publicIP, "public-ip", "", "IPv4 address that other nodes send to; may be one that this host does not own (NAT)")
	f.StringVar(&o.publicIPv6, "public-ipv6", "", "the same for IPv6")
}

// check parses the addresses. Whether this host has such an interface, the daemon finds out.
// As with flanneld an empty value, such as that of an empty variable in a manifest, says nothing.
func (o *Underlay) check(p *problems) {
	isEmpty := func(s string) bool { return s == "" }
	o.iface, o.ifaceRegex = slices.DeleteFunc(o.iface, isEmpty), slices.DeleteFunc(o.ifaceRegex, isEmpty)
	for _, re := range o.ifaceRegex {
		if _, err := regexp.Compile(re); err != nil {
			p.bad("iface-regex", re, err.Error())
		}
	}
	for _, a := range []struct {
		flag, text string
		to         *netip.Addr
		ok         func(netip.Addr) bool
		want       string
	}{
		{"iface-can-reach", o.ifaceCanReach, &o.canReach, func(netip.Addr) bool { return true }, "want an IP address"},
		{"public-ip", o.publicIP, &o.public, netip.Addr.Is4, "want an IPv4 address that other hosts can send to"},
		{"public-ipv6", o.publicIPv6, &o.public6, netip.Addr.Is6, "want an IPv6 address that other hosts can send to"},
	} {
		if a.text == "" {
			continue
		}
		ip, err := netip.ParseAddr(a.text)
		if err != nil || !a.ok(ip) || ip.Is4In6() || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() {
			p.bad(a.flag, a.text, a.want)
			continue
		}
		*a.to = ip
	}
}

// Complete is Flags.Complete for these flags alone. given reports whether there are any.
func (o *Underlay) Complete(f *pflag.FlagSet, env func(string) (string, bool)) (given bool, err error) {
	if err := ApplyEnv(f, env); err != nil {
		return false, err
	}
	for _, name := range []string{"iface", "iface-regex", "iface-can-reach", "public-ip", "public-ipv6"} {
		given = given || f.Changed(name)
	}
	var p problems
	o.check(&p)
	return given, errors.Join(p.errs...)
}

// Options returns what the flags ask for; the families are not known yet.
func (o *Underlay) Options() underlay.Options {
	return underlay.Options{Iface: o.iface, IfaceRegex: o.ifaceRegex, CanReach: o.canReach, PublicIP: o.public, PublicIPv6: o.public6}
}
