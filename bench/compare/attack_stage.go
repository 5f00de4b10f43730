package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// build makes the three hosts, 192.0.2.1 and .2 with the bridge of 192.0.2.3 between them, and likewise of IPv6.
func (s *stage) build(ctx context.Context, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, h := range []**host{&s.a, &s.b, &s.x} {
		name := string("abx"[i])
		if *h, err = newHost(name, filepath.Join(dir, name), netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})); err != nil {
			return err
		}
		// Duplicate address detection takes a second.
		if _, err := (*h).run(ctx, "sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad"); err != nil {
			return err
		}
	}
	if err := s.x.ns.AddBridge(); err != nil {
		return err
	}
	for i, h := range s.hosts() {
		port := "port" + h.name
		if err := s.x.ns.AddVeth(port, h.ns, underlayLink, 0); err != nil {
			return err
		}
		if err := s.x.ns.AddPort(port); err != nil {
			return err
		}
		s.under[i] = [2]netip.Addr{h.underlay, underlay6(i)}
		if err := addBoth(h, underlayLink, s.under[i]); err != nil {
			return err
		}
	}
	return addBoth(s.x, "br0", [2]netip.Addr{s.x.underlay, underlay6(2)})
}

func underlay6(host int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", host+1))
}

func addBoth(h *host, link string, addrs [2]netip.Addr) error {
	if err := h.setLink(link, netip.PrefixFrom(addrs[0], 24), 0); err != nil {
		return err
	}
	return h.setLink(link, netip.PrefixFrom(addrs[1], 64), 0)
}

// readSubnets returns the addresses of the overlay device of both families, and the MTU, from a subnet file.
func readSubnets(file string) (addrs [2]netip.Addr, mtu int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return addrs, 0, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch i := map[string]int{"FLANNEL_SUBNET": 0, "FLANNEL_IPV6_SUBNET": 1}; key {
		case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
			p, perr := netip.ParsePrefix(value)
			if perr != nil {
				return addrs, 0, fmt.Errorf("%s: %w", key, perr)
			}
			addrs[i[key]] = p.Masked().Addr()
		case "FLANNEL_MTU":
			if mtu, err = strconv.Atoi(value); err != nil {
				return addrs, 0, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	if !addrs[0].IsValid() || !addrs[1].IsValid() || mtu == 0 {
		return addrs, 0, fmt.Errorf("%s: want subnets of both families and an MTU", file)
	}
	return addrs, mtu, nil
}
