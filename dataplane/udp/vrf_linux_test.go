package udp

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// TestInVRF: an address that cannot be bound because its interface is in a VRF is told from others. The kernels that tests run on have no VRF.
func TestInVRF(t *testing.T) {
	link := func(index, master int, name string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, MasterIndex: master, Name: name}
	}
	links := []netlink.Link{
		&netlink.Device{LinkAttrs: link(2, 5, "eth0")},
		&netlink.Device{LinkAttrs: link(3, 6, "eth1")},
		&netlink.Device{LinkAttrs: link(4, 0, "eth2")},
		&netlink.Vrf{LinkAttrs: link(5, 0, "blue")},
		&netlink.Bridge{LinkAttrs: link(6, 0, "br0")},
	}
	for owner, want := range map[string]string{"eth0": "blue", "eth1": "", "eth2": "", "none": ""} {
		device, vrf := inVRF(links, func(l netlink.Link) bool { return l.Attrs().Name == owner })
		if vrf != want || (vrf != "" && device != owner) {
			t.Errorf("address on %s: %q in VRF %q, want %q", owner, device, vrf, want)
		}
	}
}
