package sysctl

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// As long as pods are cut off because the interface before them, or that to the peers, does not forward, there is a warning. It is over
// when the interface forwards again, and comes again.
func TestNoWayToPods(t *testing.T) {
	t.Parallel()
	ns, s, log := start(t, Config{IPv4: true, IPv6: true, Underlay: "eth7"})
	ns.Run("ip", "link", "add", "cni0", "type", "bridge")
	ns.Run("ip", "link", "set", "cni0", "up")
	ns.Run("ip", "addr", "add", "10.244.7.1/24", "dev", "cni0")
	ns.Must(func() error {
		_, err := s.Sync(t.Context(), dataplane.Wanted{Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("fd00:7::/64")}})
		return err
	})
	await := func(name string, warned bool) {
		t.Helper()
		is := func(w dataplane.Warning) bool {
			return w.ID == dataplane.WarnForwarding && strings.Contains(w.Text, name) && w.Fix == "sysctl -w net.ipv4.conf."+name+".forwarding=1"
		}
		for deadline := time.Now().Add(patience); slices.ContainsFunc(s.Status().Warnings, is) != warned; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: warned %v:\n%+v", name, !warned, s.Status().Warnings)
			}
		}
	}
	for _, name := range []string{"cni0", "eth7", "cni0"} {
		ns.Run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/"+name+"/forwarding; echo 0 > /proc/sys/net/ipv6/conf/"+name+"/forwarding")
		await(name, true)
		ns.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/"+name+"/forwarding")
		await(name, false)
	}
	if log.Count("an interface does not forward") > 0 || log.Count("resolved: forwarding of IPv4 is off on cni0") != 2 {
		t.Errorf("log:\n%s", log.String())
	}
}
