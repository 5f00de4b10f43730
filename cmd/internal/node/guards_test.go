package node

import (
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestOldGuardStays: the guard of another VNI stays when a session begins, until its own guard has rules. A daemon that ends or drains in between, and the next one, still
// know of it. That of a VNI that somebody else serves by now is not touched.
func TestOldGuardStays(t *testing.T) {
	for name, c := range map[string]struct {
		then  func(t *testing.T, n *Network)
		stays string // the tables
		file  []uint32
	}{
		"the session begins":  {func(*testing.T, *Network) {}, "7 8", []uint32{77, 7}},
		"its guard has rules": {func(_ *testing.T, n *Network) { n.retireGuards(); n.remember(n.left) }, "8", []uint32{77}},
		"the daemon drains":   {func(_ *testing.T, n *Network) { n.removeRules() }, "8", []uint32{77, 7}},
		"the network goes": {func(t *testing.T, n *Network) {
			if err := exec.Command("nft", "add", "table", "inet", "overlayd-guard-77").Run(); err != nil { // that of the session
				t.Error(err)
			}
			n.remove(t.Context())
		}, "8", nil},
		"the old VNI again": {func(t *testing.T, n *Network) {
			take(t, n, "7")
			n.retireGuards()
		}, "7 8", []uint32{7, 77}},
		"the next daemon": {func(t *testing.T, n *Network) {
			n.release()
			if err := n.claim(); err != nil {
				t.Fatal(err)
			}
			take(t, n, "5")
			if guards := n.earlier.with(nil); !slices.Contains(guards, 7) {
				t.Errorf("it knows of %d", guards)
			}
			n.retireGuards()
		}, "8", []uint32{5, 7, 77}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			d := New(Config{Log: slog.New(slog.DiscardHandler), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")})
			ns.Must(func() error {
				n := d.newNetwork("")
				if err := n.claim(); err != nil {
					return err
				}
				defer n.release()
				other, err := n.devices().Claim(8)
				if err != nil {
					return err
				}
				defer other.Release()
				for _, vni := range []string{"7", "8"} {
					if err := exec.Command("nft", "add", "table", "inet", "overlayd-guard-"+vni).Run(); err != nil {
						return err
					}
				}
				n.remember(nodefile.Left{VNIs: []uint32{7, 8}})
				take(t, n, "77")
				c.then(t, n)
				if got := tables(t); got != c.stays {
					t.Errorf("guards %q, want %q", got, c.stays)
				}
				if !slices.Equal(n.file.Left.VNIs, c.file) {
					t.Errorf("the node file has %d, want %d", n.file.Left.VNIs, c.file)
				}
				return nil
			})
		})
	}
}

func take(t *testing.T, n *Network, vni string) {
	t.Helper()
	c, err := control.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":` + vni + `}}`))
	if err == nil {
		err = n.takeDevice(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tables lists the VNIs of the guards that are there.
func tables(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables", "inet").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(string(out), "table inet overlayd-guard-", "")), " ")
}
