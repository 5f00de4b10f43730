package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// env is what a subnet file says, IPv4 first. Networks and subnets are masked.
type env struct {
	networks, subnets []netip.Prefix
	mtu               int
	ipMasq            bool
}

// The links of Linux have MTUs within these bounds (RFC 791: 68); 0 leaves it to the delegate.
const minMTU, maxMTU = 68, 65535

// maxNetworks bounds the list in FLANNEL_NETWORK: each becomes a route in every pod.
const maxNetworks = 64

// CheckSubnetFile returns why pods cannot be made by the subnet file at path.
func CheckSubnetFile(path string) error {
	_, err := readEnv(path)
	return err
}

// readEnv reads a subnet file. As flannel's plugin it wants the network and the subnet of one family, the MTU and ipMasq;
// a network may be a list with commas.
func readEnv(path string) (e env, err error) {
	values, err := subnetfile.Values(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("this host has no subnet yet: open %s: no such file or directory", path),
			"it is there as soon as overlayd or flanneld is ready: overlayd status says what it waits for")
	}
	if err != nil {
		return e, types.NewError(types.ErrIOFailure, err.Error(), "")
	}
	if e, err = envOf(values); err != nil {
		return e, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("%s: %v", path, err), "overlayd writes it again if it was changed; if it does not run, start it")
	}
	return e, nil
}

// envOf checks the values of a subnet file.
func envOf(values map[string]string) (e env, err error) {
	for _, f := range []struct {
		key string
		is4 bool
	}{{"FLANNEL_", true}, {"FLANNEL_IPV6_", false}} {
		networks, subnet := values[f.key+"NETWORK"], values[f.key+"SUBNET"]
		if networks == "" && subnet == "" {
			continue
		}
		if networks == "" || subnet == "" {
			return e, fmt.Errorf("%sNETWORK=%q, %sSUBNET=%q: want both", f.key, networks, f.key, subnet)
		}
		if e.subnets, err = addPrefix(e.subnets, f.is4, f.key+"SUBNET", subnet); err != nil {
			return e, err
		}
		list := strings.Split(networks, ",")
		if len(list) > maxNetworks {
			return e, fmt.Errorf("%sNETWORK has %d networks: want at most %d", f.key, len(list), maxNetworks)
		}
		for _, network := range list {
			if e.networks, err = addPrefix(e.networks, f.is4, f.key+"NETWORK", network); err != nil {
				return e, err
			}
		}
	}
	if len(e.subnets) == 0 {
		return e, errors.New("it has neither FLANNEL_SUBNET nor FLANNEL_IPV6_SUBNET")
	}
	return e, e.rest(values)
}

// rest reads what does not depend on the family.
func (e *env) rest(values map[string]string) (err error) {
	mtu := values["FLANNEL_MTU"]
	if e.mtu, err = strconv.Atoi(mtu); err != nil || e.mtu != 0 && (e.mtu < minMTU || e.mtu > maxMTU) {
		return fmt.Errorf("FLANNEL_MTU=%.40q: want a number from %d to %d", mtu, minMTU, maxMTU)
	}
	switch masq := values["FLANNEL_IPMASQ"]; masq {
	case "true", "false":
		e.ipMasq = masq == "true"
	default:
		return fmt.Errorf("FLANNEL_IPMASQ=%.40q: want true or false", masq)
	}
	return nil
}

// addPrefix reads one prefix of a family.
func addPrefix(list []netip.Prefix, is4 bool, key, text string) ([]netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil || p.Addr().Is4() != is4 || p.Addr().Is4In6() || !p.Addr().IsGlobalUnicast() {
		want := map[bool]string{true: "IPv4, such as 10.5.1.1/24", false: "IPv6, such as fd10:5:0:1::1/64"}[is4]
		return nil, fmt.Errorf("%s=%.60q: want a prefix of %s", key, text, want)
	}
	return append(list, p.Masked()), nil
}
