package control

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func prefixes(texts []string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, prefix(s))
	}
	return all
}

// netipTypes lets go-cmp compare the netip types by ==.
var netipTypes = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestParseNetworkDefaults(t *testing.T) {
	v4 := func(network string, length int, low, high string) Network {
		return Network{EnableIPv4: true, Network: prefix(network), SubnetLen: length, SubnetMin: addr(low), SubnetMax: addr(high),
			Backend: Backend{VNI: 1, Port: 8472}}
	}
	vxlan := v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")
	vxlan.Backend = Backend{VNI: 22, Port: 4789, MTU: 9000, GBP: true, Learning: true, DirectRouting: true}
	vni23 := v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")
	vni23.Backend.VNI = 23
	nft := v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")
	nft.EnableNFTables = true
	v6 := Network{EnableIPv6: true, IPv6Network: prefix("fc00::/48"), IPv6SubnetLen: 64,
		IPv6SubnetMin: addr("fc00:0:0:1::"), IPv6SubnetMax: addr("fc00:0:0:ffff::"), Backend: Backend{VNI: 1, Port: 8472}}
	dual := v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")
	dual.EnableIPv6, dual.IPv6Network, dual.IPv6SubnetLen = true, prefix("fd10:6::/48"), 80
	dual.IPv6SubnetMin, dual.IPv6SubnetMax = addr("fd10:6:0:0:1::"), addr("fd10:6:0:7::")
	tests := []struct {
		text string
		want Network
	}{
		{`{"Network":"10.3.0.0/16"}`, v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")},
		{`{"Network":"10.3.77.9/16"}`, v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")},
		{`{"network":"10.3.0.0/16","subnetlen":0,"backend":{}}`, v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")},
		{`{"Network":"10.3.0.0/16","Backend":null,"SubnetMin":null}`, v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")},
		{`{"Network":"10.3.0.0/22"}`, v4("10.3.0.0/22", 24, "10.3.1.0", "10.3.3.0")},
		{`{"Network":"10.3.0.0/23"}`, v4("10.3.0.0/23", 25, "10.3.0.128", "10.3.1.128")},
		{`{"Network":"10.3.0.0/28"}`, v4("10.3.0.0/28", 30, "10.3.0.4", "10.3.0.12")},
		{`{"Network":"10.0.0.0/8","SubnetLen":30}`, v4("10.0.0.0/8", 30, "10.0.0.4", "10.255.255.252")},
		{`{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0"}`, v4("10.0.0.0/8", 20, "10.10.0.0", "10.99.0.0")},
		{`{"Network":"10.3.0.0/16","SubnetMin":"0.0.0.0"}`, v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")},
		{`{"Network":"1.2.3.0/24","Unknown":[{}],"network":"10.3.0.0/16"}`, v4("10.3.0.0/16", 24, "10.3.1.0", "10.3.255.0")},
		{`{"Network":"10.3.0.0/16","EnableNFTables":true}`, nft},
		{`{"Network":"10.3.0.0/16","Backend":{"Type":"VXLAN","VNI":22,"vni":23,"Port":0,"MTU":0,"Name":7}}`, vni23},
		{`{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":22,"Port":4789,"MTU":9000,"GBP":true,"Learning":true,"DirectRouting":true}}`, vxlan},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::1/48"}`, v6},
		{`{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48","IPv6SubnetLen":80,"IPv6SubnetMax":"fd10:6:0:7::"}`, dual},
	}
	for _, tt := range tests {
		tt.want.Backend.Type, tt.want.Backend.Missing = BackendVXLAN, !strings.Contains(strings.ToLower(tt.text), "backend")
		got, err := ParseNetwork([]byte(tt.text))
		if err != nil {
			t.Errorf("ParseNetwork(%s): %v", tt.text, err)
		} else if d := cmp.Diff(tt.want, got, netipTypes); d != "" {
			t.Errorf("ParseNetwork(%s) (-want +got):\n%s", tt.text, d)
		}
	}
}

func TestParseNetworkErrors(t *testing.T) {
	long := strings.Repeat("x", 500)
	tests := []struct{ text, want string }{
		{``, "network config: read JSON: unexpected end of JSON input"},
		{`{`, "network config: read JSON: unexpected end of JSON input"},
		{`{"Network":"10.3.0.0/16"} x`, "network config: read JSON: invalid character 'x' after top-level value"},
		{`[]`, `network config: "top level": want an object, got JSON array`},
		{`null`, `network config: please define a correct Network parameter in the flannel config: Network is ""`},
		{`{}`, `network config: please define a correct Network parameter in the flannel config: Network is ""`},
		{`{"Network":"10.3.0.0"}`, `network config: please define a correct Network parameter in the flannel config: Network is "10.3.0.0"`},
		{`{"Network":"` + long + `"}`, `network config: please define a correct Network parameter in the flannel config: Network is "` + long[:40] + `"`},
		{`{"Network":"fd00::/48"}`, `network config: please define a correct Network parameter in the flannel config: Network is "fd00::/48"`},
		{`{"Network":16}`, `network config: "Network": want a string, got JSON number`},
		{`{"Network":"10.3.0.0/16","EnableIPv4":"yes"}`, `network config: "EnableIPv4": want true or false, got JSON string`},
		{`{"Network":"10.3.0.0/16","SubnetLen":"24"}`, `network config: "SubnetLen": want a whole number from 0, got JSON string`},
		{`{"Network":"10.3.0.0/16","SubnetLen":-1}`, `network config: "SubnetLen": want a whole number from 0, got JSON number -1`},
		{`{"Network":"10.3.0.0/16","SubnetLen":31}`, `network config: SubnetLen must be less than /31: SubnetLen is 31`},
		{`{"Network":"10.3.0.0/16","SubnetLen":17}`, `network config: network must be able to accommodate at least four subnets: Network is 10.3.0.0/16, SubnetLen is 17`},
		{`{"Network":"10.3.0.0/29"}`, `network config: network is too small. Minimum useful network prefix is /28: Network is 10.3.0.0/29`},
		{`{"Network":"10.3.0.0/32"}`, `network config: network is too small. Minimum useful network prefix is /28: Network is 10.3.0.0/32`},
		{`{"Network":"10.3.0.0/16","SubnetMin":"10.4.1.0"}`, `network config: SubnetMin is not in the range of the Network: SubnetMin is 10.4.1.0, Network is 10.3.0.0/16`},
		{`{"Network":"10.3.0.0/16","SubnetMin":"10.3.1.1"}`, `network config: SubnetMin is not on a SubnetLen boundary: 10.3.1.1`},
		{`{"Network":"10.3.0.0/16","SubnetMax":"10.4.1.0"}`, `network config: SubnetMax is not in the range of the Network: SubnetMax is 10.4.1.0, Network is 10.3.0.0/16`},
		{`{"Network":"10.3.0.0/16","SubnetMax":"10.3.1.1"}`, `network config: SubnetMax is not on a SubnetLen boundary: 10.3.1.1`},
		{`{"Network":"10.3.0.0/16","SubnetMax":"x"}`, `network config: SubnetMax "x" is not an IPv4 address`},
		{`{"Network":"10.3.0.0/16","SubnetMin":"fd00::"}`, `network config: SubnetMin "fd00::" is not an IPv4 address`},
		{`{"Network":"10.3.0.0/16","SubnetMin":"10.3.9.0","SubnetMax":"10.3.8.0"}`, `network config: SubnetMin 10.3.9.0 is above SubnetMax 10.3.8.0`},
		{`{"Network":"0.0.0.0/0"}`, `network config: Network 0.0.0.0/0 overlaps 0.0.0.0/8, which cannot be routed`},
		{`{"Network":"224.1.0.0/16"}`, `network config: Network 224.1.0.0/16 overlaps 224.0.0.0/4, which cannot be routed`},
		{`{"EnableIPv4":false}`, `network config: EnableIPv4 and EnableIPv6 are both false, want at least one`},
		{`{"EnableIPv4":false,"EnableIPv6":true}`, `network config: please define a correct IPv6Network parameter in the flannel config: IPv6Network is ""`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetLen":127}`, `network config: IPv6SubnetLen must be less than /127: IPv6SubnetLen is 127`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetLen":49}`, `network config: IPv6Network must be able to accommodate at least four subnets: IPv6Network is fd00::/48, IPv6SubnetLen is 49`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetLen":120}`, `network config: IPv6SubnetLen 120 is more than 62 bits longer than IPv6Network fd00::/48`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/125"}`, `network config: IPv6Network is too small. Minimum useful network prefix is /124: IPv6Network is fd00::/125`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetMin":"fd01::"}`, `network config: IPv6SubnetMin is not in the range of the IPv6Network: IPv6SubnetMin is fd01::, IPv6Network is fd00::/48`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetMax":"fd00::1"}`, `network config: IPv6SubnetMax is not on an IPv6SubnetLen boundary: fd00::1`},
		{`{"Network":"10.3.0.0/16","Backend":"vxlan"}`, `network config: "Backend": want an object, got JSON string`},
		{`{"Network":"10.3.0.0/16","Backend":{"Type":"UDP"}}`, `network config: backend type "udp" is not supported: use "vxlan"; the userspace dataplane needs no vxlan module either`},
		{`{"Network":"10.3.0.0/16","Backend":{"Type":1}}`, `network config: "Backend.Type": want a string, got JSON number`},
		{`{"Network":"10.3.0.0/16","Backend":{"VNI":"1"}}`, `network config: "Backend.VNI": want a whole number, got JSON string`},
		{`{"Network":"10.3.0.0/16","Backend":{"VNI":1.5}}`, `network config: "Backend.VNI": want a whole number, got JSON number 1.5`},
		{`{"Network":"10.3.0.0/16","Backend":{"VNI":-1}}`, `network config: Backend.VNI -1 is not in 0..16777215`},
		{`{"Network":"10.3.0.0/16","Backend":{"VNI":16777216}}`, `network config: Backend.VNI 16777216 is not in 0..16777215`},
		{`{"Network":"10.3.0.0/16","Backend":{"Port":65536}}`, `network config: Backend.Port 65536 is not in 1..65535 (0: 8472)`},
		{`{"Network":"10.3.0.0/16","Backend":{"Port":70000}}`, `network config: Backend.Port 70000 is not in 1..65535: write 4464, which is what flanneld takes it for`},
		{`{"Network":"10.3.0.0/16","Backend":{"Port":-1}}`, `network config: Backend.Port -1 is not in 1..65535 (0: 8472)`},
		{`{"Network":"10.3.0.0/16","Backend":{"MTU":117}}`, `network config: Backend.MTU 117 is not in 118..65535 (0: that of the underlay interface)`},
		{`{"Network":"10.3.0.0/16","Backend":{"MTU":65536}}`, `network config: Backend.MTU 65536 is not in 118..65535 (0: that of the underlay interface)`},
		{`{"Network":"10.3.0.0/16","SubnetLen":31,"SubnetMin":"10.4.1.0","Backend":{"VNI":-1,"Port":-1,"MTU":1}}`, `network config: SubnetLen must be less than /31: SubnetLen is 31; ` +
			`SubnetMin is not in the range of the Network: SubnetMin is 10.4.1.0, Network is 10.3.0.0/16; Backend.VNI -1 is not in 0..16777215; Backend.Port -1 is not in 1..65535 (0: 8472); ` +
			`Backend.MTU 1 is not in 118..65535 (0: that of the underlay interface)`},
		{`{"Network":16,"SubnetLen":"24","Backend":{"Type":"vxlann","MTU":"x","GBP":1}}`, `network config: "Network": want a string, got JSON number; "SubnetLen": want a whole number from 0, got JSON string; ` +
			`backend type "vxlann" is not supported: use "vxlan"; "Backend.GBP": want true or false, got JSON number; "Backend.MTU": want a whole number, got JSON string`},
		{strings.Repeat(" ", maxConfig+1), `network config: 65537 bytes, want at most 65536`},
	}
	for _, tt := range tests {
		_, err := ParseNetwork([]byte(tt.text))
		var ne *NetworkError
		if !errors.As(err, &ne) {
			t.Errorf("ParseNetwork(%.80s): %v, want a *NetworkError", tt.text, err)
		} else if err.Error() != tt.want {
			t.Errorf("ParseNetwork(%.80s):\n got %s\nwant %s", tt.text, err, tt.want)
		}
	}
}

// FuzzParseNetwork: whatever is accepted is consistent in itself.
func FuzzParseNetwork(f *testing.F) {
	f.Add([]byte(`{"Network":"10.3.0.0/16","SubnetLen":24,"SubnetMin":"10.3.1.0","SubnetMax":"10.3.9.0","Backend":{"Type":"vxlan","VNI":1}}`))
	f.Add([]byte(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48","IPv6SubnetLen":64}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := ParseNetwork(text)
		if err != nil {
			if len(err.Error()) > 400 {
				t.Fatalf("error of %d bytes: %.80s", len(err.Error()), err)
			}
			return
		}
		v4, v6, err := Allocate(n, Node{}, nil, func(n int) int { return n - 1 })
		if err != nil || !Compatible(n, v4, v6) {
			t.Fatalf("%+v: allocated %v %v, %v", n, v4, v6, err)
		}
		if (n.EnableIPv4 && v4.Addr() != n.SubnetMax) || (n.EnableIPv6 && v6.Addr() != n.IPv6SubnetMax) {
			t.Fatalf("%+v: last of all free is %v %v", n, v4, v6)
		}
	})
}

// TestWrongTypeCosts: one field of a wrong type makes a long value little more expensive to read.
func TestWrongTypeCosts(t *testing.T) {
	value := func(first string) []byte {
		b := []byte(`{` + first)
		for i := 0; len(b) < 65500; i++ {
			b = fmt.Appendf(b, `,"%x":1`, i)
		}
		return append(b, '}')
	}
	cost := func(value []byte) float64 {
		return testing.AllocsPerRun(3, func() { _, _ = ParseLease("10.5.1.0-24", value) })
	}
	if address, kind := cost(value(`"PublicIP":"junk"`)), cost(value(`"PublicIP":1`)); kind > 2*address+100 {
		t.Errorf("a wrong type costs %.0f allocations, a wrong address %.0f", kind, address)
	}
}
