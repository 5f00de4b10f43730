package hostroute

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

func prefixList(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// TestNowhereDestinations: the networks, or only leases if these hold addresses of others.
func TestNowhereDestinations(t *testing.T) {
	w := dataplane.Wanted{Networks: prefixList("10.0.0.0/8", "fd00::/48"), Subnets: prefixList("10.5.1.0/24"),
		Peers: []dataplane.Peer{{Subnets: prefixList("10.5.2.0/24", "192.0.2.0/24")}, {Subnets: prefixList("10.96.0.0/14")}}}
	for _, c := range []struct {
		underlay, want []netip.Prefix
		leases         bool
	}{
		{nil, w.Networks, true},
		{prefixList("192.0.2.0/24"), w.Networks, true},
		{prefixList("10.99.0.1/32"), prefixList("fd00::/48", "10.5.1.0/24", "10.5.2.0/24"), true},
		{prefixList("10.99.0.1/32"), prefixList("fd00::/48"), false},
		{prefixList("fd00::1/128"), prefixList("10.0.0.0/8"), true},
	} {
		w.Underlay = c.underlay
		if got := nowhere(w, c.leases); !slices.Equal(got, c.want) {
			t.Errorf("underlay %v: got %v, want %v", c.underlay, got, c.want)
		}
	}
}

// TestNowhere: an overlay address to which no route leads is unreachable, whatever default route there is, and again if somebody
// removes that. Other routes come first.
func TestNowhere(t *testing.T) {
	t.Parallel()
	ns, gateway := netnstest.New(t), netnstest.New(t)
	netnstest.Link(ns, "eth0", gateway, "eth0")
	ns.Addr("eth0", "192.0.2.2/24")
	ns.Addr("eth0", "2001:db8::2/64")
	ns.DefaultRoute("192.0.2.1")
	ns.DefaultRoute("2001:db8::1")
	var n *Nowhere
	ns.Must(func() (err error) {
		n, err = OpenNowhere(Config{Log: slog.New(slog.DiscardHandler)}, func() bool { return true })
		return err
	})
	w := dataplane.Wanted{Networks: prefixList("10.5.0.0/16", "fd00:5::/48")}
	sync := func() {
		ns.Must(func() error {
			if _, err := n.Sync(t.Context(), w); err != nil {
				return err
			}
			return n.Prune(t.Context(), w)
		})
	}
	ns.Run("ip", "route", "add", "unreachable", "10.4.0.0/15", "proto", "211", "metric", "4294967294") // of a larger network before
	sync()
	if out := ns.Run("ip", "route", "show", "type", "unreachable"); strings.Contains(out, "10.4.") {
		t.Error(out)
	}
	to := func(addr string) string {
		out, err := ns.Output("ip", "route", "get", addr)
		return fmt.Sprint(out, err)
	}
	unreachable := func(addr string) bool { return !strings.Contains(to(addr), "eth0") }
	for _, addr := range []string{"10.5.9.9", "fd00:5::9"} {
		if !unreachable(addr) {
			t.Errorf("%s: %s", addr, to(addr))
		}
	}
	ns.Run("ip", "route", "add", "10.5.0.0/16", "via", "192.0.2.7")
	if unreachable("10.5.9.9") {
		t.Error("the route of somebody else does not count")
	}
	ns.Run("ip", "route", "del", "10.5.0.0/16", "via", "192.0.2.7")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ns.Do(func() error { return n.Run(ctx, func() {}) }) }()
	ns.Run("ip", "route", "del", "unreachable", "10.5.0.0/16")
	eventually(t, "it is there again", func() bool { return unreachable("10.5.9.9") })
	eventually(t, "it is counted", func() bool { return n.Status().Objects[0].Repairs == 1 })
	w.Underlay, w.Subnets = prefixList("10.5.7.7/32"), prefixList("10.5.1.0/24")
	sync()
	if unreachable("10.5.9.9") || !unreachable("10.5.1.9") {
		t.Errorf("with the underlay inside: %s, %s", to("10.5.9.9"), to("10.5.1.9"))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	ns.Run("ip", "route", "add", "unreachable", "10.4.0.0/15", "proto", "211", "metric", "4294967294") // of a larger network before
	ns.Must(func() error { return Withdraw(w.Networks) })                                              // after Run, which would put back what is missing
	if out := ns.Run("ip", "route", "show", "type", "unreachable"); strings.Contains(out, "10.") {
		t.Error(out)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
