package testbed

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Lease is what a CNI plugin reads from a subnet file. overlayd and flanneld write
// the file when they are ready.
type Lease struct {
	Gateway netip.Prefix // first address of the subnet, with the subnet's length
	MTU     int
}

// Pod returns the address of the first pod.
func (l Lease) Pod() netip.Addr { return l.Gateway.Addr().Next() }

// ReadLease reads a subnet file. Its error is fs.ErrNotExist until the file exists.
func ReadLease(file string) (Lease, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Lease{}, err
	}
	l, err := ParseLease(string(text))
	if err != nil {
		return Lease{}, fmt.Errorf("read subnet file: %w", err)
	}
	return l, nil
}

// ParseLease parses the text of a subnet file. The subnet must have room for a pod.
func ParseLease(text string) (l Lease, err error) {
	vars := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			vars[k] = v
		}
	}
	if l.Gateway, err = netip.ParsePrefix(vars["FLANNEL_SUBNET"]); err != nil || l.Gateway.Bits() > 30 {
		return Lease{}, fmt.Errorf("FLANNEL_SUBNET: %q is not a subnet with room for a pod", vars["FLANNEL_SUBNET"])
	}
	if l.MTU, err = strconv.Atoi(vars["FLANNEL_MTU"]); err != nil || l.MTU < 68 || l.MTU > 65535 {
		return Lease{}, fmt.Errorf("FLANNEL_MTU: %q is not an MTU", vars["FLANNEL_MTU"])
	}
	return l, nil
}
