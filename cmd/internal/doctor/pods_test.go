package doctor

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// TestPodsCutOff: what somebody does on the host so that packets of its pods go nowhere is found.
func TestPodsCutOff(t *testing.T) {
	for _, c := range []struct {
		name, do string
		check    string
		want     State
		says     string
	}{
		{"forwarding", "true", "forwarding", OK, ""},
		{"forwarding off on the bridge", "echo 0 > /proc/sys/net/ipv4/conf/cni0/forwarding", "forwarding", Fail, "off on cni0"},
		{"forwarding off on the underlay", "echo 0 > /proc/sys/net/ipv4/conf/eth0/forwarding", "forwarding", Fail, "off on eth0"},
		{"forwarding off on the overlay device", "echo 0 > /proc/sys/net/ipv4/conf/flannel.7/forwarding", "forwarding", Fail, "off on flannel.7"},
		{"forwarding off on another device", "echo 0 > /proc/sys/net/ipv4/conf/eth1/forwarding", "forwarding", OK, ""},
		{"device", "true", "device", OK, ""},
		{"device in a bridge", "ip link set flannel.7 master cni0", "device", Fail, "flannel.7 is part of another device"},
		{"device without carrier", "ip link set flannel.7 protodown on", "device", Fail, "protodown"},
		{"routes", "true", "foreign_routes", OK, ""},
		{"part of a peer's subnet refused", "ip route add blackhole 10.5.9.128/25", "foreign_routes", Warn, "blackhole 10.5.9.128/25"},
		{"a peer's subnet unreachable", "ip route add unreachable 10.5.9.128/25", "foreign_routes", Warn, "unreachable 10.5.9.128/25"},
		{"a peer's subnet prohibited", "ip route add prohibit 10.5.9.0/24 metric 7", "foreign_routes", Warn, "prohibit 10.5.9.0/24"},
		{"an own route that refuses", "ip route add unreachable 10.5.0.0/16 proto 211 metric 4242; ip route add blackhole 10.5.7.0/24 proto 211 metric 9", "foreign_routes", OK, ""},
		{"policy routing", "ip rule add iif cni0 lookup 100; ip route add default via 192.0.2.1 dev eth0 table 100", "foreign_routes", Warn, "for 10.5.9.0/24 leave by eth0, by table 100"},
		{"policy routing by the source", "ip rule add from 10.5.7.0/24 lookup 100; ip route add default via 192.0.2.1 dev eth0 table 100", "foreign_routes", Warn, "by table 100"},
		{"policy that prohibits", "ip rule add from 10.5.7.0/24 to 10.5.9.0/24 prohibit", "foreign_routes", Warn, "for 10.5.9.0/24 are refused: permission denied"},
		{"policy for others", "ip rule add iif eth1 lookup 100; ip route add default via 192.0.2.1 dev eth0 table 100", "foreign_routes", OK, ""},
		{"forwarding is another check's", "echo 0 > /proc/sys/net/ipv4/conf/cni0/forwarding", "foreign_routes", OK, ""},
		{"another network refused", "ip route add blackhole 10.6.9.0/24", "foreign_routes", OK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, file := netnstest.New(t), filepath.Join(t.TempDir(), "subnet.env")
			f := subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.7.0/24"), MTU: 1450}
			if err := subnetfile.Write(file, f); err != nil {
				t.Fatal(err)
			}
			ns.Run("sh", "-ec", `
				echo 1 > /proc/sys/net/ipv4/ip_forward
				ip link add eth0 type veth peer name eth1
				ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up; ip link set eth1 up; ip route add default via 192.0.2.1
				ip link add flannel.7 type vxlan id 7 dev eth0 dstport 8472 local 192.0.2.2 nolearning
				ip addr add 10.5.7.0/32 dev flannel.7; ip link set flannel.7 up
				ip link add cni0 type bridge; ip addr add 10.5.7.1/24 dev cni0; ip link set cni0 up
				ip route add 10.5.9.0/24 via 10.5.9.0 dev flannel.7 onlink proto 211
				`+c.do)
			n := status.Network{SessionStart: time.Now(), Mode: "kernel", VNI: 7, Port: 8472, Lease: &status.Lease{Subnets: f.Subnets()},
				Peers:    []controller.PeerStatus{{Subnet: netip.MustParsePrefix("10.5.9.0/24"), VTEP: netip.MustParseAddr("192.0.2.9"), State: controller.PeerUp}},
				Underlay: &status.Underlay{Interface: "eth0", Ends: []status.End{{Local: netip.MustParseAddr("192.0.2.2")}}}}
			var all []Result
			ns.Must(func() error {
				all = Run(Scene{Files: []string{file}, Daemon: &status.Daemon{Networks: []status.Network{n}}})
				return nil
			})
			text := ""
			for _, r := range all {
				if r.ID == c.check && r.State == c.want && strings.Contains(r.Text, c.says) {
					text = r.Text
				}
			}
			if got := states(all)[c.check]; got != c.want || text == "" {
				t.Errorf("%s is %s, want %s, and to say %q: %+v", c.check, got, c.want, c.says, all)
			}
		})
	}
}
