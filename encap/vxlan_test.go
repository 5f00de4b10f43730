package encap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"
)

func unhexString(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatalf("decode %q: %v", s, err)
	}
	return b
}

// TestParseVXLAN has the rows that were tried against a kernel device.
func TestParseVXLAN(t *testing.T) {
	for _, tt := range []struct {
		name, header string
		vni          uint32
		err          error
	}{
		{"VNI 1", "0800000000000100", 1, nil},
		{"largest VNI", "08000000ffffff00", MaxVNI, nil},
		{"VNI 0", "0800000000000000", 0, nil},
		{"longer buffer", "0800000000000100ff", 1, nil},
		{"I flag clear", "0000000000000100", 0, ErrVXLAN},
		{"group policy flag", "8800000000000100", 0, ErrVXLAN},
		{"generic protocol flag", "0c00000000000100", 0, ErrVXLAN},
		{"lowest flag", "0900000000000100", 0, ErrVXLAN},
		{"first reserved byte", "0801000000000100", 0, ErrVXLAN},
		{"third reserved byte", "0800000100000100", 0, ErrVXLAN},
		{"reserved byte after the VNI", "0800000000000101", 0, ErrVXLAN},
		{"one byte short", "08000000000001", 0, ErrShort},
		{"empty", "", 0, ErrShort},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vni, err := ParseVXLAN(unhexString(t, tt.header))
			if vni != tt.vni || !errors.Is(err, tt.err) {
				t.Errorf("ParseVXLAN(%s) = %d, %v; want %d, %v", tt.header, vni, err, tt.vni, tt.err)
			}
		})
	}
}

// TestParseVXLANStrict sets every bit of a good header that is not the VNI's.
func TestParseVXLANStrict(t *testing.T) {
	for bit := range 64 {
		b := unhexString(t, "0800000000000100")
		b[bit/8] ^= 0x80 >> (bit % 8)
		_, err := ParseVXLAN(b)
		if isVNI := bit >= 32 && bit < 56; (err == nil) != isVNI {
			t.Errorf("bit %d flipped: error %v", bit, err)
		}
	}
}

func TestPutVXLAN(t *testing.T) {
	for _, tt := range []struct {
		vni  uint32
		want string
	}{
		{1, "0800000000000100"},
		{MaxVNI, "08000000ffffff00"},
		{MaxVNI + 2, "0800000000000100"},
	} {
		b := bytes.Repeat([]byte{0xee}, VXLANLen+1)
		PutVXLAN(b, tt.vni)
		if got := hex.EncodeToString(b); got != tt.want+"ee" {
			t.Errorf("PutVXLAN(%d) = %s, want %s and the next byte untouched", tt.vni, got, tt.want)
		}
	}
}

func TestTemplate(t *testing.T) {
	dst, src := MAC{0x0e, 0, 0, 0, 0, 2}, MAC{0x0e, 0, 0, 0, 0, 1}
	tmpl := NewTemplate(1, dst, src)
	b := bytes.Repeat([]byte{0xee}, HeaderLen+1)
	tmpl.Put(b, EtherTypeIPv6)
	const want = "0800000000000100" + "0e0000000002" + "0e0000000001" + "86dd" + "ee"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("Put = %s, want %s", got, want)
	}
	gotDst, gotSrc, etherType, err := ParseEthernet(b[VXLANLen:])
	if gotDst != dst || gotSrc != src || etherType != EtherTypeIPv6 || err != nil {
		t.Errorf("ParseEthernet = %s, %s, %#x, %v", gotDst, gotSrc, etherType, err)
	}
	if _, _, _, err := ParseEthernet(b[:EthernetLen-1]); !errors.Is(err, ErrShort) {
		t.Errorf("ParseEthernet of 13 bytes: error %v, want ErrShort", err)
	}
}

func TestOverhead(t *testing.T) {
	for _, tt := range []struct {
		addr string
		want int
	}{{"192.0.2.1", 50}, {"::ffff:192.0.2.1", 50}, {"2001:db8::1", 70}} {
		if got := Overhead(netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("Overhead(%s) = %d, want %d", tt.addr, got, tt.want)
		}
	}
}
