package encap

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Headers by hand, in hexadecimal; what stands for the payload is zeros.
const (
	addrs4 = "0a010102" + "0a010203"
	addrs6 = "fd000000000000010000000000000002" + "fd000000000000020000000000000003"
)

func TestParseIPv4(t *testing.T) {
	good := IP{Src: src4, Dst: dst4, Version: 4, Proto: ProtoUDP, HeaderLen: 20, Len: 28, First: true}
	with := func(change func(*IP)) IP {
		ip := good
		change(&ip)
		return ip
	}
	for _, tt := range []struct {
		name, packet string
		want         IP
		err          error
	}{
		{"no options", "4500001c00000000" + "40110000" + addrs4 + "0000000000000000", good, nil},
		{"padded", "4500001c00000000" + "40110000" + addrs4 + "0000000000000000" + "ffffffff", good, nil},
		{"DF is no fragment", "4500001c00004000" + "40110000" + addrs4 + "0000000000000000", good, nil},
		{"options", "4600001c00000000" + "40110000" + addrs4 + "0101010100000000",
			with(func(ip *IP) { ip.HeaderLen = 24 }), nil},
		{"header only", "4500001400000000" + "40110000" + addrs4, with(func(ip *IP) { ip.Len = 20 }), nil},
		{"first fragment", "4500001c00002000" + "40110000" + addrs4 + "0000000000000000",
			with(func(ip *IP) { ip.Fragment = true }), nil},
		{"last fragment", "4500001c00000001" + "40110000" + addrs4 + "0000000000000000",
			with(func(ip *IP) { ip.Fragment, ip.First = true, false }), nil},
		{"IHL 4", "4400001c00000000" + "40110000" + addrs4 + "0000000000000000", IP{}, ErrIP},
		{"IHL 0", "4000001c00000000" + "40110000" + addrs4 + "0000000000000000", IP{}, ErrIP},
		{"IHL beyond the packet", "4f00001c00000000" + "40110000" + addrs4 + "0000000000000000", IP{}, ErrIP},
		{"total length beyond the buffer", "4500001d00000000" + "40110000" + addrs4 + "0000000000000000", IP{}, ErrIP},
		{"total length within the header", "4500001300000000" + "40110000" + addrs4, IP{}, ErrIP},
		{"total length 0", "4500000000000000" + "40110000" + addrs4, IP{}, ErrIP},
		{"version 5", "5500001c00000000" + "40110000" + addrs4 + "0000000000000000", IP{}, ErrIP},
		{"19 bytes", "4500001400000000" + "40110000" + addrs4[:14], IP{}, ErrShort},
		{"empty", "", IP{}, ErrShort},
	} {
		t.Run(tt.name, func(t *testing.T) { checkParse(t, unhexString(t, tt.packet), tt.want, tt.err) })
	}
}

