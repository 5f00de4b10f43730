package kernel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCleanupOfBothFamilies(t *testing.T) {
	h := newDualHosts(t, 1, "46")[0].open()
	peer4, peer6 := peerB, newPeer("2001:db8::3", "0e:00:00:00:00:03", "fd00:0:0:2::/64")
	h.sync(h.dualWanted(0, "46", peer4, peer6))
	h.Run("ip", "route", "add", "10.5.3.0/24", "via", "192.0.2.9", "proto", "211") // of hostroute
	h.Run("ip", "route", "add", "blackhole", "fd00:0:0:1::/64", "metric", "1048576", "proto", "211")
	h.dp.Close()
	for i, want := range [][]string{
		{"route 10.5.2.0/24", "route 10.5.3.0/24", "route fd00:0:0:1::/64", "route fd00:0:0:2::/64", "device flannel.1", "device flannel-v6.1"}, nil,
	} {
		var removed []string
		h.Must(func() (err error) { removed, err = Cleanup(func(int) bool { return false }); return err })
		if diff := cmp.Diff(want, removed); diff != "" {
			t.Errorf("call %d: %s", i+1, diff)
		}
	}
	if out := h.Run("ip", "nexthop") + h.Run("ip", "-6", "route", "show", "proto", "211"); out != "" {
		t.Error(out)
	}
}

func TestCleanup(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB))
	h.Run("ip", "nexthop", "add", "id", "60", "via", "192.0.2.1", "dev", "eth0", "proto", "211")
	h.Run("ip", "route", "add", "10.9.0.0/24", "nhid", "60", "proto", "211")
	h.Run("ip", "nexthop", "add", "id", "61", "via", "192.0.2.1", "dev", "eth0", "proto", "static")
	h.dp.Close()
	for i, want := range [][]string{{"route 10.5.2.0/24", "route 10.9.0.0/24", "device flannel.1", "nexthop 60"}, nil} {
		var removed []string
		h.Must(func() (err error) { removed, err = Cleanup(func(int) bool { return false }); return err })
		if diff := cmp.Diff(want, removed); diff != "" {
			t.Errorf("call %d: %s", i+1, diff)
		}
	}
	if out := h.Run("ip", "nexthop"); !strings.HasPrefix(out, "id 61 ") || strings.Contains(out, "\n") {
		t.Error(out)
	}
}
