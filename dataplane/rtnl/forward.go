package rtnl

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// Paths below /proc/sys.
const (
	ipForward  = "net/ipv4/ip_forward"
	ip6Conf    = "net/ipv6/conf"
	ip6Forward = ip6Conf + "/all/forwarding"
)

// EnableForwarding lets pods behind this host be reached in these families. A host that carries only
// its own traffic works without, so a refusal is logged and not fatal.
func EnableForwarding(log *slog.Logger, ipv4, ipv6 bool) {
	if ipv4 {
		if err := SetSysctl(ipForward, "1"); err != nil {
			logNotForwarding(log, "IPv4", ipForward, err)
		}
	}
	if ipv6 {
		// Before forwarding is on: turning it on makes the kernel forget the routers of every
		// interface whose accept_ra is not 2.
		err := keepRouterAdvertisements()
		if err = errors.Join(err, SetSysctl(ip6Forward, "1")); err != nil {
			logNotForwarding(log, "IPv6", ip6Forward, err)
		}
	}
}

// logNotForwarding reports what does not work now, and how the user can turn it on.
func logNotForwarding(log *slog.Logger, family, sysctl string, err error) {
	name := strings.ReplaceAll(sysctl, "/", ".") + "=1"
	log.Error(family+" forwarding is off and cannot be turned on: only this host itself is reachable over the overlay, nothing behind it",
		"err", err, "fix", "sysctl -w "+name+" on the host, or docker run --sysctl "+name)
}

// keepRouterAdvertisements lets interfaces that take their addresses and default route from router
// advertisements continue to do so when this host forwards: accept_ra 1 means only while it does
// not forward, 2 always (Linux Documentation/networking/ip-sysctl.rst).
func keepRouterAdvertisements() (err error) {
	interfaces, err := filepath.Glob("/proc/sys/" + ip6Conf + "/*")
	for _, dir := range interfaces {
		name := filepath.Base(dir)
		if name == "all" || name == "default" || !isSysctl(dir, "accept_ra", "1") || !isSysctl(dir, "forwarding", "0") {
			continue
		}
		serr := SetSysctl(filepath.Join(ip6Conf, name, "accept_ra"), "2")
		if !errors.Is(serr, os.ErrNotExist) { // the interface is gone
			err = errors.Join(err, serr)
		}
	}
	return err
}

func isSysctl(dir, name, value string) bool {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return err == nil && strings.TrimSpace(string(b)) == value
}
