package dataplane

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/encap"
)

func TestCheckPeer(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.2")
	good := VTEP{Addr: netip.MustParseAddr("192.0.2.1"), MAC: encap.MAC{2, 1}, VNI: 7}
	address := func(s string) func(*VTEP) { return func(v *VTEP) { v.Addr, _ = netip.ParseAddr(s) } }
	for name, test := range map[string]struct {
		change func(*VTEP)
		ok     bool
	}{
		"good":           {func(*VTEP) {}, true},
		"good over IPv6": {address("2001:db8::1"), true},
		"no address":     {address(""), false},
		"mapped":         {address("::ffff:192.0.2.9"), false},
		"zone":           {address("2001:db8::1%eth0"), false},
		"any":            {address("0.0.0.0"), false},
		"multicast":      {address("224.0.0.1"), false},
		"loopback":       {address("127.0.0.2"), false},
		"link-local":     {address("fe80::1"), false},
		"broadcast":      {address("255.255.255.255"), false},
		"this host":      {address("192.0.2.2"), false},
		"other VNI":      {func(v *VTEP) { v.VNI = 8 }, false},
		"no MAC":         {func(v *VTEP) { v.MAC = encap.MAC{} }, false},
		"multicast MAC":  {func(v *VTEP) { v.MAC = encap.MAC{1} }, false},
	} {
		v := good
		test.change(&v)
		if err := CheckPeer(Peer{VTEP: v}, 7, netip.Addr{}, own); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckSubnet(t *testing.T) {
	w := Wanted{Subnets: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24")}, Networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")}}
	for subnet, ok := range map[string]bool{
		"10.42.1.0/24":         true,
		"fd42:0:0:1::/64":      true,
		"10.42.1.1/24":         false,
		"10.42.2.128/25":       false,
		"10.42.0.0/16":         false,
		"10.43.1.0/24":         false,
		"10.0.0.0/8":           false,
		"0.0.0.0/0":            false,
		"::ffff:10.42.1.0/120": false,
		"":                     false,
	} {
		s, _ := netip.ParsePrefix(subnet)
		if err := CheckSubnet(s, w); (err == nil) != ok {
			t.Errorf("%q: %v", subnet, err)
		}
	}
	if err := CheckSubnet(netip.MustParsePrefix("198.51.100.0/24"), Wanted{}); err != nil {
		t.Errorf("without networks: %v", err)
	}
}