func TestParseIPv6(t *testing.T) {
	hop := "40"
	good := func(proto uint8, headerLen, n int) IP {
		return IP{Src: src6, Dst: dst6, Version: 6, Proto: proto, HeaderLen: headerLen, Len: n, First: true}
	}
	middle := good(ProtoUDP, 48, 56)
	middle.Fragment, middle.First = true, false
	first := good(ProtoUDP, 48, 56)
	first.Fragment = true
	for _, tt := range []struct {
		name, packet string
		want         IP
		err          error
	}{
		{"plain", "60000000" + "0008" + "11" + hop + addrs6 + "0000000000000000", good(ProtoUDP, 40, 48), nil},
		{"padded", "60000000" + "0008" + "11" + hop + addrs6 + "0000000000000000ffff", good(ProtoUDP, 40, 48), nil},
		{"no payload", "60000000" + "0000" + "3b" + hop + addrs6, good(59, 40, 40), nil},
		{"hop by hop, destination options", "60000000" + "0020" + "00" + hop + addrs6 +
			"3c00000000000000" + "1101000000000000" + "0000000000000000" + "0000000000000000", good(ProtoUDP, 64, 72), nil},
		{"authentication", "60000000" + "0018" + "33" + hop + addrs6 +
			"1102000000000000" + "0000000000000000" + "0000000000000000", good(ProtoUDP, 56, 64), nil},
		{"routing header done", "60000000" + "0010" + "2b" + hop + addrs6 +
			"1100000000000000" + "0000000000000000", good(ProtoUDP, 48, 56), nil},
		{"routing header with a hop to go", "60000000" + "0010" + "2b" + hop + addrs6 +
			"1100000100000000" + "0000000000000000", good(extRouting, 40, 56), nil},
		{"atomic fragment", "60000000" + "0010" + "2c" + hop + addrs6 +
			"1100000000000001" + "0000000000000000", good(ProtoUDP, 48, 56), nil},
		{"first fragment", "60000000" + "0010" + "2c" + hop + addrs6 +
			"1100000100000001" + "0000000000000000", first, nil},
		{"middle fragment", "60000000" + "0010" + "2c" + hop + addrs6 +
			"1100000900000001" + "0000000000000000", middle, nil},
		{"a later fragment hides no extension", "60000000" + "0010" + "2c" + hop + addrs6 +
			"3c00000800000001" + "11ff000000000000", func() IP { ip := middle; ip.Proto = extDestination; return ip }(), nil},
		{"no next header after an extension", "60000000" + "0008" + "3c" + hop + addrs6 +
			"3b00000000000000", good(59, 48, 48), nil},
		{"extension longer than the packet", "60000000" + "0008" + "3c" + hop + addrs6 + "1101000000000000", IP{}, ErrIP},
		{"extension in the padding", "60000000" + "0000" + "3c" + hop + addrs6 + "1100000000000000", IP{}, ErrIP},
		{"authentication longer than the packet", "60000000" + "0008" + "33" + hop + addrs6 + "1101000000000000", IP{}, ErrIP},
		{"extension cut short", "60000000" + "0004" + "00" + hop + addrs6 + "11000000", IP{}, ErrIP},
		{"payload length beyond the buffer", "60000000" + "0009" + "11" + hop + addrs6 + "0000000000000000", IP{}, ErrIP},
		{"39 bytes", "60000000" + "0000" + "3b" + hop + addrs6[:62], IP{}, ErrShort},
	} {
		t.Run(tt.name, func(t *testing.T) { checkParse(t, unhexString(t, tt.packet), tt.want, tt.err) })
	}
}

// TestParseIPBoundsExtensions shows that the walk ends, and that a packet it did
// not get to the end of is good but of unknown protocol.
func TestParseIPBoundsExtensions(t *testing.T) {
	packet := unhexString(t, "60000000"+"0000"+"3c"+"40"+addrs6)
	packet[4] = 1600 >> 8
	packet[5] = 1600 & 0xff
	for range 200 {
		packet = append(packet, extDestination, 0, 0, 0, 0, 0, 0, 0)
	}
	ip := parse(t, packet)
	if ip.Proto != extDestination || ip.HeaderLen != ipv6Len+8*maxExtensions || ip.Len != len(packet) {
		t.Errorf("ParseIP = protocol %d behind %d of %d bytes", ip.Proto, ip.HeaderLen, ip.Len)
	}
}

// checkParse compares ParseIP and Destination with what is wanted of them.
func checkParse(t *testing.T, packet []byte, want IP, wantErr error) {
	t.Helper()
	var got IP
	if err := ParseIP(packet, &got); !errors.Is(err, wantErr) {
		t.Fatalf("ParseIP error = %v, want %v", err, wantErr)
	}
	dst, etherType, ok := Destination(packet)
	if wantErr != nil {
		return
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("ParseIP (-want +got):\n%s", diff)
	}
	wantType := map[uint8]uint16{4: EtherTypeIPv4, 6: EtherTypeIPv6}[want.Version]
	if !ok || dst != want.Dst || etherType != wantType {
		t.Errorf("Destination = %s, %#x, %v; want %s, %#x", dst, etherType, ok, want.Dst, wantType)
	}
}

func TestDestinationRefuses(t *testing.T) {
	for name, packet := range map[string]string{
		"short IPv4":           "4500001400000000" + "40110000" + addrs4[:14],
		"IPv4 IHL 4":           "4400001400000000" + "40110000" + addrs4,
		"IPv4 longer than b":   "4500001500000000" + "40110000" + addrs4,
		"IPv4 within header":   "4500001300000000" + "40110000" + addrs4,
		"short IPv6":           "60000000" + "0000" + "3b" + "40" + addrs6[:62],
		"IPv6 longer than b":   "60000000" + "0001" + "3b" + "40" + addrs6,
		"ARP-like version 0":   "0001080006040001" + "40110000" + addrs4,
		"nothing at all":       "",
		"IPv6 in 20 bytes":     "60000000" + "0000" + "3b" + "40" + addrs6[:24],
		"version 15, 40 bytes": "f0000000" + "0000" + "3b" + "40" + addrs6,
	} {
		if dst, _, ok := Destination(unhexString(t, packet)); ok {
			t.Errorf("%s: Destination = %s, want refusal", name, dst)
		}
	}
}
