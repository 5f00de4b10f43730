package sysctl

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

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

// forwardEverywhere makes sure that all interfaces forward after ip_forward was turned on. If two processes do that at once,
// the kernel may show one the value that the other has written and is about to take back until it has a lock; then
// ip_forward is 1, and no interface forwards (devinet_sysctl_forward of net/ipv4/devinet.c, Linux 6.18).
func forwardEverywhere() (err error) {
	for try := 0; err == nil && try < 20 && is("/proc/sys/"+ip4Conf+"/default", "forwarding", "0"); try++ {
		time.Sleep(rand.N(time.Millisecond)) // lest two of us disturb each other again
		err = errors.Join(rtnl.SetSysctl(ipForward, "0"), rtnl.SetSysctl(ipForward, "1"))
	}
	return err
}

func is(dir, name, value string) bool {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return err == nil && strings.TrimSpace(string(b)) == value
}
