package sysctl

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/firewall"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// With ip_forward on, the kernel still drops each IPv4 packet that arrives by an interface whose own forwarding is off, unless it is
// for this host. Of IPv6 it asks for the whole host's only: an interface's own says whether it is a router's, which takes no advertisements.

// ways are the interfaces of others by which packets from this host's pods, or for them, arrive.
func (s *Settings) ways() (names []string) {
	if !s.cfg.IPv4 {
		return nil
	}
	for _, own := range s.subnets {
		if pods := firewall.PodDevice(own, s.devices()); own.Addr().Is4() && pods != "" {
			names = append(names, pods)
		}
	}
	if s.cfg.Underlay != "" && !slices.Contains(names, s.cfg.Underlay) {
		names = append(names, s.cfg.Underlay)
	}
	return names
}

// NoWay says which of these interfaces do not forward IPv4 although the host does.
func NoWay(interfaces ...string) (all []dataplane.Warning) {
	for _, name := range interfaces {
		if !IsOff(name) || !is("/proc/sys/net/ipv4", "ip_forward", "1") {
			continue
		}
		all = append(all, dataplane.Warning{ID: dataplane.WarnForwarding, Fix: "sysctl -w " + rtnl.SysctlName(forwardingOf(name)) + "=1",
			Text: "forwarding of IPv4 is off on " + name + ": what arrives by it from pods or for them is dropped"})
	}
	return all
}

func forwardingOf(name string) string { return ip4Conf + "/" + name + "/forwarding" }

// IsOff reports whether an interface does not forward IPv4, as none does if the host does not.
func IsOff(name string) bool { return is("/proc/sys/"+ip4Conf+"/"+name, "forwarding", "0") }

// sayOthers reports the interfaces besides ways that do not forward although the host does.
func (s *Settings) sayOthers(ways []string) {
	if !s.cfg.IPv4 {
		return
	}
	dirs, _ := filepath.Glob("/proc/sys/" + ip4Conf + "/*") // the pattern is well-formed
	known := append(append(s.devices(), "all", "default", "lo"), ways...)
	for _, dir := range dirs {
		name := filepath.Base(dir)
		if slices.Contains(known, name) || !IsOff(name) {
			continue
		}
		path := forwardingOf(name)
		if due, _ := s.notices.Due(time.Now(), pace.Notice{Key: path, Text: "off"}); len(due) > 0 {
			s.cfg.Log.Warn("an interface does not forward: nothing behind it is reached over the overlay", "interface", name,
				"fix", "sysctl -w "+rtnl.SysctlName(path)+"=1, if pods are behind it")
		}
	}
}
