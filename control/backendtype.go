package control

import "fmt"

// checkBackendType refuses flannel's other backend types with what to use instead; t is
// in lower case, as flannel takes it.
func checkBackendType(t string) error {
	instead := `"vxlan"`
	switch t {
	case "", BackendVXLAN:
		return nil
	case "udp":
		instead += "; the userspace dataplane needs no vxlan module either"
	case "host-gw":
		instead += ` with "DirectRouting": true, which routes to nodes on the same link without encapsulation`
	case "ipip":
		instead += `; with "DirectRouting": true nodes on the same link are reached without encapsulation`
	case "wireguard", "ipsec":
		instead += " over an interface that encrypts, such as WireGuard's: overlayd itself does not"
	case "alloc":
		instead += ": overlayd does not lease subnets without carrying them"
	case "extension":
		instead += ": overlayd runs no commands for leases"
	case "tencent-vpc", "aws-vpc", "ali-vpc", "gce":
		instead += ": it needs no entries in the route table of a cloud"
	}
	return fmt.Errorf("backend type %.40q is not supported: use %s", t, instead)
}
