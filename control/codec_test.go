package control

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/encap"
)

func mac(s string) encap.MAC {
	m, err := encap.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// golden holds entries as flannel v0.28.9 wrote them, and some that only overlayd reads.
func golden() []struct {
	key, value string
	lease      Lease
} {
	return []struct {
		key, value string
		lease      Lease
	}{
		{"10.5.34.0-24",
			`{"PublicIP":"10.99.0.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"da:ea:d0:ec:41:6d"}}`,
			Lease{Subnet: prefix("10.5.34.0/24"), PublicIP: addr("10.99.0.11"), BackendType: "vxlan",
				Backend: VTEPData{VNI: 1, MAC: mac("da:ea:d0:ec:41:6d")}}},
		{"10.6.10.0-24&fd10:6:0:8::-64",
			`{"PublicIP":"10.99.0.14","PublicIPv6":"fd99::14","BackendType":"vxlan","BackendData":{"VNI":7,"VtepMAC":"8e:42:bf:15:f2:42"},"BackendV6Data":{"VNI":7,"VtepMAC":"a6:43:6b:46:93:ca"}}`,
			Lease{Subnet: prefix("10.6.10.0/24"), IPv6Subnet: prefix("fd10:6:0:8::/64"), PublicIP: addr("10.99.0.14"), PublicIPv6: addr("fd99::14"),
				BackendType: "vxlan", Backend: VTEPData{VNI: 7, MAC: mac("8e:42:bf:15:f2:42")}, BackendV6: VTEPData{VNI: 7, MAC: mac("a6:43:6b:46:93:ca")}}},
		{"10.5.34.0-24", `{"PublicIP":"1.2.3.4","PublicIPv6":null}`,
			Lease{Subnet: prefix("10.5.34.0/24"), PublicIP: addr("1.2.3.4")}},
		{"0.0.0.0-0&fd10:6:0:8::-64",
			`{"PublicIP":"0.0.0.0","PublicIPv6":"fd99::14","BackendType":"vxlan","BackendV6Data":{"VNI":7,"VtepMAC":"a6:43:6b:46:93:ca"}}`,
			Lease{IPv6Subnet: prefix("fd10:6:0:8::/64"), PublicIPv6: addr("fd99::14"), BackendType: "vxlan",
				BackendV6: VTEPData{VNI: 7, MAC: mac("a6:43:6b:46:93:ca")}}},
		{"10.5.34.0-24", // over an underlay of IPv6: overlayd's alone
			`{"PublicIP":"0.0.0.0","PublicIPv6":"fd99::14","BackendType":"vxlan","BackendV6Data":{"VNI":7,"VtepMAC":"a6:43:6b:46:93:ca"}}`,
			Lease{Subnet: prefix("10.5.34.0/24"), PublicIPv6: addr("fd99::14"), BackendType: "vxlan",
				BackendV6: VTEPData{VNI: 7, MAC: mac("a6:43:6b:46:93:ca")}}},
		{"10.6.10.0-24&fd10:6:0:8::-64", // over an underlay of IPv4, with a stand-in
			`{"PublicIP":"10.99.0.14","PublicIPv6":"100::a63:e","BackendType":"vxlan","BackendData":{"VNI":7,"VtepMAC":"8e:42:bf:15:f2:42"},"BackendV6Data":{"VNI":7,"VtepMAC":"8e:42:bf:15:f2:42"}}`,
			Lease{Subnet: prefix("10.6.10.0/24"), IPv6Subnet: prefix("fd10:6:0:8::/64"), PublicIP: addr("10.99.0.14"),
				BackendType: "vxlan", Backend: VTEPData{VNI: 7, MAC: mac("8e:42:bf:15:f2:42")}}},
		{"10.6.10.0-24&fd10:6:0:8::-64", // over an underlay of IPv6, with a stand-in
			`{"PublicIP":"243.147.218.8","PublicIPv6":"fd99::14","BackendType":"vxlan","BackendData":{"VNI":7,"VtepMAC":"a6:43:6b:46:93:ca"},"BackendV6Data":{"VNI":7,"VtepMAC":"a6:43:6b:46:93:ca"}}`,
			Lease{Subnet: prefix("10.6.10.0/24"), IPv6Subnet: prefix("fd10:6:0:8::/64"), PublicIPv6: addr("fd99::14"),
				BackendType: "vxlan", BackendV6: VTEPData{VNI: 7, MAC: mac("a6:43:6b:46:93:ca")}}},
	}
}

func TestLeaseIsFlannelsTextByteForByte(t *testing.T) {
	for _, tt := range golden() {
		if got := tt.lease.Key(); got != tt.key {
			t.Errorf("key %s, want %s", got, tt.key)
		}
		if got := string(tt.lease.Value()); got != tt.value {
			t.Errorf("value of %s\n got %s\nwant %s", tt.key, got, tt.value)
		}
		got, err := ParseLease(tt.key, []byte(tt.value))
		if err != nil || got != tt.lease {
			t.Errorf("ParseLease(%s) = %+v, %v\nwant %+v", tt.key, got, err, tt.lease)
		}
	}
}

func TestParseLeaseTolerates(t *testing.T) {
	want := golden()[0].lease
	for _, value := range []string{
		`{"BackendData":{"VtepMAC":"DA:EA:D0:EC:41:6D","VNI":1,"x":[]},"backendtype":"vxlan","PublicIP":"10.99.0.11"}`,
		`{"PublicIP":"9.9.9.9","PublicIP":"10.99.0.11","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"da:ea:d0:ec:41:6d"},"Node":{"id":"a"}}`,
	} {
		if got, err := ParseLease("10.5.34.0-24", []byte(value)); err != nil || got != want {
			t.Errorf("ParseLease(%s) = %+v, %v", value, got, err)
		}
	}
	other, err := ParseLease("10.5.34.0-24", []byte(`{"PublicIP":"1.2.3.4","BackendType":"wireguard","BackendData":{"PublicKey":"k"}}`))
	if err != nil || other.BackendType != "wireguard" || other.Backend != (VTEPData{}) {
		t.Errorf("another backend's lease = %+v, %v", other, err)
	}
}

func TestParseLeaseErrors(t *testing.T) {
	long := strings.Repeat("é", 400)
	tests := []struct{ value, want string }{
		{`x`, "read JSON: invalid character 'x' looking for beginning of value"},
		{``, "read JSON: unexpected end of JSON input"},
		{`null`, `PublicIP "" is not an IPv4 address`},
		{`[]`, `"top level": want an object, got JSON array`},
		{`{"PublicIP":NaN}`, "read JSON: invalid character 'N' looking for beginning of value"},
		{`{"PublicIP":1}`, `"PublicIP": want a string, got JSON number`},
		{`{"PublicIP":"` + long + `"}`, fmt.Sprintf("PublicIP %.40q is not an IPv4 address", long)},
		{`{"PublicIP":"::ffff:1.2.3.4"}`, `PublicIP "::ffff:1.2.3.4" is not an IPv4 address`},
		{`{"PublicIP":"1.2.3.4","PublicIPv6":"1.2.3.4"}`, `PublicIPv6 "1.2.3.4" is not an IPv6 address`},
		{`{"PublicIP":"1.2.3.4","PublicIPv6":"fe80::1%eth0"}`, `PublicIPv6 "fe80::1%eth0" is not an IPv6 address`},
		{`{"PublicIP":"1.2.3.4","PublicIPv6":"::ffff:1.2.3.4"}`, `PublicIPv6 "::ffff:1.2.3.4" is not an IPv6 address`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan"}`, `BackendData and BackendV6Data are missing, want one of them at least`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":null,"BackendV6Data":null}`, `BackendData and BackendV6Data are missing, want one of them at least`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":"x"}`, `"BackendData": want an object, got JSON string`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{}}`, `BackendData.VNI is missing`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{"VNI":16777216}}`, `BackendData.VNI 16777216 is not in 0..16777215`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{"VNI":-1}}`, `BackendData.VNI -1 is not in 0..16777215`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{"VNI":"1"}}`, `"BackendData.VNI": want a whole number, got JSON string`},
		{`{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:00:00:01"}}`,
			`BackendData.VtepMAC: parse MAC "02:00:00:00:00:00:00:01": want six hexadecimal bytes joined by colons, such as 0e:2a:00:00:00:01`},
		{strings.Repeat("[", 20000), "read JSON: invalid character '[' exceeded max depth"},
		{strings.Repeat(" ", maxValue+1), "value has more than 65536 bytes"},
	}
	for _, tt := range tests {
		if _, err := ParseLease("10.5.34.0-24", []byte(tt.value)); err == nil || err.Error() != tt.want {
			t.Errorf("ParseLease(%.80s):\n got %v\nwant %s", tt.value, err, tt.want)
		}
	}
}

