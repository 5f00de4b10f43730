package doctor

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// TestFixes: what a check says is true with and without a daemon, and what it tells to do helps there.
func TestFixes(t *testing.T) {
	subnet := netip.MustParsePrefix("10.5.7.0/24")
	daemon := func(n status.Network) *status.Daemon {
		return &status.Daemon{At: time.Now(), Networks: []status.Network{n}}
	}
	served := status.Network{SessionStart: time.Now(), Mode: "kernel", VNI: 7, Port: 8472, Lease: &status.Lease{Subnets: []netip.Prefix{subnet}}}
	for _, c := range []struct {
		name   string
		daemon *status.Daemon
		setup  string // of the host, beside flannel.7
		check  string
		state  State
		text   string // in it
		fix    string // in it
		not    string // in neither
	}{
		{"no guard, no daemon", nil, "", "guard", Warn, "there is no table inet overlayd-guard-7", "start overlayd", "guard on"},
		{"no guard, no session", daemon(status.Network{}), "", "guard", Fail, "there is no table", "see the check daemon", "guard on"},
		{"no guard", daemon(served), "", "guard", Fail, "there is no table", "overlayd guard on", "start overlayd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			scene := Scene{Daemon: c.daemon, Files: []string{filepath.Join(t.TempDir(), "subnet.env")}}
			if err := subnetfile.Write(scene.Files[0], subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: subnet, MTU: 1450}); err != nil {
				t.Fatal(err)
			}
			ns.Run("sh", "-ec", "ip link add flannel.7 type vxlan id 7 dev lo dstport 8472; ip addr add 10.5.7.0/32 dev flannel.7; ip link set flannel.7 up\n"+c.setup)
			var all []Result
			ns.Must(func() error { all = Run(scene); return nil })
			found := false
			for _, r := range all {
				if r.ID != c.check {
					continue
				}
				found = true
				if r.State != c.state || !strings.Contains(r.Text, c.text) || !strings.Contains(r.Fix, c.fix) || c.not != "" && strings.Contains(r.Text+r.Fix, c.not) {
					t.Errorf("%+v", r)
				}
			}
			if !found {
				t.Errorf("no result of %s", c.check)
			}
		})
	}
}
