package udp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// errorMessage is what the kernel puts beside a message of the error queue: struct cmsghdr, struct sock_extended_err.
func errorMessage(level, kind int32, origin, icmp, code byte, mtu uint32) []byte {
	b := make([]byte, unix.CmsgSpace(16))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(16)))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	copy(b[unix.CmsgLen(0)+4:], []byte{origin, icmp, code})
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0)+8:], mtu)
	return b
}

// FuzzReport: whatever ICMP says, and in whatever pieces the kernel hands it on, only one that has seen the datagram proves anything, and what
// it proves is a number that it said.
func FuzzReport(f *testing.F) {
	sent := bytes.Repeat([]byte("overlayd"), 20)
	narrow4 := errorMessage(unix.IPPROTO_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, 3, 4, 1400)
	narrow6 := errorMessage(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.SO_EE_ORIGIN_ICMP6, 2, 0, 1300)
	f.Add(sent[:60], narrow4, []byte{}, narrow6, uint8(50))
	f.Add(sent, narrow6, sent[:49], narrow6, uint8(50))
	f.Add([]byte("forged"), narrow4, sent[1:], narrow4[:20], uint8(4))
	f.Add([]byte{}, append(narrow4, narrow6...), sent, errorMessage(unix.IPPROTO_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_LOCAL, 3, 4, 60), uint8(0))
	f.Fuzz(func(t *testing.T, quoted1, control1, quoted2, control2 []byte, proof uint8) {
		var r Report
		var said []int
		proves := false
		for _, m := range []struct{ quoted, control []byte }{{quoted1, control1}, {quoted2, control2}} {
			readError(m.quoted, m.control, func(mtu int, quoted []byte) {
				said = append(said, mtu)
				proves = proves || len(quoted) >= int(proof) && bytes.HasPrefix(sent, quoted[:min(len(quoted), len(sent))])
				r.take(mtu, quoted, sent, int(proof))
			})
		}
		found := r == Report{}
		for _, mtu := range said {
			found = found || r.MTU == mtu
		}
		if r.Proven != (proves && len(sent) >= int(proof)) || !found {
			t.Fatalf("%+v of %d, proof %v", r, said, proves)
		}
	})
}

// TestReport: what a router quotes proves that it has seen the datagram; a wrong quotation counts for nothing.
func TestReport(t *testing.T) {
	t.Parallel()
	sent := []byte("0123456789abcdef")
	for name, tt := range map[string]struct {
		quoted []string
		want   Report
	}{
		"nothing":                    {nil, Report{}},
		"all of it":                  {[]string{"0123456789abcdef"}, Report{1400, true}},
		"enough, and what follows":   {[]string{"0123456789abcdefgh"}, Report{1400, true}},
		"too little":                 {[]string{"01234567"}, Report{1400, false}},
		"wrong":                      {[]string{"0123456789abcdeX", "X"}, Report{}},
		"a proof, then too little":   {[]string{"0123456789", "0"}, Report{1400, true}},
		"too little, then the proof": {[]string{"", "0123456789"}, Report{1399, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var r Report
			for i, q := range tt.quoted {
				r.take(1400-i, []byte(q), sent, 10)
			}
			if r != tt.want {
				t.Errorf("got %+v, want %+v", r, tt.want)
			}
		})
	}
}