func TestParseKeyIsStrict(t *testing.T) {
	for _, key := range []string{
		"", "x", "10.12.13.0", "10.12.13.300-24", "10.12.13.0-24hi", "10.12.13.0-", "-24",
		"10.12.13.0-24&2001::-56hi", "&2001::-56", "10.12.13.0-24&", "10.12.13.0-24&2001::", // flannel's own list
		"a10.12.13.0-24", "../10.12.13.0-24", "subnets/10.12.13.0-24", "10.12.13.0-24/", " 10.12.13.0-24", "10.12.13.0-24\n",
		"10.12.13.0-024", "010.12.13.0-24", "10.12.13.0-+24", "10.12.13.0-0", "10.12.13.0-32", "10.12.13.0-33", "10.12.13.1-24",
		"0.0.0.0-0", "0.0.0.0-0&", "::-0", "fd00::-64", "10.12.13.0/24", "10.12.13.0-24&10.12.14.0-24",
		"10.12.13.0-24&FD00::-64", "10.12.13.0-24&fd00:0::-64", "10.12.13.0-24&fd00::1-64", "10.12.13.0-24&fd00::%1-64",
		"10.12.13.0-24&::ffff:1.2.3.0-120", "10.12.13.0-24&fd00::-128", "10.12.13.0-24&fd00::-64&fd00::-64",
		"10.12.13.0-24\x00", "\xff\xfe", strings.Repeat("1", 1500),
	} {
		v4, v6, err := ParseKey(key)
		if err == nil {
			t.Errorf("ParseKey(%q) = %v, %v", key, v4, v6)
		} else if len(err.Error()) > 300 {
			t.Errorf("ParseKey(%.20q): error of %d bytes", key, len(err.Error()))
		}
	}
	longest := "248.248.248.248-29&1111:2222:3333:4444:5555:6666:7777:8888-125"
	if v4, v6, err := ParseKey(longest); err != nil || v4 != prefix("248.248.248.248/29") || v6 != prefix("1111:2222:3333:4444:5555:6666:7777:8888/125") {
		t.Errorf("ParseKey(%s) = %v, %v, %v", longest, v4, v6, err)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, tt := range golden() {
		f.Add(tt.key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		v4, v6, err := ParseKey(key)
		if err != nil {
			return
		}
		if got := (Lease{Subnet: v4, IPv6Subnet: v6}).Key(); got != key {
			t.Fatalf("key %q reads as %v %v and is written as %q", key, v4, v6, got)
		}
	})
}

func FuzzParseLease(f *testing.F) {
	for _, tt := range golden() {
		f.Add(tt.key, []byte(tt.value))
	}
	f.Add("10.5.34.0-24", []byte(`{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":01,"VtepMAC":"0E:00:00:00:02:40"}}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		if usual, ok := parseUsual(value); ok {
			if slow, err := parseJSON(value); err != nil || usual != slow {
				t.Fatalf("%q is read as %+v, want %+v, %v", value, usual, slow, err)
			}
		}
		l, err := ParseLease(key, value)
		if err != nil {
			if len(err.Error()) > 512 {
				t.Fatalf("error of %d bytes: %.80s", len(err.Error()), err)
			}
			return
		}
		again, err := ParseLease(l.Key(), l.Value())
		if err != nil || again != l {
			t.Fatalf("%+v written and read back: %+v, %v", l, again, err)
		}
		if !bytes.Equal(again.Value(), l.Value()) {
			t.Fatalf("written twice: %s, %s", l.Value(), again.Value())
		}
	})
}

func BenchmarkParseLease(b *testing.B) {
	g := golden()[0]
	value := []byte(g.value)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseLease(g.key, value); err != nil {
			b.Fatal(err)
		}
	}
}
