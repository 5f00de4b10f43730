package kernel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCleanup(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB))
	h.Run("ip", "nexthop", "add", "id", "60", "via", "192.0.2.1", "dev", "eth0", "proto", "211")
	h.Run("ip", "route", "add", "10.9.0.0/24", "nhid", "60", "proto", "211")
	h.Run("ip", "nexthop", "add", "id", "61", "via", "192.0.2.1", "dev", "eth0", "proto", "static")
	h.dp.Close()
	for i, want := range [][]string{{"route 10.5.2.0/24", "route 10.9.0.0/24", "device flannel.1", "nexthop 60"}, nil} {
		var removed []string
		h.Must(func() (err error) { removed, err = Cleanup(); return err })
		if diff := cmp.Diff(want, removed); diff != "" {
			t.Errorf("call %d: %s", i+1, diff)
		}
	}
	if out := h.Run("ip", "nexthop"); !strings.HasPrefix(out, "id 61 ") || strings.Contains(out, "\n") {
		t.Error(out)
	}
}
