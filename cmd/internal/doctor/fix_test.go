package doctor

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane"
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
	refused := daemon(served)
	refused.Warnings = []status.Warning{{ID: dataplane.WarnForwarding, State: status.Degraded, Text: "IPv4 forwarding is off and cannot be turned on: read-only", Fix: "docker run"}}
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
		{"not forwarding, no daemon", nil, "echo 0 > /proc/sys/net/ipv4/ip_forward", "forwarding", Fail, "IPv4 forwarding is off: ", "start overlayd, which turns it on, or sysctl -w net.ipv4.ip_forward=1", "cannot be turned on"},
		{"not forwarding", daemon(served), "echo 0 > /proc/sys/net/ipv4/ip_forward", "forwarding", Fail, "IPv4 forwarding is off: ", "sysctl -w net.ipv4.ip_forward=1", "start overlayd"},
		{"cannot forward", refused, "echo 0 > /proc/sys/net/ipv4/ip_forward", "forwarding", Fail, "cannot be turned on: read-only", "docker run", ""},
		{"bridge of pods with the subnet from before", nil, "ip link add cni0 up type bridge; ip addr add 10.5.6.1/24 dev cni0", "foreign_routes", Warn, "10.5.6.0/24 dev cni0", "ip link del cni0, and restart these pods, which then get addresses of 10.5.7.0/24", "ip route del"},
		{"address in the overlay's network", nil, "ip link add vpn0 up type bridge; ip addr add 10.5.64.1/18 dev vpn0", "foreign_routes", Warn, "10.5.64.0/18 dev vpn0", "choose another network for the overlay, or for vpn0", "ip route del"},
		{"route into the overlay", nil, "ip link add vpn0 up type bridge; ip route add 10.5.6.0/24 dev vpn0", "foreign_routes", Warn, "10.5.6.0/24 dev vpn0", "ip route del 10.5.6.0/24 dev vpn0", ""},
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

// TestWithoutRights: what a user other than root may not read is named once, with the way to read it, in one line.
func TestWithoutRights(t *testing.T) {
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "flannel.7", "type", "vxlan", "id", "7", "local", "192.0.2.2", "dev", "lo", "dstport", "8472")
	ns.Addr("flannel.7", "10.5.7.0/32")
	file := filepath.Join(t.TempDir(), "subnet.env")
	if err := subnetfile.Write(file, subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.7.0/24"), MTU: 1450}); err != nil {
		t.Fatal(err)
	}
	unread := map[string]string{}
	ns.Must(func() error {
		return unprivileged(func() {
			for _, r := range Run(Scene{Files: []string{file}}) {
				if strings.Contains(r.Text, "\n") {
					t.Errorf("more than one line: %+v", r)
				}
				if strings.Contains(r.Text, "cannot be read without CAP_NET_ADMIN: run overlayd doctor as root") && r.State == Unknown {
					unread[r.ID] = r.Text
				}
			}
		})
	})
	for _, id := range []string{"udp_port", "forward_chains", "guard"} {
		if unread[id] == "" {
			t.Errorf("%s does not say what it needs: %v", id, unread)
		}
	}
}

// unprivileged does something without capabilities on the thread of its caller, and gives them back.
func unprivileged(do func()) error {
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all, some [2]unix.CapUserData
	if err := unix.Capget(header, &all[0]); err != nil {
		return err
	}
	for i := range some {
		some[i].Permitted = all[i].Permitted
	}
	if err := unix.Capset(header, &some[0]); err != nil {
		return err
	}
	do()
	return unix.Capset(header, &all[0])
}
