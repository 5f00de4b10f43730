package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// criteria are Options that have been checked and compiled.
type criteria struct {
	iface    []string
	regex    []*regexp.Regexp
	canReach netip.Addr
	public   [2]netip.Addr // IPv4, IPv6
	wanted   [2]bool
	last     Interface // of equals, its addresses are taken
}

// named reports whether something names the interface, so that neither the
// public addresses nor the default routes may decide.
func (c criteria) named() bool {
	return len(c.iface) > 0 || len(c.regex) > 0 || c.canReach.IsValid()
}

func (o Options) criteria() (criteria, error) {
	c := criteria{iface: o.Iface, canReach: o.CanReach.Unmap(),
		public: [2]netip.Addr{o.PublicIP.Unmap(), o.PublicIPv6}, wanted: [2]bool{o.IPv4, o.IPv6}}
	for _, v := range o.Iface {
		if err := checkIface(v); err != nil {
			return criteria{}, &OptionError{FieldIface, strconv.Quote(v), err}
		}
	}
	for _, v := range o.IfaceRegex {
		if v == "" {
			return criteria{}, &OptionError{FieldIfaceRegex, strconv.Quote(v), errors.New("is empty, which would match every interface")}
		}
		re, err := regexp.Compile(v)
		if err != nil {
			return criteria{}, &OptionError{FieldIfaceRegex, strconv.Quote(v), err}
		}
		c.regex = append(c.regex, re)
	}
	if err := checkAddr(c.canReach); err != nil {
		return criteria{}, &OptionError{FieldCanReach, o.CanReach.String(), err}
	}
	for f, field := range publicFields {
		if err := checkPublic(c.public[f], f); err != nil {
			return criteria{}, &OptionError{field, c.public[f].String(), err}
		}
	}
	return c, nil
}

// publicFields are the fields of the published addresses, by family.
var publicFields = [2]Field{FieldPublicIP, FieldPublicIPv6}

// familyNames are for messages, by family.
var familyNames = [2]string{"IPv4", "IPv6"}

// familyOf is the index of an address's family in what is kept by family.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// maxName is the longest name the kernel gives an interface (IFNAMSIZ less the final NUL).
const maxName = 15

func checkIface(v string) error {
	if a, err := netip.ParseAddr(v); err == nil {
		return checkAddr(a.Unmap())
	}
	switch {
	case v == "":
		return errors.New("is empty; want the name or an address of an interface")
	case len(v) > maxName || strings.ContainsAny(v, "/: \t\r\n"):
		// What dev_valid_name of Linux refuses can only be a mistake.
		return errors.New("is neither an address nor a possible interface name")
	}
	return nil
}

// checkPublic accepts what other hosts can send to, and the zero Addr.
func checkPublic(a netip.Addr, family int) error {
	switch {
	case a.IsValid() && familyOf(a) != family:
		return fmt.Errorf("want an %s address", familyNames[family])
	case a.Is6() && a.IsLinkLocalUnicast():
		return errors.New("is link-local: no other host can send to it without a zone")
	}
	return checkAddr(a)
}

// checkAddr accepts the zero Addr, which means that none is given.
func checkAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return nil
	case a.Zone() != "":
		return errors.New("want an address without a zone")
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("is not the address of one host")
	}
	return nil
}
