package sysctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// keepRouterAdvertisements lets interfaces that take their addresses and default route from router
// advertisements continue to do so when this host forwards: accept_ra 1 means only while it does
// not forward, 2 always (Linux Documentation/networking/ip-sysctl.rst). It is called before forwarding is
// turned on: that makes the kernel forget the routers of every interface whose accept_ra is not 2.
func keepRouterAdvertisements() (err error) {
	interfaces, err := filepath.Glob("/proc/sys/" + ip6Conf + "/*")
	for _, dir := range interfaces {
		name := filepath.Base(dir)
		if name == "all" || name == "default" || !is(dir, "accept_ra", "1") || !is(dir, "forwarding", "0") {
			continue
		}
		serr := rtnl.SetSysctl(filepath.Join(ip6Conf, name, "accept_ra"), "2")
		if !errors.Is(serr, os.ErrNotExist) { // the interface is gone
			err = errors.Join(err, serr)
		}
	}
	return err
}

// forwardEverywhere makes sure that all interfaces forward, and each that comes later, after ip_forward was turned on. If two processes
// do that at once, the kernel may show one the value that the other has written and is about to take back until it has a lock; then
// ip_forward is 1, and no interface forwards (devinet_sysctl_forward of net/ipv4/devinet.c, Linux 6.18). To write ip_forward again would
// disturb the other one again; to write the single values disturbs nobody.
func forwardEverywhere() error {
	if err := rtnl.SetSysctl(filepath.Join(ip4Conf, "default", "forwarding"), "1"); err != nil { // first: an interface that comes now has it
		return err
	}
	interfaces, err := filepath.Glob("/proc/sys/" + ip4Conf + "/*")
	for _, dir := range interfaces {
		name := filepath.Base(dir)
		if name == "all" || name == "default" {
			continue
		}
		serr := rtnl.SetSysctl(filepath.Join(ip4Conf, name, "forwarding"), "1")
		if !errors.Is(serr, os.ErrNotExist) { // the interface is gone
			err = errors.Join(err, serr)
		}
	}
	return err
}

func is(dir, name, value string) bool {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return err == nil && strings.TrimSpace(string(b)) == value
}
