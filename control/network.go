package control

import "net/netip"

// Network is the checked network config: what flannel calls `<prefix>/config`.
type Network struct {
	EnableIPv4     bool
	EnableIPv6     bool
	EnableNFTables bool

	Network   netip.Prefix // IPv4, masked
	SubnetLen int          // prefix length of a lease; 0: see ParsePodNetwork
	SubnetMin netip.Addr   // base address of the first and the last subnet to lease
	SubnetMax netip.Addr

	IPv6Network   netip.Prefix
	IPv6SubnetLen int
	IPv6SubnetMin netip.Addr
	IPv6SubnetMax netip.Addr

	Backend Backend
}

// Backend is the checked backend config. What is not vxlan has the first three fields only.
type Backend struct {
	Type    string // BackendVXLAN, BackendHostGW or BackendAlloc
	Missing bool   // the config has no Backend: overlayd takes it for vxlan, flannel for udp
	VNI     uint32 // 1 if the config has none; without vxlan it is another number, see withNumber

	Port          uint16 // UDP; 8472 if the config has none
	MTU           int    // of the underlay; 0: that of the underlay interface
	GBP           bool   // kernel dataplane only
	Learning      bool   // kernel dataplane only
	DirectRouting bool
}
