package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
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
