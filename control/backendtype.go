package control

import (
	"fmt"
	"hash/fnv"

	"github.com/overlayd/overlayd/dataplane"
)

// The backend types that overlayd serves, in flannel's words.
const (
	BackendVXLAN  = "vxlan"   // compared in exactly this case in leases, as flannel does
	BackendHostGW = "host-gw" // no encapsulation: every node is on one link, and a route leads to its subnet
	BackendAlloc  = "alloc"   // subnets are leased, and nothing leads to them
)

// IsVXLAN reports whether packets between the nodes are encapsulated, by VTEPs.
func (b Backend) IsVXLAN() bool { return b.Type != BackendHostGW && b.Type != BackendAlloc }

// leaseType returns the BackendType of the leases of a network; flannel gives those of alloc none.
func (b Backend) leaseType() string {
	switch b.Type {
	case BackendAlloc:
		return ""
	case BackendHostGW:
		return BackendHostGW
	}
	return BackendVXLAN
}

// withNumber gives a backend without a VNI a number: a host has its rules and its claim of a network under
// one. It follows from the addresses of the network, and is above the VNI of every overlay device.
func (b Backend) withNumber(n Network) Backend {
	const first, last = dataplane.MaxDeviceVNI + 1, 1<<24 - 1
	if b.IsVXLAN() {
		return b
	}
	h := fnv.New32a()
	fmt.Fprint(h, n.Prefixes()) // never fails
	b.VNI = first + h.Sum32()%(last-first+1)
	return b
}

// checkBackendType refuses flannel's other backend types with what to use instead; t is
// in lower case, as flannel takes it.
func checkBackendType(t string) error {
	instead := `"vxlan"`
	switch t {
	case BackendVXLAN, BackendHostGW, BackendAlloc:
		return nil
	case "udp":
		instead += "; the userspace dataplane needs no vxlan module either"
	case "ipip":
		instead += `; with "DirectRouting": true nodes on the same link are reached without encapsulation`
	case "wireguard", "ipsec":
		instead += " over an interface that encrypts, such as WireGuard's: overlayd itself does not"
	case "extension":
		instead += ": overlayd runs no commands for leases"
	case "tencent-vpc", "aws-vpc", "ali-vpc", "gce":
		instead += ": it needs no entries in the route table of a cloud"
	}
	return fmt.Errorf("backend type %.40q is not supported: use %s", t, instead)
}
