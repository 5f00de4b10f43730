package encap

import "testing"

// TestHotPathDoesNotAllocate runs what a packet meets in either direction.
func TestHotPathDoesNotAllocate(t *testing.T) {
	tmpl := NewTemplate(1, vtepB, vtepA)
	buf := make([]byte, HeaderLen+1500)
	var hdr [MaxSplitHeader]byte
	c, bufs := NewCoalescer(true, true), [3][]byte{make([]byte, 1500), make([]byte, 1500), make([]byte, 1500)}
	answer := make([]byte, MaxTooBig)
	limit := RunLimit{Datagrams: MaxRunDatagrams, Bytes: MaxRunBytes}
	for name, in := range inners(t, 1000) {
		datagram := buf[:HeaderLen+copy(buf[HeaderLen:], in.packet)]
		for step, f := range map[string]func(){
			"send": func() {
				dst, etherType, ok := Destination(in.packet)
				if !ok || !dst.IsValid() {
					t.Error("no destination")
				}
				tmpl.Put(datagram, etherType)
				if SourcePort(QuickHash(in.packet), 32768, 60999) < 32768 {
					t.Error("source port out of range")
				}
			},
			"receive": func() {
				if _, err := ParseVXLAN(datagram); err != nil {
					t.Error(err)
				}
				if _, _, _, err := ParseEthernet(datagram[VXLANLen:]); err != nil {
					t.Error(err)
				}
				var ip IP
				if err := ParseIP(datagram[HeaderLen:], &ip); err != nil {
					t.Error(err)
				}
				FlowHash(datagram[HeaderLen:], &ip)
				IsPartial(datagram[HeaderLen:], &ip)
				CompleteChecksum(datagram[HeaderLen:], &ip)
				VerifyChecksum(datagram[HeaderLen:], &ip)
			},
			"split": func() {
				var s Splitter
				if s.Init(in.packet, 400) != nil && s.InitUDP(in.packet, 400) != nil {
					t.Error("nothing to split")
				}
				for s.RunLen(limit) > 0 {
					s.Next(hdr[:])
				}
			},
			"coalesce": func() {
				var ip IP
				if err := ParseIP(in.packet, &ip); err != nil {
					t.Error(err)
				}
				DecapECN(in.packet, PacketECN(in.packet))
				for i := range bufs { // repetitions: those of UDP over IPv6 are merged
					if !c.Add(bufs[i][:copy(bufs[i], in.packet)], &ip, Offload{}) {
						t.Error("no room")
					}
				}
				if len(c.Flush()) == 0 {
					t.Error("nothing to write")
				}
			},
			"too big": func() {
				var ip IP
				if err := ParseIP(in.packet, &ip); err != nil {
					t.Error(err)
				}
				PutTooBig(answer, in.packet, &ip, ip.Dst, 1400)
			},
		} {
			tmpl.Put(datagram, in.etherType)
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s %s: %v allocations", step, name, n)
			}
		}
	}
}
