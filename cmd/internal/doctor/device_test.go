package doctor

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// TestDevices: what devices say about the MTU of the underlay and about other users of the packet mark.
func TestDevices(t *testing.T) {
	for _, c := range []struct {
		name     string
		local    string // of the overlay device, whose MTU is 1430
		under    string // MTU of its underlay
		beside   string // another device
		pathMTU  State
		markedBy string // whom the check guard names
	}{
		{"IPv4", "192.0.2.2", "1480", "", OK, ""},
		{"IPv4, too narrow", "192.0.2.2", "1479", "", Fail, ""},
		{"IPv6", "2001:db8::2", "1500", "", OK, ""},
		{"IPv6, too narrow", "2001:db8::2", "1490", "", Fail, ""},
		{"LXC", "192.0.2.2", "1480", "lxcbr0", OK, ""},
		{"Cilium", "192.0.2.2", "1480", "cilium_host", OK, "Cilium"},
		{"Calico", "192.0.2.2", "1480", "cali1234", OK, "Calico"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, file := netnstest.New(t), filepath.Join(t.TempDir(), "subnet.env")
			f := subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.7.0/24"), MTU: 1430}
			if err := subnetfile.Write(file, f); err != nil {
				t.Fatal(err)
			}
			for _, device := range []string{"eth0 type veth peer name eth1", "flannel.7 mtu 1430 type vxlan id 7 dev eth0 dstport 8472 local " + c.local, c.beside + " type bridge"} {
				if !strings.HasPrefix(device, " ") {
					ns.Run("sh", "-ec", "ip link add "+device)
				}
			}
			ns.Run("sh", "-ec", "ip link set eth0 up; ip link set flannel.7 up; ip addr add 10.5.7.0/32 dev flannel.7; nft add table inet overlayd-guard-7; ip link set eth0 mtu "+c.under)
			var all []Result
			ns.Must(func() error { all = Run(Scene{Files: []string{file}}); return nil })
			if got := states(all)["path_mtu"]; got != c.pathMTU {
				t.Errorf("path_mtu is %s, want %s: %+v", got, c.pathMTU, all)
			}
			named := ""
			for _, r := range all {
				if who, _, ok := strings.Cut(r.Text, " uses the bits "); ok && r.ID == "guard" {
					named = who
				}
			}
			if named != c.markedBy {
				t.Errorf("the mark is also used by %q, want %q", named, c.markedBy)
			}
		})
	}
}

// TestPathMTUBehindTheLoopback: packets from an address of the loopback leave by other links, whose MTU counts.
func TestPathMTUBehindTheLoopback(t *testing.T) {
	for under, want := range map[string]State{"1480": OK, "1479": Fail} {
		ns, file := netnstest.New(t), filepath.Join(t.TempDir(), "subnet.env")
		f := subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.7.0/24"), MTU: 1430}
		if err := subnetfile.Write(file, f); err != nil {
			t.Fatal(err)
		}
		ns.Run("sh", "-ec", `
			ip link add eth0 mtu `+under+` type veth peer name eth1
			ip link set lo up; ip link set eth0 up; ip link set eth1 up
			ip addr add 192.0.2.9/32 dev lo; ip addr add 198.51.100.2/24 dev eth0; ip route add default via 198.51.100.1
			ip link add flannel.7 mtu 1430 type vxlan id 7 dev lo dstport 8472 local 192.0.2.9
			ip link set flannel.7 up; ip addr add 10.5.7.0/32 dev flannel.7`)
		var all []Result
		ns.Must(func() error { all = Run(Scene{Files: []string{file}}); return nil })
		if got := states(all)["path_mtu"]; got != want {
			t.Errorf("with MTU %s path_mtu is %s, want %s: %+v", under, got, want, all)
		}
	}
}

// TestMTUFix: an MTU of the overlay in which IPv6 is impossible is not offered.
func TestMTUFix(t *testing.T) {
	subnets := []netip.Prefix{netip.MustParsePrefix("10.5.7.0/24"), netip.MustParsePrefix("fd00:7::/64")}
	for _, c := range []struct {
		subnets []netip.Prefix
		over    int
		want    string
	}{
		{subnets[:1], 1230, "ip link set eth0 mtu 1500, or restart overlayd, which then takes MTU 1230"},
		{subnets, 1230, "ip link set eth0 mtu 1500"},
		{subnets, 1280, "ip link set eth0 mtu 1500, or restart overlayd, which then takes MTU 1280"},
	} {
		o := overlay{device: "eth0", status: &status.Network{Lease: &status.Lease{Subnets: c.subnets}}}
		if got := o.mtuFix("ip link set eth0 mtu 1500", c.over); got != c.want {
			t.Errorf("%v, %d: %q, want %q", c.subnets, c.over, got, c.want)
		}
	}
}
