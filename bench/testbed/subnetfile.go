package testbed

import (
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// Lease is what a CNI plugin reads from a subnet file. overlayd and flanneld write
// the file when they are ready.
type Lease struct {
	Gateway netip.Prefix // first address of the subnet, with the subnet's length
	MTU     int
}

// Pod returns the address of the first pod.
func (l Lease) Pod() netip.Addr { return l.Gateway.Addr().Next() }

// ReadLease reads a subnet file. Its error is fs.ErrNotExist until the file exists. The subnet must have room for a pod.
func ReadLease(file string) (Lease, error) {
	f, err := subnetfile.Load(file)
	if err == nil && (!f.Subnet.IsValid() || f.Subnet.Bits() > 30 || f.MTU < 68 || f.MTU > 65535) {
		err = fmt.Errorf("%s: FLANNEL_SUBNET %s has no room for a pod, or FLANNEL_MTU %d is no MTU", file, f.Subnet, f.MTU)
	}
	if err != nil {
		return Lease{}, err
	}
	return Lease{subnetfile.FirstHost(f.Subnet), f.MTU}, nil
}
