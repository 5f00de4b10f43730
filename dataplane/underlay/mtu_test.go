package underlay

import (
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestMTUOfVRF: what has an address of a VRF leaves by one of its links, and the smallest MTU of these counts. The kernel gives the VRF itself 65575.
func TestMTUOfVRF(t *testing.T) {
	vrf := link{name: "red", index: 9, mtu: 65575, up: true, virtual: true, vrf: true}
	of := func(master, mtu int) link {
		return link{name: "eth", index: mtu, mtu: mtu, up: true, master: master}
	}
	down, pods := of(9, 1280), of(9, 1350)
	down.up, pods.pods = false, true
	dummy, overlay := of(9, 1500), of(9, 1450)
	dummy.virtual, overlay.name = true, "flannel.1"
	for name, tt := range map[string]struct {
		links []link
		want  int
	}{
		"its links":                            {[]link{vrf, of(9, 9000), of(9, 1400), of(0, 1300), of(8, 1200), down, pods}, 1400},
		"bridges":                              {[]link{vrf, pods}, 1350},
		"a bridge beside what carries nothing": {[]link{vrf, pods, dummy, overlay, down}, 1350},
		"large ones":                           {[]link{of(9, 9000), vrf}, 9000},
		"no links":                             {[]link{vrf, of(0, 1300)}, assumedMTU},
	} {
		if got, err := (host{links: tt.links}).carries(Interface{Index: vrf.index, MTU: vrf.mtu}); err != nil || got != tt.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, tt.want)
		}
	}
}

// TestLinksOfPods: what may have the overlay's MTU is told from NICs. If a tap in the VRF of the underlay counted, the overlay's MTU would fall each time the tap gets that.
func TestLinksOfPods(t *testing.T) {
	h := netnstest.New(t)
	netnstest.LAN(t, "192.0.2.0/24", h)
	h.Run("ip", "tuntap", "add", "tap0", "mode", "tap")
	h.Run("ip", "link", "add", "br0", "type", "bridge")
	h.Run("ip", "link", "add", "tunnel0", "type", "vxlan", "id", "7", "dstport", "4789")
	h.Run("ip", "link", "add", "macvlan0", "link", "eth0", "type", "macvlan")
	want := map[string]bool{"lo": false, "eth0": true, "tap0": true, "br0": true, "tunnel0": true, "macvlan0": true} // eth0 is a veth here
	links, err := readIn(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if pods, ok := want[l.name]; ok && l.pods != pods {
			t.Errorf("%s: %t, want %t", l.name, l.pods, pods)
		}
		delete(want, l.name)
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

func readIn(h *netnstest.NS) (links []link, err error) {
	err = h.Do(func() (err error) { links, err = readLinks(); return err })
	return links, err
}
