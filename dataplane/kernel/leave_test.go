package kernel

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// become replaces the route to the subnet that begins with an address as flanneld does.
func (h *host) become(base string) {
	h.tb.Helper()
	h.Run("ip", "route", "replace", base+"/24", "via", base, "dev", "flannel.1", "onlink")
}

func (h *host) leave(flanneld bool) (given, removed []string) {
	h.tb.Helper()
	h.Must(func() (err error) {
		given, removed, err = Leave(context.Background(), h.dp.tunnels[0].index, flanneld)
		return err
	})
	return given, removed
}

// TestLeave: of a device that somebody else has taken over everything goes that only overlayd needed, and what
// leads to the peers that he serves stays, with the device. A flanneld is given the routes to the other peers.
func TestLeave(t *testing.T) {
	t.Run("to somebody", func(t *testing.T) {
		testLeave(t, false, nil, []string{"routes (1)", "nexthops (2)", "neighbours (1)", "FDB entries (1)"})
	})
	t.Run("to flanneld", func(t *testing.T) { testLeave(t, true, []string{"routes (1)"}, []string{"nexthops (2)"}) })
}

func testLeave(t *testing.T, flanneld bool, gives, removes []string) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB, peerD))
	h.dp.Close()
	index := h.dp.tunnels[0].index
	others := func() (list []string) {
		h.Must(func() (err error) { list, err = OthersRoutes(index); return err })
		return list
	}
	if got := others(); len(got) > 0 {
		t.Errorf("before: routes of protocols %q", got)
	}
	b, c := peerB.Subnets[0].Addr().String(), peerD.Subnets[0].Addr().String()
	h.become(b)
	h.Run("ip", "route", "add", "10.99.0.0/24", "dev", "flannel.1", "proto", "static")
	h.Run("ip", "nexthop", "add", "id", "70", "via", "10.98.0.0", "dev", "flannel.1", "onlink", "proto", "211")
	h.Run("ip", "route", "add", "10.98.0.0/24", "nhid", "70", "proto", "77") // somebody else's, by our nexthop
	h.Run("ip", "neigh", "add", "10.98.0.0", "lladdr", "02:00:00:00:00:98", "dev", "flannel.1", "nud", "permanent")
	if got := others(); !slices.Equal(got, []string{"77", "boot", "static"}) {
		t.Errorf("routes of protocols %q", got)
	}
	given, removed := h.leave(flanneld)
	if diff := cmp.Diff([][]string{gives, removes}, [][]string{given, removed}); diff != "" {
		t.Error(diff)
	}
	if given, removed := h.leave(flanneld); len(given)+len(removed) > 0 {
		t.Errorf("a second call gave %q and removed %q", given, removed)
	}
	if route := h.Run("ip", "-d", "route", "show", c+"/24"); flanneld != strings.Contains(route, "via "+c+" dev flannel.1 proto boot") {
		t.Errorf("route %q", route)
	}
	for command, left := range map[string][]string{
		"ip route": {b + "/24", "10.99.0.0/24", "10.98.0.0/24"}, "ip nexthop": {"id 70"}, "ip neigh show nud permanent": {b, "10.98.0.0"},
		"bridge fdb show dev flannel.1": {peerB.Addr.String()},
	} {
		words := strings.Fields(command)
		got := h.Run(words[0], words[1:]...)
		for _, want := range left {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s has gone:\n%s", command, want, got)
			}
		}
		if has := strings.Contains(got, c) || strings.Contains(got, peerD.Addr.String()); has != (flanneld && command != "ip nexthop") {
			t.Errorf("%s: %s is there: %t:\n%s", command, peerD.Addr, has, got)
		}
	}
}

// TestLeaveWaits: routes that a flanneld is replacing one after the other are waited for, and with
// them stays what leads to their peers.
func TestLeaveWaits(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB, peerD))
	h.dp.Close()
	done := make(chan []string)
	go func() { _, removed := h.leave(false); done <- removed }()
	for _, p := range []string{peerB.Subnets[0].Addr().String(), peerD.Subnets[0].Addr().String()} {
		time.Sleep(settle / 2) // as slow as it may be
		h.become(p)
	}
	if got := <-done; !slices.Equal(got, []string{"nexthops (2)"}) {
		t.Errorf("removed %q, want the nexthops only", got)
	}
}
