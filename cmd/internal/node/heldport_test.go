package node

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestHeldPortIsWantedAgain: a device that stayed until another one would have the UDP port stays if that could not be opened, and the network config is again the one
// before.
func TestHeldPortIsWantedAgain(t *testing.T) {
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "flannel.7", "type", "vxlan", "id", "7", "dstport", "8472")
	ns.Run("ip", "link", "set", "flannel.7", "alias", rtnl.Alias, "up")
	index := strings.Fields(ns.Run("ip", "-o", "link", "show", "flannel.7"))[0]
	var log logBuffer
	d := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")})
	ns.Must(func() error {
		n := d.newNetwork("")
		if err := n.claim(); err != nil {
			return err
		}
		defer n.release()
		n.remember(nodefile.Left{VNIs: []uint32{7}})
		for _, vni := range []string{"77", "7"} {
			c, err := control.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":` + vni + `}}`))
			if err == nil {
				err = n.takeDevice(t.Context(), c)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if got := strings.Fields(ns.Run("ip", "-o", "link", "show", "flannel.7")); len(got) == 0 || got[0] != index {
		t.Errorf("links %q, want flannel.7 as it was\n%s", got, log.text())
	}
}
