package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// Addrs returns the addresses of a link.
func (c *Conn) Addrs(l netlink.Link) (addrs []netip.Addr, err error) {
	list, err := Retry(func() ([]netlink.Addr, error) { return c.h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range list {
		addrs = append(addrs, Prefix(a.IPNet).Addr())
	}
	return addrs, nil
}

// SetAddrs gives the link exactly the base address of each own subnet, as a /32
// (/128 for IPv6), and the further addresses, and removes every other address that lies in an
// overlay network, or was added by an earlier call and lies in an earlier network (which
// kernels before 5.18 do not remember). Others are not ours and stay, as with flannel.
func (c *Conn) SetAddrs(index int, subnets, networks []netip.Prefix, further ...netip.Prefix) error {
	return c.setAddrs(index, slices.Concat(BaseAddrs(subnets), further), networks, true)
}

// AddAddrs is SetAddrs without the removals, for addresses that move from one link to
// another.
func (c *Conn) AddAddrs(index int, subnets []netip.Prefix, further ...netip.Prefix) error {
	return c.setAddrs(index, slices.Concat(BaseAddrs(subnets), further), nil, false)
}

func (c *Conn) setAddrs(index int, want, networks []netip.Prefix, exactly bool) error {
	l, err := c.LinkByIndex(index)
	if err != nil {
		return err
	}
	addrs, err := Retry(func() ([]netlink.Addr, error) { return c.h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	have := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		have = append(have, Prefix(a.IPNet))
	}
	marked, err := c.markedAddrs(index)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	add, remove := planAddrs(have, marked, want, networks)
	if !exactly {
		remove = nil
	}
	var errs []error // each is tried: the kernel may refuse one of them for good
	for _, p := range add {
		err := c.addAddr(index, p)
		if errors.Is(err, unix.EACCES) && p.Addr().Is6() && SetSysctl("net/ipv6/conf/"+l.Attrs().Name+"/disable_ipv6", "0") == nil {
			err = c.addAddr(index, p) // IPv6 was off by default, as in many containers
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("add address %s to %s: %w", p, l.Attrs().Name, err))
			continue
		}
		c.changed(dataplane.OpAdd, KindAddress, p.String(), "", l.Attrs().Name)
	}
	for _, i := range remove {
		switch err := c.h.AddrDel(l, &addrs[i]); {
		case err == nil:
			c.changed(dataplane.OpDelete, KindAddress, have[i].String(), l.Attrs().Name, "")
		case !errors.Is(err, unix.EADDRNOTAVAIL):
			errs = append(errs, fmt.Errorf("remove address %s from %s: %w", have[i], l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// BaseAddrs returns the first address of each subnet as a /32 (/128 for IPv6).
func BaseAddrs(subnets []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(subnets))
	for i, s := range subnets {
		base := s.Masked().Addr()
		out[i] = netip.PrefixFrom(base, base.BitLen())
	}
	return out
}

// planAddrs returns the addresses to add, and the indices in have of those to
// remove. The marked ones are overlayd's wherever they lie.
func planAddrs(have, marked, want, networks []netip.Prefix) (add []netip.Prefix, remove []int) {
	for _, w := range want {
		if !slices.Contains(have, w) {
			add = append(add, w)
		}
	}
	for i, h := range have {
		inside := func(n netip.Prefix) bool { return n.Contains(h.Addr()) }
		if !slices.Contains(want, h) && (slices.Contains(marked, h) || slices.ContainsFunc(networks, inside)) {
			remove = append(remove, i)
		}
	}
	return add, remove
}
